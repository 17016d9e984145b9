"""Contrastive accuracy: minimal pairs, scored by fairseq-generate --score-reference."""

from __future__ import annotations

import gzip
import shutil
import sys
from argparse import Namespace

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.contrastive import read_pairs, shortened
from tests.support.report_table import (
    TRANSLATIONS,
    records,
    refusal,
    report,
    run_of,
    table_lines,
    write_table,
)
from tests.support.repository import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "scripts"))
import contrastive

# Log-probabilities of the subwords of the correct and of the incorrect translation.
AGREEMENT = [
    ("-0.1 -0.2", "-0.1 -0.9"),  # correct by both readings
    ("-1.0 -1.0", "-0.1 -0.2"),  # by neither
    ("-0.5 -0.5 -0.5", "-1.2"),  # a shorter translation wins by the total, and loses by the mean
    ("-0.5 -0.5", "-0.5 -0.5"),  # a tie is not correct
]
OMISSION = [("-0.3 -0.3", "-0.4")]


def write_pairs(folder, phenomena):
    for name, pairs in phenomena.items():
        place = folder / f"{name}.mt"
        place.mkdir(parents=True)
        for part in ("src.en", "tgt.correct.de", "tgt.incorrect.de"):
            with gzip.open(place / f"{part}.gz", "wt") as stream:
                stream.writelines(f"{part} {number}\n" for number in range(len(pairs)))
    return folder


