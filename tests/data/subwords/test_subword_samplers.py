"""Words split at random, against SentencePiece's own probabilities and subword-nmt's own dropout."""

from __future__ import annotations

import math
import pickle
import random
from collections import Counter
from itertools import product

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.batches.subword_sampling import check_alpha, with_split_words
from fairseq_phrase.data.subwords.encoded_sentences import encode_words
from fairseq_phrase.data.subwords.segmenters import SubwordNmtSegmenter
from fairseq_phrase.data.subwords.subword_samplers import SentencePieceSampler, SubwordNmtSampler
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.hostile import trees

CODES = "#version: 0.2\na b\nab c</w>\nb c</w>\nc a\n"


@pytest.fixture(scope="module")
def model(segmenter):
    return segmenter.model


@pytest.fixture(scope="module")
def scores(model):
    """The score of each subword that text may have, by the model itself."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return {
        processor.id_to_piece(n): processor.get_score(n)
        for n in range(processor.get_piece_size())
        if not processor.is_control(n) and not processor.is_unknown(n)
    }


def segmentations_of(word, scores):
    """Every segmentation of a word, by a loop over all sets of places between its characters."""
    for bits in product([False, True], repeat=len(word) - 1):
        ends = [n + 1 for n, bit in enumerate(bits) if bit] + [len(word)]
        starts = [0, *ends[:-1]]
        segmentation = tuple(word[start:end] for start, end in zip(starts, ends, strict=True))
        if all(subword in scores for subword in segmentation):
            yield segmentation


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0])
def test_segmentations_are_drawn_by_their_probabilities_to_the_power_of_alpha(
    model, scores, segmenter, alpha
):
    subwords = next(
        list(segmenter.segment_word("▁" + word))
        for word in ("kleine", "Hunde", "der", "die")
        if len("".join(segmenter.segment_word("▁" + word))) > 3
    )
    word = "".join(subwords)
    weights = {
        segmentation: math.exp(alpha * sum(scores[subword] for subword in segmentation))
        for segmentation in segmentations_of(word, scores)
    }
    total = sum(weights.values())
    sampler = SentencePieceSampler(model, alpha, list(scores))
    rng, draws = random.Random(1), 20_000
    counts = Counter(tuple(sampler.resegment(subwords, rng)) for _ in range(draws))
    assert set(counts) <= set(weights)
    for segmentation, weight in weights.items():
        expected = weight / total
        error = 5 * math.sqrt(expected * (1 - expected) / draws) + 1e-9
        assert abs(counts[segmentation] / draws - expected) < error + 1 / draws


def test_only_subwords_of_the_dictionary_are_drawn(model, scores, segmenter):
    subwords = list(segmenter.segment_word("▁kleine"))
    letters = {subword for subword in scores if len(subword) == 1}
    sampler = SentencePieceSampler(model, 0.01, letters | set(subwords))
    drawn = {tuple(sampler.resegment(subwords, random.Random(seed))) for seed in range(50)}
    assert len(drawn) > 1
    assert {subword for segmentation in drawn for subword in segmentation} <= letters | set(
        subwords
    )


def test_a_word_that_cannot_be_spelled_keeps_its_subwords(model, scores):
    sampler = SentencePieceSampler(model, 0.1, list(scores))
    for subwords in (["▁d", "<unk>"], ["<0xE2>"], ["<s>"], ["\u3000"]):
        assert sampler.resegment(subwords, random.Random(1)) is subwords


def test_a_line_is_segmented_between_spaces(model, scores, tmp_path):
    sampler = SentencePieceSampler(model, 0.1, list(scores))
    assert sampler.word_sizes(["▁a", "b", "▁", "c", "▁d"]) == [2, 2, 1]
    assert sampler.word_sizes(["a", "b"]) == [2]
    assert sampler.word_sizes([]) == []
    (tmp_path / "codes").write_text(CODES)
    joined = SubwordNmtSampler(tmp_path / "codes", 0.1, ["a"])
    assert joined.word_sizes(["a@@", "b", "c", "d@@"]) == [2, 1, 1]
    assert joined.word_sizes([]) == []


@pytest.fixture
def dropout(tmp_path):
    (tmp_path / "codes").write_text(CODES)
    symbols = ["a@@", "b@@", "c@@", "a", "b", "c", "ab@@", "bc", "abc"]
    return lambda alpha, left=(): SubwordNmtSampler(
        tmp_path / "codes", alpha, [symbol for symbol in symbols if symbol not in left]
    )


def test_bpe_dropout_leaves_out_merges(dropout, tmp_path):
    assert dropout(1.0).resegment(["abc"], random.Random(1)) == ["a@@", "b@@", "c"]
    drawn = Counter(
        tuple(dropout(0.3).resegment(["ab@@", "c"], random.Random(seed))) for seed in range(300)
    )
    assert set(drawn) == {("abc",), ("ab@@", "c"), ("a@@", "bc"), ("a@@", "b@@", "c")}
    assert drawn.most_common(1)[0][0] == ("abc",)
    rarely = dropout(1e-9).resegment(["a@@", "b@@", "c"], random.Random(1))
    assert rarely == list(SubwordNmtSegmenter(tmp_path / "codes").segment_word("abc"))


def test_bpe_dropout_draws_nothing_that_the_dictionary_lacks(dropout):
    for seed in range(50):
        segmentation = dropout(0.3, ["ab@@", "abc"]).resegment(["a@@", "bc"], random.Random(seed))
        assert tuple(segmentation) in {("a@@", "bc"), ("a@@", "b@@", "c")}
    for subwords in (["a@@", "<unk>"], ["a@@"], ["a", "b"], ["x@@", "a"]):
        assert dropout(0.5).resegment(subwords, random.Random(1)) is subwords
    # Where a letter is unknown, so would be the segmentation.
    subwords = ["abc"]
    assert dropout(1.0, ["c"]).resegment(subwords, random.Random(1)) is subwords


def test_a_word_without_its_end_keeps_its_subwords(tmp_path):
    """Of a truncated line. Its mark would become a part of the word."""
    (tmp_path / "codes").write_text(CODES)
    symbols = ["a@@", "b@@", "c@@", "ab@@", "bc", "c", "abc", "@@@", "@"]
    sampler = SubwordNmtSampler(tmp_path / "codes", 0.5, symbols)
    rng = random.Random(1)
    assert {tuple(sampler.resegment(("ab@@", "c@@"), rng)) for _ in range(50)} == {("ab@@", "c@@")}
    assert len({tuple(sampler.resegment(("ab@@", "c"), rng)) for _ in range(50)}) > 1


def test_bpe_dropout_leaves_the_generator_of_others_alone(dropout):
    random.seed(7)
    expected = random.random()
    random.seed(7)
    drawn = [dropout(0.5).resegment(["abc"], random.Random(3)) for _ in range(3)]
    assert random.random() == expected
    assert drawn[0] == drawn[1] == drawn[2]


def test_samplers_go_to_workers(dropout, model, scores):
    for sampler, subwords in (
        (dropout(0.5), ["abc"]),
        (SentencePieceSampler(model, 0.1, list(scores)), ["▁d", "e", "r"]),
    ):
        copy = pickle.loads(pickle.dumps(sampler))
        for seed in range(5):
            expected = sampler.resegment(subwords, random.Random(seed))
            assert copy.resegment(subwords, random.Random(seed)) == expected


def test_a_model_of_another_type_is_named(tmp_path):
    text = tmp_path / "text"
    text.write_text("a few words of a text\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "m"), vocab_size=20, model_type="bpe",
        minloglevel=2,
    )  # fmt: skip
    with pytest.raises(UserError, match=r"SentencePiece model of type unigram.*m\.model is none"):
        SentencePieceSampler(tmp_path / "m.model", 0.1, ["a"])


@pytest.mark.parametrize("alpha", [-0.1, 1.5, math.nan])
def test_alpha_is_a_number_up_to_1(alpha):
    with pytest.raises(UserError, match=r"--subword-sampling .*: expected a number above 0 and at"):
        check_alpha(alpha)


@given(trees(8), st.data())
def test_constituents_follow_the_segmentation(heads, data):
    """Those that are changed are those that preprocessing would have made."""
    words = [f"w{n}" for n in range(len(heads))]
    tags = [f"T{n % 3}" for n in range(len(heads))]
    tree = ConstituencyTree.from_dependencies(DependencyTree(np.array(heads)), tags)
    over = data.draw(st.lists(st.integers(0, len(heads) - 1), unique=True))
    if over:  # constituents over single words, as real treebanks have
        spans = np.array([[n, n + 1] for n in over])
        tree = tree.with_lower(spans, ["NP"] * len(over)).collapsed()
    sentence = ParsedSentence(words, [True] * len(heads), constituents=tree, tags=tags)
    numbers = {label: n for n, label in enumerate([*tree.labels, *tags])}

    def spans_of(sizes):
        encoded = encode_words(sentence, [["x"] * size for size in sizes])
        labels = [numbers[label] for label in encoded.span_labels]
        return np.column_stack([encoded.spans, np.array(labels, dtype=np.int64)])

    sizes = st.lists(st.integers(1, 2), min_size=len(heads), max_size=len(heads))
    before, after = (np.array(data.draw(sizes)) for _ in range(2))
    tag_numbers = np.array([numbers[tag] for tag in tags])
    changed = with_split_words(spans_of(before), before > 1, after > 1, tag_numbers)
    assert np.array_equal(changed, spans_of(after))
