"""Raw source lines to encoded sentences, in the same way for a corpus and for new text.

Either the parser's words are segmented one by one, and the word of every subword is known; or a line was
segmented before it is parsed, and the words are found in its subwords by characters. Imports neither
fairseq nor torch: worker processes start quickly.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np

from fairseq_phrase.data.store.identity import Identity, compare
from fairseq_phrase.data.store.manifest import Manifest, pipeline_entries
from fairseq_phrase.data.subwords.protected_tokens import Token, separate
from fairseq_phrase.data.subwords.segmenter import Segmenter
from fairseq_phrase.data.subwords.segmenters import (
    JOIN,
    Gpt2Segmenter,
    byte_of,
    innermost,
    load_segmenter,
    model_name,
    segment_words,
)
from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import (
    FileParser,
    LineParser,
    Unparsed,
    load_parser,
    names_path,
)
from fairseq_phrase.parsers.interfaces import flat, split_at_white_space
from fairseq_phrase.parsers.pipeline import Parse, ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.alignment import TextReader, ends_in_text
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence
from fairseq_phrase.syntax.spellings import unescape_moses, unescaped_offsets


@dataclass(frozen=True)
class SegmentedLine:
    """A line of subwords.

    Attributes:
        text: the text that they spell, for a parser. It has at least one word if the line has a subword.
        starts: the offset in the text of each subword's first character that is not a space, in
            ascending order.
        tokens: protected tokens, with the index of the subword before which each stands.
    """

    subwords: list[str]
    text: str
    starts: list[int]
    tokens: Sequence[tuple[int, str]] = ()

    @classmethod
    def from_sentencepiece(cls, subwords: list[str]) -> SegmentedLine:
        """Spell a line of SentencePiece, where ``▁`` is a space."""
        contents = list(map(byte_of, subwords))
        if any(contents):
            texts = (subword.replace("▁", " ").encode() for subword in subwords)
            both = zip(contents, texts, strict=True)
            return cls.from_bytes(subwords, [byte or text for byte, text in both])
        spelled = "".join(subwords)
        text = spelled.replace("▁", " ").strip()
        if not text:
            text = spelled  # only ▁, which must belong to a word
            return cls(subwords, text, _starts(subwords))
        first = len(spelled) - len(spelled.lstrip("▁"))
        starts = (
            start + len(subword) - len(subword.lstrip("▁"))
            for start, subword in zip(_starts(subwords), subwords, strict=True)
        )
        return cls(subwords, text, [max(0, start - first) for start in starts])

    @classmethod
    def from_bytes(cls, subwords: list[str], contents: Sequence[bytes]) -> SegmentedLine:
        """Spell a line of byte-level BPE, whose subwords may begin within a character.

        Args:
            contents: the bytes of each subword.
        """
        spelled = b"".join(contents)
        text = spelled.decode(errors="replace")
        if text.strip() and len(text.encode()) == len(spelled):
            first = len(text) - len(text.lstrip())
            # The character of each byte: bytes that continue a character begin with the bits 10.
            characters = list(accumulate((byte & 0xC0) != 0x80 for byte in spelled))
            starts = []
            for start, content in zip(_starts(contents), contents, strict=True):
                space = len(content) - len(content.lstrip(b" ")) if content.strip(b" ") else 0
                starts.append(max(0, characters[start + space] - 1 - first))
            return cls(subwords, text.strip(), starts)
        return cls(subwords, " ".join(subwords), _starts([f"{subword} " for subword in subwords]))

    @classmethod
    def from_subword_nmt(cls, subwords: list[str], *, unescape: bool = False) -> SegmentedLine:
        """Spell a line of subword-nmt, where ``@@`` joins a subword to the next.

        Args:
            unescape: replace Moses' escapes by their characters; a subword that starts within an escape
                starts at its character.
        """
        words: list[str] = []
        starts: list[int] = []
        offset_of_word = 0
        for of_word in joined_subwords(subwords):
            parts = [subword.removesuffix(JOIN) for subword in of_word]
            if not any(parts):
                parts = of_word  # only @@, which must belong to a word
            word, offsets = "".join(parts), _starts(parts)
            if unescape and (plain := unescape_moses(word)) != word:
                plain_offsets = unescaped_offsets(word)
                word, offsets = plain, [plain_offsets[offset] for offset in offsets]
            words.append(word)
            starts += [offset_of_word + offset for offset in offsets]
            offset_of_word += len(word) + 1
        return cls(subwords, " ".join(words), starts)

    def subwords_of(self, words: Sequence[str]) -> list[list[str]]:
        """Assign each subword to its word.

        A subword across words belongs to the first of them. A subword that is only a space belongs to
        the next word.

        Returns:
            The subwords of each word; a word may have none.
        """
        ends = ends_in_text(words, self.text)
        # The first word that ends after the subword's start, or the last word.
        owners = np.searchsorted(ends[:-1], self.starts, side="right")
        bounds = np.searchsorted(owners, np.arange(len(ends) + 1))
        return [self.subwords[start:end] for start, end in pairwise(bounds)]


def spell(
    subwords: Sequence[str],
    bpe: str,
    segmenter: Segmenter | None,
    protected: Collection[str] = (),
    *,
    unescape: bool = False,
) -> SegmentedLine:
    """Spell a line of subwords.

    Args:
        bpe: the segmentation of the line.
        segmenter: its subword model, needed only for GPT-2's BPE.
        protected: tokens that are not part of the text.
        unescape: as in :meth:`SegmentedLine.from_subword_nmt`.
    """
    kept: list[str] = []
    tokens = []
    for subword in subwords:
        if subword in protected:
            tokens.append((len(kept), subword))
        else:
            kept.append(subword)
    if bpe == "subword_nmt":
        line = SegmentedLine.from_subword_nmt(kept, unescape=unescape)
    elif bpe == "gpt2":
        line = SegmentedLine.from_bytes(kept, list(map(innermost(segmenter).content, kept)))
    else:
        line = SegmentedLine.from_sentencepiece(kept)
    return replace(line, tokens=tokens)


def _starts(parts: Sequence[str] | Sequence[bytes]) -> list[int]:
    """Return the start of each part in the concatenation."""
    return list(accumulate(map(len, parts), initial=0))[:-1]


def joined_subwords(subwords: Sequence[str]) -> list[list[str]]:
    """Group the subwords of subword-nmt by words."""
    words: list[list[str]] = []
    joined = False
    for subword in subwords:
        if joined:
            words[-1].append(subword)
        else:
            words.append([subword])
        joined = subword.endswith(JOIN)
    return words


def encode_sentence(
    sentence: ParsedSentence, segmenter: Segmenter, tokens: Sequence[Token] = (), text: str = ""
) -> EncodedSentence:
    """Segment a sentence's words (:func:`encode_words`).

    Args:
        tokens: the protected tokens that :meth:`ProtectedTokens.separate` removed from the line.
        text: the line without them.
    """
    if not tokens:
        return encode_words(sentence, segment_words(marked_words(sentence), segmenter))
    words, space_before = sentence.words, sentence.space_before
    slots = _slots_of(sentence, tokens, text)
    # Words, or parts of words with a token inside.
    bounds = sorted({(number, 0) for number in range(len(words) + 1)}.union(slots))
    parts = [
        "▁" * (space_before[word] and not start)
        + words[word][start : end if word == other else None]
        for (word, start), (other, end) in pairwise(bounds)
    ]
    segmented = segment_words(parts, segmenter)
    subwords: list[list[str]] = [[] for _ in words]
    for (word, _), part in zip(bounds, segmented, strict=False):
        subwords[word] += part
    index_of = dict(zip(bounds, [0, *accumulate(map(len, segmented))], strict=True))
    found = [(index_of[slot], token.token) for slot, token in zip(slots, tokens, strict=True)]
    return encode_words(sentence, subwords).with_tokens(found)


def _slots_of(
    sentence: ParsedSentence, tokens: Sequence[Token], text: str
) -> list[tuple[int, int]]:
    """Find the word that contains or follows each protected token, and its characters before that."""
    spans = _spans_in_text(sentence, text)
    if spans is None:
        return [_slot_by_white_space(sentence, token) for token in tokens]
    spans.append((len(text), len(text) + 1))
    slots = []
    for token in tokens:
        word = bisect_right(spans, token.offset, key=itemgetter(1))
        slots.append((word, max(0, token.offset - spans[word][0])))
    return slots


def _spans_in_text(sentence: ParsedSentence, text: str) -> list[tuple[int, int]] | None:
    """Find where each word starts and ends in the text; None if the words do not spell it.

    Words that the text does not spell (``zu dem`` for ``zum``) start and end where their token ends.
    """
    reader, words, expansions = TextReader(text), sentence.words, [*sentence.expansions]
    spans: list[tuple[int, int]] = []
    while len(spans) < len(words):
        several = expansions[0].words if expansions else ()
        following = words[len(spans) : len(spans) + len(several)]
        if several and tuple(following) == several and reader.take(expansions[0].token) is not None:
            spans += [(reader.end, reader.end)] * len(several)
            del expansions[0]
            continue
        word = words[len(spans)]
        if (form := reader.take(word)) is None or len(form) != len(word):
            return None
        spans.append((reader.end - len(form), reader.end))
    return spans


def _slot_by_white_space(sentence: ParsedSentence, token: Token) -> tuple[int, int]:
    """Find a token's word and characters by the number of words at white space before it."""
    starts = [n for n, space in enumerate(sentence.space_before) if space or not n]
    starts += [len(sentence.words)] * (token.words + 2 - len(starts))
    word, last = starts[token.words : token.words + 2]
    left = token.characters
    while left and word < last:
        length = len(sentence.words[word])
        if left < length:
            return word, left
        word, left = word + 1, left - length
    return word, 0


