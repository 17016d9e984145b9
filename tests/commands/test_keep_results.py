"""What is kept of a table: enough to make its report again, no test set, no path of this machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.commands import script_environment
from tests.support.documented import blocks_of
from tests.support.report_table import report, rows_with_runs, write_table
from tests.support.repository import REPOSITORY, needs_history_and_outputs
from tests.support.run_folders import write_interactive
from tests.support.warm_start import python

sys.path.append(str(REPOSITORY / "scripts"))

from keep_results import (
    ARCHIVE,
    ENCRYPTED,
    compact,
    read_archive,
    replace_table,
    thinned,
    write_archive,
)
from restore_results import digest, restore_table
from score_results import commands, different, program, score


def script(name, *arguments, cwd=REPOSITORY, expect=0) -> str:
    """Run a script of the repository; return what it printed."""
    finished = subprocess.run(
        [python(), str(REPOSITORY / "scripts" / f"{name}.py"), *map(str, arguments)],
        cwd=cwd,
        env=script_environment(),
        capture_output=True,
        text=True,
    )
    assert finished.returncode == expect, finished.stderr
    return finished.stdout + finished.stderr


def make_table(path):
    """A folder as a table's script leaves it."""
    folder = write_table(path / "table")
    (folder / "runs").rename(folder / "rows")
    (folder / "settings").write_text("setting=tuned\n")
    (folder / "provenance.txt").write_text("commit: abc\n")
    (folder / "configs").mkdir()
    (folder / "configs" / "k2.yaml").write_text("model: {}\n")
    (folder / "data-bin").mkdir()
    (folder / "data-bin" / "syntax.de.json").write_text(f'{{"parser": "spacy:{path}/de"}}\n')
    (folder / "data-bin" / "train.de-en.de.bin").write_bytes(b"0")
    run = folder / "rows" / "k2" / "seed1"
    write_interactive(run / "interactive-test.txt", 60, 4.0)
    (run / "contrastive").mkdir()
    scored = "S-0\ta sentence\nP-0\t-0.1 -0.2\n"
    (run / "contrastive" / "negation.correct.txt").write_text(scored)
    (run / "commands.sh").write_text("fairseq-train DATA\n")
    (run / "checkpoint_last.pt").write_bytes(b"0")
    with open(run / "train.log", "a") as log:
        log.write(f"2026-11-20 22:45:00 | INFO | x | Saved checkpoint {path}/table/rows/k2/x.pt\n")
        log.write(f"{sysconfig.get_path('purelib')}/torch/a.py:1: UserWarning: slow\n")
        log.write(f"{sysconfig.get_path('stdlib')}/shutil.py:2: UserWarning: slower\n")
        log.write("Saved average checkpoint to /another/copy/runs/table/rows/k2/seed1/average.pt\n")
    return folder


ARGUMENTS = ("--baseline", "baseline", "--trials", "50")


@pytest.fixture(scope="module")
def first_report(tmp_path_factory):
    """The folder of a table's report."""
    folder = make_table(tmp_path_factory.mktemp("reported"))
    report(folder, *ARGUMENTS, runs=("rows",), out="report")
    return folder / "report"


@pytest.fixture
def unreported(tmp_path):
    """A table without a report."""
    return make_table(tmp_path)


@pytest.fixture
def table(unreported, first_report):
    """A table with its report."""
    shutil.copytree(first_report, unreported / "report")
    return unreported


def archived(folder) -> dict[str, str]:
    """The files in a kept table's archive."""
    return {name: content.decode() for name, content in read_archive(folder / ARCHIVE).items()}


@cache
def archived_everywhere() -> dict[str, bytes]:
    """The files in the archives of the repository's results, by their paths."""
    archives = sorted((REPOSITORY / "results").glob(f"*/{ARCHIVE}"))
    assert len(archives) > 40
    return {
        f"{archive.parent.name}/{name}": content
        for archive in archives
        for name, content in read_archive(archive).items()
    }


