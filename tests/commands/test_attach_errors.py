"""What fairseq-phrase-attach refuses, and that a run that fails or is killed changes nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.text import read_lines
from tests.support.attaching import GOLD, attach, binarize, contents, lines_of, write_lines


@pytest.fixture
def data(stock_bpe_data, tmp_path):
    """Stock fairseq's data, to be changed."""
    return Path(shutil.copytree(stock_bpe_data, tmp_path / "data"))


@pytest.fixture
def text(bpe_corpus, tmp_path):
    """The text of its subwords, to be changed."""
    return Path(shutil.copytree(bpe_corpus, tmp_path / "text"))


@pytest.fixture
def fails(capsys):
    """Attach and return the one message; check that nothing has changed."""

    def attempt(data, text, *options, **more):
        before = contents(data)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            attach(data, text, *options, **more)
        captured = capsys.readouterr()
        assert stopped.value.code == 2
        assert captured.out == ""
        assert contents(data) == before
        (message,) = re.findall(r"fairseq-phrase-attach: error: (.*)", captured.err)
        return message

    return attempt


def changed(lines, how):
    if how == "another subword":
        words = lines[7].split()
        lines[7] = " ".join([*words[:3], "Zebra", *words[4:]])
    elif how == "a subword less":
        lines[7] = " ".join(lines[7].split()[:-1])
    elif how == "a subword more":
        lines[7] += " und"
    elif how == "a line less":
        del lines[7]
    elif how == "the last line less":
        del lines[-1]
    elif how == "a line more":
        lines.append("und")
    return lines


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("another subword", r"line 8: subword 4 is 'Zebra' here and '"),
        ("a subword less", r"line 8: subword \d+ is '</s>' here and '\.' in"),
        ("a subword more", r"line 8: subword \d+ is 'und' here and '</s>' in"),
        ("a line less", r"line 8: subword \d+ is '.*' here and '.*' in"),
        ("the last line less", r"valid.de has 19 lines, and .*valid.de-en.de.bin has 20"),
        ("a line more", r"line 21: .*valid.de-en.de.bin ends before this line, after 20"),
    ],
)
def test_text_that_was_not_binarized_is_named_with_its_line(data, text, fails, how, message):
    write_lines(text / "valid.de", changed(list(read_lines(text / "valid.de")), how))
    assert re.search(message, message_of_run := fails(data, text, *GOLD)), message_of_run
    assert str(text / "valid.de") in message_of_run
    assert str(data / "valid.de-en.de.bin") in message_of_run


def test_another_dictionary_is_found_out(data, bpe_corpus, fails):
    entries = (data / "dict.de.txt").read_text().splitlines(keepends=True)
    (data / "dict.de.txt").write_text("".join([entries[1], entries[0], *entries[2:]]))
    assert re.search(
        r"train.de, line \d+: subword \d+ is '.*' here and '", fails(data, bpe_corpus, *GOLD)
    )
    (data / "dict.de.txt").write_text("".join(entries[:5]))
    message = fails(data, bpe_corpus, *GOLD)
    assert re.search(r"subword \d+ is '.*' here and '<unk>' in", message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--testpref", "{bpe_corpus}/none"), "none.de nor "),
        (
            ("--testpref", "{bpe_corpus}/test,{bpe_corpus}/test"),
            "has no test1.de-en.de.idx: it has test.de-en.de",
        ),
        (
            ("-s", "en", "-t", "de", "--testpref", "{bpe_corpus}/test"),
            "has no test.en-de.en.idx: it has",
        ),
        (
            ("--testpref", "{bpe_corpus}/test", "--sentencepiece-model", "x"),
            "needs --bpe sentencepiece",
        ),
        (
            ("--testpref", "{bpe_corpus}/test", "--bpe-codes", "{bpe_corpus}/none"),
            "none is not there",
        ),
        (
            ("--testpref", "{bpe_corpus}/test", "--bpe-codes", "{bpe_corpus}/test.de"),
            "no BPE codes",
        ),
        (("--testpref", "{bpe_corpus}/test", "--parser", "nobody"), "unknown parser 'nobody'"),
        (
            ("--testpref", "{bpe_corpus}/test", "--bpe", "sentencepiece", "--parser", "none"),
            "has no subwords of --bpe sentencepiece: in its first 30 lines some end in @@, and none "
            "begins with ▁; give --bpe subword_nmt",
        ),
        (
            ("--testpref", "{bpe_corpus}/test", "--bpe", "none", "--parser", "none"),
            "subwords end in @@, and 0 lines begin with ▁; give --bpe subword_nmt or sentencepiece",
        ),
        (
            ("--testpref", "{bpe_corpus}/test", "--bpe", "words"),
            "--bpe words: expected one of sentencepiece, subword_nmt, none or gpt2:FOLDER",
        ),
    ],
)
def test_bad_options_are_named(data, bpe_corpus, fails, options, message):
    options = [option.format(bpe_corpus=bpe_corpus) for option in options]
    assert message in fails(data, bpe_corpus, *options, splits=())


