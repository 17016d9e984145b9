"""A split of a data directory: parsed, written, and described in the manifest.

Raw text (:mod:`fairseq_phrase.data.preprocessing.preprocess`) and text that fairseq has already binarized
(:mod:`fairseq_phrase.data.preprocessing.attach`) share this code.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.encoded_blocks import (
    SHOWN,
    Block,
    BlockMaker,
    Lines,
    SideBlock,
)
from fairseq_phrase.data.preprocessing.engines import (
    Chunk,
    EngineOptions,
    Job,
    in_order,
    run_elsewhere,
)
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts, is_training
from fairseq_phrase.data.preprocessing.parsing import Corpus, ParseStream
from fairseq_phrase.data.store.indexed import NEXT_TO_FILES, Spills
from fairseq_phrase.data.store.layout import ATTACH, PREPROCESS, with_labels
from fairseq_phrase.data.store.line_ranges import LineRanges
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.data.store.writer import LabelTable, ParseWriter, TextWriter
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.parsers import resolve
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import digest_of, read_lines, written_together

_SHOWN_CAUSES = 3
ListLine = Callable[[Path, int, str], None]


class InputText:
    """One language of a split before it is written: a text, its parser and its subword model.

    Args:
        pipeline: its parser; None if it is not parsed.
        is_binarized: whether fairseq has already written its subwords.
    """

    def __init__(
        self,
        lines: Lines,
        corpus: Corpus,
        pipeline: ParsingPipeline | None,
        *,
        is_binarized: bool = False,
    ) -> None:
        self.language, self.lines, self.corpus = lines.language, lines, corpus
        self.pipeline, self.is_binarized = pipeline, is_binarized

    def parses(self, options: Options, folder: Path) -> ParseStream | None:
        """Open the parses of the text; None if it is not parsed."""
        if self.pipeline is None:
            return None
        text = map(self.lines.text, read_lines(self.corpus.path))
        return ParseStream(
            self.corpus, text, self.pipeline, folder, options.engine, options.on_error
        )


class JobStream:
    """The lines of a split's texts with their parses, block after block.

    Args:
        folder: the folder of finished parses.
    """

    def __init__(self, texts: Sequence[InputText], options: Options, folder: Path) -> None:
        self._corpus = texts[0].corpus
        lines = zip(*(read_lines(text.corpus.path) for text in texts), strict=True)
        self._lines = self._corpus.chunks(lines)
        self._parses = [text.parses(options, folder) for text in texts]
        self._next = 0

    def read(self, blocks: int | None = None) -> Iterator[Job]:
        """Parse the next blocks and return them (:meth:`ParseStream.read`)."""
        parses = [() if stream is None else stream.read(blocks) for stream in self._parses]
        return self._jobs(blocks, parses)

    def _jobs(self, blocks: int | None, parses: Sequence[Iterable[Chunk]]) -> Iterator[Job]:
        # A file with more parses than lines has its error after the lines.
        for lines, *chunk in zip_longest(islice(self._lines, blocks), *parses, fillvalue=()):
            yield Job(self._next, 1 + self._corpus.lines_before(self._next), lines, chunk)
            self._next += 1

    def skip(self, blocks: int) -> None:
        """Leave out the next blocks."""
        deque(islice(self._lines, blocks), maxlen=0)
        self._next += blocks
        for stream in filter(None, self._parses):
            stream.skip(blocks)

    def forget(self) -> None:
        """Delete the finished parses of the blocks that were read."""
        for stream in filter(None, self._parses):
            stream.forget()


class Side:
    """One language of a split in a data directory.

    Args:
        prefix: the common path of the output files, ``DIR/train.de-en.de``.

    Attributes:
        text: the writer of its subwords, after :meth:`open`; None if they are already binarized.
        parses: the writer of its parses, after :meth:`open`; None if the language is not parsed.
        subwords: the number of occurrences of each written subword.
        labels: the number of occurrences of each written label, by field.
        checksums: fingerprints of the files that the manifest records, by file name.
    """

    def __init__(self, source: InputText, prefix: Path) -> None:
        self.source, self.prefix, self.language = source, prefix, source.language
        self.text: TextWriter | None = None
        self.parses: ParseWriter | None = None
        self.subwords: Mapping[str, int] = {}
        self.labels: Mapping[str, Mapping[str, int]] = {}
        self.checksums: dict[str, str] = {}

    def open(
        self,
        spills: Spills = NEXT_TO_FILES,
        subwords: Mapping[str, int] | None = None,
        labels: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        """Open the writers.

        Args:
            spills: where their temporary files are.
            subwords, labels: the counts behind temporary files of an earlier run.
        """
        if not self.source.is_binarized:
            self.text = TextWriter(self.prefix, spills, subwords)
            self.subwords = self.text.subwords.counts
        if self.source.pipeline is not None:
            self.parses = ParseWriter(self.prefix, self.source.pipeline.fields, spills, labels)
            self.labels = {name: table.counts for name, table in self.parses.labels.items()}

    def write(self, block: SideBlock) -> None:
        """Write subwords and parses, whose numbers are provisional."""
        if self.text is not None and block.text is not None:
            self.text.append(block.text)
        if self.parses is not None:
            self.parses.append(block.fields)

    def complete(self) -> None:
        """Write everything that was added to the temporary files."""
        for writer in (self.text, self.parses):
            if writer is not None:
                writer.close()

    def close(self) -> None:
        """Let the writers and counts go."""
        self.complete()
        self.text = self.parses = None
        self.subwords, self.labels = {}, {}

    def finish(
        self, labels: Mapping[str, LabelTable], dictionary: Dictionary | None = None
    ) -> None:
        """Write the files, after all subwords and labels are known.

        Args:
            dictionary: the dictionary of the text, unless it is already binarized.
        """
        if self.text is not None:
            self.vouch_for(self.text.finish(dictionary))
        if self.parses is not None:
            self.vouch_for(self.parses.finish(labels))

    def vouch_for(self, paths: Sequence[Path]) -> None:
        """Record the fingerprints of files for the manifest."""
        self.checksums |= {path.name: fingerprint(path) for path in paths}


@dataclass
class Split:
    """A split of a data directory.

    Attributes:
        name: ``train``, ``valid``, ``test``, ``test1``….
        sides: source and target; or only the parsed language, if the text is already binarized or has
            one language.
        is_whole: whether every line is kept.
        part: the number of its data directory, from 1, if the training text has parts; otherwise 0.
        blocks: the blocks of the texts that the split has, from 0; None for all.
        flat_before: the number of flat trees in the blocks before, by language.
        causes: the reason why the first lines with flat trees have no parse, by language.
        left_out: the left-out lines, by the attribute that counts them.
        changed: the first lines changed by segmentation, by language.
    """

    name: str
    sides: tuple[Side, ...]
    is_whole: bool
    part: int = 0
    blocks: range | None = None
    flat_before: Counter[str] = field(default_factory=Counter)
    counts: SplitCounts = field(default_factory=SplitCounts)
    causes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    left_out: defaultdict[str, LineRanges] = field(default_factory=lambda: defaultdict(LineRanges))
    changed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def number_of_blocks(self) -> int | None:
        """The number of blocks to read; None for all that are left."""
        return None if self.blocks is None else len(self.blocks)

    @property
    def lines_before(self) -> int:
        """The number of the texts' lines before those of the split."""
        corpus = self.sides[0].source.corpus
        return 0 if self.blocks is None else corpus.lines_before(self.blocks.start)

    @property
    def lines(self) -> int:
        """The number of the texts' lines that the split is made of."""
        corpus = self.sides[0].source.corpus
        end = corpus.blocks if self.blocks is None else self.blocks.stop
        return corpus.lines_before(end) - self.lines_before

    @property
    def path(self) -> Path:
        """The text of the source, whose lines are numbered in messages."""
        return self.sides[0].source.corpus.path

    @property
    def texts(self) -> list[InputText]:
        """The texts that it is made of."""
        return [side.source for side in self.sides]

    def open(self, spills: Spills = NEXT_TO_FILES) -> None:
        """Open the writers of all sides."""
        for side in self.sides:
            side.open(spills)

    def complete(self) -> None:
        """Write everything that was added to the temporary files."""
        for side in self.sides:
            side.complete()

    def close(self) -> None:
        """Let the writers and the counts of subwords and labels go, which need memory."""
        for side in self.sides:
            side.close()

    def side(self, language: str) -> Side:
        """Return the side of a language."""
        return next(side for side in self.sides if side.language == language)

    def write(self, options: Options, jobs: Iterator[Job], list_line: ListLine) -> None:
        """Write the lines that are kept.

        Args:
            jobs: the lines of the split with their parses.
            list_line: is called with each line that is left out or has flat trees.

        Raises:
            UserError: a line has no parse, too many lines have none (``--max-flat``), ``--strict``
                refuses a line, or no line is kept.
        """
        with tqdm(
            desc=f"writing {self.name}", total=self.lines, unit="line", smoothing=0.05
        ) as progress:
            for block in self._blocks(options, jobs):
                progress.update(block.lines)
                self._add(options, block, list_line)
                if block.error is not None:
                    raise block.error
        counts = self.counts
        blank = counts.empty if len(self.sides) == 1 else 0
        if counts.kept == blank and not self.is_whole:
            fewer_parts = f": give fewer --parts, and remove {options.directory / '.partial'}"
            raise UserError(
                f"no sentence{'' if len(self.sides) == 1 else ' pair'} of {self.path}{self._span()} is "
                f"left: {counts.empty} {'are empty' if blank else 'have an empty side'}, "
                f"{counts.too_long} are longer than --max-length {options.max_length}, "
                f"{counts.skipped} have no parse{'' if self.blocks is None else fewer_parts}"
            )

    def _add(self, options: Options, block: Block, list_line: ListLine) -> None:
        """Write the sentences of a block, and count and list its lines."""
        self.counts.add(block.counts)
        for side, side_block in zip(self.sides, block.sides, strict=True):
            side.write(side_block)
        for left_out in block.left_out:
            self.left_out[left_out.kind].append(left_out.line)
            list_line(self.path, left_out.line, left_out.reason)
        for number, language, how in block.changed:
            changed = self.changed[language]
            if len(changed) < SHOWN:
                changed.append(f"{location(self.side(language).source.corpus.path, number)}: {how}")
        for number, language, problem in block.problems:
            side = self.side(language)
            list_line(side.source.corpus.path, number, f"flat tree: {problem}")
            self.counts.flat[language] += 1
            self._check_flat(options, side, f"line {number}: {problem}")

    def _span(self) -> str:
        """Name the lines of a part of a text, for messages."""
        first = self.lines_before + 1
        return "" if self.blocks is None else f", lines {first} to {first + self.lines - 1},"

    def _blocks(self, options: Options, jobs: Iterator[Job]) -> Iterator[Block]:
        """Make the blocks of all lines in order, in this process or, for many lines, in others."""
        corpora = [side.source.corpus for side in self.sides]
        lines = [side.source.lines for side in self.sides]
        make = partial(BlockMaker, options, self.is_whole, corpora, lines)
        workers = options.engine.processes_for(self.lines)
        if workers == 1:
            yield from map(make(), jobs)
            return
        engine = EngineOptions(workers=workers)
        blocks = run_elsewhere(jobs, make, engine, "the subword model")
        first = 0 if self.blocks is None else self.blocks.start
        yield from in_order((block.number - first, block) for block in blocks)

    def _check_flat(self, options: Options, side: Side, cause: str) -> None:
        """Raise an error if flat trees exceed the allowed fraction of the split."""
        causes, corpus = self.causes[side.language], side.source.corpus
        if len(causes) < _SHOWN_CAUSES:
            causes.append(cause)
        flat = self.flat_before[side.language] + self.counts.flat[side.language]
        if flat > options.max_flat * corpus.lines:
            raise UserError(
                f"{flat} of the {corpus.lines} lines of {corpus.path} that were read so far have no "
                f"parse, more than --max-flat {options.max_flat:g} of all lines may get flat trees: "
                f"correct the trees, or raise --max-flat. The first:\n  " + "\n  ".join(causes)
            )


