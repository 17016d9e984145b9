"""What the scripts of tables make of their corpora, ``--data-only``: texts, subwords and trees.

``test_table_slices.py`` runs some scripts to their reports.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import zipfile
from itertools import combinations
from pathlib import Path

import pytest

from tests.support.commands import run_script
from tests.support.repository import REPOSITORY
from tests.support.table_slices import pipeline_of


def texts_of(script: str, out: Path, *options: object, **settings: str) -> dict:
    """Make the data of a table; return the manifest in data-bin."""
    run_script(script, "--data-only", "--rows", "1", "--out", out, *options, **settings)
    (path,) = (out / "data-bin").glob("syntax.*.json")
    return json.loads(path.read_text())


def sizes_of(manifest: dict) -> dict[str, int]:
    """The number of sentences of each split."""
    splits = manifest["splits"].items()
    return {name.partition(".")[0]: record["sentences"] for name, record in splits}


def test_multi30k_in_tokens_of_moses(gold_corpus, trained_pipeline, tmp_path):
    data, out = tmp_path / "multi30k", tmp_path / "out"
    data.mkdir()
    for name, file_name in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for language in ("de", "en"):
            lines = (gold_corpus / f"{name}.{language}").read_text().splitlines()
            with gzip.open(data / f"{file_name}.{language}.gz", "wt") as file:
                file.writelines(f"It's {line}\n" for line in lines)
    manifest = texts_of(
        "multi30k_table1", out, "--text", "moses", "--vocab-size", "300", "--slice", "150",
        "--direction", "en-de", FAIRSEQ_PHRASE_DATA=str(tmp_path),
        FAIRSEQ_PHRASE_PARSER=pipeline_of("en", trained_pipeline),
    )  # fmt: skip
    assert (manifest["bpe"], manifest["tokenized"]) == ("subword_nmt", True)
    tokens = (out / "raw" / "train.en").read_text().splitlines()
    assert len(tokens) == 150
    assert all(line == line.lower() and "it &apos;s" in line for line in tokens)


def test_data_in_a_folder_are_not_taken_for_those_of_other_options(trained_pipeline, tmp_path):
    parser = pipeline_of("en", trained_pipeline)
    options = ["--slice", "150", "--data-only", "--rows", "1", "--out", tmp_path]
    for _ in range(2):
        run_script("wmt14_table2", *options, FAIRSEQ_PHRASE_PARSER=parser)
    manifest = json.loads((tmp_path / "data-bin" / "syntax.en.json").read_text())
    assert sizes_of(manifest) == {"train": 150, "valid": 100, "test": 100}
    refused = run_script("wmt14_table2", *options, expect=1, FAIRSEQ_PHRASE_PARSER="spacy:another")
    assert f"{tmp_path}/data-bin was made with --parser {parser}; this run has" in refused
    refused = run_script("wmt14_table2", "--out", tmp_path, expect=1, FAIRSEQ_PHRASE_PARSER=parser)
    assert "name another folder with --out" in refused


def test_shares_of_the_training_text(trained_pipeline, tmp_path):
    run_script(
        "iwslt14_trees", "--data-only", "--slice", "150", "--rows", "1", "--fractions", "1/2,1",
        "--out", tmp_path, FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    folders = [tmp_path / f"fraction-{name}" for name in ("1-2", "1")]
    half, full = ((folder / "raw" / "train.de").read_text().splitlines() for folder in folders)
    assert half == full[::2]
    assert all((folder / "data-bin" / "syntax.de.json").is_file() for folder in folders)


@pytest.mark.slow
def test_the_text_of_the_tree_papers_authors(trained_pipeline, tmp_path):
    parser = pipeline_of("de", trained_pipeline)
    run_script(
        "iwslt14_trees", "--data-only", "--rows", "1", "--out", tmp_path, "--slice", "150", "--text",
        "authors", FAIRSEQ_PHRASE_PARSER=parser,
    )  # fmt: skip
    (path,) = (tmp_path / "fraction-1" / "data-bin").glob("syntax.*.json")
    manifest = json.loads(path.read_text())
    assert manifest["tokenized"]
    assert sizes_of(manifest)["train"] == 150


@pytest.mark.slow
def test_other_corpora_of_the_table_of_syntax(gold_corpus, trained_pipeline, tmp_path):
    source, target = (
        (gold_corpus / f"train.{language}").read_text().splitlines() for language in ("en", "de")
    )
    table = tmp_path / "pairs.tsv"
    pairs = [
        (f"{en} {i}", f"{de} {i}") for i in range(13) for en, de in zip(source, target, strict=True)
    ]
    table.write_text("".join(f"{en}\t{de}\tx\n" for en, de in pairs))
    settings = {"FAIRSEQ_PHRASE_PARSER": pipeline_of("de", trained_pipeline)}
    for options in (["tatoeba", "--tatoeba", table], ["synthetic"]):
        out = tmp_path / options[0]
        manifest = texts_of("which_syntax", out, "--slice", "150", "--corpus", *options, **settings)
        assert sizes_of(manifest)["train"] == 150
    table.write_text("a\tb\n")
    refused = run_script(
        "which_syntax", "--slice", "150", "--corpus", "tatoeba", "--out", tmp_path / "tatoeba",
        "--tatoeba", table, expect=1, **settings,
    )  # fmt: skip
    assert "tatoeba/raw/text was made with --tatoeba pairs.tsv " in refused


def test_splits_of_tatoeba_share_no_sentence(tmp_path):
    table = tmp_path / "pairs.tsv"
    pairs = [(f"word {n % 400}{'.' * (n % 3)}", f"Wort {n % 350}") for n in range(3000)]
    table.write_text("".join(f"{en}\t{de}\n" for en, de in pairs))
    tatoeba = [sys.executable, str(REPOSITORY / "scripts" / "tatoeba.py")]
    subprocess.run(
        [*tatoeba, table, tmp_path, "--held-out", "20", "--train", "500"],
        check=True,
        cwd=REPOSITORY,
    )
    splits = {
        name: [
            (tmp_path / f"{name}.{language}").read_text().splitlines() for language in ("en", "de")
        ]
        for name in ("train", "valid", "test")
    }
    assert len(splits["train"][0]) == 500
    for first, second in combinations(splits.values(), 2):
        for first_texts, second_texts in zip(first, second, strict=True):
            assert first_texts
            assert not {text.rstrip(".") for text in first_texts} & {
                text.rstrip(".") for text in second_texts
            }
    table.write_text("one\teins\ntwo\n")
    failed = subprocess.run(
        [*tatoeba, table, tmp_path], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert failed.returncode == 1
    assert f"{table}, line 2: expected English, tab, German" in failed.stderr


@pytest.mark.slow
def test_generalization_sets_and_an_adapted_parser(english_parser, tmp_path):
    data, out = tmp_path / "slog", tmp_path / "out"
    data.mkdir()
    for name, count in (("train", 300), ("dev", 5), ("test", 5)):
        (data / f"{name}.tsv").write_text("A dog ran .\trun ( agent = dog )\tname\n" * count)
    with zipfile.ZipFile(data / "generalization_sets.zip", "w") as archive:
        sets = (f"A cat ran .\trun ( agent = cat )\t{name}\n" * 5 for name in ("PP_3", "CP_3"))
        archive.writestr("gen_varfreeLF.tsv", "".join(sets))
    out.mkdir()
    (out / "parser.txt").write_text("of restored results, which have no parser")
    options = ("--data", data, "--slice", "100", "--trees", "adapted")
    manifest = texts_of("compositional", out, *options, **english_parser)
    assert manifest["parser"] == f"spacy:{out / 'parser'}"
    assert list(sizes_of(manifest)) == ["train", "valid", "test", "test1", "test2"]
    assert "UAS" in (out / "parser.txt").read_text()


@pytest.mark.slow
def test_little_text_with_glosses_and_edges_to_them(gold_corpus, trained_pipeline, tmp_path):
    (tmp_path / "tatoeba").mkdir()
    sides = ((gold_corpus / f"train.{end}").read_text().splitlines() for end in ("en", "de"))
    with gzip.open(tmp_path / "tatoeba" / "deu-eng.tsv.gz", "wt") as file:
        file.writelines(f"{en}\t{de}\n" for en, de in zip(*sides, strict=True))
    words = {
        w for line in (gold_corpus / "train.de").read_text().splitlines() for w in line.split()
    }
    (tmp_path / "words.tsv").write_text("".join(f"{w}\tgloss\n" for w in sorted(words)))
    out = tmp_path / "out"
    parser = pipeline_of("de", trained_pipeline)
    settings = {"FAIRSEQ_PHRASE_DATA": str(tmp_path), "FAIRSEQ_PHRASE_PARSER": parser}
    arguments = ["--slice", "100", "--dictionary", tmp_path / "words.tsv"]
    texts_of("low_resource", out, *arguments, **settings)
    for name in ("glosses", "keyed", "shuffled", "other"):
        data = out / f"data-bin.{name}"
        manifest = json.loads((data / "syntax.de.json").read_text())
        assert sizes_of(manifest)["train"] == 100
        assert "gloss " in (data / "dict.enhanced.txt").read_text()
        assert (data / "dict.de.txt").read_bytes() == (out / "data-bin/dict.de.txt").read_bytes()
    (tmp_path / "words.tsv").write_text("Haus\thouse\n")
    refused = run_script("low_resource", *arguments, "--out", out, expect=1, **settings)
    assert "raw/entries was made with --dictionary words.tsv " in refused


@pytest.mark.slow
def test_true_trees_and_a_parsers_trees_of_the_same_words(gold_corpus, trained_pipeline, tmp_path):
    data, out = tmp_path / "treebanks", tmp_path / "out"
    data.mkdir()
    out.mkdir()
    (out / "parser.txt").write_text("of restored results, which have no parser")
    for split in ("train", "valid", "test"):
        for gold_language, language in (("en", "en"), ("de", "tr")):
            trees = (gold_corpus / f"{split}.{gold_language}.conllu").read_text()
            (data / f"{split}.{language}.conllu").write_text(_with_spaces(trees))
    run_script(
        "true_trees", "--data-only", "--slice", "150", "--data", data, "--rows",
        "structural_parsed,structural_adapted", "--out", out,
        FAIRSEQ_PHRASE_PARSER=pipeline_of("en", trained_pipeline),
    )  # fmt: skip
    assert "  after   UAS " in (out / "parser.txt").read_text()
    for name in ("train", "valid", "test"):
        gold, parsed, adapted = (
            out / f"data-bin{data}" / f"{name}.en-tr.en" for data in ("", ".parsed", ".adapted")
        )
        for end in (".bin", ".words.bin"):
            expected = Path(f"{gold}{end}").read_bytes()
            assert Path(f"{parsed}{end}").read_bytes() == expected
            assert Path(f"{adapted}{end}").read_bytes() == expected
        trees = [Path(f"{prefix}.heads.bin").read_bytes() for prefix in (gold, parsed, adapted)]
        assert len(set(trees)) == 3


def _with_spaces(trees: str) -> str:
    """Trees whose text has a space between any two words, as ATIS."""
    sentences = []
    for tree in trees.strip().split("\n\n"):
        rows = [line.split("\t") for line in tree.splitlines() if not line.startswith("#")]
        text = " ".join(row[1] for row in rows)
        body = "\n".join("\t".join([*row[:9], "_"]) for row in rows)
        sentences.append(f"# text = {text}\n{body}\n\n")
    return "".join(sentences)
