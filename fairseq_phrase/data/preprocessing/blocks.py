"""Blocks of a split: consecutive lines of its texts, as subwords, with their parses as arrays.

A side is raw text, which is segmented here (:class:`RawText`), or text of subwords that fairseq has
already binarized (:class:`SegmentedText`). A line that changes when it is segmented and joined again is
counted, because a model cannot generate it. Imports neither fairseq nor torch: workers start quickly.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat, zip_longest
from typing import Any, NamedTuple

import numpy as np

from fairseq_phrase.data.preprocessing.engines import Job
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.store.indexed import smallest_dtype
from fairseq_phrase.data.subwords.encoded_sentences import (
    encode_line,
    encode_sentence,
    marked_words,
)
from fairseq_phrase.data.subwords.protected_tokens import protected_by, separate
from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine, spell
from fairseq_phrase.data.subwords.segmenter import Segmenter
from fairseq_phrase.data.subwords.segmenters import SharedSegmenter
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.parsers.interfaces import flat
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence, Unparsed
from fairseq_phrase.text import plain_spaces, read_json

#: Number of changed lines in a warning.
SHOWN = 3
_CONTEXT = 15  # characters


class Change(NamedTuple):
    """A line before and after segmentation and joining, with single spaces."""

    before: str
    after: str


def change(before: str, after: str) -> Change | None:
    """Compare a line with the text of its subwords; None if they differ only in white space."""
    first, second = (" ".join(plain_spaces(text).split()) for text in (before, after))
    return None if first == second else Change(first, second)


def described(change: Change) -> str:
    """Show both texts around their first difference; invisible characters are written as escapes."""
    pairs = enumerate(zip_longest(*change))
    start = next(index for index, (before, after) in pairs if before != after)
    window = slice(max(0, start - _CONTEXT), start + _CONTEXT)
    return f"{change.before[window]!r} becomes {change.after[window]!r}"


def warning_of(
    split: str, counts: SplitCounts, described_lines: Mapping[str, Sequence[str]], advice: str
) -> str:
    """Summarize the changed lines of a split; empty if there are none.

    Args:
        described_lines: the first changed lines, described, by language.
        advice: the options that keep the text, or empty.
    """
    return "\n".join(
        f"{count} of the {counts.kept} lines of {split}.{language} change when they are split into "
        f"subwords and joined again, so a model cannot read or write them as they are{advice}:\n  "
        + "\n  ".join(described_lines[language])
        for language, count in counts.changed.items()
    )


class SideLine(NamedTuple):
    """A line of one language.

    Attributes:
        encoded: its subwords and parse; None if the language is not parsed.
        problem: why it has no parse; None if it has one. A line without a parse has flat trees.
        swallowed: the number of its parse's words without a subword, because their subword also belongs
            to an earlier word.
        changed: the difference between the text of its subwords and the line; None without one.
    """

    subwords: Sequence[str]
    encoded: EncodedSentence | None = None
    problem: str | None = None
    swallowed: int = 0
    changed: Change | None = None


@dataclass(frozen=True)
class RawText:
    """Raw text of one language. Each of the parser's words is segmented separately.

    Attributes:
        corpus: the text.
        pipeline: its parser; None if it is not parsed.
        fields: the fields of its parses; empty if it is not parsed.
    """

    language: str
    corpus: Corpus
    pipeline: ParsingPipeline | None
    fields: Sequence[str]
    segmenter: SharedSegmenter

    def text(self, line: str) -> str:
        """Return a line's text for the parser, without protected tokens."""
        return separate(self.segmenter.loaded, line)[0]

    def encode(self, line: str, parse: Parse | None) -> SideLine:
        """Segment a line, with its parse if the language is parsed."""
        segmenter, problem = self.segmenter.loaded, None
        if parse is None:
            subwords = segmenter.segment_line(line)
            return SideLine(subwords, changed=_change(line, subwords, segmenter))
        if isinstance(parse, Unparsed):
            problem, parse = parse.reason, flat(parse.sentence, self.fields)
        text, tokens = separate(segmenter, line)
        encoded = encode_sentence(parse, segmenter, tokens, text)
        subwords = encoded.subwords
        if "".join(parse.words) != "".join(text.split()):  # the parser's words differ from the text
            line = "".join(marked_words(parse)).replace("▁", " ")
            protected = protected_by(segmenter)
            subwords = [subword for subword in subwords if subword not in protected]
        changed = _change(line, subwords, segmenter)
        return SideLine(encoded.subwords, encoded, problem, changed=changed)


def _change(line: str, subwords: Sequence[str], segmenter: Segmenter) -> Change | None:
    return change(line, segmenter.join(" ".join(subwords)))


