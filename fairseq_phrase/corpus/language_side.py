"""One language of a split: lines in, subwords as text and parses as arrays out.

A side is raw text, which is cut into subwords here (:class:`RawSide`), or text of subwords that fairseq
has already binarized (:class:`CutSide`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fairseq_phrase.corpus.binarized import subwords_of_lines
from fairseq_phrase.corpus.engines import EngineOptions
from fairseq_phrase.corpus.parsing import Corpus, parse_corpus
from fairseq_phrase.parsers import FileParser, Unparsed
from fairseq_phrase.parsers.pipeline import Parse, ParsingPipeline
from fairseq_phrase.raw_text.segmenters import Segmenter, separate
from fairseq_phrase.raw_text.source_encoder import CutLine, encode_line, encode_sentence
from fairseq_phrase.store.manifest import fingerprint
from fairseq_phrase.store.writer import LabelTable, ParseWriter
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.text import read_lines


class SideLine(NamedTuple):
    """A line of one language.

    Attributes:
        encoded: its subwords and parse; None if the language is not parsed.
        problem: why it has no parse (it then has flat trees); None if it has one.
        swallowed: the number of its parse's words without a subword, because their subword also belongs
            to an earlier word.
    """

    pieces: Sequence[str]
    encoded: EncodedSentence | None = None
    problem: str | None = None
    swallowed: int = 0


class Side(ABC):
    """One language of a split.

    Args:
        pipeline: its parser; None if it is not parsed.
        prefix: the common path of the files that are made, ``DIR/train.de-en.de``.

    Attributes:
        pieces_path: the file of subwords, to be binarized; None if they are binarized already.
        subwords: the number of times that each subword was written there.
        checksums: fingerprints of the files that the manifest records, by file name.
    """

    pieces_path: Path | None = None

    def __init__(
        self, language: str, corpus: Corpus, pipeline: ParsingPipeline | None, prefix: Path
    ):
        self.language, self.corpus, self.pipeline, self.prefix = language, corpus, pipeline, prefix
        self.subwords: Counter[str] = Counter()
        self.checksums: dict[str, str] = {}
        self._parses: Iterator[Parse] = iter(())
        self._written: ParseWriter | None = None

    def parse(self, folder: Path, engine: EngineOptions, on_error: str) -> None:
        """Parse the text, if it is to be parsed (:func:`parse_corpus`)."""
        if self.pipeline is not None:
            self._parses = parse_corpus(
                self.corpus, self._text(), self.pipeline, folder, engine, on_error
            )

    @abstractmethod
    def _text(self) -> Iterator[str]:
        """Yield the lines that the parser reads."""

    @abstractmethod
    def lines(self) -> Iterator[SideLine]:
        """Yield all lines as subwords with their parse, after :meth:`parse`."""

    @contextmanager
    def writing(self, labels: dict[str, LabelTable]) -> Iterator[Callable[[SideLine], None]]:
        """Open the files for what is kept; yield a function that writes a line."""
        if self.pipeline is not None:
            self._written = ParseWriter(self.prefix, self.pipeline.fields, labels)
        with open(self.pieces_path or os.devnull, "w", encoding="utf-8") as pieces:

            def write(line: SideLine) -> None:
                if self.pieces_path is not None:
                    pieces.write(" ".join(line.pieces) + "\n")
                    self.subwords.update(line.pieces)
                if self._written is not None and line.encoded is not None:
                    self._written.append(line.encoded)

            yield write

    def finish(self) -> None:
        """Write the files of the parses, after all labels are known."""
        if self._written is not None:
            self.vouch_for(self._written.finish())

    def vouch_for(self, paths: Sequence[Path]) -> None:
        """Record files' fingerprints for the manifest."""
        self.checksums |= {path.name: fingerprint(path) for path in paths}


class RawSide(Side):
    """Raw text. Each word of the parser is cut into subwords on its own.

    Args:
        segmenter: cuts words, and lines of a language that is not parsed.
    """

    def __init__(
        self,
        language: str,
        corpus: Corpus,
        pipeline: ParsingPipeline | None,
        prefix: Path,
        segmenter: Segmenter,
    ):
        super().__init__(language, corpus, pipeline, prefix)
        self.pieces_path: Path = prefix.with_name(prefix.name + ".pieces")
        self._segmenter = segmenter
        self.vocabulary: Sequence[str] = getattr(segmenter, "vocabulary", ())

    def _text(self) -> Iterator[str]:
        return (separate(self._segmenter, line)[0] for line in read_lines(self.corpus.path))

    def lines(self) -> Iterator[SideLine]:
        """Yield all lines, cut into subwords, with their parse, after :meth:`parse`."""
        if self.pipeline is None:
            for line in read_lines(self.corpus.path):
                yield SideLine(self._segmenter.line_pieces(line))
            return
        for parse, line in zip(self._parses, read_lines(self.corpus.path), strict=True):
            problem = None
            if isinstance(parse, Unparsed):
                problem, parse = parse.reason, self.pipeline.flat(parse)
            encoded = encode_sentence(parse, self._segmenter, separate(self._segmenter, line)[1])
            yield SideLine(encoded.pieces, encoded, problem)


class CutSide(Side):
    """Text of subwords. The parser's words are found in the text that the subwords spell."""

    def __init__(
        self,
        language: str,
        corpus: Corpus,
        pipeline: ParsingPipeline,
        prefix: Path,
        spelled: Callable[..., CutLine],
    ):
        super().__init__(language, corpus, pipeline, prefix)
        self._pipeline = pipeline
        # The pipeline unescapes words for a parser itself; files hold unescaped words.
        self._spell = partial(spelled, unescape=isinstance(pipeline.parser, FileParser))

    def _cut(self) -> Iterator[CutLine]:
        return map(self._spell, subwords_of_lines(self.corpus.path))

    def _text(self) -> Iterator[str]:
        return (line.text for line in self._cut())

    def lines(self) -> Iterator[SideLine]:
        """Yield all lines with their parse, after :meth:`parse`."""
        for parse, line in zip(self._parses, self._cut(), strict=True):
            encoded, problem = encode_line(parse, line, self._pipeline)
            swallowed = 0
            if not isinstance(parse, Unparsed) and problem is None:
                swallowed = len(parse.words) - encoded.num_words
            yield SideLine(encoded.pieces, encoded, problem, swallowed)
