"""Unknown words, their slots, and the tokens that carry them."""

from __future__ import annotations

import pytest
import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, ListDataset

from fairseq_phrase.data.batches.raw_tokens import (
    LINE,
    RawDataset,
    RawTokens,
    SourceDictionary,
    unpadded,
    write_back,
)
from fairseq_phrase.data.batches.syntax_dataset import CopiedDataset
from fairseq_phrase.data.store.copied_words import (
    CopiedWords,
    copied_path,
    number_of_slots,
    number_unknown,
    slot,
    stored,
)
from fairseq_phrase.errors import UserError
from tests.support.stores import write_arrays

HOSTILE = ["<copy1>", "Šx", "a\N{COMBINING ACUTE ACCENT}", "🙂", "<unk>"]


@pytest.fixture
def slots():
    dictionary = SourceDictionary()
    for entry in ("the", "is", ".", slot(1), slot(2)):
        dictionary.add_symbol(entry)
    return dictionary


def test_slots_are_in_the_order_of_the_source_and_alike_in_the_target(slots):
    indices = slots.indices
    assert number_of_slots(indices) == slots.slots == 2
    source, words = number_unknown(["Qi", "is", "the", "Xu", ".", "Qi", "Lu"], indices, 2)
    # Lu comes after the last slot.
    assert source == ["<copy1>", "is", "the", "<copy2>", ".", "<copy1>", "Lu"]
    assert words == ["Qi", "Xu"]
    target, words_of_target = number_unknown(["Xu", "Lu", "the", "Qi"], indices, 0, words)
    assert target == ["<copy2>", "Lu", "the", "<copy1>"]
    assert words_of_target == words


def test_a_target_without_source_words_gets_no_slots(slots):
    assert number_unknown(["Xu", "the"], slots.indices, 0, []) == (["Xu", "the"], [])


def test_an_entry_of_a_slot_in_a_text_is_an_unknown_word(slots):
    source, words = number_unknown(["<copy2>", "Xu", "<copy1>"], slots.indices, 2)
    assert (source, words) == (["<copy1>", "<copy2>", "<unk>"], ["<copy2>", "Xu"])
    target, _ = number_unknown(["Xu", "<copy2>", "<copy9>"], slots.indices, 0, words)
    assert target == ["<copy2>", "<copy1>", "<unk>"]


def test_files_hold_the_words_of_every_sentence(tmp_path):
    sentences = [["one"], [], HOSTILE, ["the", "last"]]
    paths = write_arrays(copied_path(tmp_path / "train.de-en.de"), list(map(stored, sentences)))
    assert [path.name for path in paths] == [
        "train.de-en.de.copied.bin", "train.de-en.de.copied.idx"
    ]  # fmt: skip
    assert CopiedWords.exist(tmp_path / "train.de-en.de")
    assert not CopiedWords.exist(tmp_path / "train.de-en.en")
    assert [*CopiedWords(tmp_path / "train.de-en.de")] == sentences


def test_a_line_carries_its_words_into_text(slots):
    tokens = slots.encode_line(f"Qi is Xu .{LINE}a line", add_if_not_exist=False).long()
    assert tokens.tolist() == [slots.index(x) for x in ("<copy1>", "is", "<copy2>", ".", "</s>")]
    assert (tokens.origins, tokens.words) == (["a line"], [["Qi", "Xu"]])
    assert slots.string(tokens) == "Qi is Xu ."
    assert slots.string(tokens.tolist()) == "<copy1> is <copy2> ."


@pytest.mark.parametrize("word", ["Qi", "<copy1>"])
def test_a_constraint_with_an_unknown_word_is_refused(slots, word):
    """fairseq-interactive encodes --constraints without their source, which numbers unknown words."""
    as_fairseq = {"append_eos": False, "add_if_not_exist": False}
    tokens = slots.encode_line(f"the .{LINE}the .", **as_fairseq)
    assert tokens.tolist() == [slots.index("the"), slots.index(".")]
    with pytest.raises(UserError, match=f"--constraints: '{word}' is not in the dictionary"):
        slots.encode_line(f"the {word}", **as_fairseq)


