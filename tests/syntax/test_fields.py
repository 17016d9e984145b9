"""The table of parse fields: a new row is written, read, checked and batched like the others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.cli.inspect_data import main as inspect
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.parsers import LineParser, Unparsed
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELD_GROUP, FIELDS, ParseField
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.text import read_lines
from tests.support.data_tasks import batches, make_task
from tests.support.packages import install_package

#: A label of each word, which a parser names among a sentence's features.
LENGTHS = ParseField(
    name="lengths",
    per="word",
    meaning="lengths of words",
    made_by="--parser measuring",
    label_file="dict.length.txt",
    label_meaning="lengths",
)
#: Two numbers for each word, made of what a sentence has anyway.
EXTENTS = ParseField(
    name="extents",
    per="word",
    meaning="first and last subwords of words",
    made_by="any --parser",
    columns=2,
    numbers=lambda sentence: np.column_stack(
        [
            np.searchsorted(sentence.words, np.arange(sentence.num_words), side=side)
            for side in ("left", "right")
        ]
    ),
)


class Measuring(LineParser):
    """Words at white space, each with its length as a label; one line is too much for it."""

    version, fields = "measuring 1", ("words", "heads", "lengths", "extents")

    def parse(self, lines):
        return [self.parsed(line.split()) for line in lines]

    def parsed(self, words):
        sentence = ParsedSentence(words, [True] * len(words))
        if "zu" in words:
            return Unparsed("too much", sentence)
        return ParsedSentence(
            words,
            [True] * len(words),
            tree=DependencyTree([0] * len(words)),
            features={"lengths": [f"long{min(len(word), 9)}" for word in words]},
        )


@pytest.fixture
def table(monkeypatch, install_parser):
    """The table with two rows more, and a parser that makes these fields."""
    for row in (LENGTHS, EXTENTS):
        monkeypatch.setitem(FIELDS, row.name, row)
    install_parser(Measuring)
    return FIELDS


@pytest.fixture
def data(table, synthetic_corpus, data_directory, tmp_path):
    """The synthetic corpus' small sets, with these fields."""
    arguments = [
        "-s", "de", "-t", "en", "--trainpref", synthetic_corpus / "valid", "--testpref",
        synthetic_corpus / "test", "--parser", "of-test", "--on-error", "flat", "--max-flat", "1",
        "--destdir", tmp_path / "data", "--sentencepiece-model", data_directory / "spm.model",
    ]  # fmt: skip
    preprocess_command.main(list(map(str, arguments)))
    return tmp_path / "data"


def test_a_new_row_is_written_and_read(data, synthetic_corpus):
    manifest = Manifest.load(data, "de")
    assert manifest.fields == ["words", "heads", "lengths", "extents"]
    assert set(manifest.labels) == {"lengths"}
    assert not (data / "test.de-en.de.lengths.idx").exists()  # read by that of heads
    assert (data / "test.de-en.de.extents.idx").exists()
    store = ParseStore(data, "test.de-en", "de", {"words", "lengths", "extents"})
    labels = Dictionary.load(str(data / "dict.length.txt"))
    flat = 0
    for index, line in enumerate(read_lines(synthetic_corpus / "test.de")):
        words, parse = line.split(), store[index]
        expected = [f"long{min(len(word), 9)}" for word in words]
        if "zu" in words:
            flat, expected = flat + 1, ["X"] * len(words)
        assert [labels[number] for number in parse["lengths"]] == expected
        for word, (start, end) in enumerate(parse["extents"].tolist()):
            assert parse["words"][start:end].tolist() == [word] * (end - start)
            assert end > start
    assert 0 < flat < 100


def test_a_new_row_is_inspected(data, capsys):
    inspect([str(data)])
    assert "lengths" in capsys.readouterr().out
    manifest = Manifest.load(data, "de")
    with pytest.raises(UserError, match=r"has no tags.*a parser that tags"):
        manifest.require({"tags"}, data)
    # As of an encoder whose parse_fields are misspelt.
    with pytest.raises(
        UserError, match="the parse fields haeds, which do not exist: expected some of words"
    ):
        manifest.require({"haeds"}, data)


