"""Labels keep their numbers: from data directory to data directory, and from training to use."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from fairseq.data import Dictionary

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.store.dictionaries import labels_fingerprint, read_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from tests.support import attaching
from tests.support.commands import SIZES, train

LABELS = tuple(f"dict.{name}.txt" for name in ("deprel", "tag", "constituent"))
PARSER = ("--parser", "conllu", "--constituents", "from-dependencies")


def text_of(data: Path) -> list[str]:
    """Options that reuse a data directory's subwords and its dictionaries of them."""
    return [
        "--sentencepiece-model", f"{data}/spm.model", "--srcdict", f"{data}/dict.de.txt",
        "--tgtdict", f"{data}/dict.en.txt",
    ]  # fmt: skip


def preprocess(destination: Path, *options: object, parser=PARSER, **splits: Path) -> Path:
    prefixes = [f"--{name}pref={path}" for name, path in splits.items()]
    arguments = ["-s", "de", "-t", "en", *prefixes, "--destdir", destination, *parser, *options]
    preprocess_command.main(list(map(str, arguments)))
    return destination


def dictionaries(data: Path) -> dict[str, bytes]:
    return {name: (data / name).read_bytes() for name in LABELS}


@pytest.fixture(scope="module")
def renumbered(synthetic_corpus, data_directory, tmp_path_factory) -> Path:
    """The test set alone, its labels numbered anew: the same labels in another order."""
    elsewhere = tmp_path_factory.mktemp("copied")
    for name in ("spm.model", "dict.de.txt", "dict.en.txt"):
        shutil.copyfile(data_directory / name, elsewhere / name)
    data = preprocess(elsewhere / "data", *text_of(elsewhere), test=synthetic_corpus / "test")
    reverse(data, "dict.constituent.txt")
    return data


def reverse(data: Path, name: str) -> None:
    """Number constituents' labels in the other order, in the manifest too."""
    lines = (data / name).read_text().splitlines(keepends=True)
    (data / name).write_text("".join(reversed(lines)))
    manifest = Manifest.load(data, "de")
    manifest.labels["spans"] = labels_fingerprint(read_labels(data / name))
    manifest.save(data)


@pytest.fixture(scope="module")
def new_test_set(synthetic_corpus, data_directory, tmp_path_factory) -> Path:
    """The test set alone, with the dictionaries of the data that it belongs to."""
    data = tmp_path_factory.mktemp("alone") / "data"
    return preprocess(data, *text_of(data_directory), test=synthetic_corpus / "test")


# Preprocessing


def test_label_dictionaries_beside_the_source_dictionary_are_reused(data_directory, new_test_set):
    assert dictionaries(new_test_set) == dictionaries(data_directory)
    assert Manifest.load(new_test_set, "de").labels == Manifest.load(data_directory, "de").labels
    fields = {"deprels", "tags", "spans"}
    both_splits, alone = (
        ParseStore(data, "test.de-en", "de", fields) for data in (data_directory, new_test_set)
    )
    for index in range(len(both_splits)):
        for name, values in both_splits[index].items():
            assert np.array_equal(alone[index][name], values)


def test_a_folder_of_label_dictionaries_can_be_named(synthetic_corpus, data_directory, tmp_path):
    splits = {"train": synthetic_corpus / "valid"}
    new = preprocess(tmp_path / "new", "--vocab-size", "300", **splits)
    assert dictionaries(new) != dictionaries(data_directory)
    again = preprocess(
        tmp_path / "same", "--vocab-size", "300", "--labeldict", data_directory, **splits
    )
    assert dictionaries(again) == dictionaries(data_directory)


