"""Encoders chosen by ``--encoder``: every registered encoder, by flags and by hydra's configuration."""

from __future__ import annotations

import argparse
from argparse import Namespace
from dataclasses import dataclass, field

import pytest
import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.models.transformer import TransformerEncoderBase
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from torch import nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import ENCODERS, register_encoder
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder
from fairseq_phrase.models import architectures
from fairseq_phrase.models.named_encoder import (
    NAMED_MODELS,
    NamedEncoderModel,
    build_named_encoder,
    register_named_model,
)
from fairseq_phrase.repairs.patches import patch_fairseq
from fairseq_phrase.testing import SIZES, any_label_dictionary, make_batch, make_dictionary

NAME = "model_with_any_encoder"


@dataclass
class OwnOptions:
    """Options of the model itself."""

    own_width: int = field(default=3, metadata={"help": "a number"})


@register_named_model(NAME, options=OwnOptions, presets={"deep": {"encoder_layers": 4}})
class ModelWithAnyEncoder(NamedEncoderModel):
    """The smallest model with an encoder by its name."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    @classmethod
    def build_model(cls, cfg, task):
        return cls(build_named_encoder(cfg, task, task.source_dictionary))


VARIANTS = [(name, variant) for name, method in ENCODERS.items() for variant in method.variants]
every_variant = pytest.mark.parametrize(
    ("name", "variant"), VARIANTS, ids=[variant for _, variant in VARIANTS]
)


@pytest.fixture
def task():
    return Namespace(
        source_dictionary=make_dictionary(),
        target_dictionary=make_dictionary(),
        label_dictionary=any_label_dictionary,
        require_parses=lambda fields: None,
        require_structure=lambda key, make: None,
    )


@pytest.fixture
def registered():
    """Forget what the test registers."""
    encoders = dict(ENCODERS)
    yield
    ENCODERS.clear()
    ENCODERS.update(encoders)
    for model in NAMED_MODELS.values():
        architectures.build_named(model)


def config(**options):
    sizes = {f"encoder_{key}": value for key, value in SIZES.items()}
    return MODEL_DATACLASS_REGISTRY[NAME](**{**sizes, "dropout": 0.0, **options})


@pytest.mark.parametrize(
    ("name", "variant"), [(n, next(iter(m.variants))) for n, m in ENCODERS.items()]
)
def test_every_encoder_is_built_and_returns_fairseqs_dictionary(task, name, variant):
    encoder = build_named_encoder(
        config(encoder=name, **ENCODERS[name].variants[variant]), task, task.source_dictionary
    )
    inputs = make_batch(task.source_dictionary, [5, 3], extra=1)
    lengths = inputs["src_tokens"].ne(task.source_dictionary.pad()).sum(1)
    output = encoder.eval()(**inputs, src_lengths=lengths, return_all_hiddens=True)
    nodes, batch, width = output["encoder_out"][0].shape
    num_tokens = inputs["src_tokens"].size(1)
    assert (batch, width) == (2, SIZES["embed_dim"])
    assert nodes >= num_tokens
    padding = output["encoder_padding_mask"][0]
    assert padding.shape == (batch, nodes)
    # The first nodes are the tokens.
    expected = inputs["src_tokens"].eq(task.source_dictionary.pad())
    assert torch.equal(padding[:, :num_tokens], expected)


@every_variant
def test_flags_of_every_encoder_are_the_models_flags(name, variant):
    parser = fairseq_options.get_training_parser(default_task="translation")
    arguments = ["data", "--arch", NAME, "--encoder", name, *ENCODERS[name].option_flags(variant)]
    arguments += ["--encoder-layers", "1", "--own-width", "5"]
    args = fairseq_options.parse_args_and_arch(parser, input_args=arguments)
    cfg = convert_namespace_to_omegaconf(args).model
    assert (cfg.encoder, cfg.encoder_layers, cfg.own_width) == (name, 1, 5)
    for option, value in ENCODERS[name].variants[variant].items():
        assert cfg[option] == value


def test_a_training_without_an_architecture_is_told_to_name_one():
    patch_fairseq()
    parser = fairseq_options.get_training_parser(default_task="translation")
    with pytest.raises(UserError, match="--arch phrase_transformer"):
        fairseq_options.parse_args_and_arch(parser, input_args=["data"])


def test_hydra_has_the_options_of_every_encoder(task):
    for stored in (NAME, f"{NAME}_deep"):
        stored_node = ConfigStore.instance().repo["model"][f"{stored}.yaml"].node
        node = OmegaConf.create({"model": stored_node}).model
        for method in ENCODERS.values():
            for option in method.options:
                assert option.name in node
    assert node.encoder_layers == 4
    node.encoder, node.decoder_embed_dim = "tree_transformer", 16
    for key, value in SIZES.items():
        node[f"encoder_{key}"] = value
    encoder = build_named_encoder(node, task, task.source_dictionary)
    assert type(encoder) is ENCODERS["tree_transformer"].encoder


def test_given_embeddings_are_the_encoders(task):
    embeddings = nn.Embedding(len(task.source_dictionary), SIZES["embed_dim"], padding_idx=1)
    encoder = build_named_encoder(config(), task, task.source_dictionary, embeddings)
    assert encoder.embed_tokens is embeddings


def test_an_unknown_name_is_answered_with_the_names(task):
    with pytest.raises(UserError, match=r"--encoder nope: expected one of .*phrase_transformer"):
        build_named_encoder(config(encoder="nope"), task, task.source_dictionary)


def test_the_encoders_parses_are_asked_for(task):
    fields = []
    task.require_parses = fields.extend
    build_named_encoder(config(encoder="tree_transformer"), task, task.source_dictionary)
    assert fields == ["words", "spans"]


def test_options_that_contradict_each_other_are_refused(task):
    cfg = config(encoder="tree_transformer", tree_max_vertical=0)
    with pytest.raises(UserError, match="--tree-max-vertical 0"):
        build_named_encoder(cfg, task, task.source_dictionary)


@pytest.mark.parametrize("encoder", ["lstm", "han", "huggingface", "tree_lstm", "recurrent"])
def test_options_of_other_encoders_are_reported(task, caplog, encoder):
    options = {"attention_gate": True, "attention_start_scale": 0.1, "phrase_residual": "each"}
    if encoder == "recurrent":
        cfg = MODEL_DATACLASS_REGISTRY["seq2seq"](encoder_embed_dim=8, **options)
        ARCH_MODEL_REGISTRY["seq2seq"].build_model(cfg, task)
    else:
        cfg = config(encoder=encoder, **options)
        build_named_encoder(cfg, task, task.source_dictionary)
    (message,) = [record.getMessage() for record in caplog.records if "effect" in record.msg]
    assert message == (
        f"--encoder {encoder} does not have these options, so they have no effect: "
        "--attention-gate, --attention-start-scale, --phrase-residual"
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoders_own_options_are_not_reported(task, caplog, name):
    for options in ENCODERS[name].variants.values():
        build_named_encoder(config(encoder=name, **options), task, task.source_dictionary)
    assert not [record for record in caplog.records if "effect" in record.msg]


@dataclass
class LaterOptions:
    """Options of an encoder that is registered after the model."""

    later_depth: int = field(default=7, metadata={"help": "a number"})


def test_an_encoder_that_is_registered_later_extends_the_model(task, registered):
    @register_encoder("later", options=LaterOptions, translation=False)
    class LaterEncoder(SyntaxEncoder):
        """fairseq's encoder."""

    encoder = build_named_encoder(
        config(encoder="later", later_depth=2), task, task.source_dictionary
    )
    assert encoder.cfg.later_depth == 2
    parser = argparse.ArgumentParser()
    MODEL_REGISTRY[NAME].add_args(parser)
    assert parser.parse_args(["--later-depth", "4"]).later_depth == 4