def test_a_target_has_the_slots_of_its_source(slots):
    target = slots.encode_target("Xu is the Qi Lu", ["Qi", "Xu"])
    names = ["<copy2>", "is", "the", "<copy1>", "<unk>", "</s>"]
    assert target.tolist() == [*map(slots.index, names)]
    assert slots.encode_target("Xu", []).tolist()[0] == slots.unk()


def test_a_slot_that_the_source_does_not_fill_is_an_unknown_word(slots):
    tokens = RawTokens.of(torch.tensor([slots.index("<copy2>")]), (), [["Qi"]])
    assert slots.string(tokens) == "<unk>"


def test_removing_bpe_marks_keeps_the_words(slots):
    tokens = RawTokens.of(torch.tensor([slots.index("<copy1>"), slots.index("is")]), (), [["Q@@"]])
    assert slots.string(tokens, "@@ ") == "Qis"


def test_a_dictionary_without_places_makes_ordinary_tokens():
    plain = SourceDictionary()
    plain.add_symbol("the")
    tokens = plain.encode_line("the Xu", add_if_not_exist=False)
    assert type(tokens) is torch.Tensor
    assert tokens.tolist() == [plain.index("the"), plain.unk(), plain.eos()]


def pairs(dictionary, lines):
    rows = [dictionary.encode_line(line, add_if_not_exist=False).long() for line in lines]
    sizes = [len(row) for row in rows]
    return LanguagePairDataset(
        ListDataset(rows, sizes), sizes, dictionary, ListDataset(rows, sizes), sizes, dictionary
    )


def test_batches_bring_words_in_their_order_and_take_them_to_text(slots):
    words = [["Qi"], [], ["Xu", "Lu"]]
    dataset = CopiedDataset(pairs(slots, ["Qi .", "the", "Xu is Lu ."]), words)
    batch = dataset.collater([dataset[index] for index in range(3)])
    assert batch["id"].tolist() == [2, 0, 1]
    assert batch["copied"] == [words[2], words[0], words[1]]
    hypotheses = [[{"tokens": batch["target"][row]}] for row in range(3)]
    write_back(batch, hypotheses, batch["copied"])
    # As fairseq-generate prints them.
    pad = slots.pad()
    for row, text in enumerate(["Xu is Lu .", "Qi .", "the"]):
        source = utils.strip_pad(batch["net_input"]["src_tokens"][row, :], pad)
        target = utils.strip_pad(batch["target"][row, :], pad).int().cpu()
        hypothesis = utils.strip_pad(hypotheses[row][0]["tokens"], pad).int().cpu()
        assert [*map(slots.string, (source, target, hypothesis))] == [text] * 3
    # As the trainer scores them while it trains.
    assert slots.string(utils.strip_pad(batch["target"][0], pad).int().cpu()) == "Xu is Lu ."


def test_raw_batches_carry_the_words_in_their_tokens(slots):
    words = [["Qi"], ["Xu", "Lu"]]
    rows = [slots.encode_line(line, add_if_not_exist=False) for line in ("Qi .", "Xu is Lu .")]
    dataset = RawDataset(rows, [*map(len, rows)], slots)
    tokens = dataset.collater([dataset[0], dataset[1]])["net_input"]["src_tokens"]
    assert tokens.words == [words[1], words[0]]
    assert [row.words for row in unpadded(tokens, slots.pad())] == [[words[1]], [words[0]]]
    assert slots.string(utils.strip_pad(tokens[1], slots.pad())) == "Qi ."


def test_words_of_other_data_are_refused(slots):
    with pytest.raises(UserError, match="DATA has 2 sentence pairs, and words to copy for 1"):
        CopiedDataset(pairs(slots, ["Qi .", "the"]), [["Qi"]], "DATA")
