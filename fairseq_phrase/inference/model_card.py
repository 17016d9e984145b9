"""The model card of a bundle, README.md, with the metadata that model hubs read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.identity import PARTS, Identity
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.parsers import names_path
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.text import (
    escape_markdown,
    markdown_code,
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
    """

    license: str | None = None
    datasets: Sequence[str] = ()


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
    """
    metadata = yaml.safe_dump(
        _metadata(record, languages, options), sort_keys=False, allow_unicode=True, width=1000
    )
    pair = escape_markdown(" to ".join(languages))
    lines = ["---", metadata.rstrip(), "---", "", f"# {pair}", ""]
    lines += [f"A translation model of fairseq_phrase, {pair}.", *_record(record, manifest)]
    if options.datasets:
        names = escape_markdown(", ".join(options.datasets))
        lines += ["", "## Training data", "", f"- data: {names}"]
    lines += _training(state)
    return "\n".join([*lines, *_use(manifest.parser, packages)])


def _metadata(record: Identity, languages: Sequence[str], options: CardOptions) -> dict[str, Any]:
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
    }
    return {name: value for name, value in metadata.items() if value}


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
