"""Words that become unknown in training: ``--word-dropout``."""

from __future__ import annotations

import math

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.labelling import WordDropout
from tests.support.labellers import build, make_task

UNKNOWN = 3


def test_a_word_is_unknown_the_more_often_the_rarer_it_is():
    torch.manual_seed(0)
    counts = [-1, -1, -1, -1, 1, 4, 100]
    tokens = torch.arange(7).repeat(20_000, 1)
    changed = WordDropout(counts, 1.0, UNKNOWN)(tokens)
    assert torch.equal(
        changed[changed != tokens], torch.full_like(changed[changed != tokens], UNKNOWN)
    )
    for place, count in enumerate(counts):
        share = float((changed[:, place] != place).double().mean())
        expected = 1 / (1 + count) if count >= 0 else 0.0
        # Five standard deviations of a binomial.
        assert share == pytest.approx(expected, abs=5 * math.sqrt(0.25 / 20_000) * (count >= 0))
    assert torch.equal(tokens, torch.arange(7).repeat(20_000, 1))


@pytest.mark.parametrize("alpha", [0.0, 1e9])
def test_nothing_is_replaced_outside_of_training_or_with_zero(alpha):
    module = WordDropout([0, 0, 5], alpha, UNKNOWN)
    tokens = torch.tensor([[0, 1, 2]])
    assert module.train(alpha == 0)(tokens) is tokens
    assert not module.state_dict()
    assert not list(module.parameters())


def test_a_negative_rate_is_refused():
    with pytest.raises(ValueError, match="alpha -1"):
        WordDropout([1], -1.0, UNKNOWN)
    with pytest.raises(UserError, match=r"--word-dropout -0\.5: expected 0 or a positive number"):
        build("word", word_dropout=-0.5)


def test_a_labeller_sees_the_unknown_word_in_training_only():
    task = make_task("word", whole_words=True)
    dictionary = task.source_dictionary
    model = build("word", task=task, word_dropout=1e12)
    words = torch.randint(dictionary.nspecial, len(dictionary), (2, 4))
    tokens = torch.cat([words, torch.full((2, 1), dictionary.eos())], dim=1)
    all_unknown = tokens.clone()
    all_unknown[:, :-1] = dictionary.unk()
    lengths = torch.tensor([5, 5])
    expected, plain = model(all_unknown, lengths), model(tokens, lengths)
    assert not torch.allclose(expected, plain)
    model.word_dropout.train()
    assert torch.equal(model(tokens, lengths), expected)
