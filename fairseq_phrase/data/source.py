"""Raw source lines to subwords with their parse: one way for a corpus and for new text.

Words come first: the parser decides them, and each is cut into subwords on its own, so that the
word of every subword is known by construction. Imports no fairseq and no torch, so that worker
processes start quickly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fairseq_phrase.data.segmenter import SentencePieceSegmenter
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser, load_parser
from fairseq_phrase.syntax.alignment import words_of_subwords
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.syntax.store import Manifest


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
    """

    pieces: list[str]
    words: np.ndarray
    heads: np.ndarray | None
    deprels: list[str]
    tags: list[str]


def encode_sentence(sentence: ParsedSentence, segmenter: SentencePieceSegmenter) -> EncodedSentence:
    """Cut a sentence's words into subwords.

    Words of which the subword model leaves nothing (a zero-width space alone) leave the tree, so
    that every word has a subword.
    """
    cut = [segmenter.word_pieces(word) for word in sentence.marked_words()]
    if not all(cut):
        sentence = sentence.restricted_to(np.array([bool(pieces) for pieces in cut], dtype=bool))
        cut = [pieces for pieces in cut if pieces]
    return EncodedSentence(
        [piece for pieces in cut for piece in pieces],
        words_of_subwords([len(pieces) for pieces in cut]),
        None if sentence.tree is None else sentence.tree.heads,
        sentence.deprels,
        sentence.tags,
    )


class SourceEncoder:
    """A parser and a subword model.

    Args:
        parser: the parser.
        segmenter: the subword model.
    """

    def __init__(self, parser: LineParser, segmenter: SentencePieceSegmenter):
        self.parser, self.segmenter = parser, segmenter

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
        try:
            made = load_parser(parser or manifest.parser)
        except UserError as error:
            raise UserError(
                f"{error} ({directory} names this parser; --source-parser names another)"
            ) from None
        if not isinstance(made, LineParser):
            raise UserError(
                f"{directory} was parsed from {manifest.parser_version} files, which new text does "
                "not have: name a parser for it with --source-parser spacy:MODEL (or none, where "
                "the model needs no tree)"
            )
        return cls(made, SentencePieceSegmenter(Path(directory) / manifest.bpe_model))

    def parse(self, lines: Sequence[str]) -> list[EncodedSentence]:
        """Cut lines into subwords and parse them."""
        return [encode_sentence(sentence, self.segmenter) for sentence in self.parser.parse(lines)]

    def tokenize(self, line: str) -> list[str]:
        """Cut a line into words, ``▁`` in front of those that white space precedes."""
        return self.parser.tokenize([line])[0].marked_words()
