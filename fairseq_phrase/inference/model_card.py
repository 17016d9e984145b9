"""The model card of a bundle, README.md, with the metadata that model hubs read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import PARTS, Identity
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import names_path
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.text import (
    escape_markdown,
    markdown_code,
    markdown_table,
    read_json,
    read_lines,
)

#: The options of a training that a card states, with their sections in a checkpoint's configuration.
_SOURCE = "https://github.com/fairseq-phrase/fairseq_phrase"
_TRAINING_OPTIONS = (
    ("common", "seed"),
    ("criterion", "criterion"),
    ("criterion", "label_smoothing"),
    ("optimizer", "optimizer"),
    ("optimizer", "adam_betas"),
    ("optimizer", "weight_decay"),
    ("optimization", "lr"),
    ("lr_scheduler", "lr_scheduler"),
    ("lr_scheduler", "warmup_updates"),
    ("optimization", "clip_norm"),
    ("dataset", "max_tokens"),
    ("dataset", "batch_size"),
    ("optimization", "update_freq"),
    ("distributed_training", "distributed_world_size"),
)


@dataclass(frozen=True)
class CardOptions:
    """What a model card states in addition to the identity record.

    Attributes:
        license: the licence's identifier, such as ``mit``.
        datasets: names of the training data.
        scores: a file of scores: JSON of ``fairseq-phrase-score`` or sacrebleu, or any Markdown.
    """

    license: str | None = None
    datasets: Sequence[str] = ()
    scores: Path | None = None


@dataclass(frozen=True)
class ReportedScore:
    """A score of a test set.

    Attributes:
        metric: its name, such as ``BLEU``.
        signature: how it was computed, in sacrebleu's form.
    """

    metric: str
    value: float
    signature: str = ""
    test_set: str = "test"


def read_scores(path: Path) -> list[ReportedScore]:
    """Read scores in sacrebleu's JSON: one score or a list, each with ``name`` and ``score``.

    Raises:
        UserError: the file is missing, has another form, or has scores of several models.
    """
    try:
        content = read_json("\n".join(read_lines(path)))
        entries = content if isinstance(content, list) else [content]
        scores = [
            ReportedScore(
                str(entry["name"]),
                float(entry["score"]),
                str(entry.get("signature", "")),
                str(entry.get("test_set", "test")),
            )
            for entry in entries
        ]
        models = sum({entry.get("model"): int(entry.get("seeds", 1)) for entry in entries}.values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: expected scores as fairseq-phrase-score --out FILE.json or sacrebleu --format json "
            f"writes them ({type(error).__name__}: {error})"
        ) from None
    if models > 1:
        raise UserError(f"{path} has scores of {models} models: score only this one")
    return scores


def model_card(
    record: Identity,
    manifest: Manifest,
    languages: Sequence[str],
    packages: Sequence[str],
    options: CardOptions,
    state: Mapping[str, Any],
) -> str:
    """Describe a model, for a README.md; options at their defaults are left out.

    Args:
        packages: the packages that the model needs.
        state: fairseq's dictionary of the checkpoint.

    Raises:
        UserError: the file of scores cannot be read.
    """
    scores, text = [], None
    if options.scores is not None and options.scores.suffix == ".json":
        scores = read_scores(options.scores)
        text = _score_table(scores)
    elif options.scores is not None:
        text = "\n".join(read_lines(options.scores))
    metadata = yaml.safe_dump(
        _metadata(record, languages, options, scores),
        sort_keys=False,
        allow_unicode=True,
        width=1000,
    )
    pair = escape_markdown(" to ".join(languages))
    lines = ["---", metadata.rstrip(), "---", "", f"# {pair}", ""]
    lines += [f"A translation model of fairseq_phrase, {pair}.", *_record(record, manifest)]
    if options.datasets:
        names = escape_markdown(", ".join(options.datasets))
        lines += ["", "## Training data", "", f"- data: {names}"]
    lines += _training(state)
    if text:
        lines += ["", "## Scores", "", text.strip()]
    return "\n".join([*lines, *_use(manifest.parser, packages)])


def _metadata(
    record: Identity,
    languages: Sequence[str],
    options: CardOptions,
    scores: Sequence[ReportedScore],
) -> dict[str, Any]:
    """Return the metadata of a card, in the order in which hubs list them."""
    codes = [
        match[0] for language in languages if (match := re.match(r"[a-z]{2,3}(?![a-z])", language))
    ]
    encoder = record.value("encoder")
    metadata: dict[str, Any] = {
        "language": list(dict.fromkeys(codes)),
        "license": options.license,
        "library_name": "fairseq-phrase",
        "pipeline_tag": "translation",
        "tags": ["fairseq", *([encoder] if encoder else [])],
        "datasets": list(options.datasets),
        "metrics": list(dict.fromkeys(score.metric.lower() for score in scores)),
    }
    if scores:
        metadata["model-index"] = [
            {
                "name": "-".join(["fairseq_phrase", *languages]),
                "results": [
                    _result(
                        test_set, [score for score in scores if score.test_set == test_set], options
                    )
                    for test_set in dict.fromkeys(score.test_set for score in scores)
                ],
            }
        ]
    return {name: value for name, value in metadata.items() if value}


def _result(test_set: str, scores: Sequence[ReportedScore], options: CardOptions) -> dict[str, Any]:
    """Return the scores of one test set in the form of a hub's model index."""
    return {
        "task": {"type": "translation"},
        "dataset": {"name": test_set, "type": next(iter(options.datasets), test_set)},
        "metrics": [
            {
                "type": score.metric.lower(),
                "name": score.metric,
                "value": score.value,
                **({"args": {"signature": score.signature}} if score.signature else {}),
            }
            for score in scores
        ],
    }


