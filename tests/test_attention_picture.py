"""Pictures of attention: what is in them, and when there is none."""

from __future__ import annotations

import numpy as np
import pytest
from test_phrase_transformer import batch, build, dictionary  # noqa: F401 - a fixture

from fairseq_phrase.attention.phrase_maps import AttentionPicture, attention_picture, plot_attention
from fairseq_phrase.errors import UserError


@pytest.fixture
def model(dictionary):  # noqa: F811
    return build(dictionary, phrase_max_length=2)


def test_nodes_are_labelled_with_their_text_and_padding_is_left_out(model, dictionary):  # noqa: F811
    inputs = batch(dictionary, [3], extra=2)
    picture = attention_picture(model, inputs, dictionary)
    words = [dictionary[index] for index in inputs["src_tokens"][0, :3].tolist()]
    assert picture.labels[:4] == [*words, "</s>"]
    assert picture.labels[4:] == [words[0] + words[1], words[1] + words[2]]
    for weights in (picture.all_nodes, picture.within_phrases):
        assert weights.shape == (6, 6)
        np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-5)
    assert picture.within_phrases[0, 2] == 0  # words 1 and 3 share no phrase
    assert picture.within_phrases[0, 4] > 0
    assert picture.title == "mean over layers, mean over heads"


def test_one_layer_and_head_are_one_part_of_the_mean(model, dictionary):  # noqa: F811
    inputs = batch(dictionary, [4])
    parts = [
        attention_picture(model, inputs, dictionary, layer, head).all_nodes
        for layer in (1, 2)
        for head in (1, 2)
    ]
    mean = attention_picture(model, inputs, dictionary).all_nodes
    np.testing.assert_allclose(sum(parts) / 4, mean, rtol=1e-5)
    assert not np.allclose(parts[0], parts[1])
    for arguments, expected in (
        ({"layer": 3}, "layers 1 to 2, not 3"),
        ({"head": 0}, "heads 1 to 2"),
    ):
        with pytest.raises(UserError, match=expected):
            attention_picture(model, inputs, dictionary, **arguments)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_drawn_in_every_format(tmp_path, suffix):
    picture = AttentionPicture(["Hund", "Hund … läuft"], np.eye(2), np.ones((2, 2)) / 2, "layer 1")
    path = tmp_path / "new" / f"attention.{suffix}"
    plot_attention(picture, path)
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(start)


def test_an_unknown_format_is_refused_with_those_there_are(tmp_path):
    picture = AttentionPicture(["x"], np.eye(1), np.eye(1), "")
    with pytest.raises(UserError, match=r"must be one of .*png"):
        plot_attention(picture, tmp_path / "attention.docx")
