"""Blocks of a split: consecutive lines of its texts, as subwords, with their parses as arrays.

A side is raw text, which is segmented here (:class:`RawBlock`), or text of subwords that fairseq has
already binarized (:class:`SegmentedBlock`). A line that changes when it is segmented and joined again is
counted, because a model cannot generate it. Imports neither fairseq nor torch: workers start quickly.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import repeat, zip_longest
from typing import NamedTuple

from fairseq_phrase.data.preprocessing.engines import Chunk, Job
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.parse_shards import unpacked
from fairseq_phrase.data.preprocessing.parsing import Corpus, unparsed_error
from fairseq_phrase.data.store.writer import FieldBlock
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
from fairseq_phrase.parsers.interfaces import flat
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence, Unparsed
from fairseq_phrase.text import plain_spaces

#: Number of changed lines in a warning.
SHOWN = 3
_CONTEXT = 15  # characters
_NAMED = 3


class Change(NamedTuple):
    """A line before and after segmentation and joining, with single spaces."""

    before: str
    after: str


def change(before: str, after: str) -> Change | None:
    """Compare a line with the text of its subwords; None if they differ only in white space."""
    first, second = (" ".join(plain_spaces(text).split()) for text in (before, after))
    return None if first == second else Change(first, second)


def described(change: Change) -> str:
    """Describe the first difference."""
    before, after = change
    pairs = enumerate(zip_longest(before, after))
    start = next(index for index, (old, new) in pairs if old != new)
    window = slice(start, start + 2 * _CONTEXT)
    matcher = SequenceMatcher(None, before[window], after[window], autojunk=False)
    _, first, last, new_first, new_last = next(
        opcode for opcode in matcher.get_opcodes() if opcode[0] != "equal"
    )
    old = before[start + first : start + last]
    new = after[start + new_first : start + new_last]
    context = before[max(0, start - _CONTEXT) : start + last + _CONTEXT]
    verb = (
        f"{_character_names(old)} becomes {_character_names(new) or 'nothing'}"
        if old
        else f"{_character_names(new)} is added"
    )
    return f"{verb} in '{context}'"


def _character_names(text: str) -> str:
    names = [
        f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip()
        for character in text[:_NAMED]
    ]
    return ", ".join([*names, *(["…"] if len(text) > _NAMED else [])])


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
class RawBlock:
    """Raw text. Each of the parser's words is segmented separately.

    Attributes:
        fields: the fields of its parses; empty if it is not parsed.
    """

    language: str
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
class SegmentedBlock:
    """Text of subwords. The parser's words are found in the text that the subwords spell.

    Attributes:
        fields: the fields of its parses.
        bpe, segmenter, protected, unescape: as in :func:`spell`.
    """

    language: str
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


Lines = RawBlock | SegmentedBlock


class SideBlock(NamedTuple):
    """One language of a block, without left-out lines.

    Attributes:
        text: its subwords; None if fairseq has already written them.
        fields: its parses.
    """

    text: FieldBlock | None
    fields: dict[str, FieldBlock]


class LeftOut(NamedTuple):
    """A line that is left out.

    Attributes:
        line: its number in the text, from 1.
        kind: its attribute in :class:`SplitCounts`.
    """

    line: int
    kind: str
    reason: str


@dataclass
class Block:
    """Consecutive lines of a split.

    Attributes:
        number: its number in the split, from 0.
        lines: the number of lines, including left-out lines.
        counts: the counts of the block, except of flat trees.
        problems: for each kept line without a parse: its number in the text, from 1, its language, and
            the reason.
        left_out: the lines that are left out.
        changed: for the first kept lines changed by segmentation: the number, language and change.
        error: the error that ends the run after these lines.
    """

    number: int
    lines: int
    sides: list[SideBlock] = field(default_factory=list)
    counts: SplitCounts = field(default_factory=SplitCounts)
    problems: list[tuple[int, str, str]] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    changed: list[tuple[int, str, str]] = field(default_factory=list)
    error: UserError | None = None


@dataclass(frozen=True)
class BlockMaker:
    """Makes the blocks of a split, from jobs whose lines are the texts' parallel lines.

    Attributes:
        is_whole: whether every line is kept.
        corpora: the text of each side.
    """

    options: Options
    is_whole: bool
    corpora: Sequence[Corpus]
    sides: Sequence[Lines]

    def __call__(self, job: Job) -> Block:
        """Make a block. It ends before the first line with an error."""
        block = Block(job.number, len(job.lines))
        lines_of_sides: list[list[SideLine]] = [[] for _ in self.sides]
        try:
            parses = map(_parses, job.parses, self.sides, repeat(len(job.lines)))
            for number, (lines, *parsed) in enumerate(
                zip(job.lines, *parses, strict=True), start=job.first_line
            ):
                pair = [
                    side.encode(line, parse)
                    for side, line, parse in zip(self.sides, lines, parsed, strict=True)
                ]
                if not self._keeps(block, number, pair):
                    continue
                for side, parse in zip(self.sides, parsed, strict=True):
                    if isinstance(parse, ParsedSentence):
                        block.counts.add_expansions(side.language, parse.expansions)
                for side, line, lines_of_side in zip(self.sides, pair, lines_of_sides, strict=True):
                    lines_of_side.append(line)
                    if line.problem is not None:
                        block.problems.append((number, side.language, line.problem))
                    if line.changed is not None:
                        self._count_change(block, number, side.language, line.changed)
        except UserError as error:
            block.error = error
        block.counts.kept = len(lines_of_sides[0])
        for side, lines_of_side in zip(self.sides, lines_of_sides, strict=True):
            block.sides.append(self._side(side, lines_of_side, block.counts))
        return block

    def _side(self, side: Lines, lines: list[SideLine], counts: SplitCounts) -> SideBlock:
        sentences = [line.encoded for line in lines if line.encoded is not None]
        language = side.language
        counts.subwords[language] = sum(len(line.subwords) for line in lines)
        counts.swallowed[language] = sum(line.swallowed for line in lines)
        counts.lost_edges[language] = sum(sentence.lost_edges for sentence in sentences)
        counts.words[language] = sum(sentence.num_words for sentence in sentences)
        fields = {name: FieldBlock.of(name, sentences) for name in side.fields}
        if isinstance(side, SegmentedBlock):
            return SideBlock(None, fields)
        return SideBlock(FieldBlock.of_text([line.subwords for line in lines]), fields)

    def _count_change(self, block: Block, number: int, language: str, changed: Change) -> None:
        counts = block.counts.changed
        counts[language] += 1
        if counts[language] <= SHOWN:
            block.changed.append((number, language, described(changed)))

    def _keeps(self, block: Block, number: int, pair: list[SideLine]) -> bool:
        for corpus, line in zip(self.corpora, pair, strict=True):
            if line.problem is not None and self.options.on_error == "stop":
                raise unparsed_error(corpus, number, line.problem)
        if self.is_whole:
            return True
        if not any(line.subwords for line in pair) and len(pair) == 1:
            block.counts.empty += 1  # a blank line ends a document
            return True
        if (flaw := self._flaw(pair)) is None:
            return True
        kind, reason = flaw
        vars(block.counts)[kind] += 1
        block.left_out.append(LeftOut(number, kind, reason))
        if self.options.strict and kind != "skipped":
            source, *target = (corpus.path for corpus in self.corpora)
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


def _parses(chunk: Chunk, side: Lines, lines: int) -> Iterator[Parse | None]:
    """Yield the parse of each line; None if the language is not parsed."""
    if not side.fields:
        yield from repeat(None, lines)
    for parse in unpacked(chunk) if isinstance(chunk, bytes) else chunk:
        if isinstance(parse, UserError):
            raise parse
        yield parse
