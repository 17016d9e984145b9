"""Encoders that start as fairseq's Transformer: the same logits, and then every new parameter learns."""

from __future__ import annotations

import copy
import itertools
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.trainer import Trainer

from fairseq_phrase.checkpoints.guards import check_sizes
from fairseq_phrase.checkpoints.identity import begin_neutrally
from fairseq_phrase.checkpoints.options import model_entries
from fairseq_phrase.data.store.identity import OF_OTHER_DECODERS, Identity, check_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.biased_attention import node_attention
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import ENCODERS, neutral_obstacle, translation_encoders
from fairseq_phrase.testing import SIZES, build_model, encode, make_batch, make_dictionary
from tests.support.named_models import make_task
from tests.support.repository import REPOSITORY
from tests.support.tolerance import assert_same

sys.path.append(str(REPOSITORY / "examples" / "encoder_plugin"))
import label_transformer  # noqa: F401 - the example goes through the same tests

LENGTHS = [7, 1, 4, 5]
NORMS = {
    "post": {},
    "pre": {"encoder_normalize_before": True, "decoder_normalize_before": True},
    "embeddings": {"layernorm_embedding": True, "encoder_learned_pos": True},
}
#: Options of fairseq that change what its Transformer computes.
STOCK = {
    "no positions": {"no_token_positional_embeddings": True},
    "no positions, layer norm": {
        "no_token_positional_embeddings": True,
        "layernorm_embedding": True,
    },
    "learned positions": {"encoder_learned_pos": True, "decoder_learned_pos": True},
    "few positions": {"max_source_positions": 9, "max_target_positions": 9},
    "embeddings are not scaled": {"no_scale_embedding": True},
    "cross and self": {"cross_self_attention": True},
    "no cross": {"no_cross_attention": True},
    "decoder's widths": {"decoder_input_dim": 12, "decoder_output_dim": 12},
    "adaptive softmax": {"adaptive_softmax_cutoff": "10,20"},
    "shared": {"share_all_embeddings": True},
    "encoder's width": {"encoder_embed_dim": 24},
    "decoder's heads": {"decoder_attention_heads": 4},
    "norm of the encoder": {"encoder_normalize_before": True},
    "no final norm": {
        "encoder_normalize_before": True,
        "decoder_normalize_before": True,
        "no_decoder_final_norm": True,
    },
    "quantization noise": {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4},
}


@pytest.fixture(autouse=True)
def exact_softmax(monkeypatch):
    """Fairseq's cross-attention computes its softmax in single precision; here as precise as the rest."""
    monkeypatch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))


def as_built(name: str, dictionary, **options: Any) -> Any:
    """A small model in double precision, without dropout, and with the values that it starts with."""
    torch.manual_seed(4)
    sizes = {f"{side}_{key}": v for side in ("encoder", "decoder") for key, v in SIZES.items()}
    cfg = MODEL_DATACLASS_REGISTRY[name](**{**sizes, "dropout": 0.0, **options})
    return ARCH_MODEL_REGISTRY[name].build_model(cfg, make_task(dictionary)).double()


def rows() -> list[Any]:
    """All registered rows that start neutrally."""
    cases = []
    for name, method in translation_encoders().items():
        for row, options in method.variants.items():
            cfg = nested_config(MODEL_DATACLASS_REGISTRY[name](**options))
            if not neutral_obstacle(method.encoder, cfg):
                cases.append(pytest.param(name, options, id=row))
    return cases


def stock(dictionary, **options: Any) -> Any:
    """Make a stock model in which every weight matters."""
    model = build_model("transformer", dictionary, **options)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return model


