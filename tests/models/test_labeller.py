"""Labels of words and sentences with every registered encoder: ``--arch labeller``."""

from __future__ import annotations

import logging
import re
import shlex

import pytest
import torch
import yaml

from fairseq_phrase.checkpoints.pretrained import PretrainedOptions, begin_from_checkpoint
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.testing import (
    build_model,
    make_batch,
    make_dictionary,
    random_sentence,
)
from tests.support.labellers import build, make_task
from tests.support.repository import REPOSITORY

#: The first variant of each encoder; test_every_encoder.py and test_recurrent_encoders.py have all.
VARIANTS = [(name, next(iter(method.variants))) for name, method in ENCODERS.items()]
every_encoder = pytest.mark.parametrize(
    ("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS]
)
both = pytest.mark.parametrize("labelled", ["word", "sentence"])
LENGTHS = [7, 1, 4, 5]


def alone(dictionary, index):
    sentence = random_sentence(dictionary, LENGTHS[index], seed=7 + index)
    return {key: values.unsqueeze(0) for key, values in sentence.items()}


@both
@every_encoder
def test_a_padded_batch_has_the_logits_of_single_sentences(name, variant, labelled):
    model = build(labelled, name, **ENCODERS[name].variants[variant])
    inputs = make_batch(model.dictionary, LENGTHS, extra=2)
    together = model(**inputs)
    words = int(inputs["src_words"].max()) + 1
    assert together.shape == (4, words if labelled == "word" else 1, 9)
    for index in range(len(LENGTHS)):
        single = model(**alone(model.dictionary, index))[0]
        logits = together[index, : len(single)]
        torch.testing.assert_close(logits, single, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@every_encoder
def test_half_precision_keeps_to_the_result(name, variant, dtype):
    model = build("sentence", name, **ENCODERS[name].variants[variant])
    inputs = make_batch(model.dictionary, LENGTHS)
    exact = model(**inputs)
    half = model.to(dtype)(**inputs)
    assert half.dtype == dtype
    assert (half.double() - exact).abs().mean() / exact.abs().mean() < 0.06


@pytest.mark.parametrize("pooling", ["mean", "cls", "attention"])
def test_poolings_of_sentences_ignore_padding(pooling):
    model = build("sentence", pooling=pooling)
    inputs = make_batch(model.dictionary, LENGTHS, extra=3)
    together = model(**inputs)
    for index in range(len(LENGTHS)):
        single = model(**alone(model.dictionary, index))
        torch.testing.assert_close(together[index : index + 1], single, rtol=1e-9, atol=1e-9)


def test_the_mean_is_that_of_the_tokens_without_the_end():
    model = build("sentence", pooling="mean")
    inputs = make_batch(model.dictionary, [5, 2])
    states = model.encoder(**inputs)["encoder_out"][0]
    expected = torch.stack([states[:5, 0].mean(0), states[:2, 1].mean(0)])
    torch.testing.assert_close(model(**inputs)[:, 0], model.head(expected))


@pytest.mark.parametrize("name", ["structural_transformer", "tree_transformer", "tree_lstm"])
def test_cls_is_a_token_of_no_word_before_the_sentence(name):
    options = {"structural_absolute": True} if name == "structural_transformer" else {}
    model = build("sentence", name, pooling="cls", **options)
    inputs = make_batch(model.dictionary, [5, 2], extra=1)
    longer = dict(inputs)
    longer["src_tokens"] = torch.nn.functional.pad(
        inputs["src_tokens"], (1, 0), value=model.dictionary.bos()
    )
    longer["src_words"] = torch.nn.functional.pad(inputs["src_words"], (1, 0), value=-1)
    first = model.encoder(**longer)["encoder_out"][0][0]
    torch.testing.assert_close(model(**inputs)[:, 0], model.head(first))
    # Texts may be as long as without this token.
    assert model.max_positions() == (1024, 1024)
    assert model.encoder.max_positions() == 1025


@pytest.mark.parametrize("name", ["tree_transformer", "relation_transformer", "han"])
def test_the_root_is_the_encoders(name):
    model = build("sentence", name, pooling="root")
    inputs = make_batch(model.dictionary, [5, 2], extra=1)
    logits = model(**inputs)
    assert logits.shape == (2, 1, 9)
    torch.testing.assert_close(logits[:1], model(**alone_of(inputs, 5)), rtol=1e-9, atol=1e-9)


def alone_of(inputs, length):
    dictionary = make_dictionary()
    sentence = random_sentence(dictionary, length, seed=7)
    return {key: values.unsqueeze(0) for key, values in sentence.items()}


def test_an_encoder_without_trees_has_no_root():
    model = build("sentence", pooling="root")
    with pytest.raises(UserError, match="--pooling root: TransformerEncoder has no root node"):
        model(**make_batch(model.dictionary, [3]))


def test_first_and_mean_are_those_of_a_words_subwords():
    inputs = make_batch(make_dictionary(), [7, 4])
    words = inputs["src_words"]
    for pooling in ("first", "mean"):
        model = build("word", pooling=pooling)
        states = model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)
        logits = model(**inputs)
        for sentence in range(2):
            for word in range(int(words[sentence].max()) + 1):
                word_states = states[sentence][words[sentence] == word]
                expected = word_states[0] if pooling == "first" else word_states.mean(0)
                torch.testing.assert_close(logits[sentence, word], model.head(expected))


def test_whole_words_need_no_parse():
    task = make_task("word", whole_words=True)
    task.require_parses = lambda fields: pytest.fail(f"asked for {fields}")
    model = build("word", task=task)
    tokens = make_batch(model.dictionary, [5, 2])["src_tokens"]
    states = model.encoder(tokens)["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(model(src_tokens=tokens), model.head(states[:, :-1]))


def test_targets_are_as_wide_as_the_logits():
    model = build("word")
    target = torch.tensor([[5, 6, 7, 1], [5, 1, 1, 1]])
    narrow = model.get_targets({"target": target}, torch.zeros(2, 3, 9))
    assert torch.equal(narrow, target[:, :3])
    wide = model.get_targets({"target": target}, torch.zeros(2, 5, 9))
    assert torch.equal(wide[:, :4], target)
    assert (wide[:, 4] == 1).all()


def test_the_head_has_one_or_two_layers():
    inputs = make_batch(make_dictionary(), [4])
    single_layer, two = (build("sentence", head_layers=layers) for layers in (1, 2))
    assert sum(p.numel() for p in two.head.parameters()) > sum(
        p.numel() for p in single_layer.head.parameters()
    )
    assert single_layer(**inputs).shape == two(**inputs).shape


def test_a_frozen_encoder_gets_no_gradient_and_no_dropout():
    model = build("sentence", dropout=0.5)
    begin_from_checkpoint(model, PretrainedOptions(freeze_encoder=True), None)
    inputs = make_batch(model.train().dictionary, [6, 3])
    model(**inputs).sum().backward()
    assert not model.encoder.training
    assert model.head.training
    assert all(parameter.grad is None for parameter in model.encoder.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())


@pytest.mark.parametrize(
    ("labelled", "pooling", "others"),
    [("word", "cls", "first, mean"), ("sentence", "first", "mean, cls, attention, root")],
)
def test_a_pooling_for_other_labels_is_refused(labelled, pooling, others):
    with pytest.raises(UserError, match=f"--pooling {pooling}: .* of {labelled}s, .* are {others}"):
        build(labelled, pooling=pooling)


def test_a_task_without_labels_is_refused():
    task = make_task("word")
    del task.labelled
    with pytest.raises(UserError, match="--arch labeller: use --task syntax_labelling"):
        build("word", task=task)


# --pretrained


def saved(path, model, **task):
    state = {"model": model.state_dict(), "cfg": {"model": {}, "task": task}}
    torch.save(state, path)
    return path


def test_the_encoder_of_a_translation_is_taken_over(tmp_path, caplog):
    task = make_task("sentence")
    task.source_dictionary.save(str(tmp_path / "dict.de.txt"))
    translation = build_model("structural_transformer", task.source_dictionary)
    path = saved(tmp_path / "mt.pt", translation, data=str(tmp_path), source_lang="de")
    model = build("sentence", "structural_transformer", task)
    before = {name: value.clone() for name, value in model.head.state_dict().items()}
    with caplog.at_level(logging.INFO):
        begin_from_checkpoint(model, PretrainedOptions(pretrained=str(path)), task)
    for name, value in model.encoder.state_dict().items():
        assert torch.equal(value, translation.encoder.state_dict()[name]), name
    assert all(torch.equal(before[name], v) for name, v in model.head.state_dict().items())
    assert f"--pretrained {path}: loaded" in caplog.text
    assert "are new" not in caplog.text


def test_what_is_not_loaded_is_said(tmp_path, caplog):
    task = make_task("sentence")
    translation = build_model("structural_transformer", task.source_dictionary)
    path = saved(tmp_path / "mt.pt", translation, data=str(tmp_path), source_lang="de")
    model = build("sentence", "structural_transformer", task, structural_absolute=True)
    begin_from_checkpoint(model, PretrainedOptions(pretrained=str(path)), task)
    assert (
        "tensors are new, because the checkpoint does not have them: encoder.depth_encoding"
        in caplog.text
    )


def test_other_sizes_are_refused(tmp_path):
    task = make_task("sentence")
    translation = build_model("structural_transformer", task.source_dictionary)
    path = saved(tmp_path / "mt.pt", translation, data=str(tmp_path), source_lang="de")
    model = build("sentence", task=task, encoder_ffn_embed_dim=12)
    with pytest.raises(UserError, match=r"has the shape \(24,\), and here \(12,\)"):
        begin_from_checkpoint(model, PretrainedOptions(pretrained=str(path)), task)


def test_a_checkpoint_without_an_encoder_is_refused(tmp_path):
    task = make_task("sentence")
    path = saved(tmp_path / "x.pt", torch.nn.Linear(2, 2), data=str(tmp_path), source_lang="de")
    model = build("sentence", task=task)
    with pytest.raises(UserError, match=r"x.pt has no parameter of this encoder"):
        begin_from_checkpoint(model, PretrainedOptions(pretrained=str(path)), task)


def test_the_configuration_file_is_the_documented_training():
    page = (REPOSITORY / "docs" / "labelling.md").read_text(encoding="utf-8")
    command, *_ = re.findall(r"^fairseq-train (.*?)^```$", page, re.MULTILINE | re.DOTALL)
    documented = {}
    for word in shlex.split(command.replace("\\\n", " "))[1:]:
        if word.startswith("--"):
            documented[option := word.removeprefix("--").replace("-", "_")] = "True"
        else:
            documented[option] = word
    sections = yaml.safe_load((REPOSITORY / "configs" / "labelling.yaml").read_text())
    configured = {
        {"_name": "arch" if section == "model" else section}.get(name, name): str(value).strip("[]")
        for section, values in sections.items()
        for name, value in values.items()
    }
    folders = {"user_dir", "save_dir", "data", "source_lang", "target_lang"}
    defaults = {"log_format", "log_interval", "seed", "num_workers", "pooling", "head_layers"}
    assert configured.keys() - documented.keys() <= folders | defaults
    assert documented.keys() <= configured.keys()
    for name in documented.keys() - folders:
        assert configured[name] in (documented[name], f"{documented[name]}.0"), name