def test_an_unknown_parse_field_is_refused(task, registered):
    register_encoder("mistaken", parse_fields=["words", "head"], translation=False)(SyntaxEncoder)
    with pytest.raises(UserError, match="mistaken needs unknown parse fields, head: expected some"):
        build_named_encoder(config(encoder="mistaken"), task, task.source_dictionary)


def test_a_late_encoder_is_translated_with_and_builds_no_other_architecture(registered):
    before = dict(ARCH_MODEL_REGISTRY)

    @register_encoder("late", options=LaterOptions, presets={"small": {"encoder_layers": 2}})
    class LateEncoder(SyntaxEncoder):
        """fairseq's encoder."""

    assert ARCH_MODEL_REGISTRY["late"].method.encoder is LateEncoder
    assert MODEL_DATACLASS_REGISTRY["late_small"]().encoder_layers == 2
    assert MODEL_DATACLASS_REGISTRY["late"]().later_depth == 7
    assert all(ARCH_MODEL_REGISTRY[name] is before[name] for name in translation_archs(before))


def translation_archs(models):
    return [name for name, model in models.items() if hasattr(model, "method")]


@dataclass
class ClashingOptions:
    """An option that another encoder has, with another default."""

    phrase_max_length: int = field(default=9, metadata={"help": "a number"})


