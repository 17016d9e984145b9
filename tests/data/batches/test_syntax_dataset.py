"""Batches that carry parses, against batches made by a loop over tokens."""

import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.batches.source_batches import collate_parses, truncated
from fairseq_phrase.data.batches.syntax_dataset import LongestSideOrder, SyntaxDataset
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.hostile import trees
from tests.twins.alignment import check_words

DICTIONARY = Dictionary()
for symbol in range(50):
    DICTIONARY.add_symbol(f"subword{symbol}")
PAD, EOS, BOS, UNK = (getattr(DICTIONARY, name)() for name in ("pad", "eos", "bos", "unk"))


@st.composite
def parses(draw, max_words=8):
    """The parse of a sentence of some words, or none."""
    heads = draw(st.one_of(trees(max_words), st.just([])))
    counts = draw(st.lists(st.integers(1, 3), min_size=len(heads), max_size=len(heads)))
    return {"words": words_of_subwords(counts), "heads": np.array(heads, dtype=np.int64)}


batches = st.lists(parses(), min_size=1, max_size=6)


def tokens_of(parse, seed=0, bos=False):
    """Source tokens for a parse: unknown and ordinary subwords, ``</s>``, perhaps ``<s>``."""
    generator = np.random.default_rng(seed)
    subwords = generator.choice([UNK, *range(4, len(DICTIONARY))], len(parse["words"]))
    return torch.tensor([BOS] * bos + subwords.tolist() + [EOS])


def collated_by_a_loop(rows, parses):
    """``src_words`` and ``src_heads`` token by token and word by word."""
    words = [[-1] * len(row) for row in rows]
    for i, row in enumerate(rows):
        subword = 0
        for j, token in enumerate(row):
            if token not in (PAD, EOS, BOS):
                words[i][j] = int(parses[i]["words"][subword])
                subword += 1
    # A batch of empty lines has a column of padding.
    longest = max(1, *(len(parse["heads"]) for parse in parses))
    heads = [[-1] * longest for _ in rows]
    for i, parse in enumerate(parses):
        for j, head in enumerate(parse["heads"].tolist()):
            heads[i][j] = head
    return words, heads


@given(batches, st.booleans(), st.booleans())
def test_a_batch_of_parses_is_what_a_loop_over_tokens_makes(parses, left_pad, bos):
    rows = [tokens_of(parse, seed, bos) for seed, parse in enumerate(parses)]
    tokens = data_utils.collate_tokens(rows, PAD, left_pad=left_pad)
    batch = collate_parses(tokens, parses, DICTIONARY)
    words, heads = collated_by_a_loop(tokens.tolist(), parses)
    assert batch["src_words"].tolist() == words
    assert batch["src_heads"].tolist() == heads
    assert batch["src_words"].dtype == batch["src_heads"].dtype == torch.int64


@given(batches)
def test_parses_without_heads_are_batched_without_them(parses):
    parses = [{"words": parse["words"]} for parse in parses]
    rows = [tokens_of(parse) for parse in parses]
    batch = collate_parses(data_utils.collate_tokens(rows, PAD), parses, DICTIONARY)
    assert list(batch) == ["src_words"]


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_source_with_more_or_fewer_subwords_than_its_parse_is_an_error(difference):
    good = {"words": words_of_subwords([2]), "heads": np.array([0])}
    bad = {"words": words_of_subwords([2 + difference]), "heads": np.array([0])}
    rows = [tokens_of(good), tokens_of(good)]
    message = f"a source of 2 subwords has a parse of {2 + difference}.*fairseq-phrase-preprocess"
    with pytest.raises(ValueError, match=message):
        collate_parses(torch.stack(rows), [good, bad], DICTIONARY)


@given(parses(20), st.integers(0, 40))
def test_a_parse_is_truncated_as_its_source_is(parse, subwords):
    shortened = truncated(parse, subwords)
    assert shortened["words"].tolist() == parse["words"].tolist()[:subwords]
    check_words(shortened["words"])
    count = len(set(shortened["words"].tolist()))
    keep = np.arange(len(parse["heads"])) < count
    expected = DependencyTree(parse["heads"]).restricted_to(keep).heads
    assert shortened["heads"].tolist() == expected.tolist()


def test_a_word_whose_head_is_truncated_hangs_off_the_nearest_ancestor_left():
    parse = {
        "words": words_of_subwords([1, 2, 1, 1]),
        "heads": np.array([1, 1, 3, 0]),
        "tags": np.array([4, 5, 6, 7]),
    }
    shortened = truncated(parse, 4)
    assert shortened["words"].tolist() == [0, 1, 1, 2]
    assert shortened["heads"].tolist() == [1, 1, 0]
    assert shortened["tags"].tolist() == [4, 5, 6]


