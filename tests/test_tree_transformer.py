"""The tree Transformer: its layers against the equations in loops, decoding, and its options."""

from __future__ import annotations

import math
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from test_hierarchical_accumulation import twin
from test_phrase_transformer import dictionary, twin_layer_norm  # noqa: F401 - a fixture
from tree_strategies import Tree, chain, flat, grown, unary

import fairseq_phrase.models.tree_transformer as tree_transformer
from fairseq_phrase.errors import UserError
from fairseq_phrase.models import tree_decoder, tree_encoder
from fairseq_phrase.models.tree_beams import regroup

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
    cfg = tree_transformer.TreeTransformerConfig(**{**small, "dropout": 0.0, **options})
    task = task or Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        constituent_dictionary=labels(),
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
        value = torch.cat([value[: tree.leaves], twin(value, tree, accumulation)])
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
    cfg = tree_transformer.TreeTransformerConfig(**options)
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


# Decoding. fairseq's own cached self-attention takes its softmax in single precision.
CACHED = {"rtol": 1e-5, "atol": 1e-5}


def stepwise(model, encoded, previous, orders=()):
    """Logits of each step, cached; ``orders`` says how rows move before each further step."""
    incremental, found = {}, []
    for step in range(previous.size(1)):
        if step and orders:
            model.decoder.reorder_incremental_state_scripting(incremental, orders[step - 1])
            encoded = model.encoder.reorder_encoder_out(encoded, orders[step - 1])
            previous = previous[orders[step - 1]]
        logits, _ = model.decoder(
            previous[:, : step + 1], encoder_out=encoded, incremental_state=incremental
        )
        found.append(logits[:, -1])
    return found, previous


@each_kind
def test_cached_decoding_is_that_without_a_cache(dictionary, options):  # noqa: F811
    model = build(dictionary, **options)
    encoded = model.encoder(**batch(dictionary, FOREST))
    previous = torch.randint(4, 20, (len(FOREST), 5))
    steps, _ = stepwise(model, encoded, previous)
    whole = model.decoder(previous, encoder_out=encoded)[0]
    torch.testing.assert_close(torch.stack(steps, 1), whole, **CACHED)


REORDERINGS = {
    "rows stay": [[0, 1, 2, 3, 4, 5]] * 3,
    "within sentences": [[1, 0, 2, 2, 5, 4], [1, 1, 3, 2, 4, 4], [0, 1, 2, 3, 5, 5]],
    "a sentence is done": [[1, 0, 4, 5], [0, 0, 3, 2], [2, 3]],
    "rows change sentences": [[4, 1, 2, 0, 3, 5], [5, 4, 3, 2, 1, 0], [0, 2, 4]],
}


@pytest.mark.parametrize("orders", REORDERINGS.values(), ids=REORDERINGS.keys())
def test_reordered_rows_keep_their_own_sentence(dictionary, orders):  # noqa: F811
    model = build(dictionary)
    inputs = batch(dictionary, FOREST[:3])
    beams = torch.arange(3).repeat_interleave(2)
    encoded = model.encoder.reorder_encoder_out(model.encoder(**inputs), beams)
    assert encoded["encoder_out"][0].size(1) == 3  # every sentence once, whatever the beam
    orders = [torch.tensor(order) for order in orders]
    steps, previous = stepwise(model, encoded, torch.randint(4, 20, (6, 4)), orders)
    for order in orders:
        beams = beams[order]
    # What the rows that are left at the end have seen, decoded anew.
    expanded = {name: value[beams] for name, value in inputs.items()}
    whole = model.decoder(previous, encoder_out=model.encoder(**expanded))[0]
    torch.testing.assert_close(steps[-1], whole[:, -1], **CACHED)


def test_rows_are_regrouped_by_sentence():
    def moved(order, sentences, beams):
        chosen, rows = regroup(torch.tensor(order), sentences, beams)
        return (None if chosen is None else chosen.tolist()), rows

    assert moved([0, 0, 1, 1], 2, 1) == (None, 2)
    assert moved([0, 1], 2, 1) == (None, 1)
    assert moved([1, 0], 2, 1) == ([1, 0], 1)
    assert moved([1], 2, 1) == ([1], 1)
    assert moved([0, 1, 0, 1], 2, 1) == ([0, 1, 0, 1], 1)
    assert moved([1, 1, 2, 3], 2, 2) == (None, 2)
    assert moved([3, 2], 2, 2) == ([1], 2)
    assert moved([2, 3, 0, 1], 2, 2) == ([1, 0], 2)
    assert moved([0, 2, 1, 3], 2, 2) == ([0, 1, 0, 1], 1)
    assert moved([0, 1, 2], 2, 2) == ([0, 0, 1], 1)


def generate(model, dictionary, inputs, beam, kind=SequenceGenerator, **options):  # noqa: F811
    lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    generator = kind(
        model if isinstance(model, list) else [model],
        dictionary,
        beam_size=beam,
        max_len_b=12,
        **options,
    )
    return generator.generate(None, {"net_input": {**inputs, "src_lengths": lengths}})


