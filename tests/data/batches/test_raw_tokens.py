"""Token indices that carry a raw line or its parse, and what fairseq does to them on the way."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fairseq_phrase.data.batches.raw_tokens import (
    LINE,
    RawTokens,
    SourceDictionary,
    plain_tensor,
    unpadded,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.tasks.fairseq_interactive import SyntaxBPE, SyntaxBPEConfig
from fairseq_phrase.tasks.language_tags import LanguageTagTask

PADDING = 1
PARSES = [{"words": np.array([0, 1])}, {"words": np.array([0])}]


@pytest.fixture
def dictionary():
    symbols = SourceDictionary()
    symbols.add_symbol("▁ein")
    return symbols


def test_indices_of_segmented_text_carry_its_line(dictionary):
    tokens = dictionary.encode_line(f"▁ein ☃{LINE}ein ☃", add_if_not_exist=False)
    assert tokens.long().origins == ["ein ☃"]
    assert tokens.tolist() == [4, dictionary.unk(), dictionary.eos()]


def test_a_line_may_have_any_character(dictionary):
    line = f"ein{LINE}▁ein"
    tokens = dictionary.encode_line(f"▁ein{LINE}{line}", add_if_not_exist=False)
    assert tokens.origins == [line]
    assert tokens.tolist() == [4, dictionary.eos()]


@pytest.mark.parametrize("append_eos", [True, False])
@pytest.mark.parametrize("line", ["▁ein", f"▁ein{LINE}ein"])
def test_a_languages_tag_follows_the_end_of_a_sentence(dictionary, line, append_eos):
    dictionary.tags = (dictionary.add_symbol("[de]"),)
    tokens = dictionary.encode_line(line, add_if_not_exist=False, append_eos=append_eos)
    assert tokens.tolist() == [4, *([dictionary.eos(), dictionary.end] if append_eos else [])]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_lang": "fr"}, "'fr', a language of the data, is missing"),
        *(({name: 1}, "--langs cannot be combined with --num-batch-buckets or --eval-bleu")
          for name in ("num_batch_buckets", "eval_bleu")),
    ],
)  # fmt: skip
def test_options_that_need_the_end_of_a_sentence_last_are_refused_with_tags(options, message):
    needed = dict.fromkeys(("num_batch_buckets", "eval_bleu"))
    cfg = {"langs": "de,en", "source_lang": "de", "target_lang": "en", **needed, **options}
    with pytest.raises(UserError, match=message):
        LanguageTagTask(SimpleNamespace(**cfg), SourceDictionary(), SourceDictionary())


def test_raw_text_needs_the_data_that_segment_it():
    with pytest.raises(UserError, match="need --task syntax_translation, or --syntax-data DIR"):
        SyntaxBPE(SyntaxBPEConfig())


def test_indices_of_other_text_carry_nothing(dictionary):
    assert type(dictionary.encode_line("▁ein", add_if_not_exist=False)) is torch.Tensor


@pytest.mark.parametrize(
    "operation",
    [
        torch.Tensor.long,
        torch.Tensor.clone,
        torch.Tensor.cpu,
        torch.Tensor.contiguous,
        lambda tokens: tokens.to("cpu"),
        lambda tokens: tokens.to(torch.int32),
        copy.copy,
    ],
)
def test_a_batch_that_is_moved_or_copied_keeps_its_parses(operation):
    batch = RawTokens.of(torch.tensor([[5, 6, 2], [5, 2, PADDING]]), PARSES)
    assert operation(batch).origins == PARSES


@pytest.mark.parametrize(
    "operation",
    [
        lambda batch: batch[0],
        lambda batch: batch[[1, 0]],
        lambda batch: batch.t(),
        lambda batch: batch.flip(0),
        lambda batch: batch == 2,
        lambda batch: batch.index_select(0, torch.tensor([1, 0])),
        lambda batch: torch.cat([batch, batch]),
        lambda batch: batch.unbind(1)[0],
        lambda batch: batch.new_zeros(2, 3),
        plain_tensor,
    ],
)
def test_any_other_operation_gives_an_ordinary_tensor(operation):
    batch = RawTokens.of(torch.tensor([[5, 6, 2], [5, 2, PADDING]]), PARSES)
    assert type(operation(batch)) is torch.Tensor


def test_a_sentence_made_a_batch_of_one_and_taken_out_keeps_its_line():
    tokens = RawTokens.of(torch.tensor([5, 2]), ["ein"])
    (again,) = tokens.unsqueeze(0)
    assert again.origins == ["ein"]
    assert again.tolist() == [5, 2]


def test_rows_lose_their_padding_and_keep_their_parses():
    batch = RawTokens.of(torch.tensor([[5, 6, 2], [PADDING, 5, 2]]), PARSES)
    rows = unpadded(batch, PADDING)
    assert [row.tolist() for row in rows] == [[5, 6, 2], [5, 2]]
    assert [row.origins for row in rows] == [[PARSES[0]], [PARSES[1]]]
    assert [type(row) for row in unpadded(plain_tensor(batch), PADDING)] == [
        torch.Tensor,
        torch.Tensor,
    ]


def test_carrying_tokens_can_be_pickled():
    again = pickle.loads(pickle.dumps(RawTokens.of(torch.tensor([5, 2]), ["ein"])))
    assert again.tolist() == [5, 2]
    assert again.origins == ["ein"]


def test_a_parse_is_freed_with_its_tokens():
    class Parse(dict):
        pass

    parse = Parse(words=np.array([0]))
    tokens = RawTokens.of(torch.tensor([[5, 2]]), [parse]).long()
    reference = weakref.ref(parse)
    del parse, tokens
    gc.collect()
    assert reference() is None
