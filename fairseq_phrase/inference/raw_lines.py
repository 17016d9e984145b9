"""Raw lines as a model reads them: in the data's form, encoded in advance, segmented if too long."""

from __future__ import annotations

import logging
import queue
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fairseq_phrase.data.batches.source_batches import SourceBatcher
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.protected_tokens import ProtectedTokens, Segmenter
from fairseq_phrase.data.subwords.segmenters import WholeWords
from fairseq_phrase.data.subwords.text_encoder import segmenter_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.text import read_lines

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)
Raw = TypeVar("Raw")
Item = TypeVar("Item")
_END = object()

# A sentence ends at these marks, perhaps with a closing quote or bracket after them.
_SENTENCE_END = re.compile(r"""[.!?…][)\]"'”’»]*\s+|[。！？][」』）]*\s*""")
_SPACE = re.compile(r"\s+")


def source_form(
    manifest: Manifest, dictionary: Dictionary, *, tokenized: bool = False
) -> Callable[[str], str]:
    """Return a function that gives a raw line the form of the data's lines.

    Data of tokenized text (``--source-tokenized``) need tokenized lines. The dictionary shows which of
    Moses' options were used.

    Args:
        tokenized: whether the input lines are tokenized in the same way as the data.
    """
    if tokenized or not manifest.tokenized:
        return str
    moses = _sacremoses(f"{manifest.language} text of the data is tokenized")
    symbols = set(dictionary.symbols)
    tokenize = partial(
        moses.MosesTokenizer(manifest.language).tokenize,
        escape=any(symbol.startswith(("&apos", "&quot")) for symbol in symbols),
        aggressive_dash_splits="@-@" in symbols,
        return_str=True,
    )
    return partial(_around(manifest), form=tokenize) if manifest.protected else tokenize


def _around(manifest: Manifest) -> Callable[..., str]:
    """Return a function that transforms a line except its protected tokens."""
    return ProtectedTokens(WholeWords(), manifest.protected).around


class TargetForm:
    """Conversion of the target's subwords to text, and of text to subwords.

    Args:
        manifest: of the source language; the target has the same subword model.
        tokenized: leave the text tokenized if the data's text is tokenized.
    """

    def __init__(self, directory: str, manifest: Manifest, target: str, *, tokenized: bool = False):
        self._segmenter: Segmenter = segmenter_of(directory, manifest, target=True)
        self._moses: tuple[Any, Any] | None = None
        # subword-nmt segments tokenized text; SentencePiece segments raw text unless the manifest states
        # otherwise.
        if not tokenized and (manifest.tokenized or manifest.bpe == "subword_nmt"):
            moses = _sacremoses(f"{target} text of the data is tokenized")
            self._moses = moses.MosesTokenizer(target), moses.MosesDetokenizer(target)
        self.protected = manifest.protected
        self._around = _around(manifest) if self.protected else None
        self.join = self._segmenter.join

    def text(self, subwords: str) -> str:
        """Join subwords, separated by spaces, to text."""
        joined = self.join(subwords)
        return joined if self._moses is None else self._moses[1].detokenize(joined.split())

    def subwords(self, text: str) -> str:
        """Segment text into subwords, separated by spaces."""
        if self._moses is not None:
            tokenize = partial(self._moses[0].tokenize, return_str=True)
            text = str(self._around(text, tokenize) if self._around else tokenize(text))
        return " ".join(self._segmenter.segment_line(text))


def _sacremoses(why: str) -> Any:
    try:
        import sacremoses
    except ModuleNotFoundError:
        raise UserError(
            f"the {why}, and raw text needs Moses' tokenizer: pip install sacremoses. Or "
            "give tokenized text (source_tokenized), and get it (target_tokenized)"
        ) from None
    return sacremoses


class Line(NamedTuple):
    """A raw line, with its translation and its parse if they are given."""

    text: str
    target: str | None = None
    parse: Parse | None = None


def parallel_lines(
    texts: Iterable[str],
    target: str | Path | Iterable[str] | None = None,
    parses: Iterable[Parse] | None = None,
) -> Iterator[Line]:
    """Join raw lines, their translations and their parses.

    Args:
        target: a translation for each line, or a file of them.
        parses: a parse for each line.

    Raises:
        UserError: there are more or fewer translations or parses than lines.
    """
    columns: dict[str, tuple[str, Iterable[Any]]] = {"text": ("the source", texts)}
    if isinstance(target, str | Path):
        columns["target"] = str(target), read_lines(Path(target))
    elif target is not None:
        columns["target"] = "the list of translations", target
    if parses is not None:
        columns["parse"] = "the list of parses", parses
    rows = zip_longest(*(values for _, values in columns.values()), fillvalue=_END)
    for number, row in enumerate(rows):
        ended = {
            value is _END: name for (name, _), value in zip(columns.values(), row, strict=True)
        }
        if True in ended:
            raise UserError(
                f"{ended[True]} has {number} lines, and {ended[False]} has more: expected one for each "
                "line of the source"
            )
        yield Line(**dict(zip(columns, row, strict=True)))


@dataclass(frozen=True)
class LineChunk:
    """Lines that are ready for the model.

    Attributes:
        first: the number of the first line, from 1.
        segments: the segments of each line; none for an empty line.
    """

    first: int
    lines: list[Line]
    segments: list[list[EncodedSentence]]