def write_scores(run, name, pairs):
    (run / "contrastive").mkdir(exist_ok=True)
    for column, side in enumerate(("correct", "incorrect")):
        lines = []
        for index in reversed(range(len(pairs))):  # fairseq sorts by length
            lines += [f"S-{index}\tx", f"H-{index}\t-0.1\t▁y", f"P-{index}\t{pairs[index][column]}"]
        (run / "contrastive" / f"{name}.{side}.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def table(tmp_path):
    """Two rows of two seeds that have scored the pairs of two phenomena."""
    write_table(tmp_path)
    write_pairs(tmp_path / "pairs", {"agreement": AGREEMENT, "omission": OMISSION})
    for row, seed in TRANSLATIONS:
        agreement = [AGREEMENT[0]] * 4 if (row, seed) == ("k2", 1) else AGREEMENT
        write_scores(run_of(tmp_path, row, seed), "agreement", agreement)
        write_scores(run_of(tmp_path, row, seed), "omission", OMISSION)
    return tmp_path


def test_accuracies_by_both_readings_are_in_the_report(table):
    text = report(table, "--test", "none", "--contrastive", str(table / "pairs"))
    assert "**Contrastive accuracy**" in text
    heading, baseline, k2 = table_lines(text)[-3:]
    assert heading == ["model", "agreement (4)", "omission (1)", "mean"]
    assert baseline == ["baseline", "25.0 ± 0.0 / 50.0 ± 0.0", "0.0 ± 0.0 / 100.0 ± 0.0",
                        "12.5 ± 0.0 / 75.0 ± 0.0"]  # fmt: skip
    assert k2[1] == "62.5 ± 53.0 / 75.0 ± 35.4"
    runs = {(run["row"], run["seed"]): run for run in records(table / "out" / "runs.csv")}
    assert float(runs["k2", "1"]["agreement total"]) == 1
    assert float(runs["k2", "2"]["agreement mean"]) == 0.5
    page = (table / "out" / "report.html").read_text()
    assert "<h2>Contrastive accuracy</h2>" in page
    assert "agreement (4)" in (table / "out" / "report.tex").read_text()
    assert "Contrastive" not in report(table, "--test", "none")


def test_sums_are_enough_for_the_same_report(table):
    arguments = ("--test", "none", "--contrastive", str(table / "pairs"))
    before = report(table, *arguments)
    for path in table.glob("runs/*/*/contrastive/*.txt"):
        short = [line for line in map(shortened, path.read_text().splitlines()) if line]
        assert [shortened(line) for line in short] == short
        path.write_text("".join(f"{line}\n" for line in short))
    assert "TOTAL-0\t-0.3000 2" in short
    assert report(table, *arguments) == before


def test_files_of_unequal_length_are_refused_with_their_numbers_of_lines(table, capsys):
    with gzip.open(table / "pairs" / "agreement.mt" / "tgt.incorrect.de.gz", "at") as stream:
        stream.write("one more\n")
    message = refusal(table, capsys, "--contrastive", str(table / "pairs"))
    assert "agreement.mt: src.en.gz has 4 lines, tgt.correct.de.gz has 4 lines" in message
    assert "tgt.incorrect.de.gz has 5 lines" in message


def test_missing_and_other_scores_are_refused(table, capsys):
    pairs = ("--contrastive", str(table / "pairs"))
    scores = run_of(table, "k2", 2) / "contrastive" / "agreement.correct.txt"
    text = scores.read_text()
    scores.write_text("\n".join(text.splitlines()[:-1]) + "\n")
    assert "has scores of 3 translations, but" in refusal(table, capsys, *pairs)
    scores.write_text(text + "P-4\t-0.5\n")
    assert "agreement.correct.txt, line 13: scores of pair 4, but" in refusal(table, capsys, *pairs)
    scores.unlink()
    assert "score the minimal pairs by scripts/contrastive.py" in refusal(table, capsys, *pairs)


def test_a_folder_without_minimal_pairs_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        read_pairs(tmp_path / "no")
    with pytest.raises(UserError, match="has no minimal pairs"):
        read_pairs(tmp_path)
    write_pairs(tmp_path / "pairs", {"a": OMISSION})
    (tmp_path / "pairs" / "a.mt" / "tgt.correct.de.gz").unlink()
    with pytest.raises(UserError, match=r"a\.mt has no tgt\.correct\.LANG"):
        read_pairs(tmp_path / "pairs")


@pytest.fixture
def scored(table, monkeypatch):
    """Return a function that scores the pairs with options, without a parser and fairseq-generate.

    A model's scores are its file's.
    """
    for part in ("k2", "baseline"):
        shutil.rmtree(run_of(table, part, 1) / "contrastive")
        (run_of(table, part, 1) / "average.pt").write_text(f"-0.1 {part}")
    data, binarized = table / "data-bin", table / "work" / "pairs-bin"
    data.mkdir()
    (data / "syntax.en.json").write_text("{}")

    def preprocess(args, prefix, destination):
        destination.mkdir()
        (destination / "syntax.en.json").write_text("{}")

    def generate(command, stdout, **_):
        text = (table / "work" / "text" / "all.de").read_text().splitlines()
        model = command[command.index("--path") + 1]
        stdout.write("".join(f"P-{i}\t-0.1 {model}\n" for i in range(len(text))))

    monkeypatch.setattr(contrastive, "preprocess", preprocess)
    monkeypatch.setattr(contrastive.subprocess, "run", generate)

    def score(**changes):
        defaults = {
            "data": data, "work": binarized.parent, "source": "en", "target": "de", "parser": None,
            "checkpoint": "average.pt", "max_tokens": 8, "jobs": 1, "generate_flags": "",
        }  # fmt: skip
        runs = [run_of(table, part, 1) for part in ("k2", "baseline")]
        args = Namespace(**defaults | changes)
        contrastive.score_all(args, read_pairs(table / "pairs"), runs)
        return runs

    return score


def test_pairs_are_scored_once(scored):
    first, second = scored()
    before = {path: path.read_bytes() for path in first.glob("contrastive/*")}
    assert len(before) == 6  # two sides of two phenomena, log and key
    scored()
    (first / "average.pt").unlink()
    scored()
    assert {path: path.read_bytes() for path in first.glob("contrastive/*")} == before
    (second / "contrastive" / "key.json").unlink()  # of an earlier version
    scored(jobs=2)


@pytest.mark.parametrize("change", ["pairs", "parser", "data"])
def test_data_of_other_pairs_are_refused(scored, table, change):
    scored()
    changes = {"parser": "none"} if change == "parser" else {}
    if change == "pairs":
        with gzip.open(table / "pairs" / "agreement.mt" / "src.en.gz", "wt") as stream:
            stream.writelines(f"another {number}\n" for number in range(len(AGREEMENT)))
    elif change == "data":
        (table / "data-bin" / "syntax.en.json").write_text('{"parser": "b"}')
    with pytest.raises(SystemExit, match=f"pairs-bin was made with .* remove {table / 'work'} to"):
        scored(**changes)


@pytest.mark.parametrize("change", ["flags", "checkpoint", "model"])
def test_scores_of_other_options_or_models_are_refused(scored, table, change):
    run, _ = scored()
    changes = {"flags": {"generate_flags": "--fp16"}, "checkpoint": {"checkpoint": "best.pt"}}
    if change == "model":
        (run / "average.pt").write_text("-0.2")
    with pytest.raises(
        SystemExit, match=f"contrastive was made with .* remove {run}/contrastive to"
    ):
        scored(**changes.get(change, {}))


def test_two_files_of_one_side_are_refused(tmp_path):
    write_pairs(tmp_path, {"omission": OMISSION})
    (tmp_path / "omission.mt" / "src.fr").touch()
    with pytest.raises(UserError, match=r"omission\.mt has src\.en\.gz and src\.fr: which one"):
        read_pairs(tmp_path)
