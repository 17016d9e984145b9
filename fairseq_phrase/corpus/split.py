"""A split of a data directory: parsed, written, and described in the manifest.

Raw text (:mod:`fairseq_phrase.corpus.preprocess`) and text that fairseq has already binarized
(:mod:`fairseq_phrase.corpus.attach`) share this code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.corpus.language_side import Side, SideLine
from fairseq_phrase.corpus.options import Options, SplitCounts
from fairseq_phrase.corpus.parsing import unparsed_error
from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers import resolve
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.store.fields import ATTACH, PREPROCESS, with_labels
from fairseq_phrase.store.identity import digest_of
from fairseq_phrase.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.store.writer import LabelTable

_SHOWN_CAUSES = 3


@dataclass
class Split:
    """A split of a data directory.

    Attributes:
        name: ``train``, ``valid``, ``test``, ``test1``….
        sides: source and target; or only the parsed language, if the text is binarized already or has
            one language.
        is_whole: whether every line is kept.
        causes: why the first lines with flat trees have no parse, by language.
    """

    name: str
    sides: tuple[Side, ...]
    is_whole: bool
    counts: SplitCounts = field(default_factory=SplitCounts)
    causes: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def side(self, language: str) -> Side:
        """Return the side of a language."""
        return next(side for side in self.sides if side.language == language)

    def write(self, options: Options, labels: dict[str, LabelTable]) -> None:
        """Write subwords as text, and parses whose labels are not numbered yet.

        Raises:
            UserError: a line has no parse, too many lines have none (``--max-flat``), ``--strict``
                refuses a line, or no line is kept.
        """
        with ExitStack() as stack:
            writers = [stack.enter_context(side.writing(labels)) for side in self.sides]
            lines = zip(*(side.lines() for side in self.sides), strict=True)
            total = self.sides[0].corpus.lines
            progress = tqdm(lines, f"writing {self.name}", total, unit="line", smoothing=0.05)
            for number, pair in enumerate(progress, start=1):
                if not self._keeps(options, number, pair):
                    continue
                self.counts.kept += 1
                for side, write, line in zip(self.sides, writers, pair, strict=True):
                    write(line)
                    self._count(side.language, line)
                    if line.problem is not None:
                        self._check_flat(options, side, f"line {number}: {line.problem}")
        counts = self.counts
        blank = counts.empty if len(self.sides) == 1 else 0
        if counts.kept == blank and not self.is_whole:
            raise UserError(
                f"no sentence{'' if len(self.sides) == 1 else ' pair'} of {self.sides[0].corpus.path} is "
                f"left: {counts.empty} {'are empty' if blank else 'have an empty side'}, "
                f"{counts.too_long} are longer than --max-length {options.max_length}, "
                f"{counts.skipped} have no parse"
            )

    def _keeps(self, options: Options, number: int, pair: tuple[SideLine, ...]) -> bool:
        for side, line in zip(self.sides, pair, strict=True):
            if line.problem is not None and options.on_error == "stop":
                raise unparsed_error(side.corpus, number, line.problem)
        if self.is_whole:
            return True
        lengths = [len(line.pieces) for line in pair]
        if max(lengths) > options.max_length:
            self.counts.too_long += 1
            problem = f"{max(lengths)} subwords, --max-length is {options.max_length}"
        elif not min(lengths) and len(pair) == 1:
            self.counts.empty += 1  # a blank line ends a document
            return True
        elif not min(lengths):
            self.counts.empty += 1
            problem = "one side is empty"
        elif options.on_error == "skip" and any(line.problem is not None for line in pair):
            self.counts.skipped += 1
            return False
        else:
            return True
        if options.strict:
            source, *target = (side.corpus.path for side in self.sides)
            both = f" (and {target[0]})" if target else ""
            raise UserError(
                f"{at(source, number)}{both}: {problem}; without --strict such "
                f"{'pairs' if target else 'lines'} are left out and counted"
            )
        return False

    def _count(self, language: str, line: SideLine) -> None:
        counts = self.counts
        counts.subwords[language] += len(line.pieces)
        counts.swallowed[language] += line.swallowed
        if line.encoded is not None:
            counts.lost_edges[language] += line.encoded.lost_edges
            counts.words[language] += line.encoded.num_words
        if line.problem is not None:
            counts.flat[language] += 1

    def _check_flat(self, options: Options, side: Side, cause: str) -> None:
        """Stop when flat trees are more than the allowed share of the split."""
        causes, corpus = self.causes[side.language], side.corpus
        if len(causes) < _SHOWN_CAUSES:
            causes.append(cause)
        flat = self.counts.flat[side.language]
        if flat > options.max_flat * corpus.lines:
            raise UserError(
                f"{flat} of the {corpus.lines} lines of {corpus.path} that were read so far have no "
                f"parse, more than --max-flat {options.max_flat:g} of all lines may get flat trees: "
                f"mend the trees, or raise --max-flat. The first:\n  " + "\n  ".join(causes)
            )

    def record(self, language: str, parser_version: str) -> SplitRecord:
        """Return a language's record for the manifest.

        Args:
            parser_version: its parser's version if it differs from the manifest's, else empty.
        """
        counts = self.counts
        return SplitRecord(
            counts.kept,
            counts.words[language],
            counts.subwords[language],
            self.side(language).checksums,
            unparsed_skipped=counts.skipped,
            unparsed_flat=counts.flat[language],
            unknown_labels=counts.unknown_labels,
            parser_version=parser_version,
        )


def parse_and_write(
    options: Options, splits: Sequence[Split], labels: dict[str, LabelTable], folder: Path
) -> None:
    """Parse all splits and write the lines that are kept."""
    for split in splits:
        for side in split.sides:
            side.parse(folder, options.engine, options.on_error)
    for split in splits:
        split.write(options, labels)


def begin_manifest(
    options: Options,
    language: str,
    pipeline: ParsingPipeline,
    dictionary: Path,
    bpe_model: Path | None,
) -> Manifest:
    """Make a manifest with what all splits share.

    Args:
        bpe_model: the subword model; None if it is not known.
    """
    parsing = options.parsing[language]
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
        target_bpe=options.bpe_of(options.target_lang),
        parser_digest=pipeline.parser.digest,
        parser_stamp=pipeline.parser.stamp,
        allowed=options.allowed,
        dictionary=fingerprint(dictionary),
        whole_lines=options.is_cut and options.bpe in ("sentencepiece", "gpt2"),
        protected=list(options.protected),
        made_by=ATTACH if options.is_cut else PREPROCESS,
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
    version = pipeline.parser.version
    other = "" if version == manifest.parser_version else version
    for split in splits:
        manifest.splits[options.split_name(split.name)] = split.record(manifest.language, other)
