"""Aligned graphs in Penman notation beside the text."""

import re
import sys

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.penman import PenmanFiles
from fairseq_phrase.syntax.sentence import Edge

WANT = """# ::id 1
# ::tok the boy does not want to go
(w / want-01~e.4
   :polarity -~e.3
   :ARG0~e.0 (b / boy~e.1)
   :ARG1 (g / go-02~e.6
            :ARG0 b)
   :manner (t / thing)
   :mode expressive)
"""
DOG = "# ::tok a dog that barks\n(d / dog~1 :ARG0-of (b / bark-01~3,2))\n"


def read(folder, content, *texts):
    path = folder / "train.en.penman"
    path.write_text(content)
    return list(PenmanFiles().read(path, texts))


def test_edges_of_aligned_concepts_are_read(tmp_path):
    first, second = read(
        tmp_path, f"# ::a file\n\n{WANT}\n\n{DOG}", "The boy does not want to go",
        "A dog that barks",
    )  # fmt: skip
    assert first.words == ["The", "boy", "does", "not", "want", "to", "go"]
    assert first.edges["enhanced"] == [
        Edge(4, 1, "ARG0"), Edge(4, 3, "polarity"), Edge(4, 4, "root"), Edge(4, 6, "ARG1"),
        Edge(6, 1, "ARG0"),
    ]  # fmt: skip
    assert first.lost_edges == 1  # to the thing, which no word is aligned with
    assert second.edges["enhanced"] == [Edge(1, 1, "root"), Edge(3, 1, "ARG0")]
    assert first.tree is None
    assert PenmanFiles().fields == ("words", "enhanced")


def test_edges_within_a_word_are_lost(tmp_path):
    graph = "# ::tok runner\n(p / person~e.0 :ARG0-of (r / run-02~e.0))\n"
    (sentence,) = read(tmp_path, graph, "runner")
    assert (sentence.edges["enhanced"], sentence.lost_edges) == ([Edge(0, 0, "root")], 1)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("(d / dog~e.0)\n", "the graph has no words in a comment # ::tok"),
        ("# ::tok dog\n(d / dog)\n", "no concept is aligned with a word"),
        ("# ::tok dog\n(d / dog~e.1)\n", "aligned with word 2, and # ::tok has 1 words"),
        ("# ::tok dog\n(d / dog~e.0\n", "not Penman notation: .*Unexpected end of input"),
        ("# ::tok cat\n(d / dog~e.0)\n", "word 1 is 'cat', and the text has 'dog' there"),
    ],
)
def test_a_graph_that_cannot_be_read_is_named_by_its_line_and_the_next_is_read(
    tmp_path, graph, message
):
    unparsed, good = read(tmp_path, f"\n{graph}\n{DOG}", "dog", "a dog that barks")
    assert unparsed.reason.startswith(f"{tmp_path / 'train.en.penman'}, line 2: ")
    assert re.search(message, unparsed.reason)
    assert good.words == ["a", "dog", "that", "barks"]


def test_without_its_library_the_notation_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "penman", None)
    with pytest.raises(UserError, match=r"pip install 'fairseq-phrase\[penman\]'"):
        PenmanFiles()
