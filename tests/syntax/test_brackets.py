"""Bracketed trees: what is read of them, what is refused, and that they come back as they went."""

import itertools
import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairseq_phrase.syntax.brackets import parse_brackets, tree_blocks, unescaped
from fairseq_phrase.text import read_lines
from tests.support.hostile import SNIPPETS, constituents, lines
from tests.support.repository import shared_data
from tests.support.treebanks import ptb_trees
from tests.twins.brackets import escaped, format_brackets


def triples(sentence):
    tree = sentence.tree
    return [(s, e, label) for (s, e), label in zip(tree.spans.tolist(), tree.labels, strict=True)]


def nested(tokens):
    """Brackets as lists in lists, by recursion."""
    items = []
    while tokens and (token := tokens.pop(0)) != ")":
        items.append(nested(tokens) if token == "(" else token)
    return items


def read_by_recursion(line):
    """The words, tags and constituents of trees that have preterminals, without function tags."""
    words, tags, spans = [], [], []

    def read(node):
        label, *children = node if isinstance(node[0], str) else ["", *node]
        label = label if label.startswith("-") else re.sub(r"(?<=.)[-=|].*", "", label)
        start = len(words)
        if len(children) == 1 and isinstance(children[0], str):
            if label != "-NONE-":
                words.append(children[0])
                tags.append(label)
            return
        for child in children:
            read(child)
        if len(words) > start and label:
            spans.append((start, len(words), label))

    for tree in nested(line.replace("(", " ( ").replace(")", " ) ").split()):
        read(tree)
    return words, tags, sorted(spans, key=lambda span: (span[1], -span[0]))


@st.composite
def bracketed(draw):
    """Words, tags and a tree over them."""
    tree = draw(constituents())
    texts = st.one_of(st.sampled_from(SNIPPETS), lines(2)).map(lambda text: "".join(text.split()))
    words = [draw(texts) or "x" for _ in range(tree.num_words)]
    tags = [draw(st.sampled_from(["DT", "NN", "-LRB-", "PRP$", "``", ":", "X"])) for _ in words]
    return words, tags, tree


@given(bracketed())
def test_a_tree_comes_back_from_its_brackets(sentence):
    words, tags, tree = sentence
    line = format_brackets(words, tags, tree)
    again = parse_brackets(line)
    assert again.words == [escaped(word) for word in words]
    assert again.tags == tags
    covered = [word for start, end in tree.spans for word in range(start, end)]
    tops = (tree.parents < 0).sum() + len(set(range(len(words))) - set(covered))
    root = [(0, len(words), "ROOT")] if tops > 1 else []  # over several trees
    spans = zip(tree.spans.tolist(), tree.labels, strict=True)
    assert triples(again) == [(start, end, label) for (start, end), label in spans] + root


@given(lines() | st.text("()ab -NONE", max_size=30))
@example("((S (NN a))")
@example("(S (NN (a)))")
def test_any_line_is_read_or_refused_with_its_column(line):
    sentence = refusal = None
    try:
        sentence = parse_brackets(line)
    except ValueError as error:
        refusal = str(error)
    if sentence is None:
        assert refusal.startswith("column ")
    else:
        assert len(sentence.words) == len(sentence.tags) == sentence.tree.num_words
        assert line.count("(") == line.count(")")


@given(st.lists(st.sampled_from(["(", ")", "(S ", "(NN a)", " b "]), max_size=12).map("".join))
def test_brackets_that_do_not_balance_are_refused(line):
    depth = lowest = 0
    for character in line:
        depth += {"(": 1, ")": -1}.get(character, 0)
        lowest = min(lowest, depth)
    if depth or lowest:
        with pytest.raises(ValueError, match="column"):
            parse_brackets(line)


