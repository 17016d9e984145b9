"""Tokens' positions in their trees, a padded batch at once, against single sentences in loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from fairseq_phrase.methods.common.tree_positions import RELATIONS, TreePositions
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.padded_sentences import batches, pad, pad_heads
from tests.twins.dependency import relative_position


def tree_positions(heads, subwords, left=False) -> TreePositions:
    words, padding = pad(subwords, left)
    return TreePositions(words, pad_heads(heads), padding)


def tokens_of(subwords: list[int]) -> list[int | None]:
    """The word of each token of a sentence; None for its end."""
    return [word for word, count in enumerate(subwords) for _ in range(count)] + [None]


def absolute(tree: DependencyTree, word: int | None) -> int:
    return int(tree.depths.max()) + 1 if word is None else int(tree.depths[word])


def relative(tree: DependencyTree, relation: str, i: int, j: int, tokens: list[int | None]) -> int:
    """Eq. 6 for two tokens."""
    first, second = tokens[i], tokens[j]
    if i == j or (first is not None and first == second):
        return 0
    if first is not None and second is not None:
        return relative_position(tree.heads, relation, first, second)
    size = absolute(tree, first) + absolute(tree, second)
    return size if i > j else -size


@given(batches())
def test_depths_are_the_words_and_the_end_of_sentence_is_below_them(batch):
    heads, subwords, left = batch
    positions = tree_positions(*batch)
    for row, (heads_of_sentence, counts) in enumerate(zip(heads, subwords, strict=True)):
        tokens = tokens_of(counts)
        start = positions.depths.size(1) - len(tokens) if left else 0
        expected = [absolute(DependencyTree(heads_of_sentence), word) for word in tokens]
        actual = positions.depths[row].tolist()
        assert actual[start : start + len(tokens)] == expected
        assert set(actual[:start] + actual[start + len(tokens) :]) <= {0}


@pytest.mark.parametrize("relation", RELATIONS)
@given(batch=batches())
def test_relative_positions_are_those_of_the_words_pair_by_pair(relation, batch):
    heads, subwords, left = batch
    actual = tree_positions(*batch).relative(relation)
    assert actual.dtype == torch.int64
    for row, (heads_of_sentence, counts) in enumerate(zip(heads, subwords, strict=True)):
        tokens, tree = tokens_of(counts), DependencyTree(heads_of_sentence)
        places = range(len(tokens))
        start = actual.size(1) - len(tokens) if left else 0
        span = slice(start, start + len(tokens))
        expected = [[relative(tree, relation, i, j, tokens) for j in places] for i in places]
        assert actual[row, span, span].tolist() == expected


def test_the_three_relations_differ_where_the_specification_says_so():
    # 0 <- 1 <- 2 <- 3, and 4 under 1: of 3 and 4 the lowest common ancestor is 1, not the root.
    positions = tree_positions([[0, 0, 1, 2, 1]], [[1] * 5])
    edge, path, distance = (positions.relative(relation)[0].tolist() for relation in RELATIONS)
    assert (edge[3][1], path[3][1], distance[3][1]) == (4, 2, 2)  # two levels below
    assert (edge[1][3], path[1][3], distance[1][3]) == (-4, -2, -2)
    assert (edge[3][4], path[3][4], distance[3][4]) == (-5, -5, -3)
    assert (edge[3][2], path[3][2], distance[3][2]) == (1, 1, 1)
    # A word to the left of its head is below it, and yet before it.
    positions = tree_positions([[1, 1]], [[1, 1]])
    assert [int(positions.relative(relation)[0, 0, 1]) for relation in RELATIONS] == [1, 1, -1]


def test_later_roots_hang_off_the_first():
    words, padding = torch.tensor([[0, 1, 2, 3, -1]]), torch.zeros(1, 5, dtype=torch.bool)
    several = TreePositions(words, torch.tensor([[1, 1, 2, 2]]), padding)
    joined = TreePositions(words, torch.tensor([[1, 1, 1, 2]]), padding)
    assert several.depths.tolist() == joined.depths.tolist() == [[1, 0, 1, 2, 3]]
    for relation in RELATIONS:
        assert several.relative(relation).tolist() == joined.relative(relation).tolist()


def test_tokens_of_no_word_are_related_to_one_another_by_rule_2():
    words, padding = torch.tensor([[-1, 0, 1, -1]]), torch.zeros(1, 4, dtype=torch.bool)
    positions = TreePositions(words, torch.tensor([[0, 0]]), padding)
    assert positions.depths.tolist() == [[2, 0, 1, 2]]
    for relation in RELATIONS:
        assert positions.relative(relation)[0, 0].tolist() == [0, -2, -3, -4]
        assert positions.relative(relation)[0, :, 0].tolist() == [0, 2, 3, 4]


def test_a_sentence_without_words_is_its_end_alone():
    words, padding = torch.tensor([[-1, -1], [0, -1]]), torch.tensor([[False, True], [False] * 2])
    positions = TreePositions(words, torch.tensor([[-1], [0]]), padding)
    assert positions.depths.tolist() == [[0, 0], [0, 1]]
    assert positions.relative("distance")[1].tolist() == [[0, -1], [1, 0]]
    # All sentences of the batch may be empty.
    positions = TreePositions(words[:1], torch.zeros(1, 0, dtype=torch.int64), padding[:1])
    assert positions.relative("path")[0, 0, 0] == 0


@pytest.mark.parametrize(
    ("words", "heads", "message"),
    [
        ([[0, 1, -1]], [[1, 0]], "heads run in a circle"),
        ([[0, 1, -1]], [[0, 2]], "a head lies outside its sentence"),
        ([[0, 1, -1], [0, -1, -1]], [[0, 0], [1, -1]], "a head lies outside its sentence"),
        ([[0, 2, -1]], [[0, 0]], "a token's word has no head"),
        ([[0, 1, -1]], [[0, -1]], "a token's word has no head"),
    ],
)
def test_heads_that_are_no_tree_are_refused(words, heads, message):
    words = torch.tensor(words)
    with pytest.raises(ValueError, match=f"no dependency trees: {message}"):
        TreePositions(words, torch.tensor(heads), torch.zeros(words.shape, dtype=torch.bool))


def test_tensors_of_other_types_and_shapes_are_refused_by_name():
    words, heads = torch.tensor([[0, -1]]), torch.tensor([[0]])
    padding = torch.zeros(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"words must be a torch.int64 tensor of shape \(1, 2\)"):
        TreePositions(words.float(), heads, padding)
    with pytest.raises(ValueError, match=r"heads must be .* got torch.int64 of shape \(2, 1\)"):
        TreePositions(words, heads.expand(2, 1), padding)
    with pytest.raises(ValueError, match=r"padding_mask must be a torch.bool"):
        TreePositions(words, heads, padding.long())
    with pytest.raises(ValueError, match="unknown relation 'root', expected one of edge, path"):
        TreePositions(words, heads, padding).relative("root")


def test_distances_are_exact_under_autocast():
    # A chain: bfloat16 has no odd numbers above 256.
    words = torch.arange(600)[None]
    tree = TreePositions(words, (words - 1).clamp(min=0), torch.zeros(1, 600, dtype=torch.bool))
    with torch.autocast("cpu", torch.bfloat16):
        distances = tree.word_distances()
    assert torch.equal(distances, (words[:, :, None] - words[:, None]).abs())
