"""The record of a model's training: facts of its data, options, and the training's number.

The record is in the manifest of a data directory (the facts), and in every checkpoint and bundle. Every
option is in it, unless :data:`FREE_OPTIONS` has its name or its metadata declare it free.
:func:`differences` compares two records for a use, and :func:`check_identity` decides about the
differences and words them. ``docs/identity.md`` lists the steps of a record's life.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterable, Mapping
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


_DATA = "make the data with the training's"
PARTS = {
    "languages": Part("Languages", "name them with --source-lang and --target-lang"),
    "source": Part("Dictionaries", f"{_DATA} dictionary (--srcdict)"),
    "target": Part("Dictionaries", f"{_DATA} dictionary (--tgtdict)"),
    "text": Part(
        "Subwords",
        f"{_DATA} subword model (--sentencepiece-model, --bpe-codes, or --bpe KIND:FOLDER)",
    ),
    "target-text": Part("Subwords", f"{_DATA} subword model of the target (--sentencepiece-model)"),
    "labelled": Part("Target"),
    "data": Part("Data"),
    "labels": Part("Labels that the model reads", f"{_DATA} labels (--labeldict TRAINING_DATA)"),
    "parser": Part("Parser", "parse with the training's parser", "may"),
    "trees": Part("Trees", kind="may"),
    "encoder": Part("Encoder"),
    "decoder": Part("Decoder"),
    "task": Part("Task"),
    "training": Part("Training", "name checkpoints of one training (--last)"),
}
#: The uses in which two records are compared, with the parts that each leaves out. A training that is
#: resumed, restored or fine-tuned continues. Averages and ensembles join.
USES: dict[str, tuple[str, ...]] = {
    "use": ("encoder", "decoder", "training"),  # a model's options come with its checkpoint
    "continue": ("training",),
    "join": (),
}
#: What else is left out if an encoder begins from another model's: the decoder is not loaded, and a
#: pre-trained or a labelling encoder serves another task. The source's dictionary and tags are compared.
OF_OTHER_DECODERS = (
    "languages", "target", "target-text", "labelled", "decoder", "task", "training",
)  # fmt: skip
#: What else is left out if a model begins from another one: a denoising model serves another task.
OF_OTHER_TASKS = ("task", "training")
#: What else is left out in an ensemble: each model has its own, and is compared with the task.
OF_EACH_MODEL = ("encoder", "decoder", "parser", "trees", "task", "training")
#: Options of parts after the encoder. Other options belong to the part ``encoder``, unless the field's
#: metadata ``part`` name another part.
OF_DECODER = (
    "*decoder* share_* merge_src_tgt_embed adaptive_softmax_* tie_adaptive_* no_cross_attention "
    "cross_self_attention"
)
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
        "seed upsample_primary load_alignments batch_order "
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
#: The text before the differences in a message of :func:`check_identity`.
_DIFFER = " differ in "
#: The last entry of a dictionary of pre-training, which is not part of its fingerprint.
MASK = "<mask>"
#: The value of an option that a checkpoint may use without recording it.
UNKNOWN = "?"
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
        texts = (self.value, self.label, self.part, self.kind, self.default or "")
        if not all(isinstance(text, str) for text in texts) or self.part not in PARTS:
            raise ValueError(f"expected texts and a part, not {texts}")
        object.__setattr__(self, "kind", self.kind or PARTS[self.part].kind)
        if self.kind not in ("must", "may"):
            raise ValueError(f"unknown kind '{self.kind}'")


@dataclass(frozen=True)
class Identity:
    """A record.

    Attributes:
        entries: the entries by name. The name of an option is written with hyphens.
        allowed: differences that ``--allow-difference`` allowed, as texts.
        is_whole: False for a record derived from a checkpoint without a record, and for a record of an
            earlier version, which may lack entries.
        where: its file or folder, for messages.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    is_whole: bool = True
    where: str | Path = field(default="this run", compare=False)

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
            return cls(entries, allowed, content.get("version") == VERSION, where)
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

    def without(self, parts: Collection[str]) -> Identity:
        """Return the record of all other parts."""
        return self.only(*(PARTS.keys() - set(parts)))

    def only_named(self, names: Collection[str]) -> Identity:
        """Return the record of the entries with these names."""
        entries = {name: entry for name, entry in self.entries.items() if name in names}
        return replace(self, entries=entries)

    def with_entries(self, entries: Mapping[str, Entry]) -> Identity:
        """Return the record with these entries in addition, or instead of its own."""
        return replace(self, entries={**self.entries, **entries})

    def labels(self) -> dict[str, str]:
        """Return the label of each entry, by name."""
        return {name: entry.label for name, entry in self.entries.items()}

    def value(self, name: str) -> str | None:
        """Return the value of an entry; None without the entry."""
        return self.entries[name].value if name in self.entries else None


