"""Either side parsed, text that is tokenized already, other subwords, other people's corpora."""

from __future__ import annotations

import gzip
import re
from itertools import islice, pairwise

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary, data_utils
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.batches.raw_tokens import LINE
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.syntax.spellings import unescape_moses
from fairseq_phrase.tasks.fairseq_interactive import SyntaxBPE, SyntaxBPEConfig
from fairseq_phrase.text import read_lines
from tests.support.repository import shared_data
from tests.support.stores import TREE_FIELDS


def preprocess(folder, out, *options, languages=("de", "en"), splits=("train",)):
    prefixes = [f"--{split}pref={folder / split}" for split in splits]
    pair = ["-s", languages[0], "-t", languages[1]]
    main([*pair, *prefixes, "--destdir", str(out), "--vocab-size", "500", *map(str, options)])
    return out


def store_of(out, language, split="train.de-en", fields=TREE_FIELDS):
    return ParseStore(out, split, language, set(fields))


def texts(out, language, split="train.de-en"):
    """The binarized text as subwords, end of sentence left out."""
    dictionary = Dictionary.load(str(out / f"dict.{language}.txt"))
    dataset = data_utils.load_indexed_dataset(str(out / f"{split}.{language}"), dictionary, "mmap")
    return [[dictionary[index] for index in sentence[:-1]] for sentence in dataset]


@pytest.fixture(scope="module")
def both(synthetic_corpus, tmp_path_factory):
    """Both sides parsed from gold constituency trees."""
    out = tmp_path_factory.mktemp("both") / "data"
    return preprocess(synthetic_corpus, out, "--parser", "ptb", "--parse", "both",
                      "--joined-dictionary")  # fmt: skip


def test_both_sides_have_the_trees_of_their_own_files(both, synthetic_corpus):
    for language in ("de", "en"):
        text = synthetic_corpus / f"train.{language}"
        gold = BracketFiles().read(synthetic_corpus / f"train.{language}.ptb", read_lines(text))
        store = store_of(both, language, fields=("words", "tags", "spans"))
        labels = Dictionary.load(str(both / "dict.constituent.txt"))
        for index, sentence in enumerate(islice(gold, 300)):
            tree = sentence.constituents.collapsed()
            expected = {
                (start, end, label)
                for (start, end), label in zip(tree.spans.tolist(), tree.labels, strict=True)
            }
            parse = store[index]
            split_words = np.flatnonzero(np.bincount(parse["words"]) > 1)
            expected |= {(word, word + 1, sentence.tags[word]) for word in split_words.tolist()}
            spans = parse["spans"].tolist()
            assert {(start, end, labels[label]) for start, end, label in spans} == expected
            assert len(spans) == len(tree) + len(split_words)


def test_a_split_word_stands_below_the_constituent_over_it_alone(both):
    store = store_of(both, "en", fields=("words", "spans"))
    tags = Dictionary.load(str(both / "dict.tag.txt"))
    labels = Dictionary.load(str(both / "dict.constituent.txt"))
    count = 0
    for index in range(len(store)):
        spans = store[index]["spans"].tolist()
        for lower, upper in pairwise(spans):
            if lower[:2] == upper[:2]:
                assert labels[lower[2]] in tags.indices
                assert labels[upper[2]] not in tags.indices
                count += 1
    assert count > 10


def test_the_subwords_of_a_parsed_side_spell_its_text(both, synthetic_corpus):
    for language in ("de", "en"):
        lines = read_lines(synthetic_corpus / f"train.{language}")
        for subwords, line in zip(texts(both, language), lines, strict=True):
            assert "".join(subwords).replace("▁", " ").strip() == line


def test_the_target_alone_can_be_parsed_for_the_other_direction(gold_corpus, tmp_path):
    out = preprocess(gold_corpus, tmp_path / "out", "--parser", "conllu", "--parse", "target",
                     "--joined-dictionary", "--vocab-size", "200")  # fmt: skip
    assert not Manifest.path(out, "de").exists()
    assert len(store_of(out, "en", fields=("words", "heads"))) == 200


def test_each_side_can_have_its_own_parser(gold_corpus, tmp_path):
    options = ["--parse", "both", "--target-parser", "ptb", "--constituents", "parser"]
    small = ["--vocab-size", "200"]
    out = preprocess(gold_corpus, tmp_path / "out", "--parser", "conllu", *options, *small)
    assert Manifest.load(out, "de").fields == ["words", "heads", "deprels", "tags"]
    assert Manifest.load(out, "en").fields == ["words", "tags", "spans"]


