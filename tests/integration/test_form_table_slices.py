"""Slices of the attention family's tables: scripts from text to report, one row and two updates."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path

from tests.support.commands import run_script
from tests.support.multi30k import multi30k_of
from tests.support.report_table import rows_with_runs

SMALL = [
    "--max-update", "2", "--slice", "300", "--train-flags", "--max-tokens 200 --num-workers 0",
    "--generate-flags", "--max-len-a 0 --max-len-b 4 --beam 1",
]  # fmt: skip


def table_of(
    script: str, names: str, out: Path, *options: object, **settings: str
) -> tuple[str, list[dict[str, str]]]:
    """Run a slice of a table: its report, and the rows that have runs, which are those named."""
    run_script(script, *SMALL, "--rows", names, "--out", out, *options, **settings)
    rows = rows_with_runs(out / "report")
    assert sorted(row["row"] for row in rows) == sorted(names.split(","))
    return (out / "report" / "report.md").read_text(), rows


def test_a_slice_of_the_table_of_regular_expressions_comes_to_its_end(tmp_path):
    data, out = tmp_path / "synth", tmp_path / "out"
    data.mkdir()
    for name, count in (("train", 300), ("val", 5), ("test", 5)):
        texts = {"src": "lines with a letter\n" * count, "targ": ". * ( [ <LET> ] ) . *\n" * count}
        for side, text in texts.items():
            (data / f"{side}-{name}.txt.gz").write_bytes(gzip.compress(text.encode()))
    text, rows = table_of("regex", "additive_joint", out, "--data", data)
    assert "Regular expressions, NL-RX synth, only 2 updates, only 300 training pairs" in text
    assert "| equal languages |" in text.replace("  ", "")
    assert {row["undecided_mean"] for row in rows} == {"0.0"}


def test_a_slice_of_the_table_of_queries_comes_to_its_end(tmp_path):
    path, out = tmp_path / "wikisql.json", tmp_path / "out"
    query = "SELECT TABLEalias0.NAME_FIELD FROM TABLE AS TABLEalias0 WHERE TABLEalias0.NO._FIELD"
    entries = [
        {
            "sql": [f'{query} = "var{n}" ;'],
            "sentences": [
                {
                    "question-split": split, "table-id": split, "text": f"who is number var{n} ?",
                    "variables": {f"var{n}": str(n)},
                }
            ],
        }
        for split, count in (("train", 300), ("dev", 5), ("test", 5))
        for n in range(count)
    ]  # fmt: skip
    path.write_text(json.dumps(entries))
    text, rows = table_of("sql", "additive_gate", out, "--data", path)
    assert "sqlglot parses the output" in text
    assert {"equal queries_mean", "well-formed_mean"} <= set(rows[0])


def test_a_slice_of_the_lectures_table_comes_to_its_end(synthetic_corpus, tmp_path):
    out = tmp_path / "out"
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    text, _ = table_of("lecture_table", "none", out, FAIRSEQ_PHRASE_DATA=str(tmp_path))
    assert "The references have rep-1" in text
    assert (out / "report" / "lengths.png").is_file()
    page = (out / "report" / "report.html").read_text()
    assert "BLEU by length of the source" in page


def test_a_slice_of_the_table_of_logical_forms_comes_to_its_end(english_parser, tmp_path):
    data, out = tmp_path / "geo", tmp_path / "out"
    data.mkdir()
    (data / "geo_train.tsv").write_text("what is the river ?\t_answer ( A , _river ( A ) )\n" * 70)
    (data / "geo_test.tsv").write_text("what is the lake ?\t_answer ( A , _lake ( A ) )\n" * 5)
    text, _ = table_of(
        "semantic_parsing", "additive_gate,additive", out, "--data", data, **english_parser
    )
    for row, place in (("additive_gate", "data-bin"), ("additive", "data-bin.without-places")):
        commands = (out / "rows" / row / "seed1" / "commands.sh").read_text()
        assert set(re.findall(r"fairseq-(?:train|generate) (\S+)", commands)) == {str(out / place)}
        assert ("<copy1>" in (out / place / "dict.en.txt").read_text()) == (row == "additive_gate")
    assert "all predicates occur in training" in text
    assert "5 of 5 references are not well-formed." in text


def test_a_slice_of_the_table_of_generalization_comes_to_its_end(english_parser, tmp_path):
    data, out = tmp_path / "slog", tmp_path / "out"
    data.mkdir()
    for name, count in (("train", 300), ("dev", 5), ("test", 5)):
        (data / f"{name}.tsv").write_text("A dog ran .\trun ( agent = dog )\tname\n" * count)
    with zipfile.ZipFile(data / "generalization_sets.zip", "w") as archive:
        sets = (f"A cat ran .\trun ( agent = cat )\t{name}\n" * 5 for name in ("PP_3", "CP_3"))
        archive.writestr("gen_varfreeLF.tsv", "".join(sets))
    options = ("--data", data, "--trees", "adapted")
    text, _ = table_of("compositional", "relative", out, *options, **english_parser)
    manifest = json.loads((out / "data-bin" / "syntax.en.json").read_text())
    assert manifest["parser"] == f"spacy:{out / 'parser'}"
    assert "exact match CP_3 | exact match PP_3 | exact match |" in " ".join(text.split())
    own = (out / "report.test" / "report.md").read_text()
    assert "test set of the training distribution" in own
    assert "UAS" in (out / "parser.txt").read_text()
    assert "Well-formed: brackets match." in text
    assert (out / "report" / "by-set.png").is_file()
