"""Raw source lines to subwords with their parse: one way for a corpus and for new text.

Words come first: the parser decides them, and each is cut into subwords on its own, so that the
word of every subword is known by construction. Imports no fairseq and no torch, so that worker
processes start quickly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_phrase.data.bpe import SubwordNmtSegmenter
from fairseq_phrase.data.cut_text import CutLine, MisspeltError
from fairseq_phrase.data.segmenter import Segmenter, load_segmenter
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser, Unparsed, load_parser
from fairseq_phrase.parsers.base import cut_at_white_space
from fairseq_phrase.parsers.pipeline import Parse, ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.alignment import words_of_subwords
from fairseq_phrase.syntax.brackets import NO_TAG
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.syntax.store import Manifest

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedSentence:
    """A source line as the model takes it.

    Attributes:
        pieces: its subwords.
        words: the word of each subword. Shape: ``(subwords,)``, word indices from 0.
        heads: the head of each word, the root its own; None without a parse. Shape: ``(words,)``,
            word indices from 0.
        deprels: the relation of each word to its head.
        tags: the part of speech of each word.
        spans: the words of each constituent, children before parents; None without constituents.
            Shape: ``(constituents, 2)``, half-open, word indices from 0.
        span_labels: the constituents' labels.
    """

    pieces: list[str]
    words: np.ndarray
    heads: np.ndarray | None
    deprels: list[str]
    tags: list[str]
    spans: np.ndarray | None
    span_labels: list[str]


def encode_sentence(sentence: ParsedSentence, segmenter: Segmenter) -> EncodedSentence:
    """Cut a sentence's words into subwords (:func:`encode_words`)."""
    return encode_words(sentence, [segmenter.word_pieces(word) for word in sentence.marked_words()])


def encode_words(sentence: ParsedSentence, cut: Sequence[Sequence[str]]) -> EncodedSentence:
    """Encode a sentence whose words are cut into subwords.

    Unary chains of constituents are collapsed, and a word of several subwords becomes a constituent
    of its own, labelled with its part of speech, below those that are over it alone
    (``spec/tree_attention.md``, "Trees"). Words of which the subword model leaves nothing (a
    zero-width space alone) leave the trees, so that every word has a subword.

    Args:
        sentence: the sentence.
        cut: the subwords of each word.
    """
    if not all(cut):
        sentence = sentence.restricted_to(np.array([bool(pieces) for pieces in cut], dtype=bool))
        cut = [pieces for pieces in cut if pieces]
    constituents = None
    if sentence.constituents is not None:
        constituents = _with_split_words(sentence.constituents.collapsed(), cut, sentence.tags)
    return EncodedSentence(
        [piece for pieces in cut for piece in pieces],
        words_of_subwords([len(pieces) for pieces in cut]),
        None if sentence.tree is None else sentence.tree.heads,
        sentence.deprels,
        sentence.tags,
        None if constituents is None else constituents.spans,
        [] if constituents is None else constituents.labels,
    )


