"""The texts of a run: found, counted, divided into blocks, and watched for changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from fairseq_phrase.data.preprocessing.options import Options, is_training
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import digest_of, find_text, read_lines

#: The most lines of a block.
BLOCK_LINES = 1000
Item = TypeVar("Item")


@dataclass(frozen=True)
class Corpus:
    """A text in blocks of about the same length.

    Attributes:
        name: its name in messages, ``train.de``.
        fingerprint: what differs if its content does.
        parts: into how many parts it is divided; each has the same number of blocks.
    """

    name: str
    path: Path
    lines: int
    fingerprint: str
    parts: int = 1

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        lines_of_part = -(-self.lines // self.parts)
        return self.parts * -(-lines_of_part // BLOCK_LINES)

    def lines_before(self, block: int) -> int:
        """Return the number of lines before a block, from 0."""
        return self.lines * block // max(1, self.blocks)

    def size(self, block: int) -> int:
        """Return the number of lines of a block."""
        return self.lines_before(block + 1) - self.lines_before(block)

    def chunks(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield a list of items for each block."""
        iterator = iter(items)
        for block in range(self.blocks):
            yield list(islice(iterator, self.size(block)))


def find_corpora(
    options: Options, pipelines: Mapping[str, ParsingPipeline]
) -> tuple[dict[str, tuple[Corpus, ...]], dict[Path, str]]:
    """Find the texts of all splits and count their lines, which also checks their encoding.

    Returns:
        Source and target of each split, by its name; and the digests of the files.

    Raises:
        UserError: a text is missing or empty, two sides have different numbers of lines, or a text has
            fewer lines than ``--parts`` needs.
    """
    corpora, files = {}, {}
    for name, prefix in options.splits.items():
        paths = {
            lang: find_text(prefix, lang) for lang in languages_with_text(options, name, prefix)
        }
        for language, path in paths.items():
            files.update(files_of(path, pipelines.get(language)))
        parts = options.parts if is_training(name) else 1
        corpora[name] = tuple(
            Corpus(f"{name}.{lang}", path, sum(1 for _ in read_lines(path)), files[path], parts)
            for lang, path in paths.items()
        )
        source, target = corpora[name][0], corpora[name][-1]
        if source.lines != target.lines:
            raise UserError(
                f"{source.path} has {source.lines} lines and {target.path} has {target.lines}: the two "
                "sides must be parallel, line by line"
            )
        if not source.lines:
            are = "is" if source is target else f"and {target.path} are"
            raise UserError(f"{source.path} {are} empty")
        if (most := -(-source.lines // BLOCK_LINES)) < parts:
            advice = "--parts 1 or none" if most == 1 else f"--parts {most}"
            raise UserError(
                f"--parts {parts}: {source.path} has {source.lines} lines, and a part has at least "
                f"{BLOCK_LINES}: give {advice}"
            )
    return corpora, files


def languages_with_text(options: Options, name: str, prefix: str) -> tuple[str, ...]:
    """Return a split's languages; a test set of new text may lack the target."""
    languages = options.languages
    needed = options.labels or options.copy_words or languages[-1] in options.parsing
    target = Path(f"{prefix}.{languages[-1]}")
    is_there = target.exists() or Path(f"{target}.gz").exists()
    if needed or is_there or not name.startswith("test"):
        return languages
    return languages[:1]


def parses_of(text: Path, parser: FileParser) -> Path:
    """Find the parses of a text, ``TEXT.SUFFIX`` or ``TEXT.SUFFIX.gz``.

    Raises:
        UserError: there are none, or both files exist and differ.
    """
    plain = text.with_suffix("") if text.suffix == ".gz" else text
    return find_text(str(plain), parser.suffix)


def files_of(text: Path, pipeline: ParsingPipeline | None) -> dict[Path, str]:
    """Return the digests of a text and of its parses, if they are read from a file."""
    files = [text]
    if pipeline is not None and isinstance(pipeline.parser, FileParser):
        files.append(parses_of(text, pipeline.parser))
    return {path: digest_of(path) for path in files}


@contextmanager
def unchanged(files: Mapping[Path, str]) -> Iterator[Callable[[], None]]:
    """Check after the block that files are unchanged, also if the block fails.

    The block gets the check, for what it keeps before.

    Raises:
        UserError: a file has changed.
    """

    def check() -> None:
        for path, before in files.items():
            if not path.is_file() or digest_of(path) != before:
                raise UserError(f"{path} has changed while it was read: run again when it is final")

    try:
        yield check
    except (UserError, ValueError):
        check()
        raise
    check()