def test_reports_and_outputs_are_kept(table, tmp_path):
    before = (table / "report" / "report.md").read_text()
    results = tmp_path / "results" / "mine"
    output = script("keep_results", table, results, "--picture", "report/curves.png", cwd=tmp_path)
    assert f"wrote {results}" in output
    files = {str(path.relative_to(results)) for path in results.rglob("*") if path.is_file()}
    assert files == {
        "README.md", "settings", "provenance.txt", "data-bin/syntax.de.json", "report/report.csv",
        "report/runs.csv", "report/curves.png", ARCHIVE,
    }  # fmt: skip
    text = (results / "README.md").read_text()
    assert text.startswith("# mine\n")
    assert compact(before.strip()) in text
    assert re.findall(r"!\[.*\]\((.*)\)", text) == ["report/curves.png"]
    members = archived(results)
    assert {name for name in members if name.startswith("runs/k2/seed1")} == {
        f"runs/k2/seed1/{name}"
        for name in (
            "commands.sh", "generate-test.txt", "train.log", "generate-test.log",
            "interactive-test.txt", "interactive-test.log", "contrastive/negation.correct.txt",
        )
    }  # fmt: skip
    assert members["configs/k2.yaml"] == "model: {}\n"
    assert "with parsing" in before


def test_tables_that_a_script_makes_beside_its_reports_are_kept(table, tmp_path):
    (table / "onset.md").write_text("**Update**\n\n| row | update |\n|---|---|\n| k2 | 748 |\n")
    (table / "onset.csv").write_text("row,update\nk2,748\n")
    (table / "translation").mkdir()
    (table / "translation" / "curve.md").write_text("| 1/4 | 20.5 |\n")
    script("keep_results", table, tmp_path / "kept")
    text = (tmp_path / "kept" / "README.md").read_text()
    assert "**Update**\n\n| row | update |\n|---|---|\n| k2 | 748 |\n" in text
    assert "| 1/4 | 20.5 |" in text
    assert (tmp_path / "kept" / "onset.csv").read_text() == "row,update\nk2,748\n"


@needs_history_and_outputs
def test_every_kept_table_with_reports_has_a_command_that_makes_them():
    results = REPOSITORY / "results"
    tables = {path.relative_to(results).parts[0] for path in results.rglob("runs.csv")}
    assert tables <= commands(results).keys()


def test_a_command_scores_a_kept_table_again(table, tmp_path):
    before = (table / "report" / "report.md").read_text()
    results = tmp_path / "results"
    script("keep_results", table, results / "mine")
    (results / "reports.txt").write_text(
        "# comment\nmine fairseq-phrase-report $OUT/rows --out $OUT/report --reference "
        f"'{table / 'test.en'}' {' '.join(ARGUMENTS)}\n"
    )
    unknown = script("score_results", results / "other", expect=1)
    assert f"{results / 'reports.txt'} has no command for other" in unknown
    references = (table / "test.en").read_text()
    assert "scored" in script("score_results", results / "mine", "--work", tmp_path / "scored")
    (table / "test.en").write_text(references.replace("a", "b", 3))
    output = script("score_results", results / "mine", "--work", tmp_path / "scored", expect=1)
    assert f"the scores differ from those in {results / 'mine' / 'report' / 'report.csv'}" in output
    (table / "test.en").write_text(references)
    (results / "mine" / "report" / "report.csv").write_text("wrong\n")
    (results / "mine" / "settings").write_text("other\n")
    script("score_results", results / "mine", "--work", tmp_path / "scored", "--keep")
    assert compact(before.strip()) in (results / "mine" / "README.md").read_text()
    again = (results / "mine" / "report" / "report.csv").read_bytes()
    assert again == (table / "report" / "report.csv").read_bytes()
    assert (results / "mine" / "data-bin" / "syntax.de.json").is_file(), "what runs wrote stays"
    assert (results / "mine" / "settings").read_text() == "other\n"


def test_a_table_restored_from_other_runs_is_not_scored(table, tmp_path):
    results, work = tmp_path / "results", tmp_path / "work"
    script("keep_results", table, results / "mine")
    (results / "reports.txt").write_text(
        "mine fairseq-phrase-report $OUT/rows --out $OUT/report --reference "
        f"'{table / 'test.en'}' {' '.join(ARGUMENTS)}\n"
    )
    for _ in range(2):  # restored, then found
        assert "scored" in script("score_results", results / "mine", "--work", work)
    shutil.copytree(table / "rows" / "k2" / "seed1", table / "rows" / "k2" / "seed7")
    script("keep_results", table, results / "mine")
    output = script("score_results", results / "mine", "--work", work, expect=1)
    assert f"{work / 'mine'} has other runs than {results / 'mine'}: remove it" in output
    shutil.copytree(table, tmp_path / "trained" / "mine")
    output = script("score_results", results / "mine", "--work", tmp_path / "trained", expect=1)
    assert "has other runs than" in output, (
        "whether a table's own folder has the kept runs is unknown"
    )


