"""Parses for text that fairseq binarized: stock commands make the data, attach adds to them."""

from __future__ import annotations

import io
import re
import shutil
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary
from subword_nmt.apply_bpe import BPE

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.tasks.fairseq_interactive import SyntaxBPE, SyntaxBPEConfig
from fairseq_phrase.text import read_lines
from tests.support.attaching import (
    GOLD,
    SPLITS,
    attach,
    binarize,
    contents,
    gold_of,
    subwords_of,
    write_lines,
)
from tests.support.commands import PHRASE, run, train
from tests.support.data_tasks import make_task
from tests.support.hostile import SNIPPETS
from tests.support.stores import TREE_FIELDS
from tests.twins.alignment import check_words


@pytest.fixture
def data(stock_bpe_data, tmp_path):
    """Stock fairseq's data, to be changed."""
    return Path(shutil.copytree(stock_bpe_data, tmp_path / "data"))


@pytest.fixture
def text(bpe_corpus, tmp_path):
    """The text of its subwords, to be changed."""
    return Path(shutil.copytree(bpe_corpus, tmp_path / "text"))


# What comes to lie beside the text


def test_nothing_that_was_there_is_touched(attached_data, stock_bpe_data):
    before, after = contents(stock_bpe_data), contents(attached_data)
    assert {name: after[name] for name in before} == before
    parses = {f"{split}.de-en.de.{field}" for split in SPLITS for field in TREE_FIELDS}
    added = {f"{name}.{end}" for name in parses for end in ("bin", "idx")}
    added -= {f"{name}.idx" for name in parses if name.endswith(("deprels", "tags"))}
    added |= {f"dict.{name}.txt" for name in ("deprel", "tag", "constituent")}
    assert set(after) - set(before) == added | {"syntax.de.json", "bpe.codes"}


def test_a_dictionary_of_text_with_the_name_of_the_labels_is_not_replaced(data, bpe_corpus, capsys):
    for file in list(data.glob("train.de-en.*")):
        file.rename(data / file.name.replace("en", "tag"))
    (data / "dict.en.txt").rename(data / "dict.tag.txt")
    before = contents(data)
    with pytest.raises(SystemExit):
        attach(data, bpe_corpus, "-t", "tag", *GOLD, splits=("train",))
    assert "dict.tag.txt is the dictionary of the parses' tags" in capsys.readouterr().err
    assert contents(data) == before


def test_the_parses_are_those_of_the_treebank(attached_data, gold_corpus):
    relations, tags, labels = (
        Dictionary.load(str(attached_data / f"dict.{name}.txt"))
        for name in ("deprel", "tag", "constituent")
    )
    projective = 0
    for split, size in SPLITS.items():
        store = ParseStore(attached_data, f"{split}.de-en", "de", set(TREE_FIELDS))
        gold = gold_of(gold_corpus, split)
        assert len(store) == len(gold) == size
        for index, sentence in enumerate(gold):
            parse = store[index]
            assert parse["heads"].tolist() == sentence.tree.heads.tolist()
            assert [relations[number] for number in parse["deprels"]] == sentence.deprels
            assert [tags[number] for number in parse["tags"]] == sentence.tags
            # A constituent of every head and its dependents, counted out here, and of split words.
            below = [{word} for word in range(len(sentence.words))]
            for _ in below:
                for word, head in enumerate(sentence.tree.heads):
                    below[head] |= below[word]
            expected = [
                (min(s), max(s) + 1, sentence.tags[w]) for w, s in enumerate(below) if s - {w}
            ]
            split_words = np.flatnonzero(np.bincount(parse["words"]) > 1)
            expected += [(word, word + 1, sentence.tags[word]) for word in split_words]
            if all(max(words) - min(words) < len(words) for words in below):
                spans = [(start, end, labels[label]) for start, end, label in parse["spans"]]
                assert sorted(spans) == sorted(expected)
                projective += 1
    assert projective > 0.8 * sum(SPLITS.values())