def test_a_model_that_needs_a_field_that_is_not_there_is_told_who_makes_it(table, data_directory):
    with pytest.raises(UserError, match=r"has no lengths.* again with --parser measuring"):
        make_task(data_directory).require_parses(["lengths"])


def test_a_new_row_comes_to_the_batch_of_a_split_and_of_raw_text(data, synthetic_corpus):
    task = make_task(data)
    task.require_parses(["lengths", "extents"])
    task.load_dataset("test")
    store = ParseStore(data, "test.de-en", "de", {"lengths", "extents"})
    count = 0
    for batch in batches(task, "test"):
        parse = ParseBatch.from_net_input(
            {name: value for name, value in batch["net_input"].items() if name[4:] in FIELDS}
        )
        assert parse["extents"].shape == (*parse["lengths"].shape, 2)
        for row, index in enumerate(batch["id"].tolist()):
            for name in ("lengths", "extents"):
                expected = store[index][name]
                numbers = parse[name][row]
                assert numbers[: len(expected)].tolist() == expected.tolist()
                assert (numbers[len(expected) :] == -1).all()
            count += 1
    assert count == 100
    lines = list(read_lines(synthetic_corpus / "test.de"))[:5]
    for index, sentence in enumerate(task.source_text.encode(lines)):
        net_input = task.source_text.batch([sentence])["net_input"]
        for name in ("lengths", "extents"):
            assert net_input[f"src_{name}"][0].tolist() == store[index][name].tolist()


def test_truncated_sources_have_the_items_of_their_first_words(data):
    task = make_task(data, truncate_source=True, max_source_positions=6)
    task.require_parses(["lengths", "extents"])
    task.load_dataset("test")
    for sample in task.dataset("test"):
        words = len(set(sample["parse"]["words"].tolist()))
        assert len(sample["parse"]["words"]) <= 5
        assert sample["parse"]["lengths"].shape == (words,)
        assert sample["parse"]["extents"].shape == (words, 2)


def test_relations_and_tags_come_to_the_batch_as_heads_do(data_directory):
    task = make_task(data_directory)
    task.require_parses(["heads", "deprels", "tags"])
    task.load_dataset("test")
    store = ParseStore(data_directory, "test.de-en", "de", {"deprels", "tags"})
    for batch in batches(task, "test"):
        heads = batch["net_input"]["src_heads"]
        for name in ("deprels", "tags"):
            labels = batch["net_input"][f"src_{name}"]
            assert labels.dtype == torch.int64
            assert torch.equal(labels == -1, heads == -1)
            for row, index in enumerate(batch["id"].tolist()):
                expected = store[index][name].tolist()
                assert labels[row, : len(expected)].tolist() == expected


def test_fields_with_as_many_numbers_share_an_index(table):
    assert shared_index("words", FIELDS) is None
    assert shared_index("tags", FIELDS) == "heads"
    assert shared_index("tags", ("words", "tags", "spans")) is None
    assert shared_index("lengths", FIELDS) == "heads"
    assert shared_index("extents", FIELDS) is None
    assert shared_index("spans", FIELDS) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "word"}, "expected numbers, or labels and their label_file"),
        ({"per": "word", "labels": len}, "expected numbers, or labels and their label_file"),
        ({"per": "subword", "label_file": "dict.x.txt"}, "labels of words, not of subwords"),
        ({"per": "constituent", "numbers": len, "columns": 2}, "truncate must define"),
        (
            {"per": "edge", "label_file": "dict.x.txt"},
            "expected 3 columns and a label_file of edges",
        ),
        ({"per": "edge", "columns": 3}, "expected 3 columns and a label_file of edges"),
    ],
)
def test_a_row_that_is_not_whole_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ParseField(name="x", meaning="x", made_by="x", **options)