@pytest.mark.slow
@needs_history_and_outputs
def test_a_table_in_the_repository_scores_as_its_report_says(tmp_path):
    """A row of the smallest kept table whose test set is the project's own: no data are needed."""
    table_results = REPOSITORY / "results" / "which_syntax.synthetic1k.de-en.parsed.cpu"
    table, row_name = tmp_path / "work" / table_results.name, "structural_9"
    script("restore_results", table_results, table)
    for row in (table / "rows").iterdir():
        if row.name != row_name:
            shutil.rmtree(row)
    results = tmp_path / "results"
    # A report that compares with another row cannot be made of this row.
    shutil.copytree(
        table_results,
        results / table_results.name,
        ignore=shutil.ignore_patterns("report.relative"),
    )
    lines = (table_results.parent / "reports.txt").read_text().splitlines(keepends=True)
    (command,) = (line for line in lines if line.startswith(table_results.name))
    (results / "reports.txt").write_text(command.replace("transformer,relative", "transformer"))
    script("score_results", results / table_results.name, "--work", tmp_path / "work")
    scored, expected = (
        [
            round(float(row[f"{name}_mean"]), 9)
            for row in rows_with_runs(folder / "report")
            if row["row"] == row_name
            for name in ("BLEU", "chrF", "TER")
        ]
        for folder in (table, table_results)
    )
    assert scored == expected
    assert len(scored) == 3


def test_neither_the_test_set_nor_this_machines_folders_are_kept(table, tmp_path):
    results = tmp_path / "kept"
    script("keep_results", table, results, cwd=tmp_path)
    manifest = results / "data-bin" / "syntax.de.json"
    assert manifest.read_text() == '{"parser": "spacy:de"}\n'
    members, run = archived(results), "runs/k2/seed1"
    translated = members[f"{run}/generate-test.txt"].splitlines()
    assert {line[:2] for line in translated} == {"D-", "Ge"}
    assert [line.split("\t")[:2] for line in translated[:2]] == [["D-0", "nan"], ["D-1", "nan"]]
    assert members[f"{run}/contrastive/negation.correct.txt"] == "TOTAL-0\t-0.3000 2\n"
    spoken = members[f"{run}/interactive-test.txt"].splitlines()
    assert spoken == [f"S-{number}\t" for number in range(60)]
    log = members[f"{run}/train.log"]
    assert "Saved checkpoint table/rows/k2/x.pt" in log
    assert "\nsite-packages/torch/a.py:1: UserWarning" in log
    assert "\npython/shutil.py:2: UserWarning" in log
    assert "Saved average checkpoint to runs/table/rows/k2/seed1/average.pt" in log
    assert not list(results.rglob("report.html")), "the page shows sentences of the test set"
    script("keep_results", table, results, cwd=table)
    assert manifest.read_text() == '{"parser": "spacy:../de"}\n'
    script("keep_results", table, results)  # from the repository
    assert "Saved checkpoint runs/table/rows/k2/x.pt" in archived(results)[f"{run}/train.log"]


@needs_history_and_outputs
def test_the_repositorys_results_name_no_folder_of_a_machine():
    results = REPOSITORY / "results"
    files = archived_everywhere() | {
        str(path): path.read_bytes()
        for path in results.rglob("*")
        if path.suffix in (".md", ".csv", ".json", ".txt")
    }
    folders = re.compile(rb"/(?:root|home|Users|work|tmp)/[^\s',\"]*")
    folder_names = {
        (folder, name) for name, text in files.items() for folder in folders.findall(text)
    }
    unexpected = sorted(
        entry for entry in folder_names if entry[0] != b"/tmp/plasma"
    )  # fairseq's default
    assert not unexpected, unexpected[:5]


