"""The structural-position Transformer: eq. 1-7 in loops, fairseq's own Transformer, its options."""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

import fairseq_phrase.models.structural_transformer  # noqa: F401 - registers the encoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.encoder_method import ENCODERS
from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.positions.depth_encoding import sinusoids
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.tolerance import assert_same

WORDS = 30
#: The nine models of the paper's table 1, by their number.
TABLE_1: dict[str, dict[str, Any]] = {
    "1": {"no_sequential_absolute": True},
    "2": {"no_sequential_absolute": True, "structural_absolute": True},
    "3": {"no_sequential_absolute": True, "structural_relative": True},
    "4": {},
    "5": {"structural_absolute": True},
    "6": {"structural_absolute": True, "structural_relative": True},
    "7": {"sequential_relative": True},
    "8": {"sequential_relative": True, "structural_absolute": True},
    "9": {"sequential_relative": True, "structural_absolute": True, "structural_relative": True},
}
KINDS = {
    **{f"table 1, {number}": options for number, options in TABLE_1.items()},
    "sum, pre-norm": {
        **TABLE_1["9"], "structural_fusion": "add", "encoder_normalize_before": True,
    },
    "path, small clips": {
        **TABLE_1["9"], "structural_relation": "path", "relative_clip": 2, "structural_clip": 1,
    },
    "distance, keys only, learned": {
        **TABLE_1["9"], "structural_relation": "distance", "relative_keys_only": True,
        "encoder_learned_pos": True,
    },
}  # fmt: skip
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())


@pytest.fixture(scope="module")
def dictionary() -> Dictionary:
    made = Dictionary()
    for number in range(WORDS):
        made.add_symbol(f"w{number}")
    return made


def config(**options):
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    return ENCODERS["structural_transformer"].config(**{**small, "dropout": 0.0, **options})


def build(dictionary: Dictionary, task=None, **options):
    """A small model with random weights, in double precision and without dropout."""
    torch.manual_seed(0)
    task = task or Namespace(
        source_dictionary=dictionary, target_dictionary=dictionary, require_parses=lambda _: None
    )
    model = ARCH_MODEL_REGISTRY["structural_transformer"].build_model(config(**options), task)
    return model.double().eval()


#: Heads of non-projective trees, and the number of subwords of each word.
HEADS = [[2, 3, 2, 2, 0], [0], [1, 2, 2, 0]]
SUBWORDS = [[1, 2, 1, 1, 3], [2], [1, 1, 1, 1]]


def batch(dictionary: Dictionary, rows=(0, 1, 2), *, left: bool = False, extra: int = 0):
    """The sentences above with their end, padded; every token another word of the dictionary."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        torch.randint(dictionary.nspecial, len(dictionary), (sum(counts),), generator=generator)
        for counts in SUBWORDS
    ]
    width = max(len(drawn[row]) for row in rows) + 1 + extra
    tokens = torch.full((len(rows), width), dictionary.pad())
    words = torch.full((len(rows), width), -1)
    heads = torch.full((len(rows), max(len(HEADS[row]) for row in rows)), -1)
    for place, row in enumerate(rows):
        length = len(drawn[row])
        start = width - length - 1 if left else 0
        tokens[place, start : start + length] = drawn[row]
        tokens[place, start + length] = dictionary.eos()
        of_word = [word for word, count in enumerate(SUBWORDS[row]) for _ in range(count)]
        words[place, start : start + length] = torch.tensor(of_word)
        heads[place, : len(HEADS[row])] = torch.tensor(HEADS[row])
    return {"src_tokens": tokens, "src_words": words, "src_heads": heads}


def encode(model, inputs) -> Tensor:
    return model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)


# The twin: eq. 1-7 for one sentence, token by token and pair by pair.


def twin_positions(cfg, row: int) -> tuple[list[int], list[list[dict[str, int]]]]:
    """Eq. 5 of each token, and eq. 4 and 6 of each pair, not clipped; the last token is the end."""
    tree = DependencyTree(HEADS[row])
    of_word = [word for word, count in enumerate(SUBWORDS[row]) for _ in range(count)]
    between = tree.relative_positions(cfg.structural_relation)
    absolute = [int(tree.depths[word]) for word in of_word] + [int(tree.depths.max()) + 1]
    n = len(absolute)
    relative = [[{"sequential": i - j} for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            if max(i, j) == n - 1:
                size = 0 if i == j else absolute[i] + absolute[j]
                relative[i][j]["structural"] = size if i > j else -size
            else:
                relative[i][j]["structural"] = int(between[of_word[i], of_word[j]])
    return absolute, relative


def twin_embedding(encoder, cfg, tokens: Tensor, absolute: list[int]) -> list[Tensor]:
    """Word embedding and the absolute positions, as eq. 7 or its parts."""
    states = []
    width = encoder.embed_tokens.embedding_dim
    for place, (token, depth) in enumerate(zip(tokens, absolute, strict=True)):
        sequential = structural = torch.zeros(width, dtype=torch.double)
        if not cfg.no_sequential_absolute:
            number = place + 1 + encoder.padding_idx  # fairseq counts from there
            table = encoder.embed_positions
            sequential = table.weight[number] if cfg.encoder_learned_pos else table.weights[number]
        if cfg.structural_absolute:
            structural = sinusoids(depth + 1, width)[depth].double()
        position = sequential + structural
        fusion = encoder.depth_encoding
        if cfg.structural_absolute and fusion.structural is not None:
            position = torch.tanh(
                fusion.sequential.weight @ sequential
                + fusion.structural.weight @ structural
                + fusion.structural.bias
            )
        states.append(math.sqrt(width) * encoder.embed_tokens.weight[token] + position)
    return states


def twin_attention(attention, cfg, states: list[Tensor], relative) -> list[Tensor]:
    """Shaw et al.'s eq. 3-4 with the terms of both kinds of positions."""
    clips = {"sequential": cfg.relative_clip, "structural": cfg.structural_clip}
    kinds = [kind for kind in clips if getattr(cfg, f"{kind}_relative")]
    n, width = len(states), len(states[0]) // cfg.encoder_attention_heads

    def table_row(tables, kind, position):
        return tables[kind][clips[kind] + max(-clips[kind], min(clips[kind], position))]

    queries, keys, values = (
        [projection.weight @ state + projection.bias for state in states]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outputs = []
    for i in range(n):
        heads = []
        for head in range(cfg.encoder_attention_heads):
            part = slice(head * width, (head + 1) * width)
            scores, terms = [], []
            for j in range(n):
                key, value = keys[j][part], values[j][part]
                for kind in kinds:
                    position = relative[i][j][kind]
                    key = key + table_row(attention.relative_keys, kind, position)
                    if not cfg.relative_keys_only:
                        value = value + table_row(attention.relative_values, kind, position)
                scores.append(queries[i][part] @ key / math.sqrt(width))
                terms.append(value)
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(weight * term for weight, term in zip(weights, terms, strict=True)))
        outputs.append(attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias)
    return outputs


