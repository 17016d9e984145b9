"""Finished parses: shards of some thousand lines, as bytes, and many shards in a file.

A shard is compressed JSON with one line per sentence, which cannot run code. It can contain any text,
including lone surrogates. Shards are added to their file in the order in which they are finished, each
after a heading with digests of the parsed text and of the shard. A damaged shard or a shard of another
text is therefore not used, and neither is one that was not written to its end.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fairseq_phrase.data.store.outputs import (
    Key,
    as_bytes,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import named_in_errors
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, Expansion, ParsedSentence, Unparsed

logger = logging.getLogger(__name__)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


_SHARDS_PER_FILE = 1000
_SUFFIX = ".shards"
_DIGEST = 16  # bytes
_MAGIC = b"parses 1"
_HEADING = struct.Struct(f"<8sQ{_DIGEST}s{_DIGEST}sQ")  # then a _Record


def packed(parses: Iterable[ParsedSentence | Unparsed]) -> bytes:
    """Write parses as a shard."""
    return zlib.compress(to_bytes(parses), 1)  # higher levels take longer than they save


def unpacked(shard: bytes) -> Iterator[ParsedSentence | Unparsed]:
    """Read the parses of a shard."""
    return from_bytes(zlib.decompress(shard))


def to_bytes(parses: Iterable[ParsedSentence | Unparsed]) -> bytes:
    """Write parses as bytes."""
    return "".join(f"{_encode(_record(parse))}\n" for parse in parses).encode("ascii")


def from_bytes(shard: bytes) -> Iterator[ParsedSentence | Unparsed]:
    """Read parses from bytes."""
    return (_parse(json.loads(line)) for line in shard.splitlines())


def _record(parse: ParsedSentence | Unparsed) -> list[Any]:
    if isinstance(parse, Unparsed):
        return [parse.reason, _record(parse.sentence)]
    spaces = "".join(" " if space else "-" for space in parse.space_before)
    heads = None if parse.tree is None else parse.tree.heads.tolist()
    constituents = parse.constituents
    spans = None if constituents is None else constituents.spans.tolist()
    labels = [] if constituents is None else constituents.labels
    return [
        *(parse.words, spaces, heads, parse.deprels, parse.tags, spans, labels, parse.features),
        *(parse.edges, parse.lost_edges, parse.expansions),
    ]


def _parse(record: list[Any]) -> ParsedSentence | Unparsed:
    if isinstance(record[0], str):
        reason, sentence = record
        words = _parse(sentence)
        assert isinstance(words, ParsedSentence)
        return Unparsed(reason, words)
    words, spaces, heads, deprels, tags, spans, labels, features, edges, lost, expansions = record
    return ParsedSentence(
        words,
        [space == " " for space in spaces],
        tree=None if heads is None else DependencyTree.from_valid(np.array(heads, dtype=np.int64)),
        deprels=deprels,
        tags=tags,
        constituents=None if spans is None else ConstituencyTree(spans, labels, len(words)),
        features=features,
        edges={name: [Edge(*edge) for edge in graph] for name, graph in edges.items()},
        lost_edges=lost,
        expansions=[Expansion(token, tuple(several)) for token, several in expansions],
    )


class _Record(NamedTuple):
    """The heading of a shard in a file.

    Attributes:
        number: the shard's number, from 0.
        lines, parses: digests of its lines and of the shard.
        size: its size in bytes.
    """

    number: int
    lines: bytes
    parses: bytes
    size: int


def _records(path: Path) -> Iterator[tuple[_Record, int]]:
    """Yield the headings in a file, each with the offset of its shard, up to a damaged or partial one."""
    end = path.stat().st_size
    with open(path, "rb") as stream:
        while len(heading := stream.read(_HEADING.size)) == _HEADING.size:
            magic, *values = _HEADING.unpack(heading)
            record, start = _Record(*values), stream.tell()
            if magic != _MAGIC or start + record.size > end:
                return
            yield record, start
            stream.seek(record.size, os.SEEK_CUR)


def shards_in(folder: Path) -> list[int]:
    """Return the numbers of the shards in a folder and its subfolders, in the order of writing."""
    files = sorted(folder.rglob(f"*{_SUFFIX}"))
    return [record.number for file in files for record, _ in _records(file)]


class ShardFolder:
    """A folder of shards, numbered from 0. A file has the shards of a million lines.

    Args:
        path: the folder; it is made if missing.
        key: the key of text, parser and other settings on which the shards depend.

    Raises:
        UserError: the folder has shards of another key.
    """

    def __init__(self, path: Path, key: Key):
        self._path = path
        self._key = as_bytes(key)
        note = path / "key.json"
        if note.is_file() and shards_in(path):
            remedy = f"give the same options and text, or remove {path}"
            require_same(read_key(note.read_bytes(), note), key, path, remedy)
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(note, self._key)
        self._places: dict[int, tuple[_Record, int]] = {}
        for file in sorted(path.glob(f"*{_SUFFIX}")):
            end = 0
            for record, start in _records(file):
                self._places[record.number] = record, start
                end = start + record.size
            if end < file.stat().st_size:  # the last run was killed while it wrote
                os.truncate(file, end)

    def _file(self, number: int) -> Path:
        return self._path / f"{number // _SHARDS_PER_FILE:06}{_SUFFIX}"

    def _digest_of(self, lines: Sequence[str]) -> bytes:
        digest = hashlib.blake2b(self._key, digest_size=_DIGEST)
        for line in lines:
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
        return digest.digest()

    def holds(self, number: int, lines: Sequence[str]) -> bool:
        """Return whether a shard is finished, undamaged, and belongs to these lines.

        A damaged shard, or a shard of other lines, is not used, with a warning.
        """
        if number not in self._places:
            return False
        record, _ = self._places[number]
        is_whole = record.parses == _digest(self.read(number))
        if is_whole and record.lines == self._digest_of(lines):
            return True
        logger.warning(
            "shard %d in %s is damaged or of other lines: they are parsed again",
            number, self._file(number),
        )  # fmt: skip
        del self._places[number]
        return False

    def write(self, number: int, lines: Sequence[str], shard: bytes) -> None:
        """Write a shard of these lines.

        Raises:
            OSError: it cannot be written; the error names the file.
        """
        record = _Record(number, self._digest_of(lines), _digest(shard), len(shard))
        file = self._file(number)
        with named_in_errors(file), open(file, "ab") as stream:
            start = stream.tell()
            try:
                stream.write(_HEADING.pack(_MAGIC, *record) + shard)
                stream.flush()
            except OSError:
                os.truncate(file, start)
                raise
        self._places[number] = record, start + _HEADING.size

    def read(self, number: int) -> bytes:
        """Read a shard that is in the folder."""
        record, start = self._places[number]
        with open(self._file(number), "rb") as stream:
            stream.seek(start)
            return stream.read(record.size)

    def remove_below(self, number: int) -> None:
        """Delete the files all of whose shards have smaller numbers."""
        first = number - number % _SHARDS_PER_FILE
        for file in {self._file(n) for n in self._places if n < first}:
            file.unlink(missing_ok=True)
        self._places = {n: place for n, place in self._places.items() if n >= first}

    def remove_all(self) -> None:
        """Delete the files of all shards."""
        for file in set(map(self._file, self._places)):
            file.unlink(missing_ok=True)
        self._places = {}


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()