def test_a_parse_that_fits_is_left_as_it_is():
    parse = {"words": words_of_subwords([1, 2]), "heads": np.array([0, 0])}
    assert truncated(parse, 3) is parse


def pair_dataset(parses, left_pad=False):
    sources = [tokens_of(parse, seed) for seed, parse in enumerate(parses)]
    return LanguagePairDataset(
        sources, np.array([len(source) for source in sources]), DICTIONARY,
        sources, np.array([len(source) for source in sources]), DICTIONARY,
        left_pad_source=left_pad, shuffle=False,
    )  # fmt: skip


@given(batches, st.booleans())
def test_parses_follow_their_sentences_through_fairseqs_sorting_by_length(parses, left_pad):
    dataset = SyntaxDataset(pair_dataset(parses, left_pad), parses)
    batch = dataset.collater([dataset[index] for index in range(len(parses))])
    in_order = [parses[index] for index in batch["id"].tolist()]
    lengths = [len(parse["words"]) for parse in in_order]
    assert lengths == sorted(lengths, reverse=True)
    tokens = batch["net_input"]["src_tokens"]
    words, heads = collated_by_a_loop(tokens.tolist(), in_order)
    assert batch["net_input"]["src_words"].tolist() == words
    assert batch["net_input"]["src_heads"].tolist() == heads


@given(batches)
def test_all_else_in_a_batch_is_fairseqs_own(parses):
    plain = pair_dataset(parses)
    dataset = SyntaxDataset(plain, parses)
    indices = range(len(parses))
    expected = plain.collater([plain[index] for index in indices])
    batch = dataset.collater([dataset[index] for index in indices])
    for name in ("src_words", "src_heads"):
        del batch["net_input"][name]
    assert batch.keys() == expected.keys()
    assert batch["net_input"].keys() == expected["net_input"].keys()
    for name, values in expected["net_input"].items():
        assert torch.equal(batch["net_input"][name], values)
    assert dataset.ordered_indices().tolist() == plain.ordered_indices().tolist()
    assert dataset.num_tokens_vec(np.array(indices)).tolist() == [
        plain.num_tokens(index) for index in indices
    ]
    assert dataset.src is plain.src


def chain_parse(words, constituents):
    """Words in a chain that branches to the right."""
    spans = [[first, words, 4] for first in range(words - 2, words - 2 - constituents, -1)]
    return {"words": np.arange(words), "spans": np.array(spans).reshape(-1, 3)}


def batches_of(dataset, *options):
    return [batch.tolist() for batch in dataset.batch_by_size(dataset.ordered_indices(), *options)]


@given(st.lists(st.integers(1, 60) | st.integers(400, 511), min_size=1, max_size=12))
def test_ordinary_sentences_are_batched_as_by_fairseq_however_deep_their_trees(lengths):
    parses = [chain_parse(words, words - 1) for words in lengths]
    plain = pair_dataset(parses)
    dataset = SyntaxDataset(plain, parses)
    for options in ((600,), (2000, 3), (1000, None, 8), (None, 2)):
        assert batches_of(dataset, *options) == batches_of(plain, *options)


def test_a_large_tree_counts_by_its_pairs_of_nodes():
    words = 799  # and the end of sentence
    deep, flat = ([chain_parse(words, constituents)] * 6 for constituents in (words - 1, 1))
    assert [len(batch) for batch in batches_of(SyntaxDataset(pair_dataset(flat), flat), 2600)] == [
        3, 3,
    ]  # fmt: skip
    dataset = SyntaxDataset(pair_dataset(deep), deep)
    # 800 + 798 nodes: 1246 tokens
    assert [len(batch) for batch in batches_of(dataset, 2600)] == [2, 2, 2]
    assert [len(batch) for batch in batches_of(dataset, 1000)] == [1] * 6
    assert [len(batch) for batch in batches_of(dataset, None, 4)] == [4, 2]
    # Of truncated sources, what is left counts.
    short = [{**parse, "words": parse["words"][:300]} for parse in deep]
    dataset = SyntaxDataset(pair_dataset(short), deep, max_subwords=300)
    assert [len(batch) for batch in batches_of(dataset, 2600)] == [6]


