"""Parses on disk: what goes in comes out, and nothing comes out beside a text it is not of."""

import json
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store import manifest as store_module
from fairseq_phrase.data.store.dictionaries import read_labels
from fairseq_phrase.data.store.layout import rerun
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.encoded_sentences import words_of_subwords
from fairseq_phrase.errors import UserError
from tests.support.hostile import trees
from tests.support.stores import SPLIT, TREE_FIELDS, write_arrays, write_store

RERUN = "fairseq-phrase-preprocess"


@st.composite
def parses(draw):
    """A parse as the store holds it, of up to 25 words."""
    heads = draw(trees())
    counts = draw(st.lists(st.integers(1, 4), min_size=len(heads), max_size=len(heads)))
    labels = st.lists(st.integers(4, 70_000), min_size=len(heads), max_size=len(heads))
    return {
        "words": words_of_subwords(counts),
        "heads": np.array(heads),
        "deprels": np.array(draw(labels)),
        "tags": np.array(draw(labels)),
        "spans": np.array(draw(st.lists(st.tuples(*[st.integers(0, 300)] * 3)))).reshape(-1, 3),
    }


def parse_of(counts):
    """A flat parse of words with so many subwords each."""
    zeros = np.zeros(len(counts), dtype=np.int64)
    return {
        "words": words_of_subwords(counts),
        "heads": zeros,
        "deprels": zeros + 4,
        "tags": zeros + 5,
        "spans": np.array([(0, len(counts), 4)] * bool(counts)).reshape(-1, 3),
    }


@pytest.fixture
def directory(tmp_path):
    write_store(tmp_path, [parse_of([1, 2]), parse_of([3]), parse_of([1, 1, 1])])
    return tmp_path


def load(directory, fields=frozenset(TREE_FIELDS), split=SPLIT):
    return ParseStore(directory, split, "de", set(fields))


@given(sentences=st.lists(parses(), min_size=1, max_size=4))
def test_parses_are_read_back_as_they_were_written(tmp_path_factory, sentences):
    directory = tmp_path_factory.mktemp("store")
    write_store(directory, sentences)
    store = load(directory)
    assert len(store) == len(sentences)
    for index, parse in enumerate(sentences):
        stored = store[index]
        assert {name: values.tolist() for name, values in stored.items()} == {
            name: values.tolist() for name, values in parse.items()
        }


def test_only_the_fields_asked_for_are_read(directory):
    assert list(load(directory, {"heads", "words"})[1]) == ["words", "heads"]


def test_a_sentence_without_words_has_an_empty_parse(tmp_path):
    write_store(tmp_path, [parse_of([]), parse_of([2])])
    store = load(tmp_path)
    assert [len(values) for values in store[0].values()] == [0, 0, 0, 0, 0]
    assert store[1]["words"].tolist() == [0, 0]


def test_a_store_goes_to_another_process_without_its_parses(directory):
    pickled = pickle.dumps(load(directory))
    assert pickle.loads(pickled)[0]["words"].tolist() == [0, 1, 1]


def test_fields_that_the_parser_did_not_make_are_named_with_what_to_run(tmp_path):
    write_store(tmp_path, [parse_of([1])], fields=("words",))
    with pytest.raises(UserError, match="--parser conllu and has no heads") as caught:
        load(tmp_path, {"words", "heads"})
    assert RERUN in str(caught.value)
    assert load(tmp_path, {"words"})[0]["words"].tolist() == [0]


def rebuilt(directory, counts):
    """Binarize other text over the old, as if its parses had been forgotten."""
    write_arrays(directory / f"{SPLIT}.de", [np.full(count + 1, 8) for count in counts])


@pytest.mark.parametrize("counts", [[3, 3, 9], [3, 3], [3, 3, 3, 3]])
def test_text_rebuilt_without_its_parses_is_refused(directory, counts):
    rebuilt(directory, counts)
    with pytest.raises(UserError, match=r"\.de\..* has changed since the parses were") as caught:
        load(directory)
    assert RERUN in str(caught.value)


def test_text_of_the_same_lengths_but_other_tokens_is_refused(directory):
    rebuilt(directory, [3, 3, 3])
    with pytest.raises(UserError, match=rf"{SPLIT}\.de\.bin has changed"):
        load(directory)


