"""The record of a model's training: named entries, one comparison, one message.

The record is in the manifest of a data directory (entries about data), and in every checkpoint and
bundle. By default every option is an entry, unless :data:`FREE_OPTIONS` has its name or its metadata
declare it free. ``docs/identity.md`` lists the steps of a record's life.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_phrase.data.store.dictionaries import labels_fingerprint
from fairseq_phrase.errors import UserError, as_given, without_controls
from fairseq_phrase.text import read_lines, stamp_of

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """A group of entries.

    Attributes:
        title: the heading above its entries in a model card.
        remedy: advice if an entry differs; by default, to give the option of its name.
        kind: ``must``: a difference is an error. ``may``: it is a warning, or an error with
            ``--strict-identity``.
    """

    title: str
    remedy: str = ""
    kind: str = "must"


PARTS = {
    "languages": Part("Languages", "name them with --source-lang and --target-lang"),
    "source": Part("Dictionaries", "make the data with the training's dictionary (--srcdict)"),
    "target": Part("Dictionaries", "make the data with the training's dictionary (--tgtdict)"),
    "text": Part(
        "Subwords",
        "make the data with the training's subword model (--sentencepiece-model, --bpe-codes, or --bpe "
        "KIND:FOLDER)",
    ),
    "target-text": Part(
        "Subwords",
        "make the data with the training's subword model of the target (--sentencepiece-model)",
    ),
    "labelled": Part("Target"),
    "data": Part("Data"),
    "labels": Part(
        "Labels that the model reads",
        "make the data with the training's labels (--labeldict TRAINING_DATA)",
    ),
    "parser": Part("Parser", "parse with the training's parser", "may"),
    "trees": Part("Trees", kind="may"),
    "encoder": Part("Encoder"),
    "decoder": Part("Decoder"),
    "task": Part("Task"),
    "training": Part("Training", "name checkpoints of one training (--last)"),
}
_NO_AVERAGE = {"training": "only an average is made of one training's checkpoints"}
_NO_MODEL = {
    **_NO_AVERAGE,
    **dict.fromkeys(("encoder", "decoder", "task"), "no second model or task is there"),
    "trees": "one option makes the trees of a run",
}
#: The parts that each use leaves out of the comparison, with the reason. A resumed training,
#: ``--restore-file`` and ``--finetune-from-model``, with any ``--reset-*``, are ``train``.
LEFT_OUT: dict[str, dict[str, str]] = {
    "train": _NO_AVERAGE,
    "use": _NO_AVERAGE,
    "average": {},
    "report": _NO_AVERAGE,
    "pretrained": {
        **_NO_AVERAGE,
        **dict.fromkeys(
            ("target", "target-text", "labelled", "decoder"), "the decoder is not loaded"
        ),
        "languages": "the target is another, and the source is known by its dictionary and tags",
        "task": "a pre-trained or a labelling encoder serves another task",
    },
    "pretrained-model": {**_NO_AVERAGE, "task": "a denoising model serves another task"},
    "ensemble": {
        **_NO_AVERAGE,
        **dict.fromkeys(("encoder", "decoder", "parser", "trees"), "each model has its own"),
        "task": "each model is compared with the task",
    },
    "shards": {**_NO_MODEL, "languages": "the files' names have them"},
    "reuse": {
        **_NO_MODEL,
        "languages": "a dictionary may serve other languages",
        **dict.fromkeys(("source", "target", "labels"), "they are what is reused"),
        "labelled": "a dictionary may serve other labels",
    },
    "attach": {
        **_NO_MODEL,
        "languages": "the files' names have them",
        **dict.fromkeys(("target", "target-text", "labelled"), "it is not changed"),
        "labels": "new ones are made, or --labeldict names them",
    },
}
#: The uses in which two records are compared, with the compared parts.
ENTRY_POINTS = {entry_point: PARTS.keys() - left.keys() for entry_point, left in LEFT_OUT.items()}
#: Options of parts after the encoder. Other options belong to the part ``encoder``, unless the field's
#: metadata ``part`` name another part.
OF_DECODER = (
    "*decoder* share_* merge_src_tgt_embed adaptive_softmax_* tie_adaptive_* no_cross_attention "
    "cross_self_attention"
)
#: Advice for uses in which differences cannot be allowed.
REMEDIES = {"report": "name them as different rows, NAME=FOLDER"}
#: Options, or patterns of their names, that cannot change the output of a trained model for an input,
#: by the reason. All other options are entries. Metadata ``identity: must`` of a field override this.
FREE_OPTIONS = {
    "off outside training": "*dropout *dropout_in *dropout_out *layerdrop",
    "how memory is used": "checkpoint_activations offload_activations min_params_to_wrap",
    "values that the parameters begin with": "encoder_embed_path decoder_embed_path",
    "limits of length; learned positions have shapes": "max_source_positions max_target_positions",
    "which files are read; what is in them is compared": "data dataset_impl train_subset",
    "have entries made of more than the option":
        "source_lang target_lang source_parser tree_source tree_seed source_factors*",
    "padding, which no model reads":
        "left_pad_source left_pad_target required_seq_len_multiple num_batch_buckets",
    "what validation prints": "eval_*",
    "samples and losses of training":
        "seed upsample_primary load_alignments subword_sampling batch_order "
        "parse_loss* tree_regularization* tree_planting* coverage",
    "how a training begins, and what it trains":
        "pretrained pretrained_model pretrained_decoder_embeddings take_options freeze_encoder "
        "lr_scale_pretrained",
    "how an update is computed; the losses are the same, to rounding": "fairseq_update",
    "the comparison itself": "allow_difference strict_identity",
}  # fmt: skip
#: The text before a record in a training log.
LOGGED = "identity record "
#: The text before the digest of a training text in a training log.
TEXT_LOGGED = "lengths of "
#: The text before the differences in a message of :func:`compare`.
_DIFFER = " differ in "
#: The last entry of a dictionary of pre-training, which is not part of its fingerprint.
MASK = "<mask>"
#: The value of an option that a checkpoint may use without recording it.
UNKNOWN = "?"
_NOT_KNOWN = {None, UNKNOWN}
_NONE = "(none)"
#: The version of records. A record of an earlier version may lack entries; they count as unknown.
VERSION = 2


@lru_cache(maxsize=4096)
def why_free(name: str) -> str | None:
    """Return the reason why an option of this name is not recorded; None if it is."""
    for reason, patterns in FREE_OPTIONS.items():
        if matches(name, patterns):
            return reason
    return None


def matches(name: str, patterns: str) -> bool:
    """Return whether a name matches one of several patterns, separated by spaces."""
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


@dataclass(frozen=True)
class Entry:
    """One setting on which a model's output depends.

    Attributes:
        value: the compared text: a fingerprint of content, or the value of an option.
        label: the text in a message: a file, a parser's name, or the value.
        part: one of :data:`PARTS`.
        kind: ``must`` or ``may``; by default the kind of the part.
        default: the value in a record without this entry; None if such a record cannot be compared. An
            option that was added later leaves older records valid.
    """

    value: str
    label: str
    part: str
    kind: str = ""
    default: str | None = None

    def __post_init__(self) -> None:
        """Fill in the kind, and check values that may be wrong in a file.

        Raises:
            ValueError: part or kind is unknown, or a value is not a string.
        """
        if not self.kind and self.part in PARTS:
            object.__setattr__(self, "kind", PARTS[self.part].kind)
        texts = (self.value, self.label, self.part, self.kind, self.default or "")
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"expected texts, not {texts}")
        if self.part not in PARTS or self.kind not in ("must", "may"):
            raise ValueError(f"unknown part or kind '{self.part}', '{self.kind}'")


@dataclass(frozen=True)
class Identity:
    """A record.

    Attributes:
        entries: the entries by name. The name of an option is written with hyphens.
        allowed: differences that ``--allow-difference`` allowed, as texts.
        is_whole: False for a record derived from a checkpoint without a record, and for a record of an
            earlier version, which may lack entries.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    is_whole: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the record in types that JSON and checkpoints support."""
        entries = {name: asdict(entry) for name, entry in self.entries.items()}
        version = VERSION if self.is_whole else 0
        return {"entries": entries, "allowed": list(self.allowed), "version": version}

    @classmethod
    def from_dict(cls, content: Any, where: str | Path) -> Identity:
        """Read a record from a file's content.

        Raises:
            UserError: the record is damaged.
        """
        try:
            entries = {str(name): Entry(**entry) for name, entry in content["entries"].items()}
            allowed = tuple(map(str, content["allowed"]))
            return cls(entries, allowed, content.get("version") == VERSION)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where}: its identity record is damaged ({error})") from None

    def text(self) -> str:
        """Return the record as a table for people."""
        width = max(map(len, self.entries), default=0)
        lines = [f"{name:{width}}  {entry.label}" for name, entry in self.entries.items()]
        return "\n".join([*lines, *(f"allowed: {difference}" for difference in self.allowed)])

    def only(self, *parts: str) -> Identity:
        """Return the record of these parts."""
        entries = {name: entry for name, entry in self.entries.items() if entry.part in parts}
        return replace(self, entries=entries)

    def labels(self) -> dict[str, str]:
        """Return the label of each entry, by name."""
        return {name: entry.label for name, entry in self.entries.items()}

    def value(self, name: str) -> str | None:
        """Return the value of an entry; None without the entry."""
        return self.entries[name].value if name in self.entries else None


def compare(
    trained: Identity,
    current: Identity,
    entry_point: str,
    *,
    trained_name: str | Path,
    current_name: str | Path,
    allow: str | None = None,
    strict: bool = False,
    strict_option: str = "strict-identity",
    has_options: bool = True,
) -> Identity:
    """Compare two records.

    Args:
        trained: the record of a model, or of reused files.
        current: the record that it is compared with.
        entry_point: a name in :data:`ENTRY_POINTS`.
        trained_name: the file of ``trained``, for messages.
        current_name: the file or folder of ``current``.
        allow: names of entries that may differ, separated by commas (``--allow-difference``).
        strict: also refuse differences in entries of the kind ``may``.
        strict_option: the name of the option that sets it, for messages.
        has_options: whether the command has these options; fairseq's own tasks lack them.

    Returns:
        ``current`` with the differences that were allowed.

    Raises:
        UserError: entries that must agree differ; or ``allow`` has a name that both records lack.
    """
    allowed_names = set(filter(None, (allow or "").split(",")))
    names = {*current.entries, *trained.entries}
    if "task" in ENTRY_POINTS[entry_point] and (wrong := sorted(allowed_names - names)):
        raise UserError(
            f"{as_given('allow-difference', ','.join(wrong))}: expected some of "
            f"{', '.join(sorted(names))}"
        )
    differences = find_differences(trained, current, entry_point, allowed_names, strict=strict)
    by_decision: dict[str, list[Difference]] = {}
    for difference in differences:
        by_decision.setdefault(difference.decision, []).append(difference)

    pair = f"{trained_name} and {current_name}{_DIFFER}"
    if refused := by_decision.get("refused"):
        remedies = dict.fromkeys(
            REMEDIES.get(entry_point)
            or _remedy(difference.name, difference.trained, difference.entry)
            for difference in refused
        )
        message = f"{pair}{_texts(refused)}: {', and '.join(remedies)}"
        if has_options and entry_point not in REMEDIES:
            allowing = as_given(
                "allow-difference", ",".join(difference.name for difference in refused)
            )
            message += f", or let this pass with {allowing}"
        raise UserError(message)
    if warned := by_decision.get("warned"):
        refusing = f" ({as_given(strict_option)} refuses this)" if has_options else ""
        warn_once(f"{pair}{_texts(warned)}{refusing}")
    if let_through := by_decision.get("allowed", []):
        warn_once(f"{pair}{_texts(let_through)} ({as_given('allow-difference')} lets this pass)")
    for decision, lacking, reference in (
        ("unknown in training", trained_name, current_name),
        ("unknown here", current_name, trained_name),
    ):
        if unknown := by_decision.get(decision):
            warn_once(
                f"{lacking} does not record its {', '.join(d.name for d in unknown)}: make sure that it "
                f"has the same as {reference}"
            )
    passed = [f"{difference} ({Path(trained_name).name})" for difference in let_through]
    return replace(
        current, allowed=tuple(dict.fromkeys([*trained.allowed, *current.allowed, *passed]))
    )


def _texts(differences: Sequence[Difference]) -> str:
    return ", ".join(map(str, differences))


class Difference(NamedTuple):
    """An entry in which two records differ.

    Attributes:
        trained: the label in the training's record.
        here: the label in the record that it is compared with.
        decision: ``refused``, ``warned``, ``allowed`` by name; or ``unknown in training`` and ``unknown
            here`` where one of them does not record it.
    """

    name: str
    entry: Entry
    trained: str
    here: str
    decision: str

    def __str__(self) -> str:
        """Return the name and both labels."""
        return f"{self.name} {self.trained} and {self.here}"


def find_differences(
    trained: Identity,
    current: Identity,
    entry_point: str,
    allowed: AbstractSet[str],
    *,
    strict: bool,
) -> list[Difference]:
    """List the entries in which two records differ, each with the decision about it.

    For the arguments see :func:`compare`.

    Args:
        allowed: names of entries that may differ.
    """
    is_whole = trained.is_whole and current.is_whole
    differences = []
    for name in dict.fromkeys([*current.entries, *trained.entries]):
        before, now = trained.entries.get(name), current.entries.get(name)
        entry = current.entries.get(name) or trained.entries[name]
        values = [side.value if side else entry.default for side in (before, now)]
        if (
            entry.part not in ENTRY_POINTS[entry_point]
            or values[0] == values[1]
            or (UNKNOWN in values and entry.default in values)
            or (
                (before is None or now is None) and _has_none(entry, entry_point, is_whole=is_whole)
            )
        ):
            continue
        decision = _decide(name, entry, values, allowed, strict=strict, is_whole=is_whole)
        if decision is not None:
            label, label_here = (
                side.label if side else str(entry.default or _NONE) for side in (before, now)
            )
            differences.append(Difference(name, entry, label, label_here, decision))
    return differences


def _decide(
    name: str,
    entry: Entry,
    values: Sequence[str | None],
    allowed: AbstractSet[str],
    *,
    strict: bool,
    is_whole: bool,
) -> str | None:
    """Decide about two different values; None if the difference does not count."""
    if not _NOT_KNOWN.isdisjoint(values):
        if entry.kind == "may":
            return None
        # A subword model may be unknown: fairseq-phrase-attach does not need it.
        may_lack = entry.part in ("text", "target-text") or not is_whole
        if may_lack and name not in allowed:
            return "unknown in training" if values[0] in _NOT_KNOWN else "unknown here"
    if name in allowed:
        return "allowed"
    return "warned" if entry.kind == "may" and not strict else "refused"


def logged_differences(message: str) -> str | None:
    """Return the differences in a warning of :func:`compare`; None for another message.

    >>> logged_differences("a.pt and data differ in parser x 1 and x 2 (--strict-identity refuses this)")
    'parser x 1 and x 2'
    """
    _, marker, differences = message.partition(_DIFFER)
    return (
        re.sub(r" \([\w-]+ (?:refuses this|lets this pass)\)$", "", differences) if marker else None
    )


def _remedy(name: str, trained: str, entry: Entry) -> str:
    """Return the advice for a difference; an entry with a default is an option.

    Args:
        trained: the label that the training has, or ``_NONE``.
    """
    if name == "encoder":
        return f"give {trained} as --arch (a labeller's --encoder)"
    if entry.default is None and PARTS[entry.part].remedy:
        return PARTS[entry.part].remedy
    if trained == _NONE or (trained == entry.default and trained in ("None", "False")):
        return f"leave out --{name}"
    return f"give --{name} {trained}".removesuffix(" True")


def _has_none(entry: Entry, entry_point: str, *, is_whole: bool) -> bool:
    """Return whether an entry that only one of two records has can be ignored."""
    return (
        # Labels that only one of two models reads lack numbers in the other.
        entry.part == "labels"
        # Options of another task; for this task, an earlier record is completed from its configuration.
        or (entry.part == "task" and not is_whole)
        # A log lacks a configuration from which the record could be completed.
        or (entry_point == "report" and not is_whole)
    )


def log_record(record: Identity) -> None:
    """Write a training's record into its log, where ``fairseq-phrase-report`` reads it."""
    logger.info("%s%s", LOGGED, json.dumps(record.as_dict()))