@dataclass(frozen=True)
class SegmentedText:
    """Text of subwords. The parser's words are found in the text that the subwords spell.

    Attributes:
        corpus, pipeline, fields: as in :class:`RawText`.
        bpe, segmenter, protected, unescape: as in :func:`spell`.
    """

    language: str
    corpus: Corpus
    pipeline: ParsingPipeline
    fields: Sequence[str]
    bpe: str
    segmenter: SharedSegmenter | None
    protected: Sequence[str]
    unescape: bool

    def _segmented(self, line: str) -> SegmentedLine:
        segmenter = None if self.segmenter is None else self.segmenter.loaded
        # fairseq also separates subwords at white space of any kind.
        return spell(line.split(), self.bpe, segmenter, self.protected, unescape=self.unescape)

    def text(self, line: str) -> str:
        """Return a line's text for the parser: the text that the line spells."""
        return self._segmented(line).text

    def encode(self, line: str, parse: Parse | None) -> SideLine:
        """Find the words of a line's parse in its subwords."""
        assert parse is not None
        encoded, problem = encode_line(parse, self._segmented(line), self.fields)
        swallowed = 0
        if not isinstance(parse, Unparsed) and problem is None:
            swallowed = len(parse.words) - encoded.num_words
        return SideLine(encoded.subwords, encoded, problem, swallowed)


Side = RawText | SegmentedText
#: The name of the subwords among the fields of a block's side.
TEXT = "text"


class FieldBlock(NamedTuple):
    """A field's values, or the subwords, of consecutive sentences.

    Attributes:
        values: values of all sentences. Labels, in the last column, and subwords are indices into
            ``entries``. Shape: ``(values,)``, integers.
        sizes: the number of values of each sentence. Shape: ``(sentences,)``, integers.
        entries: labels or subwords in the order of first use, without repetitions.
    """

    values: np.ndarray
    sizes: np.ndarray
    entries: list[str]

    @classmethod
    def of(cls, name: str, sentences: Iterable[EncodedSentence]) -> FieldBlock:
        """Read a field from sentences.

        Raises:
            ValueError: a sentence lacks the field.
        """
        numbers: dict[str, int] = {}

        def number(labels: Sequence[str]) -> np.ndarray:
            label_numbers = [numbers.setdefault(label, len(numbers)) for label in labels]
            return np.array(label_numbers, dtype=np.int32)

        rows = [np.zeros(0, dtype=np.int32)]
        for sentence in sentences:
            values = FIELDS[name].values(sentence, number)
            if values is None:
                raise ValueError(f"a sentence of {sentence.num_words} words has no {name}")
            rows.append(values.reshape(-1))
        sizes = np.array([len(row) for row in rows[1:]], dtype=np.int32)
        return cls(np.concatenate(rows).astype(np.int32), sizes, list(numbers))

    @classmethod
    def of_text(cls, lines: Iterable[Sequence[str]]) -> FieldBlock:
        """Number the subwords of lines."""
        numbers: dict[str, int] = {}
        rows = [[numbers.setdefault(subword, len(numbers)) for subword in line] for line in lines]
        values = [number for row in rows for number in row]
        sizes = np.array([len(row) for row in rows], dtype=np.int32)
        return cls(np.array(values, dtype=np.int32), sizes, list(numbers))

    def sentences(self) -> Iterator[list[str]]:
        """Yield the subwords of each sentence."""
        start, values = 0, self.values.tolist()
        for size in self.sizes.tolist():
            yield [self.entries[number] for number in values[start : start + size]]
            start += size

    def counts(self, columns: int = 1) -> dict[str, int]:
        """Count the uses of each entry; they are in the last of so many columns."""
        uses = np.bincount(self.values[columns - 1 :: columns], minlength=len(self.entries))
        return dict(zip(self.entries, uses.tolist(), strict=True))


