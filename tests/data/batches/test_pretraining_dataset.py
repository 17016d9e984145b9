"""Samples of pre-training: blocks, pairs of segments, sources and targets, batches with parses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset

from fairseq_phrase.data.batches.objectives import Causal, Masking, Masks
from fairseq_phrase.data.batches.pretraining_dataset import PretrainingDataset
from fairseq_phrase.data.batches.text_blocks import SegmentPairs, TextBlocks, joined_parses
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.pretrainer import Objective
from fairseq_phrase.syntax.sentence_boundaries import sentences_of_dependencies
from fairseq_phrase.testing import make_dictionary, random_sentence

DICTIONARY = make_dictionary()
EOS, BOS, PAD = DICTIONARY.eos(), DICTIONARY.bos(), DICTIONARY.pad()
#: Lengths of sentences in subwords; 0 is a blank line.
LENGTHS = [3, 4, 5, 0, 2, 6, 0, 0, 4, 3, 2]


@pytest.fixture(scope="module")
def corpus():
    sentences = [random_sentence(DICTIONARY, length, seed) for seed, length in enumerate(LENGTHS)]
    parses = [
        {name[4:]: values.numpy() for name, values in sentence.items() if name != "src_tokens"}
        for sentence in sentences
    ]
    for parse, length in zip(parses, LENGTHS, strict=True):
        parse["words"] = parse["words"][:length]
    tokens = [sentence["src_tokens"] for sentence in sentences]
    return ListDataset(tokens, np.array([len(row) for row in tokens])), parses


def lines(text, *numbers):
    return np.concatenate([text[number].numpy() for number in numbers])


def masked(**options):
    return Masks(Masking(**options), mask=len(DICTIONARY), dictionary=DICTIONARY)


def test_a_sample_is_a_sentence_and_blank_lines_are_none(corpus):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 512, "eos", parses)
    expected = [number for number, length in enumerate(LENGTHS) if length]
    assert blocks.sizes.tolist() == [LENGTHS[number] + 1 for number in expected]
    for sample, number in zip(blocks, expected, strict=False):
        np.testing.assert_array_equal(sample.tokens, lines(text, number))
        assert all((sample.parse[name] == parses[number][name]).all() for name in parses[number])


def test_blocks_of_documents_join_the_parses_of_their_sentences(corpus):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 12, "complete_doc", parses, root_label=5)
    samples = [blocks[index] for index in range(len(blocks))]
    expected = [(0, 1), (2,), (4, 5), (8, 9, 10)]
    for sample, numbers in zip(samples, expected, strict=True):
        np.testing.assert_array_equal(sample.tokens, lines(text, *numbers))
        joined = joined_parses([parses[number] for number in numbers], 5)
        assert all((sample.parse[name] == joined[name]).all() for name in joined)


def test_a_joined_parse_is_one_tree_in_which_sentences_are_found(corpus):
    _, parses = corpus
    joined = joined_parses(parses[:3], root_label=5)
    counts = [len(parse["heads"]) for parse in parses[:3]]
    words = sum(counts) + 2  # two separators
    assert (joined["heads"] == np.arange(words)).sum() == 1
    assert joined["words"].tolist() == sorted(joined["words"])
    np.testing.assert_array_equal(joined["spans"][-1], [0, words, 5])
    assert {len(joined[name]) for name in ("heads", "deprels", "tags")} == {words}
    relations = joined["deprels"].copy()
    starts = np.cumsum([0, counts[0] + 1, counts[1] + 1])
    roots = [
        start + int(np.flatnonzero(parse["heads"] == np.arange(len(parse["heads"])))[0])
        for start, parse in zip(starts, parses, strict=False)
    ]
    relations[:] = 1
    relations[roots] = 2
    sentences = sentences_of_dependencies(joined["heads"], relations)
    assert sentences[roots].tolist() == [0, 1, 2]


def test_the_tokens_before_a_sample_are_those_of_the_text(corpus):
    text, _ = corpus
    everything = lines(text, *range(len(LENGTHS)))
    blocks = TextBlocks(text, DICTIONARY, 7, "none")
    start = 0
    for index in range(len(blocks)):
        for count in (0, 3, 10, 100):
            expected = everything[max(start - count, 0) : start]
            np.testing.assert_array_equal(blocks.before(index, count), expected)
        start += int(blocks.sizes[index])
    assert start == len(everything)


def test_half_of_the_second_segments_follow_and_the_others_are_from_other_documents(corpus):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 512, "eos", parses)
    pairs = SegmentPairs(blocks, text, BOS, "text")
    documents = np.cumsum(np.array(LENGTHS) == 0)
    of_tokens = {tuple(lines(text, n)): n for n, length in enumerate(LENGTHS) if length}
    following, drawn = 0, set()
    for epoch in range(1, 201):
        pairs.draw(3, epoch)
        for index in range(len(pairs)):
            sample = pairs[index]
            assert len(sample.tokens) == pairs.sizes[index]
            assert sample.tokens[0] == BOS
            first = of_tokens[tuple(sample.tokens[(sample.segments == 0)][1:])]
            second = of_tokens[tuple(sample.tokens[sample.segments == 1])]
            assert sample.is_next == (second == first + 1)
            assert (documents[first] == documents[second]) == bool(sample.is_next)
            assert len(sample.parse["words"]) == len(sample.tokens) - 2
            following += sample.is_next
            drawn.add((first, second))
    # 5 pairs in 200 epochs: the standard error is sqrt(0.25 / 1000).
    assert following / 1000 == pytest.approx(0.5, abs=0.06)
    assert {second for first, second in drawn if first == 0} == {1, 4, 5, 8, 9, 10}


def test_pairs_of_several_sentences_join_the_parses_of_all_of_them_once(corpus):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 9, "complete_doc", parses, root_label=5)
    of_blocks = [(0, 1), (2,), (4,), (5,), (8, 9), (10,)]
    of_tokens = {tuple(lines(text, *numbers)): numbers for numbers in of_blocks}
    pairs = SegmentPairs(blocks, text, BOS, "text")
    sizes = set()
    for epoch in range(1, 21):
        pairs.draw(3, epoch)
        for sample in pairs:
            segments = sample.segments
            first = of_tokens[tuple(sample.tokens[segments == 0][1:])]
            second = of_tokens[tuple(sample.tokens[segments == 1])]
            joined = joined_parses([parses[number] for number in (*first, *second)], 5)
            assert sample.parse.keys() == joined.keys()
            for name, values in joined.items():
                np.testing.assert_array_equal(sample.parse[name], values, name)
            sizes.add((len(first), len(second)))
    assert sizes == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_text_without_blank_lines_has_no_pairs():
    sentences = [random_sentence(DICTIONARY, 3, seed)["src_tokens"] for seed in range(4)]
    text = ListDataset(sentences, np.full(4, 4))
    with pytest.raises(
        UserError, match=r"data/train\.en is one document, so no sentence of another"
    ):
        SegmentPairs(TextBlocks(text, DICTIONARY, 512, "eos"), text, BOS, "data/train.en")


def test_documents_of_one_segment_have_no_pairs(corpus):
    text, _ = corpus
    blocks = TextBlocks(text, DICTIONARY, 512, "complete_doc")
    with pytest.raises(UserError, match="has two segments: a blank line separates documents"):
        SegmentPairs(blocks, text, BOS, "data/train.en")


def test_causal_sources_are_shifted_as_fairseqs():
    rng = np.random.default_rng(1)
    sample = TextBlocks(
        ListDataset([torch.tensor([7, 8, 9, EOS])], np.array([4])), DICTIONARY, 9, "eos"
    )[0]
    source, target, _ = Causal(DICTIONARY, backward=False)(sample, rng)
    assert (source.tolist(), target.tolist()) == ([EOS, 7, 8, 9], [7, 8, 9, EOS])
    source, target, _ = Causal(DICTIONARY, backward=True)(sample, rng)
    assert (source.tolist(), target.tolist()) == ([7, 8, 9, EOS], [EOS, 7, 8, 9])


def dataset_of(corpus, seed=1, **masking):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 512, "eos", parses)
    return PretrainingDataset(
        blocks, masked(**masking), DICTIONARY, seed=seed, inputs={"words", "heads"}
    )


def batch_of(dataset):
    return dataset.collater([dataset[index] for index in range(len(dataset))])


@pytest.mark.parametrize("unit", ["subword", "word", "phrase"])
def test_a_batch_depends_on_seed_epoch_and_index_alone(corpus, unit):
    first, second = (dataset_of(corpus, unit=unit, rate=0.4) for _ in range(2))
    reversed_order = [second[index] for index in reversed(range(len(second)))][::-1]
    again = second.collater(reversed_order)
    batch = batch_of(first)
    assert torch.equal(batch["net_input"]["src_tokens"], again["net_input"]["src_tokens"])
    other_datasets = [dataset_of(corpus, seed=2, unit=unit, rate=0.4), first]
    other_datasets[1].set_epoch(2)
    for other_dataset in other_datasets:
        assert not torch.equal(batch["target"], batch_of(other_dataset)["target"])


def test_a_batch_has_the_parse_of_its_text_beside_masks(corpus):
    _, parses = corpus
    dataset = dataset_of(corpus, rate=0.9)
    batch = batch_of(dataset)
    assert batch["net_input"].keys() == {"src_tokens", "src_lengths", "src_words", "src_heads"}
    full = [parse for parse in parses if len(parse["words"])]
    for row, parse in enumerate(full):
        assert batch["net_input"]["src_words"][row, : len(parse["words"])].tolist() == (
            parse["words"].tolist()
        )
        assert batch["net_input"]["src_heads"][row, : len(parse["heads"])].tolist() == (
            parse["heads"].tolist()
        )
    assert batch["ntokens"] == sum(length + 1 for length in LENGTHS if length)
    # A criterion's fields are beside the model's input.
    blocks = TextBlocks(corpus[0], DICTIONARY, 512, "eos", parses)
    fields = {"words", "tags"}
    dataset = PretrainingDataset(blocks, masked(), DICTIONARY, seed=1, of_loss=fields)
    batch = batch_of(dataset)
    assert batch["net_input"].keys() == {"src_tokens", "src_lengths"}
    assert batch["parse"].keys() == fields
    for row, parse in enumerate(full):
        assert batch["parse"]["tags"][row, : len(parse["tags"])].tolist() == parse["tags"].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "causal", "next_sentence": True}, "--next-sentence: use --objective masked"),
        ({"memory": 3}, "only --objective permutation has a memory"),
        ({"name": "permutation", "memory": -1}, "--memory -1"),
        ({"name": "permutation", "memory": 4, "next_sentence": True}, "no segment before them"),
    ],
)
def test_objectives_with_options_of_others_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Objective(**options)


def test_separators_are_words_of_the_parse_and_are_never_masked(corpus):
    text, parses = corpus
    blocks = TextBlocks(text, DICTIONARY, 12, "complete_doc", parses)
    source = masked(unit="word", rate=0.9)
    dataset = PretrainingDataset(blocks, source, DICTIONARY, seed=1, inputs={"words"})
    batch = batch_of(dataset)
    tokens, words = batch["net_input"]["src_tokens"], batch["net_input"]["src_words"]
    for row, length in enumerate(dataset.sizes.tolist()):
        assert words[row, : length - 1].ge(0).all()
        assert words[row, length - 1 :].eq(-1).all()
        np.testing.assert_array_equal(tokens[row, :length].eq(EOS), blocks[row].tokens == EOS)
    assert not batch["target"].eq(EOS).any()
