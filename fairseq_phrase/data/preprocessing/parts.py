"""A training text in parts (``--parts``): each is written once, and a later run continues after the last.

The temporary files of a part, and a record with the counts behind them, are complete before its parses on
the way are deleted. When all parts are written, subwords and labels have their final numbers, and the
parts' files are made one part after the other.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairseq_phrase.data.preprocessing import parsing
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.parsing import Corpus
from fairseq_phrase.data.preprocessing.split_writer import (
    JobStream,
    Split,
    Totals,
    listing,
    parse_and_write,
)
from fairseq_phrase.data.preprocessing.staging import WRITTEN, StagingArea
from fairseq_phrase.data.store.indexed import Spills
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.line_ranges import LineRanges
from fairseq_phrase.data.store.outputs import (
    Key,
    as_bytes,
    damaged,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of, read_json, written_together

#: Options that a later run may change, with the reasons. All others are part of the key.
FREE = {
    "directory": "where the parts are",
    "splits": "the key has the content of the texts",
    "engine": "the parses do not depend on it",
    "max_flat": "only decides whether a run stops",
    "allow_difference": "only decides whether a run stops",
    "allowed": "follows from allow_difference",
    "labeldict": "the key has the content of the dictionaries",
}
# Values that stop a run at lines which other values leave out. What was written before has no such lines.
_STRICTEST = {"on_error": "stop", "strict": "True"}


def blocks_of_parts(corpus: Corpus) -> list[range]:
    """Return the blocks of each part of a text, from 0.

    Raises:
        UserError: the text is too short.
    """
    parts, count = corpus.parts, -(-corpus.lines // parsing.SHARD_LINES)
    if count < parts:
        advice = "--parts 1 or none" if count == 1 else f"--parts {count}"
        raise UserError(
            f"--parts {parts}: {corpus.path} has {corpus.lines} lines, and a part has at least "
            f"{parsing.SHARD_LINES}: give {advice}"
        )
    ends = range(0, corpus.blocks + 1, max(1, corpus.blocks // parts))
    return [range(*pair) for pair in pairwise(ends)]


def key_of(
    options: Options, corpora: Iterable[Corpus], pipelines: Mapping[str, ParsingPipeline]
) -> Key:
    """Return the key of a run: all that its files depend on."""
    key = {field.name: _text_of(vars(options)[field.name]) for field in fields(Options)}
    key |= {f"text of {corpus.name}": corpus.fingerprint[:16] for corpus in corpora}
    for language, pipeline in pipelines.items():
        key[f"parser of {language}"] = f"{pipeline.parser.version} {pipeline.parser.digest[:16]}"
    if options.label_folder is not None:
        files = (options.label_folder / file for file in with_labels(FIELDS).values())
        existing = [path for path in files if path.is_file()]
        key["label dictionaries"] = digest_of(*existing)[:16] if existing else "none"
    key["list_left_out"] = str(options.list_left_out is not None)
    key["lines of a block"] = str(parsing.SHARD_LINES)
    return {name: value for name, value in key.items() if name not in FREE}


def _text_of(value: Any) -> str:
    return digest_of(value)[:16] if isinstance(value, Path) and value.is_file() else str(value)


class WholeRun:
    """A run without parts: nothing that is written stays for a later run."""

    def write(
        self, options: Options, splits: Sequence[Split], totals: Totals, folder: Path
    ) -> None:
        """Parse and write all splits; see :func:`parse_and_write`."""
        parse_and_write(options, splits, totals, folder)

    def is_finished(self, split: Split) -> bool:
        """Return whether the files of a split are finished."""
        return False

    def finish(self, split: Split) -> None:
        """Do nothing: no record of the split is needed."""

    def record(self, number: int, parts: int) -> dict[str, str]:
        """Return what a manifest records of a part: nothing."""
        return {}


class WrittenParts:
    """The splits that a run has written so far, in ``DIR/.partial/written``.

    Args:
        area: its ``written`` is the folder.
        key: the key of the run.

    Raises:
        UserError: the folder is of another key.
    """

    def __init__(self, area: StagingArea, key: Key):
        self._folder, self._key = area.written, key
        note = self._folder / "key.json"
        if note.is_file():
            recorded = read_key(note.read_bytes(), note)
            loosened = {
                name: key[name] for name, value in _STRICTEST.items() if recorded.get(name) == value
            }
            remedy = f"give the same options and text, or remove {self._folder.parent}"
            require_same({**recorded, **loosened}, key, self._folder, remedy)
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(note, as_bytes(key))

    def _path(self, split: Split, suffix: str = "") -> Path:
        return self._folder / f"{split.name}.{split.part}{suffix}"

    def list_of(self, split: Split) -> Path:
        """Return the path of the list of a split's lines that are left out."""
        return self._path(split, ".left_out")

    def begin(self, split: Split) -> None:
        """Open the writers of a split."""
        folder = self._path(split)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        split.open(Spills(folder))

    def save(self, split: Split, *, is_finished: bool = False) -> None:
        """Record that a split is written, with its counts, or that its files are finished."""
        sides = [
            {"subwords": side.subwords, "labels": side.labels, "checksums": side.checksums}
            for side in split.sides
        ]
        record = {
            "sides": sides,
            "counts": split.counts.as_dict(),
            "left_out": {kind: str(lines) for kind, lines in split.left_out.items()},
            "changed": split.changed,
            "is_finished": is_finished,
        }
        write_atomically(self._path(split, WRITTEN), json.dumps(record).encode("ascii"))

    def load(self, split: Split) -> bool | None:
        """Read the record of a split, and open its writers again.

        Returns:
            Whether its files are finished; None if the split is not written.

        Raises:
            UserError: the record is damaged.
        """
        path = self._path(split, WRITTEN)
        if not path.is_file():
            return None
        try:
            record = read_json(path.read_bytes())
            split.counts = SplitCounts.from_dict(record["counts"])
            for kind, lines in record["left_out"].items():
                split.left_out[kind] = LineRanges(lines)
            split.changed.update(record["changed"])
            spills = Spills(self._path(split), are_complete=True, are_kept=True)
            for side, saved in zip(split.sides, record["sides"], strict=True):
                side.checksums = saved["checksums"]
                side.subwords, side.labels = saved["subwords"], saved["labels"]
                if not record["is_finished"]:
                    side.open(spills, side.subwords, side.labels)
            return bool(record["is_finished"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise damaged(path) from None

    def write(
        self, options: Options, splits: Sequence[Split], totals: Totals, folder: Path
    ) -> None:
        """Parse and write the splits that are not yet written; see :func:`write_parts`."""
        write_parts(options, splits, totals, folder, self)

    def is_finished(self, split: Split) -> bool:
        """Return whether the files of a split are finished; if not, open its writers again."""
        return bool(self.load(split))

    def record(self, number: int, parts: int) -> dict[str, str]:
        """Return what a manifest records of a part."""
        texts = {
            name: value for name, value in self._key.items() if name.startswith("text of train")
        }
        return {
            "number": str(number),
            "of": str(parts),
            "text": hashlib.sha256(as_bytes(texts)).hexdigest()[:16],
            "run": hashlib.sha256(as_bytes(self._key)).hexdigest()[:16],
        }

    def finish(self, split: Split) -> None:
        """Record that a split's files are finished, and delete its temporary files."""
        self.save(split, is_finished=True)
        shutil.rmtree(self._path(split))


def write_parts(
    options: Options, splits: Sequence[Split], totals: Totals, folder: Path, parts: WrittenParts
) -> None:
    """Parse and write the splits that are not yet written, one after the other, and count all.

    The parses of a split are deleted once it is written.

    Args:
        folder: the folder of finished parses.
    """
    streams: dict[str, JobStream] = {}
    skipped: Counter[str] = Counter()
    flat: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for split in splits:
        name, blocks = split.name, split.number_of_blocks
        if parts.load(split) is not None:
            skipped[name] += blocks or 0
        else:
            if name not in streams:
                streams[name] = JobStream(split.texts, options, folder)
                streams[name].skip(skipped[name])
            split.flat_before = flat[name]
            parts.begin(split)
            with listing(options.list_left_out and parts.list_of(split)) as list_line:
                split.write(options, streams[name].read(blocks), list_line)
            split.complete()
            parts.save(split)
            streams[name].forget()
        flat[name] = flat[name] + split.counts.flat
        totals.add(split)
        split.close()
    if options.list_left_out is not None:
        _join([parts.list_of(split) for split in splits], options.list_left_out)


def _join(lists: Sequence[Path], path: Path) -> None:
    """Join lists of lines that are left out; only the first heading is kept."""
    with written_together(path.parent) as folder, open(folder / path.name, "wb") as joined:
        for number, part_path in enumerate(lists):
            with open(part_path, "rb") as stream:
                heading = stream.readline()
                if not number:
                    joined.write(heading)
                shutil.copyfileobj(stream, joined)