@dataclass
class ClashingWithFairseq:
    """An option of fairseq's, with another default."""

    encoder_layers: int = field(default=9, metadata={"help": "a number"})


@dataclass
class ClashingWithModel:
    """An option of a model that takes any encoder."""

    own_width: str = field(default="3", metadata={"help": "a text"})


@dataclass
class WithoutDefault:
    """An option without a value to start from."""

    my_scale: float


@dataclass
class ListOfValues:
    """An option whose default is not one value."""

    my_scales: list = field(default_factory=list, metadata={"help": "numbers"})


@pytest.mark.parametrize(
    ("options", "name"), [(WithoutDefault, "my_scale"), (ListOfValues, "my_scales")]
)
def test_an_option_without_a_default_is_named(registered, options, name):
    with pytest.raises(UserError, match=f"'mine' has an option {name} without a default value"):
        register_encoder("mine", options=options)(SyntaxEncoder)
    assert "mine" not in ENCODERS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ClashingOptions,
            r"the encoder 'clash' and the encoder 'phrase_transformer' both have "
            r"--phrase-max-length, with the types and defaults \(int, 9\) and \(int, 2\)",
        ),
        (ClashingWithFairseq, "fairseq's Transformer both have --encoder-layers"),
        (ClashingWithModel, rf"--arch {NAME} both have --own-width"),
    ],
)
def test_an_option_with_two_meanings_is_refused(registered, options, message):
    with pytest.raises(UserError, match=message):
        register_encoder("clash", options=options)(SyntaxEncoder)
    assert "clash" not in ENCODERS


def test_the_plain_encoder_is_fairseqs(task):
    encoder = build_named_encoder(config(), task, task.source_dictionary).eval()
    inputs = make_batch(task.source_dictionary, [4, 2])
    expected = TransformerEncoderBase.forward(encoder, inputs["src_tokens"])["encoder_out"][0]
    assert torch.equal(encoder(**inputs)["encoder_out"][0], expected)
    assert not ENCODERS["transformer"].translation


def test_pruning_is_refused(task):
    with pytest.raises(
        UserError, match="--encoder-layers-to-keep 0 prunes only translation models"
    ):
        build_named_encoder(config(encoder_layers_to_keep="0"), task, task.source_dictionary)


def test_encoders_with_trees_name_the_root(task):
    inputs = make_batch(task.source_dictionary, [6, 1, 4], extra=1)
    parse = ParseBatch.from_net_input({key: inputs[key] for key in inputs if key != "src_tokens"})
    for name, method in ENCODERS.items():
        options = next(iter(method.variants.values()))
        encoder = build_named_encoder(config(encoder=name, **options), task, task.source_dictionary)
        needed = set(method.parse_fields(encoder.cfg))
        read_fields = ParseBatch({field: parse[field] for field in needed})
        if not hasattr(encoder, "root_nodes"):
            continue
        encoded = encoder.eval()(**inputs)
        roots = encoder.root_nodes(encoded, read_fields)
        if "spans" in needed:
            num_tokens = inputs["src_tokens"].size(1)
            # The root covers the sentence, and comes after all its other constituents.
            counts = (parse["spans"][..., 0] >= 0).sum(1).tolist()
            # A sentence of one subword has no constituents: its root is its leaf.
            assert counts[1] == 0
            assert roots.tolist() == [num_tokens + c - 1 if c else 0 for c in counts]
        elif name == "han":  # a document's own node, behind the sentences
            last = encoded["encoder_out"][0].size(0) - 1
            assert roots.tolist() == [last] * len(inputs["src_tokens"])
        elif "heads" in needed:
            for sentence, root in enumerate(roots.tolist()):
                word = int(parse["words"][sentence, root])
                assert parse["heads"][sentence, word] == word
                assert root == 0 or parse["words"][sentence, root - 1] == word - 1
        else:
            assert roots is None
