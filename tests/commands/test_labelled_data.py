"""Text with labels to a data directory: ``fairseq-phrase-preprocess --labels``."""

from __future__ import annotations

import shutil

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.store.dictionaries import read_labels
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.data.subwords.segmenters import EveryWord, WholeWords
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from tests.support.labelled_corpora import make_data, write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("labelled") / "corpus")


@pytest.fixture
def changed(corpus, tmp_path):
    """A copy of the corpus, to be changed."""
    return shutil.copytree(corpus, tmp_path / "corpus")


def change(path, number, line):
    lines = path.read_text().splitlines()
    lines[number - 1] = line
    path.write_text("".join(f"{line}\n" for line in lines))


def texts(data, language, split, suffix):
    dictionary = Dictionary.load(str(data / f"dict.{language}.txt"))
    path = str(data / f"{split}.en-{suffix}.{language}")
    dataset = data_utils.load_indexed_dataset(path, dictionary, "mmap")
    return [" ".join(dictionary[i] for i in sentence[:-1]) for sentence in dataset]


def test_words_and_their_labels_are_two_sides(corpus, tmp_path, capsys):
    data = make_data(corpus, tmp_path / "data", "word", "--bpe", "none", "--min-count", "2")
    printed = capsys.readouterr().out
    for split in ("train", "valid", "test"):
        assert texts(data, "en", split, "tag") == (corpus / f"{split}.en").read_text().splitlines()
        assert (
            texts(data, "tag", split, "tag") == (corpus / f"{split}.tag").read_text().splitlines()
        )
    # No made-up labels: they would be outputs of models.
    assert sorted(read_labels(data / "dict.tag.txt")) == ["ADJ", "DET", "NOUN", "VERB"]
    manifest = Manifest.load(data, "en")
    assert (manifest.labelling, manifest.bpe, manifest.bpe_model) == ("word", "none", "")
    words = len((corpus / "test.en").read_text().split())
    assert (
        f"test: 21 sentences; {words} words and {words} subwords of en; {words} labels" in printed
    )


def test_rare_words_are_unknown(changed, tmp_path):
    change(changed / "train.en", 1, "once here now")
    change(changed / "train.tag", 1, "DET ADJ NOUN")
    data = make_data(changed, tmp_path / "data", "word", "--bpe", "none", "--min-count", "2")
    assert texts(data, "en", "train", "tag")[0] == "<unk> <unk> <unk>"
    (sentence,) = TextEncoder.from_data(data, "en").encode_lines(["once the <s>"])
    assert sentence.subwords == ["once", "the", "▁<s>"]


@pytest.mark.parametrize("parser", ["conllu", "ptb"])
def test_gold_trees_are_the_sources_parse(corpus, tmp_path, parser):
    data = make_data(corpus, tmp_path / "data", "word", "--bpe", "none", "--parser", parser)
    manifest = Manifest.load(data, "en")
    # dict.tag.txt has the labels.
    expected = {"conllu": ["words", "heads", "deprels"], "ptb": ["words", "spans"]}[parser]
    assert manifest.fields == expected
    assert manifest.tokenized
    store = ParseStore(data, "train.en-tag", "en", set(expected))
    lines = (corpus / "train.en").read_text().splitlines()
    for line, parse in zip(lines, (store[i] for i in range(len(store))), strict=True):
        assert parse["words"].tolist() == list(range(len(line.split())))


def test_sentences_have_one_label_and_subwords(corpus, tmp_path):
    data = make_data(corpus, tmp_path / "data", "sentence", "--vocab-size", "36")
    assert texts(data, "class", "test", "class") == (corpus / "test.class").read_text().split()
    # The subword model does not learn from labels.
    assert Manifest.load(data, "en").labelling == "sentence"
    subwords = [subword for subword in read_labels(data / "dict.en.txt") if "madeup" not in subword]
    assert not any(subword.strip("▁").isdigit() for subword in subwords)


def test_a_word_that_the_subword_model_drops_keeps_its_label(changed, tmp_path):
    change(changed / "train.en", 1, "the \u200b dog")
    change(changed / "train.tag", 1, "DET ADJ NOUN")
    data = make_data(changed, tmp_path / "data", "word", "--vocab-size", "36")
    store = ParseStore(data, "train.en-tag", "en", {"words"})
    assert store[0]["words"].max() == 2
    segmenter = TextEncoder.from_data(data, "en").segmenter
    assert isinstance(segmenter, EveryWord)
    assert segmenter.segment_word("▁\u200b") == ("▁",)
    assert segmenter.segment_line("\u200b") == ["▁"]


