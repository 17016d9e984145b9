"""Finished parses: shards of some thousand lines, as bytes and as files that are written atomically.

A shard is JSON with one line per sentence: people can read it, and it cannot run code. It can contain
any text, including lone surrogates. A file starts with an additional line of fingerprints of the parsed
text and of the parses. A damaged shard or a shard of another text is therefore not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.data.store.outputs import (
    Key,
    as_bytes,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, Expansion, ParsedSentence, Unparsed

logger = logging.getLogger(__name__)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


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
    words, spaces, heads, deprels, tags, spans, labels, features, edges, lost, *rest = record
    expansions = rest[0] if rest else []  # shards of earlier versions lack them
    return ParsedSentence(
        words, [space == " " for space in spaces],
        None if heads is None else DependencyTree.from_valid(np.array(heads, dtype=np.int64)),
        deprels, tags, None if spans is None else ConstituencyTree(spans, labels, len(words)),
        features, {name: [Edge(*edge) for edge in graph] for name, graph in edges.items()}, lost,
        [Expansion(token, tuple(several)) for token, several in expansions],
    )  # fmt: skip


class ShardFolder:
    """A folder of shards, numbered from 0.

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
        if note.is_file() and any(path.glob("*.jsonl")):
            remedy = f"give the same options and text, or remove {path}"
            require_same(read_key(note.read_bytes(), note), key, path, remedy)
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(note, self._key)

    def _file(self, number: int) -> Path:
        return self._path / f"{number:07}.jsonl"

    def _heading(self, lines: Sequence[str], shard: bytes) -> bytes:
        """Return the fingerprints of the lines, the parser and the parses."""
        text = hashlib.blake2b(self._key, digest_size=16)
        for line in lines:
            text.update(line.encode("utf-8", "surrogatepass") + b"\n")
        parses = hashlib.blake2b(shard, digest_size=16)
        return f'{{"lines":"{text.hexdigest()}","parses":"{parses.hexdigest()}"}}\n'.encode("ascii")

    def holds(self, number: int, lines: Sequence[str]) -> bool:
        """Return whether a shard is finished, undamaged, and belongs to these lines.

        A damaged shard, or a shard of other lines, is deleted, with a warning.
        """
        file = self._file(number)
        if not file.is_file():
            return False
        heading, end, shard = file.read_bytes().partition(b"\n")
        if heading + end == self._heading(lines, shard):
            return True
        logger.warning("%s is damaged or of other lines: they are parsed again", file)
        file.unlink()
        return False

    def write(self, number: int, lines: Sequence[str], shard: bytes) -> None:
        """Write a shard of these lines."""
        write_atomically(self._file(number), self._heading(lines, shard) + shard)

    def read(self, number: int) -> bytes:
        """Read a shard that is in the folder."""
        return self._file(number).read_bytes().partition(b"\n")[2]
