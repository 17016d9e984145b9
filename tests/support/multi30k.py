"""Multi30k's files, with other text."""

from __future__ import annotations

import gzip
from pathlib import Path


def multi30k_of(synthetic_corpus: Path, folder: Path) -> None:
    """The synthetic corpus under the names of Multi30k, with two test sets."""
    folder.mkdir()
    names = ("train", "val", "test_2016_flickr", "test_2017_mscoco")
    for name, split in zip(names, ("train", "valid", "test", "valid"), strict=True):
        for language in ("de", "en"):
            text = (synthetic_corpus / f"{split}.{language}").read_bytes()
            (folder / f"{name}.{language}.gz").write_bytes(gzip.compress(text))
