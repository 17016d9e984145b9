"""Text with labels behind its words: data, and source factors from raw text."""

from __future__ import annotations

import pytest
import torch

import fairseq_phrase
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import load_parser
from fairseq_phrase.text import read_lines
from tests.support.commands import SIZES, run, train
from tests.support.data_tasks import make_task


def labels_of(word):
    return f"long{min(len(word), 9)}", str(word[:1].isupper())


@pytest.fixture(scope="module")
def factored(synthetic_corpus, tmp_path_factory):
    """Text with two labels behind each word, and the data made of it."""
    folder = tmp_path_factory.mktemp("factored")
    with open(folder / "test.de", "w") as text:
        for line in read_lines(synthetic_corpus / "test.de"):
            print(*("￨".join([word, *labels_of(word)]) for word in line.split()), file=text)
    (folder / "test.en").write_bytes((synthetic_corpus / "test.en").read_bytes())
    options = ["--testpref", folder / "test", "--vocab-size", 300, "--joined-dictionary"]
    read_labels(folder / "test", folder / "data", *options)
    return folder


def read_labels(text, destination, *options):
    """Preprocess a text whose words have two labels."""
    arguments = ["-s", "de", "-t", "en", "--trainpref", text, "--destdir", destination]
    arguments += ["--parser", "factored:tags,factor1", *options]
    preprocess(list(map(str, arguments)))


def test_text_with_labels_is_a_parser(factored, synthetic_corpus):
    task = make_task(factored / "data")
    store = ParseStore(factored / "data", "test.de-en", "de", {"words", "tags", "factor1"})
    tags, flags = map(task.label_dictionary, ("tags", "factor1"))
    for index, line in enumerate(read_lines(synthetic_corpus / "test.de")):
        parse = store[index]
        pairs = zip(parse["tags"], parse["factor1"], strict=True)
        assert [(tags[tag], flags[flag]) for tag, flag in pairs] == list(
            map(labels_of, line.split())
        )
    assert not any("￨" in symbol for symbol in task.source_dictionary.symbols)


def test_a_word_without_its_label_is_named(factored, tmp_path, refused):
    lines = (factored / "test.de").read_text().splitlines()
    word = lines[2].split()[0]
    lines[2] = lines[2].replace(word, word.partition("￨")[0], 1)
    (tmp_path / "test.de").write_text("\n".join(lines) + "\n")
    (tmp_path / "test.en").write_bytes((factored / "test.en").read_bytes())
    error = refused(read_labels, tmp_path / "test", tmp_path / "d")
    assert f"{tmp_path / 'test.de'}" in error
    assert "line 3" in error
    assert f"word 1 is '{word.partition('￨')[0]}': expected a word and" in error
    with pytest.raises(UserError, match="'colour' is not a field of labels of words"):
        load_parser("factored:colour")


def test_labels_in_a_text_that_is_read_without_them_are_named(tmp_path, caplog):
    for language, line in (("de", "Vögel￨N ￨ singen￨V"), ("en", "Birds￨N sing￨V ￨")):
        (tmp_path / f"train.{language}").write_text(f"{line}\n")
    preprocess(
        ["-s", "de", "-t", "en", "--trainpref", str(tmp_path / "train"), "--bpe", "none", "--parser",
         "factored", "--on-error", "flat", "--max-flat", "1", "--destdir", str(tmp_path / "d")]
    )  # fmt: skip
    (warning,) = [record.message for record in caplog.records if "labels" in record.message]
    assert warning.startswith(f"{tmp_path / 'train.en'} has labels in its text, such as Birds￨N")


@pytest.mark.fast(1)
@pytest.mark.parametrize("arch", ["transformer", "phrase_transformer_tiny"])
def test_factors_are_trained_and_translated_from_raw_text(factored, tmp_path, arch):
    data = factored / "data"
    factors = ["--source-factors", "tags,factor1,subwords"]
    log = train(
        data, tmp_path, "--arch", arch, *SIZES, *factors, "--max-update", "6", "--max-tokens", "800",
        "--disable-validation", "--max-target-positions", "120",
    )  # fmt: skip
    assert "num_updates=6" in log
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["model"]
    assert all(saved[f"encoder.embed_tokens.factors.{name}.weight"].any() for name in
               ("tags", "factor1", "subwords"))  # fmt: skip
    path = tmp_path / "checkpoint_last.pt"
    lines = (factored / "test.de").read_text().splitlines()[:3]
    raw = "\n".join(lines) + "\n"
    options = ["--path", path, "--beam", "2", "--cpu"]
    user = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
    of_data = run("fairseq-generate", data, *user, *options, "--remove-bpe", "sentencepiece")
    expected = {
        line.split("\t")[0]: line.split("\t")[2]
        for line in of_data.splitlines()
        if line.startswith("H-")
    }
    typed = run(
        "fairseq-interactive", data, *user, *options, "--tokenizer", "syntax", "--bpe", "syntax",
        stdin=raw,
    )  # fmt: skip
    by_line = [line.split("\t")[2] for line in typed.splitlines() if line.startswith("D-")]
    assert by_line == [expected[f"H-{index}"] for index in range(3)]
    command = ["--path", path, "--beam", "2", "--device", "cpu"]
    translated = run("fairseq-phrase-translate", data, *command, stdin=raw)
    assert [line for line in translated.splitlines() if line][-3:] == by_line
    model = fairseq_phrase.load(path, data, device="cpu")
    assert model.translate(lines, beam=2) == by_line
    changed = [line.replace("￨long", "￨short") for line in lines]  # labels that are unknown
    scores = [model.score(sources[0], "The dog sleeps .") for sources in (lines, changed)]
    assert scores[0] != scores[1]