def marked_words(sentence: ParsedSentence) -> list[str]:
    """Return the words, with ``▁`` in front of words after white space."""
    return [
        "▁" + word if space else word
        for word, space in zip(sentence.words, sentence.space_before, strict=True)
    ]


def encode_words(sentence: ParsedSentence, subwords: Sequence[Sequence[str]]) -> EncodedSentence:
    """Encode a sentence with segmented words.

    Unary chains of constituents are collapsed. A word of several subwords becomes a constituent with its
    part of speech as the label; it is below other constituents over the same word
    (``docs/models/tree_attention.md``, "Trees"). A word without subwords (for example, a zero-width
    space) is removed from the trees, with its edges in graphs; every word then has a subword.
    """
    if not all(subwords):
        sentence = sentence.restricted_to(np.array([bool(own) for own in subwords], dtype=bool))
        subwords = [own for own in subwords if own]
    words = words_of_subwords(list(map(len, subwords)))
    constituents = sentence.constituents
    if constituents is not None:
        split = [word for word, own in enumerate(subwords) if len(own) > 1]
        spans = np.array(split, dtype=np.int64)[:, None] + np.array([0, 1])
        labels = [sentence.tags[word] if sentence.tags else NO_TAG for word in split]
        constituents = constituents.collapsed().with_lower(spans, labels)
    return EncodedSentence(
        list(chain.from_iterable(subwords)), words,
        None if sentence.tree is None else sentence.tree.heads, sentence.deprels, sentence.tags,
        None if constituents is None else constituents.spans,
        [] if constituents is None else constituents.labels, sentence.features, sentence.edges,
        sentence.lost_edges,
    )  # fmt: skip


