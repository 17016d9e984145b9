"""``--subword-sampling``: training sentences segmented anew, their parses with them; and R-Drop."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq_cli import train as train_command

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.batches.syntax_dataset import SyntaxDataset
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import translation_encoders
from tests.support.commands import SIZES, TRAINING
from tests.support.data_tasks import make_task

USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
FLAGS = {
    name: method.flags(next(iter(method.variants)))
    for name, method in translation_encoders().items()
}
FLAGS["transformer"] = ["--arch", "transformer"]
ALL = {"heads", "deprels", "tags", "spans"}


def load(directory, alpha=0.3, fields=ALL, **options):
    task = make_task(
        directory, source_lang="de", target_lang="en", subword_sampling=alpha, **options
    )
    if fields:
        task.require_parses(sorted(fields))
    task.load_dataset("train")
    return task, task.dataset("train")


def text_of(tokens, dictionary, joins):
    subwords = [dictionary[index] for index in tokens.tolist() if index != dictionary.eos()]
    return " ".join(subwords).replace("@@ ", "") if joins else "".join(subwords)


@pytest.fixture(scope="module")
def joined_data(synthetic_corpus, tmp_path_factory):
    """The synthetic corpus, split by subword-nmt."""
    from subword_nmt.learn_bpe import learn_bpe

    folder = tmp_path_factory.mktemp("joined")
    texts = [synthetic_corpus / f"valid.{language}" for language in ("de", "en")]
    lines = [line for text in texts for line in text.read_text(encoding="utf-8").splitlines()]
    with open(folder / "codes", "w", encoding="utf-8") as codes:
        learn_bpe(lines, codes, 200)
    splits = [f"--{name}pref={synthetic_corpus / 'valid'}" for name in ("train", "valid")]
    preprocess_command.main(
        ["-s", "de", "-t", "en", *splits, "--destdir", str(folder / "data"), "--parser", "conllu",
         "--constituents", "from-dependencies", "--bpe", "subword_nmt", "--bpe-codes",
         str(folder / "codes"), "--joined-dictionary"]
    )  # fmt: skip
    return folder / "data"


@pytest.fixture(params=["sentencepiece", "subword_nmt"])
def data(request, data_directory):
    joined = request.param == "subword_nmt"
    return (request.getfixturevalue("joined_data") if joined else data_directory), joined


def test_words_are_segmented_anew_in_each_epoch_and_say_the_same(data):
    directory, joined = data
    task, dataset = load(directory)
    plain = dataset.dataset
    stored = ParseStore(directory, "train.de-en", "de", {"words", *ALL})
    changed = longer = 0
    for index in range(80):
        dataset.set_epoch(1)
        first, unsampled = dataset[index], plain[index]
        again = dataset[index]
        dataset.set_epoch(2)
        second = dataset[index]
        for side, dictionary in (
            ("source", task.source_dictionary), ("target", task.target_dictionary)
        ):  # fmt: skip
            expected = text_of(unsampled[side], dictionary, joined)
            for sample in (first, second):
                assert text_of(sample[side], dictionary, joined) == expected
                assert sample[side][-1] == dictionary.eos()
                assert dictionary.unk() not in sample[side] or dictionary.unk() in unsampled[side]
            assert torch.equal(first[side], again[side])
        changed += not torch.equal(first["source"], second["source"])
        longer += len(first["target"]) > len(unsampled["target"])
        parse, before = first["parse"], stored[index]
        for field in ("heads", "deprels", "tags"):
            assert np.array_equal(parse[field], before[field])
        check_words(
            parse, before, first["source"], unsampled["source"], task.source_dictionary, joined
        )
        check_constituents(parse, before, task)
    assert changed > 40
    assert longer > 20


def check_words(parse, before, tokens, own, dictionary, joined):
    """Each word has the subwords that spell it."""

    def texts(tokens, words):
        return [
            text_of(tokens[:-1][torch.from_numpy(words == word)], dictionary, joined)
            for word in range(words[-1] + 1)
        ]

    assert len(parse["words"]) == len(tokens) - 1
    assert texts(tokens, parse["words"]) == texts(own, before["words"])


def check_constituents(parse, before, task):
    """A word has a constituent of its own, labelled with its tag, if it has several subwords."""
    labels, tags = (task.label_dictionary(name) for name in ("spans", "tags"))

    def larger(parse):
        rows = parse["spans"]
        return rows[rows[:, 1] - rows[:, 0] > 1].tolist()

    assert larger(parse) == larger(before)  # the parser makes none over single words
    single = {row[0]: row[2] for row in parse["spans"].tolist() if row[1] - row[0] == 1}
    sizes = np.bincount(parse["words"])
    assert sorted(single) == np.flatnonzero(sizes > 1).tolist()
    for word, label in single.items():
        assert label == labels.index(tags[parse["tags"][word]])


def test_small_alphas_split_more_than_large_ones_by_sentencepiece(data_directory):
    lengths = {
        alpha: sum(len(dataset[index]["source"]) for index in range(60))
        for alpha in (0.05, 0.3, 1.0)
        for dataset in [load(data_directory, alpha, set())[1]]
    }
    assert lengths[0.05] > lengths[0.3] > lengths[1.0]


def test_the_seed_of_the_training_changes_the_segmentation(data_directory):
    task, dataset = load(data_directory)
    segmentations = {}
    for seed in (1, 2, 1):
        task.get_batch_iterator(dataset, max_tokens=500, seed=seed, grouped_shuffling=False)
        indices = [dataset[index]["source"].tolist() for index in range(20)]
        assert segmentations.setdefault(seed, indices) == indices
    assert segmentations[1] != segmentations[2]


def test_workers_segment_as_the_training_itself_does(data_directory):
    def epochs(workers):
        task, dataset = load(data_directory)
        iterator = task.get_batch_iterator(
            dataset, max_tokens=4000, seed=1, grouped_shuffling=False, num_workers=workers
        )
        return [
            [batch["net_input"]["src_tokens"].tolist() for batch in iterator.next_epoch_itr()]
            for _ in range(2)
        ]

    alone = epochs(0)
    assert alone[0] != alone[1]
    assert epochs(2) == alone


def test_an_epoch_that_is_resumed_is_segmented_as_before(data_directory):
    def iterator(epoch):
        task, dataset = load(data_directory)
        return task.get_batch_iterator(
            dataset, max_tokens=4000, seed=1, grouped_shuffling=False, num_workers=1, epoch=epoch
        )

    def sources_of(batches):
        return {
            number: [token for token in row if token != 1]
            for batch in batches
            for number, row in zip(
                batch["id"].tolist(), batch["net_input"]["src_tokens"].tolist(), strict=True
            )
        }

    uninterrupted = iterator(1)
    first, second = (sources_of(uninterrupted.next_epoch_itr()) for _ in range(2))
    resumed = iterator(2)
    resumed.load_state_dict({"version": 2, "epoch": 2, "iterations_in_epoch": 3, "shuffle": True})
    resumed_sources = sources_of(resumed.next_epoch_itr())
    assert 0 < len(resumed_sources) < len(second)
    assert resumed_sources == {number: second[number] for number in resumed_sources}
    assert resumed_sources != {number: first[number] for number in resumed_sources}


def test_a_model_that_reads_no_parse_gets_none(data_directory):
    task, dataset = load(data_directory, fields=set())
    batch = dataset.collater([dataset[index] for index in range(4)])
    assert set(batch["net_input"]) == {"src_tokens", "src_lengths", "prev_output_tokens"}
    task.load_dataset("valid")
    assert not isinstance(task.dataset("valid"), SyntaxDataset)


def test_validation_text_keeps_its_segmentation(data_directory):
    task, _ = load(data_directory)
    task.load_dataset("valid")
    valid = task.dataset("valid")
    for index in range(10):
        assert torch.equal(valid[index]["source"], valid.dataset[index]["source"])


@pytest.mark.parametrize("truncate", [False, True])
def test_sentences_that_would_become_too_long_keep_their_segmentation(data_directory, truncate):
    limits = {"max_source_positions": 24, "max_target_positions": 20, "truncate_source": truncate}
    _, dataset = load(data_directory, 0.3, **limits)
    longer = 0
    for index in range(60):
        sample, unsampled = dataset[index], dataset.dataset[index]
        for side, limit in (("source", 24), ("target", 20)):
            assert len(sample[side]) <= max(limit, len(unsampled[side]))
            longer += len(sample[side]) > len(unsampled[side])
        assert len(sample["parse"]["words"]) == len(sample["source"]) - 1
    assert longer


def changed_manifest(data_directory, folder, **changes):
    shutil.copytree(data_directory, folder)
    path = folder / "syntax.de.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bpe_model": ""}, "names no subword model: make the data with fairseq-phrase-preprocess"),
        (
            {"whole_lines": True},
            "split into subwords before it was parsed.*the text of single words",
        ),
        ({"made_by": "fairseq-phrase-attach"}, "split into subwords before it was parsed"),
        ({"bpe_model": "none.model"}, "none.model is not there"),
    ],
)
def test_data_that_do_not_tell_how_to_segment_are_refused(
    data_directory, tmp_path, changes, message
):
    directory = changed_manifest(data_directory, tmp_path / "data", **changes)
    with pytest.raises(UserError, match=message):
        load(directory)


def train(command, data, save, name, updates, *arguments):
    return command(
        train_command, data, *USER, *TRAINING, *SIZES, *FLAGS[name], "--save-dir", save,
        "--max-update", updates, "--max-tokens", "400", "--disable-validation", *arguments,
    )  # fmt: skip


SAMPLING = ("--subword-sampling", "0.2")
#: The criterion comes last and wins over that of TRAINING.
RDROP = ("--criterion", "label_smoothed_cross_entropy_with_rdrop", "--rdrop-alpha", "1")


def of_different_fields() -> list[str]:
    """A model of each set of parse fields that a batch may have."""
    encoders = {(): "transformer"}
    for name, method in translation_encoders().items():
        cfg = nested_config(MODEL_DATACLASS_REGISTRY[name](**next(iter(method.variants.values()))))
        encoders.setdefault(tuple(sorted(method.parse_fields(cfg))), name)
    return [*encoders.values()]


@pytest.mark.parametrize("name", of_different_fields())
def test_every_kind_of_batch_trains_with_sampling_and_rdrop(
    data_directory, tmp_path, command, name
):
    log = train(command, data_directory, tmp_path, name, 2, *SAMPLING, *RDROP)
    losses = [float(loss) for loss in re.findall(r"rdrop_kl_loss=([\d.]+)", log)]
    assert losses
    assert all(0 < loss < 10 for loss in losses)
    assert "Stopping training due to num_updates: 2" in log


def test_rdrop_goes_with_the_parse_loss(data_directory, tmp_path, command):
    train(
        command, data_directory, tmp_path, "relation_transformer", 2, *SAMPLING, *RDROP,
        "--parse-loss", "0.5",
    )  # fmt: skip