def test_the_manifest_says_what_was_done(attached_data, bpe_corpus):
    manifest = Manifest.load(attached_data, "de")
    assert (manifest.parser, manifest.fields) == ("conllu", list(TREE_FIELDS))
    assert (manifest.tokenized, manifest.whole_lines) == (True, False)
    assert (manifest.bpe, manifest.bpe_model) == ("subword_nmt", "bpe.codes")
    assert set(manifest.splits) == {f"{split}.de-en" for split in SPLITS}
    lines = list(read_lines(bpe_corpus / "test.de"))
    record = manifest.splits["test.de-en"]
    assert record.sentences == len(lines)
    assert record.subwords == sum(len(line.split()) for line in lines)
    assert record.words == sum(len(line.replace("@@ ", "").split()) for line in lines)
    assert (attached_data / "bpe.codes").read_bytes() == (bpe_corpus / "codes.de").read_bytes()


def test_the_target_can_be_parsed_beside_the_source(
    attached_data, gold_corpus, bpe_corpus, tmp_path
):
    data = Path(shutil.copytree(attached_data, tmp_path / "data"))
    before = contents(data)
    attach(data, bpe_corpus, "--lang", "en", *GOLD)
    after = contents(data)
    # What came before keeps its numbers; new labels come after it.
    names = {f"dict.{name}.txt" for name in ("deprel", "tag", "constituent")}
    assert {name for name in before if after[name] != before[name]} <= names
    assert all(after[name].startswith(before[name]) for name in names)
    relations = Dictionary.load(str(data / "dict.deprel.txt"))
    store = ParseStore(data, "test.de-en", "en", set(TREE_FIELDS))
    for index, sentence in enumerate(gold_of(gold_corpus, "test", "en")):
        assert store[index]["heads"].tolist() == sentence.tree.heads.tolist()
        assert [relations[number] for number in store[index]["deprels"]] == sentence.deprels


def test_a_folder_of_links_to_anothers_data_will_do(
    attached_data, stock_bpe_data, bpe_corpus, tmp_path
):
    (data := tmp_path / "data").mkdir()
    for path in stock_bpe_data.iterdir():
        (data / path.name).symlink_to(path)
    before = contents(stock_bpe_data)
    attach(data, bpe_corpus, *GOLD, "--bpe-codes", bpe_corpus / "codes.de")
    assert contents(data) == contents(attached_data)
    assert contents(stock_bpe_data) == before


@pytest.mark.fast(1)
@pytest.mark.parametrize("bpe", ["subword_nmt", "sentencepiece"])
def test_text_of_any_characters_gets_a_word_for_each_subword(bpe_corpus, sp_corpus, tmp_path, bpe):
    folder = tmp_path / "text"
    folder.mkdir()
    # fairseq takes a carriage return for the end of a line.
    lines = [f"der {text} Hund" for text in SNIPPETS if "\r" not in text] + ["", "▁", "▁ ▁", "@@"]
    segment = BPE(io.StringIO((bpe_corpus / "codes.de").read_text())).process_line
    if bpe == "sentencepiece":
        model = sentencepiece.SentencePieceProcessor(model_file=str(sp_corpus / "de.model"))
        segment = lambda line: " ".join(model.encode(line, out_type=str))  # noqa: E731
    for language in ("de", "en"):
        write_lines(folder / f"train.{language}", map(segment, lines))
    data = binarize(folder, tmp_path / "data", splits=("train",))
    attach(data, folder, splits=("train",), bpe=bpe)
    store = ParseStore(data, "train.de-en", "de", {"words"})
    text = subwords_of(data, "train")
    assert len(store) == len(text) == len(lines)
    for index, line in enumerate(text):
        words = store[index]["words"]
        assert len(words) == len(line)
        check_words(words)
        if lines[index].startswith("der"):
            assert words[0] == 0
            assert words[-1] > 0
    assert store[len(lines) - 4]["words"].tolist() == []


def task_of(data, *fields, **options):
    """The task over a data directory, its test set loaded with parses."""
    task = make_task(data, source_lang="de", target_lang="en", **options)
    task.require_parses(fields)
    task.load_dataset("test")
    return task


