"""fairseq's dictionaries, of text and of labels, and fingerprints that connect parses with labels.

The parses of two languages may share a label dictionary: the second language adds its labels at the end.
Therefore a fingerprint has the number of the first labels that it covers.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_phrase.data.store.layout import rerun
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import read_lines

if TYPE_CHECKING:
    from fairseq.data import Dictionary

logger = logging.getLogger(__name__)
_NAMED = 10  # labels in a warning


def load_dictionary(path: Path) -> Dictionary:
    """Load a fairseq dictionary.

    Raises:
        UserError: the dictionary is missing or malformed.
    """
    # fairseq takes seconds to import: errors in arguments are reported before.
    from fairseq.data import Dictionary

    # read_lines names a line that is not UTF-8; the file may be a pipe, which can be read only once.
    text = io.StringIO("".join(f"{line}\n" for line in read_lines(path)))
    try:
        return Dictionary.load(text)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a fairseq dictionary: {error}") from None


#: fairseq's dictionaries number these first: ``<s>``, ``<pad>``, ``</s>``, ``<unk>``.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")


def as_entry(label: str) -> str:
    """Return a label as in its dictionary; ``_`` is added to labels that fairseq reserves."""
    return f"{label}_" if label in SPECIAL else label


def read_labels(path: Path) -> list[str]:
    """Read a label dictionary's labels, in the order of their numbers.

    Raises:
        UserError: the dictionary is missing or malformed.
    """
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: {rerun(path.parent)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    labels = []
    for number, line in enumerate(lines if lines != [""] else [], start=1):
        label, _, count = line.rstrip().rpartition(" ")
        if not label or not count.isdigit():
            raise UserError(
                f"{location(path, number)}: expected 'LABEL COUNT', found '{line[:60]}'"
            )
        labels.append(label)
    if len(set(labels)) != len(labels):
        raise UserError(f"{path} has a label twice: expected each once")
    return labels


def labels_fingerprint(labels: Sequence[str]) -> str:
    """Hash labels in the order of their numbers: ``14:3fb0…`` is the number of labels and the hash."""
    digest = hashlib.sha256("\n".join(labels).encode("utf-8"))
    return f"{len(labels)}:{digest.hexdigest()}"


def number_of_labels(fingerprint: str) -> int:
    """Return the number of labels that a fingerprint covers."""
    return int(fingerprint.partition(":")[0])


def begins_with(labels: Sequence[str], fingerprint: str) -> bool:
    """Return whether labels begin with the labels that a fingerprint covers."""
    return labels_fingerprint(labels[: number_of_labels(fingerprint)]) == fingerprint


def warn_of_unknown_labels(split: str, count: int, total: int, names: Iterable[str] = ()) -> None:
    """Warn that a split has labels that the training data lack."""
    labels = list(names)
    logger.warning(
        "%d of the %d labels of %s are unknown in training, so that no model can predict them; they "
        "count as wrong%s%s",
        count,
        total,
        split,
        ": " + ", ".join(labels[:_NAMED]) if labels else "",
        ", …" if len(labels) > _NAMED else "",
    )