def test_batches_of_ordinary_sentences_need_no_more_memory_than_fairseqs():
    count = 100_000
    sizes = np.random.default_rng(1).integers(5, 36, count).astype(np.int32)
    texts = [None] * count, sizes, DICTIONARY
    stock = LanguagePairDataset(*texts, *texts)
    indices, peaks = stock.ordered_indices(), []
    for dataset in (stock, SyntaxDataset(stock, range(count))):
        tracemalloc.start()
        dataset.batch_by_size(indices, 4096)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + count  # a byte for each sentence


def test_an_empty_batch_stays_empty():
    dataset = SyntaxDataset(pair_dataset([]), [])
    assert dataset.collater([]) == {}


def test_sources_that_fairseq_truncates_have_truncated_parses():
    parse = {"words": words_of_subwords([2, 2]), "heads": np.array([1, 1])}
    short = {"words": parse["words"][:3], "heads": parse["heads"]}
    dataset = SyntaxDataset(pair_dataset([short]), [parse], max_subwords=3)
    batch = dataset.collater([dataset[0]])
    assert batch["net_input"]["src_words"].tolist() == [[0, 0, 1, -1]]


def test_more_or_fewer_parses_than_sentences_are_an_error():
    parse = {"words": words_of_subwords([2]), "heads": np.array([0])}
    with pytest.raises(ValueError, match="2 sentence pairs, but 1 parses"):
        SyntaxDataset(pair_dataset([parse, parse]), [parse])


def test_a_preprocessed_split_batches_after_its_way_to_a_worker_process(data_directory):
    dictionary = Dictionary.load(str(data_directory / "dict.de.txt"))
    text = data_utils.load_indexed_dataset(
        str(data_directory / "test.de-en.de"), dictionary, "mmap"
    )
    pairs = LanguagePairDataset(text, text.sizes, dictionary, left_pad_source=False)
    store = ParseStore(data_directory, "test.de-en", "de", {"words", "heads"})
    dataset = pickle.loads(pickle.dumps(SyntaxDataset(pairs, store)))  # as a spawned worker gets it
    loader = torch.utils.data.DataLoader(dataset, batch_size=20, collate_fn=dataset.collater)
    count = 0
    for batch in loader:
        words = batch["net_input"]["src_words"]
        for row, index in zip(words, batch["id"].tolist(), strict=True):
            assert row[row >= 0].tolist() == store[index]["words"].tolist()
            count += 1
    assert count == 100


def pairs_of_lengths(lengths, shuffle=False):
    """Pairs whose sides have these lengths, with their end."""
    sides = [[torch.full((size,), EOS) for size in side] for side in zip(*lengths, strict=True)]
    source, target = ((side, np.array([*map(len, side)]), DICTIONARY) for side in sides)
    return LanguagePairDataset(*source, *target, left_pad_source=False, shuffle=shuffle)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=40))
def test_pairs_are_in_the_order_of_their_longer_side(lengths):
    for shuffle in (False, True):
        order = LongestSideOrder(pairs_of_lengths(lengths, shuffle)).ordered_indices().tolist()
        assert sorted(order) == [*range(len(lengths))]
        keys = [(max(lengths[index]), lengths[index][1], lengths[index][0]) for index in order]
        assert keys == sorted(keys)


def test_pairs_of_the_same_lengths_are_in_another_order_in_each_epoch():
    dataset = LongestSideOrder(pairs_of_lengths([(3, 5)] * 30, shuffle=True))
    orders = []
    for seed in (1, 1, 2):
        with data_utils.numpy_seed(seed):
            orders.append(dataset.ordered_indices().tolist())
    assert orders[0] == orders[1] != orders[2]


def test_the_order_of_the_longer_side_makes_fewer_batches():
    rng = np.random.default_rng(1)
    source = np.exp(rng.normal(2.75, 0.4, 3000)).round().clip(4, 60).astype(int)
    target = (source + rng.normal(0, 4, 3000).round().astype(int)).clip(4, 60)
    pairs = pairs_of_lengths([*zip(source.tolist(), target.tolist(), strict=True)])
    batches = {
        order: batches_of(dataset, 1000, None, 8)
        for order, dataset in (("fairseq", pairs), ("longest", LongestSideOrder(pairs)))
    }
    assert len(batches["longest"]) < 0.93 * len(batches["fairseq"])
    for indices in batches.values():
        assert sorted(index for batch in indices for index in batch) == [*range(3000)]
    size = np.maximum(source, target)
    for batch in batches["longest"]:
        assert len(batch) * size[batch].max() <= 1000
