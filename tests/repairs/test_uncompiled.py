"""The replacements of fairseq's compiled modules: their values, and where Python finds them."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES, PathFinder
from importlib.util import find_spec, module_from_spec

import fairseq
import numpy as np
import pytest
import torch
from fairseq.scoring import bleu
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs import uncompiled
from fairseq_phrase.repairs.uncompiled import data_utils_fast, libbleu, token_block_utils_fast
from tests.twins import batches as twins

MODES = ["none", "complete", "complete_doc", "eos"]
LENGTHS = st.lists(st.integers(0, 12), max_size=30)
LIMIT = st.one_of(st.just(-1), st.integers(1, 12))
PAD, END, UNKNOWN = 1, 2, 3
SENTENCE = st.lists(st.integers(0, 7), min_size=1, max_size=12).filter(
    lambda ids: set(ids) != {PAD}
)


def compiled(name):
    """Return fairseq's compiled module, or None where it is not compiled."""
    file = find_spec(f"fairseq.{name}").origin
    if not file.endswith(tuple(EXTENSION_SUFFIXES)):
        return None
    return __import__(f"fairseq.{name}", fromlist=["_"])


def both(ours, name):
    """Return our module and, where there is one, the compiled one."""
    return [module for module in (ours, compiled(name)) if module is not None]


def lists(arrays):
    return [np.asarray(array).tolist() for array in arrays]


def numbers(values):
    return np.array(values, dtype=np.int64)


@given(LENGTHS, LIMIT, LIMIT, st.integers(1, 9))
def test_batches_are_those_of_the_definition(sizes, tokens, sentences, multiple):
    options = (max(tokens, *sizes) if tokens > 0 and sizes else tokens, sentences, multiple)
    indices = np.arange(len(sizes))[::-1].copy()
    expected = [[int(indices[at]) for at in batch] for batch in twins.batches(sizes, *options)]
    for module in both(data_utils_fast, "data.data_utils_fast"):
        assert lists(module.batch_by_size_vec(indices, numbers(sizes), *options)) == expected
        length = dict(zip(indices.tolist(), sizes, strict=True)).__getitem__
        assert lists(module.batch_by_size_fn(indices, length, *options)) == expected


def test_a_sentence_longer_than_a_batch_is_refused():
    for module in both(data_utils_fast, "data.data_utils_fast"):
        with pytest.raises(AssertionError, match="should not exceed max_tokens=3"):
            module.batch_by_size_vec(np.arange(2), numbers([1, 4]), 3, -1, 1)


@given(LENGTHS, st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=4))
def test_batches_of_fixed_shapes_are_those_of_the_definition(sizes, shapes):
    indices = np.arange(len(sizes))
    expected = twins.fixed_batches(indices.tolist(), sizes.__getitem__, shapes)
    for module in both(data_utils_fast, "data.data_utils_fast"):
        batches = module.batch_fixed_shapes_fast(indices, sizes.__getitem__, numbers(shapes))
        assert batches == expected


@pytest.mark.parametrize("mode", MODES)
@given(LENGTHS.filter(any), st.integers(1, 20), st.integers(0, 2))
def test_blocks_of_a_text_are_those_of_the_definition(mode, sizes, most, separator):
    expected = twins.blocks(sizes, mode, most, separator)
    sizes = numbers(sizes)
    for module in both(token_block_utils_fast, "data.token_block_utils_fast"):
        if not expected and module is not token_block_utils_fast:
            continue  # it raises a ValueError of NumPy
        slices = module._get_slice_indices_fast(sizes, mode, most, separator)
        assert slices.dtype == np.int64
        assert [list(range(*ends)) for ends in slices.tolist()] == expected
        places = module._get_block_to_dataset_index_fast(sizes, slices)
        for (first, offset, last), block in zip(places.tolist(), expected, strict=True):
            if block:
                assert first == twins.sentence_of(block[0], sizes)
                assert offset == block[0] - sizes[:first].sum()
                assert last == twins.sentence_of(block[-1], sizes)


def test_an_unknown_break_mode_is_refused():
    for module in both(token_block_utils_fast, "data.token_block_utils_fast"):
        with pytest.raises(ValueError, match="Invalid break_mode: pages"):
            module._get_slice_indices_fast(numbers([1]), "pages", 1, 1)


@pytest.fixture
def replaced_bleu(monkeypatch):
    """Import ``libbleu`` as where fairseq is not compiled, until the test ends."""
    spec = uncompiled.FINDER.find_spec("fairseq.libbleu")
    module = module_from_spec(spec)
    monkeypatch.setattr(bleu, "ctypes", bleu.ctypes)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "fairseq.libbleu", module)
    monkeypatch.setattr(fairseq, "libbleu", module, raising=False)


def trimmed(sentence):
    """Without padding before and after, and without ends, as long as a token is left."""
    while sentence[0] == PAD:
        sentence = sentence[1:]
    while len(sentence) > 1 and sentence[-1] in (PAD, END):
        sentence = sentence[:-1]
    return sentence


def count_as_sacrebleu_does():
    scorer = bleu.Scorer(bleu.BleuConfig(pad=PAD, eos=END, unk=UNKNOWN))

    @given(SENTENCE, SENTENCE)
    def check(reference, prediction):
        scorer.reset()
        scorer.add(torch.IntTensor(reference), torch.IntTensor(prediction))
        counts = [getattr(scorer.stat, name) for name, _ in scorer.stat._fields_]
        reference = [-1 if token == UNKNOWN else token for token in trimmed(reference)]
        assert counts == twins.bleu_counts(reference, trimmed(prediction))

    check()
    scorer.reset()
    for _ in range(2):
        scorer.add(torch.IntTensor([5, 6, 7, 8, 9, END]), torch.IntTensor([5, 6, 7, 8, END]))
    # Counts add up.
    assert scorer.result_string() == (
        "BLEU4 = 77.88, 100.0/100.0/100.0/100.0 (BP=0.779, ratio=0.800, syslen=8, reflen=10)"
    )
    scorer.reset(one_init=True)
    assert [getattr(scorer.stat, name) for name, _ in scorer.stat._fields_] == [0] * 4 + [1] * 6


def test_bleu_counts_as_sacrebleu_does():
    count_as_sacrebleu_does()


def test_bleu_that_is_not_compiled_counts_as_sacrebleu_does(replaced_bleu):
    count_as_sacrebleu_does()


def test_python_asks_for_a_replacement_last(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [PathFinder])
    for _ in range(2):
        uncompiled.replace_missing_extensions()
    assert sys.meta_path == [PathFinder, uncompiled.FINDER]
    for ours, name in ((data_utils_fast, "data.data_utils_fast"), (libbleu, "libbleu")):
        assert uncompiled.FINDER.find_spec(f"fairseq.{name}").origin == ours.__file__
    assert find_spec("fairseq.data.no_such_module") is None


@pytest.mark.parametrize(
    "name", ["fairseq.libnat", "fairseq.libbase", "alignment_train_cpu_binding"]
)
def test_a_model_that_needs_a_compiler_names_the_command(name):
    with pytest.raises(ImportError, match=rf"need {name}, .* fairseq-fixed==") as raised:
        uncompiled.FINDER.find_spec(name)
    assert isinstance(raised.value, UserError)