class Difference(NamedTuple):
    """An entry in which two records differ.

    Attributes:
        entry: its entry, of the record that has it.
        trained: the label in the training's record; None without one.
        here: the label in the record that it is compared with.
        lacking: the record that does not know the value, and need not; None if the values differ.
    """

    name: str
    entry: Entry
    trained: str | None
    here: str | None
    lacking: Identity | None

    def __str__(self) -> str:
        """Return the name and both labels."""
        return f"{self.name} {self.trained or '(none)'} and {self.here or '(none)'}"

    @property
    def remedy(self) -> str:
        """The advice; an entry with a default is an option."""
        default, trained = self.entry.default, self.trained
        if self.name == "encoder":
            return f"give {trained} as --arch (a labeller's --encoder)"
        if default is None and PARTS[self.entry.part].remedy:
            return PARTS[self.entry.part].remedy
        if not trained or (trained == default and trained in ("None", "False")):
            return f"leave out --{self.name}"
        return f"give --{self.name} {trained}".removesuffix(" True")


def differences(trained: Identity, here: Identity, use: str) -> list[Difference]:
    """List the entries in which two records differ.

    Args:
        trained: the record of a model, or of reused files.
        here: the record that it is compared with.
        use: one of :data:`USES`.
    """
    is_whole = trained.is_whole and here.is_whole
    listed = []
    for name in dict.fromkeys([*here.entries, *trained.entries]):
        entry = here.entries.get(name) or trained.entries[name]
        sides = [record.entries.get(name) for record in (trained, here)]
        values = [side.value if side else entry.default for side in sides]
        recorded = [None if value == UNKNOWN else value for value in values]
        is_default = recorded != values and entry.default in values
        if entry.part in USES[use] or values[0] == values[1] or is_default:
            continue
        lacking = None
        if None in recorded:
            # Without labels in one of two models, there are no numbers to agree. A record that is
            # derived lacks the options of this package's tasks.
            is_absent = entry.part == "labels" or (entry.part == "task" and not is_whole)
            if entry.kind == "may" or is_absent:
                continue
            # fairseq-phrase-attach does not need the subword model.
            if entry.part in ("text", "target-text") or not is_whole:
                lacking = trained if recorded[0] is None else here
        before, now = (side.label if side else entry.default for side in sides)
        listed.append(Difference(name, entry, before, now, lacking))
    return listed


class Tolerance(NamedTuple):
    """What a command lets pass.

    Attributes:
        allowed: names of entries that may differ, separated by commas (``--allow-difference``).
        strict: also refuse differences in entries of the kind ``may``.
        option: the name of the option that sets it; empty for a command without these options.
        remedy: the advice of such a command; by default that of the entries.
    """

    allowed: str | None = None
    strict: bool = False
    option: str = "strict-identity"
    remedy: str = ""


_ORDINARY = Tolerance()


def check_identity(
    trained: Identity, here: Identity, use: str, tolerance: Tolerance = _ORDINARY
) -> tuple[str, ...]:
    """Refuse two records that differ, warn of the difference, or let it pass.

    For the first arguments see :func:`differences`.

    Returns:
        The differences that were allowed, also earlier ones.

    Raises:
        UserError: entries that must agree differ; or a name is allowed that both records lack.
    """
    allowed_names = set(filter(None, (tolerance.allowed or "").split(",")))
    names = {*trained.entries, *here.entries}
    # Without this entry, other comparisons of the run have the other names.
    if "training" in names and (wrong := sorted(allowed_names - names)):
        raise UserError(
            f"{as_given('allow-difference', ','.join(wrong))}: expected some of "
            f"{', '.join(sorted(names))}"
        )
    refused: list[Difference] = []
    warned: list[Difference] = []
    passed: list[Difference] = []
    unknown: list[Difference] = []
    for difference in differences(trained, here, use):
        if difference.name in allowed_names:
            passed.append(difference)
        elif difference.lacking:
            unknown.append(difference)
        elif difference.entry.kind == "must" or tolerance.strict:
            refused.append(difference)
        else:
            warned.append(difference)
    pair = f"{trained.where} and {here.where}{_DIFFER}"
    if refused:
        remedies = dict.fromkeys(tolerance.remedy or difference.remedy for difference in refused)
        message = f"{pair}{_texts(refused)}: {', and '.join(remedies)}"
        if tolerance.option:
            names_refused = ",".join(difference.name for difference in refused)
            allowing = as_given("allow-difference", names_refused)
            message += f", or let this pass with {allowing}"
        raise UserError(message)
    if warned:
        refusing = f" ({as_given(tolerance.option)} refuses this)" if tolerance.option else ""
        warn_once(f"{pair}{_texts(warned)}{refusing}")
    if passed:
        warn_once(f"{pair}{_texts(passed)} ({as_given('allow-difference')} lets this pass)")
    for record, reference in ((trained, here), (here, trained)):
        if lacking := ", ".join(
            difference.name for difference in unknown if difference.lacking is record
        ):
            warn_once(
                f"{record.where} does not record its {lacking}: make sure that it has the same as "
                f"{reference.where}"
            )
    texts = [f"{difference} ({Path(trained.where).name})" for difference in passed]
    return tuple(dict.fromkeys([*trained.allowed, *here.allowed, *texts]))


def _texts(found: Iterable[Difference]) -> str:
    return ", ".join(map(str, found))


def logged_differences(message: str) -> str | None:
    """Return the differences in a warning of :func:`check_identity`; None for another message.

    >>> logged_differences("a.pt and data differ in parser x 1 and x 2 (--strict-identity refuses this)")
    'parser x 1 and x 2'
    """
    _, marker, texts = message.partition(_DIFFER)
    return re.sub(r" \([\w-]+ (?:refuses this|lets this pass)\)$", "", texts) if marker else None


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
