"""The tables of the GPU hour: Multi30k, rows and seeds by importance, side by side on one GPU.

How many trainings run side by side is measured first. The rest is scripts/table.py's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import table
import yaml
from rows import Run, load_rows, plan, titles

if TYPE_CHECKING:
    from gpu_hour import Hour

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "tables"
#: The rows, what matters most first: the baselines, the paper's model and its tuned form, the other
#: encoders, the controls.
ROWS = [
    "transformer", "structural_7", "phrase_k2", "phrase_k2_tuned", "structural_6", "structural_9", "tree",
    "relation", "parent_scaled", "sigma_without_phrases", "phrase_k2_all", "transformer_equal_parameters",
]  # fmt: skip
SEEDS = (1, 2, 3)
SIDE_BY_SIDE = (4, 8, 16)
_UPS = re.compile(r"\bups=([\d.]+)")
_TINY = (
    "--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 32 --decoder-embed-dim 32 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --max-tokens 256 --num-workers 0 "
    "--log-interval 1 --max-valid-steps 1"
)
_REPORT_SECONDS = 60  # kept back for the reports


def tables(hour: Hour) -> None:
    """Train, translate and report, both settings, until the stage's time is over."""
    options = hour.options
    rows, seeds = (ROWS[:2], SEEDS[:1]) if options.tiny else (ROWS, SEEDS)
    (hour.work / "tables.failed").unlink(missing_ok=True)
    jobs = measured_jobs(hour)
    reserve = 0 if options.tiny else _REPORT_SECONDS
    failures: dict[str, str] = {}
    for setting in ("tuned", "paper"):
        # The rehearsal's second setting is its first row.
        names = rows[:1] if options.tiny and setting == "paper" else rows
        args, files = arguments(options, setting)
        lines = load_rows(files)
        runs = [plan(args, name, lines[name], seed) for name in names for seed in seeds]
        runner = table.Runner(table.choose_gpus(args), jobs)
        with quiet(hour.work / "tables.log"), swept(runs), alarm(hour.left() - reserve):
            runner.run(runs)
        failures |= {f"{setting}, {run}": why for run, why in runner.failures.items()}
        report(hour, setting, args, files, runs)
    if failures:
        text = "\n".join(f"{run}: {why}" for run, why in failures.items())
        hour.fail("tables", text + "\n")


def arguments(options: argparse.Namespace, setting: str) -> tuple[argparse.Namespace, list[Path]]:
    """Make table.py's options of a setting, and name the setting's files."""
    names = ("multi30k_table1", f"multi30k_table1.{setting}", "gpu_hour")
    files = [CONFIGS / f"{name}.yaml" for name in names]
    words = ["run", *map(str, files), "--data", str(options.data), "-s", options.source_lang]
    words += ["-t", options.target_lang, "--out", str(options.work / "tables" / setting)]
    words += ["--gpus", "none"] if options.device == "cpu" else ["--precision", "bf16"]
    if options.tiny:
        words += ["--max-update", "2", "--average", "1", f"--train-flags={_TINY}"]
        words += ["--generate-flags=--beam 1 --max-len-b 5 --max-len-a 0"]
    return table.parse_arguments(words), files


def measured_jobs(hour: Hour) -> int:
    """Return how many trainings side by side make the most updates a second; measured once."""
    found = hour.work / "side_by_side.json"
    if not found.exists():
        counts = (1, 2) if hour.options.tiny else SIDE_BY_SIDE
        speeds: dict[int, float] = {}
        for count in counts:
            speeds[count] = speed(count, hour)
            # More of them cannot help where so many do not.
            if speeds[count] < max(speeds.values()):
                break
        found.write_text(json.dumps(speeds), "utf-8")
    speeds = {int(count): each for count, each in json.loads(found.read_text("utf-8")).items()}
    return max(speeds, key=lambda count: speeds[count])


