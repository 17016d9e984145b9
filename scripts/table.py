"""Run the rows of a table: train, average, translate; several seeds, GPUs and runs at a time.

    python scripts/table.py run configs/tables/quickstart.yaml --data DATA -s de -t en --out RUNS

A run has a folder, RUNS/ROW/seedN, with commands.sh, row.yaml (its options), key.json (its inputs: flags,
and the content of data) and the output of each command. Finished commands are not repeated. A training
that was stopped continues from its last checkpoint. A row that fails does not stop the others.
docs/own_tables.md explains how to add a table, a row or a kind of row, and why this uses threads of
concurrent.futures and not a workflow system.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from omegaconf import OmegaConf
from rows import Run, Step, load_rows, plan, titles
from tqdm import tqdm

from fairseq_phrase.cores import num_cores
from fairseq_phrase.data.store.outputs import (
    as_bytes,
    only_writer,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.training_log import read_training_log
from fairseq_phrase.repairs.late_imports import same_logging

_LITTLE_SPACE = 2**20  # bytes; a command that failed with less was probably stopped by a full disk
# fairseq-train's log: updates of an epoch, and loss; updates so far, also at the end of an epoch.
_PROGRESS = re.compile(r"/ (\d+) loss=([\d.]+)")
# glibc keeps large blocks instead of returning them: a training step on a CPU is about 15% faster.
_KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "8000000000",
    "MALLOC_TOP_PAD_": "200000000",
}
_KEY = "key.json"
_PRECISIONS = frozenset(("train: --bf16", "train: --fp16"))
_UPDATES = re.compile(r"num_updates[= ](\d+)")
_MEASURED = 20  # updates that give the speed of a training


class Forecast:
    """States once, from the first updates, how long the trainings take on this machine.

    Args:
        jobs: the number of trainings at a time.
    """

    def __init__(self, jobs: int):
        self.trainings = 0  # all that are not done
        self._jobs = jobs
        self._first: dict[str, tuple[float, int]] = {}  # by training: when it was at which update
        self._seconds: dict[str, float] = {}  # that it still took when its speed was known
        self._lock = threading.Lock()

    def update(self, training: str, updates: int, total: int | None) -> None:
        """Take the position of a training; print when the speed of all that are in progress is known."""
        with self._lock:
            now = time.monotonic()
            began, first = self._first.setdefault(training, (now, updates))
            if not total or updates - first < _MEASURED or training in self._seconds:
                return
            seconds_of_one = (now - began) / (updates - first)
            self._seconds[training] = seconds_of_one * (total - updates)
            if len(self._seconds) == min(self.trainings, self._jobs):
                seconds = self._seconds.values()
                in_turns = sum(seconds) / len(seconds) * self.trainings / self._jobs
                minutes = max(1, round(max(*seconds, in_turns) / 60))
                tqdm.write(f"On this machine, the trainings take {minutes} min more.", sys.stderr)


class Runner:
    """Does runs, several at a time; ``failures`` then has the runs that failed, and the reasons.

    Args:
        gpus: the GPUs that the jobs share; empty for none. Each is a number, or several numbers separated
            by commas, which train one run together.
        jobs: the number of runs at a time.
    """

    def __init__(self, gpus: Sequence[str], jobs: int):
        self._jobs = jobs
        self._slots: queue.SimpleQueue[tuple[int, str]] = queue.SimpleQueue()
        for number in range(jobs):
            self._slots.put((number, gpus[number % len(gpus)] if gpus else ""))
        self._stopped = threading.Event()
        self._forecast = Forecast(jobs)
        self.failures: dict[str, str] = {}

    def run(self, runs: Sequence[Run]) -> None:
        """Do all runs; Ctrl-C stops their processes."""
        remaining = []
        for run in runs:
            try:
                check_key(run)
            except UserError as error:
                self.failures[str(run)] = str(error)
            else:
                remaining += [run] if run.left() else []
        self._forecast.trainings = sum(any(step.trains for step in run.left()) for run in remaining)
        with ThreadPoolExecutor(self._jobs) as pool:
            try:
                futures = {pool.submit(self.in_slot, run): run for run in remaining}
                pending = set(futures)
                while pending:  # a signal that comes just before a wait without a timeout is lost
                    done, pending = wait(pending, timeout=1, return_when=FIRST_COMPLETED)
                    for future in done:
                        if (error := future.exception()) is not None:
                            self.failures[str(futures[future])] = str(error)
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def in_slot(self, run: Run) -> None:
        """Do a run on a free device."""
        number, gpus = slot = self._slots.get()
        threads = {"OMP_NUM_THREADS": str(max(1, num_cores() // self._jobs))}
        environment = {**threads, **({} if gpus else _KEEP_MEMORY), **os.environ}
        environment["CUDA_VISIBLE_DEVICES"] = gpus
        try:
            seconds = 0.1 if sys.stderr.isatty() else 60  # between lines of a log
            with tqdm(
                position=number, unit="update", dynamic_ncols=True, desc=str(run),
                mininterval=seconds, maxinterval=max(10, seconds),
            ) as bar:  # fmt: skip
                self.do(run, bar, environment)
        finally:
            self._slots.put(slot)

    def do(self, run: Run, bar: tqdm, environment: dict[str, str]) -> None:
        """Do the steps of a run that are not done.

        Raises:
            RuntimeError: a command failed.
            UserError: another script works on this run, or it was begun with other options or data.
        """
        run.folder.mkdir(parents=True, exist_ok=True)
        # The run's processes inherit the lock, so it also holds while one outlives this process.
        with only_writer(run.folder) as lock:
            self._do_alone(run, bar, environment, lock)

    def _do_alone(self, run: Run, bar: tqdm, environment: dict[str, str], lock: int) -> None:
        write_atomically(run.folder / _KEY, as_bytes(check_key(run)))
        (run.folder / "commands.sh").write_text("".join(f"{step}\n" for step in run.steps), "utf-8")
        OmegaConf.save(run.options, run.folder / "row.yaml")
        bar.reset(run.updates())
        for step in run.left():
            bar.set_description(f"{run}: {step.name}", refresh=sys.stderr.isatty())
            if step.trains and has_ended(run.folder, step.output):
                finish_training(run, step)
                continue
            if step.trains:
                repair_last_checkpoint(run.folder)
                if step.output.exists():
                    advance(bar, step.output, run)
                    bar.initial = bar.n  # of an earlier session, not this speed
            else:
                first = environment["CUDA_VISIBLE_DEVICES"].split(",")[0]
                environment = environment | {"CUDA_VISIBLE_DEVICES": first}
            self._do_step(run, step, bar, environment, lock)

    def _do_step(
        self, run: Run, step: Step, bar: tqdm, environment: dict[str, str], lock: int
    ) -> None:
        # A training's output is its log; another step's output is complete only at its end.
        mode, partial, log = "ab", step.output, step.output
        if not step.trains:
            mode, partial, log = "wb", log.with_suffix(".partial"), log.with_suffix(".log")
        with open(partial, mode) as output, open(log, mode) as errors:
            nice = ["nice", "-n", str(run.nice)] if run.nice else []
            process = subprocess.Popen(
                [*nice, *step.command], stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                env=environment, start_new_session=True, pass_fds=[lock],
            )  # fmt: skip
            gives_way = not run.nice
            try:
                while process.poll() is None:
                    gives_way = gives_way or let_session_give_way(process.pid, run.nice)
                    try:
                        process.wait(0.5)
                    except subprocess.TimeoutExpired:
                        if self._stopped.is_set():
                            os.killpg(process.pid, signal.SIGTERM)
                        elif step.trains:
                            advance(bar, log, run)
                            if bar.n > bar.initial:  # the time to start tells nothing
                                self._forecast.update(str(run), bar.n, bar.total)
            except OSError:  # the terminal of the progress bar is gone
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
                raise
        if process.returncode != 0:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            end = "\n    ".join(["", *lines[-12:]])
            if shutil.disk_usage(run.folder).free < _LITTLE_SPACE:
                end += f"\n    (the disk of {run.folder} is full: make room, and run again)"
            raise RuntimeError(
                f"{step.name} ended with status {process.returncode}; the end of {log}:{end}"
            )
        if step.trains:
            advance(bar, log, run, ended=True)
            finish_training(run, step)
        else:
            os.replace(partial, step.output)


def let_session_give_way(process: int, nice: int) -> bool:
    """Lower the priority of a process's session, where Linux shares cores among sessions first.

    Returns:
        Whether it is lowered, or need not be. Linux allows it for one session at a time.
    """
    try:
        Path(f"/proc/{process}/autogroup").write_text(str(nice))
    except BlockingIOError:
        return False
    except OSError:  # Linux is built without it, or the process has ended
        pass
    return True


def check_key(run: Run) -> dict[str, str]:
    """Check that the files in a run's folder were made with the run's options and data.

    Steps may be added, and files to the data. A training that has ended may have another precision than
    this call. A folder without a key was made by an earlier version, or restored from results that were:
    only its :func:`later_options` are known.

    Returns:
        The key of the existing files and of the run.

    Raises:
        UserError: a step had different options, or a file of the data had a different content.
    """
    current = {**run.key, **{name: d for path in run.files for name, d in data_fingerprints(path)}}
    current |= {f"FILE/{name}": whole_fingerprint(path) for name, path in run.named.items()}
    note = run.folder / _KEY
    has_key = note.is_file()
    recorded = read_key(note.read_bytes(), note) if has_key else {}
    add_later_options(recorded, current, run)
    steps = {name.partition(":")[0] for name in recorded} & {
        name.partition(":")[0] for name in current
    }
    # A folder may have rows of several precisions: only a training that continues must keep its own.
    ended = any(step.trains and step.done.exists() for step in run.steps)
    free = _PRECISIONS if ended else frozenset()
    versions = (
        {
            name: value
            for name, value in key.items()
            if (
                name.partition(":")[0] in steps and name not in free
                if has_key
                else name in recorded
            )
        }
        for key in (recorded, current)
    )
    require_same(
        *versions, run.folder, f"give another --out, or remove {run.folder} to begin this run anew"
    )
    return {**recorded, **{name: value for name, value in current.items() if name not in free}}


def add_later_options(made: dict[str, str], here: dict[str, str], run: Run) -> None:
    """Add the values of :func:`later_options` to a run's key, and to the key in its folder.

    A training that knew an option has it in its log.
    """
    logs = [step.output for step in run.steps if step.trains and step.output.is_file()]
    for name, (default, before) in later_options(here).items():
        here[name] = here.get(name, default) or "True"  # a switch has no value
        if name in made:
            made[name] = made[name] or "True"
        elif logs:
            option = name.removeprefix("train: --").replace("-", "_")
            made[name] = read_training_log(logs[0]).options.get(option, before).strip("'")
        else:  # nothing is trained
            made[name] = here[name]


def later_options(key: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return options that a row's model may have been trained before.

    Args:
        key: the key of a run.

    Returns:
        By the names that flags have in a key: the default, and the value before the option existed.
    """
    flags = {"_name": "train: --arch", "encoder": "train: --encoder"}
    model = {option: key[flag] for option, flag in flags.items() if flag in key}
    if "_name" not in model:
        return {}
    with same_logging():
        from fairseq_phrase import register
        from fairseq_phrase.checkpoints.options import later_options_of

        register()
        options = later_options_of(model)
    return {
        f"train: --{option.name.replace('_', '-')}": (
            str(option.default),
            str(option.metadata["before"]),
        )
        for option in options
    }