def zeros(*shape, dtype=torch.int64):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"colours": zeros(2, 3)}, "unknown parse field 'colours'"),
        ({"words": zeros(2, 3, dtype=torch.int32)}, r"expected int64 of shape \(batch, tokens\)"),
        ({"words": zeros(2, 3, dtype=torch.float32)}, "got torch.float32"),
        (
            {"heads": zeros(2)},
            r"src_heads: expected int64 of shape \(batch, words\), got .* \(2,\)",
        ),
        ({"spans": zeros(2, 5, 2)}, r"expected shape \(batch, constituents, 3\), got \(2, 5, 2\)"),
        ({"enhanced": zeros(2, 5, 2)}, r"expected shape \(batch, edges, 3\), got \(2, 5, 2\)"),
        (
            {"words": zeros(2, 3), "spans": zeros(3, 5, 3)},
            "src_spans has batch of size 3, and src_w",
        ),
        (
            {"heads": zeros(2, 3), "tags": zeros(2, 4)},
            "src_tags has words of size 4, and src_heads 3",
        ),
    ],
)
def test_a_batch_of_parses_that_is_none_is_refused(tensors, message):
    with pytest.raises(ValueError, match=message):
        ParseBatch(tensors)


def test_a_batch_of_parses_gives_what_it_has_and_names_what_it_lacks():
    tensors = {"words": zeros(2, 4), "heads": zeros(2, 3), "spans": zeros(2, 0, 3)}
    parse = ParseBatch.from_net_input({f"src_{name}": value for name, value in tensors.items()})
    assert all(parse[name] is value for name, value in tensors.items())
    assert "tags" not in parse
    with pytest.raises(ValueError, match="carries no tags: use --task syntax_translation"):
        parse["tags"]


def test_a_criterion_gets_its_fields_beside_the_models_input(data_directory):
    task = make_task(data_directory)
    task.require_parses(["tags", "spans"], for_model=False)
    task.require_parses(["heads"])
    task.load_dataset("test")
    store = ParseStore(data_directory, "test.de-en", "de", {"tags", "spans"})
    for batch in batches(task, "test"):
        assert {name for name in batch["net_input"] if name[4:] in FIELDS} == {
            "src_words", "src_heads"
        }  # fmt: skip
        assert batch["parse"].keys() == {"words", "tags", "spans"}
        assert torch.equal(batch["parse"]["words"], batch["net_input"]["src_words"])
        for row, index in enumerate(batch["id"].tolist()):
            for name in ("tags", "spans"):
                expected = store[index][name].tolist()
                assert batch["parse"][name][row, : len(expected)].tolist() == expected


def test_a_criterion_whose_field_the_data_lack_is_told(table, data_directory):
    with pytest.raises(UserError, match=r"has no lengths.* again with --parser measuring"):
        make_task(data_directory).require_parses(["lengths"], for_model=False)


ROW = """
from fairseq_phrase.syntax.fields import ParseField

LEMMAS = ParseField(
    name="lemmas", per="word", meaning="lemmas", made_by="--parser mine", label_file="dict.lemma.txt"
)
TAGS = ParseField(name="tags", per="word", meaning="x", made_by="x", label_file="dict.x.txt")
"""


def test_installed_packages_add_rows(tmp_path, monkeypatch, caplog):
    names = [*FIELDS]  # it is read once in a process: before there is such a package
    entries = "lemmas = offered_fields:LEMMAS\ntags = offered_fields:TAGS\nnone = nowhere:ROW\n"
    install_package(tmp_path, "rows", f"[{FIELD_GROUP}]\n{entries}", offered_fields=ROW)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = type(FIELDS)()
    assert [*table] == [*names, "lemmas"]
    assert table["lemmas"].is_feature
    assert table["tags"] is FIELDS["tags"]
    assert (
        "'tags' (offered_fields:TAGS) of an installed package cannot be used: expected"
        in caplog.text
    )
    assert "'none' (nowhere:ROW) of an installed package cannot be used: No module" in caplog.text
