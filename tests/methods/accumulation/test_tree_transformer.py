"""The tree Transformer: its layers against the equations in loops, and its options."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import ENCODERS
from tests.support.tree_models import FOREST, batch, build, each_kind, of_sentence
from tests.support.tree_strategies import Tree, chain, flat, grown, unary
from tests.twins.tree_transformer import twin_decoder, twin_encoder, with_eos


@each_kind
def test_encoder_and_decoder_are_the_equations_in_value_and_gradient(dictionary, options):
    model = build(dictionary, **options)
    cfg = MODEL_DATACLASS_REGISTRY["tree_transformer"](**options)
    for leaf_tree in (grown(4, 4, 11), unary(2, 1)):
        tree = with_eos(leaf_tree)
        inputs = batch(dictionary, [leaf_tree], extra=1)
        previous = torch.tensor([[2, 7, 9, 5]])
        encoded = model.encoder(**inputs)
        states = encoded["encoder_out"][0][:, 0]
        n = inputs["src_tokens"].size(1)
        states = torch.cat([states[: tree.leaves], states[n : n + len(tree.parents)]])
        features = model.decoder(previous, encoder_out=encoded, features_only=True)[0][0]
        numbers = inputs["src_spans"][0, : len(tree.parents), 2].tolist()
        source = twin_encoder(model, cfg, inputs["src_tokens"][0, : tree.leaves], tree, numbers)
        target = twin_decoder(model, cfg, previous[0], source, tree)
        torch.testing.assert_close(states, source, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(features, target, rtol=1e-9, atol=1e-9)
        # All that the decoder's features depend on: not the output projection.
        parameters = dict(model.named_parameters())
        direction = torch.randn_like(target)
        gradients, expected = (
            torch.autograd.grad((output * direction).sum(), parameters.values(), allow_unused=True)
            for output in (features, target)
        )
        for name, actual, literal in zip(parameters, gradients, expected, strict=True):
            assert (actual is None) == (literal is None), name
            if actual is not None:
                torch.testing.assert_close(actual, literal, rtol=1e-7, atol=1e-9, msg=name)
        trained = {
            name
            for name, gradient in zip(parameters, gradients, strict=True)
            if gradient is not None
        }
        accumulations = {name for name in parameters if "accumulation" in name}
        assert accumulations <= trained
        per_layer = (
            1 + 2 * (not cfg.no_hierarchical_embeddings) + (cfg.tree_convention == "released")
        )
        sides = 1 if cfg.tree_encoder_only else 2
        assert len(accumulations) == per_layer * 2 * sides


@each_kind
def test_a_sentence_in_a_padded_batch_is_translated_as_if_alone(dictionary, options):
    model = build(dictionary, **options)
    inputs = batch(dictionary, FOREST, extra=2)
    previous = torch.randint(4, 20, (len(FOREST), 5))
    together = model(**inputs, src_lengths=None, prev_output_tokens=previous)[0]
    for row, tree in enumerate(FOREST):
        alone = model(
            **of_sentence(inputs, row, tree),
            src_lengths=None,
            prev_output_tokens=previous[row : row + 1],
        )[0]
        torch.testing.assert_close(alone[0], together[row])


def test_padding_on_the_left_changes_nothing(dictionary):
    model = build(dictionary)
    previous = torch.randint(4, 20, (len(FOREST), 3))
    right, left = (
        model(
            **batch(dictionary, FOREST, left=side), src_lengths=None, prev_output_tokens=previous
        )[0]
        for side in (False, True)
    )
    torch.testing.assert_close(left, right)


@pytest.mark.parametrize("options", [{}, {"tree_convention": "released"}])
def test_a_batch_of_sentences_without_constituents_trains_all_parameters(dictionary, options):
    model = build(dictionary, **options).train()
    inputs = batch(dictionary, [Tree(1, [], [-1])] * 2)
    assert inputs["src_spans"].shape == (2, 0, 3)
    output = model(**inputs, src_lengths=None, prev_output_tokens=torch.tensor([[2, 5]] * 2))[0]
    output.sum().backward()
    assert output.isfinite().all()
    assert all(parameter.grad is not None for parameter in model.parameters())


@each_kind
def test_checkpointed_activations_have_the_same_gradients(dictionary, options):
    inputs = batch(dictionary, FOREST)
    previous = torch.randint(4, 20, (len(FOREST), 3))
    gradients = []
    for checkpointed in (False, True):
        model = build(dictionary, checkpoint_activations=checkpointed, **options).train()
        output = model(**inputs, src_lengths=None, prev_output_tokens=previous)[0]
        output.square().sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    assert len(gradients[0]) > 40
    torch.testing.assert_close(gradients[0], gradients[1])


def test_layer_drop_and_quantization_noise_and_dropout_train(dictionary):
    model = build(
        dictionary, encoder_layerdrop=0.5, decoder_layerdrop=0.5, quant_noise_pq=0.1,
        quant_noise_pq_block_size=4, dropout=0.1, attention_dropout=0.1,
    ).train()  # fmt: skip
    inputs = batch(dictionary, FOREST)
    previous = torch.randint(4, 20, (len(FOREST), 3))
    outputs = [model(**inputs, src_lengths=None, prev_output_tokens=previous)[0] for _ in range(2)]
    sum(output.sum() for output in outputs).backward()
    assert not torch.equal(*outputs)
    assert all(output.isfinite().all() for output in outputs)


def test_attention_maps_keep_to_subtrees_and_are_what_the_encoder_does(dictionary):
    for options in ({}, {"encoder_normalize_before": True, "no_subtree_masking": True}):
        model = build(dictionary, **options)
        inputs = batch(dictionary, FOREST)
        tree, maps = model.encoder.attention_maps(**inputs)
        assert len(maps) == 2
        mask = tree.key_mask if options else tree.subtree_mask
        for layer, blocks in zip(model.encoder.layers, maps, strict=True):
            (weights,) = blocks.values()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            assert (weights.masked_select(~mask) == 0).all()
            assert layer is not None
        states = []
        handle = model.encoder.layers[1].self_attn.register_forward_hook(
            lambda module, arguments, output, seen=states: seen.append(output[0])
        )
        model.encoder(**inputs)
        model.encoder.attention_maps(**inputs)
        handle.remove()
        torch.testing.assert_close(states[1], states[0])


# Options and registration.


def test_every_preset_is_registered_with_its_own_defaults():
    sizes = {
        "tree_transformer": (512, 2048, 8, 6),
        "tree_transformer_tiny": (128, 256, 4, 3),
        "tree_transformer_iwslt_de_en": (512, 1024, 4, 6),
        "tree_transformer_wmt_en_de": (512, 2048, 8, 6),
        "tree_transformer_wmt_en_de_big": (1024, 4096, 16, 6),
    }
    for name, expected in sizes.items():
        assert ARCH_MODEL_REGISTRY[name].method is ENCODERS["tree_transformer"]
        cfg = MODEL_DATACLASS_REGISTRY[name]()
        assert (cfg.tree_max_vertical, cfg.tree_max_horizontal) == (50, 100)
        assert cfg.tree_convention == "paper"
        for side in ("encoder", "decoder"):
            options = ("embed_dim", "ffn_embed_dim", "attention_heads", "layers")
            assert tuple(getattr(cfg, f"{side}_{option}") for option in options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"encoder_attention_heads": 8}, "--encoder-embed-dim 8 is not divisible into 8 heads"),
        ({"decoder_attention_heads": 8}, "--decoder-embed-dim 8 is not divisible into 8 heads"),
        ({"tree_max_vertical": 0}, "--tree-max-vertical 0: the smallest index is 1"),
        ({"tree_max_horizontal": -3}, "--tree-max-horizontal -3"),
        ({"cross_self_attention": True}, "--cross-self-attention"),
    ],
)
def test_options_that_make_no_sense_are_refused(dictionary, options, message):
    with pytest.raises(UserError, match=message):
        build(dictionary, **options)


def test_indices_of_trees_may_all_be_one(dictionary):
    build(dictionary, tree_max_vertical=1, tree_max_horizontal=1)


def test_a_task_without_parses_is_refused_with_the_one_to_use(dictionary):
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    with pytest.raises(UserError, match="words and spans: use --task syntax_translation"):
        build(dictionary, task=task)


def test_a_batch_without_its_constituents_is_refused(dictionary):
    model = build(dictionary)
    with pytest.raises(ValueError, match="the batch carries no words: use --task"):
        model.encoder(batch(dictionary, FOREST)["src_tokens"])


def test_parses_that_only_other_models_of_an_ensemble_need_are_ignored(dictionary):
    model = build(dictionary)
    inputs = batch(dictionary, FOREST)
    heads = torch.zeros(len(FOREST), 7, dtype=torch.int64)
    torch.testing.assert_close(
        model.encoder(**inputs, src_heads=heads)["encoder_out"],
        model.encoder(**inputs)["encoder_out"],
    )


def test_one_label_shares_one_embedding(dictionary):
    assert build(dictionary).encoder.embed_labels.weight.shape == (7, 8)
    assert build(dictionary, tree_one_label=True).encoder.embed_labels.weight.shape == (1, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deep_trees_stay_finite_in_half_precision(dictionary, dtype):
    forest = [chain(60), flat(200), unary(60, 1)]
    inputs = batch(dictionary, forest)
    previous = torch.randint(4, 20, (len(forest), 5))
    model = build(dictionary).train()
    exact = model(**inputs, src_lengths=None, prev_output_tokens=previous)[0]
    model = model.to(dtype)
    output = model(**inputs, src_lengths=None, prev_output_tokens=previous)[0]
    torch.testing.assert_close(output.double(), exact, rtol=0.1, atol=0.1)
    output.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