@pytest.mark.parametrize("bpe", ["subword_nmt", "sentencepiece"])
def test_new_lines_get_the_subwords_and_the_parses_that_the_corpus_got(
    request, gold_corpus, bpe_corpus, trained_pipeline, tmp_path, bpe
):
    text = request.getfixturevalue("sp_corpus" if bpe == "sentencepiece" else "bpe_corpus")
    stock_data = request.getfixturevalue(
        "stock_sp_data" if bpe == "sentencepiece" else "stock_bpe_data"
    )
    data = Path(shutil.copytree(stock_data, tmp_path / "data"))
    model = ["--sentencepiece-model", text / "de.model"]
    if bpe == "subword_nmt":
        model = ["--bpe-codes", text / "codes.de"]
    attach(data, text, "--parser", f"spacy:{trained_pipeline}", "--constituents",
           "from-dependencies", *model, splits=("test",), bpe=bpe)  # fmt: skip
    parser = f"spacy:{trained_pipeline}"
    task = task_of(data, "words", "heads", "spans", source_parser=parser)
    lines = list(read_lines(gold_corpus / "test.de"))
    if bpe == "subword_nmt":
        lines = [" ".join(sentence.words) for sentence in gold_of(gold_corpus, "test")]
    store = ParseStore(data, "test.de-en", "de", {"words", "heads", "spans"})
    encode = encoder_of(task, parser)
    tokens, lengths = task.get_interactive_tokens_and_lengths(lines, encode)
    # fairseq-interactive's indices carry parses, and those of fairseq's hub lines.
    indices = [
        task.source_dictionary.encode_line(encode(line), add_if_not_exist=False) for line in lines
    ]
    for rows in (tokens, indices):
        dataset = task.build_dataset_for_inference(rows, lengths)
        for index in range(len(lines)):
            assert (
                dataset[index]["source"].tolist() == task.dataset("test")[index]["source"].tolist()
            )
            (sentence,) = dataset[index]["source"].origins
            net_input = task.source_text.batch([sentence])["net_input"]
            for name, values in store[index].items():
                assert net_input[f"src_{name}"][0][: len(values)].tolist() == values.tolist()


def encoder_of(task, parser):
    """What fairseq-interactive --tokenizer syntax --bpe syntax does to a line."""
    config = SyntaxBPEConfig(syntax_data=task.cfg.data, syntax_lang="de", syntax_parser=parser)
    bpe = SyntaxBPE(config)
    return bpe.encode


def test_without_the_model_new_lines_are_refused(data, bpe_corpus, capsys):
    attach(data, bpe_corpus, "--parser", "none")
    assert "so new text cannot be translated: give --bpe-codes" in capsys.readouterr().out
    assert Manifest.load(data, "de").bpe_model == ""
    with pytest.raises(UserError, match=r"attach again with --bpe-codes or --sentencepiece-model"):
        task_of(data, "words").source_text.encode(["ein Hund"])


# The real commands


def commands(data, checkpoint):
    """What fairseq-generate and fairseq-interactive are given."""
    return [
        data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--path", checkpoint,
        "--beam", "2", "--max-len-b", "20", "--cpu",
    ]  # fmt: skip


def hypotheses(printed):
    return sorted(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE))


NEW_TEXT = ("--tokenizer", "syntax", "--bpe", "syntax", "--buffer-size", "100", "--batch-size", "8")


def test_training_generation_and_new_text_work_on_what_was_attached(
    bpe_corpus, trained_pipeline, data, gold_corpus, tmp_path
):
    attach(data, bpe_corpus, "--parser", f"spacy:{trained_pipeline}", "--bpe-codes",
           bpe_corpus / "codes.de")  # fmt: skip
    phrases = [*PHRASE, "--phrase-source", "dependency", "--phrase-max-length", "3"]
    train(data, tmp_path / "save", *phrases, "--max-update", "6")
    common = commands(data, tmp_path / "save" / "checkpoint_last.pt")
    generated = hypotheses(run("fairseq-generate", *common))
    lines = "".join(" ".join(sentence.words) + "\n" for sentence in gold_of(gold_corpus, "test"))
    assert len(generated) == SPLITS["test"]
    trusted = ("--source-parser", f"spacy:{trained_pipeline}")
    new_text = run("fairseq-interactive", *common, *NEW_TEXT, *trusted, stdin=lines)
    assert hypotheses(new_text) == generated