def words_of_subwords(subwords_per_word: Sequence[int] | np.ndarray) -> np.ndarray:
    """Number each subword with its word, from 0. Shape: ``(subwords,)``, int64.

    Args:
        subwords_per_word: number of subwords of each word. Shape: ``(words,)``, all at least 1.
    """
    counts = np.asarray(subwords_per_word, dtype=np.int64)
    return np.repeat(np.arange(len(counts)), counts)


def encode_line(
    parse: Parse, line: SegmentedLine, fields: Collection[str]
) -> tuple[EncodedSentence, str | None]:
    """Encode a line that was segmented before it was parsed.

    Args:
        fields: the fields that flat trees must have.

    Returns:
        The sentence, and the error of its parse or None. If the parse does not spell the line, the
        sentence has flat trees over the words between white space.
    """
    if isinstance(parse, Unparsed):
        problem = parse.reason
    else:
        try:
            subwords = line.subwords_of(parse.words)
        except ValueError as error:
            problem = f"its parse is not one of this text: {error}"
        else:
            return encode_words(parse, subwords).with_tokens(line.tokens), None
    words = flat(split_at_white_space(line.text), fields)
    encoded = encode_words(words, line.subwords_of(words.words))
    return encoded.with_tokens(line.tokens), problem


logger = logging.getLogger(__name__)


