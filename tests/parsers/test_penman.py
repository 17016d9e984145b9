"""Aligned graphs in Penman notation beside the text."""

import re
import sys
import time

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import Unparsed
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
    "alignments",
    ["4-1 3-1.1 0-1.2.r 1-1.2 6-1.3", "4-5|0 3-4|0.0 1-2|0.1 6-7|0.2 *0-1|0.1 ::annotator x"],
)
def test_alignments_in_a_comment_are_those_in_the_graph(tmp_path, alignments):
    text = "the boy does not want to go"
    (expected,) = read(tmp_path, WANT, text)
    bare = re.sub(r"~e\.[0-9]", "", WANT)
    (sentence,) = read(tmp_path, f"# ::alignments {alignments}\n{bare}", text)
    assert sentence == expected


def test_isi_numbers_repeated_variables_and_jamr_does_not(tmp_path):
    graph = "(w / want :ARG0 (d / dog) :ARG1 (b / bark :ARG0 d :manner (l / loud)))\n"
    for alignments in ("3-1.2.2 2-1.2 3-1.2", "3-4|0.1.0 2-4|0.1"):
        comments = f'# ::tokens ["dogs", "want", "bark", "loud"]\n# ::alignments {alignments}\n'
        (sentence,) = read(tmp_path, comments + graph, "dogs want bark loud")
        assert sentence.edges["enhanced"] == [Edge(2, 3, "manner")]


@pytest.mark.parametrize(("token", "word"), [("", "_"), ("\u2003", "_"), ("a b", "a▁b")])
def test_a_token_has_no_white_space_and_is_not_empty(tmp_path, token, word):
    graph = f'# ::tokens ["{token}", "dog"]\n(d / dog~e.1)\n'
    (sentence,) = read(tmp_path, graph, f"{token} dog")
    assert sentence.words == [word, "dog"]


def test_graphs_need_no_blank_line_between_them(tmp_path):
    bracket = '# ::tok a (\n(n / name~e.0\n:op1\n(s / "("~e.1))\n'
    sentences = read(tmp_path, DOG + bracket + DOG, "a dog that barks", "a (", "a dog that barks")
    assert [len(sentence.edges["enhanced"]) for sentence in sentences] == [2, 2, 2]


@pytest.mark.parametrize("concept", ["bark", "bark~e.0"])
def test_a_file_that_fits_nowhere_is_refused_in_seconds(tmp_path, concept):
    words = [f"the dog with number {number} barks for a long time" for number in range(150)]
    graphs = [f"# ::tok {line} .\n(b / {concept})\n" for line in words]
    start = time.process_time()
    sentences = read(tmp_path, "\n".join(graphs), *(f"{line} ?" for line in words))
    assert all(isinstance(sentence, Unparsed) for sentence in sentences)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("(d / dog~e.0)\n", "the graph has no words in a comment # ::tok"),
        ("# ::tokens null\n(d / dog~e.0)\n", "word 1 is 'null'"),
        ("# ::tok dog\n(d / dog)\n", "no concept is aligned with a word, .*amrlib's FAA_Aligner"),
        ("# ::tok dog\n# ::alignments 0-1.r\n(d / dog)\n", "no concept is aligned with a word"),
        ("# ::tok dog\n# ::node\t1\tdog\t0-1\n(d / dog)\n", "without --no-isi"),
        ("# ::tok dog\n# ::alignments 0-1.1\n(d / dog)\n", "has 1.1, which is not in the graph"),
        (
            "# ::tok dog\n# ::alignments 0:d\n(d / dog)\n",
            "has '0:d', expected ISI's 4-1.2 or JAMR's",
        ),
        ("# ::tok dog\n(d / dog~e.1)\n", "aligned with word 2, and the graph has 1 words"),
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
    with pytest.raises(UserError, match="pip install penman"):
        PenmanFiles()
