"""``--pretrained`` of translation models: what starts from a checkpoint, and what is refused."""

from __future__ import annotations

import logging
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import base_architecture
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.pretrained import (
    PretrainedOptions,
    begin_from_checkpoint,
    take_options,
)
from fairseq_phrase.data.store.dictionaries import labels_fingerprint
from fairseq_phrase.data.store.identity import OF_OTHER_DECODERS, OF_OTHER_TASKS
from fairseq_phrase.errors import UserError
from fairseq_phrase.testing import SIZES, encode, make_batch, make_dictionary
from tests.support.named_models import make_task, options

ENCODERS = {
    "masked": ("structural_transformer", {"structural_relative": True}, {}),
    "causal": ("phrase_transformer", {"phrase_init": "attention"}, {"objective": "causal"}),
    "plain": ("transformer", {}, {"next_sentence": True}),
}


def pretrained(folder, case, words=30):
    """A checkpoint of pre-training, whose dictionary has ``<mask>``."""
    name, encoder_options, objective = ENCODERS[case]
    dictionary = make_dictionary(words)
    dictionary.save(str(folder / "dict.txt"))
    dictionary.add_symbol("<mask>")
    task = make_task(dictionary, require_objective=lambda objective: None)
    torch.manual_seed(5)
    cfg = options("pretrainer", encoder=name, **encoder_options, **objective)
    model = MODEL_REGISTRY["pretrainer"].build_model(cfg, task)
    task_cfg = {"_name": "syntax_pretraining", "data": str(folder), "source_lang": None}
    path = folder / "pretrained.pt"
    cfg = OmegaConf.to_container(OmegaConf.create({"model": vars(cfg)}), resolve=True)
    torch.save({"cfg": {**cfg, "task": task_cfg}, "model": model.state_dict()}, path)
    return path, model


def translation(path, case, target=None, task=None, **changed):
    name, encoder_options, _ = ENCODERS[case]
    # fairseq's own architecture "transformer" has no dataclass; this one is the same without options.
    arch = {"transformer": "structural_transformer"}.get(name, name)
    dictionary = make_dictionary()
    task = task or make_task(dictionary, target_dictionary=target or dictionary)
    task.cfg = PretrainedOptions(pretrained=str(path))
    for option in vars(task.cfg).keys() & changed.keys():
        setattr(task.cfg, option, changed.pop(option))
    sizes = {f"decoder_{key}": 16 for key in ("embed_dim", "output_dim", "input_dim")}
    sizes |= {"decoder_attention_heads": 2, "decoder_layers": 1}
    cfg = options(arch, **{**sizes, **encoder_options, **changed})
    torch.manual_seed(6)
    model = MODEL_REGISTRY[arch].build_model(cfg, task)
    return model, task


@pytest.mark.parametrize("case", ENCODERS)
def test_all_parameters_of_the_encoder_are_loaded_without_the_mask(tmp_path, caplog, case):
    path, source = pretrained(tmp_path, case)
    model, task = translation(path, case)
    decoder = {name: value.clone() for name, value in model.decoder.state_dict().items()}
    with caplog.at_level(logging.INFO):
        begin_from_checkpoint(model, task.cfg, task)
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
    start = {"share_all_embeddings": True} if shared else {"pretrained_decoder_embeddings": True}
    model, task = translation(path, "plain", **start)
    begin_from_checkpoint(model, task.cfg, task)
    expected = source.encoder.embed_tokens.weight[:-1]
    assert torch.equal(model.decoder.embed_tokens.weight, expected)
    assert torch.equal(model.encoder.embed_tokens.weight, expected)
    is_shared = model.decoder.embed_tokens is model.encoder.embed_tokens
    assert is_shared == shared