def logits(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    previous = inputs["src_tokens"].roll(1, 1)
    return model(src_lengths=None, prev_output_tokens=previous, **inputs)[0]


def test_what_starts_neutrally() -> None:
    names = {row.values[0] for row in rows()}
    assert names == {
        "relation_transformer", "structural_transformer", "parent_scaled_transformer",
        "label_transformer", "phrase_transformer", "tree_transformer",
    }  # fmt: skip


neutral_rows = pytest.mark.parametrize(("name", "options"), rows())


def rows_and_norms() -> list[Any]:
    """Each row with one of the norms in turn, and the first row of each encoder with all of them."""
    cases, names = [], set()
    for row, norm in zip(rows(), itertools.cycle(NORMS)):
        name, options = row.values
        norms = [norm] if name in names else NORMS
        cases += [
            pytest.param(name, options, norm_option, id=f"{row.id}-{norm_option}")
            for norm_option in norms
        ]
        names.add(name)
    return cases


@pytest.mark.fast(5)
@pytest.mark.parametrize(("name", "options", "norm"), rows_and_norms())
def test_logits_are_those_of_the_checkpoint_and_new_parameters_learn(
    dictionary, caplog, name, options, norm
) -> None:
    trained = stock(dictionary, **NORMS[norm])
    model = as_built(name, dictionary, **options, **NORMS[norm]).eval()
    with caplog.at_level(logging.INFO):
        model.load_state_dict(copy.deepcopy(trained.state_dict()), strict=True)
    batches = [
        make_batch(dictionary, LENGTHS, left=left_pad, extra=1) for left_pad in (False, True)
    ]
    for inputs in batches:
        expected = logits(trained, {"src_tokens": inputs["src_tokens"]})
        real = inputs["src_tokens"].ne(dictionary.pad())
        difference = (logits(model, inputs) - expected)[real].abs().max()
        assert difference <= 1e-12 * expected.abs().max()
    new = {parameter_name for parameter_name, _ in model.named_parameters()} - dict(
        trained.named_parameters()
    ).keys()
    assert new
    assert all(parameter_name in caplog.text for parameter_name in new)
    before = {
        parameter_name: value.detach().clone() for parameter_name, value in model.named_parameters()
    }
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        logits(model.train(), batches[0]).square().mean().backward()
        optimizer.step()
    assert {
        parameter_name
        for parameter_name in new
        if torch.equal(before[parameter_name], model.get_parameter(parameter_name))
    } == set()


@pytest.mark.fast(3)
@pytest.mark.parametrize("option", STOCK)
def test_every_row_over_an_option_of_fairseq_starts_neutrally_or_is_refused(
    dictionary, option
) -> None:
    trained = stock(dictionary, **STOCK[option])
    inputs = make_batch(dictionary, LENGTHS, extra=1)
    expected = logits(trained, {"src_tokens": inputs["src_tokens"]})
    real = inputs["src_tokens"].ne(dictionary.pad())
    absolute = {"structural_absolute": True, "structural_fusion": "add", "neutral_start": True}
    refused = set()
    for name, options in [*(row.values for row in rows()), ("structural_transformer", absolute)]:
        try:
            model = as_built(name, dictionary, **options, **STOCK[option]).eval()
        except UserError as error:
            refused.add(str(error))
            continue
        model.load_state_dict(copy.deepcopy(trained.state_dict()), strict=True)
        difference = (logits(model, inputs) - expected)[real].abs().max()
        assert difference <= 1e-12 * expected.abs().max(), (name, options)
    no_depths = (
        "--structural-absolute has no neutral start with --no-token-positional-embeddings: leave one of "
        "them out"
    )
    refused_options = {
        "no positions": {f"--neutral-start, structural_transformer: {no_depths}"},
        "cross and self": {"--cross-self-attention: trees have cross-attention of their own"},
    }
    assert refused == refused_options.get(option.partition(",")[0], set())


@neutral_rows
def test_the_gradient_of_what_starts_at_zero_is_not_zero(dictionary, name, options) -> None:
    model = as_built(name, dictionary, **options)
    logits(model, make_batch(dictionary, LENGTHS)).square().mean().backward()
    added = ENCODERS[name].encoder.neutral_parameters
    learn = {
        parameter_name: bool(value.grad.any())
        for parameter_name, value in model.named_parameters()
        if not set(parameter_name.split(".")).isdisjoint(added) and not value.any()
    }
    assert any(learn.values())
    assert all(
        value
        for parameter_name, value in learn.items()
        if parameter_name.endswith(("gate", "factor"))
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("structural_transformer", {"structural_absolute": True}, "give --structural-fusion add"),
        ("structural_transformer", {"no_sequential_absolute": True, "structural_relative": True},
         "leave out --no-sequential-absolute"),
        ("phrase_transformer", {"phrase_to_decoder": True}, "leave out --phrase-to-decoder"),
        ("phrase_transformer", {}, "give --phrase-residual each"),
    ],
)  # fmt: skip
def test_what_is_not_neutral_is_refused(dictionary, name, options, message) -> None:
    with pytest.raises(UserError, match=f"^--neutral-start, {name}: .*{message}"):
        as_built(name, dictionary, neutral_start=True, **options)


