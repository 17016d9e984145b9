"""Parse a corpus: a stream of lines through an engine, and chunks of their parses in order.

Parses are kept in shards until the run has finished. A shard is written atomically when its lines are
parsed, so a stopped run continues after the last shard. Shards have a limited number of lines. They do
not depend on the number of workers, and memory does not grow with the text.

Parses made by this process are returned as objects. Parses from an earlier run or another process are
returned as shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.engines import Chunk, Done, EngineOptions, Job, run_jobs
from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers import FileParser
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.text import digest_of, find_text

#: The most lines of a shard.
SHARD_LINES = 1000
#: A worker takes seconds to load its parser, so few lines are not worth another.
LINES_PER_WORKER = 2000
Item = TypeVar("Item")


@dataclass(frozen=True)
class Corpus:
    """A text to be parsed, in blocks of about the same length, one for each shard.

    Attributes:
        name: its name in progress bars and folders, ``train.de``.
        path: its file, for messages and to find files of parses next to it.
        can_skip: whether lines without a parse may be left out.
        parts: into how many parts it is divided; each has the same number of blocks.
    """

    name: str
    path: Path
    lines: int
    fingerprint: str
    can_skip: bool = True
    parts: int = 1

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        lines_of_part = -(-self.lines // self.parts)
        return self.parts * -(-lines_of_part // SHARD_LINES)

    def lines_before(self, block: int) -> int:
        """Return the number of lines before a block, from 0."""
        return self.lines * block // max(1, self.blocks)

    def chunks(self, items: Iterable[Item]) -> Iterator[list[Item]]:
        """Yield lists of items, one for each block; surplus items are in another."""
        iterator = iter(items)
        ends = map(self.lines_before, range(self.blocks + 1))
        for start, end in pairwise(ends):
            if chunk := list(islice(iterator, end - start)):
                yield chunk
        if chunk := list(islice(iterator, SHARD_LINES)):
            yield chunk


class ParseStream:
    """The parses of a text, in order. Lines that earlier runs parsed are not parsed again.

    Args:
        lines: the text's lines for the parser.
        pipeline: the parser, or the reader of files next to the text.
        on_error: one of :data:`fairseq_phrase.option_values.ON_ERROR`; ``stop`` ends at the first shard
            in which a line has no parse.
    """

    def __init__(
        self,
        corpus: Corpus,
        lines: Iterable[str],
        pipeline: ParsingPipeline,
        folder: Path,
        engine: EngineOptions,
        on_error: str,
    ) -> None:
        self._corpus, self._pipeline, self._on_error = corpus, pipeline, on_error
        self._lines = corpus.chunks(lines)
        self._next, self._end = 0, corpus.blocks
        workers = min(engine.workers, max(1, corpus.lines // LINES_PER_WORKER))
        self._engine = EngineOptions(engine.name, workers, engine.ray_address)
        # Parses that take no time are not kept in shards.
        self._instant: Iterator[Chunk] | None = None
        self._shards: ShardFolder | None = None
        if isinstance(pipeline.parser, FileParser):
            parses = pipeline.read(parses_of(corpus.path, pipeline.parser), iter(lines))
            self._instant = corpus.chunks(_with_error(parses))
        elif pipeline.parser.is_instant:
            self._instant = map(pipeline.parse, self._lines)
        else:
            self._shards = _shards_of(corpus, pipeline, folder)

    def read(self, blocks: int | None = None) -> Iterator[Chunk]:
        """Parse the next lines and return their parses.

        This process parses lazily, when the parses are read. Other engines parse everything before this
        function returns. If a file of parses cannot be read to its end, the last chunk of the text ends
        with the error.

        Args:
            blocks: the number of blocks; all that are left by default.
        """
        first, last = self._next, self._end if blocks is None else self._next + blocks
        self._next = last
        if self._instant is not None:
            # The chunk after the last block has the error of surplus parses.
            return islice(self._instant, None if last == self._end else last - first)
        assert self._shards is not None
        lines = islice(self._lines, last - first)
        if self._engine.is_this_process:
            # The caller's progress bar also shows this progress.
            jobs = _unfinished(self._corpus, lines, first, self._shards)
            return _in_order(self._kept(jobs), self._shards, range(first, last))
        total = self._corpus.lines_before(last) - self._corpus.lines_before(first)
        with tqdm(
            desc=f"parsing {self._corpus.name}", total=total, unit="line", smoothing=0.05
        ) as progress:
            jobs = _unfinished(self._corpus, lines, first, self._shards, progress)
            for result in self._kept(jobs):
                progress.update(len(result.job.lines))
        return _in_order((), self._shards, range(first, last))

    def skip(self, blocks: int) -> None:
        """Leave out the next lines, without parsing them."""
        deque(islice(self._lines if self._instant is None else self._instant, blocks), maxlen=0)
        self._next += blocks

    def forget(self) -> None:
        """Delete the shards of the lines that were read."""
        if self._shards is None:
            return
        if self._next < self._end:
            self._shards.remove_below(self._next)
        else:
            self._shards.remove_all()

    def _kept(self, jobs: Iterator[Job]) -> Iterator[Done]:
        """Do jobs and write their shards; with ``stop``, a line without a parse is an error."""
        assert self._shards is not None
        for result in run_jobs(jobs, self._pipeline, self._engine):
            self._shards.write(result.job.number, result.job.lines, result.shard)
            if result.problem is not None and self._on_error == "stop":
                raise unparsed_error(self._corpus, *result.problem)
            yield result


def _shards_of(corpus: Corpus, pipeline: ParsingPipeline, folder: Path) -> ShardFolder:
    key = {
        "text": f"{corpus.path.name} {corpus.fingerprint[:16]}",
        "parsing": repr(pipeline.options),
        "parser": f"{pipeline.parser.version} {pipeline.parser.digest[:16]}",
        "blocks": str(corpus.blocks),
    }
    return ShardFolder(folder / corpus.name, key)


def _unfinished(
    corpus: Corpus,
    lines: Iterable[list[str]],
    first: int,
    shards: ShardFolder,
    progress: tqdm | None = None,
) -> Iterator[Job]:
    for number, chunk in enumerate(lines, start=first):
        if not shards.holds(number, chunk):
            yield Job(number, 1 + corpus.lines_before(number), chunk)
        elif progress is not None and not progress.disable:  # by TQDM_DISABLE
            progress.initial += len(chunk)  # the bar then shows the speed of this run
            progress.update(len(chunk))


def _in_order(finished: Iterable[Done], shards: ShardFolder, numbers: range) -> Iterator[Chunk]:
    """Yield all parses: from this process, which parses lazily, and from the other jobs' shards."""
    following = numbers.start
    for result in finished:
        for number in range(following, result.job.number):
            yield shards.read(number)
        yield result.parses
        following = result.job.number + 1
    for number in range(following, numbers.stop):
        yield shards.read(number)