class RawLines:
    """Encodes raw lines.

    Args:
        limit: the largest number of tokens that the models accept.
    """

    def __init__(self, form: Callable[[str], str], source: SourceBatcher, limit: int) -> None:
        self._form, self._source, self._limit = form, source, limit

    def encode(self, lines: Sequence[str]) -> list[EncodedSentence]:
        """Segment lines into subwords, and parse them if the models read trees.

        Raises:
            UserError: the parser is not installed, or cannot parse a line.
        """
        return self._source.encode([self._form(line) for line in lines])

    def chunks(self, numbered: Iterable[tuple[int, list[Line]]]) -> Iterator[LineChunk]:
        """Encode the chunks of :func:`numbered` while the caller works on earlier ones."""
        return ahead(numbered, self._chunk)

    def _chunk(self, numbered: tuple[int, list[Line]]) -> LineChunk:
        first, lines = numbered
        encoded = iter(self._encoded([line for line in lines if line.text.strip()]))
        segments = [
            self._segments(line, next(encoded), number) if line.text.strip() else []
            for number, line in enumerate(lines, start=first)
        ]
        return LineChunk(first, lines, segments)

    def _encoded(self, lines: Sequence[Line]) -> list[EncodedSentence]:
        """Encode lines; either all of them have parses, or none has."""
        texts = [self._form(line.text) for line in lines]
        parses = [line.parse for line in lines if line.parse is not None]
        return self._source.encode(texts, parses) if texts else []

    def _segments(
        self, line: Line, sentence: EncodedSentence, number: int
    ) -> list[EncodedSentence]:
        """Split a line that is too long. A line without subwords lacks segments."""
        if line.parse is not None and len(sentence.subwords) >= self._limit:
            raise UserError(
                f"line {number} has {len(sentence.subwords) + 1} subwords, and the model takes "
                f"{self._limit}: divide the line and its tree"
            )
        segments = self._halved(line.text, sentence)
        if len(segments) > 1:
            logger.warning(
                "line %d has %d subwords, and the model takes %d: translated in %d segments",
                number, len(sentence.subwords) + 1, self._limit, len(segments),
            )  # fmt: skip
        return [segment for segment in segments if segment.subwords]

    def _halved(self, line: str, sentence: EncodedSentence) -> list[EncodedSentence]:
        """Split a line in two (:func:`halves`) repeatedly, until its segments fit."""
        if len(sentence.subwords) < self._limit or len(line) < 2:
            return [sentence]
        parts = halves(line)
        return [*chain.from_iterable(map(self._halved, parts, self.encode(parts)))]


def halves(text: str) -> list[str]:
    """Split a text of two or more characters in two, where a reader would split it.

    This is the end of a sentence that is nearest to the middle; if there is none, a space; and without a
    space, between two characters.

    Examples:
        >>> halves("It rains. We stay at home.")
        ['It rains.', 'We stay at home.']
        >>> halves("abcd")
        ['ab', 'cd']
    """
    text = text.strip()
    for pattern in (_SENTENCE_END, _SPACE):
        ends = [match.end() for match in pattern.finditer(text) if match.end() < len(text)]
        if ends:
            middle = min(ends, key=lambda end: abs(2 * end - len(text)))
            return [text[:middle].rstrip(), text[middle:]]
    return [text[: len(text) // 2], text[len(text) // 2 :]]


def numbered(
    lines: Iterable[Raw], size: int, *, live: bool = False
) -> Iterator[tuple[int, list[Raw]]]:
    """Yield chunks of lines with the number of the first, from 1.

    Unless ``live``, the lines of each chunk depend only on their numbers: a text has the same batches
    each time. The first chunk has one line, each other chunk three times as many lines as all chunks
    before it.

    Args:
        size: the largest number of lines of a chunk.
        live: the next line may come only after a line is answered: a chunk has the lines that are
            available.
    """
    number = 1
    for chunk in ready(lines, lambda line: line, size) if live else _growing(lines, size):
        yield number, chunk
        number += len(chunk)


def _growing(lines: Iterable[Raw], size: int) -> Iterator[list[Raw]]:
    iterator, read = iter(lines), 0
    while chunk := list(islice(iterator, min(max(1, 3 * read), size))):
        yield chunk
        read += len(chunk)


def ahead(source: Iterable[Raw], work: Callable[[Raw], Item]) -> Iterator[Item]:
    """Yield the results of :func:`ready` one by one."""
    with closing(ready(source, work, 1)) as chunks:
        for (item,) in chunks:
            yield item


def ready(
    source: Iterable[Raw], work: Callable[[Raw], Item], depth: int
) -> Generator[list[Item], None, None]:
    """Yield the results of a background thread, which processes items while the caller uses earlier ones.

    An error in the thread is raised here. When the iterator is closed, it waits for the work on one item:
    a process that ends while a thread is in a library's C++ code is aborted. It does not wait for the
    next item of the source, which may be input that never comes.

    Args:
        work: a function that takes time, such as parsing.
        depth: the number of results that may wait.

    Yields:
        The results that are ready, at least one and at most ``depth``.
    """
    waiting: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(depth)
    stopped, working = threading.Event(), threading.Lock()

    def put(item: Any, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                return waiting.put((item, error), timeout=0.1)

    def run() -> None:
        try:
            for item in source:
                with working:
                    if stopped.is_set():
                        return
                    result = work(item)
                put(result)
        except BaseException as error:
            put(_END, error)
        else:
            put(_END)

    threading.Thread(target=run, name="parsing ahead", daemon=True).start()
    try:
        while True:
            results = [waiting.get()]
            while len(results) < depth and not waiting.empty():
                results.append(waiting.get())
            last, error = results[-1]
            if items := [item for item, _ in results if item is not _END]:
                yield items
            if error is not None:
                raise error
            if last is _END:
                return
    finally:
        stopped.set()
        with working:
            pass
