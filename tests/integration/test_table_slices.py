"""Slices of the papers' tables: their scripts from text to report, tiny models and a few updates."""

from __future__ import annotations

import gzip
import re
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

from tests.support.commands import run_script
from tests.support.multi30k import multi30k_of
from tests.support.repository import REPOSITORY, shared_data
from tests.support.table_slices import FEW, TINY, pipeline_of


def table_of(folder: Path) -> tuple[str, list[str]]:
    """The caption of a report, and the titles of the rows that have BLEU."""
    text = (folder / "report.md").read_text()
    caption = re.search(r"\*\*(.*)\*\*", text)[1]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    bleu = [cell.strip() for cell in rows[0]].index("BLEU")
    return caption, [row[1].strip() for row in rows[1:] if row[bleu].strip() != "-"]


def test_a_slice_of_the_multi30k_table_comes_to_its_end(
    synthetic_corpus, trained_pipeline, tmp_path
):
    out = tmp_path / "out"
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    run_script(
        "multi30k_table1", *FEW, "--rows", "2", "--out", out, FAIRSEQ_PHRASE_DATA=str(tmp_path),
        FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    caption, titles = table_of(out / "report-test_2016_flickr")
    assert "tuned setting, only 4 updates, only 300 training pairs" in caption
    assert titles == ["Transformer (fairseq)", "Linear PhraseTransformer k=2"]
    assert "case:lc" in (out / "report-test_2016_flickr" / "report.md").read_text()


def test_a_slice_of_the_multi30k_table_in_moses_tokens_comes_to_its_end(
    synthetic_corpus, trained_pipeline, tmp_path
):
    data, out = tmp_path / "multi30k", tmp_path / "out"
    data.mkdir()
    for name, other in (("train", "train"), ("valid", "val"), ("test", "test_2016_flickr")):
        for language in ("de", "en"):
            lines = (synthetic_corpus / f"{name}.{language}").read_text().splitlines()
            with gzip.open(data / f"{other}.{language}.gz", "wt") as file:
                file.writelines(f"It's {line}\n" for line in lines)
    run_script(
        "multi30k_table1", *FEW, "--text", "moses", "--vocab-size", "300", "--rows", "dependency_k2",
        "--direction", "en-de", "--out", out, FAIRSEQ_PHRASE_DATA=str(tmp_path),
        FAIRSEQ_PHRASE_PARSER=pipeline_of("en", trained_pipeline),
    )  # fmt: skip
    caption, titles = table_of(out / "report-test_2016_flickr")
    assert "lower-cased tokens of Moses, vocabulary of 300, only 4 updates, only 300" in caption
    assert titles == ["PhraseTransformer of dependency edges"]
    assert "tok:none" in (out / "report-test_2016_flickr" / "report.md").read_text()
    tokens = (out / "raw" / "train.en").read_text().splitlines()
    assert len(tokens) == 300
    assert all(line == line.lower() and "it &apos;s" in line for line in tokens)
    translations = re.findall(
        r"^D-\d+\t\S+\t(.*)$",
        (out / "rows" / "dependency_k2" / "seed1" / "generate-test.txt").read_text(),
        re.MULTILINE,
    )
    assert len(translations) == 100
    assert not any("@@" in line for line in translations)


def test_a_slice_of_the_wmt_table_comes_to_its_end(synthetic_corpus, trained_pipeline, tmp_path):
    data = []
    if shared_data("wmt") is None:
        for path in synthetic_corpus.iterdir():
            shutil.copy(path, tmp_path / path.name.replace("valid", "dev"))
        data = ["--data", tmp_path]
    environment = {"FAIRSEQ_PHRASE_PARSER": pipeline_of("en", trained_pipeline)}
    if not data:
        environment["FAIRSEQ_PHRASE_DATA"] = str(shared_data("wmt").parent)
    out = tmp_path / "out"
    rows = ["--rows", "transformer,structural_9"]
    run_script("wmt14_table2", *FEW, *rows, *data, "--out", out, **environment)
    caption, titles = table_of(out / "report")
    assert "only 4 updates, only 300 training pairs" in caption
    assert titles == ["Transformer-Base (fairseq)", "+ relative sequential PE + structural PE"]
    words = "13a" if data else "none"  # the 10,000 pairs at hand are in tokens
    assert f"|tok:{words}|" in (out / "report" / "report.md").read_text()
    # What is in a folder cannot be taken for a table of other settings.
    refused = run_script("wmt14_table2", *rows, "--out", out, expect=1)
    assert "name another folder with --out" in refused


def test_a_slice_of_true_trees_comes_to_its_end_with_a_parsers_trees_of_the_same_words(
    synthetic_corpus, trained_pipeline, tmp_path
):
    data, out = tmp_path / "treebanks", tmp_path / "out"
    data.mkdir()
    for split in ("train", "valid", "test"):
        for own, language in (("en", "en"), ("de", "tr")):
            trees = (synthetic_corpus / f"{split}.{own}.conllu").read_text()
            (data / f"{split}.{language}.conllu").write_text(_with_spaces(trees))
    run_script(
        "true_trees", *FEW, "--data", data, "--rows", "structural_linear,structural_adapted",
        "--out", out, FAIRSEQ_PHRASE_PARSER=pipeline_of("en", trained_pipeline),
    )  # fmt: skip
    caption, titles = table_of(out / "report")
    assert "True trees: UD ATIS, en-tr, only 4 updates, only 300 training pairs" in caption
    assert titles == [
        f"Structural positions, {whose} trees" for whose in ("linear", "an adapted parser's")
    ]
    assert "  after   UAS " in (out / "parser.txt").read_text()
    for name in ("train", "valid", "test"):
        gold, parsed, adapted = (
            out / f"data-bin{data}" / f"{name}.en-tr.en" for data in ("", ".parsed", ".adapted")
        )
        for end in (".bin", ".words.bin"):
            same = Path(f"{gold}{end}").read_bytes()
            assert Path(f"{parsed}{end}").read_bytes() == same
            assert Path(f"{adapted}{end}").read_bytes() == same
        trees = [Path(f"{each}.heads.bin").read_bytes() for each in (gold, parsed, adapted)]
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


def test_a_slice_of_the_tree_table_comes_to_its_end_with_a_curve(trained_pipeline, tmp_path):
    run_script(
        "iwslt14_trees", *FEW, "--rows", "tree_neither", "--fractions", "1/2,1", "--out", tmp_path,
        FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    for fraction in ("1/2", "1"):
        folder = tmp_path / f"fraction-{fraction.replace('/', '-')}"
        caption, titles = table_of(folder / "report")
        assert f"{fraction} of the training data" in caption
        assert "only 4 updates, only 300 training pairs" in caption
        assert titles == ["Tree Transformer, neither of the two"]
    texts = [tmp_path / f"fraction-{name}" / "raw" / "train.de" for name in ("1-2", "1")]
    half, whole = (text.read_text().splitlines() for text in texts)
    assert half == whole[::2]
    assert "| 1/2 | 1 |" in re.sub(" +", " ", (tmp_path / "curve.md").read_text())
    assert (tmp_path / "curve.png").is_file()


def test_a_slice_of_the_nist_table_comes_to_its_end(synthetic_corpus, trained_pipeline, tmp_path):
    """With a corpus like a licensee's: two references of the development set, and a test set."""
    data, out = tmp_path / "nist", tmp_path / "out"
    data.mkdir()
    for name, copies in (
        ("train.de", ["train.zh"]), ("train.en", ["train.en"]),
        ("valid.de", ["dev.zh"]), ("valid.en", ["dev.en0", "dev.en1"]),
        ("test.de", ["test03.zh"]), ("test.en", ["test03.en"]),
    ):  # fmt: skip
        for copy in copies:
            shutil.copy(synthetic_corpus / name, data / copy)
    run_script(
        "nist_zh_en_table1", *FEW, "--rows", "table1_3", "--data", data, "--out", out, "--with-parsing",
        FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
    )  # fmt: skip
    for name in ("dev", "test03"):
        caption, titles = table_of(out / f"report-{name}")
        assert f"{name}, first reference, only 4 updates, only 300 training pairs" in caption
        assert titles == ["3: tree"]
    dev = (out / "report-dev" / "report.md").read_text()
    assert "34.23" in dev
    assert "with parsing" in dev
    assert "34.23" not in (out / "report-test03" / "report.md").read_text()
    assert "nrefs:2" in (out / "bleu-of-all-references.txt").read_text()


SYNTAX = [
    "--max-update", "3", "--slice", "300", "--jobs", "2", "--train-flags",
    f"{TINY} --max-tokens 500 --num-workers 0", "--generate-flags", "--max-len-a 0 --max-len-b 5",
]  # fmt: skip


def test_a_slice_of_the_table_of_syntax_comes_to_its_end_with_minimal_pairs(
    synthetic_corpus, trained_pipeline, tmp_path
):
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    for side in ("src.en", "tgt.correct.de", "tgt.incorrect.de"):
        pairs = tmp_path / "contrastive" / "agreement"
        pairs.mkdir(parents=True, exist_ok=True)
        lines = (synthetic_corpus / f"test.{side[-2:]}").read_text().splitlines()[:25]
        ending = " nicht" if "incorrect" in side else ""
        (pairs / side).write_text("".join(f"{line}{ending}\n" for line in lines))
    out = tmp_path / "out"
    options = ["--rows", "2", "--seeds", "1,2", "--out", out]
    environment = {
        "FAIRSEQ_PHRASE_DATA": str(tmp_path),
        "FAIRSEQ_PHRASE_PARSER": pipeline_of("en", trained_pipeline),
    }
    run_script("which_syntax", *SYNTAX, *options, **environment)
    caption, titles = table_of(out / "report")
    assert "Multi30k en-de, small setting, only 3 updates, only 300 training pairs" in caption
    assert titles[:2] == ["Transformer (fairseq)", "+ relative positions"]
    text = (out / "report" / "report.md").read_text()
    assert "agreement" in text
    assert "test1" in text
    scored = out / "rows" / "relative" / "seed2" / "contrastive" / "agreement.incorrect.txt"
    assert len(re.findall(r"^H-\d+\t", scored.read_text(), re.MULTILINE)) == 20
    # Of some rows only, in a report of their own.
    some = ["--report-only", "--pairs-of", "relative"]
    run_script("which_syntax", *SYNTAX, *options, *some, **environment)
    assert table_of(out / "report.minimal_pairs")[1][0] == "+ relative positions"
    assert "agreement" in (out / "report.minimal_pairs" / "report.md").read_text()
    assert "agreement" not in (out / "report" / "report.md").read_text()


def test_slices_of_the_table_of_syntax_come_to_their_ends_on_other_text(
    synthetic_corpus, trained_pipeline, tmp_path
):
    source, target = (
        (synthetic_corpus / f"train.{language}").read_text().splitlines()
        for language in ("en", "de")
    )
    table = tmp_path / "pairs.tsv"
    table.write_text("".join(f"{en}\t{de}\tx\n" for en, de in zip(source, target, strict=True)))
    environment = {"FAIRSEQ_PHRASE_PARSER": pipeline_of("de", trained_pipeline)}
    for rows, options in (
        ("relation_tree_random,structural_9_rdrop", ["tatoeba", "--tatoeba", table]),
        ("parse_loss,tree", ["synthetic"]),
    ):
        out = tmp_path / options[0]
        run_script(
            "which_syntax", *SYNTAX, "--rows", rows, "--corpus", *options, "--out", out,
            **environment,
        )  # fmt: skip
        caption, titles = table_of(out / "report")
        assert "300 pairs, small setting, only 3 updates" in caption
        assert len(titles) == 2


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
    for one, other in combinations(splits.values(), 2):
        for these, those in zip(one, other, strict=True):
            assert these
            assert not {text.rstrip(".") for text in these} & {text.rstrip(".") for text in those}
    table.write_text("one\teins\ntwo\n")
    failed = subprocess.run(
        [*tatoeba, table, tmp_path], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert failed.returncode == 1
    assert f"{table}, line 2: expected English, tab, German" in failed.stderr
