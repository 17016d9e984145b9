"""Parts of a training text, each in a data directory: ``data1``, ``data2``, … (``--parts``)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.data.store.identity import TEXT_LOGGED
from fairseq_phrase.data.store.indexed import digest_of_joined_index
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
    """Write a digest of the lengths of all training sentences into the log, for reports.

    All parts of a text have the digest of a data directory with the whole text.
    """
    texts = [_texts_of(Path(directory), subset) for directory in directories]
    if len(directories) > 1 and (parts := _in_order(directories)):
        names = [path.stem for path in texts[0]]
        digests = [digest_of_joined_index([part / name for part in parts]) for name in names]
    else:
        digests = [digest_of(path) for paths in texts for path in paths]
    if digests:
        logger.info("%s%s: %s", TEXT_LOGGED, subset, joined_digest(digests)[:8])


def _texts_of(directory: Path, subset: str) -> list[Path]:
    """Return the indices of a data directory's training texts."""
    indices = sorted(directory.glob(f"{subset}*.idx"))
    return [path for path in indices if path.stem.rpartition(".")[2] not in FIELDS]


def _in_order(directories: Sequence[str]) -> list[Path]:
    """Return directories in the order of their parts; empty if they are not all parts of one text."""
    parts = {}
    for directory in directories:
        for language in languages_in(directory)[:1]:
            part = Manifest.load(directory, language).part
            if part:
                parts[part["run"], int(part["number"]), int(part["of"])] = Path(directory)
    numbers = [number for _, number, _ in sorted(parts)]
    is_whole = len({(run, of) for run, _, of in parts}) == 1 and len(directories) == len(parts)
    if not is_whole or numbers != list(range(1, max(of for _, _, of in parts) + 1)):
        return []
    return [parts[key] for key in sorted(parts)]


def _described(part: dict[str, str]) -> str:
    return f"part {part['number']} of {part['of']} (run {part['run'][:6]})"
