"""Controls: trees that know no syntax, in batches and for raw lines, in training and translation."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import train as fairseq_train
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.batches.tree_sources import (
    TREE_SOURCES,
    Trees,
    chain,
    fitted,
    random_tree,
)
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask
from tests.support.commands import SIZES, TRAINING

READS_TREES = ("--arch", "structural_transformer_tiny", "--structural-absolute")


def make_task(directory, **options):
    task_options = {"train_subset": "train", **options}
    config = SyntaxTranslationConfig(
        data=str(directory),
        source_lang="de",
        target_lang="en",
        dataset_impl="mmap",
        required_seq_len_multiple=1,
        **task_options,
    )
    task = SyntaxTranslationTask.setup_task(config)
    task.require_parses(["words", "heads"])
    return task


def load(directory, split="train", **options):
    task = make_task(directory, **options)
    task.load_dataset(split)
    return task, task.dataset(split)


@pytest.fixture(scope="module")
def without_heads(synthetic_corpus, tmp_path_factory):
    """Data without any parser."""
    destination = tmp_path_factory.mktemp("plain") / "data"
    arguments = [
        f"--{name}pref={synthetic_corpus / 'valid'}" for name in ("train", "valid", "test")
    ]
    options = ["--parser", "none", "--vocab-size", "200", "--joined-dictionary"]
    preprocess_command.main(
        ["-s", "de", "-t", "en", *arguments, "--destdir", str(destination), *options]
    )
    return destination


@given(st.integers(0, 40), st.integers(0, 2**32))
def test_every_control_is_a_tree_of_one_root(words, seed):
    drawn = random_tree(words, np.random.default_rng(seed))
    for heads in (chain(words), drawn):
        assert len(heads) == words
        DependencyTree(heads)
        assert (heads == np.arange(words)).sum() == min(words, 1)


def test_every_tree_is_drawn_equally_often():
    generator = np.random.default_rng(1)
    counts = Counter(tuple(random_tree(3, generator)) for _ in range(9000))
    # Of 3 words there are 9 trees: 3 without a root, each with 3.
    assert len(counts) == 9
    assert max(abs(count - 1000) for count in counts.values()) < 150


@given(st.integers(1, 12), st.integers(0, 20), st.integers(0, 2**32))
def test_a_tree_is_truncated_or_extended_by_a_chain(length, words, seed):
    heads = random_tree(length, np.random.default_rng(seed))
    tree_heads = fitted(heads, words)
    assert len(tree_heads) == words
    assert (tree_heads == np.arange(words)).sum() == min(words, 1)
    DependencyTree(tree_heads)
    if words >= length:
        assert np.array_equal(tree_heads[:length], heads)
    for word in range(length, words):
        assert tree_heads[word] == (word + 1 if word + 1 < words else DependencyTree(heads).root)
    for word in range(min(words, length)):
        if heads[word] < words and words:
            assert tree_heads[word] == heads[word]


@pytest.mark.parametrize("source", TREE_SOURCES)
def test_batches_carry_the_trees_of_the_source(data_directory, source):
    _, dataset = load(data_directory, tree_source=source)
    parses = ParseStore(data_directory, "train.de-en", "de", {"words", "heads"})
    unchanged = different = 0
    for index in range(200):
        parse, stored = dataset[index]["parse"], parses[index]
        assert np.array_equal(parse["words"], stored["words"])
        assert len(parse["heads"]) == len(stored["heads"])
        DependencyTree(parse["heads"])
        is_same = np.array_equal(parse["heads"], stored["heads"])
        unchanged, different = unchanged + is_same, different + (not is_same)
        if source == "linear":
            assert np.array_equal(parse["heads"], chain(len(stored["heads"])))
    assert unchanged == 200 if source == "parse" else different > 150
    batch = dataset.collater([dataset[index] for index in (3, 1, 2)])["net_input"]
    together = dataset.collater(dataset.__getitems__([3, 1, 2]))["net_input"]
    assert torch.equal(batch["src_heads"], together["src_heads"])


@pytest.mark.parametrize("source", ["random", "shuffled"])
def test_what_is_drawn_is_the_same_again_and_another_by_the_seed(data_directory, source):
    def heads(**options):
        dataset = load(data_directory, tree_source=source, **options)[1]
        return [tuple(dataset[index]["parse"]["heads"]) for index in range(60)]

    assert heads() == heads() == heads(tree_seed=1)
    assert heads() != heads(tree_seed=2)


def test_a_shuffled_tree_is_the_parse_of_another_sentence(data_directory):
    parses = ParseStore(data_directory, "train.de-en", "de", {"words", "heads"})
    source = Trees("shuffled", 1, make_task(data_directory).source_dictionary, lambda: parses)
    for index in range(200):
        words = len(parses[index]["heads"])
        for drawn in range(3):
            sentence = source.other_sentence(words, drawn, index)
            assert sentence != index
            assert abs(len(parses[sentence]["heads"]) - words) <= max(4, words // 4)


def test_the_sentences_whose_parses_are_shuffled_are_recorded(data_directory):
    entries = [
        make_task(data_directory, tree_source="shuffled", **options).own_entries()["tree-pool"]
        for options in ({}, {"tree_seed": 2}, {"train_subset": "valid"})
    ]
    assert entries[0] == entries[1] != entries[2]
    assert entries[2].label.startswith("valid.de-en (")
    assert "tree-pool" not in make_task(data_directory, tree_source="random").own_entries()


@pytest.mark.parametrize("source", TREE_SOURCES[1:])
def test_raw_lines_get_the_trees_of_the_data(data_directory, source):
    task, dataset = load(data_directory, "valid", tree_source=source)
    for place in range(5):
        expected = dataset[place]["parse"]
        tokens = dataset[place]["source"][:-1].tolist()
        subwords = [task.source_dictionary[token] for token in tokens]
        # A parser of words alone is enough.
        sentence = EncodedSentence(subwords, expected["words"], None, [], [], None, [])
        net_input = task.source_text.batch([sentence])["net_input"]
        assert np.array_equal(net_input["src_heads"][0], expected["heads"])


def test_the_same_words_segmented_otherwise_have_the_same_tree(data_directory):
    dictionary = make_task(data_directory).source_dictionary
    letters = [symbol for symbol in dictionary.symbols[4:] if len(symbol) == 1 and symbol != "▁"]
    long_word = next(
        symbol
        for symbol in dictionary.symbols[4:]
        if len(symbol) > 1 and all(letter in letters for letter in symbol)
    )
    source = Trees("random", 1, dictionary)
    once, letters = (
        [dictionary.index(long_word)],
        [dictionary.index(letter) for letter in long_word],
    )
    assert source.draw(once) == source.draw([*letters, dictionary.eos()])


@pytest.mark.parametrize("source", ["linear", "random"])
def test_a_control_that_reads_no_parse_needs_no_parser(without_heads, source):
    _, dataset = load(without_heads, tree_source=source)
    sample = dataset[0]
    assert len(sample["parse"]["heads"]) == sample["parse"]["words"][-1] + 1


@pytest.mark.parametrize("source", [None, "parse", "shuffled"])
def test_a_source_that_needs_heads_names_what_is_missing(without_heads, source):
    with pytest.raises(UserError, match=r"has no heads for 'de'.* a dependency parser"):
        make_task(without_heads, tree_source=source)


@pytest.mark.parametrize(
    ("field", "named"), [("spans", "constituency trees"), ("deprels", "relat")]
)
def test_what_would_still_tell_of_the_parse_is_refused(data_directory, field, named):
    task = make_task(data_directory, tree_source="linear")
    with pytest.raises(UserError, match=f"--tree-source linear makes .* also reads .*{named}"):
        task.require_parses(["words", "heads", field])


def test_constituents_alone_are_refused_under_a_control(data_directory):
    task = make_task(data_directory, tree_source="random")
    with pytest.raises(UserError, match="--tree-source random makes only dependency heads"):
        task.require_parses(["words", "spans"])


def test_an_unknown_source_is_refused(data_directory):
    with pytest.raises(UserError, match="--tree-source flat: expected one of parse, linear"):
        make_task(data_directory, tree_source="flat")


def setting_of(task):
    """The source of a task's trees and their seed, as its record has them."""
    entries = task.own_entries()
    return {name: entries[name].value for name in ("tree-source", "tree-seed") if name in entries}