def encode_line(
    parse: Parse, line: CutLine, pipeline: ParsingPipeline
) -> tuple[EncodedSentence, str | None]:
    """Encode a line that was cut into subwords before it was parsed.

    Args:
        parse: its parse.
        line: its subwords and the text that they spell.
        pipeline: what parsed it.

    Returns:
        The sentence; and what is wrong with its parse, or None. Instead of a parse that does not spell
        the line it has flat trees over the words between white space.
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


def _with_split_words(
    tree: ConstituencyTree, cut: Sequence[Sequence[str]], tags: Sequence[str]
) -> ConstituencyTree:
    """Add a constituent over each word of several subwords."""
    split = [word for word, pieces in enumerate(cut) if len(pieces) > 1]
    spans = np.array(split, dtype=np.int64)[:, None] + np.array([0, 1])
    return tree.with_lower(spans, [tags[word] if tags else NO_TAG for word in split])


def segmenter_of(directory: str | Path, manifest: Manifest) -> Segmenter:
    """Load the subword model of a data directory.

    Raises:
        UserError: it has none.
    """
    if not manifest.bpe_model:
        raise UserError(
            f"{directory} has no subword model, so new text cannot be cut as its own was: run "
            "fairseq-phrase-attach again with --bpe-codes or --sentencepiece-model"
        )
    return load_segmenter(manifest.bpe, Path(directory) / manifest.bpe_model)


class SourceEncoder:
    """A parser and a subword model.

    Args:
        pipeline: the parser, with all that stands around it.
        segmenter: the subword model.
        whole_lines: cut whole lines with SentencePiece and find the words in them, as
            :class:`~fairseq_phrase.syntax.store.Manifest` says.
    """

    def __init__(
        self, pipeline: ParsingPipeline, segmenter: Segmenter, *, whole_lines: bool = False
    ):
        self.pipeline, self.segmenter, self.whole_lines = pipeline, segmenter, whole_lines

    @classmethod
    def of_data(
        cls, directory: str | Path, language: str, parser: str | None = None
    ) -> SourceEncoder:
        """Build the encoder that made a data directory.

        Args:
            directory: the data directory.
            language: the source language.
            parser: another parser than the manifest names, ``spacy:MODEL``.

        Raises:
            UserError: there is no manifest, or what it names is not installed.
        """
        manifest = Manifest.load(directory, language)
        constituents = manifest.constituents
        try:
            if parser and (constituents == "none" or "heads" not in load_parser(parser).fields):
                constituents = (
                    "parser"  # whatever this one makes; the model says if it is too little
                )
            pipeline = ParsingPipeline(
                ParsingOptions(parser or manifest.parser, constituents, manifest.tokenized)
            )
        except UserError as error:
            raise UserError(
                f"{error} ({directory} names this parser; --source-parser names another)"
            ) from None
        if not isinstance(pipeline.parser, LineParser):
            raise UserError(
                f"{directory} was parsed from {manifest.parser_version} files, which new text does "
                "not have: name a parser for it with --source-parser spacy:MODEL (or none, where "
                "the model needs no tree)"
            )
        segmenter = segmenter_of(directory, manifest)
        return cls(pipeline, segmenter, whole_lines=manifest.whole_lines)

    def parse(self, lines: Sequence[str]) -> list[EncodedSentence]:
        """Cut lines into subwords and parse them; a line that cannot be parsed gets flat trees."""
        if self.whole_lines:
            return self._parse_whole(lines)
        encoded = []
        for sentence in self.pipeline.parse(lines):
            if isinstance(sentence, Unparsed):
                logger.warning("%s: going on without its parse", sentence.reason)
                sentence = self.pipeline.flat(sentence)
            encoded.append(encode_sentence(sentence, self.segmenter))
        return encoded

    def _parse_whole(self, lines: Sequence[str]) -> list[EncodedSentence]:
        cut = [CutLine.of_sentencepiece(self.segmenter.line_pieces(line)) for line in lines]
        encoded = []
        for parse, line in zip(self.pipeline.parse([line.text for line in cut]), cut, strict=True):
            sentence, problem = encode_line(parse, line, self.pipeline)
            if problem is not None:
                logger.warning("%s: going on without its parse", problem)
            encoded.append(sentence)
        return encoded

    def tokenize(self, line: str) -> list[str]:
        """Cut a line into words, ``▁`` in front of those that white space precedes.

        A line whose subwords are cut from the whole of it comes back as one.
        """
        if self.whole_lines:
            return [line]
        return self.pipeline.tokenize(line).marked_words()

    def pieces_of(self, words: Sequence[str]) -> list[str]:
        """Cut the words of :meth:`tokenize` into subwords."""
        cut = self.segmenter.line_pieces if self.whole_lines else self.segmenter.word_pieces
        return [piece for word in words for piece in cut(word)]

    def text_of(self, pieces: list[str]) -> str:
        """Spell the subwords of a line."""
        if isinstance(self.segmenter, SubwordNmtSegmenter):
            return CutLine.of_subword_nmt(pieces).text
        return CutLine.of_sentencepiece(pieces).text