def twin_layer_norm(norm, state: Tensor) -> Tensor:
    centred = state - state.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def twin_encoder(model, cfg, tokens: Tensor, row: int) -> Tensor:
    encoder = model.encoder
    absolute, relative = twin_positions(cfg, row)
    states = twin_embedding(encoder, cfg, tokens, absolute)
    for layer in encoder.layers:

        def attend(inputs, attention=layer.self_attn):
            return twin_attention(attention, cfg, inputs, relative)

        def feed_forward(inputs, layer=layer):
            inner = [torch.relu(layer.fc1.weight @ x + layer.fc1.bias) for x in inputs]
            return [layer.fc2.weight @ x + layer.fc2.bias for x in inner]

        for norm, block in (
            (layer.self_attn_layer_norm, attend),
            (layer.final_layer_norm, feed_forward),
        ):
            if cfg.encoder_normalize_before:
                updates = block([twin_layer_norm(norm, state) for state in states])
                states = [state + update for state, update in zip(states, updates, strict=True)]
            else:
                states = [
                    twin_layer_norm(norm, state + update)
                    for state, update in zip(states, block(states), strict=True)
                ]
    if encoder.layer_norm is not None:
        states = [twin_layer_norm(encoder.layer_norm, state) for state in states]
    return torch.stack(states)


@each_kind
def test_the_encoder_is_the_equations_in_value_and_gradient(dictionary, options):
    model, cfg = build(dictionary, **options), config(**options)
    inputs = batch(dictionary, extra=1)
    actual = encode(model, inputs)
    lengths = [sum(counts) + 1 for counts in SUBWORDS]
    expected = torch.zeros_like(actual)
    for row, length in enumerate(lengths):
        expected[row, :length] = twin_encoder(model, cfg, inputs["src_tokens"][row, :length], row)
    direction = torch.randn_like(actual)
    for row, length in enumerate(lengths):
        assert_same(actual[row, :length], expected[row, :length])
        direction[row, length:] = 0  # what stands at padding is never read
    parameters = dict(model.encoder.named_parameters())
    found, wanted = (
        torch.autograd.grad((x * direction).sum(), parameters.values(), allow_unused=True)
        for x in (actual, expected)
    )
    for name, one, other in zip(parameters, found, wanted, strict=True):
        assert (one is None) == (other is None), name
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)


