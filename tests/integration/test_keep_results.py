"""What is kept of a table: enough to make its report again, no test set, no path of this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sysconfig
import tarfile
import zipfile

import pytest

from fairseq_phrase.report.kept_logs import log_lines
from tests.support.report_table import report, write_table
from tests.support.repository import REPOSITORY
from tests.support.run_folders import write_interactive
from tests.support.warm_start import python


def script(name, *arguments, cwd=REPOSITORY, expect=0) -> str:
    """Run a script of the repository; return what it printed."""
    finished = subprocess.run(
        [python(), str(REPOSITORY / "scripts" / f"{name}.py"), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == expect, finished.stderr
    return finished.stdout + finished.stderr


@pytest.fixture
def table(tmp_path):
    """A folder as a table's script leaves it."""
    folder = write_table(tmp_path / "table")
    (folder / "runs").rename(folder / "rows")
    (folder / "settings").write_text("setting=tuned\n")
    (folder / "provenance.txt").write_text("commit: abc\n")
    (folder / "configs").mkdir()
    (folder / "configs" / "k2.yaml").write_text("model: {}\n")
    (folder / "data-bin").mkdir()
    (folder / "data-bin" / "syntax.de.json").write_text(f'{{"parser": "spacy:{tmp_path}/de"}}\n')
    (folder / "data-bin" / "train.de-en.de.bin").write_bytes(b"0")
    run = folder / "rows" / "k2" / "seed1"
    write_interactive(run / "interactive-test.txt", 60, 4.0)
    (run / "contrastive").mkdir()
    scored = "S-0\ta sentence\nP-0\t-0.1 -0.2\n"
    (run / "contrastive" / "negation.correct.txt").write_text(scored)
    (run / "commands.sh").write_text("fairseq-train DATA\n")
    (run / "checkpoint_last.pt").write_bytes(b"0")
    with open(run / "train.log", "a") as log:
        log.write(
            f"2026-11-20 22:45:00 | INFO | x | Saved checkpoint {tmp_path}/table/rows/k2/x.pt\n"
        )
        log.write(f"{sysconfig.get_path('purelib')}/torch/a.py:1: UserWarning: slow\n")
    return folder


ARGUMENTS = ("--baseline", "baseline", "--trials", "50")


def test_the_report_can_be_made_again_from_what_is_kept(table, tmp_path):
    before = report(table, *ARGUMENTS, runs=("rows",), out="report")
    kept = tmp_path / "results" / "mine"
    assert f"wrote {kept}" in script("keep_results", table, kept, cwd=tmp_path)
    after = report(table, *ARGUMENTS, runs=("../results/mine/runs",), out="again")
    assert after == before
    for name in ("report.csv", "report.tex", "curves.png"):
        assert (table / "again" / name).read_bytes() == (kept / "report" / name).read_bytes()
    text = (kept / "README.md").read_text()
    assert "commit: abc" in text
    assert before.strip() in text
    shown = re.findall(r"!\[.*\]\((.*)\)", text)
    assert shown == ["report/curves.png", "report/lengths.png"]
    assert all((kept / name).is_file() for name in shown)
    files = {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()}
    assert {"settings", "configs/k2.yaml", "data-bin/syntax.de.json", "report/curves.png"} <= files
    assert {path for path in files if path.startswith("runs/k2/seed1")} == {
        f"runs/k2/seed1/{name}" for name in ("commands.sh", "generate-test.txt")
    }
    with tarfile.open(kept / "logs.tar.xz") as archive:
        assert {name for name in archive.getnames() if name.startswith("runs/k2/seed1")} == {
            f"runs/k2/seed1/{name}"
            for name in (
                "train.log", "generate-test.log", "interactive-test.txt", "interactive-test.log",
                "contrastive/negation.correct.txt",
            )
        }  # fmt: skip
    assert "with parsing" in before
    assert not [path for path in files if path.endswith((".pt", ".bin"))]


def test_neither_the_test_set_nor_this_machines_folders_are_kept(table, tmp_path):
    report(table, *ARGUMENTS, runs=("rows",), out="report")
    script("keep_results", table, tmp_path / "kept", cwd=tmp_path)
    manifest = tmp_path / "kept" / "data-bin" / "syntax.de.json"
    assert manifest.read_text() == '{"parser": "spacy:de"}\n'
    run = tmp_path / "kept" / "runs" / "k2" / "seed1"
    logged = {
        name: "\n".join(log_lines(run / name)) for name in ("train.log", "interactive-test.txt")
    }
    kinds = {line[:2] for line in (run / "generate-test.txt").read_text().splitlines()}
    assert kinds == {"D-", "Ge"}
    assert list(log_lines(run / "contrastive" / "negation.correct.txt")) == ["TOTAL-0\t-0.3000 2"]
    spoken = logged["interactive-test.txt"].splitlines()
    assert spoken == [f"S-{number}\t" for number in range(60)]
    assert "Saved checkpoint table/rows/k2/x.pt" in logged["train.log"]
    assert "\nsite-packages/torch/a.py:1: UserWarning" in logged["train.log"]
    script("keep_results", table, tmp_path / "kept", cwd=table)
    assert manifest.read_text() == '{"parser": "spacy:../de"}\n'
    script("keep_results", table, tmp_path / "kept")  # from the repository
    saved = "\n".join(log_lines(run / "train.log"))
    assert "Saved checkpoint runs/table/rows/k2/x.pt" in saved


