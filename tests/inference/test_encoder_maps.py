"""Pictures of an encoder's attention: what is in them, what is drawn, and when there is none."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.encoder_maps import (
    MAX_NODES,
    AttentionPicture,
    Panel,
    attention_picture,
)
from fairseq_phrase.inference.source_sentence import SourceSentence
from fairseq_phrase.lab.pictures.figures import save
from fairseq_phrase.lab.pictures.heat_maps import draw_attention, plot_attention
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder
from tests.support import structural_models as structural
from tests.support import tree_models as tree
from tests.support.phrase_models import batch, build
from tests.support.tree_strategies import grown


def sentence_of(inputs, dictionary):
    task = Namespace(source_dictionary=dictionary, label_dictionary=lambda field: tree.labels())
    return SourceSentence.from_batch(inputs, task)


@pytest.fixture
def model(dictionary):
    return build(dictionary, phrase_max_length=2)


def test_phrases_come_after_tokens_and_padding_is_left_out(model, dictionary):
    inputs = batch(dictionary, [4], extra=2)
    picture = attention_picture(model, sentence_of(inputs, dictionary))
    a, b, c, d = (dictionary[index] for index in inputs["src_tokens"][0, :4].tolist())
    # The first three subwords are one word.
    assert picture.labels[:5] == [f"[{a}]{b}{c}", f"{a}[{b}]{c}", f"{a}{b}[{c}]", d, "</s>"]
    assert picture.labels[5:] == [f"[{a}{b}]{c}", f"{a}[{b}{c}]", f"{a}{b}[{c}] {d}"]
    assert picture.sentence == f"{a}{b}{c} {d}"
    assert (picture.num_tokens, picture.other_kind) == (5, "phrases")
    assert picture.words.tolist() == [0, 0, 0, 1, -1, -1, -1, -1]
    for panel in picture.panels:
        assert panel.values.shape == (8, 8)
        np.testing.assert_allclose(panel.values.sum(1), 1, rtol=1e-5)
    within = picture.panels[1].values
    assert within[0, 2] == 0  # subwords 1 and 3 share no phrase
    assert within[0, 5] > 0


def test_the_last_layer_is_drawn_unless_another_is_named(model, dictionary):
    sentence = sentence_of(batch(dictionary, [4]), dictionary)
    parts = {
        (layer, head): attention_picture(model, sentence, layer, head).panels[0].values
        for layer in (1, 2)
        for head in (1, 2)
    }
    default = attention_picture(model, sentence)
    np.testing.assert_allclose((parts[2, 1] + parts[2, 2]) / 2, default.panels[0].values, rtol=1e-5)
    assert default.subtitle == "layer 2 of 2, mean over 2 heads"
    mean = attention_picture(model, sentence, "mean", "last")
    np.testing.assert_allclose((parts[1, 2] + parts[2, 2]) / 2, mean.panels[0].values, rtol=1e-5)
    assert mean.subtitle == "mean over 2 layers, head 2 of 2"
    assert not np.allclose(parts[1, 1], parts[1, 2])
    for arguments, expected in (
        ({"layer": 3}, "layers 1 to 2, not 3"),
        ({"head": 0}, "heads 1 to 2"),
    ):
        with pytest.raises(UserError, match=expected):
            attention_picture(model, sentence, **arguments)


def test_relative_positions_are_drawn_beside_the_attention(dictionary):
    options = {"sequential_relative": True, "structural_relative": True, "relative_clip": 2}
    model = structural.build(dictionary, **options)
    inputs = structural.batch(dictionary, [0])
    picture = attention_picture(model, sentence_of(inputs, dictionary), layer=1, head=2)
    in_sentence, in_tree, attention = picture.panels
    assert [panel.is_attention for panel in picture.panels] == [False, False, True]
    order = np.arange(len(picture.labels))
    assert np.array_equal(in_sentence.values, np.clip(order[:, None] - order, -2, 2))
    is_padding = inputs["src_tokens"].eq(dictionary.pad())
    tree_positions = TreePositions(inputs["src_words"], inputs["src_heads"], is_padding)
    expected = tree_positions.relative("edge")[0].numpy()
    assert np.array_equal(in_tree.values, np.clip(expected, -16, 16))
    _, maps = model.encoder.attention_maps(**inputs)
    np.testing.assert_allclose(attention.values, maps[0]["all nodes"][0, 1].detach(), rtol=1e-5)
    assert [panel.title for panel in picture.panels] == [
        "relative position in the sentence", "relative position in the tree", "attention",
    ]  # fmt: skip
    assert picture.other_kind == ""


def test_constituents_are_nodes_too(dictionary):
    inputs = tree.batch(dictionary, [grown(6, 5, 4)])
    picture = attention_picture(tree.build(dictionary), sentence_of(inputs, dictionary))
    assert picture.other_kind == "constituents"
    assert len(picture.labels) == picture.num_tokens + 5
    assert picture.labels[-1].partition(": ")[0] in {"NP", "VP", "S"}
    (panel,) = picture.panels
    np.testing.assert_allclose(panel.values.sum(1), 1, rtol=1e-5)


def test_nodes_that_are_not_phrases_are_not_called_so(model, dictionary, monkeypatch):
    encode = model.encoder.attention_maps

    def with_a_structure_of_its_own(**inputs):
        phrases, maps = encode(**inputs)
        return Namespace(members=phrases.members), maps

    monkeypatch.setattr(model.encoder, "attention_maps", with_a_structure_of_its_own)
    picture = attention_picture(model, sentence_of(batch(dictionary, [3]), dictionary))
    assert (picture.num_tokens, picture.other_kind) == (4, "other nodes")


def test_nodes_that_the_encoder_does_not_list_are_not_left_out_silently(
    model, dictionary, monkeypatch
):
    inputs = batch(dictionary, [3])
    monkeypatch.setattr(type(model.encoder), "node_members", SyntaxEncoder.node_members)
    with pytest.raises(UserError, match=r"attends to 6 nodes .* node_members lists 4"):
        attention_picture(model, sentence_of(inputs, dictionary))


def test_an_encoder_without_maps_and_a_sentence_that_is_too_long_are_refused(model, dictionary):
    sentence = sentence_of(batch(dictionary, [2]), dictionary)
    stock = Namespace(encoder=Namespace())
    with pytest.raises(UserError, match="gives no attention maps"):
        attention_picture(stock, sentence)
    long = sentence_of(batch(dictionary, [MAX_NODES]), dictionary)
    with pytest.raises(UserError, match=f"{MAX_NODES + 1} tokens, and a picture shows at most"):
        attention_picture(stock, long)  # before anything is computed
    many = sentence_of(batch(dictionary, [MAX_NODES - 10]), dictionary)
    with pytest.raises(
        UserError, match=r"nodes \(tokens and phrases\), and a picture shows at most"
    ):
        attention_picture(model, many)


def picture_of(labels, num_tokens=None, panels=1, words=None):
    nodes = len(labels)
    words = np.arange(nodes) if words is None else np.array(words)
    weights = np.linspace(0, 1, nodes * nodes).reshape(nodes, nodes)
    positions = Panel("positions", np.arange(nodes)[:, None] - np.arange(nodes), False)
    return AttentionPicture(
        "a sentence", labels, words, num_tokens or nodes, "phrases", "layer 1 of 1",
        [positions, *[Panel("attention", weights)] * panels],
    )  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_drawn_in_every_format(tmp_path, suffix):
    path = tmp_path / "new" / f"attention.{suffix}"
    plot_attention(picture_of(["Hund", "Hund … läuft"]), path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


@pytest.mark.fast(1)
@pytest.mark.parametrize("nodes", [1, 12, 100])
def test_a_picture_of_any_size_is_whole_and_can_be_looked_at(tmp_path, nodes):
    import matplotlib.image

    path = tmp_path / "attention.png"
    # Two dollar signs would begin a formula.
    picture = picture_of(["$Donaudampfschifffahrt_$ … der Gesellschaft"] * nodes)
    figure = draw_attention(picture, path)
    figure.canvas.draw()
    for axes in figure.axes[:2]:
        for text in (axes.xaxis.label, axes.yaxis.label, axes.title, *axes.get_yticklabels()):
            x0, y0, x1, y1 = text.get_window_extent().extents
            assert min(x0, y0) >= 0
            assert x1 <= figure.bbox.width
            assert y1 <= figure.bbox.height
    save(figure, path)
    height, width = matplotlib.image.imread(path).shape[:2]
    assert width <= 2600 * len(picture.panels)
    assert height <= 2600


def test_boundaries_are_drawn_between_words_and_after_the_tokens(tmp_path):
    figure = draw_attention(
        picture_of(["a", "[b]c", "b[c]", "a b"], num_tokens=3, words=[0, 1, 1, -1]),
        tmp_path / "a.png",
    )
    (axes, *_) = figure.axes
    thin, _, thick, _ = axes.collections
    assert [segment[0, 1] for segment in thin.get_segments()] == [0.5]  # none within a word
    assert [segment[0, 1] for segment in thick.get_segments()] == [2.5]
    assert thick.get_linewidth()[0] > 2 * thin.get_linewidth()[0]
    assert axes.get_xlabel() == "attended to: 3 tokens | 1 phrase"
    assert figure.get_suptitle() == "a sentence\nlayer 1 of 1"


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path):
    with pytest.raises(UserError, match=r"must be one of .*png"):
        plot_attention(picture_of(["x"]), tmp_path / "attention.docx")