def segmenter_of(directory: str | Path, manifest: Manifest, *, target: bool = False) -> Segmenter:
    """Load the subword model of a data directory.

    Args:
        target: load the target's model.

    Raises:
        UserError: the directory lacks a subword model.
    """
    if manifest.bpe != WHOLE_WORDS and not manifest.bpe_model:
        raise UserError(
            f"{directory} has no subword model, so new text cannot be cut in the same way: run "
            "fairseq-phrase-attach again with --bpe-codes or --sentencepiece-model"
        )
    bpe, model = manifest.bpe, manifest.bpe_model
    if target and manifest.target_bpe not in ("", bpe):
        bpe = manifest.target_bpe
        model = manifest.target_model or model_name(bpe)  # older data lack its name
    return load_segmenter(
        bpe, Path(directory) / model, manifest.protected,
        every_word=manifest.labelling == "word", whole_lines=manifest.whole_lines,
    )  # fmt: skip


def texts_of(directory: str | Path, manifest: Manifest, lines: Iterable[str]) -> Iterator[str]:
    """Yield lines as a file of parses spells them, without protected tokens and Moses escapes."""
    segmenter = segmenter_of(directory, manifest)
    for line in lines:
        text, _ = separate(segmenter, line)
        yield " ".join(map(unescape_moses, text.split())) if manifest.tokenized else text


