"""Files of the output for a large text: its parts, and the state from which a run resumes."""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

from fairseq.utils import split_paths

from fairseq_phrase.data.store.manifest import parser_entries
from fairseq_phrase.data.store.outputs import (
    Key,
    as_bytes,
    damaged,
    only_writer,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError, named_in_errors
from fairseq_phrase.inference.bundle import CONTENTS, is_bundle
from fairseq_phrase.inference.model_files import Read, data_and_parser_of, read_translator
from fairseq_phrase.inference.raw_lines import Line
from fairseq_phrase.parsers import load_parser, names_path, resolve
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import Unparsed
from fairseq_phrase.text import digest_of, read_json, require_file

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
#: Chunks of lines, each with the number of its first line, from 1.
Chunks = Iterator[tuple[int, list[Line]]]
#: For each chunk the number of its lines, and the output for them.
Outputs = Generator[tuple[int, bytes], None, None]
Predict = Callable[[Chunks], Outputs]
#: Of a chunk: the digest of its lines, the size of the file after it, the digest of its output.
Record = tuple[str, int, str]
#: Options of the commands that are not in the key, and why. The key has the content of files, not names.
FREE_ARGUMENTS = {
    **dict.fromkeys(("inputs", "score"), "a text"),
    **dict.fromkeys(("unk_dictionary", "path", "data", "source_parser"), "content"),
    **dict.fromkeys(("device", "allow_difference", "strict_identity"), "the model is the same"),
    **dict.fromkeys(("out", "shard"), "all parts of a text have one key"),
}


class Shard(NamedTuple):
    """One of several parts of a text, which consists of whole chunks.

    Attributes:
        number: its number, from 1.
    """

    number: int
    parts: int

    def holds(self, first: int, total: int) -> bool:
        """Return whether this part has the chunk that begins with a line, counted from 1."""
        return (first - 1) * self.parts // total == self.number - 1

    def path(self, text_file: Path) -> Path:
        """Return the file of this part's output, which is next to the whole text's file."""
        return text_file.with_name(f"{text_file.name}.{self.number}-of-{self.parts}")

    def other_shards(self) -> list[Shard]:
        """Return the other parts."""
        parts = (Shard(number, self.parts) for number in range(1, self.parts + 1))
        return [part for part in parts if part != self]


def output_key(
    options: Mapping[str, Any], parses: Sequence[Path] = (), read: Read = read_translator
) -> Key:
    """Make the key of the output of ``fairseq-phrase-translate`` or ``fairseq-phrase-label``.

    Text is compared by its content. Text from a pipe is compared chunk by chunk (:class:`OutputFile`).

    Args:
        options: the command's options, by name.
        parses: the files of the text's parses, if it has any.
        read: reads a model; it refuses a model of another kind.

    Raises:
        UserError: the model, its data or a file is missing, or a file that is read several times is a
            pipe.
    """
    key = {name: str(value) for name, value in options.items() if name not in FREE_ARGUMENTS}
    for number, path in enumerate(map(Path, split_paths(options["path"])), start=1):
        content = path / CONTENTS if is_bundle(path) else path  # which has digests of the others
        require_file(content, "model")
        key[f"model {number}"] = _content(content)
    data, parser = data_and_parser_of(options["path"], options["data"], read)
    for name, entry in data.entries.items():
        digest = "" if entry.label == entry.value else f" {_short(entry.value.encode())}"
        key[name] = f"{entry.label}{digest}"
    key["parser of the text"] = _parser(options["source_parser"], parser)
    texts = options["inputs"] or ["standard input"]
    key["text"] = ", ".join(
        _content(path) if isinstance(path, Path) and path.is_file() else "a pipe" for path in texts
    )
    if parses:
        key["parses"] = ", ".join(map(_content, parses))
    if (file := options.get("score")) is not None:
        key["score"] = _content(file) if file.is_file() else "a pipe"
    if (file := options.get("unk_dictionary")) is not None:
        require_file(file, "unk_dictionary")
        key["unk_dictionary"] = _content(file)
    return key


def _parser(name: str | None, of_data: str) -> str:
    """Return the parser of the text.

    Args:
        name: the parser that the user names, or None for the data's parser.
    """
    # No files are loaded from a path that the user does not name.
    if name is None and names_path(of_data):
        return of_data
    parser = load_parser(name or of_data)
    entries = parser_entries(resolve(name or of_data), parser.version, parser.digest[:16], "none")
    return ", ".join(entry.value.strip() for entry in entries.values())


def _content(path: Path) -> str:
    return f"{path.name} {digest_of(path)[:16]}"


def _digest(lines: Sequence[Line]) -> str:
    """Hash lines with their translations and parses."""
    texts = json.dumps([line[:-1] for line in lines])
    parses = (_ENCODE(_record(line.parse)) for line in lines if line.parse is not None)
    return _short((texts + "".join(f"{parse}\n" for parse in parses)).encode())


def _record(parse: Parse) -> list[Any]:
    """Return all that a parse has, in types that JSON supports."""
    if isinstance(parse, Unparsed):
        return [parse.reason, _record(parse.sentence)]
    spaces = "".join(" " if space else "-" for space in parse.space_before)
    heads = None if parse.tree is None else parse.tree.heads.tolist()
    trees = parse.constituents
    spans, labels = (None, []) if trees is None else (trees.spans.tolist(), trees.labels)
    return [parse.words, spaces, heads, parse.deprels, parse.tags, spans, labels, parse.features,
            parse.edges, parse.lost_edges, parse.expansions]  # fmt: skip


def _short(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class OutputFile:
    """A file of output, which gets its name when it is complete.

    ``FILE.partial`` has the output so far. ``FILE.key`` has the key in its first line, then a line for
    each chunk: the digest of its lines, the size of ``FILE.partial`` after it, and the digest of its
    output. A part's key stays, to be compared with the other parts.

    Attributes:
        note: the path of ``FILE.key``.
    """

    def __init__(self, path: Path, key: Key):
        self.path, self._key = path, key
        self._partial = path.with_name(f"{path.name}.partial")
        self.note = path.with_name(f"{path.name}.key")
        #: The digests of the lines of the chunks that the model reads now.
        self._begun: deque[str] = deque()
        self._finished: list[Record] = []

    @property
    def has_key(self) -> bool:
        """Whether a run of this version wrote the file, and may go on with it."""
        return self.note.is_file()

    def require_key(self) -> bool:
        """Check that existing files have this run's key; return whether the file is complete.

        Raises:
            UserError: the file was made with other options or inputs, or its key is missing.
        """
        there = self.path if self.path.is_file() else self._partial
        if not there.is_file():
            return False
        if not self.has_key:
            raise UserError(
                f"{there} is there without {self.note.name}, which records what made it: remove it, or "
                "name another --out"
            )
        recorded_key, self._finished = self._recorded()
        require_same(recorded_key, self._key, there, self._remedy(there))
        if there != self.path:
            return False
        size = self._finished[-1][1] if self._finished else 0
        if len(self._intact(self.path)) < len(self._finished) or self.path.stat().st_size != size:
            raise UserError(f"{self.path} is not as it was written: remove it and {self.note}")
        return True

    def _remedy(self, path: Path) -> str:
        return f"give the same options and files, or remove {path} and {self.note}"

    def _recorded(self) -> tuple[dict[str, str], list[Record]]:
        heading, *lines = self.note.read_bytes().split(b"\n")
        key = read_key(heading, self.note)
        try:
            records = [
                (str(digest), int(size), str(text))
                for digest, size, text in map(read_json, lines[:-1])
            ]
        except (ValueError, TypeError):
            raise damaged(self.note) from None
        return key, records

    def write(
        self,
        chunks: Chunks,
        predict: Predict,
        skipped: Callable[[int], object],
    ) -> int:
        """Write the output for the chunks that an earlier run did not reach, and give the file its name.

        Args:
            predict: yields the number of lines of each chunk, and the output for them.
            skipped: is called with the number of lines of each chunk that has its output already.

        Returns:
            The number of lines of the other chunks.

        Raises:
            UserError: an earlier run used a different key or text.
            OSError: the file cannot be written.
        """
        self.require_key()
        records = self._intact(self._partial)
        written = [as_bytes(self._key), *(json.dumps(record).encode() for record in records)]
        write_atomically(self.note, b"".join(line + b"\n" for line in written))
        count, size = 0, records[-1][1] if records else 0
        try:
            with ExitStack() as files:
                files.enter_context(named_in_errors(self._partial))
                out = files.enter_context(open(self._partial, "ab"))
                out.truncate(size)
                files.enter_context(named_in_errors(self.note))
                note = files.enter_context(open(self.note, "ab"))
                unfinished = self._unfinished(chunks, records, skipped)
                for lines, text in files.enter_context(closing(predict(unfinished))):
                    with named_in_errors(self._partial):
                        out.write(text)
                        out.flush()
                    size += len(text)
                    record = [self._begun.popleft(), size, _short(text)]
                    note.write(json.dumps(record).encode() + b"\n")
                    note.flush()
                    count += lines
        except BaseException:
            if not self._partial.is_file() or not self._partial.stat().st_size:
                self._partial.unlink(missing_ok=True)  # nothing to resume from
                self.note.unlink()
            raise
        with named_in_errors(self.path):
            os.replace(self._partial, self.path)
        return count

    def _intact(self, path: Path) -> list[Record]:
        """Return the records of the first chunks whose output a file has as it was written."""
        if not path.is_file():
            return []
        intact, before = [], 0
        with open(path, "rb") as stream:
            for record in self._finished:
                text = stream.read(max(0, record[1] - before))
                if len(text) != record[1] - before or _short(text) != record[2]:
                    break
                intact.append(record)
                before = record[1]
        return intact

    def _unfinished(
        self, chunks: Chunks, records: Sequence[Record], skipped: Callable[[int], object]
    ) -> Iterator[tuple[int, list[Line]]]:
        """Yield the chunks without output."""
        number, end = 0, 0
        for number, (first, lines) in enumerate(chunks, start=1):
            end = first + len(lines) - 1
            digest = _digest(lines)
            if number > len(records):
                self._begun.append(digest)
                yield first, lines
            elif digest == records[number - 1][0]:
                skipped(len(lines))
            else:
                raise UserError(
                    f"{self._partial} has the output for other lines than {first} to {end} of this "
                    f"text: {self._remedy(self._partial)}"
                )
        if number < len(records):
            raise UserError(
                f"{self._partial} has the output for more lines than this text, which has {end}: "
                f"{self._remedy(self._partial)}"
            )


def write_outputs(
    text_file: Path,
    shard: Shard | None,
    key: Key,
    chunks: Chunks,
    predict: Predict,
    skipped: Callable[[int], object],
) -> tuple[int, list[str]]:
    """Write the output for a text, or for a part of it. The last part joins all of them.

    Args:
        text_file: the file of the whole text.
        predict: see :meth:`OutputFile.write`, also for ``skipped``.

    Returns:
        The number of lines that the model read, and the parts that are missing.

    Raises:
        UserError: the file exists, a part or an interrupted run's output was made with other options or
            inputs, or another process writes the same file.
        OSError: a file cannot be written.
    """
    path = shard.path(text_file) if shard else text_file
    file = OutputFile(path, key)
    with only_writer(path):
        # A run that is killed at its end leaves a complete file with its key.
        is_complete = (shard is not None or file.has_key) and file.require_key()
        if text_file.exists() and not is_complete:
            raise UserError(f"{text_file} is there already: remove it, or name another --out")
        for other_shard in shard.other_shards() if shard else ():
            OutputFile(other_shard.path(text_file), key).require_key()
        count = 0 if is_complete else file.write(chunks, predict, skipped)
        if not shard:
            file.note.unlink(missing_ok=True)  # the key of a complete file
            return count, []
        return count, _join(text_file, shard, key)


def _join(text_file: Path, shard: Shard, key: Key) -> list[str]:
    """Write the output of all parts to one file; return the names of missing parts.

    Several parts may be finished at the same time, and then each of their runs writes the same file.
    """
    paths = [Shard(number, shard.parts).path(text_file) for number in range(1, shard.parts + 1)]
    if missing := [path.name for path in paths if not OutputFile(path, key).require_key()]:
        return missing
    joined = text_file.with_name(f"{shard.path(text_file).name}.joined")
    try:
        with named_in_errors(joined), open(joined, "wb") as stream:
            for path in paths:
                with open(path, "rb") as part:
                    shutil.copyfileobj(part, stream)
        if not text_file.exists():
            os.replace(joined, text_file)
        elif not filecmp.cmp(joined, text_file, shallow=False):
            raise UserError(
                f"{text_file} is there already, and its parts have other text: remove it"
            )
    finally:
        joined.unlink(missing_ok=True)
    return []
