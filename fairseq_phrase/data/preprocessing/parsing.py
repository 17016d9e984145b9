"""The first pass: parse and segment all lines into blocks on disk, and count.

A block is written atomically as soon as its lines are parsed, so a stopped run continues after the blocks
that are there. Blocks have a limited number of lines. They do not depend on the number of workers, and
memory does not grow with the text.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.blocks import Block, BlockMaker, Side
from fairseq_phrase.data.preprocessing.engines import Job, run_jobs
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.texts import parses_of
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.text import read_lines, written_together

logger = logging.getLogger(__name__)
_SHOWN_CAUSES = 3
_ListLine = Callable[[Path, int, str], None]


class BlockFolder:
    """The blocks of a split, a file each, by their numbers from 0. Damaged ones are deleted.

    Args:
        path: the folder; it is made if missing.
    """

    def __init__(self, path: Path):
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        for file in path.iterdir():
            if not file.name.isdigit():
                continue
            try:
                Block.unpacked(file.read_bytes())
            except zlib.error:
                logger.warning("%s is damaged: its lines are parsed again", file)
                file.unlink()

    def _file(self, number: int) -> Path:
        return self._path / f"{number:06}"

    def holds(self, number: int) -> bool:
        """Return whether a block is there."""
        return self._file(number).is_file()

    def write(self, number: int, block: bytes) -> None:
        """Write a packed block."""
        write_atomically(self._file(number), block)

    def read(self, number: int) -> Block:
        """Read a block."""
        return Block.unpacked(self._file(number).read_bytes())


def parse_and_count(
    options: Options, splits: Sequence[Split], folder: Path, check: Callable[[], None]
) -> dict[str, BlockFolder]:
    """Parse and segment all splits, and count what is kept.

    Args:
        folder: the folder of blocks.
        check: raises an error if a text has changed; see :func:`unchanged`.

    Returns:
        The blocks, by the split's name.

    Raises:
        UserError: a line has no parse, too many lines have none (``--max-flat``), ``--strict`` refuses a
            line, or no line of an output is kept.
    """
    folders = {split.name: BlockFolder(folder / split.name) for split in splits}
    with _listing(options.list_left_out) as list_line:
        for split in splits:
            paths = {side.language: side.corpus.path for side in split.sides}
            flat: Counter[str] = Counter()
            causes: defaultdict[str, list[str]] = defaultdict(list)
            for number, block in enumerate(_blocks(options, split, folders[split.name], check)):
                split.count(number, block)
                for line, _, reason in block.left_out:
                    list_line(split.sides[0].corpus.path, line, reason)
                for line, language, problem in block.problems:
                    list_line(paths[language], line, f"flat tree: {problem}")
                    flat[language] += 1
                    if flat[language] <= _SHOWN_CAUSES:
                        causes[language].append(f"line {line}: {problem}")
                    _check_flat(options, split, language, flat[language], causes[language])
            _require_sentences(options, split)
    return folders


def _blocks(
    options: Options, split: Split, folder: BlockFolder, check: Callable[[], None]
) -> Iterator[Block]:
    """Yield the blocks of a split in order; make those that are not there."""
    corpus = split.sides[0].corpus
    missing = {number for number in range(corpus.blocks) if not folder.holds(number)}
    engine = options.engine.for_lines(corpus.lines, parses=split.is_slow)
    make = partial(BlockMaker, options, split.is_whole, split.sides)
    surplus: list[UserError] = []
    made = run_jobs(_jobs(split, missing, surplus), make, engine)
    errors: dict[int, UserError] = {}
    sizes = [corpus.lines_before(number) for number in range(corpus.blocks + 1)]
    before = sum(sizes[n + 1] - sizes[n] for n in range(corpus.blocks) if n not in missing)
    with tqdm(
        desc=f"parsing {split.name}",
        total=corpus.lines,
        unit="line",
        smoothing=0.05,
        initial=before,
    ) as progress:
        for number in range(corpus.blocks):
            # Blocks are made in any order, and the error of the first one is reported.
            while number not in errors and not folder.holds(number):
                made_number, result = next(made)
                if isinstance(result, UserError):
                    errors[made_number] = result
                else:
                    check()  # a later run may continue from this block
                    folder.write(made_number, result)
                    progress.update(sizes[made_number + 1] - sizes[made_number])
            if number in errors:
                raise errors[number]
            yield folder.read(number)
        deque(made, maxlen=0)
        if surplus:
            raise surplus[0]


def _jobs(split: Split, missing: Collection[int], surplus: list[UserError]) -> Iterator[Job]:
    """Yield the missing blocks' lines, with their parses if these are read from files.

    Args:
        surplus: gets the error of a file with more parses than lines. Jobs are read ahead.
    """
    corpus = split.sides[0].corpus
    lines = corpus.chunks(zip(*(read_lines(s.corpus.path) for s in split.sides), strict=True))
    readers = [_read_parses(side) for side in split.sides]
    for number, (chunk, *parses) in enumerate(
        zip(lines, *map(corpus.chunks, readers), strict=True)
    ):
        if number in missing:
            yield Job(number, 1 + corpus.lines_before(number), chunk, parses)
        if any(of_side and isinstance(of_side[-1], UserError) for of_side in parses):
            return
    surplus += (error for error in chain.from_iterable(readers) if isinstance(error, UserError))


def _read_parses(side: Side) -> Iterator[Parse | UserError]:
    """Yield the parses in the file next to a text, if it has one, and an error that ends them."""
    if side.pipeline is None or not isinstance(side.pipeline.parser, FileParser):
        return
    path = parses_of(side.corpus.path, side.pipeline.parser)
    try:
        yield from side.pipeline.read(path, map(side.text, read_lines(side.corpus.path)))
    except UserError as error:
        yield error


def _check_flat(
    options: Options, split: Split, language: str, flat: int, causes: Sequence[str]
) -> None:
    corpus = next(side.corpus for side in split.sides if side.language == language)
    if flat > options.max_flat * corpus.lines:
        raise UserError(
            f"{flat} of the {corpus.lines} lines of {corpus.path} that were read so far have no "
            f"parse, more than --max-flat {options.max_flat:g} of all lines may get flat trees: "
            f"correct the trees, or raise --max-flat. The first:\n  " + "\n  ".join(causes)
        )


def _require_sentences(options: Options, split: Split) -> None:
    for output in split.outputs:
        counts = output.counts
        blank = counts.empty if len(split.sides) == 1 else 0
        if split.is_whole or counts.kept > blank:
            continue
        corpus = split.sides[0].corpus
        first, last = (
            corpus.lines_before(block) for block in (output.blocks.start, output.blocks.stop)
        )
        has_parts = len(split.outputs) > 1
        raise UserError(
            f"no sentence{'' if len(split.sides) == 1 else ' pair'} of {corpus.path}"
            f"{f', lines {first + 1} to {last},' if has_parts else ''} is "
            f"left: {counts.empty} {'are empty' if blank else 'have an empty side'}, "
            f"{counts.too_long} are longer than --max-length {options.max_length}, "
            f"{counts.skipped} have no parse{': give fewer --parts' if has_parts else ''}"
        )


@contextmanager
def _listing(path: Path | None) -> Iterator[_ListLine]:
    """Open the file of ``--list-left-out``, which appears once all lines are counted."""
    if path is None:
        yield lambda text, line, reason: None
        return
    with (
        written_together(path.parent) as folder,
        open(folder / path.name, "w", encoding="utf-8") as listed,
    ):
        print("file", "line", "reason", sep="\t", file=listed)
        yield lambda text, line, reason: print(
            text, line, " ".join(reason.split()), sep="\t", file=listed
        )