@pytest.mark.parametrize("is_first", [True, False])
def test_attention_within_phrases_reads_normalized_states(dictionary, is_first) -> None:
    """With post-norm these are the states after phase 1, which a second norm would change."""
    options = {"phrase_residual": "each", "encoder_normalize_before": is_first}
    model = as_built("phrase_transformer", dictionary, neutral_start=True, **options).eval()
    inputs = []
    for layer in model.encoder.layers:
        assert isinstance(layer.phrase_attn_layer_norm, torch.nn.Identity) == (not is_first)
        layer.phrase_attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    encode(model, make_batch(dictionary, [5]))
    for states in inputs:
        torch.testing.assert_close(states.mean(-1), torch.zeros_like(states[..., 0]))
        deviations = states.std(-1, correction=0)
        torch.testing.assert_close(deviations, torch.ones_like(deviations), rtol=0, atol=1e-2)
    assert len(inputs) == len(model.encoder.layers)


def record(name: str, **options: Any) -> Identity:
    return Identity(model_entries({"_name": name, **options}))


def test_options_of_the_encoder_may_differ_from_the_checkpoint(dictionary) -> None:
    model = as_built("relation_transformer", dictionary, relation_bias="both")
    current = record("relation_transformer", relation_bias="both", encoder_attention_heads=4)
    stock = record("transformer", encoder_attention_heads=8)
    trained = begin_neutrally(stock, current, model.encoder, None)
    with pytest.raises(UserError, match="differ in encoder-attention-heads 8 and 4: "):
        check_identity(trained, current, "continue")


#: By the encoder, the options with which it is fairseq's Transformer.
PLAIN = {
    "structural_transformer": {},
    "relation_transformer": {"relation_bias": "none"},
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("without", [(), OF_OTHER_DECODERS])
def test_an_encoder_with_all_options_off_starts_from_fairseqs(dictionary, name, without) -> None:
    encoder = as_built(name, dictionary, **PLAIN[name]).encoder
    current = record(name, **PLAIN[name])
    for trained in (
        record("transformer"),
        *(record(other, **PLAIN[other]) for other in PLAIN),
        record("structural_transformer", relative_clip=4),
    ):
        begun = begin_neutrally(trained, current, encoder, None)
        check_identity(begun.without(without), current.without(without), "continue")


@pytest.mark.parametrize(
    ("option", "name", "options"),
    [
        ("attention_gate", "structural_transformer", {}),
        ("attention_gate", "relation_transformer", {}),
        ("attention_gate", "relation_transformer", {"attention_gate": True}),
        ("attention_gate", "parent_scaled_transformer", {"neutral_start": True}),
        ("no_sequential_absolute", "structural_transformer",
         {"structural_relative": True, "neutral_start": True}),
        ("no_sequential_absolute", "relation_transformer", {}),
    ],
)  # fmt: skip
def test_an_option_of_a_plain_encoder_is_not_fairseqs(dictionary, option, name, options) -> None:
    encoder = as_built(name, dictionary, **options).encoder
    trained, current = record("structural_transformer", **{option: True}), record(name, **options)
    flag = option.replace("_", "-")
    with pytest.raises(UserError, match=f"{flag} True and False.*: .*--{flag}|leave out --{flag}"):
        check_identity(begin_neutrally(trained, current, encoder, None), current, "continue")
    assert begin_neutrally(trained, current, encoder, "encoder") == trained


def other_values(option: Any) -> list[Any]:
    """Values of an option that are not its default."""
    default = option.default
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int | float):
        return [default + 1]
    return [value.value for value in getattr(option.type, "__members__", {}).values()]


@pytest.mark.parametrize("name", PLAIN)
def test_options_that_change_a_plain_encoder_are_declared(dictionary, name) -> None:
    plain = as_built(name, dictionary, **PLAIN[name]).eval()
    inputs = make_batch(dictionary, LENGTHS)
    changing = set()
    for option in ENCODERS[name].options:
        for value in other_values(option):
            try:
                model = as_built(name, dictionary, **{**PLAIN[name], option.name: value}).eval()
            except UserError:  # the option needs another one
                continue
            if not model.encoder.is_plain(model.cfg):
                continue
            state = model.encoder.load_state_dict(plain.encoder.state_dict(), strict=False)
            states = model.encoder(**inputs)["encoder_out"][0]
            is_same = states.equal(plain.encoder(**inputs)["encoder_out"][0])
            if not is_same or state.missing_keys or state.unexpected_keys:
                changing.add(option.name)
    declared = {o.name for o in ENCODERS[name].options if o.metadata.get("of_plain")}
    assert changing == declared
    assert "attention_gate" in declared