def test_results_are_replaced_and_nothing_else_is(table, tmp_path):
    report(table, *ARGUMENTS, runs=("rows",), out="report")
    shutil.copytree(table / "report", table / "report.k2")
    kept = tmp_path / "kept"
    script("keep_results", table, kept)
    assert not list(kept.rglob("report.html")), "the page shows sentences of the test set"
    assert (kept / "report.k2" / "report.md").is_file()
    (kept / "stale").touch()
    script("keep_results", table, kept)
    assert not (kept / "stale").exists()
    (kept / "settings").unlink()
    assert "has other files than a table's results" in script("keep_results", table, kept, expect=1)
    assert (kept / "README.md").is_file()
    assert [path.name for path in tmp_path.glob(".results-*")] == []


def manifest(parser, checksum):
    files = {"train.de-en.de.bin": "1", "train.de-en.de.heads.bin": checksum}
    splits = {"train.de-en": {"checksums": files}}
    return json.dumps({"parser": parser, "parser_version": "3", "splits": splits})


@pytest.mark.parametrize(
    ("parser", "checksum", "message"),
    [
        ("spacy:a", "1", None),
        ("spacy:b", "2", "the kept runs have the parser spacy:a (3), these data spacy:b (3)"),
        ("spacy:a", "2", "the parser is spacy:a (3) both times; the text or the subwords differ"),
    ],
)
def test_kept_runs_are_not_mixed_with_runs_of_other_data(
    table, tmp_path, parser, checksum, message
):
    report(table, *ARGUMENTS, runs=("rows",), out="report")
    (table / "data-bin" / "syntax.de.json").write_text(manifest("spacy:a", "1"))
    script("keep_results", table, tmp_path / "kept")
    restored = tmp_path / "restored"
    script("restore_results", tmp_path / "kept", restored)
    script("same_data", restored / "data-bin")  # which are not made yet
    (restored / "data-bin" / "syntax.de.json").write_text(manifest(parser, checksum))
    said = script("same_data", restored / "data-bin", expect=1 if message else 0)
    if message:
        assert message in said
        assert "train.de-en.de.heads.bin differ" in said
        (restored / "data-bin" / "kept.syntax.de.json").unlink()
        assert script("same_data", restored / "data-bin") == ""
    else:
        assert said == ""


def test_kept_results_are_finished_runs_of_a_new_table(table, tmp_path):
    before = report(table, *ARGUMENTS, runs=("rows",), out="report")
    kept, restored = tmp_path / "kept", tmp_path / "new" / "table"
    script("keep_results", table, kept)
    runs = sorted(path.parent.relative_to(table) for path in table.glob("rows/*/*/train.log"))
    assert f"restored {len(runs)} runs in {restored}" in script("restore_results", kept, restored)
    assert (restored / "settings").read_text() == "setting=tuned\n"
    for run in runs:
        files = {path.name for path in (restored / run).iterdir()}
        assert {"train.done", "average.txt", "train.log", "generate-test.txt"} <= files
    folder = "../new/table"
    assert report(table, *ARGUMENTS, runs=(f"{folder}/rows",), out=f"{folder}/report") == before
    again = tmp_path / "again"
    script("keep_results", restored, again)
    assert (again / "logs.tar.xz").read_bytes() == (kept / "logs.tar.xz").read_bytes()
    texts = {path.relative_to(kept): path.read_text() for path in kept.glob("runs/*/*/*.*")}
    assert {
        path.relative_to(again): path.read_text() for path in again.glob("runs/*/*/*.*")
    } == texts
    assert "commands.sh" in {path.name for path in texts}
    part = tmp_path / "part"
    script("restore_results", kept, part, "--rows", "k2")
    assert [path.name for path in (part / "rows").iterdir()] == ["k2"]
    named = script("restore_results", kept, tmp_path / "no", "--rows", "k2,k9", expect=1)
    assert f"{kept} has no k9: its rows are baseline, k2" in named
    assert "is there already" in script("restore_results", kept, restored, expect=1)
    assert "has no logs.tar.xz" in script("restore_results", table, tmp_path / "no", expect=1)
    (kept / "logs.tar.xz").write_bytes((again / "logs.tar.xz").read_bytes()[:50])
    assert "not a whole archive" in script("restore_results", kept, tmp_path / "no", expect=1)
    assert [path.name for path in tmp_path.iterdir() if "no" in path.name] == []