def test_a_frozen_encoder_is_not_trained_and_has_no_dropout(tmp_path):
    path, _ = pretrained(tmp_path, "plain")
    model, task = translation(path, "plain", freeze_encoder=True)
    begin_from_checkpoint(model, task.cfg, task)
    model.train()
    encode(model, make_batch(make_dictionary(), [4]))
    assert not any(parameter.requires_grad for parameter in model.encoder.parameters())
    assert all(parameter.requires_grad for parameter in model.decoder.parameters())
    assert not any(module.training for module in model.encoder.modules())
    assert model.decoder.training


def test_a_frozen_encoder_with_random_parameters_is_warned_about(tmp_path, caplog):
    path, _ = pretrained(tmp_path, "plain")
    for begun, freeze in ((path, True), ("", False), ("", True)):
        assert "random parameters" not in caplog.text
        model, task = translation(begun, "plain", freeze_encoder=freeze)
        begin_from_checkpoint(model, task.cfg, task)
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
        begin_from_checkpoint(model, task.cfg, task)


def test_its_record_is_compared(tmp_path):
    path, _ = pretrained(tmp_path, "plain")
    model, task = translation(path, "plain")
    met = []
    task.check_record = lambda *arguments: met.append(arguments)
    begin_from_checkpoint(model, task.cfg, task)
    ((record, use, without),) = met
    assert (record.where, use, without) == (path, "continue", OF_OTHER_DECODERS)
    assert record.value("encoder") == "transformer"


def test_embeddings_of_the_decoder_need_a_checkpoint():
    model, task = translation("", "plain", pretrained_decoder_embeddings=True)
    with pytest.raises(UserError, match="give the checkpoint with --pretrained"):
        begin_from_checkpoint(model, task.cfg, task)


def translated(folder, arch="transformer", words=30, mask=False, **changed):
    """A checkpoint of stock fairseq, and its model."""
    dictionary = make_dictionary(words)
    if mask:
        dictionary.add_symbol("<mask>")
    for side in ("de", "en"):
        dictionary.save(str(folder / f"dict.{side}.txt"))
    sizes = {f"{side}_{key}": v for side in ("encoder", "decoder") for key, v in SIZES.items()}
    cfg = Namespace(arch=arch, **{**sizes, "dropout": 0.0, **changed})
    torch.manual_seed(8)
    model = ARCH_MODEL_REGISTRY[arch].build_model(cfg, make_task(dictionary))
    task = Namespace(_name="translation", data=str(folder), source_lang="de", target_lang="en")
    base_architecture(cfg)
    state = {"cfg": {"model": cfg, "task": task}, "model": model.state_dict()}
    torch.save(state, folder / "whole.pt")
    return folder / "whole.pt", model


def whole(path, arch="relation_transformer", words=30, **changed):
    """A model that starts from it."""
    dictionary = make_dictionary(words)
    task = make_task(dictionary)
    task.cfg = PretrainedOptions(pretrained_model=str(path))
    task.cfg.source_lang, task.cfg.target_lang = "de", "en"
    sizes = {f"{side}_{key}": v for side in ("encoder", "decoder") for key, v in SIZES.items()}
    cfg = options(arch, **{**sizes, **changed})
    torch.manual_seed(6)
    return MODEL_REGISTRY[arch].build_model(cfg, task), task


@pytest.mark.parametrize(
    ("theirs", "mask", "ours", "said"),
    [
        (30, False, 30, ""),
        (30, True, 30, "leaves out the last 1 entries of a dictionary"),
        (33, False, 30, "leaves out the last 3 entries of a dictionary"),
        (30, False, 32, "starts anew with the last 2 entries of a dictionary"),
    ],
)
def test_a_whole_model_is_loaded_and_dictionaries_may_differ_at_their_ends(
    tmp_path, caplog, theirs, mask, ours, said
):
    path, source = translated(tmp_path, words=theirs, mask=mask)
    model, task = whole(path, words=ours)
    new = model.decoder.embed_tokens.weight.detach().clone()
    with caplog.at_level(logging.INFO):
        pretrained_names = begin_from_checkpoint(model, task.cfg, task)
    expected, loaded = source.state_dict(), model.state_dict()
    for name in expected:
        shared = min(len(loaded[name]), len(expected[name])) if expected[name].dim() else None
        assert torch.equal(loaded[name][:shared], expected[name][:shared]), name
    entries = 4 + min(theirs, ours)
    assert torch.equal(loaded["decoder.embed_tokens.weight"][entries:], new[entries:])
    assert said in caplog.text
    assert ("entries of a dictionary" in caplog.text) == bool(said)
    assert pretrained_names == expected.keys()
    assert (
        "2 tensors are not in the checkpoint and start neutrally: encoder.layers.0" in caplog.text
    )


