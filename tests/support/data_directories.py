"""Copies of a data directory's validation set that tests may damage."""

from __future__ import annotations

import json
import shutil

from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.store.manifest import fingerprint
from fairseq_phrase.syntax.fields import FIELDS
from tests.support.stores import write_arrays

SPLIT = "valid.de-en"


def copied(data_directory, folder):
    """A copy of the data directory's valid split with its manifest and dictionaries."""
    folder.mkdir()
    for path in data_directory.iterdir():
        if not path.name.startswith(("train", "test")):
            shutil.copy(path, folder)
    path = folder / "syntax.de.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["splits"] = {SPLIT: content["splits"][SPLIT]}
    path.write_text(json.dumps(content))
    return folder


def sign(directory):
    """Let the manifest vouch for the files as they are now."""
    path = directory / "syntax.de.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    checksums = content["splits"][SPLIT]["checksums"]
    for name in checksums:
        checksums[name] = fingerprint(directory / name)
    path.write_text(json.dumps(content))


def rewrite(directory, name, change):
    """Write a field's arrays anew, as ``change`` makes them from a list of them."""
    prefix = directory / f"{SPLIT}.de"
    index = shared_index(name, FIELDS)
    reader = IndexedReader(
        prefix if name == "text" else f"{prefix}.{name}", f"{prefix}.{index}" if index else None
    )
    rows = [reader[number].tolist() for number in range(len(reader))]
    change(rows)
    write_arrays(reader.prefix, rows, own_index=index is None)