def test_translations_may_be_encrypted_and_come_back(table, tmp_path):
    before = report(table, *ARGUMENTS, runs=("rows",), out="report")
    kept, restored = tmp_path / "kept", tmp_path / "restored"
    script("keep_results", table, kept, "--encrypt-translations", "secret")
    assert not list(kept.rglob("generate-*")), "a test set that no crawler should read"
    with tarfile.open(kept / "logs.tar.xz") as archive:
        assert not [name for name in archive.getnames() if re.search(r"generate-.*txt", name)]
    with zipfile.ZipFile(kept / "translations.zip") as archive:
        assert archive.namelist() == ["translations.tar.xz"]
        with pytest.raises((NotImplementedError, RuntimeError)):
            archive.read("translations.tar.xz")
    assert "give its --password" in script("restore_results", kept, restored, expect=1)
    wrong = script("restore_results", kept, restored, "--password", "no", expect=1)
    assert "--password is not the right one" in wrong
    assert not restored.exists()
    script("restore_results", kept, restored, "--password", "secret")
    assert (restored / "rows/k2/seed1/generate-test.txt").is_file()
    assert report(table, *ARGUMENTS, runs=("../restored/rows",), out="again") == before


def test_translations_may_be_archived_and_come_back(table, tmp_path):
    before = report(table, *ARGUMENTS, runs=("rows",), out="report")
    kept, restored = tmp_path / "kept", tmp_path / "restored"
    script("keep_results", table, kept, "--archive-translations")
    assert not list(kept.rglob("generate-*"))
    script("restore_results", kept, restored, "--rows", "k2")
    assert not (restored / "rows/transformer").exists()
    shutil.rmtree(restored)
    script("restore_results", kept, restored)
    assert (restored / "rows/k2/seed1/generate-test.txt").is_file()
    assert report(table, *ARGUMENTS, runs=("../restored/rows",), out="again") == before
    script("keep_results", table, kept)
    assert not (kept / "translations.tar.xz").exists()


@pytest.mark.parametrize("options", [[], ["--archive-translations"]])
def test_labels_are_kept_and_come_back(table, tmp_path, options):
    report(table, *ARGUMENTS, runs=("rows",), out="report")
    labels = table / "rows" / "k2" / "seed1" / "labels-test.txt"
    labels.write_text("DT NN\nVB\n")
    script("keep_results", table, tmp_path / "kept", *options)
    assert bool(list((tmp_path / "kept").rglob("labels-*"))) == (not options)
    script("restore_results", tmp_path / "kept", tmp_path / "restored")
    restored = tmp_path / "restored" / labels.relative_to(table)
    assert restored.read_text() == "DT NN\nVB\n"


def test_a_table_without_a_report_is_named(table, tmp_path):
    assert "has no report of runs" in script("keep_results", table, tmp_path / "kept", expect=1)
    assert not (tmp_path / "kept").exists()
    assert "no such folder" in script("keep_results", table / "no", tmp_path, expect=1)


def test_provenance_names_command_commit_machine_and_versions(tmp_path):
    text = script("provenance", "bash", "a script.sh", "--seeds", "1,2")
    facts = dict(line.split(": ", 1) for line in text.splitlines() if line)
    assert list(facts) == ["date", "command", "commit", "machine", "software", "environment"]
    assert facts["command"] == "bash 'a script.sh' --seeds 1,2"
    assert len(facts["commit"].split()[0]) == 40
    assert "fairseq-fixed 0.12.3.1" in facts["software"]
    assert "commit: unknown (no git repository)" in script("provenance", cwd=tmp_path)


def test_parts_and_the_models_that_they_start_from(table, tmp_path):
    report(table, *ARGUMENTS, runs=("rows",), out="report")
    part = table / "translation" / "fraction-1-4"
    shutil.copytree(table / "rows", part / "rows")
    (table / "rows").rename(table / "objectives")
    (table / "report").rename(part / "report")
    (table / "report-objectives").mkdir()
    (table / "report-objectives" / "losses.md").write_text("| masked | 3.2 |\n")
    (table / "objectives" / "k2" / "seed1" / "validate-test.txt").write_text("loss 3.2\n")
    kept, restored = tmp_path / "kept", tmp_path / "restored"
    script("keep_results", table, kept)
    text = (kept / "README.md").read_text()
    assert text.index("| masked | 3.2 |") < text.index((part / "report" / "report.md").read_text())
    assert "(translation/fraction-1-4/report/curves.png)" in text
    assert list(log_lines(kept / "objectives/k2/seed1/validate-test.txt")) == ["loss 3.2"]
    script("restore_results", kept, restored)
    assert (restored / "translation/fraction-1-4/rows/k2/seed1/generate-test.txt").is_file()
    assert not (restored / "objectives").exists(), "they have no models"
