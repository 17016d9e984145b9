"""A treebank of brackets becomes text and trees as the documentation says."""

from __future__ import annotations

from subprocess import run

from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.text import read_lines
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python


def test_a_treebank_becomes_text_and_trees_as_the_documentation_says(tmp_path):
    """The command in docs/parsers.md, run on a .mrg file as the Penn Treebank has them."""
    (tmp_path / "wsj_0001.mrg").write_text(
        "\n( (S \n    (NP-SBJ (NNP Mr.) (NNP Vinken) )\n    (VP (VBZ is) (-LRB- -LRB-)\n"
        "      (NP-PRD (-NONE- *)))\n    (. .) ))\n( (X (SYM Hi)))\n"
    )
    run(
        [python(), REPOSITORY / "scripts" / "labelled_text.py", "ptb", tmp_path, tmp_path],
        check=True,
    )
    texts = list(read_lines(tmp_path / "test.en"))
    assert texts == ["Mr. Vinken is ( .", "Hi"]
    sentences = list(BracketFiles().read(tmp_path / "test.en.ptb", iter(texts)))
    assert [sentence.words for sentence in sentences] == [text.split() for text in texts]