def test_a_checkpoint_remembers_its_trees(data_directory, command, tmp_path):
    arguments = (data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation")
    command(
        fairseq_train, *arguments, *TRAINING, *SIZES, *READS_TREES, "--save-dir", tmp_path,
        "--max-tokens", "200", "--max-update", "2", "--disable-validation",
        "--tree-source", "random", "--tree-seed", "5",
    )  # fmt: skip
    path = str(tmp_path / "checkpoint_last.pt")

    def trees(**options):
        task = make_task(data_directory, **options)
        checkpoint_utils.load_model_ensemble([path], task=task)
        return setting_of(task)

    drawn = {"tree-source": "random", "tree-seed": "5"}
    assert trees() == drawn
    assert trees(tree_source="parse") == {"tree-source": "parse"}
    assert trees(tree_seed=6) == {**drawn, "tree-seed": "6"}
    _, _, task = checkpoint_utils.load_model_ensemble_and_task([path])
    assert setting_of(task) == drawn
    flags = ("--path", path, "--gen-subset", "test", "--beam", "1", "--max-len-b", "5")
    output = command(fairseq_generate, *arguments, *flags)
    again = command(fairseq_generate, *arguments, *flags, "--tree-source", "random")
    parsed = command(fairseq_generate, *arguments, *flags, "--tree-source", "parse")

    def scores(text):
        return [line for line in text.splitlines() if line.startswith("H-")]

    assert scores(output) == scores(again) != scores(parsed)


def of_trees(source, seed=1):
    trees = Trees(source, seed)
    return Identity(trees.entries())


def test_a_resumed_training_has_the_trees_of_its_checkpoint(data_directory, command, tmp_path):
    arguments = (
        data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation", *TRAINING,
        *SIZES, *READS_TREES, "--save-dir", tmp_path, "--max-tokens", "200", "--max-update",
    )  # fmt: skip
    command(fairseq_train, *arguments, "1", "--tree-source", "random", "--tree-seed", "5")
    printed = command(fairseq_train, *arguments, "3")
    losses = re.findall(r"loss=([\d.]+)|valid_loss ([\d.]+)", printed)
    assert losses
    recorded = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["task_state"][
        "identity"
    ]
    values = {name: recorded["entries"][name]["value"] for name in ("tree-source", "tree-seed")}
    assert values == {"tree-source": "random", "tree-seed": "5"}


def test_an_ensemble_of_models_with_different_trees_is_refused():
    trees = Trees()
    trees.restore(Identity(), in_ensemble=True)  # a model without trees
    for seed in (5, 5):
        trees.restore(of_trees("random", seed), in_ensemble=True)
    assert trees.setting == ("random", 5)
    with pytest.raises(
        UserError, match="different trees: --tree-source random --tree-seed 5, and r"
    ):
        trees.restore(of_trees("random", 6), in_ensemble=True)


def test_a_given_source_is_that_of_all_models():
    trees = Trees("linear")
    for source in ("parse", "random"):
        trees.restore(of_trees(source), in_ensemble=True)
    assert trees.setting == ("linear", 1)


def test_a_damaged_record_of_trees_is_named():
    entry = Entry("flat", "flat", "trees")
    with pytest.raises(UserError, match="tree source flat"):
        Trees().restore(Identity({"tree-source": entry}), in_ensemble=True)