def test_another_dictionary_is_refused_and_named(directory):
    (directory / "dict.de.txt").write_text("Katze 3\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dict\.de\.txt is not the dictionary") as caught:
        load(directory)
    assert RERUN in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["dict.de.txt", "syntax.de.json", *(f"{SPLIT}.de.{end}" for end in ("bin", "words.idx"))],
)
def test_a_missing_file_is_named_with_what_to_run(directory, name):
    (directory / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing") as caught:
        load(directory)
    assert RERUN in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [f"{field}.bin" for field in TREE_FIELDS]
    + [f"{field}.idx" for field in ("words", "heads", "spans")],
)
def test_a_truncated_file_is_named_with_what_to_run(directory, name):
    path = directory / f"{SPLIT}.de.{name}"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=path.name) as caught:
        load(directory)
    assert RERUN in str(caught.value)


def test_one_changed_byte_of_a_parse_is_noticed(directory):
    path = directory / f"{SPLIT}.de.heads.bin"
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(UserError, match=r"heads\.bin has changed"):
        load(directory)


def test_a_split_that_was_not_preprocessed_is_named(directory):
    with pytest.raises(UserError, match=r"syntax\.de\.json has no split valid\.de-en") as caught:
        load(directory, split="valid.de-en")
    assert RERUN in str(caught.value)


def test_a_manifest_of_another_format_is_refused(directory):
    content = json.loads((directory / "syntax.de.json").read_text(encoding="utf-8"))
    (directory / "syntax.de.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(UserError, match=r"syntax\.de\.json has format 99") as caught:
        load(directory)
    assert RERUN in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(key=st.sampled_from(["splits", "format", "fields", "extra", None]), value=json_values)
def test_a_manifest_that_makes_no_sense_is_refused_by_name(tmp_path_factory, key, value):
    directory = tmp_path_factory.mktemp("manifest")
    write_store(directory, [parse_of([1])])
    path = Manifest.path(directory, "de")
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(value if key is None else {**content, key: value}))
    if key is not None and value == content.get(key):
        return
    with pytest.raises(UserError, match=r"syntax\.de\.json|has no"):
        load(directory)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'"text"'])
def test_a_damaged_manifest_is_named(directory, content):
    (directory / "syntax.de.json").write_bytes(content)
    with pytest.raises(UserError, match=r"syntax\.de\.json is damaged") as caught:
        load(directory)
    assert RERUN in str(caught.value)


def test_labels_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "folder").mkdir()
    for name, message in (("none", "none is missing: run"), ("folder", "folder cannot be read: ")):
        with pytest.raises(UserError, match=message):
            read_labels(tmp_path / name)


def test_the_manifest_comes_back_as_it_was_saved(tmp_path):
    manifest = Manifest(
        "de", "spacy:x", "x 1", ["words"], "none", False, "sentencepiece", "spm.model", "0"
    )
    manifest.splits["test.de-en"] = SplitRecord(1, 2, 3, {"test.de-en.de.bin": "0"})
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path, "de") == manifest


def test_a_field_of_a_package_that_is_not_installed_is_not_called_damaged(tmp_path):
    fields, labels = ["words", "lengths"], {"lengths": "0"}
    Manifest(
        "de", "p", "1", fields, "none", False, "sentencepiece", "spm.model", "0", labels=labels
    ).save(tmp_path)
    with pytest.raises(UserError, match="field lengths, which belongs to a package that is not"):
        Manifest.load(tmp_path, "de")


def test_a_large_files_fingerprint_notices_another_size_start_middle_and_end(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "BLOCK_BYTES", 16)
    content = bytes(range(256)) * 8  # 64 blocks of 16 bytes cover half of it
    original = tmp_path / "whole"
    original.write_bytes(content)
    for number, other_content in enumerate(
        (b"\1" + content[1:], content[:-1] + b"\0", content + b"\0", content[::-1])
    ):
        changed = tmp_path / f"changed{number}"
        changed.write_bytes(other_content)
        assert fingerprint(changed) != fingerprint(original)


def test_a_preprocessed_directory_can_be_moved(data_directory, tmp_path):
    moved = shutil.copytree(data_directory, tmp_path / "moved")
    original, copy = (load(path, split="test.de-en") for path in (data_directory, moved))
    assert len(copy) == len(original) == 100
    assert all(
        np.array_equal(copy[index][name], original[index][name])
        for index in range(100)
        for name in TREE_FIELDS
    )


def test_a_damaged_manifest_is_no_obstacle_to_advice(tmp_path):
    (tmp_path / "syntax.de.json").write_text("[half")
    assert rerun(tmp_path) == "run fairseq-phrase-preprocess again"