def _score_table(scores: Sequence[ReportedScore]) -> str:
    lines = [
        [score.test_set, score.metric, f"{score.value:.2f}", score.signature] for score in scores
    ]
    return markdown_table(["test set", "metric", "score", "signature"], lines)


def _record(record: Identity, manifest: Manifest) -> list[str]:
    """Return the lines of the identity record."""
    lines, title, order = [], "", list(PARTS)
    for key, entry in sorted(record.entries.items(), key=lambda pair: order.index(pair[1].part)):
        if entry.value == entry.default:
            continue
        if PARTS[entry.part].title != title:
            title = PARTS[entry.part].title
            lines += ["", f"## {title}", ""]
        option = f", {markdown_code(f'--parser {manifest.parser}')}" if key == "parser" else ""
        lines.append(f"- {key}: {escape_markdown(entry.label)}{option}")
    if record.allowed:
        lines += ["", "## Differences that were allowed", ""]
        lines += [f"- {escape_markdown(difference)}" for difference in record.allowed]
    return lines


def _training(state: Mapping[str, Any]) -> list[str]:
    sections, flags = plain_options(state.get("cfg")), []
    for section, option in _TRAINING_OPTIONS:
        options = sections.get(section)
        # fairseq names the class of a section, such as adam, in _name.
        name = "_name" if option == section else option
        value = options.get(name) if isinstance(options, Mapping) else None
        if isinstance(value, list):
            value = ",".join(map(str, value))
        if value is not None:
            flags += [f"--{option.replace('_', '-')}", str(value)]
    lines = ["", "## Options of the training", "", f"- options: {markdown_code(shlex.join(flags))}"]
    match state.get("optimizer_history"):
        case [*_, {"num_updates": int(updates)}]:
            lines.append(f"- updates: {updates}")
    return lines


def _use(parser: str, packages: Sequence[str]) -> list[str]:
    kind, note, options, text = parser.partition(":")[0], [], "", "< text"
    if names_path(parser):
        note = [f"The parser {markdown_code(parser)} is not in this folder.", ""]
        options = f" --source-parser {shlex.quote(parser)}"
    elif kind in (ConlluFiles.suffix, BracketFiles.suffix):
        note, text = [f"The text's parses are in {markdown_code(f'text.{kind}')}.", ""], "text"
    return [
        "", "## Use", "", *note, "```bash", " ".join([f"pip install git+{_SOURCE}", *packages]),
        "fairseq-phrase-inspect BUNDLE",
        f"fairseq-phrase-translate BUNDLE{options} {text} > translation", "```", "",
    ]  # fmt: skip
