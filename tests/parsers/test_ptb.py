"""Files of bracketed trees beside the text: leaves are found in it, and what does not fit is named."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.syntax.brackets import parse_brackets, unescaped
from fairseq_phrase.syntax.spellings import fold
from fairseq_phrase.text import read_lines
from tests.support.hostile import constituents, lines
from tests.support.repository import shared_data
from tests.support.treebanks import ptb_trees
from tests.twins.brackets import format_brackets


def read(folder, brackets, texts):
    path = folder / "train.en.ptb"
    path.write_bytes("".join(f"{line}\n" for line in brackets).encode())
    return list(BracketFiles().read(path, iter(texts)))


def test_words_tags_and_constituents_are_read(tmp_path):
    (sentence,) = read(
        tmp_path, ["(S (NP (DT The) (NN dog)) (VP (VBZ runs)) (. .))"], ["The dog runs."]
    )
    assert sentence.words == ["The", "dog", "runs", "."]
    assert sentence.space_before == [True, True, True, False]
    assert sentence.tags == ["DT", "NN", "VBZ", "."]
    assert sentence.constituents.labels == ["NP", "VP", "S"]
    assert sentence.tree is None
    assert sentence.deprels == []


@pytest.mark.parametrize(
    ("leaves", "text", "words"),
    [
        ("-LRB- a -RRB-", "(a)", ["(", "a", ")"]),
        ("-LRB- a -RRB-", "-LRB- a -RRB-", ["-LRB-", "a", "-RRB-"]),
        (r"1\/2 \*", "1/2 *", ["1/2", "*"]),
        (r"1\/2", r"1\/2", [r"1\/2"]),
        (r":\) x\(s\)", ":) x(s)", [":)", "x(s)"]),
        (r"\) a", r"\) a", [r"\)", "a"]),
        (":-RRB- x", ":) x", [":)", "x"]),
        ("`` Hi ''", '"Hi"', ['"', "Hi", '"']),
        ("`` Hi ''", "„Hi“", ["„", "Hi", "“"]),
        ("`` Hi ''", "“Hi”", ["“", "Hi", "”"]),
        ("`` Hi ''", "`` Hi ''", ["``", "Hi", "''"]),
        ("` Hi '", "‘Hi’", ["‘", "Hi", "’"]),
        ("a -- b ...", "a – b…", ["a", "–", "b", "…"]),
        ("a b", " a\u00a0\u2028 b\u3000", ["a", "b"]),
        ("10\u00a0000 b", "10\u00a0000 b", ["10▁000", "b"]),
        ("a\u2028b", "a\u2028b", ["a▁b"]),
        ("👩‍👩‍👧‍👦 שלום \0", "👩‍👩‍👧‍👦שלום\0", ["👩‍👩‍👧‍👦", "שלום", "\0"]),
    ],
)
def test_words_are_spelled_as_in_the_text(tmp_path, leaves, text, words):
    brackets = "(S " + " ".join(f"(X {leaf})" for leaf in leaves.split(" ")) + ")"
    (sentence,) = read(tmp_path, [brackets], [text])
    assert sentence.words == words
    assert sentence.constituents.num_words == len(words)


@pytest.mark.parametrize(
    ("brackets", "text", "message"),
    [
        ("(S (X a) (X c))", "a b", "column 13: word 2 is 'c', and the text has 'b' there"),
        ("(S (X a) (X b))", "a", "word 2 is 'b', and the text has no more words there"),
        ("(S (X a))", "a b c", "ends after its 1 words, and the text goes on: 'b c'"),
        ("(S (-NONE- *))", "a", "a tree without words, for 'a'"),
        ("(S (X a)", "a", "column 1: this bracket is never closed"),
        ("(S (X a)) b", "a b", "column 11: 'b' is outside"),
        ("(N\u00a0P (X a))", "a", "the label .* contains white space"),
        ("(N P (X a))", "a", "word 1 is 'P', and the text has 'a' there"),
        ("(())", "a", "column 2: an empty tree"),
        ("(S (X ()) (X a))", "( a", "an empty tree, .*; brackets as words are -LRB- and -RRB-"),
        ("((X a) (X b))(X c))", "a b c", "column 19: a closing bracket without an opening one"),
        ("(S ((X a) (X b)))", "a b", "column 4: an inner node without a label"),
        ("(S (X ) (X b))", "b", "column 4: an empty tree"),
        (
            "(S (X a(b)) (X c))",
            "a(b) c",
            "column 8: an empty tree, expected words in it or after b; brackets as words are -LRB- and",
        ),
        ("[S [X a]]", "a", "'.S' is outside all brackets"),
        ("1\t(S (X a))", "a", "column 1: '1' is outside all brackets"),
        ("()", "a", "column 1: an empty tree"),
        ("null", "a", "'null' is outside all brackets"),
    ],
)
def test_a_malformed_tree_is_named_by_line_and_the_next_is_read(tmp_path, brackets, text, message):
    good = "(S (X good))"
    unparsed, sentence = read(tmp_path, [good, brackets, good], ["good", text, "good"])[1:]
    assert isinstance(unparsed, Unparsed)
    assert unparsed.reason.startswith(f"{tmp_path / 'train.en.ptb'}, line 2")
    assert re.search(message, unparsed.reason)
    assert unparsed.sentence.words == text.split()
    assert sentence.words == ["good"]


def test_lines_without_text_have_lines_without_brackets(tmp_path):
    sentences = read(tmp_path, ["", "(NN a)", " "], ["", "a", "\u3000"])
    assert [sentence.words for sentence in sentences] == [[], ["a"], []]
    assert all(len(sentence.constituents) == 0 for sentence in sentences)


@pytest.mark.parametrize(
    ("trees", "texts", "message"),
    [
        (2, 1, r"train\.en\.ptb, line 2: there are more trees here than lines in the text"),
        (1, 0, "line 1: there are more trees"),
    ],
)
def test_more_trees_than_lines_are_refused(tmp_path, trees, texts, message):
    with pytest.raises(UserError, match=message):
        read(tmp_path, ["(NN a)"] * trees, ["a"] * texts)


def test_an_empty_line_for_text_is_a_missing_tree(tmp_path):
    good, missing, last = read(tmp_path, ["(X good)", "", "(X a)"], ["good", "b", "a"])
    assert (good.words, last.words) == (["good"], ["a"])
    assert "train.en.ptb, line 3: a tree is missing before this one: line 2" in missing.reason


def test_brackets_as_treebanks_have_them(tmp_path):
    brackets = [
        "(VROOT (NP (ART-NK the) (NN cat)) ($( -) (S ($( () (PPER it) ($( ))) ($, ,))",
        "( (IP-HLN (NR 中) (VP (VV 签订) (NP-OBJ (-NONE- *pro*)))) )",
        "(NP  (NN\t(Kera)) (SBAR (SC\t(untuk)) (S (NP-SBJ  (*-1)) (VP (VB (a)) (NN (New York))))))",
        "(S (NP-SBJ (*)) (VP (VB go) (X 0)) (SBAR (0) (NN now)))",
        "( (S",
        "    (NN two)",
        "    (NN lines)))",
        "(S (CD 0) (SYM *))",
    ]
    texts = ["the cat - (it) ,", "中签订", "Kera untuk a new york", "go now", "two lines", "0 *"]
    sentences = read(tmp_path, brackets, texts)
    for sentence in sentences:
        assert not isinstance(sentence, Unparsed), sentence.reason
    assert [sentence.words for sentence in sentences] == [
        ["the", "cat", "-", "(", "it", ")", ","], ["中", "签订"],
        ["Kera", "untuk", "a", "new", "york"], ["go", "now"], ["two", "lines"], ["0", "*"],
    ]  # fmt: skip
    assert sentences[0].tags == ["ART", "NN", "$(", "$(", "PPER", "$(", "$,"]
    assert sentences[2].tags == ["NN", "SC", "VB", "X", "X"]
    assert sentences[2].constituents.labels == ["NN", "VP", "S", "SBAR", "NP"]
    assert sentences[3].constituents.labels == ["VP", "SBAR", "S"]


@pytest.mark.parametrize(
    ("brackets", "text", "words", "labels"),
    [
        (["\ufeff(S (X a) (X b))"], "a b", "a b", "S"),
        (["(S", "  (X a)", "  (NP", "    (X b)", "  )", ")"], "a b", "a b", "NP S"),
        (["(TOP (S (NP (NP (NP (X a)))) (X b)))"], "a b", "a b", "NP NP NP S TOP"),
        (["( (S\t(X\ta)\t(X\tb)) )"], "ab", "a b", "S"),
        (
            ["(S (NP (NP (-NONE- *)) (SBAR (-NONE- 0) (S (-NONE-SBJ=1 *T*-1)))) (V a) (NP 0))"],
            "a", "a", "S",
        ),
        (["(S a (X b) c)"], "a b c", "a b c", "S"),
        (["(S (X a)) (S (X b))"], "a b", "a b", "S S ROOT"),
        (["(NP-SBJ-1=2 (X|Y a) (=x b))"], "a b", "a b", "NP"),
    ],
)  # fmt: skip
def test_unusual_trees_are_read(tmp_path, brackets, text, words, labels):
    good, sentence, last = read(tmp_path, ["(X a)", *brackets, "(X a)"], ["a", text, "a"])
    assert not isinstance(sentence, Unparsed), sentence.reason
    assert sentence.words == words.split()
    assert sentence.constituents.labels == labels.split()
    assert good.words == last.words == ["a"]


def test_a_position_in_a_tree_of_several_lines_is_one_of_the_file(tmp_path):
    unparsed, broken = read(
        tmp_path, ["(S (X a)", "  (X", "   b))", "(S (X c)", "  (Y))"], ["a x", "c"]
    )
    assert (
        "train.en.ptb, line 3, column 4: word 2 is 'b', and the text has 'x' there"
        in unparsed.reason
    )
    assert "train.en.ptb, line 5, column 3: an empty tree, expected words" in broken.reason


def test_a_tree_may_have_blank_lines_and_one_that_is_not_closed_ends_before_the_next(tmp_path):
    trees = ["(S (X a)", "", "  (X b))", "(S (X c)", "", "(Y d)"]
    sentence, broken, last = read(tmp_path, trees, ["a b", "c", "d"])
    assert sentence.words == ["a", "b"]
    assert "train.en.ptb, line 4, column 1: this bracket is never closed" in broken.reason
    assert last.words == ["d"]


def test_trees_on_several_lines_that_spell_a_line_are_joined(tmp_path):
    (sentence,) = read(tmp_path, ["(S (X a) (X b))", "(S (X c) (X d))"], ["a b C d"])
    assert sentence.words == ["a", "b", "C", "d"]
    assert sentence.constituents.labels == ["S", "S", "ROOT"]


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_tree(tmp_path):
    path = tmp_path / "train.en.ptb"
    path.write_bytes("\ufeff(NN a)\r\n(NN b)\r\n".encode())
    sentences = list(BracketFiles().read(path, iter(["a", "b"])))
    assert [sentence.words for sentence in sentences] == [["a"], ["b"]]


@given(constituents(), st.data())
def test_any_words_are_found_again_in_their_text(tmp_path_factory, tree, data):
    # Characters that comparisons ignore, such as control characters, may belong to either neighbour.
    texts = lines(2).map(
        lambda text: "".join(character for character in text if len(fold(f"i{character}")[0]) > 1)
    )
    texts = texts.map(lambda text: text.replace("\\", "").replace("-LRB-", ""))
    words = [data.draw(texts) or "x" for _ in range(tree.num_words)]
    spaces = [True, *(data.draw(st.booleans()) for _ in words)][: len(words)]
    text = "".join(" " * space + word for word, space in zip(words, spaces, strict=True))
    brackets = format_brackets(words, ["X"] * len(words), tree)
    (sentence,) = read(tmp_path_factory.getbasetemp(), [brackets], [text])
    assert not isinstance(sentence, Unparsed), sentence.reason
    assert sentence.words == words
    assert sentence.space_before == spaces
    assert sentence.constituents == parse_brackets(brackets).tree


def test_a_line_of_a_hundred_thousand_words_takes_seconds(tmp_path):
    start = time.process_time()
    (sentence,) = read(tmp_path, ["(S" + " (NN dog)" * 100_000 + ")"], ["dog " * 100_000])
    assert len(sentence.words) == sentence.constituents.num_words == 100_000
    assert time.process_time() - start < 20


@pytest.mark.slow
def test_the_whole_penn_treebank_sample_is_read(tmp_path):
    trees = list(ptb_trees())
    texts = [" ".join(map(unescaped, parse_brackets(tree).words)) for tree in trees]
    sentences = read(tmp_path, trees, texts)
    assert len(sentences) == 3914
    for sentence, text in zip(sentences, texts, strict=True):
        assert not isinstance(sentence, Unparsed), sentence.reason
        assert sentence.words == text.split()
        assert len(sentence.constituents) > 0


def test_the_sentiment_treebank_is_read(tmp_path):
    folder = shared_data("sst")
    if folder is None:
        pytest.skip("no Stanford Sentiment Treebank here")
    trees = list(read_lines(folder / "test.txt.gz"))
    texts = [" ".join(map(unescaped, parse_brackets(tree).words)) for tree in trees]
    for sentence, text in zip(read(tmp_path, trees, texts), texts, strict=True):
        assert not isinstance(sentence, Unparsed), sentence.reason
        assert sentence.words == text.split()


def test_words_with_numbers_and_equals_signs_are_words(tmp_path):
    (sentence,) = read(tmp_path, ["(S (X 0=1) (X and) (X 1=1))"], ["0=1 and 1=1"])
    assert sentence.words == ["0=1", "and", "1=1"]


def test_features_and_lines_of_markup_are_no_part_of_a_tree(tmp_path):
    trees = ["<DOC>", "<S ID=1>", "( (IP##x=y## (NR##a=b## 中)", "   (VV 签)) )", "</S>", "</DOC>"]
    (sentence,) = read(tmp_path, trees, ["中签"])
    assert (sentence.words, sentence.tags) == (["中", "签"], ["NR", "VV"])
    (broken,) = read(tmp_path, [*trees[:3], "</S>"], ["中签"])
    assert "line 3, column 3: this bracket is never closed" in broken.reason
