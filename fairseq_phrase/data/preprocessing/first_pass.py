"""The first pass: parse and segment all lines into blocks on disk, and count.

A block is written atomically as soon as its lines are parsed, so a stopped run continues after the blocks
that are there. Blocks have a limited number of lines. They do not depend on the number of workers, and
memory does not grow with the text. Imports neither fairseq nor torch: workers start quickly.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.blocks import SHOWN, TEXT, Block, BlockFolder, FieldBlock
from fairseq_phrase.data.preprocessing.engines import Job, run_jobs
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.segmentation import RawText, SegmentedText, Side, SideLine
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.texts import Corpus, parses_of
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers import FileParser, LineParser
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.text import read_lines, written_together

_SHOWN_CAUSES = 3
_ListLine = Callable[[Path, int, str], None]


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
            blocks = _blocks(options, split, folders[split.name], check)
            _count(options, split, blocks, list_line)
            _require_sentences(options, split)
    return folders


def _count(options: Options, split: Split, blocks: Iterator[Block], list_line: _ListLine) -> None:
    """Count the blocks of a split, and list the lines that are left out or have flat trees."""
    corpora = {side.language: side.corpus for side in split.sides}
    flat: Counter[str] = Counter()
    causes: defaultdict[str, list[str]] = defaultdict(list)
    for number, block in enumerate(blocks):
        split.count(number, block)
        for line, _, reason in block.left_out:
            list_line(split.sides[0].corpus.path, line, reason)
        for line, language, problem in block.problems:
            list_line(corpora[language].path, line, f"flat tree: {problem}")
            flat[language] += 1
            if flat[language] <= _SHOWN_CAUSES:
                causes[language].append(f"line {line}: {problem}")
            _refuse_many_flat(options, corpora[language], flat[language], causes[language])


def _blocks(
    options: Options, split: Split, folder: BlockFolder, check: Callable[[], None]
) -> Iterator[Block]:
    """Yield the blocks of a split in order; make those that are not there."""
    corpus = split.sides[0].corpus
    missing = {number for number in range(corpus.blocks) if not folder.holds(number)}
    engine = options.engine.for_lines(corpus.lines, parses=split.is_slow)
    make = partial(BlockMaker, options, split.is_whole, split.sides)
    surplus: list[UserError] = []
    jobs = _jobs(split, missing, surplus)
    results = run_jobs(jobs, make, engine)
    errors: dict[int, UserError] = {}
    with tqdm(
        desc=f"parsing {split.name}",
        total=corpus.lines,
        unit="line",
        smoothing=0.05,
        initial=corpus.lines - sum(map(corpus.size, missing)),
    ) as progress:
        for number in range(corpus.blocks):
            # Blocks are made in any order, and the error of the first one is reported.
            while number not in errors and not folder.holds(number):
                made, result = next(results)
                if isinstance(result, UserError):
                    errors[made] = result
                    continue
                check()  # a later run may continue from this block
                folder.write(made, result)
                progress.update(corpus.size(made))
            if number in errors:
                raise errors[number]
            yield folder.read(number)
        deque(results, maxlen=0)
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


@dataclass(frozen=True)
class BlockMaker:
    """Makes the blocks of a split, from jobs whose lines are the texts' parallel lines.

    Attributes:
        is_whole: whether every line is kept.
        sides: the text of each language.
    """

    options: Options
    is_whole: bool
    sides: Sequence[Side]

    def __call__(self, job: Job) -> tuple[int, bytes | UserError]:
        """Return the number of a job, and its block, or the error at its first faulty line."""
        try:
            return job.number, self.block(job).packed()
        except UserError as error:
            return job.number, error

    def block(self, job: Job) -> Block:
        """Parse and segment lines.

        Raises:
            UserError: a line is refused, or its parse cannot be read.
        """
        block = Block()
        kept: list[list[SideLine]] = []
        parses = map(_parses, self.sides, zip(*job.lines, strict=True), job.parses)
        rows = zip(job.lines, *parses, strict=True)
        for number, (lines, *parsed) in enumerate(rows, start=job.first_line):
            pair = [
                side.encode(line, parse)
                for side, line, parse in zip(self.sides, lines, parsed, strict=True)
            ]
            self._refuse_unparsed(number, pair)
            if not self.is_whole:
                if (flaw := self._flaw(pair)) is not None:
                    self._refuse_if_strict(number, *flaw)
                    vars(block.counts)[flaw[0]] += 1
                    block.left_out.append((number, *flaw))
                    continue
                # A blank line of text of one language ends a document.
                block.counts.empty += not any(line.subwords for line in pair)
            kept.append(pair)
            for side, parse, line in zip(self.sides, parsed, pair, strict=True):
                if isinstance(parse, ParsedSentence):
                    unspelled = sum(len(expansion.words) for expansion in parse.expansions)
                    block.counts.unspelled[side.language] += unspelled
                if line.problem is not None:
                    block.problems.append((number, side.language, line.problem))
                if line.change:
                    block.counts.changed[side.language] += 1
                    if block.counts.changed[side.language] <= SHOWN:
                        block.changed.append((number, side.language, line.change))
        block.counts.kept = len(kept)
        for index, side in enumerate(self.sides):
            block.sides.append(_fields(side, [pair[index] for pair in kept], block.counts))
        return block

    def _refuse_unparsed(self, number: int, pair: list[SideLine]) -> None:
        for side, line in zip(self.sides, pair, strict=True):
            if line.problem is not None and self.options.on_error == "stop":
                skip = "--on-error skip leaves such lines out and counts them, "
                if isinstance(side, SegmentedText):  # every line is kept
                    skip = ""
                raise UserError(
                    f"{location(side.corpus.path, number)}: {line.problem} ({skip}--on-error flat gives "
                    "them flat trees)"
                )

    def _refuse_if_strict(self, number: int, kind: str, reason: str) -> None:
        if self.options.strict and kind != "skipped":
            source, *target = (side.corpus.path for side in self.sides)
            and_target = f" (and {target[0]})" if target else ""
            raise UserError(
                f"{location(source, number)}{and_target}: {reason}; without --strict such "
                f"{'pairs' if target else 'lines'} are left out and counted"
            )

    def _flaw(self, pair: list[SideLine]) -> tuple[str, str] | None:
        """Return the counting attribute and the reason if a pair is left out; None if it is kept."""
        lengths = [len(line.subwords) for line in pair]
        longest = max(lengths)
        if longest > self.options.max_length:
            return "too_long", f"{longest} subwords, --max-length is {self.options.max_length}"
        if not min(lengths):
            return ("empty", "one side is empty") if len(pair) > 1 else None
        problems = [line.problem for line in pair if line.problem is not None]
        if problems and self.options.on_error == "skip":
            return "skipped", problems[0]
        return None


def _parses(
    side: Side, lines: Sequence[str], given: Sequence[Parse | UserError]
) -> Iterator[Parse | None]:
    """Yield the parse of each line: given ones or the parser's; None if the language is not parsed."""
    if side.pipeline is None:
        yield from repeat(None, len(lines))
    elif isinstance(side.pipeline.parser, LineParser):
        yield from side.pipeline.parse([side.text(line) for line in lines])
    for parse in given:
        if isinstance(parse, UserError):
            raise parse
        yield parse


def _fields(side: Side, lines: list[SideLine], counts: SplitCounts) -> dict[str, FieldBlock]:
    """Count the kept lines of a language; return their subwords and parses."""
    sentences = [line.encoded for line in lines if line.encoded is not None]
    language = side.language
    counts.subwords[language] = sum(len(line.subwords) for line in lines)
    counts.swallowed[language] = sum(line.swallowed for line in lines)
    counts.lost_edges[language] = sum(sentence.lost_edges for sentence in sentences)
    counts.words[language] = sum(sentence.num_words for sentence in sentences)
    fields = {name: FieldBlock.of(name, sentences) for name in side.fields}
    if isinstance(side, RawText):
        fields[TEXT] = FieldBlock.of_text(line.subwords for line in lines)
    return fields


def _refuse_many_flat(options: Options, corpus: Corpus, flat: int, causes: Sequence[str]) -> None:
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
