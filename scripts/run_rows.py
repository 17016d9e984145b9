"""Run the rows of a table: train, average, translate; several seeds, several rows at a time.

    python scripts/run_rows.py --configs configs/multi30k_table1/tuned --rows transformer,phrase_k2 \\
        --seeds 1,2,3 --data DATA -s de -t en --out RUNS --jobs 2

A row is a file CONFIGS/ROW.yaml (scripts/rows.py says what becomes of it). ``update_freq`` is that of
one GPU: with --gpus-per-run N it is divided by N, and the batch stays the same. Each row and seed has a
folder, RUNS/ROW/seedN:

    train.log               fairseq-train's own log
    average.pt              the average of its last checkpoints
    generate-SUBSET.txt     fairseq-generate's output, and its log beside it
    interactive-SUBSET.txt  with --raw: fairseq-interactive's, of raw text that is parsed on the fly
    commands.sh             what was run, in order

What is finished is not run again, and a training that was stopped goes on from its last checkpoint. A
row that fails says why at the end, and does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

from rows import Run, Step, plan
from tqdm import tqdm

_LITTLE_SPACE = 2**20  # bytes; a command that failed with less was probably stopped by that
# What fairseq-train logs: updates of an epoch, loss, updates so far.
_PROGRESS = re.compile(r"/ (\d+) loss=([\d.]+).*num_updates=(\d+)")
_UPDATES = re.compile(r"num_updates[= ](\d+)")  # at the end of an epoch, too


class Runner:
    """Runs plans, several at a time.

    Args:
        gpus: the GPUs to share, one after the other; empty for none. Each is a number, or several with
            commas between them that train one run together.
        jobs: how many runs at a time.
    """

    def __init__(self, gpus: list[str], jobs: int):
        self._gpus, self._jobs = gpus, jobs
        self._waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._processes: set[subprocess.Popen] = set()
        self._stopped = threading.Event()
        self.failures: dict[str, str] = {}

    def run(self, runs: Iterable[Run]) -> None:
        """Run all; what fails is in ``failures`` then.

        Raises:
            KeyboardInterrupt: after all processes are stopped.
        """
        for run in runs:
            self._waiting.put(run)
        slots = [threading.Thread(target=self._slot, args=(n,)) for n in range(self._jobs)]
        for slot in slots:
            slot.start()
        try:
            for slot in slots:
                while slot.is_alive():
                    slot.join(0.5)
        finally:
            self._stopped.set()
            for process in list(self._processes):
                os.killpg(process.pid, signal.SIGTERM)
            for slot in slots:
                slot.join()

    def _slot(self, number: int) -> None:
        """Take runs and do them, one after the other."""
        environment = dict(os.environ)
        cores = max(1, (os.cpu_count() or 1) // self._jobs)
        environment.setdefault("OMP_NUM_THREADS", str(cores))
        environment["CUDA_VISIBLE_DEVICES"] = (
            self._gpus[number % len(self._gpus)] if self._gpus else ""
        )
        with tqdm(position=number, unit="update", dynamic_ncols=True) as bar:
            while not self._stopped.is_set():
                try:
                    run = self._waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    self._do(run, bar, environment)
                except (RuntimeError, OSError) as error:  # OSError: a full disk, or no permission
                    if not self._stopped.is_set():
                        self.failures[str(run)] = str(error)

    def _do(self, run: Run, bar: tqdm, environment: dict[str, str]) -> None:
        if all(step.done.exists() for step in run.steps):
            return  # with the commands.sh of its own time
        run.folder.mkdir(parents=True, exist_ok=True)
        commands = "".join(f"{step}\n" for step in run.steps)
        (run.folder / "commands.sh").write_text(commands, encoding="utf-8")
        bar.initial = 0
        bar.set_description(str(run), refresh=False)
        bar.set_postfix_str("", refresh=False)
        bar.reset(run.most_updates)
        for step in run.steps:
            if step.done.exists():
                continue
            bar.set_description(f"{run}: {step.name}")
            self._do_step(run, step, bar, environment)

    def _do_step(self, run: Run, step: Step, bar: tqdm, environment: dict[str, str]) -> None:
        if step.name == "train":
            repair_last_checkpoint(run.folder)
            if step.output.exists():
                advance(bar, step.output, run)
                bar.initial = bar.n  # done in another time, and no measure of this one's speed
        else:
            first = environment["CUDA_VISIBLE_DEVICES"].split(",")[0]
            environment = {**environment, "CUDA_VISIBLE_DEVICES": first}
        partial = step.output if step.appends else step.output.with_suffix(".partial")
        errors = step.output.with_suffix(".log")
        with (
            open(partial, "ab" if step.appends else "wb") as output,
            open(os.devnull if step.appends else errors, "wb") as error_log,
            open(step.stdin or os.devnull, "rb") as stdin,
        ):
            process = subprocess.Popen(
                step.command,
                stdin=stdin,
                stdout=output,
                stderr=output if step.appends else error_log,
                env=environment,
                start_new_session=True,
            )
            self._processes.add(process)
            while process.poll() is None:
                time.sleep(0.5)
                if step.name == "train":
                    advance(bar, step.output, run)
            self._processes.discard(process)
        if process.returncode != 0:
            log = step.output if step.appends else errors
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            end = "\n    ".join(["", *lines[-12:]])
            if shutil.disk_usage(run.folder).free < _LITTLE_SPACE:
                end += f"\n    (the disk of {run.folder} is full: make room, and run again)"
            raise RuntimeError(
                f"{step.name} ended with status {process.returncode}; the end of {log}:{end}"
            )
        if step.name == "train":
            finish(bar, step.output)
        if step.appends:
            step.done.touch()
        else:
            os.replace(partial, step.output)


def repair_last_checkpoint(folder: Path) -> None:
    """Put the newest whole checkpoint in place of a last one that was cut short.

    fairseq writes each checkpoint under another name first, but copies it to ``checkpoint_last.pt``.
    """
    last = folder / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        last.unlink()
        whole = [path for path in folder.glob("checkpoint_*_*.pt") if zipfile.is_zipfile(path)]
        if whole:
            shutil.copyfile(max(whole, key=lambda path: path.stat().st_mtime), last)


def advance(bar: tqdm, log: Path, run: Run) -> None:
    """Move a bar to where a log is."""
    found = _PROGRESS.findall(_end(log))
    if found:
        in_epoch, loss, updates = found[-1]
        bar.total = run.updates(int(in_epoch))
        bar.set_postfix_str(f"loss {loss}", refresh=False)
        bar.update(int(updates) - bar.n)


def finish(bar: tqdm, log: Path) -> None:
    """Move a bar to the end of a training, which may have come early."""
    found = _UPDATES.findall(_end(log))
    bar.total = int(found[-1]) if found else bar.n
    bar.update(bar.total - bar.n)


def _end(log: Path) -> str:
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4000))
        return stream.read().decode("utf-8", errors="replace")


def _check_gpus(gpus: list[str]) -> None:
    if gpus:
        import torch

        there = torch.cuda.device_count()
        missing = [gpu for gpu in gpus if not gpu.isdigit() or int(gpu) >= there]
        if missing:
            sys.exit(f"--gpus {','.join(gpus)}: this machine has {there}, numbered from 0")


def device_names(gpus: list[str], visible: str) -> list[str]:
    """Name GPUs as CUDA_VISIBLE_DEVICES does, where that is set already: torch counts those it lists.

    Args:
        gpus: their numbers, as torch counts.
        visible: CUDA_VISIBLE_DEVICES; empty for all.
    """
    names = visible.split(",") if visible else None
    return [names[int(gpu)] if names else gpu for gpu in gpus]


def main() -> None:
    """Run the rows named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--configs", type=Path, required=True, help="folder of ROW.yaml files")
    parser.add_argument("--rows", required=True, help="names, commas between them")
    parser.add_argument("--seeds", default="1", help="numbers, commas between them")
    parser.add_argument("--data", type=Path, required=True, help="data directory")
    parser.add_argument("-s", "--source-lang", required=True)
    parser.add_argument("-t", "--target-lang", required=True)
    parser.add_argument("--out", type=Path, required=True, help="where runs go")
    parser.add_argument("--subsets", default="test", help="test sets, commas between them")
    parser.add_argument("--raw", type=Path, help="also translate this raw text, parsing on the fly")
    parser.add_argument("--bpe", default="syntax", help="fairseq-generate's flags for subwords")
    parser.add_argument(
        "--average",
        type=int,
        help="checkpoints to average, instead of the row's; 1: the last as it is",
    )
    parser.add_argument("--beam", type=int, help="instead of the row's own, or 5")
    parser.add_argument("--max-tokens", type=int, default=4000, help="when translating")
    parser.add_argument("--max-update", type=int, help="instead of the row's own")
    parser.add_argument("--max-epoch", type=int, help="instead of the row's own")
    parser.add_argument("--train-flags", default="", help="more flags for fairseq-train")
    parser.add_argument("--generate-flags", default="", help="more flags for fairseq-generate")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--gpus", default="", help="numbers, commas between them; none: CPU")
    parser.add_argument(
        "--gpus-per-run", type=int, default=1, help="GPUs that train one run together"
    )
    parser.add_argument("--dry-run", action="store_true", help="print every command, run none")
    args = parser.parse_args()
    if args.gpus_per_run < 1:
        parser.error(f"--gpus-per-run {args.gpus_per_run}: expected at least 1")
    rows = args.rows.split(",")
    missing = [row for row in rows if not (args.configs / f"{row}.yaml").is_file()]
    if missing:
        there = sorted({path.stem for path in args.configs.glob("*.yaml")} - {"base", "rows"})
        sys.exit(f"no row {', '.join(missing)} in {args.configs}: it has {', '.join(there)}")
    runs = [plan(args, row, seed) for seed in map(int, args.seeds.split(",")) for row in rows]
    if args.dry_run:
        for run in runs:
            print(f"# {run}", *run.steps, sep="\n")
        return
    gpus = [gpu for gpu in args.gpus.split(",") if gpu]
    _check_gpus(gpus)
    if args.gpus_per_run > 1 and (not gpus or len(gpus) % args.gpus_per_run):
        sys.exit(
            f"--gpus-per-run {args.gpus_per_run}: the GPUs to share are {len(gpus)}; give a multiple of "
            f"{args.gpus_per_run} with --gpus"
        )
    devices = iter(device_names(gpus, os.environ.get("CUDA_VISIBLE_DEVICES", "")))
    groups = zip(*[devices] * args.gpus_per_run, strict=True)
    runner = Runner([",".join(group) for group in groups], args.jobs)
    try:
        runner.run(runs)
    except KeyboardInterrupt:
        sys.exit("\nstopped; run again to go on from here")
    for name, reason in runner.failures.items():
        print(f"\n{name} failed: {reason}", file=sys.stderr)
    if runner.failures:
        sys.exit(f"\n{len(runner.failures)} of {len(runs)} runs failed; the others are finished")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
