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
from fairseq_phrase.parsers import FileParser, LineParser, load_parser
from fairseq_phrase.text import find_text, read_lines

_CHUNK_LINES = 1000
Item = TypeVar("Item")


def encode_corpus(text: Path, parser: str, model: Path, workers: int) -> Iterator[EncodedSentence]:
    """Parse a text and cut it into subwords.

    The result does not depend on the number of workers, and memory does not grow with the text.

    Args:
        text: the text, one sentence per line.
        parser: the parser, as ``--parser`` names it.
        model: the SentencePiece model.
        workers: number of processes; 1 works in this one.

    Yields:
        One encoded sentence per line, in order.

    Raises:
        UserError: the parser, the model or the text is not usable, or a worker died.
    """
    loaded, segmenter = load_parser(parser), SentencePieceSegmenter(model)
    if not isinstance(loaded, LineParser):
        for sentence in loaded.read(parses_of(text, loaded), read_lines(text)):
            yield encode_sentence(sentence, segmenter)
        return
    chunks = _chunks(read_lines(text), _CHUNK_LINES)
    if workers <= 1:
        encoder = SourceEncoder(loaded, segmenter)
        for chunk in chunks:
            yield from encoder.parse(chunk)
    else:
        for sentences in _in_processes(parser, model, chunks, workers):
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
    parser: str, model: Path, chunks: Iterator[list[str]], workers: int
) -> Iterator[list[EncodedSentence]]:
    """Encode chunks side by side; no more than two per worker wait at a time."""
    # Spawned, not forked: forking a process in which libraries have started threads may deadlock.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (parser, model)) as pool:
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


def _start_worker(parser: str, model: Path) -> None:
    """Load the parser and the model once per process."""
    global _encode
    loaded = load_parser(parser)
    assert isinstance(loaded, LineParser)
    _encode = SourceEncoder(loaded, SentencePieceSegmenter(model)).parse


def _encode_chunk(lines: list[str]) -> list[EncodedSentence]:
    return _encode(lines)
