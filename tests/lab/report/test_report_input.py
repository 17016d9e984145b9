"""Runs that make no report: each is refused with one message, and nothing is written."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from fairseq_phrase.cli.report import main
from fairseq_phrase.lab.report import plots
from tests.support.report_table import (
    REFERENCES,
    SOURCES,
    TRANSLATIONS,
    add_run,
    change_log,
    named_rows,
    refusal,
    report,
    run_of,
    table_lines,
    translate,
    translations,
    write_lines,
)
from tests.support.run_folders import write_run


def test_options_are_checked_before_there_are_runs(tmp_path, refused):
    (tmp_path / "test.en").write_text("a b\n")
    words = [str(tmp_path / "runs"), "--reference", str(tmp_path / "test.en"), "--check"]
    words += ["--out", str(tmp_path / "out")]
    main(words)
    for bad, message in (
        (["--tokenize", "13b"], "--tokenize 13b: expected one of"),
        (["--measure", "spans"], "line 1 of the reference has the label 'a'"),
        (["--rows", str(tmp_path / "rows.yaml")], "rows.yaml is not there"),
    ):
        assert message in refused(main, [*words, *bad])
    assert [path.name for path in tmp_path.iterdir()] == ["test.en"]


def truncated_training(table):
    log = run_of(table, "k2", 2) / "train.log"
    log.write_text("".join(line for line in log.open() if "done training" not in line))


def test_an_unfinished_training_is_refused_and_left_out_on_demand(table, capsys):
    truncated_training(table)
    message = refusal(table, capsys)
    assert "1 run cannot be reported:" in message
    assert (
        "seed2/train.log: the training is still running, or was stopped after 20 updates" in message
    )
    assert "--partial" in message
    text = report(table, "--partial", "--baseline", "baseline", "--trials", "50")
    assert text.startswith("**PARTIAL TABLE: Results**\n\nLeft out:\n\n- ")
    assert "seed2/train.log" in text
    for name in ("report.tex", "report.html"):
        assert "PARTIAL TABLE" in (table / "out" / name).read_text()
    rows = named_rows(table)
    assert (rows["k2"]["runs"], rows["k2"]["left_out"]) == ("1", "1")
    assert rows["baseline"]["left_out"] == "0"


def test_several_rows_do_not_get_one_name(table, capsys):
    message = refusal(table, capsys, runs=("mine=runs",))
    assert "runs has 2 rows: they cannot all be named 'mine'" in message


def test_plots_name_what_is_left_out():
    titles = [plots.title_of(SimpleNamespace(left_out=runs), "Curves") for runs in ([], ["a run"])]
    assert titles == ["Curves", "Curves (PARTIAL: runs left out)"]


def test_partial_says_nothing_where_nothing_is_left_out(table):
    assert report(table, "--partial").startswith("**Results**")


def test_a_failed_training_is_refused_with_its_error(table, capsys):
    truncated_training(table)
    with open(run_of(table, "k2", 2) / "train.log", "a") as log:
        log.write(
            "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
        )
    assert "failed after 20 updates: torch.OutOfMemoryError: CUDA out of memory" in refusal(
        table, capsys
    )


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("train.log", "has no train.log"),
        ("generate-test.txt", "has no translations: neither generate-test.txt nor generate.txt"),
    ],
)
def test_a_run_that_lacks_a_file_is_refused(table, capsys, gone, message):
    (run_of(table, "k2", 1) / gone).unlink()
    assert message in refusal(table, capsys)


def test_a_folder_of_a_seed_in_which_nothing_ran_is_refused(table, capsys):
    run_of(table, "k2", 3).mkdir()
    assert "seed3 has no train.log" in refusal(table, capsys)


def test_a_translation_that_was_truncated_is_refused(table, capsys):
    path = run_of(table, "k2", 1) / "generate-test.txt"
    path.with_suffix(".log").unlink()
    path.write_text(path.read_text()[:-400])
    assert "is not a whole output of fairseq-generate" in refusal(table, capsys)


def test_another_test_set_is_refused(table, capsys):
    shifted = REFERENCES[1:] + REFERENCES[:1]
    translate(table, "k2", 1, shifted, SOURCES, [f"Nothing of the kind {i}" for i in range(60)])
    assert "is the translation of another test set than the reference: sentence 0" in refusal(
        table, capsys
    )
    translate(table, "k2", 1, REFERENCES[:59])
    assert "has 59 translations and the reference 60 lines" in refusal(table, capsys)
    translate(table, "k2", 1, REFERENCES, [f"Etwas anderes, {i}" for i in range(60)])
    assert "have different test sets: sentence 0 is" in refusal(table, capsys)
    path = run_of(table, "k2", 1) / "generate-test.txt"
    path.write_text(path.read_text().replace("Generate test with", "Generate valid with"))
    assert "is the translation of 'valid', not of 'test'" in refusal(table, capsys)


def test_sources_of_another_test_set_are_refused(table, capsys):
    write_lines(table / "test.de", (f"Etwas anderes, {i}." for i in range(60)))
    message = refusal(table, capsys, "--source", str(table / "test.de"))
    assert (
        "is the translation of another test set than the source: sentence 0 is 'Quelle 0:"
        in message
    )
    assert "the source has 'Etwas anderes, 0.'" in message


def test_another_reference_is_refused_even_with_partial(table, capsys):
    write_lines(table / "test.en", (f"Something else, {i}." for i in range(60)))
    assert "no run can be reported" in refusal(table, capsys, "--partial")
    (table / "test.en").write_text("")
    assert "test.en is empty" in refusal(table, capsys)


def test_subwords_and_unknown_words_in_fairseqs_own_reference_are_no_other_test_set(table):
    report_text = report(table)
    texts = [f"▁{text.replace(' ', ' ▁').replace('sees', 'se es')}" for text in REFERENCES]
    texts = [text.replace("<b>old</b>", "<<unk>> &lt;b&gt;") for text in texts]
    for (row, seed), hypotheses in TRANSLATIONS.items():
        translate(table, row, seed, hypotheses, SOURCES, texts)
    assert report(table) == report_text


def test_a_few_lines_of_another_text_are_counted(table):
    note = "lines of the {} are not what fairseq printed, the first of them line {}:"
    assert "not what fairseq printed" not in report(table)
    other_lines = [*REFERENCES[:52], *(f"Nothing of the kind, {i}." for i in range(8))]
    write_lines(table / "test.en", other_lines)
    assert f"8 of 60 {note.format('reference', 53)}" in report(table)
    write_lines(table / "second.en")
    report_text = report(table, "--reference", str(table / "second.en"))
    assert "not what fairseq printed" not in report_text
    translate(table, "k2", 1, TRANSLATIONS["k2", 1], ["Etwas anderes.", *SOURCES[1:]])
    report_text = report(table, reference="second.en")
    assert f"1 of 60 {note.format('source', 1)}" in report_text


def test_two_rows_of_one_name_are_refused(table, capsys):
    write_run(table / "more" / "k2" / "seed3", translations(5), SOURCES, REFERENCES, seed=3)
    message = refusal(table, capsys, runs=("runs", "more"))
    assert "two rows are named 'k2'" in message
    assert "NAME=" in message
    text = report(table, runs=("runs", "again=more"))
    assert "| again " in text


def test_a_missing_baseline_is_refused(table, capsys):
    message = refusal(table, capsys, "--baseline", "transformer")
    assert "the baseline 'transformer' is not among the rows: baseline, k2" in message
    for seed in (1, 2):
        (run_of(table, "baseline", seed) / "generate-test.txt").unlink()
    message = refusal(table, capsys, "--baseline", "baseline", "--partial")
    assert "the baseline 'baseline' has no finished run:" in message


def test_a_table_of_some_rows_says_so_in_its_caption(table):
    rows = table / "rows.yaml"
    rows.write_text("baseline: Transformer\nk3: {title: Phrase k=3, paper: 35.1}\nk2: Phrase k=2\n")
    text = report(table, "--rows", str(rows), "--caption", "Multi30k")
    assert text.startswith("**Multi30k (2 of 3 rows)**\n")
    assert "Rows without runs: Phrase k=3." in text
    assert [cells[0] for cells in table_lines(text)] == ["model", "Transformer", "Phrase k=2"]
    assert "(2 of 3 rows)" in (table / "out" / "report.html").read_text()
    runs = {name: row["runs"] for name, row in named_rows(table).items()}
    assert runs == {"baseline": "2", "k3": "0", "k2": "2"}


def test_a_row_none_of_whose_runs_ended_is_shown_without_numbers(table):
    for seed in (1, 2):
        (run_of(table, "k2", seed) / "generate-test.txt").unlink()
    text = report(table, "--partial", "--baseline", "baseline")
    heading, _, second = table_lines(text)
    assert second == ["k2", *"-" * (len(heading) - 1)]
    assert (table / "out" / "report.html").is_file()


def test_two_rows_of_one_title_are_refused(table, capsys):
    (table / "rows.yaml").write_text("k2: Transformer\nbaseline: Transformer\n")
    message = refusal(table, capsys, "--rows", str(table / "rows.yaml"))
    assert "rows 'k2' and 'baseline' have the same title, 'Transformer'" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("k2: [1, 2]\n", "row 'k2' must be a title"),
        ("k2: {titel: x}\n", "row 'k2' has 'titel'"),
        ("k2: {title: Phrase, k=2}\n", "row 'k2' has 'k=2'; .*quotation marks"),
        ("k2: x\nk2: y\n", "two rows are named 'k2'"),
        ("- k2\n", "expected a mapping of rows"),
        ("k2: {title: x\n", "rows.yaml, line "),
        ("", "expected a mapping of rows"),
    ],
)
def test_a_wrong_file_of_rows_is_refused(table, capsys, text, message):
    (table / "rows.yaml").write_text(text)
    assert re.search(message, refusal(table, capsys, "--rows", str(table / "rows.yaml")))


def test_a_log_of_another_seed_or_size_is_refused(table, capsys):
    change_log(table, "k2", 2, "'seed': 2", "'seed': 1")
    assert "the training has --seed 1" in refusal(table, capsys)
    change_log(table, "k2", 2, "'seed': 1", "'seed': 2")
    change_log(table, "k2", 2, "1,705,216", "99")
    assert "row 'k2' mixes two models" in refusal(table, capsys)


def test_folders_without_runs_and_missing_folders_are_refused(table, capsys):
    (table / "data-bin").mkdir()
    assert "has no runs: expected train.log" in refusal(table, capsys, runs=("data-bin",))
    assert "nowhere is not there" in refusal(table, capsys, runs=("nowhere",))


def test_a_test_over_seeds_of_rows_with_one_seed_is_refused(table, capsys):
    add_run(table, "k3", 1, translations(5))
    message = refusal(table, capsys, "--baseline", "baseline", "--test", "seeds")
    assert "--test seeds needs at least two seeds of each row: 'k3' has 1" in message
    assert "name one with --baseline ROW" in refusal(table, capsys, "--test", "seeds")


def test_references_of_one_test_set_and_missing_translations_are_refused(table, capsys):
    reference = str(table / "test.en")
    message = refusal(table, capsys, "--reference", reference)
    assert "two files of the test set 'test' are its source, or the same reference" in message
    (table / "short.en").write_text("one\ntwo\n")
    message = refusal(table, capsys, "--reference", str(table / "short.en"))
    assert "the second reference of the test set 'test' has 2 lines, its reference 60" in message
    message = refusal(table, capsys, "--reference", f"test1={reference}")
    assert "has no translations: no generate-test1.txt" in message


def test_a_source_of_another_length_or_test_set_is_refused(table, capsys):
    (table / "test.de").write_text("eins\nzwei\n")
    message = refusal(table, capsys, "--source", str(table / "test.de"))
    assert "the source of the test set 'test' has 2 lines, its reference 60" in message
    message = refusal(table, capsys, "--source", f"test1={table / 'test.de'}")
    assert "--source names the test set 'test1', but --reference does not" in message


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["test="], "--set-name test=: expected SUBSET=NAME, such as test1=PP_3"),
        (["PP_3"], "--set-name PP_3: expected SUBSET=NAME"),
        (["test1=PP_3"], "--set-name names the test set 'test1', but --reference does not"),
    ],
)
def test_names_of_test_sets_that_do_not_fit_are_refused(table, capsys, names, message):
    options = [word for name in names for word in ("--set-name", name)]
    assert message in refusal(table, capsys, *options)


def test_two_test_sets_with_one_name_are_refused(table, capsys):
    second = ["--reference", f"test1={table / 'test.en'}", "--set-name", "test1=test"]
    assert "--set-name gives two test sets one name" in refusal(table, capsys, *second)


def test_a_folder_may_be_named_with_a_raised_digit(table):
    (table / "runs" / "k2").rename(table / "runs" / "k2²")
    assert {line[0] for line in table_lines(report(table))} >= {"baseline", "k2²"}