def eager_to_end(model, dictionary):  # noqa: F811
    """Make a random model end its sentences at different steps, so that rows leave the batch."""
    with torch.no_grad():
        model.decoder.output_projection.weight *= 3
        model.decoder.output_projection.weight[dictionary.eos()] *= 4
    return model


def tokens_and_scores(found):
    return [[(h["tokens"].tolist(), round(float(h["score"]), 4)) for h in hypos] for hypos in found]


@pytest.mark.parametrize("options", [{}, {"tree_encoder_only": True}], ids=["both", "encoder only"])
def test_beam_search_over_a_batch_is_that_of_single_sentences(dictionary, options, monkeypatch):  # noqa: F811
    model = eager_to_end(build(dictionary, **options), dictionary)
    inputs = batch(dictionary, FOREST)
    for beam in (1, 4):
        together = tokens_and_scores(generate(model, dictionary, inputs, beam))
        alone = [
            tokens_and_scores(generate(model, dictionary, of_sentence(inputs, row, tree), beam))[0]
            for row, tree in enumerate(FOREST)
        ]
        assert together == alone
        # Sentences finish at different steps.
        assert len({max(len(tokens) for tokens, _ in hypos) for hypos in together}) > 1
    with monkeypatch.context() as patched:  # as fairseq does it: everything once for each row
        for module in (tree_encoder, tree_decoder):
            patched.setattr(module, "regroup", lambda order, sentences, beams: (order // beams, 1))
        assert tokens_and_scores(generate(model, dictionary, inputs, 4)) == together


def test_beam_one_is_greedy_search(dictionary):  # noqa: F811
    model = build(dictionary)
    inputs = batch(dictionary, FOREST)
    for row, hypos in enumerate(generate(model, dictionary, inputs, 1)):
        encoded = model.encoder(**of_sentence(inputs, row, FOREST[row]))
        previous = [dictionary.eos()]
        while len(previous) <= 12:
            logits = model.decoder(torch.tensor([previous]), encoder_out=encoded)[0][0, -1]
            logits[[dictionary.pad(), dictionary.bos()]] = -math.inf
            if len(previous) == 1:
                logits[dictionary.eos()] = -math.inf  # fairseq's minimal length is 1
            previous.append(int(logits.argmax()))
            if previous[-1] == dictionary.eos():
                break
        found = hypos[0]["tokens"].tolist()
        assert found[: len(previous) - 1] == previous[1:]


def test_decoding_accumulates_each_sentence_once_in_each_layer(dictionary):  # noqa: F811
    model = build(dictionary)
    calls = []
    for layer in model.decoder.layers:
        layer.encoder_attn.accumulation.register_forward_hook(
            lambda module, inputs, output: calls.append((module, len(inputs[0])))
        )
    found = generate(model, dictionary, batch(dictionary, FOREST), 4)
    assert max(len(hypos[0]["tokens"]) for hypos in found) > 3
    expected = [(layer.encoder_attn.accumulation, len(FOREST)) for layer in model.decoder.layers]
    assert calls == expected


def test_alignments_and_ensembles_see_one_column_for_each_source_token(dictionary):  # noqa: F811
    models = [build(dictionary), build(dictionary, tree_convention="released")]
    inputs = batch(dictionary, FOREST)
    for ensemble in (models[:1], models):
        found = generate(ensemble, dictionary, inputs, 2, SequenceGeneratorWithAlignment)
        for row, hypos in enumerate(found):
            source = inputs["src_tokens"].size(1)
            for hypothesis in hypos:
                assert hypothesis["attention"].shape == (source, len(hypothesis["tokens"]))
                aligned = {position for position, _ in hypothesis["alignment"]}
                assert aligned <= set(range(FOREST[row].leaves))
                assert aligned
    encoded = models[0].encoder(**inputs)
    _, extra = models[0].decoder(torch.tensor([[2, 5]] * len(FOREST)), encoder_out=encoded)
    (nodes,), (leaves,) = extra["node_attn"], extra["attn"]
    torch.testing.assert_close(nodes.sum(-1), torch.ones_like(nodes[..., 0]))
    assert torch.equal(nodes[..., : leaves.size(-1)], leaves)
    assert nodes.size(-1) == leaves.size(-1) + inputs["src_spans"].size(1)
    assert (nodes.sum(-1) - leaves.sum(-1))[0].min() > 0.01


def test_attention_maps_keep_to_subtrees_and_are_what_the_encoder_does(dictionary):  # noqa: F811
    for options in ({}, {"encoder_normalize_before": True, "no_subtree_masking": True}):
        model = build(dictionary, **options)
        inputs = batch(dictionary, FOREST)
        tree, maps = model.encoder.attention_maps(**inputs)
        assert len(maps) == 2
        mask = tree.key_mask() if options else tree.subtree_mask()
        for layer, weights in zip(model.encoder.layers, maps, strict=True):
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
        assert issubclass(ARCH_MODEL_REGISTRY[name], tree_transformer.TreeTransformerModel)
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
    with pytest.raises(ValueError, match="carries no constituents"):
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
