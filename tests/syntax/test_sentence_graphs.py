"""Graphs over words: removed words, joined sentences, truncated lines, the table of fields, checks."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.batches.source_batches import collate_parses, numbered_parse, truncated
from fairseq_phrase.data.batches.text_blocks import joined_parses
from fairseq_phrase.data.batches.tree_sources import Trees
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.subwords.encoded_sentences import encode_words
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.interfaces import LineParser, flat, without_trees
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.fields import FIELDS, ParseField
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence

ROLES = ParseField(
    name="roles", per="edge", columns=3, meaning="roles", made_by="--parser mine",
    label_file="dict.role.txt",
)  # fmt: skip


@st.composite
def graphs(draw):
    """Words and edges between any of them, a root's edge included."""
    count = draw(st.integers(1, 6))
    word = st.integers(0, count - 1)
    edges = draw(st.lists(st.builds(Edge, word, word, st.sampled_from("abc")), max_size=8))
    words = [f"w{index}" for index in range(count)]
    return ParsedSentence(words, [True] * count, edges={"enhanced": edges, "roles": edges[:1]})


def spelled(sentence, name="enhanced"):
    """The edges of a graph, with their words for their indices."""
    return [(sentence.words[h], sentence.words[d], label) for h, d, label in sentence.edges[name]]


@given(graphs(), st.data())
def test_edges_go_with_removed_words_and_are_counted(sentence, data):
    keep = np.array([data.draw(st.booleans()) for _ in sentence.words])
    segmented = [["subword"] * bool(is_kept) for is_kept in keep]
    encoded = encode_words(sentence, segmented)
    remaining = {word for word, is_kept in zip(sentence.words, keep, strict=True) if is_kept}
    lost = 0
    for name in sentence.edges:
        expected = [edge for edge in spelled(sentence, name) if {*edge[:2]} <= remaining]
        assert spelled(sentence.restricted_to(keep), name) == expected
        assert encoded.edges[name] == sentence.restricted_to(keep).edges[name]
        lost += len(sentence.edges[name]) - len(expected)
    assert encoded.lost_edges == lost


@given(st.lists(graphs(), min_size=1, max_size=3))
def test_joined_sentences_keep_their_own_edges(parts):
    joined = ParsedSentence.joined(parts)
    assert spelled(joined) == [edge for part in parts for edge in spelled(part)]
    starts = np.cumsum([0, *(len(part.words) for part in parts)])
    for start, part in zip(starts, parts, strict=False):
        for head, dependent, _ in part.edges["roles"]:
            assert any(
                edge[:2] == (start + head, start + dependent) for edge in joined.edges["roles"]
            )


def labels(field):
    dictionary = Dictionary()
    for label in "abc":
        dictionary.add_symbol(label)
    return dictionary


def parse_of(sentence, fields=("words", "enhanced")):
    return numbered_parse(encode_words(sentence, [["x"]] * len(sentence.words)), fields, labels)


@given(graphs(), st.integers(1, 6))
def test_truncated_lines_keep_the_edges_between_their_words(sentence, words):
    parse = parse_of(sentence)
    numbers = [[h, d, labels("").index(label)] for h, d, label in sentence.edges["enhanced"]]
    assert parse["enhanced"].tolist() == numbers
    edges = truncated(parse, words)["enhanced"]
    assert edges.shape[1:] == (3,)
    assert edges.tolist() == [edge for edge in numbers if max(edge[:2]) < words]


@given(st.lists(graphs(), min_size=1, max_size=3))
def test_the_separators_of_joined_parses_have_no_edges(sentences):
    parses = [parse_of(sentence) for sentence in sentences]
    joined = joined_parses(parses)
    expected, start = [], 0
    for parse in parses:
        expected += [[h + start, d + start, label] for h, d, label in parse["enhanced"].tolist()]
        start += len(parse["words"]) + 1
    assert joined["enhanced"].tolist() == expected