def unparsed_error(corpus: Corpus, line: int, reason: str) -> UserError:
    """Make the error for ``--on-error stop``.

    Args:
        line: the line without a parse, from 1.
    """
    skip = "--on-error skip leaves such lines out and counts them, " if corpus.can_skip else ""
    return UserError(
        f"{location(corpus.path, line)}: {reason} ({skip}--on-error flat gives them flat trees)"
    )


def parses_of(text: Path, parser: FileParser) -> Path:
    """Find the parses of a text, ``TEXT.SUFFIX`` or ``TEXT.SUFFIX.gz``."""
    plain = text.with_suffix("") if text.suffix == ".gz" else text
    return find_text(str(plain), parser.suffix)


def files_of(text: Path, pipeline: ParsingPipeline | None) -> dict[Path, str]:
    """Return the digests of a text and of its parses, if they are read from a file."""
    files = [text]
    if pipeline is not None and isinstance(pipeline.parser, FileParser):
        files.append(parses_of(text, pipeline.parser))
    return {path: digest_of(path) for path in files}


@contextmanager
def unchanged(files: Mapping[Path, str]) -> Iterator[None]:
    """Check after the block that files are unchanged, also if the block fails.

    Raises:
        UserError: a file has changed.
    """

    def check() -> None:
        for path, before in files.items():
            if not path.is_file() or digest_of(path) != before:
                raise UserError(f"{path} has changed while it was read: run again when it is final")

    try:
        yield
    except (UserError, ValueError):
        check()
        raise
    check()


def _with_error(parses: Iterator[Parse]) -> Iterator[Parse | UserError]:
    try:
        yield from parses
    except UserError as error:
        yield error
