"""Real treebanks, where they are at hand."""

from __future__ import annotations

import zipfile

import pytest

from fairseq_phrase.syntax.brackets import tree_blocks
from tests.support.repository import shared_data


def ptb_trees():
    """The trees of the Penn Treebank sample, on one line each, where it is at hand."""
    folder = shared_data("ptb_sample")
    if folder is None:
        pytest.skip("no Penn Treebank sample here")
    with zipfile.ZipFile(folder / "nltk_treebank_sample.zip") as sample:
        for name in sorted(sample.namelist()):
            if name.endswith(".mrg"):
                lines = sample.read(name).decode("ascii").splitlines()
                yield from (" ".join(tree.split()) for _, tree in tree_blocks(lines))
