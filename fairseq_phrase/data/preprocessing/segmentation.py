"""A line of text and its parse as subwords: how each line is segmented.

Raw text is segmented here (:class:`RawText`). Text of subwords, which fairseq has already binarized, is
only read (:class:`SegmentedText`). Imports neither fairseq nor torch: workers start quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.subwords.encoded_sentences import (
    encode_line,
    encode_sentence,
    marked_words,
)
from fairseq_phrase.data.subwords.protected_tokens import Segmenter, protected_by, separate
from fairseq_phrase.data.subwords.segmented_lines import SegmentedLine, spell
from fairseq_phrase.data.subwords.segmenters import SharedSegmenter
from fairseq_phrase.parsers.interfaces import flat
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.syntax.sentence import EncodedSentence, Unparsed
from fairseq_phrase.text import plain_spaces

_CONTEXT = 15  # characters


class SideLine(NamedTuple):
    """A line of one language.

    Attributes:
        encoded: its subwords and parse; None if the language is not parsed.
        problem: why it has no parse; None if it has one. A line without a parse has flat trees.
        swallowed: the number of its parse's words without a subword, because their subword also belongs
            to an earlier word.
        change: how the text of its subwords differs from the line; empty if it does not.
    """

    subwords: Sequence[str]
    encoded: EncodedSentence | None = None
    problem: str | None = None
    swallowed: int = 0
    change: str = ""


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
        segmenter = self.segmenter.loaded
        if parse is None:
            subwords = segmenter.segment_line(line)
            return SideLine(subwords, change=change(line, subwords, segmenter))
        problem = None
        if isinstance(parse, Unparsed):
            problem, parse = parse.reason, flat(parse.sentence, self.fields)
        text, tokens = separate(segmenter, line)
        encoded = encode_sentence(parse, segmenter, tokens, text)
        subwords = encoded.subwords
        if "".join(parse.words) != "".join(text.split()):
            # The parser's words spell another text (zu dem for zum); the subwords are compared with it.
            line = "".join(marked_words(parse)).replace("▁", " ")
            protected = protected_by(segmenter)
            subwords = [subword for subword in subwords if subword not in protected]
        difference = change(line, subwords, segmenter)
        return SideLine(encoded.subwords, encoded, problem, change=difference)


def change(line: str, subwords: Sequence[str], segmenter: Segmenter) -> str:
    """Compare a line with the text of its subwords. A model cannot generate a line that changes.

    Returns:
        Both texts around their first difference, with invisible characters as escapes; empty if they
        differ only in white space.
    """
    texts = line, segmenter.join(" ".join(subwords))
    before, after = (" ".join(plain_spaces(text).split()) for text in texts)
    if before == after:
        return ""
    pairs = enumerate(zip_longest(before, after))
    start = next(index for index, (first, second) in pairs if first != second)
    window = slice(max(0, start - _CONTEXT), start + _CONTEXT)
    return f"{before[window]!r} becomes {after[window]!r}"


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
