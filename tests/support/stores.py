"""Data directories of arbitrary parses, written by the store's own writers."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.data.store.indexed import IndexedWriter, smallest_dtype
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.syntax.fields import FIELDS

SPLIT = "train.de-en"
#: What trees have: all but graphs and the labels that text itself may have.
TREE_FIELDS = [name for name, row in FIELDS.items() if row.per != "edge" and "factor" not in name]


def write_arrays(prefix, arrays, own_index=True):
    """Write arrays in the smallest type; return the paths."""
    values = np.concatenate([np.zeros(0, np.int64), *(np.asarray(a, np.int64) for a in arrays)])
    dtype = smallest_dtype(int(values.max(initial=0)), int(values.min(initial=0)))
    writer = IndexedWriter(prefix, dtype, len(arrays) if own_index else None)
    writer.append(values, np.array([len(array) for array in arrays], dtype=np.int64))
    writer.close()
    return writer.paths


def write_store(directory, sentences, fields=TREE_FIELDS, text=None):
    """Write a data directory of one split; the text's tokens are arbitrary if they are not given."""
    text = text or [np.append(np.full(len(parse["words"]), 9), 2) for parse in sentences]
    write_arrays(directory / f"{SPLIT}.de", text)
    for name in fields:
        arrays = [parse[name].reshape(-1) for parse in sentences]
        write_arrays(directory / f"{SPLIT}.de.{name}", arrays, shared_index(name, fields) is None)
    (directory / "dict.de.txt").write_text("Haus 3\n", encoding="utf-8")
    files = [path for path in directory.iterdir() if path.name.startswith(SPLIT)]
    manifest = Manifest(
        language="de",
        parser="conllu",
        parser_version="CoNLL-U",
        fields=list(fields),
        constituents="parser",
        tokenized=False,
        bpe="sentencepiece",
        bpe_model="spm.model",
        dictionary=fingerprint(directory / "dict.de.txt"),
    )
    checksums = {path.name: fingerprint(path) for path in files}
    manifest.splits[SPLIT] = SplitRecord(len(sentences), 0, 0, checksums)
    manifest.save(directory)