@needs_history_and_outputs
def test_kept_runs_from_before_an_option_have_rows_of_that_form():
    """A table's row without the option would be another form; its kept runs would be mixed with it."""
    files = archived_everywhere()
    commands = {Path(name).parts: text for name, text in files.items() if "commands.sh" in name}
    phrases = {
        parts[parts.index("runs") + 1]
        for parts, text in commands.items()
        if re.search(rb"--(arch|encoder) phrase_transformer", text)
        and b"phrase_residual" not in files["/".join((*parts[:-1], "train.log"))]
    }
    assert phrases
    assert {row for row in phrases if not row.endswith("_each")} == set()


def test_a_folder_without_a_report_is_named(unreported, tmp_path):
    refused = script("keep_results", unreported, tmp_path / "none", expect=1)
    assert "has no report of runs" in refused
    assert "no such folder" in script("keep_results", unreported / "no", tmp_path, expect=1)


def test_results_are_replaced_and_nothing_else_is(table, tmp_path):
    shutil.copytree(table / "report", table / "report.k2")
    results = tmp_path / "kept"
    script("keep_results", table, tmp_path / "other")
    script("keep_results", table, results)
    assert (results / "report.k2" / "report.csv").is_file()
    assert (results / "report" / "runs.csv").is_file()
    assert not (results / "report.k2" / "runs.csv").exists(), "they are the same runs"
    (results / "stale").touch()
    shutil.rmtree(table / "rows" / "k2" / "seed2")
    script("keep_results", table, results)
    assert not (results / "stale").exists()
    assert "runs/k2/seed2/train.log" not in archived(results)
    assert "runs/k2/seed2/train.log" in archived(tmp_path / "other")
    (results / "settings").unlink()
    for folder in (results, table):  # the runs' own folder has settings, too
        assert "has other files than a table's results" in script(
            "keep_results", table, folder, expect=1
        )
    assert (table / "rows").is_dir()
    assert (results / "README.md").is_file()
    assert [path.name for path in tmp_path.glob(".results-*")] == []


def manifest(parser, checksum):
    files = {"train.de-en.de.bin": "1", "train.de-en.de.heads.bin": checksum}
    splits = {"train.de-en": {"checksums": files}}
    return json.dumps({"parser": parser, "parser_version": "3", "splits": splits})


def test_kept_runs_are_not_mixed_with_runs_of_other_data(table, tmp_path):
    (table / "data-bin" / "syntax.de.json").write_text(manifest("spacy:a", "1"))
    script("keep_results", table, tmp_path / "kept")
    restored = tmp_path / "restored"
    script("restore_results", tmp_path / "kept", restored)
    script("same_data", restored / "data-bin")  # which are not made yet
    made_again = restored / "data-bin" / "syntax.de.json"
    made_again.write_text(manifest("spacy:a", "1"))
    assert script("same_data", restored / "data-bin") == ""
    for parser, message in (
        ("spacy:b", "the kept runs have the parser spacy:a (3), these data spacy:b (3)"),
        ("spacy:a", "the parser is spacy:a (3) both times; the text or the subwords differ"),
    ):
        made_again.write_text(manifest(parser, "2"))
        output = script("same_data", restored / "data-bin", expect=1)
        assert message in output
        assert "train.de-en.de.heads.bin differ" in output
    (restored / "data-bin" / "kept.syntax.de.json").unlink()
    assert script("same_data", restored / "data-bin") == ""


def test_the_inputs_of_kept_runs_are_compared_but_for_parses(table, tmp_path):
    texts = {"train: --lr": "1", "DATA/train.de-en.en.bin": "1", "DATA/spm.model": "2"}
    parses = {"DATA/train.de-en.de.heads.bin": "3", "DATA/dict.deprel.txt": "4"}
    run = table / "rows" / "k2" / "seed1"
    (run / "key.json").write_text(json.dumps({**texts, **parses}))
    script("keep_results", table, tmp_path / "kept")
    script("restore_results", tmp_path / "kept", tmp_path / "restored")
    restored = tmp_path / "restored" / run.relative_to(table) / "key.json"
    assert json.loads(restored.read_text()) == texts