def test_labels_that_the_dictionaries_lack_are_unknown_and_named(
    synthetic_corpus, data_directory, tmp_path, caplog
):
    labels = tmp_path / "labels"
    labels.mkdir()
    for name in LABELS:
        lines = (data_directory / name).read_text().splitlines(keepends=True)
        (labels / name).write_text("".join(lines[:2]))
    entries = {line.split()[0] for line in (labels / "dict.deprel.txt").read_text().splitlines()}
    new = preprocess(
        tmp_path / "new", *text_of(data_directory), "--labeldict", labels,
        test=synthetic_corpus / "test",
    )  # fmt: skip
    assert dictionaries(new) == dictionaries(labels)
    assert re.search(r"dict.constituent.txt and become <unk>: ", caplog.text)
    full = Dictionary.load(str(data_directory / "dict.deprel.txt"))
    small = Dictionary.load(str(labels / "dict.deprel.txt"))
    store = ParseStore(data_directory, "test.de-en", "de", {"deprels"})
    renumbered = ParseStore(new, "test.de-en", "de", {"deprels"})
    outcomes = set()
    for index in range(len(store)):
        for before, after in zip(
            store[index]["deprels"], renumbered[index]["deprels"], strict=True
        ):
            expected = small.index(full[before])
            assert after == expected
            assert (after == small.unk()) == (full[before] not in entries)
            outcomes.add(after == small.unk())
    assert outcomes == {True, False}


def test_a_named_folder_without_a_label_dictionary_is_refused(
    synthetic_corpus, data_directory, tmp_path, capsys
):
    labels = tmp_path / "labels"
    labels.mkdir()
    shutil.copyfile(data_directory / "dict.deprel.txt", labels / "dict.deprel.txt")
    options = [*text_of(data_directory), "--labeldict", labels]
    with pytest.raises(SystemExit) as stopped:
        preprocess(tmp_path / "new", *options, test=synthetic_corpus / "test")
    assert stopped.value.code == 2
    assert f"{labels / 'dict.tag.txt'} is not there" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_test_set_by_another_parser_is_warned_about_and_refused_on_request(
    synthetic_corpus, data_directory, trained_pipeline, tmp_path, caplog, capsys
):
    parser = ("--parser", f"spacy:{trained_pipeline}", "--constituents", "from-dependencies")
    splits = {"test": synthetic_corpus / "test"}
    preprocess(tmp_path / "new", *text_of(data_directory), parser=parser, **splits)
    warned = "and this run differ in parser CoNLL-U and "
    assert warned in caplog.text
    with pytest.raises(SystemExit):
        preprocess(tmp_path / "no", *text_of(data_directory), "--strict", parser=parser, **splits)
    assert "parse with the training's parser" in capsys.readouterr().err


