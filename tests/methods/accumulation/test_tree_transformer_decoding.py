"""Decoding with the tree Transformer: caches, beams, sentences that finish early."""

from __future__ import annotations

import math

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment

from fairseq_phrase.methods.accumulation import tree_transformer
from fairseq_phrase.methods.accumulation.tree_transformer import regroup
from tests.support.tree_models import FOREST, batch, build, each_kind, of_sentence

# fairseq's own cached self-attention takes its softmax in single precision.
CACHED = {"rtol": 1e-5, "atol": 1e-5}


def stepwise(model, encoded, previous, orders=()):
    """Logits of each step, cached; ``orders`` says how rows move before each further step."""
    incremental, steps = {}, []
    for step in range(previous.size(1)):
        if step and orders:
            model.decoder.reorder_incremental_state_scripting(incremental, orders[step - 1])
            encoded = model.encoder.reorder_encoder_out(encoded, orders[step - 1])
            previous = previous[orders[step - 1]]
        logits, _ = model.decoder(
            previous[:, : step + 1], encoder_out=encoded, incremental_state=incremental
        )
        steps.append(logits[:, -1])
    return steps, previous


@each_kind
def test_cached_decoding_is_that_without_a_cache(dictionary, options):
    model = build(dictionary, **options)
    encoded = model.encoder(**batch(dictionary, FOREST))
    previous = torch.randint(4, 20, (len(FOREST), 5))
    steps, _ = stepwise(model, encoded, previous)
    all_logits = model.decoder(previous, encoder_out=encoded)[0]
    torch.testing.assert_close(torch.stack(steps, 1), all_logits, **CACHED)


REORDERINGS = {
    "rows stay": [[0, 1, 2, 3, 4, 5]] * 3,
    "within sentences": [[1, 0, 2, 2, 5, 4], [1, 1, 3, 2, 4, 4], [0, 1, 2, 3, 5, 5]],
    "a sentence is done": [[1, 0, 4, 5], [0, 0, 3, 2], [2, 3]],
    "rows change sentences": [[4, 1, 2, 0, 3, 5], [5, 4, 3, 2, 1, 0], [0, 2, 4]],
}


@pytest.mark.parametrize("orders", REORDERINGS.values(), ids=REORDERINGS.keys())
def test_reordered_rows_keep_their_own_sentence(dictionary, orders):
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
    all_logits = model.decoder(previous, encoder_out=model.encoder(**expanded))[0]
    torch.testing.assert_close(steps[-1], all_logits[:, -1], **CACHED)


def test_rows_are_regrouped_by_sentence():
    def moved(order, sentences, beams):
        moves, rows = regroup(torch.tensor(order), sentences, beams)
        return (None if moves is None else moves.tolist()), rows

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


def test_an_order_that_changed_in_place_is_read_again():
    order = torch.tensor([2, 3, 0, 1])
    assert regroup(order, 2, 2)[0].tolist() == [1, 0]
    order.copy_(torch.tensor([0, 1, 2, 3]))
    assert regroup(order, 2, 2) == (None, 2)
    with torch.inference_mode():
        order = torch.tensor([2, 3, 0, 1])
        assert regroup(order, 2, 2)[0].tolist() == [1, 0]
        order.copy_(torch.tensor([0, 1, 2, 3]))
        assert regroup(order, 2, 2) == (None, 2)


def generate(model, dictionary, inputs, beam, kind=SequenceGenerator, **options):
    lengths = inputs["src_tokens"].ne(dictionary.pad()).sum(1)
    generator = kind(
        model if isinstance(model, list) else [model],
        dictionary,
        beam_size=beam,
        max_len_b=12,
        **options,
    )
    return generator.generate(None, {"net_input": {**inputs, "src_lengths": lengths}})


def eager_to_end(model, dictionary):
    """Make a random model end its sentences at different steps, so that rows leave the batch."""
    with torch.no_grad():
        model.decoder.output_projection.weight *= 3
        model.decoder.output_projection.weight[dictionary.eos()] *= 4
    return model


def tokens_and_scores(found):
    return [[(h["tokens"].tolist(), round(float(h["score"]), 4)) for h in hypos] for hypos in found]


@pytest.mark.parametrize("options", [{}, {"tree_encoder_only": True}], ids=["both", "encoder only"])
def test_beam_search_over_a_batch_is_that_of_single_sentences(dictionary, options, monkeypatch):
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
        patched.setattr(
            tree_transformer, "regroup", lambda order, sentences, beams: (order // beams, 1)
        )
        assert tokens_and_scores(generate(model, dictionary, inputs, 4)) == together


def test_beam_one_is_greedy_search(dictionary):
    model = build(dictionary)
    inputs = batch(dictionary, FOREST)
    for row, hypos in enumerate(generate(model, dictionary, inputs, 1)):
        encoded = model.encoder(**of_sentence(inputs, row, FOREST[row]))
        previous = [dictionary.eos()]
        while len(previous) <= 12:
            logits = model.decoder(torch.tensor([previous]), encoder_out=encoded)[0][0, -1]
            logits[dictionary.pad()] = -math.inf
            if len(previous) == 1:
                logits[dictionary.eos()] = -math.inf  # fairseq's minimal length is 1
            previous.append(int(logits.argmax()))
            if previous[-1] == dictionary.eos():
                break
        tokens = hypos[0]["tokens"].tolist()
        assert tokens[: len(previous) - 1] == previous[1:]


def test_decoding_accumulates_each_sentence_once_in_each_layer(dictionary):
    model = build(dictionary)
    calls = []
    for layer in model.decoder.layers:
        module = layer.encoder_attn.accumulation

        def accumulate(values, weights, tree, module=module, original=module.accumulate):
            calls.append((module, len(values)))
            return original(values, weights, tree)

        module.accumulate = accumulate
    generated = generate(model, dictionary, batch(dictionary, FOREST), 4)
    assert max(len(hypos[0]["tokens"]) for hypos in generated) > 3
    expected = [(layer.encoder_attn.accumulation, len(FOREST)) for layer in model.decoder.layers]
    assert calls == expected


def test_alignments_and_ensembles_see_one_column_for_each_source_token(dictionary):
    models = [build(dictionary), build(dictionary, tree_convention="released")]
    inputs = batch(dictionary, FOREST)
    for ensemble in (models[:1], models):
        generated = generate(ensemble, dictionary, inputs, 2, SequenceGeneratorWithAlignment)
        for row, hypos in enumerate(generated):
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
