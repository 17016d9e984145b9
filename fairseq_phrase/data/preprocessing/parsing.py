"""Parse a corpus: a stream of lines through an engine, and chunks of their parses in order.

Parses are kept in shards until the run has finished. A shard is written atomically when its lines are
parsed, so a stopped run continues after the last shard. Shards have a fixed number of lines. They do not
depend on the number of workers, and memory does not grow with the text.

Parses made by this process are returned as objects. Parses from an earlier run or another process are
returned as shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.engines import Chunk, Done, EngineOptions, Job, run_jobs
from fairseq_phrase.data.preprocessing.parse_shards import ShardFolder
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers import FileParser
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.text import digest_of, find_text

SHARD_LINES = 1000
#: A worker takes seconds to load its parser, so few lines are not worth another.
LINES_PER_WORKER = 2000
Item = TypeVar("Item")


@dataclass(frozen=True)
class Corpus:
    """A text to be parsed.

    Attributes:
        name: its name in progress bars and folders, ``train.de``.
        path: its file, for messages and to find files of parses next to it.
        can_skip: whether lines without a parse may be left out.
    """

    name: str
    path: Path
    lines: int
    fingerprint: str
    can_skip: bool = True


def parse_corpus(
    corpus: Corpus,
    lines: Iterable[str],
    pipeline: ParsingPipeline,
    folder: Path,
    engine: EngineOptions,
    on_error: str,
) -> Iterator[Chunk]:
    """Parse the lines of a text that earlier runs did not parse; return the parses of all, in order.

    This process parses lazily, when the parses are read. Other engines parse everything before this
    function returns. If a file of parses cannot be read to its end, the last chunk ends with the error.

    Args:
        pipeline: the parser, or the reader of files next to the text.
        on_error: one of :data:`fairseq_phrase.option_values.ON_ERROR`; ``stop`` ends at the first shard
            in which a line has no parse.
    """
    if isinstance(pipeline.parser, FileParser):
        parses = pipeline.read(parses_of(corpus.path, pipeline.parser), iter(lines))
        return chunks(_with_error(parses))
    if pipeline.parser.is_instant:
        return map(pipeline.parse, chunks(lines))
    workers = min(engine.workers, max(1, corpus.lines // LINES_PER_WORKER))
    engine = EngineOptions(engine.name, workers, engine.ray_address)
    shards = _shards_of(corpus, pipeline, folder)
    count = -(-corpus.lines // SHARD_LINES)
    if engine.is_this_process:
        # The caller's progress bar also shows this progress.
        jobs = _unfinished(lines, shards)
        finished = run_jobs(jobs, pipeline, engine)
        return _in_order(_kept(finished, corpus, shards, on_error), shards, count)
    with tqdm(
        desc=f"parsing {corpus.name}", total=corpus.lines, unit="line", smoothing=0.05
    ) as progress:
        jobs = _unfinished(lines, shards, progress)
        for done in _kept(run_jobs(jobs, pipeline, engine), corpus, shards, on_error):
            progress.update(len(done.job.lines))
    return _in_order((), shards, count)


def _shards_of(corpus: Corpus, pipeline: ParsingPipeline, folder: Path) -> ShardFolder:
    key = {
        "text": f"{corpus.path.name} {corpus.fingerprint[:16]}",
        "parsing": repr(pipeline.options),
        "parser": f"{pipeline.parser.version} {pipeline.parser.digest[:16]}",
        "lines": str(SHARD_LINES),
    }
    return ShardFolder(folder / corpus.name, key)


def _unfinished(
    lines: Iterable[str], shards: ShardFolder, progress: tqdm | None = None
) -> Iterator[Job]:
    for number, chunk in enumerate(chunks(lines)):
        if not shards.holds(number, chunk):
            yield Job(number, 1 + number * SHARD_LINES, chunk)
        elif progress is not None and not progress.disable:  # by TQDM_DISABLE
            progress.initial += len(chunk)  # the bar then shows the speed of this run
            progress.update(len(chunk))


def _kept(
    finished: Iterable[Done], corpus: Corpus, shards: ShardFolder, on_error: str
) -> Iterator[Done]:
    """Write the shards of jobs; with ``on_error`` ``stop``, a line without a parse is an error."""
    for done in finished:
        shards.write(done.job.number, done.job.lines, done.shard)
        if done.problem is not None and on_error == "stop":
            raise unparsed_error(corpus, *done.problem)
        yield done


def _in_order(finished: Iterable[Done], shards: ShardFolder, count: int) -> Iterator[Chunk]:
    """Yield all parses: from this process, which parses lazily, and from the other jobs' shards."""
    following = 0
    for done in finished:
        for number in range(following, done.job.number):
            yield shards.read(number)
        yield done.parses
        following = done.job.number + 1
    for number in range(following, count):
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


def chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield lists of items, each as long as a shard."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, SHARD_LINES)):
        yield chunk