@cache
def data_fingerprints(path: Path) -> list[tuple[str, str]]:
    """Return names and fingerprints of a file, or of the texts, dictionaries and models of data."""
    from fairseq_phrase.data.store.manifest import fingerprint

    if not path.is_dir():
        return [("TEXT", fingerprint(path)[:16])] if path.is_file() else []
    files = sorted(
        file for suffix in ("bin", "txt", "model", "codes") for file in path.glob(f"*.{suffix}")
    )
    return [(f"DATA/{file.name}", fingerprint(file)[:16]) for file in files]


@cache
def whole_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file, or of all files in a folder."""
    from fairseq_phrase.data.store.manifest import fingerprint

    if path.is_file():
        return f"{path.name} {fingerprint(path)[:16]}"
    files = sorted(file for file in path.rglob("*") if file.is_file())
    texts = (f"{file.relative_to(path)} {fingerprint(file)}" for file in files)
    return f"{path.name} {hashlib.sha256(' '.join(texts).encode()).hexdigest()[:16]}"


def has_ended(folder: Path, log: Path) -> bool:
    """Return whether a training wrote its last checkpoint and ended, though it is not marked as done.

    It was stopped in its last second. If it ended inside an epoch, fairseq would resume it for one more
    update.
    """
    saved = log.is_file() and zipfile.is_zipfile(folder / "checkpoint_last.pt")
    return saved and read_training_log(log).finished


def finish_training(run: Run, step: Step) -> None:
    """Mark a training as done."""
    step.done.touch()
    if run.drops_optimizer:
        drop_optimizer_states(run.folder)


def drop_optimizer_states(folder: Path) -> None:
    """Remove the optimizer's state from the checkpoints of a finished training."""
    import torch

    from fairseq_phrase.repairs.checkpoints import make_checkpoints_loadable

    make_checkpoints_loadable()
    for path in folder.glob("checkpoint*.pt"):
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if state.pop("last_optimizer_state", None) is not None:
            smaller = path.with_suffix(".partial")
            try:
                torch.save(state, smaller)
                os.replace(smaller, path)
            finally:
                smaller.unlink(missing_ok=True)


