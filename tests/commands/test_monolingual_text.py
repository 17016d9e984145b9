"""Text of one language to a data directory: ``fairseq-phrase-preprocess --only-source``."""

from __future__ import annotations

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from tests.support.monolingual_corpora import make_data, write_documents


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_documents(tmp_path_factory.mktemp("monolingual") / "corpus")


@pytest.mark.fast(1)
@pytest.mark.parametrize("parser", ["conllu", "ptb"])
def test_blank_lines_are_kept_as_sentences_without_words(corpus, tmp_path, parser, capsys):
    data = make_data(corpus, tmp_path / "data", "--parser", parser, "--bpe", "none")
    lines = (corpus / "train.en").read_text().splitlines()
    blank = lines.count("")
    assert f"train: {len(lines) - blank} sentences; {blank} blank lines between documents" in (
        capsys.readouterr().out
    )
    manifest = Manifest.load(data, "en")
    store = ParseStore(data, "train", "en", set(manifest.fields))
    dictionary = Dictionary.load(str(data / "dict.txt"))
    # These are the names that fairseq's own tasks read.
    text = data_utils.load_indexed_dataset(str(data / "train"), dictionary, "mmap")
    assert len(text) == len(store) == len(lines)
    for line, tokens, parse in zip(lines, text, (store[i] for i in range(len(store))), strict=True):
        assert " ".join(dictionary[index] for index in tokens[:-1]) == line
        assert parse["words"].tolist() == list(range(len(line.split())))
        for name in {"heads", "deprels", "tags"} & parse.keys():
            assert len(parse[name]) == len(line.split())
        assert bool(len(parse["spans"])) == bool(line) if "spans" in parse else True


@pytest.mark.parametrize(
    "option",
    [["--target-lang", "de"], ["--labels", "word"], ["--joined-dictionary"], ["--parse", "both"]],
)
def test_options_of_a_second_language_are_refused(corpus, tmp_path, option, refused):
    message = refused(make_data, corpus, tmp_path / "data", *option)
    assert f"error: {' '.join(option)}: with --only-source there is one language" in message


def test_a_target_language_or_only_source_is_needed(corpus, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["-s", "en", "--trainpref", str(corpus / "train"), "--destdir", str(tmp_path)])
    assert "give --target-lang, or --only-source" in capsys.readouterr().err


def test_text_of_blank_lines_alone_is_refused(tmp_path, capsys):
    for split in ("train", "valid", "test"):
        (tmp_path / f"{split}.en").write_text("\n\n")
    with pytest.raises(SystemExit):
        make_data(tmp_path, tmp_path / "data", "--bpe", "none", "--parser", "none")
    assert "no sentence of" in capsys.readouterr().err
