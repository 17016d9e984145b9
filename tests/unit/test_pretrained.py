"""``--pretrained`` of translation models: what starts from a checkpoint, and what is refused."""

from __future__ import annotations

import logging
from argparse import Namespace

import pytest
import torch
from fairseq.models import MODEL_REGISTRY

from fairseq_phrase.errors import UserError
from tests.support.named_models import make_task, options
from tests.support.parsed_batches import make_dictionary

ENCODERS = {
    "masked": ("structural_transformer", {"structural_relative": True}, {}),
    "causal": ("phrase_transformer", {"phrase_init": "attention"}, {"objective": "causal"}),
    "plain": ("transformer", {}, {"next_sentence": True}),
}


def pretrained(folder, case, words=30):
    """A checkpoint of pre-training, whose dictionary has ``<mask>``."""
    name, own, objective = ENCODERS[case]
    dictionary = make_dictionary(words)
    dictionary.save(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    task = make_task(dictionary, require_objective=lambda objective: None)
    torch.manual_seed(5)
    cfg = options("pretrainer", encoder=name, **own, **objective)
    model = MODEL_REGISTRY["pretrainer"].build_model(cfg, task)
    task_cfg = {"_name": "syntax_pretraining", "data": str(folder), "source_lang": None}
    path = folder / "pretrained.pt"
    state = {"cfg": {"model": vars(cfg), "task": task_cfg}, "model": model.state_dict()}
    torch.save(state, path)
    return path, model


def translation(path, case, target=None, task=None, **changed):
    name, own, _ = ENCODERS[case]
    # fairseq's own architecture "transformer" has no --pretrained; this one is the same without options.
    arch = {"transformer": "structural_transformer"}.get(name, name)
    dictionary = make_dictionary()
    task = task or make_task(dictionary, target_dictionary=target or dictionary)
    sizes = {f"decoder_{key}": 16 for key in ("embed_dim", "output_dim", "input_dim")}
    sizes |= {"decoder_attention_heads": 2, "decoder_layers": 1}
    cfg = options(arch, pretrained=str(path), **sizes, **own, **changed)
    torch.manual_seed(6)
    model = MODEL_REGISTRY[arch].build_model(cfg, task)
    return model, task


@pytest.mark.parametrize("case", ENCODERS)
def test_all_parameters_of_the_encoder_are_loaded_without_the_mask(tmp_path, caplog, case):
    path, source = pretrained(tmp_path, case)
    model, task = translation(path, case)
    decoder = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    with caplog.at_level(logging.INFO):
        model.load_pretrained(task)
    expected = source.encoder.state_dict()
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, expected[name][: len(value)] if value.dim() else expected[name])
    assert all(torch.equal(decoder[name], v) for name, v in model.decoder.state_dict().items())
    assert "are new" not in caplog.text
    assert "cannot be compared" not in caplog.text
    assert "are not used" not in caplog.text


@pytest.mark.parametrize("shared", [False, True])
def test_the_decoders_embeddings_start_from_the_checkpoint(tmp_path, shared):
    path, source = pretrained(tmp_path, "plain")
    given = {"share_all_embeddings": True} if shared else {"pretrained_decoder_embeddings": True}
    model, task = translation(path, "plain", **given)
    model.load_pretrained(task)
    expected = source.encoder.embed_tokens.weight[:-1]
    assert torch.equal(model.decoder.embed_tokens.weight, expected)
    assert torch.equal(model.encoder.embed_tokens.weight, expected)
    same = model.decoder.embed_tokens is model.encoder.embed_tokens
    assert same == shared


def test_a_frozen_encoder_is_not_trained_and_has_no_dropout(tmp_path):
    path, _ = pretrained(tmp_path, "plain")
    model, _ = translation(path, "plain", freeze_encoder=True)
    model.train()
    assert not any(each.requires_grad for each in model.encoder.parameters())
    assert all(each.requires_grad for each in model.decoder.parameters())
    assert not any(module.training for module in model.encoder.modules())
    assert model.decoder.training


def test_a_frozen_encoder_with_random_parameters_is_warned_about(tmp_path, caplog):
    path, _ = pretrained(tmp_path, "plain")
    for start, freeze in ((path, True), ("", False), ("", True)):
        assert "random parameters" not in caplog.text
        model, task = translation(start, "plain", freeze_encoder=freeze)
        model.load_pretrained(task)
    assert caplog.text.count("--freeze-encoder without --pretrained: the encoder keeps its") == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder_ffn_embed_dim": 20}, r"has the shape \(24,\), and here \(20,\)"),
        ({"encoder_embed_dim": 8}, "has the shape"),
        ({"target": make_dictionary(9), "pretrained_decoder_embeddings": True}, "--joined-dict"),
    ],
)
def test_other_sizes_are_refused(tmp_path, changed, message):
    path, _ = pretrained(tmp_path, "plain")
    model, task = translation(path, "plain", **changed)
    with pytest.raises(UserError, match=message):
        model.load_pretrained(task)


def test_its_record_is_compared(tmp_path):
    path, _ = pretrained(tmp_path, "plain")
    model, task = translation(path, "plain")
    met = []
    task.meet = lambda *arguments: met.append(arguments)
    model.load_pretrained(task)
    ((record, where, door),) = met
    assert (where, door) == (path, "pretrained")
    assert record.value("encoder") == "transformer"


def test_fairseqs_translation_task_cannot_load_it(tmp_path):
    path, _ = pretrained(tmp_path, "plain")
    dictionary = make_dictionary()
    stock = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    with pytest.raises(UserError, match="--pretrained: use --task syntax_translation"):
        translation(path, "plain", task=stock)


def test_embeddings_of_the_decoder_need_a_checkpoint(tmp_path):
    with pytest.raises(UserError, match="give the checkpoint with --pretrained"):
        translation("", "plain", pretrained_decoder_embeddings=True)
