"""Training of relation biases: which are trained, by an optimizer and beside peft's adapters."""

from __future__ import annotations

import re

import pytest
import torch
import transformers
from peft import (
    AutoPeftModelForTokenClassification,
    IA3Config,
    LoraConfig,
    PeftModel,
    get_peft_model,
)
from transformers import AutoModelForSeq2SeqLM, AutoModelForTokenClassification

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import (
    add_relation_bias,
    from_pretrained,
    lora_options,
    parameter_groups,
)
from tests.support.huggingface_models import add_adapter_of_transformers, small_config

LABELS = ["det", "nsubj", "root"]
MODULES = ["relation_bias", "relation_vectors"]
#: A model type, and the modules that an adapter changes where peft has no default.
TYPES = {
    "bert": None, "roberta": None, "modernbert": ["Wqkv", "Wo"], "llama": None,
    "distilbert": ["q_lin", "v_lin"], "m2m_100": ["q_proj", "v_proj"], "bart": None, "t5": None,
}  # fmt: skip


def biased(model_type="bert", **options):
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=30)
    if config.is_encoder_decoder:
        config.decoder_start_token_id = 2
    model = auto_class_of(config).from_config(config)
    return add_relation_bias(model, labels=LABELS, **{"vectors": True, **options})


def auto_class_of(config):
    is_seq2seq = config.is_encoder_decoder
    return AutoModelForSeq2SeqLM if is_seq2seq else AutoModelForTokenClassification


def task_of(model):
    return "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "TOKEN_CLS"


def batch(model):
    tokens = torch.arange(4, 16).view(2, 6)
    targets = torch.tensor([[4, 5], [6, 7]]) if model.config.is_encoder_decoder else tokens % 2
    return {
        "input_ids": tokens,
        "src_words": torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, 2, 2, -1]]),
        "src_heads": torch.tensor([[1, 2, 2], [1, 1, 1]]),
        "src_deprels": torch.tensor([[0, 1, 2], [1, 2, 0]]),
        "labels": targets,
    }


def relation_parameters(model):
    return {n: p for n, p in model.named_parameters() if ".relation_" in n and p.requires_grad}


def trained(model, steps=2):
    inner = model.get_base_model() if isinstance(model, PeftModel) else model
    adam = torch.optim.AdamW(parameter_groups(model, lr=1e-3, bias_lr=1e-1))
    model.train()
    for _ in range(steps):
        model(**batch(inner)).loss.backward()
        adam.step()
        adam.zero_grad()
    return model.eval()


def outputs(model, of):
    with torch.no_grad():
        return model.eval()(**batch(of)).logits


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(task_type="TOKEN_CLS"),
        LoraConfig(task_type="TOKEN_CLS", modules_to_save=["classifier"], bias="all"),
        IA3Config(task_type="TOKEN_CLS"),
    ],
)
def test_an_ordinary_adapter_freezes_the_biases_and_training_stops(config):
    model = get_peft_model(biased(), config)
    needed = r"modules_to_save=\['relation_bias', 'relation_vectors'\]"
    with pytest.raises(UserError, match=rf"layer\.0.*relation_bias is 0, takes no .*{needed}"):
        model.train()(**batch(model))
    with pytest.raises(UserError, match=f"parameter_groups: .* takes no gradient: .*{needed}"):
        parameter_groups(model, 1e-3, 1e-2)
    outputs(model, model)  # without training


def test_a_frozen_encoder_with_a_trained_head_stops():
    model = biased(vectors=False)
    model.bert.requires_grad_(False)
    with pytest.raises(
        UserError, match=r"modules_to_save=\['relation_bias'\]; without it, requires"
    ):
        model.train()(**batch(model))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("bert") or ".relation_bias." in name)
    trained(model)
    assert all(table.any() for name, table in relation_parameters(model).items() if "tree" in name)


def test_one_frozen_bias_is_named():
    model = biased()
    name = "bert.encoder.layer.1.attention.self.relation_vectors"
    model.get_submodule(name).value_vectors.label_bias.requires_grad_(False)
    for refused in (
        lambda: model.train()(**batch(model)),
        lambda: parameter_groups(model, 1e-3, 1e-2),
    ):
        with pytest.raises(UserError, match=re.escape(name)):
            refused()


def test_trained_biases_may_be_frozen_afterwards():
    model = biased()
    for table in relation_parameters(model).values():
        torch.nn.init.normal_(table)
    adapted = get_peft_model(model, LoraConfig(task_type="TOKEN_CLS"))
    adapted.train()(**batch(model)).loss.backward()
    with pytest.raises(UserError, match=r"parameter_groups: .* takes no gradient"):
        parameter_groups(adapted, 1e-3, 1e-2)


