"""Trees drawn with characters can be read back from what is drawn."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given

from fairseq_phrase.lab.inspection.parsed_text import ParsedText
from fairseq_phrase.lab.pictures.terminal_trees import MAX_WORDS, arc_rows, tree_text
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import Edge
from tests.support.hostile import constituents, trees


def sentence(words, heads=None, deprels=(), tags=(), tree=None, subwords=None):
    return ParsedText(
        "train.de-en.de, line 7",
        list(words),
        [True] * len(words),
        subwords or [[word] for word in words],
        None if heads is None else np.array(heads),
        list(deprels),
        list(tags),
        tree,
    )


def heads_of(rows):
    """Follow the lines: from each arrow left to its bar, and along the bar to the head's own line."""
    heads = []
    for word, row in enumerate(rows):
        if not row.endswith("▸"):
            heads.append(word)
            continue
        column = max(place for place, sign in enumerate(row) if sign in "┌├└")
        reached = {word}
        for step, leads_on, comes_from in ((-1, "├└│┴┼", "┌├│┬┼"), (1, "┌├│┬┼", "├└│┴┼")):
            place = word
            while rows[place][column] in leads_on:
                place += step
                assert rows[place][column] in comes_from
                reached.add(place)
        (head,) = [
            place
            for place in reached
            if rows[place][column] in "┬┴┼"
            or (not rows[place].endswith("▸") and rows[place][column] in "┌├└")
        ]
        heads.append(head)
    return heads


@given(heads=trees())
@example(heads=[2, 3, 2, 2, 0, 4])  # arcs cross
@example(heads=[0])
@example(heads=[*range(1, 40), 39])
def test_the_heads_can_be_read_back_from_the_arcs(heads):
    rows = arc_rows(np.array(heads))
    assert len({*map(len, rows)}) == 1
    assert heads_of(rows) == heads


def test_arcs_are_drawn_from_heads_to_dependents():
    assert arc_rows(np.array([1, 2, 2, 4, 2])) == [
        "  ┌──▸",
        "┌─┴──▸",
        "├─────",
        "│ ┌──▸",
        "└─┴──▸",
    ]  # fmt: skip


def test_a_line_passes_behind_the_bar_of_another_head_where_arcs_cross():
    rows = arc_rows(np.array([2, 3, 2, 2]))
    assert rows == ["┌────▸", "│ ┌──▸", "├─│───", "└─┴──▸"]


def spans_of(rows):
    """Read constituents and leaves back from an indented tree, children before parents."""
    spans, leaves, open_nodes = [], [], []  # of those that are open: depth, label, first word

    def close(depth):
        while open_nodes and open_nodes[-1][0] >= depth:
            _, label, start = open_nodes.pop()
            spans.append((start, len(leaves), label))

    for row in rows:
        branches = re.match(r"(?:│  |   )*(?:├─ |└─ )?", row).group()
        labels, _, word = row[len(branches) :].partition("  ")
        close(len(branches))
        labels = labels.split(" ─ ")
        tag = labels.pop() if word else None
        open_nodes += [(len(branches), label, len(leaves)) for label in labels]
        if word:
            leaves.append((tag, word))
            while open_nodes and open_nodes[-1][0] == len(branches):
                _, label, start = open_nodes.pop()
                spans.append((start, len(leaves), label))
    close(0)
    return spans, leaves


@given(tree=constituents())
def test_constituents_can_be_read_back_from_the_indented_tree(tree):
    words = [f"w{number}" for number in range(tree.num_words)]
    tags = [f"T{number}" for number in range(tree.num_words)]
    blocks = tree_text(sentence(words, tags=tags, tree=tree)).split("\n\n")
    spans, leaves = spans_of(blocks[1].splitlines() if len(blocks) > 1 else [])
    assert leaves == list(zip(tags, words, strict=True))
    expected = [
        (*span, label) for span, label in zip(tree.spans.tolist(), tree.labels, strict=True)
    ]
    assert spans == expected


def test_a_sentence_is_drawn_with_its_words_relations_tags_and_subwords():
    drawn = tree_text(
        sentence(
            ["der", "Hund", "läuft"],
            [1, 2, 2],
            ["det", "nsubj", "root"],
            ["DET", "NOUN", "VERB"],
            ConstituencyTree([(1, 2), (0, 2), (0, 3)], ["NN", "NP", "S"], 3),
            [["der"], ["Hu", "nd"], ["läuft"]],
        )
    )
    assert (
        drawn
        == """\
train.de-en.de, line 7: 3 words, 4 subwords
der Hund läuft

0    ┌──▸  det    DET   der
1  ┌─┴──▸  nsubj  NOUN  Hund  (Hu·nd)
2  └─────  root   VERB  läuft

S
├─ NP
│  ├─ DET  der
│  └─ NN ─ NOUN  Hund  (Hu·nd)
└─ VERB  läuft"""
    )


def test_words_without_any_tree_are_listed():
    assert tree_text(sentence(["a", "b"])).splitlines()[3:] == ["0  a", "1  b"]


def test_a_sentence_without_words_is_its_heading_alone():
    tree = ConstituencyTree([], [], 0)
    assert (
        tree_text(sentence([], [], tree=tree)).strip()
        == "train.de-en.de, line 7: 0 words, 0 subwords"
    )


@pytest.mark.parametrize("sign", ["\x1b", "\u202e", "\u2028", "\0", "\x85", "\u200b", "\ufeff"])
def test_what_would_act_on_a_terminal_is_spelled_out(sign):
    drawn = tree_text(sentence([f"a{sign}b"], [0], [f"r{sign}"], [f"T{sign}"]))
    assert sign not in drawn
    assert drawn.count(sign.encode("unicode_escape").decode()) == 4  # text, relation, tag, word


def test_emoji_and_wide_and_right_to_left_words_are_shown_as_they_are():
    words = ["👩‍👩‍👧‍👦", "🏴\U000e0067\U000e0062\U000e007f", "中文", "שלום", "e\u0301"]
    drawn = tree_text(sentence(words, [0, 0, 0, 0, 0]))
    assert all(row.endswith(word) for row, word in zip(drawn.splitlines()[3:], words, strict=True))


def test_a_sentence_too_long_to_be_read_as_a_tree_says_so_and_a_deep_one_is_drawn():
    words = ["w"] * (MAX_WORDS + 1)
    assert tree_text(sentence(words, [0] * len(words))).endswith("words are not drawn)")
    words = words[1:]
    chain = [(0, end) for end in range(2, len(words) + 1)]
    tree = ConstituencyTree(chain, ["X"] * len(chain), len(words))
    drawn = tree_text(sentence(words, [0, *range(len(words) - 1)], tree=tree))
    assert drawn.count("X") == len(chain)
    assert drawn.count("▸") == len(words) - 1


def test_the_edges_of_a_graph_are_rows_of_its_words():
    words = sentence(["der", "Hund", "läuft"])
    edges = [Edge(1, 0, "det"), Edge(2, 1, "nsubj"), Edge(2, 2, "root"), Edge(0, 1, "\x1b")]
    *_, graph_text = tree_text(replace(words, graphs={"enhanced": edges})).split("\n\n")
    title, *rows = graph_text.splitlines()
    assert title == "enhanced dependencies:"
    assert [row.split("  ")[0] for row in rows] == ["0", "1", "2"]
    assert [row.rsplit("  ", 1)[1] for row in rows] == ["der", "Hund", "läuft"]
    assert [row.split("  ")[1] for row in rows] == ["det ◂ 1", "nsubj ◂ 2, \\x1b ◂ 0", "root"]
