"""Parts of a training text, each in a data directory: ``data1``, ``data2``, … (``--parts``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.data.store.identity import TEXT_LOGGED
from fairseq_phrase.data.store.manifest import Manifest, languages_in
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of, joined_digest

logger = logging.getLogger(__name__)


def part_name(number: int) -> str:
    """Return the folder of a part, from 1."""
    return f"data{number}"


def check_parts(directories: Sequence[str | Path]) -> None:
    """Check that parts of one text were made by one command, and not some by another one.

    Other parts of the text would overlap, or have another parser's trees. Directories of different texts
    are not compared.

    Raises:
        UserError: two parts of a text were made by different commands.
    """
    first: dict[str, tuple[str | Path, dict[str, str]]] = {}
    for directory in directories:
        for language in languages_in(directory):
            part = Manifest.load(directory, language).part
            if not part:
                continue
            first_directory, its = first.setdefault(part["text"], (directory, part))
            if its["run"] != part["run"]:
                raise UserError(
                    f"{directory} has {_described(part)}, and {first_directory} has {_described(its)} "
                    "of the same text, made with other options or another parser: name the parts of one "
                    "run of fairseq-phrase-preprocess --parts"
                )


def log_text(directories: Sequence[str], subset: str) -> None:
    """Write a digest of the lengths of all training sentences into the log, for reports."""
    texts = [
        text for directory in sorted(directories) for text in _texts_of(Path(directory), subset)
    ]
    if texts:
        digest = joined_digest([digest_of(text) for text in texts])
        logger.info("%s%s: %s", TEXT_LOGGED, subset, digest[:8])


def _texts_of(directory: Path, subset: str) -> list[Path]:
    indices = sorted(directory.glob(f"{subset}*.idx"))
    return [path for path in indices if path.stem.rpartition(".")[2] not in FIELDS]


def _described(part: dict[str, str]) -> str:
    return f"part {part['number']} of {part['of']} (run {part['run'][:6]})"