def test_a_frozen_bias_of_0_is_named_beside_trained_ones():
    model = biased()
    tables = relation_parameters(model)
    for table in tables.values():
        torch.nn.init.normal_(table)
        table.requires_grad_(False)
    model.train()(**batch(model))
    name = "bert.encoder.layer.1.attention.self.relation_vectors"
    torch.nn.init.zeros_(model.get_submodule(name).value_vectors.label_bias)
    with pytest.raises(UserError, match=f"{re.escape(name)} is 0, takes no gradient"):
        model(**batch(model))


def test_biases_have_a_learning_rate_of_their_own_and_no_weight_decay():
    model = biased()
    weights, biases = torch.optim.AdamW(parameter_groups(model, 1e-3, 1e-2)).param_groups
    assert (weights["lr"], biases["lr"]) == (1e-3, 1e-2)
    assert weights["weight_decay"] > biases["weight_decay"] == 0
    assert {*biases["params"]} == {*relation_parameters(model).values()}


def test_biases_that_the_adapter_would_lack_stop_training():
    adapted = get_peft_model(biased(), LoraConfig(task_type="TOKEN_CLS"))
    for name, parameter in adapted.named_parameters():
        if ".relation_" in name:
            parameter.requires_grad_(True)
    late = add_relation_bias(transformers.BertForTokenClassification(small_config("bert")))
    add_adapter_of_transformers(late, LoraConfig())
    late.requires_grad_(True)
    for model in (adapted, late):
        with pytest.raises(
            UserError, match=r"relation_bias is trained, but the adapter lacks it: "
        ):
            model.train()(**batch(model))
        with pytest.raises(
            UserError, match=r"relation_bias is trained, but the adapter lacks it: "
        ):
            parameter_groups(model, 1e-3, 1e-2)


def test_options_are_added_to_the_users():
    model = biased(vectors=False)
    options = lora_options(model, r=4, modules_to_save=["head", "relation_bias"])
    assert options == {"r": 4, "modules_to_save": ["relation_bias", "head"]}
    assert lora_options(biased()) == {"modules_to_save": MODULES}
    with pytest.raises(UserError, match="modules_to_save='head': expected a list of names"):
        lora_options(model, modules_to_save="head")
    for function in (lora_options, lambda stock: parameter_groups(stock, 1e-3, 1e-2)):
        with pytest.raises(UserError, match="has no relation biases: add_relation_bias first"):
            function(transformers.BertModel(small_config("bert")))


@pytest.mark.parametrize("model_type", TYPES)
def test_an_adapter_is_trained_saved_loaded_and_merged(model_type, tmp_path):
    model = biased(model_type)
    model.save_pretrained(tmp_path / "base")
    options = lora_options(model, task_type=task_of(model), target_modules=TYPES[model_type])
    adapted = get_peft_model(model, LoraConfig(**options))
    before = {name: table.clone() for name, table in relation_parameters(adapted).items()}
    expected = outputs(trained(adapted), model)
    after = relation_parameters(adapted)
    assert len(after) == 7 * 2
    assert all(not torch.equal(after[name], table) for name, table in before.items())
    adapted.save_pretrained(tmp_path / "adapter")

    auto_class = auto_class_of(model.config)
    base = from_pretrained(auto_class, tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert torch.equal(outputs(loaded, model), expected)

    merged = loaded.merge_and_unload()
    torch.testing.assert_close(outputs(merged, model), expected)
    merged.save_pretrained(tmp_path / "merged")
    again = from_pretrained(auto_class, tmp_path / "merged")
    assert torch.equal(outputs(again, model), outputs(merged, model))


def test_an_adapter_whose_base_was_not_saved_is_not_loaded_without_biases(tmp_path):
    transformers.BertForTokenClassification(small_config("bert")).save_pretrained(tmp_path / "bert")
    stock = AutoModelForTokenClassification.from_pretrained(tmp_path / "bert")
    model = add_relation_bias(stock, labels=LABELS)
    adapted = get_peft_model(model, LoraConfig(**lora_options(model, task_type="TOKEN_CLS")))
    adapted.save_pretrained(tmp_path / "adapter")
    with pytest.raises(OSError, match=r"biases, which are not saved: save_pretrained\(FOLDER\)"):
        AutoPeftModelForTokenClassification.from_pretrained(tmp_path / "adapter")
    model.save_pretrained(tmp_path / "base")
    assert model.name_or_path == str(tmp_path / "base")
