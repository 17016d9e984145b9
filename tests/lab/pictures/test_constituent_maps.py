"""What a tree Transformer attends to: shares, pictures, and the commands' errors."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_phrase.data.subwords.protected_tokens import words_by_marks
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.source_sentence import SourceSentence
from fairseq_phrase.lab.pictures import constituent_maps as tree_attention
from fairseq_phrase.lab.pictures import tree_picture
from fairseq_phrase.lab.pictures.constituent_maps import Share, nonterminal_shares, shares_table
from fairseq_phrase.lab.pictures.tree_picture import MAX_LEAVES, TreePicture, layout, plot_tree
from tests.support.phrase_models import WORDS
from tests.support.phrase_models import build as build_phrase_transformer
from tests.support.report_table import table_lines
from tests.support.tree_models import batch, build, labels, of_sentence
from tests.support.tree_strategies import Tree, flat, grown

FOREST = [grown(6, 5, 4), flat(4), Tree(1, [], [-1])]


def samples(dictionary, forest, extra=0):
    """Batches as a data set makes them; targets of different lengths."""
    generator = torch.Generator().manual_seed(1)
    previous = torch.full((len(forest), 5), dictionary.pad())
    for row in range(len(forest)):
        length = 3 + row % 3
        drawn = torch.randint(4, 20, (length,), generator=generator)
        previous[row, :length] = drawn
        previous[row, 0] = dictionary.eos()
    inputs = batch(dictionary, forest, extra=extra)
    return {"net_input": {**inputs, "prev_output_tokens": previous}}


@pytest.mark.parametrize("masking", [True, False])
def test_shares_are_means_over_everything_that_attends_with_a_choice(dictionary, masking):
    model = build(dictionary, no_subtree_masking=not masking)
    sample = samples(dictionary, FOREST, extra=2)
    shares = nonterminal_shares(model, [sample])
    assert [(share.attention, share.layer) for share in shares] == [
        ("cross", 1), ("cross", 2), ("self", 1), ("self", 2),
    ]  # fmt: skip
    previous = sample["net_input"]["prev_output_tokens"]
    masses = {("cross", 0): [], ("cross", 1): [], ("self", 0): [], ("self", 1): []}
    nodes = {"cross": [], "self": []}
    for row, tree in enumerate(FOREST[:2]):  # the third has no constituents
        inputs = of_sentence(sample["net_input"], row, tree)
        length = int(previous[row].ne(dictionary.pad()).sum())
        n, m = tree.leaves + 1, len(tree.parents)
        encoded = model.encoder(**inputs)
        _, maps = model.encoder.attention_maps(**inputs)
        for layer in (0, 1):
            _, extra = model.decoder(
                previous[row : row + 1, :length], encoder_out=encoded, alignment_layer=layer
            )
            for position in range(length):
                masses["cross", layer].append(float(extra["node_attn"][0][0, position, n:].sum()))
            for query in range(n if masking else 0, n + m):
                masses["self", layer].append(
                    float(maps[layer]["all nodes"][0, :, query, n:].sum(-1).mean())
                )
        nodes["cross"] += [m / (n + m)] * length
        for query in range(n if masking else 0, n + m):
            below = sum(query - n in tree.path(query - n, j) for j in range(tree.leaves))
            inside = [t for t in range(m) if set(tree.under(t)) <= set(tree.under(query - n))]
            inside = [t for t in inside if t <= query - n]
            nodes["self"].append(len(inside) / (below + len(inside)) if masking else m / (n + m))
    for share in shares:
        expected = masses[share.attention, share.layer - 1]
        assert share.on_nonterminals == pytest.approx(np.mean(expected), rel=1e-5)
        assert share.of_nodes == pytest.approx(np.mean(nodes[share.attention]), rel=1e-5)


def test_batches_add_up_whatever_their_padding(dictionary):
    model = build(dictionary)
    batch = samples(dictionary, FOREST)
    parts = []
    for row, tree in enumerate(FOREST):
        previous = batch["net_input"]["prev_output_tokens"][row : row + 1]
        parts.append(
            {
                "net_input": {
                    **of_sentence(batch["net_input"], row, tree),
                    "prev_output_tokens": previous,
                }
            }
        )
    for actual, expected in zip(
        nonterminal_shares(model, [batch]), nonterminal_shares(model, parts), strict=True
    ):
        assert actual.on_nonterminals == pytest.approx(expected.on_nonterminals, rel=1e-6)
        assert actual.of_nodes == pytest.approx(expected.of_nodes, rel=1e-6)


def test_the_table_has_a_row_for_each_layer_and_the_means():
    shares = [
        Share("cross", 1, 0.6, 0.4), Share("cross", 2, 0.5, 0.4), Share("self", 1, 0.75, 0.45)
    ]  # fmt: skip
    _, first, *_, cross, self_line = table_lines(shares_table(shares))
    assert first == ["cross", "1", "60.0%", "40.0%"]
    assert [cross, self_line] == [
        ["cross", "mean", "55.0%", "40.0%"],
        ["self", "mean", "75.0%", "45.0%"],
    ]


def test_nothing_to_measure_is_an_error(dictionary):
    model = build(dictionary)
    for batches in ([], [samples(dictionary, [Tree(1, [], [-1])])]):
        with pytest.raises(UserError, match="no sentence has constituents"):
            nonterminal_shares(model, batches)
    with pytest.raises(UserError, match="not a tree Transformer"):
        nonterminal_shares(build_phrase_transformer(dictionary), [samples(dictionary, FOREST)])


@pytest.fixture(scope="module")
def whole_words() -> Dictionary:
    """A dictionary in which every subword begins a word."""
    dictionary = Dictionary()
    for number in range(WORDS):
        dictionary.add_symbol(f"▁w{number}")
    return dictionary


def drawn(model, dictionary, inputs, **options):
    task = task_of(dictionary)
    return tree_picture.tree_picture(
        model, task, SourceSentence.from_batch(inputs, task), **options
    )


def task_of(dictionary):
    return Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=lambda field: labels(),
    )


def test_a_picture_has_the_trees_nodes_and_the_attention_of_a_translation(whole_words):
    dictionary = whole_words
    model = build(dictionary)
    tree = FOREST[0]
    inputs = batch(dictionary, [tree], extra=2)
    picture = drawn(model, dictionary, inputs, layer="mean")
    words = [dictionary[index].removeprefix("▁") for index in inputs["src_tokens"][0, :7].tolist()]
    assert picture.labels == [*words, *(["NP", "VP", "S"] * 2)[:5]]
    assert picture.leaves == 7
    above = [node + 7 if node >= 0 else -1 for node in tree.above] + [-1]
    parents = [node + 7 if node >= 0 else -1 for node in tree.parents]
    assert picture.parents.tolist() == above + parents
    assert picture.mass.sum() == pytest.approx(1)
    assert picture.title.endswith("mean over 2 layers")
    # Once more by hand.
    tokens = tree_attention.translate(model, inputs, dictionary)
    previous = torch.cat([tokens[-1:], tokens[:-1]]).unsqueeze(0)
    alone = of_sentence(inputs, 0, tree)
    encoded = model.encoder(**alone)
    layers = [
        model.decoder(previous, encoder_out=encoded, alignment_layer=layer)[1]["node_attn"][0][0]
        for layer in (0, 1)
    ]
    np.testing.assert_allclose(picture.mass, torch.stack(layers).mean((0, 1)).detach(), rtol=1e-4)
    second = drawn(model, dictionary, inputs, layer=2)
    np.testing.assert_allclose(second.mass, layers[1].mean(0).detach(), rtol=1e-4)
    assert second.title.startswith(f"“{dictionary[int(tokens[0])][1:]} ")
    assert second.title.endswith("layer 2 of 2")


def test_the_encoders_attention_is_the_mean_over_nodes(dictionary):
    model = build(dictionary)
    inputs = batch(dictionary, [FOREST[0]])
    picture = drawn(model, dictionary, inputs, layer=1, encoder=True)
    _, maps = model.encoder.attention_maps(**inputs)
    np.testing.assert_allclose(
        picture.mass, maps[0]["all nodes"][0].mean((0, 1)).detach(), rtol=1e-4
    )
    assert picture.title == "the encoder, layer 1 of 2"


def test_the_title_has_the_words_of_the_translation():
    for subwords in (["▁ein", "▁Hun", "d", "▁läuft"], ["ein", "Hun@@", "d", "läuft"]):
        words = words_by_marks(subwords, ())
        assert SourceSentence({}, subwords, words, []).text == "ein Hund läuft"


def test_layers_and_models_that_are_not_there_are_refused(dictionary):
    inputs = batch(dictionary, [FOREST[0]])
    with pytest.raises(UserError, match="layers 1 to 2, not 3"):
        drawn(build(dictionary), dictionary, inputs, layer=3)
    with pytest.raises(UserError, match="not a tree Transformer"):
        drawn(build_phrase_transformer(dictionary), dictionary, inputs)


def test_parents_stand_above_the_middle_of_their_children():
    places = layout([3, 3, 4, 4, -1], 3)
    assert places.tolist() == [[0, 0], [1, 0], [2, 0], [0.5, 1], [1.25, 2]]


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_trees_are_drawn_in_every_format(tmp_path, suffix):
    mass = np.array([0.2, 0.3, 0.1, 0.4])
    picture = TreePicture(
        "Hund läuft", ["Hund", "läuft", "</s>", "S"], np.array([3, 3, -1, -1]), 3, mass, "x"
    )
    path = tmp_path / "new" / f"tree.{suffix}"
    plot_tree(picture, path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_a_sentence_without_constituents_is_drawn_too(tmp_path, dictionary):
    inputs = batch(dictionary, [Tree(1, [], [-1])])
    picture = drawn(build(dictionary), dictionary, inputs)
    assert picture.parents.tolist() == [-1, -1]
    plot_tree(picture, tmp_path / "tree.png")
    assert (tmp_path / "tree.png").stat().st_size > 1000


def test_a_sentence_of_too_many_tokens_is_refused(dictionary):
    inputs = batch(dictionary, [flat(MAX_LEAVES)])
    with pytest.raises(UserError, match=f"{MAX_LEAVES + 1} tokens, and a picture shows at most"):
        drawn(build(dictionary), dictionary, inputs)


@pytest.mark.slow
def test_the_largest_tree_can_be_looked_at(tmp_path):
    import matplotlib.image

    parents = [*range(MAX_LEAVES, 2 * MAX_LEAVES - 1), 2 * MAX_LEAVES - 2]
    parents += [*range(MAX_LEAVES + 1, 2 * MAX_LEAVES - 1), -1]  # a chain
    mass = np.full(2 * MAX_LEAVES - 1, 1 / (2 * MAX_LEAVES - 1))
    labels = ["$w_$"] * len(mass)
    plot_tree(
        TreePicture("x", labels, np.array(parents), MAX_LEAVES, mass, "x"), tmp_path / "t.png"
    )
    height, width = matplotlib.image.imread(tmp_path / "t.png").shape[:2]
    assert width <= 6500
    assert height <= 5500