def refused(capsys, corpus, out, labels, *options):
    with pytest.raises(SystemExit) as stopped:
        make_data(corpus, out, labels, *options)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "line", "labels", "message"),
    [
        (
            "valid.tag",
            "DET NOUN",
            "word",
            "valid.en, line 3 has 3 words, and {}/valid.tag, line 3 has 2 labels",
        ),
        ("test.class", "1 2", "sentence", "test.class, line 3 has 2 labels"),
        ("test.class", "", "sentence", "test.class, line 3 has 0 labels"),
        ("train.en", " ", "word", "train.en, line 3 is empty, and a label needs text"),
        ("train.tag", "DET NOUN <s>", "word", "train.tag, line 3: the label <s> is a special"),
    ],
)
def test_what_is_wrong_with_labels_is_said(changed, tmp_path, capsys, file, line, labels, message):
    split = file.partition(".")[0]
    change(changed / f"{split}.en", 3, "the dog sees")
    change(changed / f"{split}.tag", 3, "DET NOUN VERB")
    change(changed / file, 3, line)
    error = refused(capsys, changed, tmp_path / "data", labels, "--bpe", "none")
    assert message.format(changed) in error
    assert error.count("\n") == 1


@pytest.mark.fast(1)
@pytest.mark.parametrize("parser", ["conllu", "ptb"])
def test_a_tree_over_other_words_is_refused(changed, tmp_path, capsys, parser):
    trees = changed / f"train.en.{parser}"
    # The same characters in other words.
    if parser == "conllu":
        block = "1\ttheold\t_\tX\t_\t_\t2\tdet\t_\t_\n2\tdog\t_\tX\t_\t_\t0\troot\t_\t_"
        blocks = trees.read_text().split("\n\n")
        trees.write_text("\n\n".join([block, *blocks[1:]]))
    else:
        change(trees, 1, "(S (X theold) (Y dog))")
    change(changed / "train.en", 1, "the old dog")
    change(changed / "train.tag", 1, "DET ADJ NOUN")
    error = refused(capsys, changed, tmp_path / "data", "word", "--bpe", "none", "--parser", parser)
    assert "train.en, line 1: " in error
    assert "the parse has other words than the text: expected word 1 to be 'the'" in error
    assert "(3 words in the text, 2 in the parse)" in error


def test_labels_unknown_in_training_are_counted(changed, tmp_path, capsys, caplog):
    change(changed / "test.class", 2, "many")
    data = make_data(changed, tmp_path / "data", "sentence", "--bpe", "none")
    assert "test: 21 sentences;" in (printed := capsys.readouterr().out)
    assert "21 labels, 1 unknown in training" in printed
    assert "of class" not in printed
    assert "1 of the 21 labels of test are unknown in training" in caplog.text
    assert "they count as wrong: many" in caplog.text
    assert Manifest.load(data, "en").splits["test.en-class"].unknown_labels == 1


@pytest.mark.parametrize("option", ["--parse=both", "--target-tokenized", "--joined-dictionary"])
def test_options_of_a_second_text_are_refused(corpus, tmp_path, capsys, option):
    error = refused(capsys, corpus, tmp_path / "data", "word", option)
    words = option.replace("=", " ")
    assert f": {words}: the target side has labels (--labels), not text" in error


@pytest.mark.parametrize("options", [["--labels", "word"], []])
def test_no_text_can_have_the_name_of_a_parses_dictionary(changed, tmp_path, capsys, options):
    for split in ("train", "valid", "test"):
        (changed / f"{split}.tag").rename(changed / f"{split}.deprel")
    arguments = ["-s", "en", "-t", "deprel", "--bpe", "none", *options]
    arguments += [f"--trainpref={changed / 'train'}", "--parser", "conllu"]
    with pytest.raises(SystemExit):
        main([*arguments, "--destdir", str(tmp_path / "data")])
    assert "dict.deprel.txt is the dictionary of the parses' deprels" in capsys.readouterr().err


def test_whole_words_come_back_as_text(corpus, tmp_path):
    data = make_data(corpus, tmp_path / "data", "word", "--bpe", "none")
    encoder = TextEncoder.from_data(data, "en")
    assert isinstance(encoder.segmenter, EveryWord)
    assert isinstance(encoder.segmenter.segmenter, WholeWords)
    assert encoder.segmenter.join("the dog") == "the dog"