def test_kept_results_are_finished_runs_of_a_new_table(table, tmp_path):
    before = (table / "report" / "report.md").read_text()
    labels = table / "rows" / "k2" / "seed1" / "labels-test.txt"
    labels.write_text("DT NN\nVB\n")
    results, restored = tmp_path / "kept", tmp_path / "new" / "table"
    script("keep_results", table, results)
    runs = sorted(path.parent.relative_to(table) for path in table.glob("rows/*/*/train.log"))
    assert f"restored {len(runs)} runs in {restored}" in script(
        "restore_results", results, restored
    )
    assert (restored / "settings").read_text() == "setting=tuned\n"
    for run in runs:
        files = {path.name for path in (restored / run).iterdir()}
        assert {"train.done", "average.txt", "train.log", "generate-test.txt"} <= files
    assert (restored / labels.relative_to(table)).read_text() == "DT NN\nVB\n"
    folder = "../new/table"
    assert report(table, *ARGUMENTS, runs=(f"{folder}/rows",), out=f"{folder}/report") == before
    made_again, archive_report = (
        folder / "report" / "report.csv" for folder in (restored, results)
    )
    assert made_again.read_bytes() == archive_report.read_bytes()
    first = archived(results)
    script("keep_results", restored, results)
    assert {name: text for name, text in first.items() if "runs/" in name} == archived(results)
    part = tmp_path / "part"
    script("restore_results", results, part, "--rows", "k2")
    assert [path.name for path in (part / "rows").iterdir()] == ["k2"]
    output = script("restore_results", results, tmp_path / "no", "--rows", "k2,k9", expect=1)
    assert f"{results} has no k9: its rows are baseline, k2" in output
    assert "is there already" in script("restore_results", results, restored, expect=1)
    assert f"has no {ARCHIVE}" in script("restore_results", table / "x", tmp_path / "no", expect=1)
    archive = results / ARCHIVE
    archive.write_bytes(archive.read_bytes()[:50])
    assert "not a whole archive" in script("restore_results", results, tmp_path / "no", expect=1)
    assert [path.name for path in tmp_path.iterdir() if "no" in path.name] == []


def test_the_commands_of_the_page_restore_a_table_and_continue_it(tmp_path):
    """The script accepts the restored folder's settings; its trainings have tests of their own."""
    block = next(
        candidate for candidate in blocks_of("docs/tables.md") if "restore_results" in candidate
    )
    restoring, continuing = block.replace(
        "runs/mine", shlex.quote(str(tmp_path / "mine"))
    ).splitlines()
    _, _, results, folder = shlex.split(restoring.partition("#")[0])
    assert re.match(r"restored [1-9]\d* runs", script("restore_results", results, folder))
    printed = subprocess.run(
        [*shlex.split(continuing), "--dry-run"], cwd=REPOSITORY,
        env=script_environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert printed.returncode == 0, printed.stderr
    assert "--arch relation_transformer" in printed.stdout


def test_an_interrupted_archive_leaves_the_earlier_one(tmp_path):
    archive = tmp_path / "all.tar.xz"
    write_archive({"a": b"1\n"}, archive)
    before = archive.read_bytes()
    with pytest.raises(AttributeError):
        write_archive({"a": b"1\n", "b": 2}, archive)
    assert archive.read_bytes() == before
    assert list(tmp_path.iterdir()) == [archive]


def test_files_of_an_archive_come_back_and_make_the_same_bytes_in_any_order(tmp_path):
    contents = (b"", b"\n", b"\n\n", b"a\nb\n", b"c\nd\n", b"no newline", b"one\nno newline")
    files = {f"{i}/x.txt": content for i, content in enumerate(contents)}
    for name, content in (("one", files), ("two", dict(reversed(files.items())))):
        write_archive(content, tmp_path / name)
        assert read_archive(tmp_path / name) == files
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@pytest.mark.parametrize(
    "name", ["runs/../../victim", "runs/a/../../../../victim", "../victim", "/victim", "configs//x"]
)
def test_a_strangers_archive_writes_nothing_outside_the_folder(name, small_table, tmp_path):
    results = tmp_path / "kept" / "small"
    replace_table(small_table, results)
    write_archive({"runs/k2/seed1/train.log": b"", name: b""}, results / ARCHIVE)
    with pytest.raises(SystemExit, match=r"is not an archive of keep_results\.py: it has a file '"):
        restore_table(results, tmp_path / "more", whole=True)
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "kept"}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_link_in_an_archive_is_refused(kind, tmp_path):
    with tarfile.open(tmp_path / ARCHIVE, "w:xz") as archive:
        member = tarfile.TarInfo("train.log/1")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(SystemExit, match=r"it has a link or a folder, 'train\.log/1'"):
        read_archive(tmp_path / ARCHIVE)


