"""The GPU hour, rehearsed on the CPU: every stage, what fails in it, and what is not done twice."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import torch

from tests.support.repository import REPOSITORY
from tests.support.warm_start import commands

sys.path.insert(0, str(REPOSITORY / "benchmarks"))
sys.path.insert(0, str(REPOSITORY / "scripts"))
from gpu_hour import Hour, do_parts
from gpu_parts import Part, kernels, smoke
from gpu_tables import ROWS, SEEDS, alarm, arguments, measured_jobs, swept
from models import translation_encoders  # the benchmarks', which registers all encoders
from rows import Run, Step, load_rows


def rehearse(work: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Run scripts/gpu_hour.sh on the CPU where spaCy cannot be imported."""
    lacking = work.parent / "lacking"
    lacking.mkdir(exist_ok=True)
    (lacking / "spacy.py").write_text("raise ImportError('no spaCy here')\n")
    return subprocess.run(
        ["bash", "scripts/gpu_hour.sh", "--device", "cpu", "--tiny", "--work", work, *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
        env={
            **os.environ, "PYTHONPATH": str(lacking), "PATH": f"{commands()}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1", **environment,
        },
    )  # fmt: skip


def is_ours(method) -> bool:
    """Other tests of this process may have registered the example's encoder."""
    return method.encoder.__module__.startswith("fairseq_phrase.")


def test_every_stage_runs_and_what_is_finished_is_not_run_again(
    tmp_path, data_directory, synthetic_corpus
):
    work, out = tmp_path / "work", tmp_path / "out"
    given = ["--data", str(data_directory), "--reference", str(synthetic_corpus / "test.en")]
    done = rehearse(work, *given, OUT=str(out))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (work / "smoke.jsonl").read_text().splitlines()]
    assert {line["model"] for line in lines} == {
        "transformer",
        *(next(iter(each.rows)) for each in translation_encoders().values() if is_ours(each)),
    }
    assert not any(line["problems"] for line in lines)
    report = (out / "report.md").read_text()
    for part in ("smoke", "train_step", "attention", "crossovers", "decode", "profile", "compile"):
        assert f"## {part}\n" in report
    assert "2 of 2 runs of the tuned setting" in report
    assert "1 of 1 runs of the paper setting" in report
    assert set(json.loads((out / "crossovers.json").read_text())) == {
        "phrase_min_sparsity", "tree_paths_per_leaf"
    }  # fmt: skip
    # Few and small: a GPU that is lent gives back no more.
    files = list(out.iterdir())
    assert len(files) <= 8
    assert all(path.stat().st_size < 2**24 for path in files)
    with tarfile.open(out / "results.tar.gz") as archive:
        names = archive.getnames()
    assert "tables/tuned/transformer/seed1/generate-test.txt" in names
    assert not any(name.endswith(".pt") for name in names)
    times = {path: path.stat().st_mtime for path in [work / "smoke.md", *work.rglob("train.log")]}
    again = rehearse(work, *given, "smoke", "kernels", OUT=str(out))
    assert again.returncode == 0, again.stderr
    assert {path: path.stat().st_mtime for path in times} == times


@pytest.fixture
def hour(tmp_path) -> Hour:
    options = argparse.Namespace(
        work=tmp_path / "work", out=tmp_path / "out", device="cpu", tiny=True, minutes=1,
        data=None, write=False, source_lang="de", target_lang="en",
    )  # fmt: skip
    options.work.mkdir()
    made = Hour(options)
    made.begin("kernels")
    return made


def test_a_part_that_fails_or_takes_too_long_is_named_and_the_others_are_done(hour):
    (hour.work / "crossing.py").write_text("def main():\n    print('found')\n")
    (hour.work / "endless.py").write_text("import signal\ndef main():\n    signal.pause()\n")
    (hour.work / "dead.py").write_text("import os\ndef main():\n    os._exit(7)\n")
    # The process finds these beside the benchmarks.
    modules = ["absent", "endless", "dead", "crossing"]
    parts = [Part(name, name, [], 3 if name == "endless" else 60) for name in modules]
    os.environ["PYTHONPATH"], before = f"{hour.work}", os.environ.get("PYTHONPATH", "")
    try:
        do_parts(parts, hour, modules)
    finally:
        os.environ["PYTHONPATH"] = before
    assert "ModuleNotFoundError" in hour.why("absent")
    assert "not finished in 3 s" in hour.why("endless")
    assert "status 7" in hour.why("dead")
    assert hour.done("crossing")
    report = (hour.options.out / "report.md").read_text()
    assert "**Failed**: not finished in 3 s" in report
    assert "found" in report


@pytest.mark.parametrize("tiny", [False, True])
def test_the_parts_options_are_those_of_the_benchmarks(hour, tiny):
    """What runs on a GPU alone has other options than the rehearsal."""
    import importlib

    hour.options.tiny, hour.options.device = tiny, "cuda"
    for part in [*smoke(hour.options), *kernels(hour.options)]:
        module = importlib.import_module(part.module)
        assert module.parse_arguments(part.arguments).device == "cuda"


def test_the_rows_are_those_of_the_table(hour):
    for setting in ("tuned", "paper"):
        _, files = arguments(hour.options, setting)
        assert set(ROWS) <= set(load_rows(files))
    assert len(SEEDS) == 3


def test_the_number_side_by_side_is_the_fastest_that_was_measured(hour):
    (hour.work / "side_by_side.json").write_text('{"4": 40.5, "8": 61.0, "16": 55.0}')
    assert measured_jobs(hour) == 8


def test_an_alarm_ends_what_runs_and_finished_runs_keep_their_average_alone(tmp_path):
    folder = tmp_path / "row"
    folder.mkdir()
    for name in ("checkpoint1.pt", "average.pt", "train.done"):
        (folder / name).touch()
    run = Run("row", 1, folder, [Step("train", ["true"], folder / "train.log", True)], {})
    begin = time.monotonic()
    with swept([run]), alarm(0.2):
        signal.pause()
    assert time.monotonic() - begin < 20
    assert sorted(path.name for path in folder.iterdir()) == ["average.pt", "train.done"]


def test_a_crossover_lies_between_the_sizes_on_its_sides():
    from crossovers import crossing

    assert crossing([(10, 0.5), (40, 2.0), (20, 0.9), (80, 3.0)]) == pytest.approx(800**0.5)
    assert crossing([(10, 1.5), (20, 2.0)]) == 10
    assert crossing([(10, 0.5), (20, 0.7)]) == 40


def test_waits_are_counted_by_the_line_that_causes_them():
    from waits import count_waits

    from fairseq_phrase.models.tree_beams import regroup

    with count_waits("cpu") as waits:
        regroup(torch.tensor([1, 0]), 2, 1)
        torch.ones(3).sum().item()  # neither this project's nor fairseq's
    assert [line.split(":")[0] for line in waits.own] == ["tree_beams.py"]
    assert waits.own.total() == waits.lines.total() == 1