def test_a_folder_without_binarized_text_is_refused_and_not_made(bpe_corpus, tmp_path, fails):
    assert "is not a data directory of fairseq" in fails(tmp_path / "nowhere", bpe_corpus, *GOLD)
    assert not (tmp_path / "nowhere").exists()


def test_a_subword_model_that_did_not_segment_the_text_is_refused(
    data, bpe_corpus, fails, tmp_path
):
    lines = (bpe_corpus / "codes.de").read_text().splitlines(keepends=True)
    foreign = tmp_path / "foreign.codes"
    foreign.write_text("".join(lines[: len(lines) // 4]))
    message = fails(data, bpe_corpus, *GOLD, "--bpe-codes", foreign)
    assert re.search(
        r"foreign\.codes makes other subwords than the text has in \d+ of its first", message
    )
    assert "--allow-difference subword-model" in message


def test_a_file_of_the_users_is_not_overwritten_by_the_codes(data, bpe_corpus, fails):
    (data / "bpe.codes").write_text("mine")
    message = fails(data, bpe_corpus, *GOLD, "--bpe-codes", bpe_corpus / "codes.de")
    assert "bpe.codes is there already and is another file" in message
    shutil.copyfile(bpe_corpus / "codes.de", data / "bpe.codes")
    attach(data, bpe_corpus, *GOLD, "--bpe-codes", bpe_corpus / "codes.de")
    assert Manifest.load(data, "de").bpe_model == "bpe.codes"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--parser", "ptb"), "made with parser conllu, and this run has ptb"),
        (("--parser", "conllu"), "constituents"),
    ],
)
def test_splits_that_stay_must_have_been_made_alike(
    attached_data, bpe_corpus, fails, options, message
):
    assert message in fails(attached_data, bpe_corpus, *options, splits=("test",))


@pytest.mark.fast(1)
@pytest.mark.parametrize("mark", ["<s>", "</s>", "<pad>"])
def test_text_with_fairseqs_own_marks_is_named_with_its_line(text, tmp_path, fails, mark):
    lines = list(read_lines(text / "valid.de"))
    lines[4] = f"{lines[4]} {mark} und"
    write_lines(text / "valid.de", lines)
    data = binarize(text, tmp_path / "own", splits=("train", "valid"))
    message = fails(data, text, "--parser", "none", splits=("train", "valid"))
    number = len(lines[4].split()) - 1
    assert f"{text / 'valid.de'}, line 5: subword {number} is '{mark}', which fairseq" in message
    assert "binarize the text again" in message


def test_a_literal_unknown_mark_is_an_unknown_word(text, tmp_path):
    lines = list(read_lines(text / "valid.de"))
    write_lines(text / "valid.de", [f"<unk> {line}" for line in lines])
    data = binarize(text, tmp_path / "own", splits=("train", "valid"))
    attach(data, text, "--parser", "none", splits=("train", "valid"))
    assert ParseStore(data, "valid.de-en", "de", {"words"})[0]["words"].tolist()[0] == 0


# Lines without a parse


def test_a_line_without_a_parse_stops_the_run_or_gets_a_flat_tree(data, text, fails, capsys):
    trees = list(read_lines(text / "valid.de.ptb"))
    trees[4] = "(S (X Zebra))"
    write_lines(text / "valid.de.ptb", trees)
    message = fails(data, text, "--parser", "ptb")
    assert "valid.de, line 5: " in message
    assert "word 1 is 'Zebra'" in message
    assert message.endswith("(--on-error flat gives them flat trees)")
    listed = text / "listed.tsv"
    attach(data, text, "--parser", "ptb", "--on-error", "flat", "--list-left-out", str(listed))
    _, row = listed.read_text().splitlines()
    assert row.startswith(f"{text / 'valid.de'}\t5\tflat tree: ")
    printed = capsys.readouterr().out
    assert re.search("^valid: .*; 1 flat trees of de for lines", printed, re.MULTILINE)
    assert "words left out" not in printed
    assert Manifest.load(data, "de").splits["valid.de-en"].unparsed_flat == 1
    store = ParseStore(data, "valid.de-en", "de", {"words", "spans"})
    words = int(store[4]["words"][-1]) + 1
    assert [0, words] in store[4]["spans"][:, :2].tolist()
    assert len(store[4]["spans"]) == 1 + (np.bincount(store[4]["words"]) > 1).sum()


class Splitter(LineParser):
    """A parser whose words are not those of the text: it takes contractions apart."""

    version, fields = "splitter 1", ("words", "heads")

    def parse(self, lines):
        sentences = [re.sub(r"\bzum\b", "zu dem", line).split() for line in lines]
        return [
            ParsedSentence(words, [True] * len(words), tree=DependencyTree([0] * len(words)))
            for words in sentences
        ]


def test_a_parse_with_other_words_than_the_text_is_none(
    sp_corpus, stock_sp_data, tmp_path, install_parser, capsys
):
    install_parser(Splitter)
    data = Path(shutil.copytree(stock_sp_data, tmp_path / "data"))
    lines = ["".join(line).replace("▁", " ").split() for line in lines_of(sp_corpus, "train")]
    contracted = [number for number, words in enumerate(lines, start=1) if "zum" in words]
    options = ("--parser", "of-test")
    before = {path.name for path in data.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        attach(data, sp_corpus, *options, bpe="sentencepiece")
    message = capsys.readouterr().err
    assert (
        f"train.de, line {contracted[0]}: the parse has other words than the text: word " in message
    )
    assert "is 'dem', and the text has 'm " in message
    assert stopped.value.code == 2
    assert {path.name for path in data.iterdir()} == before
    attach(data, sp_corpus, *options, "--on-error", "flat", "--max-flat", "1", bpe="sentencepiece")
    assert f"{len(contracted)} flat trees" in capsys.readouterr().out.splitlines()[0]


class Stopping(LineParser):
    """A parser during which a run is stopped, as by Ctrl-C, when it has parsed some sentences."""

    version, fields, sentences_left = "stopping 1", ("words", "heads"), 0

    def parse(self, lines):
        return self.parse_words([line.split() for line in lines])

    def parse_words(self, sentences):
        Stopping.sentences_left -= len(sentences)
        if Stopping.sentences_left < 0:
            raise KeyboardInterrupt
        return [
            ParsedSentence(words, [True] * len(words), tree=DependencyTree([0] * len(words)))
            for words in sentences
        ]


def test_an_interrupted_run_goes_on_where_it_was_and_gives_the_same_files(
    data, stock_bpe_data, bpe_corpus, tmp_path, install_parser, block_lines, jobs_done
):
    install_parser(Stopping)
    block_lines(20)

    def attached(folder, sentences):
        Stopping.sentences_left = sentences
        attach(folder, bpe_corpus, "--parser", "of-test", splits=("train",))
        return contents(folder)

    uninterrupted = attached(Path(shutil.copytree(stock_bpe_data, tmp_path / "whole")), 200)
    with pytest.raises(SystemExit, match="130"):
        attached(data, 80)
    blocks = sorted(path.name for path in data.glob(".partial/blocks/train/*"))
    assert blocks == ["000000", "000001", "000002", "000003"]
    assert {n: x for n, x in contents(data).items() if (stock_bpe_data / n).exists()} == (
        contents(stock_bpe_data)
    )
    jobs_done.clear()
    assert attached(data, 120) == uninterrupted
    assert jobs_done == list(range(4, 10))