# The manifest


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", LABELS)
def test_a_label_dictionary_that_was_changed_in_place_is_refused(data_directory, tmp_path, name):
    data = Path(shutil.copytree(data_directory, tmp_path / "data"))
    lines = (data / name).read_text().splitlines(keepends=True)
    (data / name).write_text("".join(reversed(lines)))
    message = rf"{re.escape(name)} is not the dictionary that numbered the .* run fairseq-phrase"
    with pytest.raises(UserError, match=message):
        ParseStore(data, "test.de-en", "de", {"words"})
    (data / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        ParseStore(data, "test.de-en", "de", {"words"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nsubj 3\nobj\n", "line 2: expected 'LABEL COUNT', found 'obj'"),
        ("nsubj 3\nnsubj 1\n", "has a label twice"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_malformed_label_dictionary_is_named(tmp_path, content, message):
    path = tmp_path / "dict.deprel.txt"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=f"dict.deprel.txt.*{message}"):
        read_labels(path)


# Attaching


GOLD = attaching.GOLD


def test_labels_of_another_language_leave_those_of_the_first_as_they_are(
    attached_data, bpe_corpus, tmp_path
):
    data = Path(shutil.copytree(attached_data, tmp_path / "data"))
    tags = data / "dict.tag.txt"
    before = Manifest.load(data, "de").labels["tags"]
    attaching.attach(data, bpe_corpus, "--lang", "en", "--parser", "ptb")
    assert len(read_labels(tags)) > len(read_labels(attached_data / "dict.tag.txt"))
    assert Manifest.load(data, "de").labels["tags"] == before
    assert Manifest.load(data, "en").labels["tags"] != before
    # A later split of the first language goes by its own labels alone.
    attaching.attach(data, bpe_corpus, *GOLD, splits=("test",))
    assert Manifest.load(data, "de").labels["tags"] == before
    assert len(ParseStore(data, "test.de-en", "de", {"tags"})) == attaching.SPLITS["test"]
    assert len(ParseStore(data, "test.de-en", "en", {"tags"})) == attaching.SPLITS["test"]
    # So does a test set elsewhere.
    other_data = Path(
        shutil.copytree(stock_of(attached_data, tmp_path / "stock"), tmp_path / "other")
    )
    attaching.attach(other_data, bpe_corpus, *GOLD, "--labeldict", data, splits=("test",))
    assert Manifest.load(other_data, "de").labels["tags"] == before


def stock_of(attached: Path, stock: Path) -> Path:
    """Copy an attached directory without its parses."""
    stock.mkdir()
    for path in attached.iterdir():
        if path.name.count(".") < 4 and path.name not in (*LABELS, "syntax.de.json"):
            shutil.copyfile(path, stock / path.name)
    return stock


def test_parses_are_attached_with_given_labels_unless_others_are_in_use(
    stock_bpe_data, attached_data, bpe_corpus, tmp_path, capsys
):
    labels = Path(shutil.copytree(attached_data, tmp_path / "labels"))
    Manifest.path(labels, "de").unlink()
    for name in LABELS:
        lines = (labels / name).read_text().splitlines(keepends=True)
        (labels / name).write_text("".join(reversed(lines)))
    data = Path(shutil.copytree(stock_bpe_data, tmp_path / "data"))
    attaching.attach(data, bpe_corpus, *GOLD, "--labeldict", labels, splits=("train",))
    assert dictionaries(data) == dictionaries(labels)
    attaching.attach(data, bpe_corpus, *GOLD, splits=("valid",))
    assert dictionaries(data) == dictionaries(labels)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        attaching.attach(data, bpe_corpus, *GOLD, "--labeldict", attached_data, splits=("test",))
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert f"{attached_data / 'dict.deprel.txt'} numbers labels differently from {data}" in error
    assert "train.de-en, valid.de-en use: remove --labeldict, or" in error


def test_a_split_by_another_version_of_the_parser_says_so_or_is_refused(
    attached_data, bpe_corpus, tmp_path, caplog, capsys
):
    data = Path(shutil.copytree(attached_data, tmp_path / "data"))
    manifest = Manifest.load(data, "de")
    manifest.parser_version = "CoNLL-U 0"
    manifest.save(data)
    with pytest.raises(SystemExit):
        attaching.attach(data, bpe_corpus, *GOLD, "--strict", splits=("test",))
    message = "and this run differ in parser CoNLL-U 0 and CoNLL-U"
    assert message in capsys.readouterr().err
    attaching.attach(data, bpe_corpus, *GOLD, splits=("test",))
    assert message in caplog.text
    manifest = Manifest.load(data, "de")
    assert manifest.parser_version == "CoNLL-U 0"
    versions = {name: record.parser_version for name, record in manifest.splits.items()}
    assert versions == {"train.de-en": "", "valid.de-en": "", "test.de-en": "CoNLL-U"}


# Several directories, and models


TREE = ("--arch", "tree_transformer_tiny", *SIZES, "--max-tokens", "2000")


def test_training_on_directories_with_different_labels_is_refused_before_the_first_epoch(
    data_directory, renumbered, tmp_path
):
    printed = train(
        f"{data_directory}:{renumbered}", tmp_path, *TREE, "--max-update", "3", expect=1
    )
    assert f"{renumbered} and {data_directory} differ in spans-labels" in printed
    assert "num_updates" not in printed
