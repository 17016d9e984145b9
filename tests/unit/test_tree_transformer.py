"""The tree Transformer: its layers against the equations in loops, and its options."""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

import fairseq_phrase.models.tree_transformer  # noqa: F401 - registers the encoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import ENCODERS
from tests.support.tree_strategies import Tree, chain, flat, grown, unary
from tests.unit.test_hierarchical_accumulation import twin
from tests.unit.test_phrase_transformer import dictionary, twin_layer_norm  # noqa: F401 - a fixture

FOREST = [grown(6, 5, 4), Tree(1, [], [-1]), unary(3, 2), chain(3), flat(4)]


def labels() -> Dictionary:
    made = Dictionary()
    for name in ("NP", "VP", "S"):
        made.add_symbol(name)
    return made


def build(dictionary: Dictionary, task=None, **options):  # noqa: F811
    """A small model with random weights, in double precision and without dropout."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    cfg = ENCODERS["tree_transformer"].config(**{**small, "dropout": 0.0, **options})
    task = task or Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=lambda field: labels(),
        require_parses=lambda _: None,
    )
    model = ARCH_MODEL_REGISTRY["tree_transformer"].build_model(cfg, task)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


def batch(dictionary, forest, *, left=False, extra=0):  # noqa: F811
    """Random sentences with an end of sentence, padded; every leaf a word."""
    generator = torch.Generator().manual_seed(len(forest))
    width = max(tree.leaves for tree in forest) + 1 + extra
    tokens = torch.full((len(forest), width), dictionary.pad())
    words = torch.full((len(forest), width), -1)
    constituents = max(len(tree.parents) for tree in forest) + extra
    spans = torch.full((len(forest), constituents, 3), -1)
    for row, tree in enumerate(forest):
        n = tree.leaves
        start = width - n - 1 if left else 0
        drawn = torch.randint(dictionary.nspecial, len(dictionary), (n,), generator=generator)
        tokens[row, start : start + n] = drawn
        tokens[row, start + n] = dictionary.eos()
        words[row, start : start + n] = torch.arange(n)
        for node, span in enumerate(tree.spans):
            spans[row, node] = torch.tensor([*span, dictionary.nspecial + node % 3])
    return {"src_tokens": tokens, "src_words": words, "src_spans": spans}


def of_sentence(inputs, row, tree):
    """One sentence of a batch, without padding."""
    return {
        "src_tokens": inputs["src_tokens"][row : row + 1, : tree.leaves + 1],
        "src_words": inputs["src_words"][row : row + 1, : tree.leaves + 1],
        "src_spans": inputs["src_spans"][row : row + 1, : len(tree.parents)],
    }


KINDS = {
    "paper": {},
    "released": {"tree_convention": "released"},
    "no embeddings": {"no_hierarchical_embeddings": True},
    "no masking": {"no_subtree_masking": True},
    "neither": {"no_hierarchical_embeddings": True, "no_subtree_masking": True},
    "encoder only": {"tree_encoder_only": True},
    "one label, small tables": {
        "tree_one_label": True, "tree_max_vertical": 2, "tree_max_horizontal": 2,
    },
    "pre-norm, layer norm on embeddings": {
        "encoder_normalize_before": True, "decoder_normalize_before": True,
        "layernorm_embedding": True,
    },
}  # fmt: skip
each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())

# The twin: attention, residual connections and layer norms one node at a time.


def twin_attention(attention, queries, states, allowed, tree, accumulation):
    """One sentence: rows of ``queries`` attend to rows of ``states`` where ``allowed(i, j)``."""
    heads = attention.num_heads
    width = attention.q_proj.out_features // heads
    query, key, value = (
        torch.stack([projection.weight @ row + projection.bias for row in rows])
        for projection, rows in (
            (attention.q_proj, queries), (attention.k_proj, states), (attention.v_proj, states)
        )
    )  # fmt: skip
    value = value.view(len(states), heads, width)
    if accumulation is not None:
        # (the end of sentence is a leaf: it stands between the words and the nonterminals)
        value = torch.cat([value[: tree.leaves], twin(value, states, tree, accumulation)])
    outputs = []
    for i in range(len(queries)):
        parts = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = {
                j: torch.exp(query[i, part] @ key[j, part] / math.sqrt(width))
                for j in range(len(states))
                if allowed(i, j)
            }
            total = sum(scores.values())
            parts.append(sum(score / total * value[j, head] for j, score in scores.items()))
        outputs.append(attention.out_proj.weight @ torch.cat(parts) + attention.out_proj.bias)
    return torch.stack(outputs)


def twin_layer(states, blocks, normalize_before):
    for norm, block in blocks:
        if normalize_before:
            states = states + block(torch.stack([twin_layer_norm(norm, row) for row in states]))
        else:
            states = torch.stack([twin_layer_norm(norm, row) for row in states + block(states)])
    return states


def feed_forward(layer):
    return lambda rows: torch.stack(
        [
            layer.fc2.weight @ torch.relu(layer.fc1.weight @ row + layer.fc1.bias) + layer.fc2.bias
            for row in rows
        ]
    )


def with_eos(tree: Tree) -> Tree:
    return Tree(tree.leaves + 1, tree.parents, [*tree.above, -1])


def twin_encoder(model, cfg, tokens, tree, numbers):
    """States of all nodes of one sentence. Shape: (nodes, width)."""
    encoder, n = model.encoder, tree.leaves
    states = [*encoder.forward_embedding(tokens.unsqueeze(0))[0][0]]
    for number in numbers:
        row = encoder.embed_labels.weight[0 if cfg.tree_one_label else number]
        row = math.sqrt(len(row)) * row
        if encoder.layernorm_embedding is not None:
            row = twin_layer_norm(encoder.layernorm_embedding, row)
        states.append(row)

    def allowed(i, j):
        if cfg.no_subtree_masking:
            return True
        if i < n:
            return j < n
        below = tree.under(i - n)
        return j in below if j < n else i == j or is_ancestor(i - n, j - n)

    def is_ancestor(i, t):
        while t >= 0 and t != i:
            t = tree.parents[t]
        return t == i

    states = torch.stack(states)
    for layer in encoder.layers:
        attention = layer.self_attn
        blocks = [
            (
                layer.self_attn_layer_norm,
                lambda x, a=attention: twin_attention(a, x, x, allowed, tree, a.accumulation),
            ),
            (layer.final_layer_norm, feed_forward(layer)),
        ]
        states = twin_layer(states, blocks, cfg.encoder_normalize_before)
    if encoder.layer_norm is not None:
        states = torch.stack([twin_layer_norm(encoder.layer_norm, row) for row in states])
    return states


def twin_decoder(model, cfg, previous, source, tree):
    """Features of one target. Shape: (target tokens, width)."""
    decoder = model.decoder
    states = decoder.embed_scale * decoder.embed_tokens(previous)
    states = states + decoder.embed_positions(previous.unsqueeze(0))[0]
    if decoder.layernorm_embedding is not None:
        states = torch.stack([twin_layer_norm(decoder.layernorm_embedding, row) for row in states])
    for layer in decoder.layers:
        own, cross = layer.self_attn, layer.encoder_attn
        blocks = [
            (
                layer.self_attn_layer_norm,
                lambda x, a=own: twin_attention(a, x, x, lambda i, j: j <= i, tree, None),
            ),
            (
                layer.encoder_attn_layer_norm,
                lambda x, a=cross: twin_attention(
                    a, x, source, lambda i, j: True, tree, a.accumulation
                ),
            ),
            (layer.final_layer_norm, feed_forward(layer)),
        ]
        states = twin_layer(states, blocks, cfg.decoder_normalize_before)
    if decoder.layer_norm is not None:
        states = torch.stack([twin_layer_norm(decoder.layer_norm, row) for row in states])
    return states


@each_kind
def test_encoder_and_decoder_are_the_equations_in_value_and_gradient(dictionary, options):  # noqa: F811
    model = build(dictionary, **options)
    cfg = ENCODERS["tree_transformer"].config(**options)
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
        found, expected = (
            torch.autograd.grad((output * direction).sum(), parameters.values(), allow_unused=True)
            for output in (features, target)
        )
        for name, actual, literal in zip(parameters, found, expected, strict=True):
            assert (actual is None) == (literal is None), name
            if actual is not None:
                torch.testing.assert_close(actual, literal, rtol=1e-7, atol=1e-9, msg=name)
        trained = {
            name for name, gradient in zip(parameters, found, strict=True) if gradient is not None
        }
        accumulations = {name for name in parameters if "accumulation" in name}
        assert accumulations <= trained
        per_layer = (
            1 + 2 * (not cfg.no_hierarchical_embeddings) + (cfg.tree_convention == "released")
        )
        sides = 1 if cfg.tree_encoder_only else 2
        assert len(accumulations) == per_layer * 2 * sides


@each_kind
def test_a_sentence_in_a_padded_batch_is_translated_as_if_alone(dictionary, options):  # noqa: F811
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


def test_padding_on_the_left_changes_nothing(dictionary):  # noqa: F811
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
def test_a_batch_of_sentences_without_constituents_trains_all_parameters(dictionary, options):  # noqa: F811
    model = build(dictionary, **options).train()
    inputs = batch(dictionary, [Tree(1, [], [-1])] * 2)
    assert inputs["src_spans"].shape == (2, 0, 3)
    output = model(**inputs, src_lengths=None, prev_output_tokens=torch.tensor([[2, 5]] * 2))[0]
    output.sum().backward()
    assert output.isfinite().all()
    assert all(parameter.grad is not None for parameter in model.parameters())


@each_kind
def test_checkpointed_activations_have_the_same_gradients(dictionary, options):  # noqa: F811
    inputs = batch(dictionary, FOREST)
    previous = torch.randint(4, 20, (len(FOREST), 3))
    found = []
    for checkpointed in (False, True):
        model = build(dictionary, checkpoint_activations=checkpointed, **options).train()
        output = model(**inputs, src_lengths=None, prev_output_tokens=previous)[0]
        output.square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    assert len(found[0]) > 40
    torch.testing.assert_close(found[0], found[1])


def test_layer_drop_and_quantization_noise_and_dropout_train(dictionary):  # noqa: F811
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


def test_attention_maps_keep_to_subtrees_and_are_what_the_encoder_does(dictionary):  # noqa: F811
    for options in ({}, {"encoder_normalize_before": True, "no_subtree_masking": True}):
        model = build(dictionary, **options)
        inputs = batch(dictionary, FOREST)
        tree, maps = model.encoder.attention_maps(**inputs)
        assert len(maps) == 2
        mask = tree.key_mask() if options else tree.subtree_mask()
        for layer, blocks in zip(model.encoder.layers, maps, strict=True):
            (weights,) = blocks.values()
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            assert (weights.masked_select(~mask) == 0).all()
            assert layer is not None
        seen = []
        handle = model.encoder.layers[1].self_attn.register_forward_hook(
            lambda module, arguments, output, seen=seen: seen.append(output[0])
        )
        model.encoder(**inputs)
        model.encoder.attention_maps(**inputs)
        handle.remove()
        torch.testing.assert_close(seen[1], seen[0])


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
def test_options_that_make_no_sense_are_refused(dictionary, options, message):  # noqa: F811
    with pytest.raises(UserError, match=message):
        build(dictionary, **options)


def test_a_task_without_parses_is_refused_with_the_one_to_use(dictionary):  # noqa: F811
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    with pytest.raises(UserError, match="words and spans: use --task syntax_translation"):
        build(dictionary, task=task)


def test_a_batch_without_its_constituents_is_refused(dictionary):  # noqa: F811
    model = build(dictionary)
    with pytest.raises(ValueError, match="the batch carries no words: use --task"):
        model.encoder(batch(dictionary, FOREST)["src_tokens"])


def test_parses_that_only_other_models_of_an_ensemble_need_are_ignored(dictionary):  # noqa: F811
    model = build(dictionary)
    inputs = batch(dictionary, FOREST)
    heads = torch.zeros(len(FOREST), 7, dtype=torch.int64)
    torch.testing.assert_close(
        model.encoder(**inputs, src_heads=heads)["encoder_out"],
        model.encoder(**inputs)["encoder_out"],
    )


def test_one_label_shares_one_embedding(dictionary):  # noqa: F811
    assert build(dictionary).encoder.embed_labels.weight.shape == (7, 8)
    assert build(dictionary, tree_one_label=True).encoder.embed_labels.weight.shape == (1, 8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_deep_trees_stay_finite_in_half_precision(dictionary, dtype):  # noqa: F811
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
