"""A treebank of brackets becomes text and trees as the documentation says."""

from __future__ import annotations

import subprocess

from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.text import read_lines
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python


def test_a_treebank_becomes_text_and_trees_as_the_documentation_says(tmp_path):
    """The commands in docs/parsers.md, run on .mrg files as the Penn Treebank has them."""
    (tmp_path / "wsj_0001.mrg").write_text(
        "\n( (S \n    (NP-SBJ (NNP Mr.) (NNP Vinken) )\n    (VP (VBZ is) (-LRB- -LRB-)\n"
        "      (NP-PRD (-NONE- *)))\n    (. .) ))\n( (X (SYM Hi)))\n"
    )
    document = (REPOSITORY / "docs" / "parsers.md").read_text(encoding="utf-8")
    (script,) = [part for part in document.split("```python\n") if "one_line_each" in part]
    script = script.split("```")[0]
    subprocess.run([python(), "-c", script], cwd=tmp_path, check=True)
    texts = list(read_lines(tmp_path / "train.en"))
    assert texts == ["Mr. Vinken is ( .", "Hi"]
    sentences = list(BracketFiles().read(tmp_path / "train.en.ptb", iter(texts)))
    assert [sentence.words for sentence in sentences] == [text.split() for text in texts]
