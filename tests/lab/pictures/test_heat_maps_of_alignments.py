"""Alignments: what each word of a translation attends to, for recurrent and Transformer decoders."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_phrase.checkpoints import loading
from fairseq_phrase.cli import plot
from fairseq_phrase.data.batches.raw_tokens import SourceDictionary
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import source_sentence
from fairseq_phrase.inference.encoder_maps import attention_picture
from fairseq_phrase.inference.source_sentence import SourceSentence
from fairseq_phrase.lab.pictures import heat_maps
from fairseq_phrase.lab.pictures.constituent_maps import nonterminal_shares
from fairseq_phrase.lab.pictures.heat_maps import alignment_picture, plot_alignment
from fairseq_phrase.lab.pictures.tree_picture import tree_picture
from fairseq_phrase.testing import any_label_dictionary, build_model, make_batch, make_dictionary
from tests.support import labellers
from tests.support.recurrent_models import build_recurrent


def make_sentence(dictionary, parsed=False):
    inputs = make_batch(dictionary, [5])
    inputs = inputs if parsed else {"src_tokens": inputs["src_tokens"]}
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=any_label_dictionary,
    )
    return task, SourceSentence.from_batch(inputs, task)


def picture(dictionary, model):
    return alignment_picture(model, *make_sentence(dictionary))


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_every_word_of_the_translation_attends_to_the_source(dictionary, tmp_path, name):
    model = build_recurrent(dictionary) if name == "seq2seq" else build_model(name, dictionary)
    alignment = picture(dictionary, model)
    assert alignment.weights.shape == (len(alignment.target), 6)
    assert alignment.source[-1] == alignment.target[-1] == "</s>"
    np.testing.assert_allclose(alignment.weights.sum(1), 1, rtol=1e-5)
    plot_alignment(alignment, tmp_path / "alignment.svg")
    drawn = (tmp_path / "alignment.svg").read_text(encoding="utf-8")
    assert alignment.source[0] in drawn


def test_a_line_of_the_data_has_words_also_for_an_encoder_that_does_not_read_them(
    dictionary, tmp_path
):
    tokens = make_batch(dictionary, [3])["src_tokens"]
    words = torch.tensor([[0, 0, 1, -1]])
    needed = []

    class Data(list):
        tgt = None

        def collater(self, sentences):
            read = {"src_words": words} if needed == ["model"] else {}
            parse = {"parse": {"words": words}} if needed == ["picture"] else {}
            return {"net_input": {"src_tokens": tokens, **read}, **parse}

    (tmp_path / "syntax.de.json").touch()
    task = Namespace(
        cfg=Namespace(data=str(tmp_path), source_lang="de"),
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        load_dataset=lambda subset: None,
        dataset=lambda subset: Data([0]),
        require_parses=lambda fields, for_model=True: needed.append(
            "model" if for_model else "picture"
        ),
        require_structure=lambda key, make: None,
        label_dictionary=lambda field: dictionary,
    )
    sentence = source_sentence.dataset_sentence(task, "test", 0)
    assert sentence.words.tolist() == words[0].tolist()
    alignment = alignment_picture(build_model("transformer", dictionary), task, sentence)
    assert alignment.weights.shape == (len(alignment.target), 4)


@pytest.mark.parametrize(
    ("marked", "shown"),
    [
        (["▁Ein", "▁Haus", "tür"], ["Ein", "[Haus]tür", "Haus[tür]"]),
        (["Ein", "Haus@@", "tür"], ["Ein", "[Haus]tür", "Haus[tür]"]),
    ],
)
def test_words_are_labelled_as_in_pictures_of_attention(monkeypatch, marked, shown):
    dictionary = Dictionary()
    indices = [*map(dictionary.add_symbol, marked), dictionary.eos()]
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    tokens = torch.tensor(indices)
    sentence = SourceSentence.from_batch({"src_tokens": tokens[None]}, task)
    # A model that has learned to copy.
    monkeypatch.setattr(heat_maps, "translate", lambda *_, **__: tokens)
    alignment = alignment_picture(build_model("transformer", dictionary), task, sentence)
    assert alignment.source == alignment.target == [*shown, "</s>"]
    model = build_model(
        "structural_transformer", dictionary, structural_relative=False, sequential_relative=True
    )
    assert attention_picture(model, sentence).labels == alignment.source


@pytest.mark.parametrize("copied", [["Qi"], []], ids=["known", "unknown"])
def test_words_that_are_copied_are_shown_where_they_are_known(copied):
    places = make_dictionary(1)
    places.add_symbol("<copy1>")
    first = places.index("<copy1>")
    task = Namespace(source_dictionary=places, target_dictionary=places)
    tokens = {"src_tokens": torch.tensor([[first, places.eos()]])}
    sentence = SourceSentence.from_batch(tokens, task, copied)
    word = "Qi" if copied else "<copy1>"
    assert sentence.tokens == [word, "</s>"]
    assert sentence.text == word
    model = build_recurrent(places, copy="pointer")
    # The end is the same word, so the model writes it to the longest length.
    model.decoder.source_words[places.eos()] = first
    alignment = alignment_picture(model, task, sentence)
    assert alignment.source == sentence.tokens
    assert {*alignment.target} == {word, "</s>"}


@pytest.mark.parametrize("name", ["transformer", "tree_transformer"])
def test_with_language_tags_a_translation_begins_and_ends_with_its_tag(name):
    tagged, words = SourceDictionary(), make_dictionary()
    for word in words.symbols[words.nspecial :]:
        tagged.add_symbol(word)
    tag = tagged.add_symbol("[en]")
    tagged.tags = (tag,)
    model = build_model(name, tagged)
    begins, decode = [], model.decoder.forward

    def noted(previous, *args, **options):
        begins.extend(previous[:, 0].tolist())
        return decode(previous, *args, **options)

    model.decoder.forward = noted
    task, sentence = make_sentence(tagged, parsed=name == "tree_transformer")
    assert alignment_picture(model, task, sentence).target[-1] == "[en]"
    if name == "tree_transformer":
        title = tree_picture(model, task, sentence).title
        assert not any(special in title for special in ("[en]", "</s>"))
    assert {*begins} == {tag}


def test_a_model_without_attention_is_named(dictionary):
    with pytest.raises(UserError, match="was trained with --attention none"):
        picture(dictionary, build_recurrent(dictionary, attention="none"))


@pytest.mark.parametrize("encoder", ["recurrent", "lstm", "tree_lstm", "han"])
def test_the_picture_of_a_recurrent_models_attention_is_its_alignment(
    dictionary, tmp_path, monkeypatch, encoder
):
    """Recurrent encoders do not attend to their own nodes."""
    model = build_recurrent(dictionary, encoder=encoder)
    task, sentence = make_sentence(dictionary, parsed=True)
    # In place of a checkpoint and its data directory.
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: (model, task))
    monkeypatch.setattr(source_sentence, "dataset_sentence", lambda *_: sentence)
    out = tmp_path / "attention.svg"
    plot.main(["attention", "DATA", "--path", "MODEL", "--line", "1", "--out", str(out)])
    assert "translation" in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["transformer", "tree_transformer"])
def test_a_model_that_labels_translates_nothing(dictionary, name):
    labeller = labellers.build("word", name)
    with pytest.raises(UserError, match="this model has no decoder, so it does not translate"):
        picture(dictionary, labeller)
    with pytest.raises(UserError, match="this model has no decoder, so it does not translate"):
        nonterminal_shares(labeller, [])
