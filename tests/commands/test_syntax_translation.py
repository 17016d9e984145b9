"""The task in a process of its own making: which parses its batches carry, and when it refuses."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import torch

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from tests.support.data_tasks import batches, make_task


def preprocess(data_directory, destination, train, *options):
    """Make data with the subword model of a data directory."""
    model = ["--sentencepiece-model", data_directory / "spm.model"]
    words = [
        "-s", "de", "-t", "en", "--destdir", destination, "--trainpref", train, *model, *options,
    ]  # fmt: skip
    preprocess_command.main(list(map(str, words)))


def test_batches_carry_no_parse_until_a_model_asks_for_one(data_directory):
    task = make_task(data_directory)
    task.load_dataset("valid")
    assert set(batches(task, "valid")[0]["net_input"]) == {
        "src_tokens", "src_lengths", "prev_output_tokens"
    }  # fmt: skip
    task.require_parses(["words", "heads"])
    task.load_dataset("valid")
    net_input = batches(task, "valid")[0]["net_input"]
    assert {"src_words", "src_heads"} <= set(net_input)
    assert net_input["src_words"].shape == net_input["src_tokens"].shape


def test_sources_are_padded_on_the_right(data_directory):
    task = make_task(data_directory)
    task.load_dataset("valid")
    padding = task.source_dictionary.pad()
    assert all(
        (batch["net_input"]["src_tokens"][:, 0] != padding).all()
        for batch in batches(task, "valid")
    )


def test_no_sentence_is_lost_outside_training_whatever_the_batch_multiple(data_directory):
    task = make_task(data_directory)
    task.load_dataset("test")
    batches_of_test = batches(task, "test", required_batch_size_multiple=8)
    assert sorted(i for batch in batches_of_test for i in batch["id"].tolist()) == list(range(100))


def test_generation_loses_no_sentence_of_the_training_set(data_directory, two_parts):
    task = make_task(two_parts)
    task.load_dataset("train")
    training = {"required_batch_size_multiple": 8, "grouped_shuffling": False}
    trained_on = batches(task, "train", **training)
    assert sum(len(batch["id"]) for batch in trained_on) < 100  # as fairseq's own task does
    batches_of_train = batches(task, "train", required_batch_size_multiple=8)
    assert sorted(i for batch in batches_of_train for i in batch["id"].tolist()) == list(range(100))
    again = batches(task, "train", **training)
    assert [batch["id"].tolist() for batch in again] == [
        batch["id"].tolist() for batch in trained_on
    ]


@pytest.fixture(scope="module")
def two_parts(synthetic_corpus, data_directory, tmp_path_factory):
    """A data directory whose training text comes in two parts, ``train`` and ``train1``."""
    data = tmp_path_factory.mktemp("parts") / "data"
    texts = f"{synthetic_corpus / 'valid'},{synthetic_corpus / 'test'}"
    preprocess(data_directory, data, texts, "--parser", "conllu", "--joined-dictionary")
    return data


@pytest.mark.parametrize("upsample", [1, 3])
def test_combined_training_sets_keep_their_parses_however_often_sampled(two_parts, upsample):
    task = make_task(two_parts, upsample_primary=upsample)
    task.require_parses(["words", "heads"])
    task.load_dataset("train", combine=True)
    dataset = task.dataset("train")
    assert len(dataset) == 100 * upsample + 100
    for index in (0, 99, 100 * upsample - 1, 100 * upsample, 100 * upsample + 99):
        sample = dataset[index]
        assert len(sample["parse"]["words"]) == len(sample["source"]) - 1
    assert sum(len(batch["id"]) for batch in batches(task, "train")) == len(dataset)


def test_truncated_sources_have_truncated_parses(data_directory, caplog):
    task = make_task(data_directory, truncate_source=True, max_source_positions=8)
    task.require_parses(["words", "heads", "spans"])
    task.load_dataset("valid")
    store = ParseStore(data_directory, "valid.de-en", "de", {"words", "spans"})
    parses = [store[index] for index in range(len(store)) if len(store[index]["words"]) > 7]
    counts = [int(parse["words"][6]) + 1 for parse in parses]
    lost = sum(int((p["spans"][:, 0] >= w).sum()) for p, w in zip(parses, counts, strict=True))
    (message,) = [record.getMessage() for record in caplog.records if "truncate" in record.msg]
    assert message == (
        f"valid: --truncate-source truncates {len(parses)} sources to 7 subwords; lost: {lost} "
        "constituents (spans)"
    )
    for batch in batches(task, "valid"):
        words, heads = batch["net_input"]["src_words"], batch["net_input"]["src_heads"]
        assert batch["net_input"]["src_tokens"].shape[1] <= 8
        for row, row_heads in zip(words, heads, strict=True):
            count = int(row.max()) + 1
            assert (row_heads[:count] >= 0).all()
            assert (row_heads[:count] < count).all()


def test_raw_lines_come_back_with_their_parses_in_any_order(
    data_directory, spacy_pipeline, synthetic_corpus
):
    task = make_task(data_directory, source_parser=f"spacy:{spacy_pipeline}")
    task.require_parses(["words", "heads"])
    lines = (synthetic_corpus / "valid.de").read_text().splitlines()[:20]
    encoded = task.source_text.encode(lines)
    texts = dict(zip(lines, (" ".join(sentence.subwords) for sentence in encoded), strict=True))
    tokens, lengths = task.get_interactive_tokens_and_lengths(list(lines), texts.get)
    dataset = task.build_dataset_for_inference(tokens, lengths)
    batch = dataset.collater([dataset[index] for index in (7, 3, 11)])
    stripped = {name: batch["net_input"][name] for name in ("src_tokens", "src_lengths")}

    class Generator:
        def generate(self, models, sample, **kwargs):
            return sample["net_input"]

    full = task.inference_step(Generator(), [], {"net_input": stripped})
    for row, index in enumerate(batch["id"].tolist()):
        expected = encoded[index].heads
        assert np.array_equal(full["src_heads"][row, : len(expected)].numpy(), expected)


def test_raw_lines_segmented_otherwise_than_their_parse_are_refused(data_directory, spacy_pipeline):
    task = make_task(data_directory, source_parser=f"spacy:{spacy_pipeline}")
    task.require_parses(["words", "heads"])
    with pytest.raises(UserError, match="--tokenizer syntax --bpe syntax"):
        task.get_interactive_tokens_and_lengths(["Der Hund schläft."], lambda line: line)


def test_raw_text_for_data_from_files_asks_for_a_parser(data_directory):
    task = make_task(data_directory)
    with pytest.raises(UserError, match='source_parser="spacy:MODEL"'):
        task.source_text.encode(["Der Hund schläft."])


def test_a_parser_that_is_gone_is_named_with_the_option_that_names_another(
    data_directory, tmp_path
):
    data = tmp_path / "data"
    shutil.copytree(data_directory, data)
    manifest = Manifest.load(data, "de")
    manifest.parser = "spacy:no_such_pipeline"
    manifest.save(data)
    with pytest.raises(UserError, match=r"no_such_pipeline.*source_parser names another"):
        make_task(data).source_text.encode(["Der Hund schläft."])
    with pytest.raises(UserError, match=r"spacy download neither$"):
        make_task(data, source_parser="spacy:neither").source_text.encode(["Der Hund schläft."])


def test_data_without_heads_are_refused_by_a_model_that_needs_them(
    synthetic_corpus, data_directory, tmp_path
):
    preprocess(data_directory, tmp_path / "data", synthetic_corpus / "valid", "--parser", "none")
    task = make_task(tmp_path / "data")
    task.require_parses(["words"])
    with pytest.raises(UserError, match="--parser none and has no heads"):
        task.require_parses(["heads"])


def test_a_missing_manifest_is_named_with_the_command_that_makes_it(data_directory, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(data_directory, data)
    Manifest.path(data, "de").unlink()
    with pytest.raises(UserError, match=re.escape("syntax.de.json is missing")) as caught:
        make_task(data).require_parses(["words"])
    assert "fairseq-phrase-preprocess --source-lang de --parser" in str(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"truncate_source": True, "max_source_positions": 8}, {"upsample_primary": 2}]
)
def test_batches_read_at_once_are_those_of_samples_read_one_by_one(two_parts, options):
    task = make_task(two_parts, **{"upsample_primary": 1, **options})
    task.require_parses(["words", "heads", "deprels"])
    task.load_dataset("train", combine="upsample_primary" in options)
    dataset = task.dataset("train")
    indices = [5, 99, 0, 5, len(dataset) - 1]
    assert dataset.collater(dataset.__getitems__([])) == {}
    together = dataset.collater(dataset.__getitems__(indices))
    alone = dataset.collater([dataset[index] for index in indices])
    assert together["id"].tolist() == alone["id"].tolist()
    assert together["net_input"].keys() == alone["net_input"].keys()
    for name, expected in alone["net_input"].items():
        assert torch.equal(together["net_input"][name], expected)
        assert together["net_input"][name].dtype == expected.dtype
