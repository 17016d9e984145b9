"""XLNet's two streams: exactness, what they may not see, memory, and the order of predictions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from fairseq.models import MODEL_REGISTRY

from fairseq_phrase.data.batches.objectives import Permuted
from fairseq_phrase.data.batches.pretraining_dataset import PretrainingDataset
from fairseq_phrase.data.batches.text_blocks import BlockSample, TextBlocks
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.models.pretrainer import Objective
from fairseq_phrase.testing import make_dictionary, randomized
from tests.support.named_models import build_encoder, make_task, options
from tests.twins.two_streams import two_streams as definition

DICTIONARY = make_dictionary()
PAD, EOS, BOS = DICTIONARY.pad(), DICTIONARY.eos(), DICTIONARY.bos()
TOKENS = 6
SPACE = torch.Generator().manual_seed(3)
SENTENCE = torch.randint(4, 30, (1, TOKENS), generator=SPACE)
MEMORY = torch.randint(4, 30, (1, 4), generator=SPACE)
RANKS = torch.tensor([[3, 0, 5, 1, 4, 2]])
EVERYWHERE = torch.arange(TOKENS)[None]


def xl_encoder(**changed):
    encoder = build_encoder("xl_transformer", DICTIONARY, **changed)
    for parameter in encoder.parameters():
        parameter.data += torch.randn(parameter.shape, generator=SPACE).double() / 20
    return encoder


@pytest.fixture
def encoder():
    return xl_encoder()


@pytest.fixture
def first_query():
    return torch.randn(16, generator=SPACE).double().requires_grad_()


def embedded(encoder, tokens):
    return encoder.embed_scale * encoder.embed_tokens(tokens)[0]


def gradients(encoder, first_query, streams):
    """Of a number that depends on both streams."""
    weights = torch.arange(1, streams[0].numel() + 1).view(streams[0].shape).double().sin()
    total = (streams[0] * weights).sum() + (streams[1] * weights).cos().sum()
    parameters = dict(encoder.named_parameters()) | {"first query": first_query}
    gradients_of_total = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, gradients_of_total, strict=True))


@pytest.mark.parametrize("memory", [None, MEMORY], ids=["no memory", "memory"])
@pytest.mark.parametrize("segments", [None, [0, 0, 0, 1, 1, 1]], ids=["one segment", "two"])
@pytest.mark.parametrize(
    "options_of_model",
    [{}, {"attention_gate": True}, {"encoder_normalize_before": True}],
    ids=["post-norm", "gated", "pre-norm"],
)
def test_both_streams_equal_their_definition_with_gradients(
    first_query, memory, segments, options_of_model
):
    if memory is not None and segments is not None:
        memory = None  # pairs of segments have none
    encoder = xl_encoder(segments=segments is not None, **options_of_model)
    segment_numbers = None if segments is None else torch.tensor([segments])
    fast = encoder.two_streams(SENTENCE, RANKS, EVERYWHERE, first_query, memory, segment_numbers)
    fast = tuple(stream[0] for stream in fast)
    before = () if memory is None else embedded(encoder, memory)
    plain = definition(
        encoder, embedded(encoder, SENTENCE), RANKS[0].tolist(), first_query, before, segments
    )
    for fast_states, plain_states in zip(fast, plain, strict=True):
        torch.testing.assert_close(fast_states, plain_states)
    mine, theirs = (gradients(encoder, first_query, streams) for streams in (fast, plain))
    for name, gradient in theirs.items():
        assert_close_or_absent(mine[name], gradient, name)


def assert_close_or_absent(mine, theirs, name):
    if mine is None or theirs is None:
        # A parameter that has no gradient in one has a gradient of 0 in the other.
        assert not any(gradient.any() for gradient in (mine, theirs) if gradient is not None), name
    else:
        torch.testing.assert_close(mine, theirs, msg=name)


def test_a_query_depends_on_no_token_of_its_rank_or_above(encoder, first_query):
    embeddings = encoder.embed_tokens(SENTENCE).detach()

    def streams(given):
        encoder.forward_embedding = lambda tokens, _: (encoder.embed_scale * given, None)
        queries, contents = encoder.two_streams(SENTENCE, RANKS, EVERYWHERE, first_query)
        del encoder.forward_embedding
        return queries[0], contents[0]

    of_query, of_content = torch.autograd.functional.jacobian(streams, embeddings)
    # (tokens, width, 1, tokens, width) -> (tokens, tokens)
    depends = [jacobian[:, :, 0].ne(0).any(3).any(1) for jacobian in (of_query, of_content)]
    below = RANKS[0][None] < RANKS[0][:, None]
    assert torch.equal(depends[0], below)
    assert torch.equal(depends[1], below | torch.eye(TOKENS, dtype=torch.bool))


def test_the_identity_is_a_causal_model_with_the_same_parameters(encoder, first_query):
    _, contents = encoder.two_streams(SENTENCE, EVERYWHERE, EVERYWHERE, first_query)
    causal = encoder(SENTENCE, causal=CausalWindow())["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(contents, causal)


def test_the_identitys_queries_read_what_a_causal_model_has_seen(encoder, first_query):
    queries, _ = encoder.two_streams(SENTENCE, EVERYWHERE, EVERYWHERE, first_query)
    # The prefixes alone give the same predictions, one at a time.
    for place in range(1, TOKENS):
        prefix = SENTENCE[:, : place + 1]
        alone, _ = encoder.two_streams(
            prefix, EVERYWHERE[:, : place + 1], torch.tensor([[place]]), first_query
        )
        torch.testing.assert_close(alone[0, 0], queries[0, place])


def test_memory_equals_a_longer_input_without_gradient(encoder, first_query):
    length, both_segments = MEMORY.size(1), torch.cat([MEMORY, SENTENCE], 1)
    # The memory has one rank, below all others: it sees itself, and all see it.
    ranks = torch.cat([torch.full((1, length), -1), RANKS], 1)
    expected = encoder.two_streams(both_segments, ranks, EVERYWHERE + length, first_query)
    streams = encoder.two_streams(SENTENCE, RANKS, EVERYWHERE, first_query, MEMORY)
    torch.testing.assert_close(streams[0], expected[0])
    torch.testing.assert_close(streams[1], expected[1][:, length:])
    gradient = torch.autograd.grad(streams[0].cos().sum(), encoder.embed_tokens.weight)[0]
    only_remembered = sorted({*MEMORY[0].tolist()} - {*SENTENCE[0].tolist()})
    assert only_remembered
    assert not gradient[only_remembered].any()


def test_padding_changes_nothing(encoder, first_query):
    alone = encoder.two_streams(SENTENCE, RANKS, EVERYWHERE, first_query, MEMORY[:, 1:])
    padded = torch.cat([SENTENCE, torch.full((1, 3), PAD)], 1)
    tokens = torch.cat([padded, torch.randint(4, 30, (1, TOKENS + 3), generator=SPACE)])
    ranks = torch.cat(
        [torch.cat([RANKS, RANKS.new_zeros(1, 3)], 1), torch.arange(TOKENS + 3)[None]]
    )
    memory = torch.cat([torch.cat([torch.tensor([[PAD]]), MEMORY[:, 1:]], 1), MEMORY])
    places = EVERYWHERE.expand(2, -1)
    queries, contents = encoder.two_streams(tokens, ranks, places, first_query, memory)
    torch.testing.assert_close(queries[0], alone[0][0])
    torch.testing.assert_close(contents[0, :TOKENS], alone[1][0])
    (queries.sum() + contents.cos().sum()).backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in encoder.parameters()
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_keeps_to_the_result(encoder, first_query, dtype):
    arguments = (SENTENCE, RANKS, EVERYWHERE)
    exact = encoder.two_streams(*arguments, first_query, MEMORY)
    halves = encoder.to(dtype).two_streams(*arguments, first_query.to(dtype), MEMORY)
    for half, stream in zip(halves, exact, strict=True):
        assert half.dtype == dtype
        assert (half.double() - stream).abs().mean() / stream.abs().mean() < 0.05


def sample_of(*tokens, before=None):
    return BlockSample(np.array(tokens), {}, before=before)


@pytest.mark.parametrize("parts", [1, 2, 6])
def test_the_last_part_of_a_random_order_is_predicted(parts):
    source = Permuted(DICTIONARY, parts)
    counts, lasts = [], set()
    for seed in range(400):
        tokens, target, inputs = source(
            sample_of(BOS, 7, 8, 9, EOS, 10, 11, 12, 13, EOS), np.random.default_rng([seed])
        )
        ranks = inputs["ranks"]
        assert sorted(ranks.tolist()) == list(range(10))
        # Separators come first, and <s> last.
        assert {ranks[4], ranks[9]} == {0, 1}
        assert ranks[0] == 9
        predicted = np.flatnonzero(target != PAD)
        assert set(ranks[predicted]) == set(range(9 - len(predicted), 9))
        assert (target[predicted] == tokens[predicted]).all()
        counts.append(len(predicted))
        lasts.add(int(np.flatnonzero(ranks == 8)[0]))
    assert lasts == {1, 2, 3, 5, 6, 7, 8}
    assert np.mean(counts) == pytest.approx(max(7 / parts, 1), abs=0.15)


def permuted_dataset(memory=0, lengths=(3, 5, 4)):
    sentences = [
        torch.cat([torch.randint(4, 30, (length,), generator=SPACE), torch.tensor([EOS])])
        for length in lengths
    ]
    text = ListDataset(sentences, np.array([len(sentence) for sentence in sentences]))
    blocks = TextBlocks(text, DICTIONARY, 512, "eos", memory=memory)
    return PretrainingDataset(blocks, Permuted(DICTIONARY, 2), DICTIONARY, seed=1), sentences


def test_a_batch_has_the_tokens_before_each_sample():
    dataset, sentences = permuted_dataset(memory=6)
    batch = dataset.collater([dataset[index] for index in (0, 1, 2)])
    memory = batch["net_input"]["memory_tokens"]
    text = torch.cat(sentences)
    assert memory[0].eq(PAD).all()
    assert torch.equal(memory[1], torch.cat([torch.full((2,), PAD), text[:4]]))
    assert torch.equal(memory[2], text[4:10])


def test_a_memory_longer_than_the_data_is_refused():
    with pytest.raises(UserError, match="--memory 99: longer than the text, which has 15 tokens"):
        permuted_dataset(memory=99)


@pytest.mark.parametrize("memory", [0, 6])
def test_a_model_predicts_in_the_order_of_the_targets(memory):
    task = make_task(DICTIONARY, require_objective=lambda objective: None)
    cfg = options("pretrainer", encoder="xl_transformer", objective="permutation", memory=memory)
    model = randomized(MODEL_REGISTRY["pretrainer"].build_model(cfg, task))
    dataset, _ = permuted_dataset(memory)
    batch = dataset.collater([dataset[index] for index in range(3)])
    masked = batch["target"].ne(PAD)
    logits, _ = model(**batch["net_input"], masked_tokens=masked)
    everything, _ = model(**batch["net_input"])
    everything = everything.view(*masked.shape, -1)
    torch.testing.assert_close(logits, everything[masked])
    logits.logsumexp(1).sum().backward()
    assert model.first_query.grad.any()


def test_pairs_of_segments_have_relative_encodings():
    task = make_task(DICTIONARY, require_objective=lambda objective: None)
    cfg = options(
        "pretrainer", encoder="xl_transformer", objective="permutation", next_sentence=True
    )
    model = randomized(MODEL_REGISTRY["pretrainer"].build_model(cfg, task))
    tokens = torch.tensor([[BOS, 7, 8, EOS, 9, 10, EOS]])
    ranks = torch.tensor([[6, 2, 3, 0, 4, 5, 1]])
    segments = torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    masked = torch.tensor([[False, False, False, False, True, True, False]])
    logits, extra = model(tokens, segments=segments, ranks=ranks, masked_tokens=masked)
    assert extra["next_sentence"].shape == (1, 2)
    other_logits, _ = model(
        tokens, segments=torch.zeros_like(segments), ranks=ranks, masked_tokens=masked
    )
    assert not torch.allclose(logits, other_logits)


def test_an_encoder_with_one_stream_is_refused():
    task = make_task(DICTIONARY, require_objective=lambda objective: None)
    with pytest.raises(UserError, match="the encoder transformer has no query stream"):
        MODEL_REGISTRY["pretrainer"].build_model(
            options("pretrainer", objective="permutation"), task
        )


def test_an_objective_of_pairs_has_no_memory():
    with pytest.raises(UserError, match="no segment before them"):
        Objective("permutation", next_sentence=True, memory=3)
