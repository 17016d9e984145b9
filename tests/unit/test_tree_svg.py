"""Trees as SVG and HTML: well-formed, whole, and with nothing on top of anything else."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.inspection.parsed_text import printable
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.sentence import Edge
from fairseq_phrase.visualization.terminal_trees import MAX_WORDS
from fairseq_phrase.visualization.tree_svg import arc_levels, html_page, svg_page, write_pictures
from tests.support.hostile import SNIPPETS, trees
from tests.support.parsed_texts import sentence

SVG = "{http://www.w3.org/2000/svg}"
HUND = sentence(
    ["der", "Hund", "läuft"],
    [1, 2, 2],
    ["det", "nsubj", "root"],
    ["DET", "NOUN", "VERB"],
    ConstituencyTree([(0, 2), (0, 3)], ["NP", "S"], 3),
)


def texts(page, kind):
    """The texts of a class with their places, in the order of the file."""
    root = ElementTree.fromstring(page.partition("?>\n")[2] if page.startswith("<?") else page)
    elements = [element for element in root.iter(f"{SVG}text") if element.get("class") == kind]
    return [
        (element.text, float(element.get("x")), float(element.get("y"))) for element in elements
    ]


def test_everything_is_in_the_picture():
    page = svg_page([HUND])
    assert [text for text, *_ in texts(page, "word")] == ["der", "Hund", "läuft"]
    assert [text for text, *_ in texts(page, "tag")] == ["DET", "NOUN", "VERB"]
    assert sorted(text for text, *_ in texts(page, "relation")) == ["det", "nsubj", "root"]
    assert [text for text, *_ in texts(page, "constituent")] == ["NP", "S"]
    assert [text for text, *_ in texts(page, "title")] == [HUND.summary]


def test_constituents_stand_above_the_middle_of_their_children_and_their_words():
    page = svg_page([HUND])
    (_, der, row), (_, hund, _), (_, runs, _) = texts(page, "word")
    (_, phrase, phrase_row), (_, clause, clause_row) = texts(page, "constituent")
    assert phrase == (der + hund) / 2
    assert clause == (phrase + runs) / 2
    assert clause_row < phrase_row < row


def test_the_tag_of_a_split_word_is_above_its_subwords_and_other_words_show_none():
    words, tags = ["Donau", "Leute", "am"], ["NE", "NN", "APPRART"]
    segmented = [["Donau"], ["Leu", "te"], ["a", "m"]]
    page = svg_page([sentence(words, [1, 1, 1], tags=tags, subwords=segmented)])
    subwords = texts(page, "subwords")
    assert [text for text, *_ in subwords] == ["Leu·te", "a·m"]
    for (_, x, y), (_, tag_x, tag_y) in zip(subwords, texts(page, "tag")[1:], strict=True):
        assert x == tag_x
        assert y >= tag_y + 11  # a line of this size below
    tops = [float(top) for top in re.findall(r'class="arrow" d="M\d+ (\d+)', page)]
    assert min(tops) > subwords[0][2]
    assert texts(svg_page([HUND]), "subwords") == []


def test_an_arrow_points_at_each_word_and_its_line_comes_from_the_head():
    page = svg_page([HUND])
    places = {word: x for word, x, _ in texts(page, "word")}
    lines = re.findall(r'class="arc" d="M(\d+) ', page)
    arrows = re.findall(r'class="arrow" d="M(\d+)', page)
    assert list(map(float, arrows)) == list(places.values())
    der, hund, root = map(float, lines)
    assert places["der"] < der < places["Hund"] < hund < places["läuft"] == root


@given(heads=trees())
def test_no_two_arcs_lie_on_one_another(heads):
    edges = [Edge(int(head), word, "") for word, head in enumerate(heads)]
    edges += [Edge(edge.dependent, (edge.head + 2) % len(edges), "") for edge in edges]
    levels = arc_levels(edges)
    arcs = [
        (*sorted(edge[:2]), level)
        for edge, level in zip(edges, levels, strict=True)
        if edge.head != edge.dependent
    ]
    assert min(levels, default=1) >= 1
    for index, (low, high, level) in enumerate(arcs):
        for other_low, other_high, other_level in arcs[:index]:
            overlapping = low < other_high and other_low < high
            assert not (overlapping and level == other_level)


WORDS = ["a", "Donaudampfschifffahrtsgesellschaft", "中文中文中文中文", "W" * 30]


@given(words=st.lists(st.sampled_from(WORDS), min_size=2, max_size=12))
def test_words_stand_side_by_side_within_the_picture(words):
    page = svg_page([sentence(words, [0] * len(words), words, words)])
    placed_words = texts(page, "word")
    ems = [0.55 * len(word) if word.isascii() else 1.0 * len(word) for word in words]
    edges = [(x - 7.5 * em, x + 7.5 * em) for (_, x, _), em in zip(placed_words, ems, strict=True)]
    assert all(right < left for (_, right), (left, _) in pairwise(edges))
    width = float(re.search(r'width="(\d+)"', page)[1])
    assert edges[0][0] > 0
    assert edges[-1][1] < width


LABELS = ["a", "nmod:tmod", "W" * 12, "a very long relation"]


@given(heads=trees(), labels=st.lists(st.sampled_from(LABELS), min_size=12))
def test_labels_fit_between_the_ends_of_their_arcs(heads, labels):
    labels = [labels[word % len(labels)] for word in range(len(heads))]
    graph = [Edge(word - 1, word, label) for word, label in enumerate(labels[::-1]) if word]
    page = svg_page(
        [replace(sentence(["w"] * len(heads), heads, labels), graphs={"enhanced": graph})]
    )
    places = [x for _, x, _ in texts(page, "word")]
    relations = texts(page, "relation")
    arcs = [(int(head), word) for word, head in enumerate(heads)]
    arcs += [edge[:2] for edge in graph]
    width = float(re.search(r'width="(\d+)"', page)[1])
    for (label, middle, _), (head, word) in zip(relations, arcs, strict=True):
        half = 5.5 * 0.6 * len(label)
        assert half < middle < width - half
        if abs(head - word) == 1:
            left, right = sorted((places[head], places[word]))
            assert left < middle - half
            assert middle + half < right


@pytest.mark.parametrize(
    "words", [["שלום", "עולם", "."], ["رأى", "الولد", "."], ["GPU", "رأى", "الولد"]]
)
def test_right_to_left_words_run_right_to_left(words):
    page = svg_page([sentence(words, [0, 0, 0])])
    places = [x for _, x, _ in texts(page, "word")]
    assert places == sorted(places, reverse=True)


@pytest.mark.parametrize("words", [["a", "b", "של"], ["猫", "狗", "1"], ["1", "2", "."]])
def test_other_words_run_left_to_right(words):
    places = [x for _, x, _ in texts(svg_page([sentence(words, [0, 0, 0])]), "word")]
    assert places == sorted(places)


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.texts = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


@given(words=st.lists(st.sampled_from([*SNIPPETS, "<script>", "&amp;", '"', "]]>", "\ud800"])))
def test_hostile_text_is_text_in_both_formats(words):
    tree = ConstituencyTree([(0, len(words))] if words else [], ["<S>"] * bool(words), len(words))
    hostile = sentence(words, [0] * len(words), words, words, tree)
    printed = list(map(printable, words))
    assert [text for text, *_ in texts(svg_page([hostile, HUND]), "word")][: len(words)] == printed
    page = html_page([hostile])
    parsed = Page()
    parsed.feed(page)
    assert "script" not in parsed.tags
    assert parsed.tags.count("svg") == 1
    assert printable(hostile.text) in "".join(parsed.texts)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert [text for text, *_ in texts(pictures[0], "word")] == printed


def test_several_sentences_stand_below_one_another_and_nothing_is_fetched(tmp_path):
    lonely = sentence(["w"] * (MAX_WORDS + 1))
    for name in ("trees.svg", "trees.HTML"):
        path = tmp_path / "new" / name
        write_pictures([HUND, HUND, lonely], path)
        page = path.read_text(encoding="utf-8")
        assert page.count("läuft") == (2 if name.endswith("svg") else 4)
        assert "words are not drawn" in page
        assert not re.findall(r"(?:src|href|url)\W", page)
    offsets = re.findall(r"translate\(0 (\d+)\)", (tmp_path / "new/trees.svg").read_text("utf-8"))
    assert sorted(map(int, offsets)) == list(map(int, offsets))
    assert len(set(offsets)) == 3


def test_another_format_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"must be \.svg or \.html"):
        write_pictures([HUND], tmp_path / "trees.png")


def test_the_edges_of_a_graph_are_drawn_below_its_own_words():
    edges = [Edge(2, 1, "nsubj"), Edge(2, 2, "root"), Edge(1, 0, "det"), Edge(2, 0, "other")]
    page = svg_page([replace(HUND, graphs={"enhanced": edges})])
    titles = [text for text, *_ in texts(page, "title")]
    assert "enhanced dependencies" in titles
    before = svg_page([HUND])
    assert len(texts(page, "word")) == 2 * len(texts(before, "word"))
    labels = [text for text, *_ in texts(page, "relation")][len(texts(before, "relation")) :]
    assert labels == [edge.label for edge in edges]
    places = {word: x for word, x, _ in texts(page, "word")}
    words = list(places.values())
    arrows = list(map(float, re.findall(r'class="arrow" d="M(\d+)', page)))[len(words) :]
    assert arrows == [words[edge.dependent] for edge in edges]
