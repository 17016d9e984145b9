"""Encode a corpus' source side: a stream of lines through worker processes, in order."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from fairseq_phrase.data.segmenter import SentencePieceSegmenter
from fairseq_phrase.data.source import EncodedSentence, SourceEncoder, encode_sentence
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser, LineParser, Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.text import find_text, read_lines

_CHUNK_LINES = 1000
Item = TypeVar("Item")


def encode_corpus(
    text: Path, parsing: ParsingOptions, model: Path, workers: int
) -> Iterator[EncodedSentence]:
    """Parse a text and cut it into subwords.

    The result does not depend on the number of workers, and memory does not grow with the text.

    Args:
        text: the text, one sentence per line.
        parsing: how to parse it.
        model: the SentencePiece model.
        workers: number of processes; 1 works in this one.

    Yields:
        One encoded sentence per line, in order.

    Raises:
        UserError: the parser, the model or the text is not usable, or a worker died.
    """
    pipeline, segmenter = ParsingPipeline(parsing), SentencePieceSegmenter(model)
    if not isinstance(pipeline.parser, LineParser):
        for sentence in pipeline.read(parses_of(text, pipeline.parser), read_lines(text)):
            if isinstance(sentence, Unparsed):
                raise UserError(sentence.reason)
            yield encode_sentence(sentence, segmenter)
        return
    chunks = _chunks(read_lines(text), _CHUNK_LINES)
    if workers <= 1:
        encoder = SourceEncoder(pipeline, segmenter)
        for chunk in chunks:
            yield from encoder.parse(chunk)
    else:
        for sentences in _in_processes(parsing, model, chunks, workers):
            yield from sentences


def parses_of(text: Path, parser: FileParser) -> Path:
    """Find the parses of a text, ``TEXT.SUFFIX`` or ``TEXT.SUFFIX.gz``.

    Raises:
        UserError: there are none.
    """
    beside = text.with_suffix("") if text.suffix == ".gz" else text
    return find_text(str(beside), parser.suffix)


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def _in_processes(
    parsing: ParsingOptions, model: Path, chunks: Iterator[list[str]], workers: int
) -> Iterator[list[EncodedSentence]]:
    """Encode chunks side by side; no more than two per worker wait at a time."""
    # Spawned, not forked: forking a process in which libraries have started threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (parsing, model)) as pool:
        waiting: deque[Future[list[EncodedSentence]]] = deque()
        try:
            for chunk in chunks:
                waiting.append(pool.submit(_encode_chunk, chunk))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise UserError(
                "a parsing process died (out of memory?): run again, with fewer --workers if "
                "memory is short"
            ) from None
        finally:
            for future in waiting:
                future.cancel()


_encode: Callable[[list[str]], list[EncodedSentence]]


def _start_worker(parsing: ParsingOptions, model: Path) -> None:
    """Load the parser and the model once per process."""
    global _encode
    _encode = SourceEncoder(ParsingPipeline(parsing), SentencePieceSegmenter(model)).parse


def _encode_chunk(lines: list[str]) -> list[EncodedSentence]:
    return _encode(lines)
