"""What a model was trained with: one record of named entries, one comparison, one message.

The record is in the manifest of a data directory (what concerns data), and in every checkpoint and
bundle.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fairseq_phrase.errors import UserError, option
from fairseq_phrase.store.dictionaries import labels_fingerprint
from fairseq_phrase.text import read_lines

logger = logging.getLogger(__name__)
Options = TypeVar("Options")


class Part(NamedTuple):
    """What entries belong to.

    Attributes:
        title: the heading above its entries in a model card.
        remedy: what to do if one differs; by default to give the option of its name.
        kind: ``must``: a difference is refused. ``may``: it is a warning, and refused with
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
        "make the data with the training's subword model (--sentencepiece-model, --bpe-codes)",
    ),
    "labels": Part(
        "Labels that the model reads",
        "make the data with the training's labels (--labeldict TRAINING_DATA)",
    ),
    "parser": Part("Parser", "parse with the training's parser", "may"),
    "trees": Part("Trees", kind="may"),
    "encoder": Part("Encoder"),
    "decoder": Part("Decoder"),
    "task": Part("Task"),
}
_READ = {"source", "text", "labels", "parser"}
#: Where two records meet, with the parts that are compared there. A resumed training, ``--restore-file``
#: and ``--finetune-from-model``, with any ``--reset-*``, are ``train``.
DOORS = {
    **dict.fromkeys(("train", "use", "average", "report"), frozenset(PARTS)),
    "pretrained": {*_READ, "trees", "encoder"},
    "pretrained-model": set(PARTS) - {"task"},
    "ensemble": {"languages", "source", "target", "text", "labels"},
    "shards": {*_READ, "target"},
    "reuse": {"text", "parser"},
    "attach": {"source", "text", "parser"},
}
#: What to do where nothing can be let through.
REMEDIES = {"report": "name them as different rows, NAME=FOLDER"}
#: What is before a record in the log of a training.
LOGGED = "identity record "
#: The last entry of a dictionary of pre-training, which its fingerprint leaves out.
MASK = "<mask>"


def free_options(options: type[Options]) -> type[Options]:
    """Declare that no option of a dataclass itself is recorded, because none changes a trained model."""
    for name in inspect.get_annotations(options):
        option = options.__dataclass_fields__[name]  # type: ignore[attr-defined]
        option.metadata = {**option.metadata, "identity": "free"}
    return options


