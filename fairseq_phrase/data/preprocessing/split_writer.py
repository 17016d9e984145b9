"""A split of a data directory: parsed, written, and described in the manifest.

Raw text (:mod:`fairseq_phrase.data.preprocessing.preprocess`) and text that fairseq has already binarized
(:mod:`fairseq_phrase.data.preprocessing.attach`) share this code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from fairseq.data import Dictionary
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
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.parsing import Corpus, chunks, parse_corpus
from fairseq_phrase.data.store.layout import ATTACH, PREPROCESS, with_labels
from fairseq_phrase.data.store.line_ranges import LineRanges
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.data.store.writer import LabelTable, ParseWriter, SubwordTable, TextWriter
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers import resolve
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import digest_of, read_lines, written_together

_SHOWN_CAUSES = 3
_ListLine = Callable[[Path, int, str], None]


class Side:
    """One language of a split.

    Args:
        pipeline: its parser; None if it is not parsed.
        prefix: the common path of the output files, ``DIR/train.de-en.de``.
        table: the numbers of its language's subwords; None if the text is already binarized.

    Attributes:
        parses: the parses of its lines, after :meth:`parse`.
        text: its subwords, unless they are already binarized.
        checksums: fingerprints of the files that the manifest records, by file name.
    """

    def __init__(
        self,
        lines: Lines,
        corpus: Corpus,
        pipeline: ParsingPipeline | None,
        prefix: Path,
        table: SubwordTable | None = None,
    ) -> None:
        self.language, self.lines, self.corpus = lines.language, lines, corpus
        self.pipeline, self.prefix = pipeline, prefix
        self.text = None if table is None else TextWriter(prefix, table)
        self.checksums: dict[str, str] = {}
        self.parses: Iterator[Chunk] = iter(())
        self._written: ParseWriter | None = None

    def parse(self, options: Options, labels: dict[str, LabelTable], folder: Path) -> None:
        """Parse the text with :func:`parse_corpus`, if it has a parser."""
        if self.pipeline is not None:
            text = map(self.lines.text, read_lines(self.corpus.path))
            self.parses = parse_corpus(
                self.corpus, text, self.pipeline, folder, options.engine, options.on_error
            )
            self._written = ParseWriter(self.prefix, self.pipeline.fields, labels)

    def write(self, block: SideBlock) -> None:
        """Write subwords and parses, whose numbers are provisional."""
        if self.text is not None and block.text is not None:
            self.text.append(block.text)
        if self._written is not None:
            self._written.append(block.fields)

    @property
    def subwords(self) -> Counter[str]:
        """The number of occurrences of each written subword."""
        return Counter() if self.text is None else self.text.counts

    def finish(self, dictionary: Dictionary | None = None) -> None:
        """Write the files, after all subwords and labels are known.

        Args:
            dictionary: the dictionary of the text, unless it is already binarized.
        """
        if self.text is not None:
            self.vouch_for(self.text.finish(dictionary))
        if self._written is not None:
            self.vouch_for(self._written.finish())

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
        causes: the reason why the first lines with flat trees have no parse, by language.
        left_out: the left-out lines, by the attribute that counts them.
        changed: the first lines changed by segmentation, by language.
    """

    name: str
    sides: tuple[Side, ...]
    is_whole: bool
    counts: SplitCounts = field(default_factory=SplitCounts)
    causes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    left_out: defaultdict[str, LineRanges] = field(default_factory=lambda: defaultdict(LineRanges))
    changed: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def side(self, language: str) -> Side:
        """Return the side of a language."""
        return next(side for side in self.sides if side.language == language)

    def write(self, options: Options, list_line: _ListLine) -> None:
        """Write the lines that are kept.

        Args:
            list_line: is called with each line that is left out or has flat trees.

        Raises:
            UserError: a line has no parse, too many lines have none (``--max-flat``), ``--strict``
                refuses a line, or no line is kept.
        """
        total = self.sides[0].corpus.lines
        with tqdm(
            desc=f"writing {self.name}", total=total, unit="line", smoothing=0.05
        ) as progress:
            for block in self._blocks(options):
                progress.update(block.lines)
                self.counts.add(block.counts)
                for side, side_block in zip(self.sides, block.sides, strict=True):
                    side.write(side_block)
                for left_out in block.left_out:
                    self.left_out[left_out.kind].append(left_out.line)
                    list_line(self.sides[0].corpus.path, left_out.line, left_out.reason)
                for number, language, how in block.changed:
                    shown, path = self.changed[language], self.side(language).corpus.path
                    shown += [f"{location(path, number)}: {how}"] * (len(shown) < SHOWN)
                for number, language, problem in block.problems:
                    list_line(self.side(language).corpus.path, number, f"flat tree: {problem}")
                    self.counts.flat[language] += 1
                    self._check_flat(options, self.side(language), f"line {number}: {problem}")
                if block.error is not None:
                    raise block.error
        counts = self.counts
        blank = counts.empty if len(self.sides) == 1 else 0
        if counts.kept == blank and not self.is_whole:
            raise UserError(
                f"no sentence{'' if len(self.sides) == 1 else ' pair'} of {self.sides[0].corpus.path} is "
                f"left: {counts.empty} {'are empty' if blank else 'have an empty side'}, "
                f"{counts.too_long} are longer than --max-length {options.max_length}, "
                f"{counts.skipped} have no parse"
            )

    def _blocks(self, options: Options) -> Iterator[Block]:
        """Make the blocks of all lines in order, in this process or, for many lines, in others."""
        corpora = [side.corpus for side in self.sides]
        lines = [side.lines for side in self.sides]
        make = partial(BlockMaker, options, self.is_whole, corpora, lines)
        workers = options.engine.processes_for(corpora[0].lines)
        if workers == 1:
            yield from map(make(), self._jobs())
            return
        engine = EngineOptions(workers=workers)
        blocks = run_elsewhere(self._jobs(), make, engine, "the subword model")
        yield from in_order((block.number, block) for block in blocks)

    def _jobs(self) -> Iterator[Job]:
        """Yield the lines of the texts, with their parses."""
        lines = zip(*(read_lines(side.corpus.path) for side in self.sides), strict=True)
        first = 1
        # A file with more parses than lines has its error after the lines.
        for number, (some, *parses) in enumerate(
            zip_longest(chunks(lines), *(side.parses for side in self.sides), fillvalue=())
        ):
            yield Job(number, first, some, parses)
            first += len(some)

    def _check_flat(self, options: Options, side: Side, cause: str) -> None:
        """Raise an error if flat trees exceed the allowed fraction of the split."""
        causes, corpus = self.causes[side.language], side.corpus
        if len(causes) < _SHOWN_CAUSES:
            causes.append(cause)
        flat = self.counts.flat[side.language]
        if flat > options.max_flat * corpus.lines:
            raise UserError(
                f"{flat} of the {corpus.lines} lines of {corpus.path} that were read so far have no "
                f"parse, more than --max-flat {options.max_flat:g} of all lines may get flat trees: "
                f"correct the trees, or raise --max-flat. The first:\n  " + "\n  ".join(causes)
            )


def parse_and_write(
    options: Options, splits: Sequence[Split], labels: dict[str, LabelTable], folder: Path
) -> None:
    """Parse all splits and write the lines that are kept."""
    for split in splits:
        for side in split.sides:
            side.parse(options, labels, folder)
    with _listing(options.list_left_out) as list_line:
        for split in splits:
            split.write(options, list_line)


@contextmanager
def _listing(path: Path | None) -> Iterator[_ListLine]:
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
    other = next((each for each in options.languages if each != language), None)
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
        target_bpe=options.bpe_of(other) if other else "",
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
            parser_version="" if version == manifest.parser_version else version,
        )