@pytest.mark.parametrize(
    "line",
    [
        "touch victim --out $OUT", "bash -c 'touch victim' --out $OUT", "bash --out $OUT",
        "bash scripts/../victim.sh --out $OUT", "bash scripts/test.sh $OUT/configs --out $OUT",
        "bash scripts/run_table.sh --table $OUT/configs/a.yaml --out $OUT", "bash scripts/regex.sh '",
        "fairseq-phrase-report --version; touch victim --out $OUT", "'", "bash scripts/regex.sh",
        "fairseq-phrase-report rows --metric errant:a@$OUT/pipeline --out $OUT",
        "fairseq-phrase-score --out $OUT", "bash scripts/regex.sh --out victim",
        "fairseq-phrase-report rows --out $OUT/../victim --out $OUT", "fairseq-phrase-report --ou=victim",
    ],
)  # fmt: skip
def test_only_commands_that_make_reports_run(line, small_table, tmp_path, capfd, monkeypatch):
    results = tmp_path / "kept" / "small"
    replace_table(small_table, results)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"reports\.txt: expected "):
        score(results, tmp_path / "work", [line], None)
    # No shell reads a line that is allowed, either.
    score(
        results,
        tmp_path / "work",
        ["fairseq-phrase-report --version --out $OUT ; touch victim"],
        None,
    )
    assert not (tmp_path / "victim").exists()
    words = program("bash scripts/regex.sh --data --report-only --out $OUT", tmp_path)
    assert words[1:3] == [str(REPOSITORY / "scripts/regex.sh"), "--report-only"]
    assert capfd.readouterr().out.count("fairseq-phrase 0") == 1


