"""``scripts/logical_forms.py``: four formats of questions and forms, and bad input."""

from __future__ import annotations

import re
import sys
import zipfile

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from logical_forms import main


def run(*arguments: object) -> None:
    main([str(word) for word in arguments])


def lines(path):
    return path.read_text().splitlines()


def test_geoquery_keeps_all_training_questions(tmp_path):
    (tmp_path / "geo_train.tsv").write_text("what is  it ?\t_answer ( A )\n" * 70)
    (tmp_path / "geo_test.tsv").write_text("who ?\t_b\n")
    run("geo", tmp_path, tmp_path / "out")
    assert lines(tmp_path / "out" / "train.en") == ["what is it ?"] * 70
    assert len(lines(tmp_path / "out" / "valid.lf")) == 60
    assert lines(tmp_path / "out" / "test.lf") == ["_b"]


def test_atis_has_no_question_in_two_splits(tmp_path):
    text = "".join(f"flight {number} ||| ( f {number} )\n" for number in range(200)) * 2
    (tmp_path / "atis-logic.txt").write_text(text)
    run("atis", tmp_path, tmp_path / "out")
    splits = [set(lines(tmp_path / "out" / f"{name}.en")) for name in ("train", "valid", "test")]
    assert all(splits)
    assert sum(map(len, splits)) == len(set.union(*splits)) == 200


def test_atis_gets_the_brackets_that_a_form_lacks_at_its_end(tmp_path, capsys):
    text = (
        "which ||| ( lambda $v0 e ( flight $v0 )\nwhat ||| ( capacity d9s : ac )\nap ||| ap : al\n"
    )
    (tmp_path / "atis-logic.txt").write_text(text)
    run("atis", tmp_path, tmp_path / "out")
    forms = {line for path in (tmp_path / "out").glob("*.lf") for line in lines(path)}
    assert forms == {"( lambda $0 e ( flight $0 ) )", "( capacity d9s : ac )", "ap : al"}
    assert "(added): 1\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("$0", "$1"),
        ("$v0", "$v1"),
        ("$v1", "$1"),  # two variables, though their names differ by the v only
        ("$1", "$0"),
    ],
)
def test_atis_numbers_a_forms_variables_in_their_order(tmp_path, outer, inner):
    form = f"( lambda {outer} e ( exists {inner} ( from {inner} {outer} ) ) )"
    (tmp_path / "atis-logic.txt").write_text(f"which airlines ||| {form}\n" * 2)
    run("atis", tmp_path, tmp_path / "out")
    text = "".join(path.read_text() for path in (tmp_path / "out").glob("*.lf"))
    assert text == "( lambda $0 e ( exists $1 ( from $1 $0 ) ) )\n" * 2


def test_scan_is_read_by_its_split(tmp_path):
    for name in ("train", "test"):
        path = tmp_path / "length_split" / f"tasks_{name}_length.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("IN: walk twice OUT: I_WALK I_WALK\n" * 20)
    run("scan", tmp_path, tmp_path / "out", "--split", "length")
    assert len(lines(tmp_path / "out" / "train.en")) == 18
    assert lines(tmp_path / "out" / "test.lf")[0] == "I_WALK I_WALK"


def test_slogs_generalization_sets_become_test_sets(tmp_path):
    for name in ("train", "dev", "test"):
        (tmp_path / f"{name}.tsv").write_text("A dog ran.\trun ( agent = dog )\tname\n")
    with zipfile.ZipFile(tmp_path / "generalization_sets.zip", "w") as archive:
        text = "A cat ran.\trun ( agent=cat )\tPP_3\nWho ran?\trun ( agent=? )\tQ_long_mv\n"
        archive.writestr("sets/gen_varfreeLF.tsv", text)
    run("slog", tmp_path, tmp_path / "out")
    assert lines(tmp_path / "out" / "test.PP_3.en") == ["A cat ran ."]
    assert lines(tmp_path / "out" / "test.Q_long_mv.lf") == ["run ( agent = ? )"]


@pytest.mark.parametrize(
    ("corpus", "file", "text", "said"),
    [
        ("geo", None, "", "expected one file *train*.tsv"),
        ("atis", "atis-logic.txt", "a ||| b\nno form\n", "line 2: expected a question"),
        ("scan", "tasks_train_simple.txt", "walk\n", "line 1: expected 'IN:"),
    ],
)
def test_bad_files_are_named_with_their_lines(tmp_path, corpus, file, text, said):
    if file is not None:
        (tmp_path / file).write_text(text)
    with pytest.raises(SystemExit, match=re.escape(said)):
        run(corpus, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_descriptions_and_expressions_of_nl_rx_are_read_line_by_line(tmp_path):
    for name in ("train", "val", "test"):
        (tmp_path / f"src-{name}.txt").write_text("lines  with a letter\n")
        (tmp_path / f"targ-{name}.txt").write_text("[ <LET> ]\n")
    run("regex", tmp_path, tmp_path / "out")
    assert lines(tmp_path / "out" / "valid.en") == ["lines with a letter"]
    assert lines(tmp_path / "out" / "test.lf") == ["[ <LET> ]"]
    (tmp_path / "targ-val.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit, match=r"src-val.txt has 1 lines, and .*targ-val.txt has 2"):
        run("regex", tmp_path, tmp_path / "other")