@each_kind
def test_a_sentence_in_a_batch_is_encoded_as_if_alone_padded_on_either_side(dictionary, options):
    model = build(dictionary, **options)
    right, left = (batch(dictionary, extra=2, left=side) for side in (False, True))
    together, shifted = encode(model, right), encode(model, left)
    for row, counts in enumerate(SUBWORDS):
        length = sum(counts) + 1
        alone = encode(model, batch(dictionary, rows=[row]))[0]
        assert_same(together[row, :length], alone)
        assert_same(shifted[row, -length:], alone)


@each_kind
def test_permuting_the_batch_permutes_the_output(dictionary, options):
    model, inputs = build(dictionary, **options), batch(dictionary)
    order = torch.tensor([2, 0, 1])
    permuted = {name: value[order] for name, value in inputs.items()}
    assert_same(encode(model, permuted), encode(model, inputs)[order])


@each_kind
def test_checkpointed_activations_and_all_hidden_states_change_nothing(dictionary, options):
    inputs, found = batch(dictionary), []
    for checkpointed in (False, True):
        model = build(dictionary, checkpoint_activations=checkpointed, **options).train()
        output = model.encoder(**inputs, return_all_hiddens=True)
        assert len(output["encoder_states"]) == 3
        wrapped = [hasattr(layer, "precheckpoint_forward") for layer in model.encoder.layers]
        assert wrapped == [checkpointed] * 2
        output["encoder_out"][0].square().sum().backward()
        found.append([p.grad for p in model.encoder.parameters() if p.grad is not None])
    assert len(found[0]) == len(found[1]) > 20
    torch.testing.assert_close(found[0], found[1])


# Row 4: fairseq's own Transformer.


def stock_transformer(dictionary: Dictionary, **options) -> TransformerModelBase:
    torch.manual_seed(0)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    cfg = nested_config(config(**options))
    return TransformerModelBase.build_model(cfg, task).double().eval()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"encoder_normalize_before": True, "encoder_learned_pos": True},
        {"layernorm_embedding": True, "quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4},
    ],
    ids=["default", "pre-norm, learned", "embedding norm, quantization noise"],
)
@pytest.mark.parametrize("training", [False, True])
def test_without_options_the_model_is_fairseqs_transformer_to_the_last_bit(
    dictionary, options, training
):
    options = {**options, "dropout": 0.1, "attention_dropout": 0.1}
    ours, theirs = build(dictionary, **options), stock_transformer(dictionary, **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    inputs = batch(dictionary)
    tokens = inputs["src_tokens"]
    outputs, gradients = [], []
    for model, parses in ((ours, inputs), (theirs, {"src_tokens": tokens})):
        torch.manual_seed(1)  # for dropout
        logits, _ = model.train(training)(**parses, src_lengths=None, prev_output_tokens=tokens)
        logits.square().sum().backward()
        outputs.append(logits)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert torch.equal(*outputs)
    assert all(map(torch.equal, *gradients))


def test_a_stock_checkpoint_loads_into_the_model_without_options(dictionary):
    torch.manual_seed(7)
    theirs = stock_transformer(dictionary)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter)
    ours = build(dictionary)
    ours.load_state_dict(theirs.state_dict(), strict=True)
    inputs = batch(dictionary)
    tokens = inputs["src_tokens"]
    actual, _ = ours(**inputs, src_lengths=None, prev_output_tokens=tokens)
    expected, _ = theirs(tokens, None, tokens)
    assert torch.equal(actual, expected)


def test_positions_in_the_sentence_can_be_left_out_of_the_encoder_alone(dictionary):
    model = build(dictionary, **TABLE_1["1"])
    inputs = batch(dictionary, rows=[0])
    reordered = {name: value.clone() for name, value in inputs.items()}
    reordered["src_tokens"][0, :3] = inputs["src_tokens"][0, [2, 0, 1]]
    assert_same(encode(model, reordered)[0, :3], encode(model, inputs)[0, [2, 0, 1]])
    assert model.decoder.embed_positions is not None


# Options, precision, decoding.


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_double_forward_and_backward(dictionary, dtype):
    inputs, results = batch(dictionary), []
    direction = torch.randn(3, 9, 8)
    for precision in (torch.double, dtype):
        model = build(dictionary, **TABLE_1["9"]).to(precision)
        output = encode(model, inputs)
        assert output.dtype == precision
        (output * direction.to(precision)).sum().backward()
        table = model.encoder.layers[0].self_attn.relative_values["structural"].grad
        results.append([output.detach().double(), table.double()])
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=0.1, atol=0.1 * expected.abs().max())


def test_layers_can_be_dropped_in_training(dictionary):
    model = build(dictionary, **TABLE_1["9"], encoder_layerdrop=0.5).train()
    torch.manual_seed(0)
    counts = {
        len(model.encoder(**batch(dictionary), return_all_hiddens=True)["encoder_states"])
        for _ in range(30)
    }
    assert counts == {1, 2, 3}
    assert (
        len(model.eval().encoder(**batch(dictionary), return_all_hiddens=True)["fc_results"]) == 2
    )