def test_a_parser_of_one_language_does_not_parse_the_other_by_default(
    gold_corpus, tmp_path, trained_pipeline, capsys
):
    german = ["--parser", f"spacy:{trained_pipeline}", "--parse", "both", "--vocab-size", "200"]
    with pytest.raises(SystemExit) as stopped:
        preprocess(gold_corpus, tmp_path / "out", *german)
    assert stopped.value.code == 2
    assert "name the parser of the en side with --target-parser" in capsys.readouterr().err
    out = preprocess(gold_corpus, tmp_path / "out", *german, "--target-parser", "conllu")
    assert Manifest.load(out, "en").parser == "conllu"


def test_a_dictionary_needs_the_subword_model_that_made_its_entries(
    data_directory, synthetic_corpus, tmp_path, refused
):
    arguments = [
        "--srcdict",
        data_directory / "dict.de.txt",
        "--tgtdict",
        data_directory / "dict.en.txt",
    ]
    message = refused(preprocess, synthetic_corpus, tmp_path / "new", *arguments)
    assert re.search(
        r"differ in subword-model spm\.model \(\w+\) and a new one: .*--sentencepiece-", message
    )
    assert not (tmp_path / "new").exists()
    model = ("--sentencepiece-model", data_directory / "spm.model")
    preprocess(synthetic_corpus, tmp_path / "same", *arguments, *model, splits=("test",))


def test_the_dictionary_is_the_one_that_fairseq_would_build(both, synthetic_corpus, tmp_path):
    dictionary = Dictionary()
    for language in ("de", "en"):
        text = tmp_path / f"text.{language}"
        lines = (" ".join(line) for line in texts(both, language))
        text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        Dictionary.add_file_to_dictionary(str(text), dictionary, str.split, 1)
    dictionary.finalize(padding_factor=8)
    dictionary.save(str(tmp_path / "dict.txt"))
    assert (tmp_path / "dict.txt").read_bytes() == (both / "dict.de.txt").read_bytes()


# SentencePiece


def test_sentencepiece_is_trained_on_a_sample_of_a_large_text(both, synthetic_corpus, tmp_path):
    """2,000 lines a side: a sample of half of them gives another model, all of them the same."""
    models = {
        lines: preprocess(synthetic_corpus, tmp_path / str(lines), "--sentencepiece-lines", lines)
        for lines in (2000, 4000)
    }
    model_of_all = (both / "spm.model").read_bytes()
    assert (models[4000] / "spm.model").read_bytes() == model_of_all
    assert (models[2000] / "spm.model").read_bytes() != model_of_all


def test_the_default_vocabulary_fits_a_small_text(synthetic_corpus, tmp_path, capsys):
    prefix = synthetic_corpus / "valid"
    main(["-s", "de", "-t", "en", "--trainpref", str(prefix), "--destdir", str(tmp_path / "out")])
    match = re.search(r"gives (\d+) subwords at most, not 8000", capsys.readouterr().err)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / "spm.model"))
    assert processor.get_piece_size() == int(match[1])


# Moses' tokens and subword-nmt


@pytest.fixture(scope="module")
def moses(tmp_path_factory):
    """Moses-tokenized text: real WMT text where it is at hand, else some made up."""
    folder = tmp_path_factory.mktemp("moses")
    wmt = shared_data("wmt")
    for language in ("de", "en"):
        if wmt is not None:
            with gzip.open(wmt / f"slice10k.{language}.gz", "rt", encoding="utf-8") as stream:
                # The English side of the fifth is empty, and its pair would be left out.
                lines = list(islice(stream, 5, 400))
        else:
            lines = ["Das ist Peter &apos;s Haus @-@ Boot &amp; &quot; mehr &quot; .\n"] * 400
        (folder / f"train.{language}").write_text("".join(lines), encoding="utf-8")
    with (
        open(folder / "train.de", encoding="utf-8") as text,
        open(folder / "codes", "w", encoding="utf-8") as codes,
    ):
        learn_bpe(text, codes, 300)
    return folder


@pytest.fixture(scope="module")
def bpe_data(moses, spacy_pipeline, tmp_path_factory):
    out = tmp_path_factory.mktemp("bpe") / "data"
    return preprocess(
        moses, out, "--source-tokenized", "--bpe", "subword_nmt", "--bpe-codes", moses / "codes",
        "--parser", f"spacy:{spacy_pipeline}", "--constituents", "from-dependencies",
        "--max-length", "2000",
    )  # fmt: skip


