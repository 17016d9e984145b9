"""The text of tokens, phrases and constituents in pictures."""

from __future__ import annotations

from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.tasks import FairseqTask

from fairseq_phrase.data.batches.source_batches import SourceBatcher
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens, words_by_marks
from fairseq_phrase.data.subwords.segmenters import WholeWords
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.source_sentence import (
    SourceSentence,
    dataset_batches,
    raw_sentence,
    require_length,
)
from fairseq_phrase.syntax.sentence import EncodedSentence


def sentence(tokens, words=None, constituents=()):
    words = words_by_marks(tokens, {"</s>"}) if words is None else np.array(words)
    return SourceSentence({}, tokens, words, list(constituents))


LEUTE = sentence(
    ["▁Leute", "▁Re", "par", "ieren", "▁das", "▁Dach", ".", "</s>"], [0, 1, 1, 1, 2, 3, 4, -1]
)


def test_the_text_is_the_sentence_without_marks():
    assert LEUTE.text == "Leute Reparieren das Dach."


@pytest.mark.parametrize(
    ("members", "label"),
    [
        ([0], "Leute"),
        ([1], "[Re]parieren"),
        ([2], "Re[par]ieren"),
        ([3], "Repar[ieren]"),
        ([1, 2, 3], "Reparieren"),
        ([1, 3], "[Re]par[ieren]"),
        ([3, 4], "Repar[ieren] das"),
        ([5, 6], "Dach."),
        ([0, 4], "Leute … das"),
        ([0, 2], "Leute Re[par]ieren"),
        ([7], "</s>"),
    ],
)
def test_a_node_shows_its_words_and_which_part_of_them_it_holds(members, label):
    assert LEUTE.label(members) == label


def test_the_words_of_subword_nmt_are_spelled_likewise():
    tokens = ["Leute", "re@@", "par@@", "ieren", "</s>"]
    source = sentence(tokens)
    assert source.words.tolist() == [0, 1, 1, 1, -1]
    assert source.label([2]) == "re[par]ieren"
    assert source.text == "Leute reparieren"


def test_a_subword_that_is_a_space_alone_shows_only_where_its_word_is_split():
    source = sentence(["▁ein", "▁", "☃", "▁", "</s>"], [0, 1, 1, 2, -1])
    assert source.labels[:4] == ["ein", "[▁]☃", "▁[☃]", "▁"]
    assert source.text == "ein ☃ ▁"


def test_batches_of_a_data_set_have_the_pairs_that_fit_the_model(dictionary):
    lengths = [3, 9, 2, 4, 5]
    sentences = [torch.full((length,), 4 + i) for i, length in enumerate(lengths)]
    data = LanguagePairDataset(
        sentences, lengths, dictionary, sentences, lengths, dictionary, shuffle=False
    )
    task = FairseqTask(Namespace(max_source_positions=5, max_target_positions=4))
    task.datasets["test"] = data
    task.load_dataset = lambda subset: None
    for _ in range(2):
        batches = list(dataset_batches(task, "test"))
        assert sorted(id for batch in batches for id in batch["id"].tolist()) == [0, 2, 3]
    data.tgt = None
    with pytest.raises(UserError, match="test has no targets"):
        next(dataset_batches(task, "test"))


def test_a_task_that_reads_no_raw_text_is_named():
    with pytest.raises(UserError, match="does not parse raw text: name a sentence by its --line"):
        raw_sentence(FairseqTask(Namespace()), "Leute")


def test_without_a_parse_words_begin_at_white_space():
    assert words_by_marks(["▁Hun", "d", "▁läuft", "."], ()).tolist() == [0, 0, 1, 1]
    assert words_by_marks(["<s>", "a", "b", "</s>"], {"<s>", "</s>"}).tolist() == [-1, 0, 1, -1]
    assert words_by_marks(["▁a", "▁", "▁", "▁b", "▁", "c"], ()).tolist() == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("is_marked", [True, False])
@pytest.mark.parametrize(
    "line",
    ["<g1>ab</g1> cd <g1> ab, </g1>", "cd<g1> <g1>ab cd", "<g1> <g1><g1> ab<g1>cd </g1>ab </g1>"],
)
def test_protected_tokens_are_words_unless_they_are_joined_to_text(line, is_marked, normalizing):
    segmenter = normalizing if is_marked else WholeWords()
    protected = ProtectedTokens(segmenter, ["<g1>", "</g1>", JOINER])
    subwords = protected.segment_line(line)
    words: dict[int, list[str]] = {}
    for word, subword in zip(words_by_marks(subwords, (), protected.tokens), subwords, strict=True):
        words.setdefault(word, []).append(subword)
    assert [protected.join(" ".join(subwords)) for subwords in words.values()] == line.split()


@pytest.fixture
def task():
    dictionary, labels = Dictionary(), Dictionary()
    for symbol in ("▁Hund", "▁läuft"):
        dictionary.add_symbol(symbol)
    labels.add_symbol("NP")
    source = SourceBatcher(dictionary, lambda field: labels, lambda: None)
    source.fields.update({"words", "spans"})
    return Namespace(
        source_dictionary=dictionary,
        label_dictionary=lambda field: labels,
        source_text=source,
    )


def test_unknown_words_of_raw_text_are_spelled_as_they_were_typed(task):
    subwords = ["▁Hund", "▁☃", "▁läuft"]
    raw = EncodedSentence(
        subwords, np.arange(3), np.array([2, 2, 2]), [], [], np.array([[0, 2]]), ["NP"]
    )
    source = SourceSentence.from_raw(raw, task)
    assert source.text == "Hund ☃ läuft"
    assert task.source_dictionary.unk() == source.net_input["src_tokens"][0, 1]
    assert source.constituents == [(0, 2, "NP")]
    assert source.label([0, 1]) == "Hund ☃"


def test_padding_and_targets_of_a_batch_are_left_out(task):
    dictionary = task.source_dictionary
    tokens = torch.tensor([[4, 5, dictionary.eos(), dictionary.pad()]])
    words = torch.tensor([[0, 1, -1, -1]])
    source = SourceSentence.from_batch(
        {"src_tokens": tokens, "src_words": words, "src_heads": torch.tensor([[1, 1]]),
         "src_lengths": torch.tensor([3]), "prev_output_tokens": tokens},
        task,
    )  # fmt: skip
    assert source.tokens == ["▁Hund", "▁läuft", "</s>"]
    assert {name: values.shape[1] for name, values in source.net_input.items()} == {
        "src_tokens": 3, "src_words": 3, "src_heads": 2,
    }  # fmt: skip
    assert source.words.tolist() == [0, 1, -1]


def test_a_sentence_without_words_keeps_one_because_tokens_need_an_index(task):
    source = SourceSentence.from_batch(
        {"src_tokens": torch.tensor([[task.source_dictionary.eos()]]),
         "src_words": torch.tensor([[-1]]), "src_heads": torch.tensor([[-1, -1]])},
        task,
    )  # fmt: skip
    assert source.net_input["src_heads"].tolist() == [[-1]]


def test_a_sentence_that_is_too_long_is_refused():
    require_length(200, 200, "tokens")
    with pytest.raises(UserError, match="has 201 tokens, and a picture shows at most 200: choose"):
        require_length(201, 200, "tokens")