def test_projections_take_part_in_quantization_noise(dictionary):
    model = build(dictionary, **TABLE_1["9"], quant_noise_pq=0.5, quant_noise_pq_block_size=4)
    inputs = batch(dictionary)
    assert_same(encode(model, inputs), encode(model, inputs))
    for layer in model.train().encoder.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.out_proj, layer.fc1):
            assert projection._forward_pre_hooks
    assert not torch.equal(encode(model, inputs), encode(model, inputs))


def test_beam_search_over_a_batch_is_that_of_single_sentences(dictionary):
    model = build(dictionary, **TABLE_1["9"]).float()
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=12)

    def generate(rows):
        net_input = batch(dictionary, rows=rows)
        net_input["src_lengths"] = net_input["src_tokens"].ne(dictionary.pad()).sum(1)
        found = generator.generate([model], {"net_input": net_input})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in found]

    assert generate([0, 1, 2]) == [generate([row])[0] for row in range(3)]


def test_every_preset_is_registered_with_its_own_defaults():
    sizes = {
        "structural_transformer": (512, 2048, 8, 6),
        "structural_transformer_tiny": (128, 256, 4, 3),
        "structural_transformer_iwslt_de_en": (512, 1024, 4, 6),
        "structural_transformer_wmt_en_de": (512, 2048, 8, 6),
        "structural_transformer_wmt_en_de_big": (1024, 4096, 16, 6),
        "structural_transformer_base": (512, 2048, 8, 6),
        "structural_transformer_big": (1024, 4096, 16, 6),
    }
    for name, expected in sizes.items():
        assert ARCH_MODEL_REGISTRY[name].method is ENCODERS["structural_transformer"]
        cfg = MODEL_DATACLASS_REGISTRY[name]()
        for side in ("encoder", "decoder"):
            names = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
            assert tuple(getattr(cfg, f"{side}_{option}") for option in names) == expected
            assert not getattr(cfg, f"{side}_normalize_before")
        # A flag can only switch on, so nothing may be on already.
        assert ENCODERS["structural_transformer"].parse_fields(nested_config(cfg)) == []


@pytest.mark.parametrize("number", TABLE_1)
def test_only_the_models_with_structure_ask_for_parses(dictionary, number):
    asked = []
    task = Namespace(
        source_dictionary=dictionary, target_dictionary=dictionary, require_parses=asked.append
    )
    build(dictionary, task=task, **TABLE_1[number])
    assert asked == ([] if number in "147" else [["words", "heads"]])


def test_a_task_or_a_batch_without_parses_is_refused(dictionary):
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    with pytest.raises(UserError, match="words and heads: use --task syntax_translation"):
        build(dictionary, task=task, **TABLE_1["5"])
    model = build(dictionary, **TABLE_1["3"])
    with pytest.raises(ValueError, match="the batch carries no words: use --task"):
        model.encoder(batch(dictionary)["src_tokens"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"relative_clip": 0}, "--relative-clip 0: expected 1 or more"),
        ({"structural_clip": -1}, "--structural-clip -1: expected 1 or more"),
        (
            {"sequential_relative": True, "encoder_xformers_att_config": "{}"},
            "--encoder-xformers-att-config has no relative positions",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(dictionary, options, message):
    with pytest.raises(UserError, match=message):
        build(dictionary, **options)


@each_kind
def test_attention_maps_are_the_weights_of_every_layer(dictionary, options):
    model = build(dictionary, **options)
    inputs = batch(dictionary, extra=1)
    structure, maps = model.encoder.attention_maps(**inputs)
    is_real = inputs["src_tokens"].ne(dictionary.pad())
    width = is_real.size(1)
    assert len(maps) == 2
    for layer in maps:
        (weights,) = layer.values()
        assert weights.shape == (3, 2, width, width)
        assert not weights.masked_fill(is_real[:, None, None], 0.0).any()
        torch.testing.assert_close(weights.sum(-1).double(), torch.ones(3, 2, width).double())
    relative = getattr(structure, "relative", None)
    positions = {} if relative is None else relative.by_kind()
    kinds = [kind for kind in ("sequential", "structural") if options.get(f"{kind}_relative")]
    assert list(positions) == kinds
    for kind, position in positions.items():
        clip = model.cfg.relative_clip if kind == "sequential" else model.cfg.structural_clip
        tree = model.encoder.find_tree(
            inputs["src_tokens"],
            ParseBatch({name: inputs[f"src_{name}"] for name in ("words", "heads")}),
        )
        unclipped = model.encoder.relative_positions(tree, width, torch.device("cpu"))[kind]
        assert torch.equal(position, unclipped.clamp(-clip, clip))