class TextEncoder:
    """A parser and a subword model.

    Args:
        whole_lines: segment whole lines with SentencePiece and find the words in them, as in
            :class:`~fairseq_phrase.data.store.reader.Manifest`.
    """

    def __init__(
        self, pipeline: ParsingPipeline, segmenter: Segmenter, *, whole_lines: bool = False
    ):
        self.pipeline, self.segmenter, self.whole_lines = pipeline, segmenter, whole_lines

    @classmethod
    def from_data(
        cls,
        directory: str | Path,
        language: str,
        parser: str | None = None,
        *,
        allow: str | None = None,
        strict: bool = False,
    ) -> TextEncoder:
        """Build the encoder that made a data directory.

        Args:
            parser: the user's parser, ``spacy:MODEL``. By default it is the manifest's parser, but only
                if its name is not a path: a data directory may be untrusted, and loading a pipeline from
                a path may run code from that path.
            allow: names of entries that may differ, separated by commas.
            strict: refuse a parser that differs from the data's parser; otherwise this is a warning.

        Raises:
            UserError: the manifest is missing; its parser is not installed or is a path; or with
                ``strict``, the parser differs.
        """
        manifest = Manifest.load(directory, language)
        if parser is None and names_path(manifest.parser):
            raise UserError(
                f"{Manifest.path(directory, language)} names the parser {manifest.parser}: a parser is "
                "loaded from a path only if you name it yourself. If you trust the files there, add "
                f"{as_given('source-parser', manifest.parser)}"
            )
        constituents = manifest.constituents
        try:
            if parser and (constituents == "none" or "heads" not in load_parser(parser).fields):
                constituents = (
                    "parser"  # all fields of this parser; the model checks whether they are enough
                )
            pipeline = ParsingPipeline(
                ParsingOptions(parser or manifest.parser, constituents, manifest.tokenized)
            )
        except UserError as error:
            if parser:
                raise
            raise UserError(
                f"{error} ({directory} names this parser; {as_given('source-parser')} names another)"
            ) from None
        # Without trees, and with words that do not depend on the parser, parses cannot differ.
        without_parser = manifest.tokenized or manifest.whole_lines
        if pipeline.fields != ("words",) or not without_parser:
            stamp = pipeline.parser.stamp
            same = stamp and stamp == manifest.parser_stamp  # then its weights are not read
            here = pipeline_entries(pipeline, manifest.parser_digest if same else None)
            compare(
                manifest.identity().only("parser"), Identity(here), "reuse",
                trained_name=directory, here_name="this run", allow=allow, strict=strict,
            )  # fmt: skip
        segmenter = segmenter_of(directory, manifest)
        return cls(pipeline, segmenter, whole_lines=manifest.whole_lines)

    def parse(self, lines: Sequence[str], *, constituents: bool = True) -> list[EncodedSentence]:
        """Segment lines and parse them; a line that cannot be parsed gets flat trees.

        Args:
            constituents: False leaves out constituents made from dependency trees.
        """
        self._require_parser()
        parse = partial(self.pipeline.parse, constituents=constituents)
        return self._encoded(lines, parse)

    def encode_lines(self, lines: Sequence[str], parses: Sequence[Parse]) -> list[EncodedSentence]:
        """Segment lines with given parses, for example from files; the trees are kept."""

        def given(texts: Sequence[str]) -> Iterable[Parse]:
            return map(self.pipeline.finished, parses, texts)

        return self._encoded(lines, given)

    def segment(self, lines: Sequence[str]) -> list[EncodedSentence]:
        """Split lines into the same words and subwords as :meth:`parse`, without trees."""
        self._require_parser()
        return self._encoded(lines, lambda texts: map(self.pipeline.tokenize, texts))

    def segment_terms(self, terms: Sequence[str]) -> list[EncodedSentence]:
        """Split terms like :meth:`segment`, or at white space for data with files of trees."""
        if isinstance(self.pipeline.parser, LineParser):
            return self.segment(terms)
        return self._encoded(terms, lambda texts: map(split_at_white_space, texts))

    def _require_parser(self) -> None:
        """Check that lines can be parsed.

        Raises:
            UserError: parses are read from files.
        """
        if isinstance(self.pipeline.parser, FileParser):
            suffix = self.pipeline.parser.suffix
            raise UserError(
                f"the parser {self.pipeline.options.parser} reads the parses of a text from a file: give "
                f"fairseq-phrase-translate (or -label) FILE with FILE.{suffix}, or name a parser for it, "
                f"{as_given('source-parser', 'spacy:MODEL')} (or none, where the model needs no tree)"
            )

    def _encoded(
        self, lines: Sequence[str], parse: Callable[[Sequence[str]], Iterable[Parse]]
    ) -> list[EncodedSentence]:
        if not self.whole_lines:
            apart = [separate(self.segmenter, line) for line in lines]
            parses = parse([text for text, _ in apart])
            made = [
                encode_sentence(self._usable(one), self.segmenter, tokens, text)
                for one, (text, tokens) in zip(parses, apart, strict=True)
            ]
        else:
            segmented = self._segment_whole(lines)
            parses = parse([line.text for line in segmented])
            made = [self._fitted(one, line) for one, line in zip(parses, segmented, strict=True)]
        if lost := sum(sentence.lost_edges for sentence in made):
            logger.warning("%d edges are lost with words that have no subword", lost)
        return made

    def encode(self, sentence: ParsedSentence) -> EncodedSentence:
        """Segment the words of a parsed sentence; its trees are kept."""
        if not self.whole_lines:
            return encode_sentence(sentence, self.segmenter)
        text = "".join(marked_words(sentence)).replace("▁", " ").strip()
        return self._fitted(sentence, *self._segment_whole([text]))

    def parsed(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Parse lines; a line that cannot be parsed gets flat trees."""
        self._require_parser()
        if self.whole_lines:
            lines = [line.text for line in self._segment_whole(lines)]
        else:
            lines = [separate(self.segmenter, line)[0] for line in lines]
        return list(map(self._usable, self.pipeline.parse(lines)))

    def _usable(self, parse: Parse) -> ParsedSentence:
        if isinstance(parse, Unparsed):
            logger.warning("%s: going on without its parse", parse.reason)
            return flat(parse.sentence, self.pipeline.fields)
        return parse

    def _fitted(self, parse: Parse, line: SegmentedLine) -> EncodedSentence:
        sentence, problem = encode_line(parse, line, self.pipeline.fields)
        if problem is not None:
            logger.warning("%s: going on without its parse", problem)
        return sentence

    def _segment_whole(self, lines: Sequence[str]) -> list[SegmentedLine]:
        is_gpt2 = isinstance(innermost(self.segmenter), Gpt2Segmenter)
        bpe = "gpt2" if is_gpt2 else "sentencepiece"
        protected = getattr(self.segmenter, "tokens", ())
        return [
            spell(self.segmenter.segment_line(line), bpe, self.segmenter, protected)
            for line in lines
        ]
