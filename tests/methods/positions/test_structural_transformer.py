"""The structural-position Transformer: eq. 1-7 in loops, fairseq's own Transformer, its options."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
import yaml
from fairseq.data import Dictionary
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerModelBase
from fairseq.options import get_training_parser, parse_args_and_arch
from fairseq.sequence_generator import SequenceGenerator

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.methods.positions import structural_transformer
from fairseq_phrase.methods.positions.path_positions import token_paths
from fairseq_phrase.methods.positions.relative_positions import sequential_positions
from fairseq_phrase.testing import build_model
from tests.support.repository import REPOSITORY
from tests.support.structural_models import SUBWORDS, TABLE_1, batch, build, config, encode
from tests.support.tolerance import assert_same
from tests.twins.structural_encoder import twin_encoder

WORDS = 30
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
    "paths, too deep and too wide": {
        **TABLE_1["9"], "structural_absolute": "path",
    },
    "paths, sum, columns left": {
        "structural_absolute": "path", "structural_fusion": "add",
    },
}  # fmt: skip
SIZES_OF_PATHS = {"paths, too deep and too wide": (2, 2), "paths, sum, columns left": (3, 1)}


@pytest.fixture(autouse=True)
def path_sizes(request, monkeypatch):
    """Sizes that the small trees here exceed."""
    kind = getattr(getattr(request.node, "callspec", None), "id", "")
    for name, sizes in SIZES_OF_PATHS.items():
        if name in kind:
            monkeypatch.setattr(structural_transformer, "PATH_SIZES", sizes)


def test_the_rows_of_the_table_have_the_positions_of_the_papers_table_1():
    table = REPOSITORY / "configs" / "tables" / "nist_zh_en_table1.yaml"
    content = yaml.safe_load(table.read_text(encoding="utf-8"))
    for number, positions in TABLE_1.items():
        row = {**content["model"], **content["rows"][f"table1_{number}"].get("model", {})}
        del row["_name"], row["dropout"]
        defaults = MODEL_DATACLASS_REGISTRY["structural_transformer"]()
        assert row == {**{name: getattr(defaults, name) for name in row}, **positions}


each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())


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
    gradients, expected_gradients = (
        torch.autograd.grad((x * direction).sum(), parameters.values(), allow_unused=True)
        for x in (actual, expected)
    )
    for name, gradient, expected_gradient in zip(
        parameters, gradients, expected_gradients, strict=True
    ):
        assert (gradient is None) == (expected_gradient is None), name
        if gradient is not None:
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-8, atol=1e-10, msg=name)


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


def test_checkpointed_activations_and_all_hidden_states_change_nothing(dictionary):
    inputs, options, gradients = batch(dictionary), TABLE_1["9"], []
    for checkpointed in (False, True):
        model = build(dictionary, checkpoint_activations=checkpointed, **options).train()
        output = model.encoder(**inputs, return_all_hiddens=True)
        assert len(output["encoder_states"]) == 3
        wrapped = [hasattr(layer, "precheckpoint_forward") for layer in model.encoder.layers]
        assert wrapped == [checkpointed] * 2
        output["encoder_out"][0].square().sum().backward()
        gradients.append([p.grad for p in model.encoder.parameters() if p.grad is not None])
    assert len(gradients[0]) == len(gradients[1]) > 20
    torch.testing.assert_close(gradients[0], gradients[1])


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
        generated = generator.generate([model], {"net_input": net_input})
        return [hypotheses[0]["tokens"].tolist() for hypotheses in generated]

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
    required = []
    task = Namespace(
        source_dictionary=dictionary, target_dictionary=dictionary, require_parses=required.append,
        require_structure=lambda key, make: None, label_dictionary=lambda field: range(10),
    )  # fmt: skip
    build(dictionary, task=task, **TABLE_1[number])
    assert required == ([] if number in "147" else [["words", "heads"]])


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
        ({"structural_absolute": "levels"}, "--structural-absolute levels: expected .*no value"),
        (
            {"sequential_relative": True, "encoder_xformers_att_config": "{}"},
            "--encoder-xformers-att-config does not support relative positions",
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
        # fairseq's softmax is in single precision.
        torch.testing.assert_close(weights.sum(-1).float(), torch.ones(3, 2, width))
    relative = getattr(structure, "relative", None)
    positions = {} if relative is None else relative.by_kind()
    kinds = [kind for kind in ("sequential", "structural") if options.get(f"{kind}_relative")]
    assert list(positions) == kinds
    tree = TreePositions(inputs["src_words"], inputs["src_heads"], ~is_real)
    for kind, position in positions.items():
        clip = model.cfg.relative_clip if kind == "sequential" else model.cfg.structural_clip
        relation = model.cfg.structural_relation
        expected = sequential_positions(width) if kind == "sequential" else tree.relative(relation)
        assert torch.equal(position, expected.clamp(-clip, clip))


def test_paths_are_the_branches_from_the_root_and_what_is_left_out_is_counted_once(
    dictionary, caplog, monkeypatch
):
    heads = torch.tensor([[1, 1, 1, 2, 2, 3, -1], [0, 0, 0, 0, 0, 0, 0]])
    words = torch.tensor([[0, 1, 2, 3, 4, 5, -1], [0, 1, 2, 3, 4, 5, 6]])
    paths, deep, wide = token_paths(2, 3, words, ParseBatch({"words": words, "heads": heads}))
    none = -1
    assert paths[0].tolist() == [
        [0, none], [none, none], [1, none], [0, 1], [1, 1], [0, 0], [none, none]
    ]  # fmt: skip
    assert paths[1, :, 0].tolist() == [none, 0, 1, 2, 2, 2, 2]
    assert (deep, wide) == (1, 3)
    monkeypatch.setattr(structural_transformer, "PATH_SIZES", (1, 2))  # less than the trees here
    model, inputs = build(dictionary, structural_absolute="path"), batch(dictionary)
    for _ in range(2):
        encode(model, inputs)
    (message,) = [record.getMessage() for record in caplog.records if "deeper" in record.message]
    assert message.startswith("In a batch, 4 words are deeper than 1, so that the upper")


def test_other_absolute_positions_are_refused():
    cfg = config(structural_absolute="way")
    with pytest.raises(UserError, match=r"expected path or no value \(depths\)"):
        ENCODERS["structural_transformer"].check(nested_config(cfg))


def test_a_narrow_encoder_has_shorter_paths():
    sizes = [structural_transformer.path_sizes(width) for width in (16, 64, 512)]
    assert sizes == [(4, 4), (16, 4), (16, 4)]


def test_options_without_an_effect_are_reported(dictionary, caplog):
    name = "structural_transformer"
    moot = {"structural_fusion": "add", "structural_relation": "path", "structural_clip": 3}
    moot |= {"relative_clip": 3, "relative_keys_only": True}
    build_model(name, dictionary, **moot)
    on = {"structural_absolute": True, "structural_relative": True, "sequential_relative": True}
    assert [message.split(" has no effect")[0] for message in caplog.messages] == [
        "--structural-fusion", "--structural-relation", "--relative-clip", "--structural-clip",
        "--relative-keys-only",
    ]  # fmt: skip
    caplog.clear()
    build_model(name, dictionary, **on, **moot)
    build_model(name, dictionary)
    assert not caplog.messages


def test_the_flag_of_absolute_positions_may_have_a_value():
    values = []
    for value in ([], ["--structural-absolute"], ["--structural-absolute", "path"]):
        flags = ["data", "--arch", "structural_transformer_tiny", *value]
        args = parse_args_and_arch(get_training_parser(), flags)
        values.append(convert_namespace_to_omegaconf(args).model.structural_absolute)
    assert values == [False, True, "path"]
