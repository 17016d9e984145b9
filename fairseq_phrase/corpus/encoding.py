"""Words and lines to subwords with their parse, in the same way for a corpus and for new text.

The parser defines the words, and each word is cut into subwords on its own, so the word of every subword
is known by construction. Imports no fairseq and no torch, so that worker
processes start quickly.
"""

from __future__ import annotations

from fairseq_phrase.corpus.segmented_text import CutLine, MisspeltError
from fairseq_phrase.corpus.segmenters import Segmenter
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.base import cut_at_white_space
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.syntax.encoding import EncodedSentence, encode_words
from fairseq_phrase.syntax.sentence import ParsedSentence


def encode_sentence(sentence: ParsedSentence, segmenter: Segmenter) -> EncodedSentence:
    """Cut a sentence's words into subwords (:func:`encode_words`)."""
    return encode_words(sentence, [segmenter.word_pieces(word) for word in sentence.marked_words()])


def encode_line(
    parse: Parse, line: CutLine, pipeline: ParsingPipeline
) -> tuple[EncodedSentence, str | None]:
    """Encode a line that was cut into subwords before it was parsed.

    Args:
        parse: its parse.
        line: its subwords and the text that they spell.
        pipeline: what parsed it.

    Returns:
        The sentence, and what is wrong with its parse or None. If the parse does not spell the line, the
        sentence has flat trees over the words between white space.
    """
    if isinstance(parse, Unparsed):
        problem = parse.reason
    else:
        try:
            return encode_words(parse, line.pieces_of(parse.words)), None
        except MisspeltError as error:
            problem = f"its parse is not one of this text: {error}"
    flat = pipeline.flat(Unparsed(problem, cut_at_white_space(line.text)))
    return encode_words(flat, line.pieces_of(flat.words)), problem