@dataclass
class Block:
    """Consecutive lines of a split.

    Attributes:
        sides: the kept lines of each language, by field. :data:`TEXT` has the subwords, unless fairseq
            has already written them.
        counts: the counts of the block, except of flat trees.
        problems: for each kept line without a parse: its number in the text, from 1, its language, and
            the reason.
        left_out: for each line that is left out: its number in the text, its attribute in
            :class:`SplitCounts`, and the reason.
        changed: for the first kept lines changed by segmentation: the number, language and change.
    """

    sides: list[dict[str, FieldBlock]] = field(default_factory=list)
    counts: SplitCounts = field(default_factory=SplitCounts)
    problems: list[tuple[int, str, str]] = field(default_factory=list)
    left_out: list[tuple[int, str, str]] = field(default_factory=list)
    changed: list[tuple[int, str, str]] = field(default_factory=list)

    def packed(self) -> bytes:
        """Write the block as compressed bytes: a line of JSON, then the arrays. Nothing in it runs."""
        arrays: list[np.ndarray] = []
        sides: list[dict[str, Any]] = []
        for side in self.sides:
            sides.append({})
            for name, (*both, entries) in side.items():
                shrunk = [array.astype(_smallest(array)) for array in both]
                sides[-1][name] = [[(a.dtype.str, len(a)) for a in shrunk], entries]
                arrays += shrunk
        header = {**vars(self), "sides": sides, "counts": self.counts.as_dict()}
        content = [json.dumps(header).encode("ascii"), b"\n", *(a.tobytes() for a in arrays)]
        return zlib.compress(b"".join(content), 1)  # higher levels take longer than they save

    @classmethod
    def unpacked(cls, content: bytes) -> Block:
        """Read the result of :meth:`packed`.

        Raises:
            zlib.error: the content is damaged.
        """
        content = zlib.decompress(content)
        start = content.index(b"\n") + 1
        header = read_json(content[:start])
        for side in header["sides"]:
            for name, (descriptions, entries) in side.items():
                both = []
                for dtype, count in descriptions:
                    both.append(np.frombuffer(content, dtype, count, start))
                    start += both[-1].nbytes
                side[name] = FieldBlock(both[0], both[1].astype(np.int32), entries)
        return cls(**{**header, "counts": SplitCounts.from_dict(header["counts"])})


def _smallest(array: np.ndarray) -> np.dtype:
    is_negative = array.min(initial=0) < 0
    return np.dtype(np.int32) if is_negative else smallest_dtype(int(array.max(initial=0)))


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
        lines_of_sides: list[list[SideLine]] = [[] for _ in self.sides]
        parses = map(_parses, self.sides, zip(*job.lines, strict=True), job.parses)
        for number, (lines, *parsed) in enumerate(
            zip(job.lines, *parses, strict=True), start=job.first_line
        ):
            pair = [
                side.encode(line, parse)
                for side, line, parse in zip(self.sides, lines, parsed, strict=True)
            ]
            if not self._keeps(block, number, pair):
                continue
            for side, parse, line, of_side in zip(
                self.sides, parsed, pair, lines_of_sides, strict=True
            ):
                of_side.append(line)
                if isinstance(parse, ParsedSentence):
                    unspelled = sum(len(expansion.words) for expansion in parse.expansions)
                    block.counts.unspelled[side.language] += unspelled
                if line.problem is not None:
                    block.problems.append((number, side.language, line.problem))
                if line.changed is not None:
                    block.counts.changed[side.language] += 1
                    if block.counts.changed[side.language] <= SHOWN:
                        block.changed.append((number, side.language, described(line.changed)))
        block.counts.kept = len(lines_of_sides[0])
        for side, of_side in zip(self.sides, lines_of_sides, strict=True):
            block.sides.append(_fields(side, of_side, block.counts))
        return block

    def _keeps(self, block: Block, number: int, pair: list[SideLine]) -> bool:
        for side, line in zip(self.sides, pair, strict=True):
            if line.problem is not None and self.options.on_error == "stop":
                skip = "--on-error skip leaves such lines out and counts them, "
                if isinstance(side, SegmentedText):  # every line is kept
                    skip = ""
                raise UserError(
                    f"{location(side.corpus.path, number)}: {line.problem} ({skip}--on-error flat gives "
                    "them flat trees)"
                )
        if self.is_whole:
            return True
        if not any(line.subwords for line in pair) and len(pair) == 1:
            block.counts.empty += 1  # a blank line ends a document
            return True
        if (flaw := self._flaw(pair)) is None:
            return True
        kind, reason = flaw
        vars(block.counts)[kind] += 1
        block.left_out.append((number, kind, reason))
        if self.options.strict and kind != "skipped":
            source, *target = (side.corpus.path for side in self.sides)
            and_target = f" (and {target[0]})" if target else ""
            raise UserError(
                f"{location(source, number)}{and_target}: {reason}; without --strict such "
                f"{'pairs' if target else 'lines'} are left out and counted"
            )
        return False

    def _flaw(self, pair: list[SideLine]) -> tuple[str, str] | None:
        """Return the counting attribute and the reason if a pair is left out; None if it is kept."""
        lengths = [len(line.subwords) for line in pair]
        problems = [line.problem for line in pair if line.problem is not None]
        if max(lengths) > self.options.max_length:
            return (
                "too_long",
                f"{max(lengths)} subwords, --max-length is {self.options.max_length}",
            )
        if not min(lengths):
            return "empty", "one side is empty"
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