@lru_cache(maxsize=256)
def warn_once(message: str) -> None:
    """Warn once, even if several parts of a program issue the same warning."""
    logger.warning(without_controls(message))


def dictionary_entry(path: Path, part: str) -> Entry:
    """Return the entry of a dictionary's symbols, in order and without a ``<mask>`` at the end.

    A process reads a file again only if it has changed.
    """
    return _dictionary_entry(path, part, *(stamp_of(path) if path.is_file() else ()))


@lru_cache(maxsize=64)
def _dictionary_entry(path: Path, part: str, *_stamp: int) -> Entry:
    lines = (line.removesuffix(" #fairseq:overwrite") for line in read_lines(path))
    symbols = [line.rpartition(" ")[0] for line in lines]
    symbols = symbols[:-1] if symbols[-1:] == [MASK] else symbols
    return numbered_entry(labels_fingerprint(symbols), path.name, part)


def numbered_entry(fingerprint: str, file: str, part: str) -> Entry:
    """Return the entry of symbols that are numbered by their order.

    Args:
        fingerprint: the result of :func:`fairseq_phrase.data.store.dictionaries.labels_fingerprint`.
    """
    count, _, digest = fingerprint.partition(":")
    return Entry(fingerprint, f"{file} ({count} entries, {digest[:6]})", part)


def parser_entry(version: str, digest: str) -> Entry:
    """Return the entry of a parser, with the digest of its weights, which is empty without weights."""
    return Entry(f"{version} {digest}", f"{version} {digest[:6]}".strip(), "parser")