@pytest.mark.parametrize(
    ("line", "words", "tags", "constituents"),
    [
        ("", [], [], []),
        ("(NN dog)", ["dog"], ["NN"], []),
        ("(NP (NN dog))", ["dog"], ["NN"], [(0, 1, "NP")]),
        ("(S(NP(DT the)(NN dog))(VBZ runs))", ["the", "dog", "runs"], ["DT", "NN", "VBZ"],
         [(0, 2, "NP"), (0, 3, "S")]),
        ("(S (NP (NP (NN a))) (VP b))", ["a", "b"], ["NN", "VP"],
         [(0, 1, "NP"), (0, 1, "NP"), (0, 2, "S")]),
        ("(NP the (NN dog))", ["the", "dog"], ["X", "NN"], [(0, 2, "NP")]),
        ("(NP the dog)", ["the", "dog"], ["X", "X"], [(0, 2, "NP")]),
        ("( (S (NN a) (NN b)) )", ["a", "b"], ["NN", "NN"], [(0, 2, "S")]),
        ("(S (NN a) (NN b)) (S (NN c))", ["a", "b", "c"], ["NN"] * 3,
         [(0, 2, "S"), (2, 3, "S"), (0, 3, "ROOT")]),
        ("( (S (NN a)) (S (NN b)) )", ["a", "b"], ["NN"] * 2,
         [(0, 1, "S"), (1, 2, "S"), (0, 2, "ROOT")]),
        ("(NN a) (NN b)", ["a", "b"], ["NN"] * 2, [(0, 2, "ROOT")]),
        ("(3 (2 It) (4 (4 (2 's) (4 fun)) (2 .)))", ["It", "'s", "fun", "."], list("2242"),
         [(1, 3, "4"), (1, 4, "4"), (0, 4, "3")]),
        # Function tags and indices
        ("(S-TPC-1 (NP-SBJ=2 (NN-X a)) (ADVP|PRT b))", ["a", "b"], ["NN", "ADVP"],
         [(0, 1, "NP"), (0, 2, "S")]),
        ("(S (-LRB- -LRB-) (PRP$ his) (-RRB- -RRB-))", ["-LRB-", "his", "-RRB-"],
         ["-LRB-", "PRP$", "-RRB-"], [(0, 3, "S")]),
        # Empty elements
        ("(S (NP-SBJ (-NONE- *-1)) (VP (VB go)))", ["go"], ["VB"], [(0, 1, "VP"), (0, 1, "S")]),
        ("(S (-NONE- 0))", [], [], []),
        ("( (S (NN a)) (-NONE- *) )", ["a"], ["NN"], [(0, 1, "S")]),
        ("(S (NN a)) (S (-NONE- *))", ["a"], ["NN"], [(0, 1, "S")]),
        # Marks and identifiers of historical corpora
        ("( (S (CODE <P_1>) (N a) (CODE {ED:b})) (ID c,1))", ["a"], ["N"], [(0, 1, "S")]),
        ("(S (ID a) (CODE b))", ["a", "b"], ["ID", "CODE"], [(0, 2, "S")]),
        ("( (ID a))", ["a"], ["ID"], []),
        ("(CODE (-NONE- *))", [], [], []),
        # Brackets as words
        ("(S (-LRB- () (N a) (-RRB- )))", ["(", "a", ")"], ["-LRB-", "N", "-RRB-"], [(0, 3, "S")]),
        (r"(S (X :\)) (X \() (X a\(b\)))", [r":\)", r"\(", r"a\(b\)"], ["X"] * 3, [(0, 3, "S")]),
        ("(S (X \\) (X a))", ["\\", "a"], ["X", "X"], [(0, 2, "S")]),
        # White space outside ASCII is text
        ("(NP (CD 10\u00a0000) (NN \u2028x))", ["10\u00a0000", "\u2028x"], ["CD", "NN"],
         [(0, 2, "NP")]),
        ("\t(NP\t(NN  a)\r)", ["a"], ["NN"], [(0, 1, "NP")]),
    ],
)  # fmt: skip
def test_a_line_is_read(line, words, tags, constituents):
    sentence = parse_brackets(line)
    assert (sentence.words, sentence.tags, triples(sentence)) == (words, tags, constituents)


@pytest.mark.parametrize(
    "operator",
    [
        "<=", "!=", "+=", "-=", "*=", "|=", "||", "|>", "==", "=>", "-", "->", "-->", "=", "|", ":=",
        "<!--", "##", "#-1", "3-1", "=x", "-LRB-", "\u0967-\u0967",
    ],
)  # fmt: skip
def test_a_label_without_a_letter_before_the_sign_is_kept_whole(operator):
    sentence = parse_brackets(f"({operator} ({operator} x) (NP-{operator} y z))")
    assert sentence.tags[0] == operator
    assert sentence.tree.labels == ["NP", operator]


@pytest.mark.parametrize(
    ("label", "first"),
    [
        ("$,--", "$,"), ("$.-PU", "$."), ("$(##lem=--##", "$("), ("É-1", "É"), ("名|x", "名"),
        ("N2=1", "N2"),
    ],
)  # fmt: skip
def test_a_function_is_removed_after_a_letter_and_after_a_tag_of_punctuation(label, first):
    assert parse_brackets(f"(S ({label} a) (X b))").tags[0] == first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("(S (NN a)", "column 1: this bracket is never closed"),
        ("(S (NN a) (NN b)", "column 1: this bracket is never closed"),
        ("(S (NN a", "column 4: this bracket is never closed"),
        ("(S (NN a)))", "column 11: a closing bracket without an opening one"),
        (")(", "column 1: a closing bracket"),
        ("dog", "column 1: 'dog' is outside all brackets"),
        ("(NN a) dog", "column 8: 'dog' is outside"),
        ("()", "column 1: an empty tree"),
        ("(S)", "column 1: an empty tree"),
        ("(())", "column 2: an empty tree"),
        ("(S (NP) (NN a))", "column 4: an empty tree"),
        ("(S ((NN a)))", "column 4: an inner node without a label"),
        ("(N\u00a0P (NN a))", "column 2: the label 'N\u00a0P' contains white space"),
        ("(S (N\u2003N a))", "column 5: the label .* contains white space"),
    ],
)
def test_malformed_brackets_are_refused_with_their_column(line, message):
    with pytest.raises(ValueError, match=message):
        parse_brackets(line)