@pytest.mark.slow
def test_whole_words_are_attached_trained_exported_and_translated(
    trained_pipeline, gold_corpus, tmp_path
):
    text = tmp_path / "text"
    text.mkdir()
    for split in SPLITS:
        for language in ("de", "en"):
            sentences = gold_of(gold_corpus, split, language)
            write_lines(text / f"{split}.{language}", (" ".join(s.words) for s in sentences))
    write_lines(
        text / "valid.de", ["Ein x@@ &apos;", *islice(read_lines(text / "valid.de"), 1, None)]
    )
    data = binarize(text, tmp_path / "data", "--joined-dictionary")
    attach(data, text, "--parser", f"spacy:{trained_pipeline}", bpe="none")
    assert ParseStore(data, "valid.de-en", "de", {"words"})[0]["words"].tolist() == [0, 1, 2]
    train(data, tmp_path, *PHRASE, "--phrase-source", "dependency", "--max-update", "2")
    checkpoint = tmp_path / "checkpoint_last.pt"
    trusted = ("--source-parser", f"spacy:{trained_pipeline}")
    run("fairseq-phrase-export", checkpoint, data, tmp_path / "bundle", *trusted)
    outputs = [
        run(
            "fairseq-phrase-translate", *model, text / "test.de",
            "--beam", "1", *trusted)
        for model in ((data, "--path", checkpoint), (tmp_path / "bundle",))
    ]  # fmt: skip
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") == SPLITS["test"]


# Some splits now, others later


def test_a_later_split_keeps_the_numbers_of_labels(data, bpe_corpus, text, gold_corpus, capsys):
    attach(data, bpe_corpus, *GOLD, "--bpe-codes", bpe_corpus / "codes.de", splits=("train",))
    assert "without parses: test, valid" in capsys.readouterr().out
    labels = Dictionary.load(str(data / "dict.deprel.txt"))
    before = contents(data)
    trees = (text / "test.de.conllu").read_text()
    (text / "test.de.conllu").write_text(trees.replace("\tnsubj\t", "\tnsubj:rare\t", 1))
    attach(data, text, *GOLD, splits=("valid", "test"))
    after = contents(data)
    assert "deprels that other splits do not have, unknown here: nsubj:rare" in (
        capsys.readouterr().out
    )
    assert {name for name in before if after[name] != before[name]} == {"syntax.de.json"}
    assert Manifest.load(data, "de").bpe_model == "bpe.codes"
    store = ParseStore(data, "test.de-en", "de", {"deprels"})
    numbers = np.concatenate([store[index]["deprels"] for index in range(len(store))])
    relations = [r for sentence in gold_of(gold_corpus, "test") for r in sentence.deprels]
    expected = [labels.index(relation) for relation in relations]
    expected[relations.index("nsubj")] = labels.unk()
    assert numbers.tolist() == expected


def test_all_splits_can_be_made_anew_otherwise(attached_data, bpe_corpus, gold_corpus, tmp_path):
    data = Path(shutil.copytree(attached_data, tmp_path / "data"))
    attach(data, bpe_corpus, "--parser", "ptb")
    manifest = Manifest.load(data, "de")
    assert (manifest.parser, manifest.bpe_model) == ("ptb", "bpe.codes")
    trees = gold_of(gold_corpus, "test", parser=BracketFiles())
    store = ParseStore(data, "test.de-en", "de", {"tags"})
    assert [len(store[index]["tags"]) for index in range(len(store))] == [
        len(tree.words) for tree in trees
    ]
