"""Graphs as data: enhanced dependencies of a plugin's parser and of CoNLL-U's ninth column."""

from __future__ import annotations

import os
import re
import shutil
from itertools import islice

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary

from fairseq_phrase.cli.inspect_data import main as inspect
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines
from tests.support.attaching import attach, gold_of
from tests.support.commands import SIZES, run, train
from tests.support.packages import install_package
from tests.support.repository import REPOSITORY, shared_data, shared_pipeline

EXAMPLE = REPOSITORY / "examples" / "parser_plugin" / "enhanced_trees.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The example's parser, installed."""
    folder = tmp_path_factory.mktemp("site")
    entry = "[fairseq_phrase.parsers]\nenhanced-trees = enhanced_trees:EnhancedTrees\n"
    install_package(folder, "enhanced", entry, enhanced_trees=EXAMPLE.read_text())
    return folder


@pytest.fixture(scope="module")
def corpus(synthetic_corpus, trained_pipeline, tmp_path_factory):
    """Lines of Multi30k and English's pipeline, or lines of the synthetic corpus and its pipeline."""
    folder = tmp_path_factory.mktemp("text")
    multi30k, pipeline = shared_data("multi30k"), shared_pipeline("en_core_web_sm")
    real = multi30k is not None and pipeline is not None
    for split, count in (("train", 300), ("test", 20)):
        for language, corpus_language in (("en", "de"), ("de", "en")):
            path = synthetic_corpus / f"{split}.{corpus_language}"
            if real:
                name = "test_2016_flickr" if split == "test" else split
                path = multi30k / f"{name}.{language}.gz"
            lines = islice(read_lines(path), count)
            text = "".join(f"{line}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder, f"enhanced-trees:{pipeline if real else trained_pipeline}", real


def test_a_graph_is_trained_translated_from_raw_text_and_plotted(
    corpus, site, tmp_path, monkeypatch, capsys
):
    text, parser, real = corpus
    data, save = tmp_path / "data", tmp_path / "checkpoints"
    monkeypatch.syspath_prepend(str(site))
    arguments = ["-s", "en", "-t", "de", "--trainpref", text / "train", "--testpref", text / "test"]
    arguments += ["--parser", parser, "--destdir", data, "--joined-dictionary", "--vocab-size", 500]
    preprocess(list(map(str, arguments)))
    store = ParseStore(data, "train.en-de", "en", {"heads", "enhanced"})
    heads = [np.bincount(parse["enhanced"][:, 1]) for parse in map(store.__getitem__, range(300))]
    assert all(
        len(heads_of_word) == len(store[index]["heads"])
        for index, heads_of_word in enumerate(heads)
    )
    assert min(heads_of_word.min() for heads_of_word in heads) >= 1
    if real:
        labels = Dictionary.load(str(data / "dict.enhanced.txt"))
        assert "prep>pobj" in labels
        assert max(heads_of_word.max() for heads_of_word in heads) > 1
    inspect([str(data)])
    printed = capsys.readouterr().out
    assert "labels of enhanced dependencies" in printed
    edges = sum(len(store[index]["enhanced"]) for index in range(300))
    assert re.search(rf"^edges of enhanced dependencies +{edges:,} ", printed, re.MULTILINE)
    inspect([str(data), "--line", "1"])
    first = capsys.readouterr().out.split("enhanced dependencies:\n")[1].splitlines()
    assert sum(row.count("◂") for row in first) == sum(
        head != dependent for head, dependent, _ in store[0]["enhanced"].tolist()
    )

    environment = {"PYTHONPATH": os.pathsep.join([str(site), str(REPOSITORY)])}
    log = train(
        data, save, "--arch", "relation_transformer_tiny", *SIZES, "--relation-source", "enhanced",
        "--relation-labels", "--max-update", "6", "--max-tokens", "800", "--disable-validation",
        **environment,
    )  # fmt: skip
    assert "num_updates=6" in log
    path = save / "checkpoint_last.pt"
    biases = torch.load(path, weights_only=False)["model"]
    assert biases["encoder.layers.0.self_attn.label_bias"].any()
    user = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
    of_data = run(
        "fairseq-generate", data, *user, "--path", path, "--beam", "2", "--cpu", "--remove-bpe",
        "sentencepiece", **environment,
    )  # fmt: skip
    hypotheses = dict(row.split("\t")[::2] for row in of_data.splitlines() if row.startswith("H-"))
    raw = "".join(f"{line}\n" for line in islice(read_lines(text / "test.en"), 3))
    translated = run(
        "fairseq-phrase-translate", data, "--path", path, "--beam", "2", "--device", "cpu",
        "--source-parser", parser, stdin=raw, **environment,
    )  # fmt: skip
    lines = [line for line in translated.splitlines() if line]
    assert lines[-3:] == [hypotheses[f"H-{index}"] for index in range(3)]
    picture = tmp_path / "attention.png"
    run(
        "fairseq-phrase-plot", "attention", data, "--path", path, "--line", "1", "--subset", "test",
        "--out", picture, **environment,
    )  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")


def add_ninth_column(path):
    """Give each word its head of the tree and, but for the first, the word before it as heads."""
    lines = path.read_text().split("\n")
    for number, line in enumerate(lines):
        columns = line.split("\t")
        if columns[0].isdigit():
            word = int(columns[0])
            before = [f"{word - 1}:before"] if word > 1 else []
            columns[8] = "|".join([f"{columns[6]}:{columns[7]}", *before])
            lines[number] = "\t".join(columns)
    path.write_text("\n".join(lines))


@pytest.mark.fast(1)
@pytest.mark.parametrize("words", ["enhanced", "surface,enhanced"])
def test_attach_reads_the_ninth_column(stock_sp_data, sp_corpus, tmp_path, words, capsys):
    data = shutil.copytree(stock_sp_data, tmp_path / "data")
    text = shutil.copytree(sp_corpus, tmp_path / "text")
    add_ninth_column(text / "train.de.conllu")
    attach(data, text, "--parser", f"conllu:{words}", splits=("train",), bpe="sentencepiece")
    gold = gold_of(text, "train", parser=ConlluFiles(words))
    store = ParseStore(data, "train.de-en", "de", {"words", "heads", "enhanced"})
    labels = Dictionary.load(str(data / "dict.enhanced.txt"))
    lost = left_out = 0
    for index, sentence in enumerate(gold):
        left_out += len(sentence.words) - len(store[index]["heads"])
        edges = [(h, d, labels[label]) for h, d, label in store[index]["enhanced"].tolist()]
        lost += sentence.lost_edges + len(sentence.edges["enhanced"]) - len(edges)
        if len(store[index]["heads"]) == len(sentence.words):
            assert edges == sentence.edges["enhanced"]
        else:  # a subword of two words: the second word is left out, and its edges are
            assert len(edges) < len(sentence.edges["enhanced"])
    assert lost > 0
    printed = capsys.readouterr().out
    assert f"{lost} edges of de lost with words" in printed
    assert sum(map(int, re.findall(r"(\d+) words left out", printed))) == left_out > 0
