"""One language of a split on its way: lines in; subwords as text and parses as arrays out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fairseq_phrase.corpus.encoding import encode_sentence
from fairseq_phrase.corpus.engines import EngineOptions
from fairseq_phrase.corpus.parsing import Corpus, parse_corpus
from fairseq_phrase.corpus.segmenters import Segmenter
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.store.writer import LabelTable, ParseWriter
from fairseq_phrase.syntax.encoding import EncodedSentence
from fairseq_phrase.text import read_lines


class SideLine(NamedTuple):
    """A line of one language.

    Attributes:
        pieces: its subwords.
        encoded: its subwords and parse; None where the language is not parsed.
        problem: why it has no parse (it then has flat trees); None if all is well.
    """

    pieces: Sequence[str]
    encoded: EncodedSentence | None = None
    problem: str | None = None


class Side:
    """One language of a split.

    Args:
        language: the language.
        corpus: its text.
        pipeline: its parser; None if it is not parsed.
        prefix: the files' common path, ``DIR/train.de-en.de``.
    """

    def __init__(
        self, language: str, corpus: Corpus, pipeline: ParsingPipeline | None, prefix: Path
    ):
        self.language, self.corpus, self.pipeline, self.prefix = language, corpus, pipeline, prefix
        self.pieces_path = prefix.with_name(prefix.name + ".pieces")
        self._parses: Iterator[Parse] | None = None

    def parse(self, folder: Path, engine: EngineOptions, on_error: str) -> None:
        """Parse the text, if it is to be parsed (:func:`parse_corpus`)."""
        if self.pipeline is not None:
            lines = read_lines(self.corpus.path)
            self._parses = parse_corpus(self.corpus, lines, self.pipeline, folder, engine, on_error)

    def lines(self, segmenter: Segmenter) -> Iterator[SideLine]:
        """Cut all lines into subwords, after :meth:`parse`."""
        if self.pipeline is None or self._parses is None:
            for line in read_lines(self.corpus.path):
                yield SideLine(segmenter.line_pieces(line))
            return
        for parse in self._parses:
            problem = None
            if isinstance(parse, Unparsed):
                problem, parse = parse.reason, self.pipeline.flat(parse)
            encoded = encode_sentence(parse, segmenter)
            yield SideLine(encoded.pieces, encoded, problem)

    def writer(self, labels: dict[str, LabelTable]) -> SideWriter:
        """Open the files for what is kept."""
        return SideWriter(self, labels)


class SideWriter:
    """Write what is kept of a side; a context manager.

    Args:
        side: the side.
        labels: the label tables, shared by all splits and languages.

    Attributes:
        parses: the parses that are written; None if the side is not parsed.
        subwords: how often each subword was written.
    """

    def __init__(self, side: Side, labels: dict[str, LabelTable]):
        self.subwords: Counter[str] = Counter()
        self._pieces = open(side.pieces_path, "w", encoding="utf-8")  # noqa: SIM115
        self.parses = None
        if side.pipeline is not None:
            self.parses = ParseWriter(side.prefix, side.pipeline.fields, labels)

    def __enter__(self) -> SideWriter:
        """Return itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the text."""
        self._pieces.close()

    def append(self, line: SideLine) -> None:
        """Write a line."""
        self._pieces.write(" ".join(line.pieces) + "\n")
        self.subwords.update(line.pieces)
        if self.parses is not None and line.encoded is not None:
            self.parses.append(line.encoded)
