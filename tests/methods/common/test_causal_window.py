"""Encoders under a causal mask: no state depends on the future, nor on what is outside the window."""

from __future__ import annotations

import pytest
import torch

from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.testing import make_batch, make_dictionary
from tests.support.named_models import build_encoder

DICTIONARY = make_dictionary()
TUNED = {"phrase_init": "mean", "phrase_gate": "scalar"}
#: Encoders with options that can be masked.
CAUSAL = {
    "fairseq's": ("transformer", {}),
    "plain": ("structural_transformer", {}),
    "relative": ("structural_transformer", {"sequential_relative": True, "relative_clip": 2}),
    "relative keys": (
        "structural_transformer",
        {"sequential_relative": True, "relative_keys_only": True, "no_sequential_absolute": True},
    ),
    "Transformer-XL's": ("xl_transformer", {}),
    "phrases, k = 2": ("phrase_transformer", {}),
    "phrases, k = 3": ("phrase_transformer", {"phrase_max_length": 3, "phrase_relative_clip": 2}),
    "phrases, mean": ("phrase_transformer", {"phrase_max_length": 3, **TUNED}),
    "phrases, attention": ("phrase_transformer", {"phrase_init": "attention"}),
    "phrases, ends": ("phrase_transformer", {"phrase_init": "ends"}),
    "phrases, all": ("phrase_transformer", {"phrase_mask": "all"}),
    "phrases, first layer": ("phrase_transformer", {"phrase_layers": "1", **TUNED}),
    "phrases, last layer": ("phrase_transformer", {"phrase_layers": "2-2", **TUNED}),
}
TOKENS = 7
every_encoder = pytest.mark.parametrize("case", CAUSAL)
both_directions = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])


def encoder_of(case, **options):
    name, case_options = CAUSAL[case]
    return build_encoder(name, DICTIONARY, **{**case_options, **options})


def dependence(encoder, window, **padding):
    """Whether the state of each position depends on each token. Shape: (tokens, tokens)."""
    batch = make_batch(DICTIONARY, [TOKENS - 1], **padding)
    tokens = batch["src_tokens"]
    real = tokens[0].ne(DICTIONARY.pad())

    def states(embeddings):
        encoded = encoder(tokens, token_embeddings=embeddings, causal=window)
        return encoded["encoder_out"][0][: tokens.size(1), 0]

    jacobian = torch.autograd.functional.jacobian(states, encoder.embed_tokens(tokens).detach())
    # (tokens, width, 1, tokens, width) -> (tokens, tokens)
    assert jacobian.isfinite().all()
    return jacobian[:, :, 0].ne(0).any(3).any(1)[real][:, real]


@pytest.mark.fast(8)
@every_encoder
@both_directions
def test_no_entry_of_the_jacobian_above_the_diagonal_differs_from_zero(case, backward):
    expected = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    depends = dependence(encoder_of(case), CausalWindow(backward))
    assert torch.equal(depends, expected.T if backward else expected)


@every_encoder
@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
@both_directions
def test_padding_changes_nothing(case, left, backward):
    encoder, window = encoder_of(case), CausalWindow(backward)
    alone = make_batch(DICTIONARY, [TOKENS - 1])["src_tokens"]
    padded = make_batch(DICTIONARY, [TOKENS - 1, 3], left=left, extra=2)["src_tokens"]
    states = encoder(padded, causal=window)["encoder_out"][0][:, 0]
    real = padded[0].ne(DICTIONARY.pad())
    expected = encoder(alone, causal=window)["encoder_out"][0][:TOKENS, 0]
    torch.testing.assert_close(states[: len(real)][real], expected)
    states.sum().backward()
    assert all(
        parameter.grad is None or parameter.grad.isfinite().all()
        for parameter in encoder.parameters()
    )


@pytest.mark.fast(10)
@pytest.mark.parametrize(
    "case", ["fairseq's", "plain", "relative", "relative keys", "Transformer-XL's"]
)
@pytest.mark.parametrize("context", [1, 2, 3, 5, 20])
@both_directions
def test_with_a_context_of_k_a_state_depends_on_k_tokens(case, context, backward):
    depends = dependence(encoder_of(case), CausalWindow(backward, context))
    expected = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril().triu(1 - context)
    assert torch.equal(depends, expected.T if backward else expected)


def test_long_sentences_leak_nothing_either():
    # The list of adjacent pairs takes the place of the matrix.
    encoder = encoder_of("phrases, k = 3")
    tokens = make_batch(DICTIONARY, [149])["src_tokens"]
    embeddings = encoder.embed_tokens(tokens).detach().requires_grad_()
    states = encoder(tokens, token_embeddings=embeddings, causal=CausalWindow())["encoder_out"][0]
    (states[70] * torch.arange(states.size(2))).sum().backward()
    assert embeddings.grad[0, 71:].eq(0).all()
    assert embeddings.grad[0, :71].ne(0).any(1).all()


REFUSED = [
    ("tree_transformer", {}, "both sides"),
    ("relation_transformer", {}, "both sides"),
    ("structural_transformer", {"structural_relative": True}, "trees span the future"),
    ("phrase_transformer", {"phrase_source": "dependency"}, "depends on later tokens"),
    ("phrase_transformer", {"phrase_unit": "word"}, "depends on later tokens"),
    ("phrase_transformer", {"phrase_mask": "hadamard"}, "every node some weight"),
]


@pytest.mark.parametrize(("name", "options", "reason"), REFUSED)
def test_an_encoder_that_sees_the_future_says_so(name, options, reason):
    encoder = build_encoder(name, DICTIONARY, **options)
    assert reason in type(encoder).causal_obstacle(encoder.cfg, CausalWindow())


def test_phrases_have_no_window():
    encoder = encoder_of("phrases, k = 2")
    assert "--context" in type(encoder).causal_obstacle(encoder.cfg, CausalWindow(context=3))


def test_the_encoders_that_can_be_masked_say_so():
    for case, (name, _) in CAUSAL.items():
        encoder = encoder_of(case)
        assert ENCODERS[name].encoder.causal_obstacle(encoder.cfg, CausalWindow()) is None