def test_a_label_with_a_space_makes_a_word_of_what_follows():
    assert parse_brackets("(NP SBJ (NN dog))").words == ["SBJ", "dog"]


@given(lines(3))
def test_escaped_words_hold_no_brackets_and_come_back(text):
    word = "".join(text.split())
    assert not set("()") & set(escaped(word))
    if not any(escape in word for escape in ("-LRB-", "\\")):
        assert unescaped(escaped(word)) == word


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        ("-LRB-", "("), ("-RRB-", ")"), ("-LSB-", "["), ("-RSB-", "]"), ("-LCB-", "{"),
        ("-RCB-", "}"), (r"1\/2", "1/2"), (r"\*\*", "**"), (":-RRB-", ":)"), ("a", "a"),
        (r"back\slash", r"back\slash"), (r":\)", ":)"),
    ],
)  # fmt: skip
def test_leaves_are_unescaped(leaf, text):
    assert unescaped(leaf) == text


@pytest.mark.parametrize(("words", "tags"), [(["a"], ["X", "X"]), (["a", "b"], ["X"])])
def test_more_or_fewer_words_than_leaves_are_not_written(words, tags):
    with pytest.raises(ValueError, match=r"words and . tags for 2 leaves"):
        format_brackets(words, tags, parse_brackets("(S (NN a) (NN b))").tree)


def test_trees_on_several_lines_are_joined_without_the_markup_around_them():
    mrg = ["", "( (S ", "    (NN a)", "\t(NN b) ))", "( (S (NN c)))", "", "", "(X", " (NN d))", ""]
    assert list(tree_blocks(mrg)) == [
        (2, "( (S \n    (NN a)\n\t(NN b) ))"), (5, "( (S (NN c)))"), (8, "(X\n (NN d))"),
    ]  # fmt: skip
    assert list(tree_blocks([])) == []
    ctb = [
        "<DOC>",
        "<DATE> 1994 </DATE>",
        "<S ID=1>",
        "( (IP (NN a)",
        "  (VV b)) ) ",
        "</S>",
        "<S ID=2>",
    ]
    assert list(tree_blocks([*ctb, "( (FRAG (NN c)))", "</S>", "</DOC>"])) == [
        (4, "( (IP (NN a)\n  (VV b)) ) "), (8, "( (FRAG (NN c)))"),
    ]  # fmt: skip


def test_trees_without_words_are_left_out_and_escaped_brackets_close_none():
    ppche = ["( (CODE <P_1>) (ID a,1))", "", "( (S (X \\))", "  (X b)))", "( (METADATA (A b)))"]
    assert list(tree_blocks(ppche)) == [
        (3, "( (S (X \\))\n  (X b)))"), (5, "( (METADATA (A b)))"),
    ]  # fmt: skip


def test_features_in_a_label_are_removed():
    spmrl = (
        "(SENT##s=1## (NP-SUJ##h=2## (DET##lem=le|cpos=D|g=m## le) (NC##lem=chat|s=c## chat)) "
        "(VN (V##lem=dormir## dort)) (PONCT##lem=.## .) ($[##lem=-LRB-## -LRB-) (# #) (## x))"
    )
    sentence = parse_brackets(spmrl)
    assert sentence.tags == ["DET", "NC", "V", "PONCT", "$[", "#", "##"]
    assert sentence.words == ["le", "chat", "dort", ".", "-LRB-", "#", "x"]
    assert sentence.tree.labels == ["NP", "VN", "SENT"]


def test_trees_of_many_levels_are_read_and_written():
    depth, start = 20_000, time.process_time()
    line = "(NP " * depth + "(NN a)" + " (NN b))" * depth
    sentence = parse_brackets(line)
    assert len(sentence.words) == depth + 1
    assert sentence.tree.depths.tolist() == list(range(depth))[::-1]
    assert format_brackets(sentence.words, sentence.tags, sentence.tree) == line
    assert time.process_time() - start < 20


def test_a_hundred_thousand_unclosed_brackets_are_refused():
    with pytest.raises(ValueError, match="column 100001: this bracket is never closed"):
        parse_brackets("(NP (" * 20_000 + "(")


def test_the_penn_treebank_sample_is_read_as_by_recursion():
    for line in itertools.islice(ptb_trees(), 1000):
        sentence = parse_brackets(line)
        assert (sentence.words, sentence.tags, triples(sentence)) == read_by_recursion(line)


def test_the_sentiment_treebank_is_read_as_by_recursion():
    folder = shared_data("sst")
    if folder is None:
        pytest.skip("no Stanford Sentiment Treebank here")
    trees = list(read_lines(folder / "dev.txt.gz"))
    assert len(trees) == 1101
    for line in trees:
        sentence = parse_brackets(line)
        assert (sentence.words, sentence.tags, triples(sentence)) == read_by_recursion(line)
        assert format_brackets(sentence.words, sentence.tags, sentence.tree) == line