def test_graphs_of_a_batch_have_their_own_numbers_of_edges(dictionary, monkeypatch):
    monkeypatch.setitem(FIELDS, "roles", ROLES)
    words = [True, True]
    edges = [Edge(0, 0, "a"), Edge(0, 1, "b"), Edge(1, 0, "?")]
    with_edges = ParsedSentence(["x", "y"], words, edges={"enhanced": edges, "roles": edges[1:2]})
    none = ParsedSentence(["x"], [True], edges={"enhanced": [], "roles": []})
    parses = [parse_of(sentence, ("words", "enhanced", "roles")) for sentence in (with_edges, none)]
    tokens = torch.tensor([[5, 6, dictionary.eos()], [5, dictionary.eos(), dictionary.pad()]])
    batch = ParseBatch.from_net_input(collate_parses(tokens, parses, dictionary))
    unknown = labels("").unk()
    assert batch["enhanced"].tolist() == [[[0, 0, 4], [0, 1, 5], [1, 0, unknown]], [[-1] * 3] * 3]
    assert batch["roles"].tolist() == [[[0, 1, 5]], [[-1] * 3]]
    assert shared_index("roles", FIELDS) is shared_index("enhanced", FIELDS) is None
    empty = collate_parses(tokens[1:, :2], parses[1:], dictionary)
    assert empty["src_enhanced"].shape == (1, 0, 3)


def test_a_sentence_without_a_parse_has_a_graph_without_edges():
    sentence = ParsedSentence(["x"], [True], edges={"enhanced": [Edge(0, 0, "a")]})
    assert without_trees(sentence).edges == {}
    assert flat(without_trees(sentence), ["words", "enhanced"]).edges == {"enhanced": []}
    with pytest.raises(UserError, match="this model needs enhanced dependencies"):
        parse_of(without_trees(sentence))


class Graphs(LineParser):
    """A parser of graphs of given edges, which leaves words of no subwords."""

    version, fields = "mine", ("words", "enhanced")

    def __init__(self, *edges, **others):
        self.edges = {"enhanced": list(edges), **others} if edges else {}

    def parse(self, lines):
        return [
            ParsedSentence(line.split(), [True] * len(line.split()), edges=self.edges)
            for line in lines
        ]


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([Edge(2, 0, "a")], "an edge of enhanced from word 3 to word 1, and the sentence has 2"),
        ([Edge(0, 1, "a"), Edge(0, -1, "a")], "an edge of enhanced from word 1 to word 0"),
        ([Edge(0, 1, "a b")], "one of its labels of enhanced is empty or holds white space"),
        ([], "it has no enhanced"),
        ([Edge(0, 1, "a"), (1, 0, "b")], "an edge of enhanced is a tuple: expected Edge(head, dep"),
    ],
)
def test_an_edge_of_a_parser_to_a_word_that_is_not_there_is_refused(install_parser, edges, message):
    install_parser(lambda: Graphs(*edges))
    (unparsed,) = ParsingPipeline(ParsingOptions("of-test")).parse(["x y"])
    assert isinstance(unparsed, Unparsed)
    assert message in unparsed.reason


def test_edges_that_raw_text_loses_are_counted_in_a_warning(install_parser, caplog):
    edges = [Edge(0, 0, "a"), Edge(0, 1, "b"), Edge(1, 2, "c")]
    install_parser(lambda: Graphs(*edges))
    segmenter = SimpleNamespace(segment_word=lambda word: [] if "-" in word else [word])
    encoder = TextEncoder(ParsingPipeline(ParsingOptions("of-test")), segmenter)
    with caplog.at_level(logging.WARNING):
        (sentence,) = encoder.encode_lines(["x y z"])
        assert not caplog.text
        (fewer,) = encoder.encode_lines(["x - z"])
    assert sentence.edges["enhanced"] == edges
    assert fewer.edges["enhanced"] == edges[:1]
    assert "2 edges are lost with words that have no subword" in caplog.text


def test_trees_without_syntax_have_no_graph():
    with pytest.raises(UserError, match="also reads the parse's enhanced dependencies"):
        Trees("random").fields_to_read(["words", "heads", "enhanced"])