@dataclass(frozen=True)
class Entry:
    """One fact that a model's numbers depend on.

    Attributes:
        value: what is compared: a fingerprint of content, or the value of an option.
        label: what a message shows: a file, a parser's name, the value.
        part: one of :data:`PARTS`.
        kind: ``must`` or ``may``; by default that of the part.
        default: the value in a record without this entry; None if such a record cannot be compared. An
            option that was added later leaves older records valid.
    """

    value: str
    label: str
    part: str
    kind: str = ""
    default: str | None = None

    def __post_init__(self) -> None:
        """Fill in the kind, and check what a file may have wrong.

        Raises:
            ValueError: part or kind is unknown, or a value is not a text.
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
        entries: by name. An option has its name with hyphens.
        allowed: differences that ``--allow-difference`` let through, as texts.
        is_whole: False for what could be derived of a checkpoint without a record.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    allowed: tuple[str, ...] = ()
    is_whole: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the record in types that JSON and checkpoints have."""
        entries = {name: asdict(entry) for name, entry in self.entries.items()}
        return {"entries": entries, "allowed": list(self.allowed), "is_whole": self.is_whole}

    @classmethod
    def from_dict(cls, content: Any, where: str | Path) -> Identity:
        """Read a record that a file holds.

        Raises:
            UserError: it is damaged.
        """
        try:
            entries = {str(name): Entry(**entry) for name, entry in content["entries"].items()}
            allowed = tuple(map(str, content["allowed"]))
            return cls(entries, allowed, bool(content.get("is_whole", True)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{where}: its identity record is damaged ({error})") from None

    def text(self) -> str:
        """Return the record as a table for people."""
        width = max(map(len, self.entries), default=0)
        lines = [f"{name:{width}}  {entry.label}" for name, entry in self.entries.items()]
        return "\n".join([*lines, *(f"allowed: {each}" for each in self.allowed)])

    def only(self, *parts: str) -> Identity:
        """Return the record of these parts."""
        entries = {name: entry for name, entry in self.entries.items() if entry.part in parts}
        return replace(self, entries=entries)

    def labels(self) -> dict[str, str]:
        """Return what people read of each entry, by name."""
        return {name: entry.label for name, entry in self.entries.items()}

    def value(self, name: str) -> str | None:
        """Return the value of an entry; None without the entry."""
        return self.entries[name].value if name in self.entries else None


def compare(
    trained: Identity,
    here: Identity,
    door: str,
    *,
    trained_name: str | Path,
    here_name: str | Path,
    allow: str | None = None,
    strict: bool = False,
) -> Identity:
    """Compare two records.

    Args:
        trained: the record of a model, or of what is reused.
        here: the record of what it meets.
        door: a name in :data:`DOORS`.
        trained_name: the file of ``trained``, for messages.
        here_name: the file or folder of ``here``.
        allow: names of entries that may differ, commas between them (``--allow-difference``).
        strict: also refuse differences in entries of the kind ``may``.

    Returns:
        ``here`` with the differences that were allowed.

    Raises:
        UserError: entries differ that must not; or ``allow`` has a name that neither record has.
    """
    names = dict.fromkeys([*here.entries, *trained.entries])
    may_differ = set(filter(None, (allow or "").split(",")))
    if DOORS[door] == set(PARTS) and (wrong := sorted(may_differ - set(names))):
        raise UserError(
            f"{option('allow-difference', ','.join(wrong))}: expected some of {', '.join(sorted(names))}"
        )
    refused: dict[str, str] = {}
    warned: list[str] = []
    let_through: list[str] = []
    remedies: dict[str, None] = {}
    unknown: dict[str, list[str]] = {}
    for name in names:
        one, other = trained.entries.get(name), here.entries.get(name)
        entry = here.entries.get(name) or trained.entries[name]
        if entry.part not in DOORS[door]:
            continue
        before, now = (each.value if each else entry.default for each in (one, other))
        is_missing = None in (before, now)
        # Labels that only one of two models reads have no numbers in the other.
        if before == now or (is_missing and entry.part == "labels"):
            continue
        # A subword model may be unknown: fairseq-phrase-attach does not need it.
        may_lack = entry.part == "text" or not (trained.is_whole and here.is_whole)
        if is_missing and (entry.kind == "may" or (may_lack and name not in may_differ)):
            if entry.kind == "must":
                unknown.setdefault(str(here_name if one else trained_name), []).append(name)
            continue
        first, second = (
            each.label if each else str(entry.default or "(none)") for each in (one, other)
        )
        difference = f"{name} {first} and {second}"
        if name in may_differ:
            let_through.append(f"{difference} ({Path(trained_name).name})")
        elif entry.kind == "may" and not strict:
            warned.append(difference)
        else:
            refused[name] = difference
            remedy = PARTS[entry.part].remedy or f"give --{name} {first}"
            remedies[REMEDIES.get(door, remedy)] = None
    both = f"{trained_name} and {here_name} differ in"
    if refused:
        message = f"{both} {', '.join(refused.values())}: {', and '.join(remedies)}"
        if door not in REMEDIES:
            allowing = option("allow-difference", ",".join(refused))
            message += f", or let this pass with {allowing}"
        raise UserError(message)
    if warned:
        warn_once(f"{both} {', '.join(warned)} ({option('strict-identity')} refuses this)")
    for which, missing in unknown.items():
        warn_once(
            f"{which} does not record its {', '.join(missing)}: make sure that it has the same as "
            f"{here_name if which == str(trained_name) else trained_name}"
        )
    return replace(
        here, allowed=tuple(dict.fromkeys([*trained.allowed, *here.allowed, *let_through]))
    )


@lru_cache(maxsize=256)
def warn_once(message: str) -> None:
    """Warn once, even if several parts of a program find the same."""
    logger.warning(message)


def dictionary_entry(path: Path, part: str) -> Entry:
    """Return the entry of a dictionary's symbols, in order and without a ``<mask>`` at the end.

    Raises:
        UserError: it is missing or not UTF-8.
    """
    lines = (line.removesuffix(" #fairseq:overwrite") for line in read_lines(path))
    symbols = [line.rpartition(" ")[0] for line in lines]
    symbols = symbols[:-1] if symbols[-1:] == [MASK] else symbols
    return numbered_entry(labels_fingerprint(symbols), path.name, part)


def numbered_entry(fingerprint: str, file: str, part: str) -> Entry:
    """Return the entry of symbols whose order gives them their numbers.

    Args:
        fingerprint: that of :func:`fairseq_phrase.store.dictionaries.labels_fingerprint`.
    """
    count, _, digest = fingerprint.partition(":")
    return Entry(fingerprint, f"{file} ({count} entries, {digest[:6]})", part)


def parser_entry(version: str, digest: str) -> Entry:
    """Return the entry of a parser, with the digest of its weights, which is empty without weights."""
    return Entry(f"{version} {digest}", f"{version} {digest[:6]}".strip(), "parser")


def digest_of(*paths: Path) -> str:
    """Return the SHA-256 of a file's content, or for several files that of their digests.

    A process reads a file again only if its size, date or inode has changed.

    Raises:
        OSError: a file cannot be read.
    """
    digests = [_digest(path, *stamp_of(path)) for path in paths]
    return digests[0] if len(paths) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def stamp_of(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file is written again: size, date of the last change, and inode."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns, found.st_ino


@lru_cache(maxsize=4096)
def _digest(path: Path, *_stamp: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
