"""Constituency trees: what they refuse, and what they say of themselves, against naive twins."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.hostile import bracketings, constituents, trees


def contains(outer, inner):
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def parent(spans, node):
    """The first of the later ones over the same words, as children stand before their parents."""
    later = range(node + 1, len(spans))
    return next(
        (later_node for later_node in later if contains(spans[later_node], spans[node])), None
    )


def chain(spans, node):
    """A constituent and all above it."""
    while node is not None:
        yield node
        node = parent(spans, node)


def triples(tree):
    return [
        (start, end, label) for (start, end), label in zip(tree.spans, tree.labels, strict=True)
    ]


def depth(heads, word):
    return 0 if heads[word] == word else 1 + depth(heads, heads[word])


def lifted(heads, draw):
    """Lift one arc at a time, any of the lowest that are not projective, until there is none."""
    depths = [depth(heads, word) for word in range(len(heads))]
    heads = list(heads)

    def depends(word, head):
        while word != head and heads[word] != word:
            word = heads[word]
        return word == head

    while True:
        crossing = [
            word
            for word, head in enumerate(heads)
            if not all(
                depends(between, head) for between in range(min(word, head), max(word, head))
            )
        ]
        if not crossing:
            return heads
        deepest = max(depths[word] for word in crossing)
        word = draw(st.sampled_from([word for word in crossing if depths[word] == deepest]))
        heads[word] = heads[heads[word]]


@given(bracketings())
def test_spans_come_back_as_they_went_in_children_first(bracketing):
    spans, labels, count = bracketing
    tree = ConstituencyTree(*bracketing)
    given_triples = [(*span, label) for span, label in zip(spans, labels, strict=True)]
    assert sorted(triples(tree)) == sorted(given_triples)
    assert (len(tree), tree.num_words) == (len(spans), count)
    placed = tree.spans.tolist()
    for earlier, later in itertools.combinations(placed, 2):
        assert contains(later, earlier) or earlier[1] <= later[0], "not in post-order"


@given(bracketings(), st.randoms(use_true_random=False))
def test_the_order_of_the_spans_does_not_matter_but_in_unary_chains(bracketing, random):
    spans, labels, count = bracketing
    order = list(range(len(spans)))
    random.shuffle(order)
    places = {}  # of the constituents over the same words, which keep their order
    for node in order:
        places.setdefault(spans[node], []).append(node)
    in_order = {span: iter(sorted(nodes)) for span, nodes in places.items()}
    order = [next(in_order[spans[node]]) for node in order]
    shuffled = ConstituencyTree([spans[i] for i in order], [labels[i] for i in order], count)
    assert shuffled == ConstituencyTree(*bracketing)


@given(constituents())
def test_parents_depths_and_arities_are_those_of_a_naive_walk(tree):
    spans = tree.spans.tolist()
    parents = [parent(spans, node) for node in range(len(spans))]
    assert tree.parents.tolist() == [-1 if above is None else above for above in parents]
    assert tree.depths.tolist() == [len(list(chain(spans, n))) - 1 for n in range(len(spans))]
    lowest = [
        next((n for n, span in enumerate(spans) if contains(span, (word, word + 1))), None)
        for word in range(tree.num_words)
    ]
    arities = [parents.count(node) + lowest.count(node) for node in range(len(spans))]
    assert [*map(len, tree.children[:-1])] == arities


@given(constituents())
def test_of_a_unary_chain_the_lowest_label_stays(tree):
    lowest = {}
    for start, end, label in triples(tree):
        lowest.setdefault((start, end), label)
    collapsed = tree.collapsed()
    assert triples(collapsed) == [(*span, label) for span, label in lowest.items()]
    assert collapsed.num_words == tree.num_words
    assert collapsed.collapsed() == collapsed


@given(constituents(), st.data())
def test_constituents_lose_the_words_that_are_left_out(tree, data):
    count = tree.num_words
    keep = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    words_left = [word for word in range(count) if keep[word]]
    expected = []
    for start, end, label in triples(tree):
        words = [words_left.index(word) for word in range(start, end) if keep[word]]
        if words:
            expected.append((words[0], words[-1] + 1, label))
    restricted = tree.restricted_to(np.array(keep, dtype=bool))
    assert triples(restricted) == expected
    assert restricted.num_words == len(words_left)


@given(st.lists(constituents(6), max_size=4))
def test_several_trees_hang_under_one_more_root(parts):
    joined = ConstituencyTree.joined(parts)
    starts = np.cumsum([0, *(part.num_words for part in parts)])
    expected = [
        (start + shift, end + shift, label)
        for part, shift in zip(parts, starts, strict=False)
        for start, end, label in triples(part)
    ]
    if len(parts) != 1 and starts[-1]:
        expected.append((0, starts[-1], "ROOT"))
    assert triples(joined) == expected
    assert joined.num_words == starts[-1]


@pytest.mark.parametrize("count", [0, 1, 2, 10])
def test_a_flat_tree_is_one_constituent_over_all_words(count):
    tree = ConstituencyTree.flat(count)
    assert triples(tree) == ([(0, count, "ROOT")] if count else [])
    assert tree.num_words == count


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)), max_size=6))
def test_spans_are_refused_exactly_if_two_of_them_cross(pairs):
    spans = [(start, start + length) for start, length in pairs]
    crossing = any(
        a < c < b < d or c < a < d < b for (a, b), (c, d) in itertools.combinations(spans, 2)
    )
    if crossing:
        with pytest.raises(ValueError, match=r"constituents cross: words \d+ to \d+ and"):
            ConstituencyTree(spans, ["X"] * len(spans), 16)
    else:
        assert len(ConstituencyTree(spans, ["X"] * len(spans), 16)) == len(spans)


@pytest.mark.parametrize(
    ("spans", "labels", "message"),
    [
        ([(0, 2), (1, 3)], "AB", r"constituents cross: words 0 to 1 and 1 to 2"),
        ([(1, 1)], "A", r"'A' covers words 1 to 0: expected at least one word out of 0 to 3"),
        ([(2, 1)], "A", "'A' covers words 2 to 0"),
        ([(-1, 2)], "A", "'A' covers words -1 to 1"),
        ([(0, 5)], "A", "'A' covers words 0 to 4: expected at least one word out of 0 to 3"),
        ([(0, 10**30)], "A", "reaches beyond any sentence"),
        ([(0, 2)], [""], "words 0 to 1 has the label '': expected one without white space"),
        ([(0, 2)], ["N P"], "has the label 'N P': expected one without white space"),
        ([(0, 2)], ["N\u00a0P"], "expected one without white space"),
        ([(0, 2)], ["NP\n"], "expected one without white space"),
        ([(0, 2)], "AB", "1 constituents, but 2 labels"),
        ([(0, 2), (0, 2)], "A", "2 constituents, but 1 labels"),
    ],
)
def test_a_malformed_tree_is_refused_with_what_is_wrong(spans, labels, message):
    with pytest.raises(ValueError, match=message):
        ConstituencyTree(spans, list(labels), 4)


def test_trees_are_equal_if_constituents_labels_and_words_are():
    tree = ConstituencyTree([(0, 2), (0, 3)], ["NP", "S"], 3)
    assert tree == ConstituencyTree([(0, 3), (0, 2)], ["S", "NP"], 3)
    assert tree != ConstituencyTree([(0, 2), (0, 3)], ["VP", "S"], 3)
    assert tree != ConstituencyTree([(1, 3), (0, 3)], ["NP", "S"], 3)
    assert tree != ConstituencyTree([(0, 2), (0, 3)], ["NP", "S"], 4)
    assert tree != "tree"


def test_a_trees_representation_shows_its_brackets_over_the_words_numbers():
    tree = ConstituencyTree([(0, 2), (3, 4), (0, 4)], ["NP", "ADVP", "S"], 5)
    assert repr(tree) == "<ConstituencyTree (S (NP 0 1) 2 (ADVP 3)) 4, 5 words>"
    assert repr(ConstituencyTree([], [], 0)) == "<ConstituencyTree , 0 words>"
    long = repr(ConstituencyTree.flat(1000))
    assert len(long) < 300
    assert long.endswith("…, 1000 words>")


@given(trees(12), st.data())
def test_of_dependencies_each_head_and_all_below_it_after_lifting_are_a_constituent(heads, data):
    projective = lifted(heads, data.draw)
    expected = {}
    for top in range(len(heads)):
        below = []
        for word in range(len(heads)):
            above = word
            while above != top and projective[above] != above:
                above = projective[above]
            if above == top:
                below.append(word)
        assert below == list(range(below[0], below[-1] + 1)), "lifting left a gap"
        if len(below) > 1:
            expected[below[0], below[-1] + 1] = f"tag{top}"
    tags = [f"tag{word}" for word in range(len(heads))]
    tree = ConstituencyTree.from_dependencies(DependencyTree(heads), tags)
    assert {(start, end): label for start, end, label in triples(tree)} == expected
    assert len(tree) == len(expected)


def test_of_dependencies_a_word_that_hangs_out_of_its_span_is_lifted():
    # 3 depends on 1, across 2, which is the root: 3 moves up to the root, and 1 keeps 0 alone.
    tree = ConstituencyTree.from_dependencies(DependencyTree([1, 2, 2, 1]), list("ABCD"))
    assert triples(tree) == [(0, 2, "B"), (0, 4, "C")]


def test_of_dependencies_the_sentences_of_a_line_hang_under_one_root():
    # "a b c", "d", "e f": the roots 1, 3 and 5; 3 and 5 depend on the line's root 1.
    relations = ["x", "root", "x", "root", "x", "root"]
    tree = DependencyTree([1, 1, 1, 1, 5, 1])
    joined = ConstituencyTree.from_dependencies(tree, list("ABCDEF"), relations)
    assert triples(joined) == [(0, 3, "B"), (4, 6, "F"), (0, 6, "ROOT")]
    # Without relations, or without another root, it is one sentence.
    expected = [(4, 6, "F"), (0, 6, "B")]
    assert triples(ConstituencyTree.from_dependencies(tree, list("ABCDEF"))) == expected
    relations = ["x", "root", *"xxxx"]
    assert triples(ConstituencyTree.from_dependencies(tree, list("ABCDEF"), relations)) == expected


def test_of_dependencies_sentences_whose_words_alternate_are_one():
    # 4 is below the first root, 1, and 2 below the second one, 3.
    tree, relations = DependencyTree([1, 1, 3, 1, 0]), ["x", "root", "x", "root", "x"]
    alternating = ConstituencyTree.from_dependencies(tree, list("ABCDE"), relations)
    assert alternating == ConstituencyTree.from_dependencies(tree, list("ABCDE"))


@given(st.lists(trees(6), min_size=1, max_size=4))
def test_of_dependencies_sentences_have_the_constituents_that_they_have_alone(sentences):
    heads, relations, alone = [], [], []
    for heads_of_sentence in sentences:
        start = len(heads)
        relations += [
            "root" if head == word else "x" for word, head in enumerate(heads_of_sentence)
        ]
        heads += [start + head for head in heads_of_sentence]
        alone.append(
            ConstituencyTree.from_dependencies(
                DependencyTree(heads_of_sentence), ["X"] * len(heads_of_sentence)
            )
        )
    tree = ConstituencyTree.from_dependencies(DependencyTree(heads), ["X"] * len(heads), relations)
    assert tree == ConstituencyTree.joined(alone)


@pytest.mark.parametrize("heads", [[], [0]])
def test_of_dependencies_too_few_words_have_no_constituent(heads):
    tree = ConstituencyTree.from_dependencies(DependencyTree(heads), ["X"] * len(heads))
    assert (len(tree), tree.num_words) == (0, len(heads))


def test_a_hundred_thousand_nested_constituents_take_seconds():
    count = 100_000
    start = time.process_time()
    tree = ConstituencyTree([(0, end) for end in range(1, count + 1)], ["X"] * count, count)
    assert tree.depths.tolist() == list(range(count))[::-1]
    assert [*map(len, tree.children[:-1])] == [1, *[2] * (count - 1)]
    assert len(tree.collapsed()) == count
    repr(tree)
    assert time.process_time() - start < 20