class Totals:
    """The occurrences of labels in all splits, and of subwords in the training text.

    Attributes:
        subwords: by language.
    """

    def __init__(self, labels: Mapping[str, LabelTable]):
        self._labels = labels
        self.subwords: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, split: Split) -> None:
        """Count a split that was written."""
        for side in split.sides:
            for name, counts in side.labels.items():
                self._labels[name].add(counts)
            if is_training(split.name):
                self.subwords[side.language].update(side.subwords)


def parse_and_write(
    options: Options, splits: Sequence[Split], totals: Totals, folder: Path
) -> None:
    """Parse all splits, write the lines that are kept, and count them.

    Args:
        folder: the folder of finished parses.
    """
    streams = [JobStream(split.texts, options, folder) for split in splits]
    jobs = [stream.read() for stream in streams]
    with listing(options.list_left_out) as list_line:
        for split, lines in zip(splits, jobs, strict=True):
            split.open()
            split.write(options, lines, list_line)
            totals.add(split)


@contextmanager
def listing(path: Path | None) -> Iterator[ListLine]:
    """Open the file of ``--list-left-out``, which appears once all lines are written."""
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


def begin_manifest(
    options: Options,
    language: str,
    pipeline: ParsingPipeline,
    dictionary: Path,
    bpe_model: Path | None,
    target_model: Path | None = None,
) -> Manifest:
    """Make a manifest with the settings that all splits share.

    Args:
        bpe_model: the subword model; None if it is not known.
        target_model: the subword model of the other language, if it differs.
    """
    parsing = options.parsing[language]
    target_language = next(
        (candidate for candidate in options.languages if candidate != language), None
    )
    return Manifest(
        language=language,
        parser=resolve(parsing.parser),
        parser_version=pipeline.parser.version,
        fields=list(pipeline.fields),
        constituents=pipeline.constituents,
        tokenized=parsing.tokenized,
        labelling=options.labels or "",
        bpe=options.bpe_of(language),
        bpe_model=bpe_model.name if bpe_model else "",
        bpe_digest=digest_of(bpe_model) if bpe_model else "",
        target_bpe=options.bpe_of(target_language) if target_language else "",
        target_model=target_model.name if target_model else "",
        target_digest=digest_of(target_model) if target_model else "",
        characters=asdict(options.characters) if options.trains_sentencepiece else {},
        parser_digest=pipeline.parser.digest,
        parser_stamp=pipeline.parser.stamp,
        allowed=options.allowed,
        dictionary=fingerprint(dictionary),
        whole_lines=options.is_segmented and options.bpe in ("sentencepiece", "gpt2"),
        protected=list(options.protected),
        made_by=ATTACH if options.is_segmented else PREPROCESS,
    )


def finish_manifest(
    manifest: Manifest,
    options: Options,
    pipeline: ParsingPipeline,
    splits: Sequence[Split],
    labels: dict[str, LabelTable],
) -> None:
    """Add the splits that were written and the fingerprints of their labels."""
    manifest.labels = {name: labels[name].fingerprint() for name in with_labels(manifest.fields)}
    version, language = pipeline.parser.version, manifest.language
    for split in splits:
        counts = split.counts
        manifest.splits[options.split_name(split.name)] = SplitRecord(
            counts.kept,
            counts.words[language],
            counts.subwords[language],
            split.side(language).checksums,
            unparsed_skipped=counts.skipped,
            unparsed_flat=counts.flat[language],
            unknown_labels=counts.unknown_labels,
            changed=dict(counts.changed),
            left_out={kind: str(lines) for kind, lines in split.left_out.items()},
            lines_before=split.lines_before,
            parser_version="" if version == manifest.parser_version else version,
        )