def repair_last_checkpoint(folder: Path) -> None:
    """Replace an incomplete last checkpoint with the newest complete one.

    A machine that crashes may lose the end of a file that already has its name.
    """
    last = folder / "checkpoint_last.pt"
    if last.exists() and not zipfile.is_zipfile(last):
        last.unlink()
        checkpoints = [
            path for path in folder.glob("checkpoint_*_*.pt") if zipfile.is_zipfile(path)
        ]
        if checkpoints:
            shutil.copyfile(max(checkpoints, key=lambda path: path.stat().st_mtime), last)


def advance(bar: tqdm, log: Path, run: Run, ended: bool = False) -> None:
    """Move a progress bar to a log's position; a training may end early."""
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4000))
        end = stream.read().decode("utf-8", errors="replace")
    if matches := _PROGRESS.findall(end):
        in_epoch, loss = matches[-1]
        bar.total = run.updates(int(in_epoch))
        bar.set_postfix_str(f"loss {loss}", refresh=False)
    if matches := _UPDATES.findall(end):
        bar.update(int(matches[-1]) - bar.n)
    if ended:
        bar.total = bar.n


def choose_gpus(args: argparse.Namespace, trains: bool = True) -> list[str]:
    """Choose the GPUs of each run that is in progress at a time.

    Args:
        args: the options of the command line.
        trains: whether a training remains, for which the precision may need a GPU.

    Raises:
        SystemExit: the GPUs do not exist, or do not suffice.
    """
    import torch

    there = torch.cuda.device_count()
    sets = {"auto": [str(gpu) for gpu in range(there)], "none": []}
    names = sets.get(args.gpus, args.gpus.split(","))
    gpus = [gpu for gpu in names if gpu]
    if any(not gpu.isdigit() or int(gpu) >= there for gpu in gpus):
        gpus_there = f"{there} GPUs, numbered from 0" if there else "no GPU that torch can use"
        sys.exit(
            f"--gpus {args.gpus}: this machine has {gpus_there}; --gpus none trains on the CPU"
        )
    if args.precision != "fp32" and not gpus and trains:
        sys.exit(
            f"--precision {args.precision} needs a GPU, and none is here or named: --precision "
            "fp32 trains on the CPU, also in a folder with rows of another precision"
        )
    if args.gpus_per_run > 1 and (not gpus or len(gpus) % args.gpus_per_run):
        sys.exit(
            f"--gpus-per-run {args.gpus_per_run}: the GPUs to share are {len(gpus)}; give a multiple of "
            f"{args.gpus_per_run} with --gpus"
        )
    # torch counts the GPUs that CUDA_VISIBLE_DEVICES lists, where it is set.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(there)))
    devices = iter(visible.split(",")[int(gpu)] for gpu in gpus)
    return [",".join(group) for group in zip(*[devices] * args.gpus_per_run, strict=True)]