def speed(count: int, hour: Hour) -> float:
    """Train so many Transformers for a moment, and return their updates a second together."""
    tiny = hour.options.tiny
    args, files = arguments(hour.options, "tuned")
    args.out = hour.work / "side_by_side"
    args.train_flags += " --no-save --disable-validation"
    args.train_flags += "" if tiny else " --log-interval 20"
    runs = [plan(args, "transformer", load_rows(files)["transformer"], n) for n in range(count)]
    shutil.rmtree(args.out, ignore_errors=True)
    devices = table.choose_gpus(args)
    visible = {"CUDA_VISIBLE_DEVICES": devices[0] if devices else ""}
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    processes = []
    for run in runs:
        run.folder.mkdir(parents=True)
        with open(run.steps[0].output, "wb") as log:
            processes.append(
                subprocess.Popen(
                    run.steps[0].command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    env={**os.environ, **threads, **visible},
                )
            )  # fmt: skip
    logs = [run.steps[0].output for run in runs]
    try:
        # Until all are under way, and then a moment of all together.
        enough = min(90.0, hour.left())
        end = time.monotonic() + enough
        while time.monotonic() < end and not all(updates_a_second(log) for log in logs):
            if all(process.poll() is not None for process in processes):
                break
            time.sleep(0.5)
        if not tiny:
            time.sleep(10)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
    found = [updates_a_second(log) for log in logs]
    if not all(found):
        print(logs[0].read_text(errors="replace")[-2000:], file=sys.stderr)
    # One that did not come so far (memory, processes) says that so many are too many.
    return sum(found) if all(found) else 0.0


def updates_a_second(log: Path) -> float:
    """Read what fairseq-train logged last; 0 if it has logged nothing yet."""
    speeds = _UPS.findall(log.read_text(errors="replace"))
    return float(speeds[-1]) or 0.01 if speeds else 0.0


@contextlib.contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Stop what runs inside after so many seconds; what is stopped so goes on in another call."""

    class OverError(Exception):
        pass

    def ring(*_: object) -> None:
        raise OverError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(0.1, seconds))
    try:
        yield
    except OverError:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Write progress bars to a log, where nobody looks at them."""
    if sys.stderr.isatty():
        yield
        return
    with open(log, "a") as output, contextlib.redirect_stderr(output):
        yield


@contextlib.contextmanager
def swept(runs: list[Run]) -> Iterator[None]:
    """Delete the checkpoints of runs that are finished, but for their average: a disk has an end."""
    over = threading.Event()

    def sweep() -> None:
        while True:
            last = over.wait(5)
            for run in runs:
                if not run.left():
                    for path in run.folder.glob("checkpoint*.pt"):
                        path.unlink()
            if last:
                return

    thread = threading.Thread(target=sweep)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def report(
    hour: Hour, setting: str, args: argparse.Namespace, files: list[Path], runs: list[Run]
) -> None:
    """Make the report of the runs that are finished, and write it into the hour's."""
    finished = [run for run in runs if not run.left()]
    text = f"{len(finished)} of {len(runs)} runs of the {setting} setting are finished.\n\n"
    if finished:
        shown = args.out / "rows.yaml"
        shown.write_text(yaml.safe_dump(titles(files, False), sort_keys=False), "utf-8")
        command = ["fairseq-phrase-report", str(args.out), "--partial", "--rows", str(shown)]
        command += ["--reference", str(hour.options.reference), "--lowercase"]
        command += ["--trials", "100"] if hour.options.tiny else []
        if any(run.row == "transformer" for run in finished):
            command += ["--baseline", "transformer"]
        made = hour.work / "tables" / f"report-{setting}"
        command += ["--out", str(made), "--caption", f"Multi30k, {setting} setting, one GPU"]
        with open(hour.work / "report.log", "ab") as log:
            ended = subprocess.run(command, stdout=log, stderr=log, check=False)
        page = made / "report.md"
        if ended.returncode == 0:
            text += page.read_text("utf-8") + "\n"
        else:
            hour.fail("tables", f"fairseq-phrase-report ended with status {ended.returncode}\n")
    path = hour.work / "tables.md"
    before = path.read_text("utf-8") if setting == "paper" and path.exists() else ""
    path.write_text(before + text, "utf-8")
