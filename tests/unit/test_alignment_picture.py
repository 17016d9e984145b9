"""Alignments: what each word of a translation attends to, for recurrent and Transformer decoders."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch

from fairseq_phrase.attention.alignment_picture import alignment_picture, plot_alignment
from fairseq_phrase.attention.source_sentence import SourceSentence
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.loading import register_all
from tests.support.parsed_batches import build_model, build_recurrent, make_batch, make_dictionary

register_all()


def picture(dictionary, model):
    tokens = make_batch(dictionary, [5])["src_tokens"]
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    return alignment_picture(model, task, SourceSentence.of_batch({"src_tokens": tokens}, task))


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_every_word_of_the_translation_attends_to_the_source(dictionary, tmp_path, name):
    model = build_recurrent(dictionary) if name == "seq2seq" else build_model(name, dictionary)
    found = picture(dictionary, model)
    assert found.weights.shape == (len(found.target), 6)
    assert found.source[-1] == found.target[-1] == "</s>"
    np.testing.assert_allclose(found.weights.sum(1), 1, rtol=1e-5)
    plot_alignment(found, tmp_path / "alignment.svg")
    drawn = (tmp_path / "alignment.svg").read_text(encoding="utf-8")
    assert found.source[0] in drawn


@pytest.mark.parametrize("copied", [["Qi"], []], ids=["known", "unknown"])
def test_words_that_are_copied_are_shown_where_they_are_known(copied):
    places = make_dictionary(1)
    places.add_symbol("<copy1>")
    first = places.index("<copy1>")
    task = Namespace(source_dictionary=places, target_dictionary=places)
    tokens = {"src_tokens": torch.tensor([[first, places.eos()]])}
    sentence = SourceSentence.of_batch(tokens, task, copied)
    shown = "Qi" if copied else "<copy1>"
    assert sentence.tokens == [shown, "</s>"]
    assert sentence.text == shown
    model = build_recurrent(places, copy="pointer")
    # The end is the same word, so the model writes it to the longest length.
    model.decoder.source_words[places.eos()] = first
    found = alignment_picture(model, task, sentence)
    assert found.source == sentence.tokens
    assert {*found.target} == {shown, "</s>"}


def test_a_model_without_attention_is_named(dictionary):
    with pytest.raises(UserError, match="was trained with --attention none"):
        picture(dictionary, build_recurrent(dictionary, attention="none"))
