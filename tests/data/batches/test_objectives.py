"""Masks over subwords, words and phrases."""

from __future__ import annotations

import numpy as np
import pytest

from fairseq_phrase.data.batches.objectives import Masking, Masks
from fairseq_phrase.data.batches.text_blocks import BlockSample
from fairseq_phrase.errors import UserError
from fairseq_phrase.testing import make_dictionary

DICTIONARY = make_dictionary(20)
PAD, EOS = DICTIONARY.pad(), DICTIONARY.eos()
MASK = DICTIONARY.add_symbol("<mask>")
DICTIONARY.add_symbol("madeupword0000")
# the big dog | chases | the cat; "chases" and "cat" have two subwords.
WORDS = np.array([0, 1, 2, 3, 3, 4, 5, 5])
SPANS = np.array([[0, 3, 7], [4, 6, 7], [3, 6, 8], [0, 6, 9]])
PARSE = {"words": WORDS, "spans": SPANS}
TOKENS = np.array([*range(10, 18), EOS])
UNITS = {
    "subword": Masking(),
    "word": Masking("word"),
    "constituents": Masking("phrase"),
}
#: The words that may be masked together; each word of no phrase is one itself.
PHRASES = {
    "word": [{0}, {1}, {2}, {3}, {4}, {5}],
    "constituents": [{0, 1, 2}, {4, 5}, {3, 4, 5}],
}
every_unit = pytest.mark.parametrize("unit", UNITS)


def masks_of(masking, **changed):
    return Masks(Masking(**{**vars(masking), **changed}), mask=MASK, dictionary=DICTIONARY)


def draws(masks, count=300):
    for seed in range(count):
        yield masks(BlockSample(TOKENS, PARSE), np.random.default_rng([seed]))[:2]


@every_unit
def test_the_expected_part_of_the_subwords_is_predicted(unit):
    masks = masks_of(UNITS[unit])
    counts = [(target != PAD).sum() for _, target in draws(masks, 6000)]
    # The standard error is at most sqrt(0.15 · 8 · 7 / 6000).
    assert np.mean(counts) == pytest.approx(0.15 * 8, abs=0.12)


@every_unit
def test_only_what_is_predicted_changes_and_targets_are_the_text(unit):
    for source, target in draws(masks_of(UNITS[unit], rate=0.5)):
        is_predicted = target != PAD
        np.testing.assert_array_equal(source[~is_predicted], TOKENS[~is_predicted])
        np.testing.assert_array_equal(target[is_predicted], TOKENS[is_predicted])
        assert target[-1] == PAD


def test_most_are_masked_some_are_random_and_some_are_kept():
    kinds = {"mask": 0, "random": 0, "kept": 0}
    for source, target in draws(masks_of(UNITS["subword"], rate=0.5), 2000):
        replacements = source[target != PAD]
        kinds["mask"] += (replacements == MASK).sum()
        is_kept = replacements == TOKENS[target != PAD]
        random = (replacements >= DICTIONARY.nspecial) & (replacements < MASK) & ~is_kept
        assert (is_kept | random | (replacements == MASK)).all()
        kinds["random"] += random.sum()
        kinds["kept"] += is_kept.sum()
    total = sum(kinds.values())
    assert kinds["mask"] / total == pytest.approx(0.8, abs=0.02)
    assert kinds["random"] / total == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("unit", PHRASES)
def test_whole_units_are_masked(unit):
    # A rate so small that one unit is masked, or none.
    masks = masks_of(UNITS[unit], rate=0.1)
    units = set()
    for _, target in draws(masks, 3000):
        is_predicted = target[:-1] != PAD
        if is_predicted.any():
            words = frozenset(WORDS[is_predicted].tolist())
            # All subwords of the words.
            assert np.isin(WORDS, list(words)).sum() == is_predicted.sum()
            units.add(words)
    assert units == {frozenset(words) for words in PHRASES[unit]}


@every_unit
def test_a_line_without_words_has_no_mask(unit):
    empty = {name: values[:0] for name, values in PARSE.items()}
    sample = BlockSample(np.array([EOS]), empty)
    source, target, _ = masks_of(UNITS[unit])(sample, np.random.default_rng(1))
    assert (source.tolist(), target.tolist()) == ([EOS], [PAD])


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5])
def test_a_rate_that_predicts_nothing_or_leaves_nothing_is_refused(rate):
    with pytest.raises(UserError, match=f"--mask-prob {rate}: expected a number between 0 and 1"):
        Masking(rate=rate)