def test_moses_words_stay_as_they_are_and_are_split_by_subword_nmt(bpe_data, moses):
    with open(moses / "codes", encoding="utf-8") as codes:
        bpe = BPE(codes)
    lines = [line for line in read_lines(moses / "train.de") if line.strip()]
    segmented = [bpe.process_line(line).split() for line in lines]
    assert texts(bpe_data, "de") == segmented
    store = store_of(bpe_data, "de")
    for index, line in enumerate(lines):
        assert len(store[index]["heads"]) == len(line.split())


def test_the_parser_sees_what_the_escapes_stand_for(moses, spacy_pipeline, bpe_data):
    import spacy

    nlp = spacy.load(spacy_pipeline)
    store = store_of(bpe_data, "de", fields=("heads",))
    lines = [line for line in read_lines(moses / "train.de") if line.strip()]
    escaped = [index for index, line in enumerate(lines) if "&" in line or "@-@" in line][:20]
    assert escaped
    for index in escaped:
        words = [unescape_moses(word) for word in lines[index].split()]
        tree = nlp(spacy.tokens.Doc(nlp.vocab, words=words))
        roots = [token.i for token in tree if token.head.i == token.i]
        expected = [token.head.i for token in tree]
        for root in roots[1:]:
            expected[root] = roots[0]
        assert store[index]["heads"].tolist() == expected


def test_new_text_is_segmented_as_the_corpus_was(bpe_data, moses, spacy_pipeline):
    config = SyntaxBPEConfig(
        syntax_data=str(bpe_data), syntax_lang="de", syntax_parser=f"spacy:{spacy_pipeline}"
    )
    bpe = SyntaxBPE(config)
    lines = [line for line in read_lines(moses / "train.de") if line.strip()]
    for line, subwords in islice(zip(lines, texts(bpe_data, "de"), strict=True), 50):
        assert bpe.encode(line).partition(LINE)[0].split() == subwords
        assert bpe.decode(" ".join(subwords)) == " ".join(line.split())


def test_subword_nmt_without_codes_or_with_a_model_is_refused(moses, tmp_path, capsys):
    for options, message in (
        (["--bpe", "subword_nmt"], "needs the model that it learned: --bpe-codes FILE"),
        (["--bpe-codes", moses / "codes"], "--bpe-codes needs --bpe subword_nmt"),
        (
            ["--bpe", "subword_nmt", "--bpe-codes", moses / "codes", "--normal-form", "nfkc"],
            "--byte-fallback are for a SentencePiece model that is trained here",
        ),
        (["--bpe", "subword_nmt", "--bpe-codes", tmp_path / "none"], "is not there"),
        (["--ray-address", "auto"], "--ray-address needs --engine ray"),
        (["--parse", "target", "--source-tokenized"], "if the source is not parsed"),
        (["--target-parser", "ptb"], "--target-parser needs --parse both or --parse target"),
        (
            ["--parse", "target", "--parser", "ptb", "--target-parser", "conllu"],
            "--parse target: give --parser or --target-parser, not both",
        ),
        (["--parser", "none", "--constituents", "from-dependencies"], "makes no dependency trees"),
    ):
        with pytest.raises(SystemExit) as stopped:
            preprocess(moses, tmp_path / "out", *options)
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


# Real text


def test_the_manifest_says_how_the_text_was_parsed(bpe_data):
    manifest = Manifest.load(bpe_data, "de")
    assert (manifest.tokenized, manifest.constituents) == (True, "from-dependencies")
    assert (manifest.bpe, manifest.bpe_model) == ("subword_nmt", "bpe.codes")
    store = store_of(bpe_data, "de")
    words = sum(len(store[index]["heads"]) for index in range(len(store)))
    assert manifest.splits["train.de-en"].words == words


def test_labels_that_fairseq_gives_a_meaning_are_labels_all_the_same(tmp_path):
    for language in ("de", "en"):
        (tmp_path / f"train.{language}").write_text("eins zwei drei vier\n" * 3)
    (tmp_path / "train.de.ptb").write_text("(<s> (<unk> eins) (</s> (<pad> zwei drei) vier))\n" * 3)
    out = preprocess(tmp_path, tmp_path / "out", "--parser", "ptb", "--vocab-size", "14")
    labels = Dictionary.load(str(out / "dict.constituent.txt"))
    spans = store_of(out, "de", fields=("spans", "words"))[0]["spans"]
    constituent_labels = {labels[label] for start, end, label in spans.tolist() if end - start > 1}
    assert constituent_labels == {"<s>_", "</s>_", "<pad>_"}