@pytest.fixture
def small_table(tmp_path):
    """A table of one run, without scripts: what its functions read."""
    run = tmp_path / "runs" / "small" / "rows" / "k2" / "seed1"
    run.mkdir(parents=True)
    (run / "train.log").write_text("a log\n")
    for name in ("test", "updates900"):
        (run / f"generate-{name}.txt").write_text("D-10\t-1\tb\nD-9\t-1\ta\nGenerate it\n")
    folder = run.parents[2]
    for name, text in (("settings", ""), ("report/report.md", "x\n"), ("configs/k2.yaml", "{}\n")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_an_early_translation_is_kept(small_table, tmp_path):
    for _ in range(2):
        replace_table(small_table, tmp_path / "kept" / "small")
    of_table = read_archive(tmp_path / "kept" / "small" / ARCHIVE)
    translation = b"D-9\tnan\ta\nD-10\tnan\tb\nGenerate it\n"
    run = "runs/k2/seed1"
    assert of_table == {
        "configs/k2.yaml": b"{}\n", f"{run}/train.log": b"a log\n",
        f"{run}/generate-test.txt": translation, f"{run}/generate-updates900.txt": translation,
    }  # fmt: skip


def test_a_table_is_restored_whole_to_be_scored_and_its_mark_depends_on_every_file(
    small_table, tmp_path, capfd
):
    results = tmp_path / "kept" / "small"
    replace_table(small_table, results)
    score(results, tmp_path / "work", ["fairseq-phrase-report --version --out $OUT"] * 2, None)
    assert (tmp_path / "work" / "configs" / "k2.yaml").read_text() == "{}\n"
    assert capfd.readouterr().out.count("fairseq-phrase ") == 2
    marks = {digest(results)}
    (small_table / "rows" / "k2" / "seed1" / "train.log").write_text("another log\n")
    replace_table(small_table, results)
    marks.add(digest(results))
    (results / ENCRYPTED).write_bytes(b"1")
    marks.add(digest(results))
    (results / ENCRYPTED).write_bytes(b"2")
    marks.add(digest(results))
    assert len(marks) == 4


@pytest.mark.parametrize(
    ("after", "differs"),
    [
        ("a,30.0,50.0\nb,20.0,40.0\n", False),
        ("a,30.0000000000001,50.0\nb,20.0,40.0\n", False),
        ("a,30.01,50.0\nb,20.0,40.0\n", True),
        ("a,30.0,50.01\nb,20.0,40.0\n", True),
        ("a,30.0,50.0\n", False),  # the other row was not scored
        ("b,20.0,\n", True),  # a row that was scored lacks a measure
        ("", True),
        (None, True),
    ],
)
def test_a_report_is_another_if_a_row_that_was_scored_has_another_mean(tmp_path, after, differs):
    head = "row,BLEU_mean,chrF_mean\n"
    before, made_again = tmp_path / "kept" / "report", tmp_path / "table" / "report"
    for folder, rows in ((before, "a,30.0,50.0\nb,20.0,40.0\n"), (made_again, after)):
        folder.mkdir(parents=True)
        if rows is not None:
            (folder / "report.csv").write_text(head + rows)
    expected = [str(before / "report.csv")] if differs else []
    assert different(tmp_path / "table", tmp_path / "kept") == expected


def test_a_kept_log_says_nothing_twice():
    line = "2026-11-22 | INFO | train_inner | epoch 1: a=9, nll_loss=9, ppl=512, wps=6, ups=7, wall=9\n"
    assert thinned(line) == line.replace(", ppl=512", "").replace(", ups=7, wall=9", "")
    assert thinned(line.replace("train_inner", "train")) == line.replace("train_inner", "train")


def test_translations_may_be_encrypted_and_come_back(table, tmp_path):
    before = (table / "report" / "report.md").read_text()
    results, restored = tmp_path / "kept", tmp_path / "restored"
    script("keep_results", table, results, "--encrypt", "secret")
    assert not [name for name in archived(results) if re.search(r"generate-.*txt", name)]
    with zipfile.ZipFile(results / "translations.zip") as archive:
        assert archive.namelist() == ["translations.tar.xz"]
        with pytest.raises((NotImplementedError, RuntimeError)):
            archive.read("translations.tar.xz")
    assert "give its --password" in script("restore_results", results, restored, expect=1)
    wrong = script("restore_results", results, restored, "--password", "no", expect=1)
    assert "--password is not the right one" in wrong
    assert not restored.exists()
    script("restore_results", results, restored, "--password", "secret")
    assert (restored / "rows/k2/seed1/generate-test.txt").is_file()
    assert report(table, *ARGUMENTS, runs=("../restored/rows",), out="again") == before


@needs_history_and_outputs
def test_provenance_names_command_commit_machine_and_versions(tmp_path):
    text = script("provenance", "bash", "a script.sh", "--seeds", "1,2")
    facts = dict(line.split(": ", 1) for line in text.splitlines() if line)
    assert list(facts) == ["date", "command", "commit", "machine", "software", "environment"]
    assert facts["command"] == "bash 'a script.sh' --seeds 1,2"
    assert len(facts["commit"].split()[0]) == 40
    assert "fairseq-fixed 0.12.3.1" in facts["software"]
    # Every package that the project requires, but not its tools.
    for package in ("torch", "numpy", "sacrebleu", "transformers", "sqlglot"):
        assert f", {package} {version(package)}" in facts["software"]
    assert "pytest" not in facts["software"]
    assert "commit: unknown (no git repository)" in script("provenance", cwd=tmp_path)


def test_parts_and_the_models_that_they_start_from(table, tmp_path):
    part = table / "translation" / "fraction-1-4"
    shutil.copytree(table / "rows", part / "rows")
    (table / "rows").rename(table / "objectives")
    (table / "report").rename(part / "report")
    (table / "report-objectives").mkdir()
    (table / "report-objectives" / "losses.md").write_text("| masked | 3.2 |\n")
    (table / "objectives" / "k2" / "seed1" / "validate-test.txt").write_text("loss 3.2\n")
    results, restored = tmp_path / "kept", tmp_path / "restored"
    script("keep_results", table, results)
    text = (results / "README.md").read_text()
    of_part = compact((part / "report" / "report.md").read_text().strip())
    assert text.index("| masked | 3.2 |") < text.index(of_part)
    assert archived(results)["objectives/k2/seed1/validate-test.txt"] == "loss 3.2\n"
    script("restore_results", results, restored)
    assert (restored / "translation/fraction-1-4/rows/k2/seed1/generate-test.txt").is_file()
    assert not (restored / "objectives").exists(), "they have no models"