@pytest.mark.parametrize("name", ["xl_transformer", "parent_scaled_transformer"])
def test_an_encoder_without_a_neutral_start_is_named(dictionary, name) -> None:
    encoder = as_built(name, dictionary).encoder
    message = rf"^this run has fairseq's Transformer encoder, and {name} does not .*--pretrained"
    with pytest.raises(UserError, match=message):
        begin_neutrally(record("transformer"), record(name), encoder, None)
    allowed = begin_neutrally(record("transformer"), record(name), encoder, "encoder,x")
    assert allowed == record("transformer")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"encoder_layers": 3}, r"^a\.pt: its encoder has 2 layers, and here 3: give --encoder-layers 2"),
        ({"encoder_ffn_embed_dim": 20}, r"^a\.pt: encoder\.layers\.0\.fc1\.bias has the shape \(24,\)"),
        ({"words": 9}, r"^a\.pt: decoder\.embed_tokens\.weight has 34 entries, and the dictionary here"),
    ],
)  # fmt: skip
def test_other_sizes_have_one_message(dictionary, changed, message) -> None:
    words = changed.pop("words", 30)
    other_model = as_built("relation_transformer", make_dictionary(words), **changed)
    with pytest.raises(UserError, match=message):
        check_sizes(stock(dictionary).state_dict(), other_model.state_dict(), "a.pt")


def twin_node_attention(query, key, value, mask, num_tokens, gate):
    """Nodes one by one: tokens have a softmax over tokens, and tanh(g) times one over further nodes."""
    attended, weights = torch.zeros_like(query), query.new_zeros(*query.shape[:3], key.size(2))
    for b, h, i in itertools.product(*map(range, query.shape[:3])):
        visible = [j for j in range(key.size(2)) if mask[b, 0, min(i, mask.size(2) - 1), j]]
        groups = [(visible, 1.0)]
        if i < num_tokens:
            groups = [
                ([j for j in visible if j < num_tokens], 1.0),
                ([j for j in visible if j >= num_tokens], gate[h].tanh()),
            ]
        for keys, factor in groups:
            if keys:
                scores = torch.stack([query[b, h, i] @ key[b, h, j] for j in keys])
                weights_of_group = factor * (scores / query.size(3) ** 0.5).softmax(0)
                attended[b, h, i] = attended[b, h, i] + weights_of_group @ value[b, h, keys]
                weights[b, h, i, keys] = weights_of_group
    return attended, weights


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("g", [0.0, 0.8])
def test_gated_attention_is_its_definition_in_loops(rows, g) -> None:
    torch.manual_seed(2)
    inputs = [torch.randn(3, 2, 5, 4, dtype=torch.double).requires_grad_() for _ in range(3)]
    gate = torch.tensor([g, -g / 2], dtype=torch.double, requires_grad=True)
    mask = torch.rand(3, 1, rows, 5) < 0.7
    mask[..., 0] = True
    mask[1, ..., 3:] = False  # a sentence without further nodes
    expected, weights = twin_node_attention(*inputs, mask, 3, gate)
    direction = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad((expected * direction).sum(), [*inputs, gate])
    for need_weights in (False, True):
        attended, actual_weights = node_attention(*inputs, mask, gate, 3, 0.0, need_weights)
        assert_same(attended, expected)
        gradients = torch.autograd.grad((attended * direction).sum(), [*inputs, gate])
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            assert_same(gradient, expected_gradient)
            assert expected_gradient.any()
    assert_same(actual_weights, weights)
    all_seen = torch.ones(3, 1, 1, 5, dtype=torch.bool)
    everything, _ = node_attention(*inputs, all_seen, gate, 3)
    assert_same(everything, twin_node_attention(*inputs, all_seen, 3, gate)[0])


def test_a_training_is_not_resumed_whose_optimizer_lacks_new_parameters(dictionary, tmp_path):
    options = {"relation_source": "enhanced"}
    model = build_model("relation_transformer", dictionary, **options)
    cfg = {"model": {"_name": "relation_transformer", **options}}
    old = {n: value for n, value in model.state_dict().items() if not n.endswith("co_head_bias")}
    trainer = SimpleNamespace(model=model, cfg=cfg, is_fsdp=False, task=None)
    path = tmp_path / "old.pt"
    torch.save({"model": old, "cfg": cfg}, path)
    with pytest.raises(UserError, match=r"old\.pt has no optimizer's state .* --reset-optimizer"):
        Trainer.load_checkpoint(trainer, str(path))
    with pytest.raises(AttributeError):  # fairseq's function, which reads more of a trainer
        Trainer.load_checkpoint(trainer, str(path), True)
    torch.save({"model": model.state_dict(), "cfg": cfg}, path)
    with pytest.raises(AttributeError):
        Trainer.load_checkpoint(trainer, str(path))