def training_left(args: argparse.Namespace, runs: Sequence[Run]) -> bool:
    """Return whether a training remains; for ``names``, where --out has all parts, if none is done."""
    if args.action == "names":
        return not any(args.out.glob("**/seed*/train.done"))
    return any(step.trains for run in runs for step in run.left())


def numbers(text: str) -> list[int]:
    """Read numbers separated by commas, each once."""
    return list(dict.fromkeys(map(int, text.split(","))))


def choose_rows(chosen: str, rows: Sequence[str]) -> list[str]:
    """Choose rows of a table, each once.

    Args:
        chosen: names separated by commas, or the number of first rows; empty for all.
        rows: the table's rows.

    Raises:
        SystemExit: a row does not exist, or none is chosen.
    """
    names = list(dict.fromkeys(chosen.split(","))) if chosen else list(rows)
    if chosen.isdigit():
        if not 1 <= int(chosen) <= len(rows):
            sys.exit(f"--rows {chosen}: expected 1 to {len(rows)}: the table has {', '.join(rows)}")
        names = list(rows)[: int(chosen)]
    if missing := [name for name in names if name not in rows]:
        sys.exit(f"no row {', '.join(missing)}: the table has {', '.join(rows)}")
    return names


def check_baselines(named: str, rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the rows that reports compare with exist; pre-training rows have no report.

    Raises:
        SystemExit: a row does not exist.
    """
    names = [name for name, row in rows.items() if row.get("steps") != "pretraining"]
    if names and (missing := [name for name in named.split(",") if name not in names]):
        sys.exit(f"--baselines: no row {', '.join(missing)}: the table has {', '.join(names)}")


def check_generate_flags(given: str, runs: Iterable[Run], *, labels: bool) -> None:
    """Check flags that are read only after a training, and that its folder then keeps.

    Args:
        given: the flags.
        runs: the runs whose commands have them.
        labels: whether runs that label have them, too.

    Raises:
        SystemExit: a command does not know a flag, or its value is wrong.
    """
    from fairseq import options

    from fairseq_phrase import register
    from fairseq_phrase.cli import label

    register()
    parsers: dict[str, Callable[[], argparse.ArgumentParser]] = {
        "fairseq-generate": options.get_generation_parser,
        "fairseq-interactive": options.get_interactive_generation_parser,
        **({"fairseq-phrase-label": label.make_parser} if labels else {}),
    }
    commands = {step.command[0]: step.command[1:] for run in runs for step in run.steps}
    for name in parsers.keys() & commands.keys():

        def stop(message: str, name: str = name) -> NoReturn:
            sys.exit(f"--generate-flags {given.strip()}: {name}: {message}")

        parser = parsers[name]()
        parser.error = stop  # type: ignore[method-assign]
        if name == "fairseq-phrase-label":
            parser.parse_args(commands[name])
        else:
            options.parse_args_and_arch(parser, commands[name])


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line, or a list of its words."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "action",
        choices=("run", "names", "titles"),
        help="names, titles: print them; names: those of rows, then of their data",
    )
    add("files", type=Path, nargs="+", help="the table's YAML; later files win")
    add("--rows", default="", help="names, commas between them, or the first N (all)")
    add("--without-numbers", action="store_true", help="titles without the paper's numbers")
    add("--baselines", help="rows that reports will compare with; only checked")
    add("--tokenize", metavar="NAME", help="the reports' tokenizer for BLEU; only checked")
    add("--seeds", type=numbers, default="1", help="numbers, commas between them")
    add("--data", type=Path, help="data directory")
    add("-s", "--source-lang")
    add("-t", "--target-lang")
    add("--out", type=Path, default=Path("runs"), help="where runs go")
    add("--subsets", default="test", help="test sets, commas between them")
    add("--raw", type=Path, help="also translate this raw text, parsing on the fly")
    add("--parser", help="parses the raw text, instead of the one that the data name")
    add("--average", type=int, help="checkpoints, instead of the row's; 1: the last as it is")
    add("--max-update", type=int, help="instead of the row's own")
    add("--max-epoch", type=int, help="instead of the row's own")
    add("--precision", default="fp32", choices=("fp32", "fp16", "bf16"), help="of training")
    add("--train-flags", default="", help="more flags for fairseq-train")
    add("--generate-flags", default="", help="more flags for fairseq-generate")
    add("--jobs", type=int, default=1, help="runs at a time")
    add("--gpus", default="auto", help="numbers, commas between them; auto: all; none: CPU")
    add("--gpus-per-run", type=int, default=1, help="GPUs that train one run together")
    add("--dry-run", action="store_true", help="print every command, run none")
    args = parser.parse_args(arguments)
    if args.gpus_per_run < 1:
        parser.error(f"--gpus-per-run {args.gpus_per_run}: expected at least 1")
    for option in ("train_flags", "generate_flags"):
        try:
            shlex.split(flags := getattr(args, option))
        except ValueError as error:  # a quotation mark is not closed
            parser.error(f"--{option.replace('_', '-')} {flags.strip()}: {error}")
    return args


def main(arguments: Sequence[str] | None = None) -> None:
    """Run or list the rows of a table."""
    args = parse_arguments(arguments)
    if args.action == "titles":
        yaml.safe_dump(titles(args.files, not args.without_numbers), sys.stdout, sort_keys=False)
        return
    rows = load_rows(args.files)
    names = choose_rows(args.rows, list(rows))
    if args.baselines is not None:
        check_baselines(args.baselines, rows)
    if args.tokenize:
        from fairseq_phrase.metrics.tokenizers import check_tokenizer

        try:
            check_tokenizer(args.tokenize)
        except UserError as error:
            sys.exit(str(error))
    runs = [plan(args, row, rows[row], seed) for seed in args.seeds for row in names]
    if args.generate_flags.strip():
        with same_logging():
            check_generate_flags(args.generate_flags, runs, labels=args.action == "run")
    gpus = [] if args.dry_run else choose_gpus(args, training_left(args, runs))
    if args.action == "names":
        print(
            ",".join(names), *sorted({data for name in names if (data := rows[name].get("data"))})
        )
    elif args.dry_run:
        print(*(line for run in runs for line in (f"# {run}", *run.steps)), sep="\n")
    else:
        runner = Runner(gpus, args.jobs)
        try:
            runner.run(runs)
        except KeyboardInterrupt:
            sys.exit("\nstopped; run the same command again to go on from here")
        for name, reason in runner.failures.items():
            print(f"\n{name} failed: {reason}", file=sys.stderr)
        if failed := len(runner.failures):
            sys.exit(f"\n{failed} of {len(runs)} runs failed; the others are finished")


def stop_when_told() -> None:
    """Let SIGTERM and a lost terminal stop the runs as Ctrl-C does; nohup ignores the latter."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))


if __name__ == "__main__":
    stop_when_told()
    main()