def test_another_dictionary_or_width_or_part_is_refused(tmp_path):
    path, _ = translated(tmp_path)
    for changed, message in (
        ({"encoder_ffn_embed_dim": 20}, "has the shape"),
        ({"decoder_layers": 3}, "its decoder has 2 layers, and here 3: give --decoder-layers 2"),
        ({"layernorm_embedding": True}, "lacks decoder.layernorm_embedding.*--take-options"),
    ):
        model, task = whole(path, **changed)
        with pytest.raises(UserError, match=f"--pretrained-model .*whole.pt.*{message}"):
            begin_from_checkpoint(model, task.cfg, task)
    other_dictionary = make_dictionary(29)
    other_dictionary.add_symbol("other")
    for side in ("de", "en"):
        other_dictionary.save(str(tmp_path / f"dict.{side}.txt"))
    model, task = whole(path)
    met = []
    task.check_record = lambda *arguments: met.append(arguments)
    begin_from_checkpoint(model, task.cfg, task)
    ((record, use, without),) = met
    assert (use, without) == ("continue", OF_OTHER_TASKS)
    assert record.value("source-dictionary") != labels_fingerprint([f"w{n}" for n in range(30)])


def test_options_are_taken_from_the_checkpoint(tmp_path, caplog):
    form = {
        "layernorm_embedding": True, "encoder_learned_pos": True, "decoder_learned_pos": True,
        "activation_fn": "gelu", "no_scale_embedding": True, "share_all_embeddings": True,
        "encoder_layers": 1, "decoder_ffn_embed_dim": 40,
    }  # fmt: skip
    path, _ = translated(tmp_path, **form)
    cfg = options("relation_transformer", dropout=0.25)
    with caplog.at_level(logging.INFO):
        take_options(cfg, path)
    assert {name: getattr(cfg, name) for name in form} == form
    assert cfg.encoder_embed_dim == cfg.decoder_output_dim == SIZES["embed_dim"]
    assert cfg.dropout == 0.25
    assert "activation_fn gelu" in caplog.text


def test_only_options_of_the_model_are_taken(tmp_path):
    """The configuration of an old architecture has those of the task, the optimizer and so on, too."""
    other_options = {"task": "translation", "lr": [0.5], "save_dir": "theirs"}
    path, _ = translated(
        tmp_path, share_all_embeddings=True, task="denoising", lr=[1.0], save_dir="x"
    )
    cfg = Namespace(**vars(options("relation_transformer")), **other_options)
    take_options(cfg, path)
    assert cfg.share_all_embeddings
    assert {name: getattr(cfg, name) for name in other_options} == other_options


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (-0.1, "-0.1: expected 0 or more"),
        (0.0, "give the checkpoint"),
        (0.5, "give the checkpoint"),
    ],
)
def test_the_scale_of_learning_rates_may_be_zero_and_needs_a_checkpoint(scale, message):
    options = SimpleNamespace(
        pretrained=None, pretrained_model=None, take_options=False,
        pretrained_decoder_embeddings=False, lr_scale_pretrained=scale,
    )  # fmt: skip
    model = SimpleNamespace(encoder=SimpleNamespace())
    with pytest.raises(UserError, match=f"--lr-scale-pretrained.*{message}"):
        begin_from_checkpoint(model, options, None)
