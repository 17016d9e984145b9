"""Run the rows of a table: train, average, translate; several seeds, several rows at a time.

    python scripts/run_rows.py --configs configs/multi30k/tuned --rows 1,4 --seeds 1,2,3 \\
        --data DATA --out RUNS --jobs 2

A row is a file CONFIGS/ROW.yaml as fairseq-hydra-train reads it (``defaults: [base, _self_]`` and
all); its options are handed to fairseq-train as flags, so that fairseq's own ``transformer``, which
hydra cannot train, is a row like the others. ``generation:`` holds flags of fairseq-generate,
``checkpoint: keep_last_epochs:`` says how many checkpoints are averaged, and ``update_freq`` is that of
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
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from side_by_side import repair_last_checkpoint
from tqdm import tqdm

_NAMES = {"task": "task", "model": "arch"}  # groups whose _name has another flag than their own
_LITTLE_SPACE = 2**20  # bytes; a command that failed with less was probably stopped by that
_PROGRESS = re.compile(r"loss=([\d.]+).*num_updates=(\d+)")


def load_row(path: Path) -> dict[str, dict[str, Any]]:
    """Read a row's options and those that it builds on.

    Returns:
        The options by group.
    """
    own = yaml.safe_load(path.read_text(encoding="utf-8"))
    row: dict[str, dict[str, Any]] = {}
    for base in own.pop("defaults", ["_self_"]):
        options = own if base == "_self_" else load_row(path.with_name(f"{base}.yaml"))
        for group, values in options.items():
            row.setdefault(group, {}).update(values)
    return row


def flags(row: dict[str, dict[str, Any]]) -> list[str]:
    """Write options as fairseq-train takes them on the command line."""
    words = []
    for group, options in row.items():
        for name, value in options.items():
            if value is None or value is False or value == "???":
                continue
            flag = _NAMES.get(group, group) if name == "_name" else name
            words.append(f"--{flag.replace('_', '-')}")
            if value is not True:
                values = value if isinstance(value, list) else [value]
                words.append(",".join(map(str, values)))
    return words


@dataclass
class Step:
    """A command of a run.

    Attributes:
        name: what it is called.
        command: its words.
        output: where what it prints goes; the step is done if it is there.
        appends: whether the output grows over several attempts, so that a file of its own says that
            the step is done.
    """

    name: str
    command: list[str]
    output: Path
    appends: bool = False
    stdin: Path | None = None

    @property
    def done(self) -> Path:
        """The file that says that the step is done."""
        return self.output.with_suffix(".done") if self.appends else self.output

    def __str__(self) -> str:
        """Return the command line."""
        redirect = f" <{shlex.quote(str(self.stdin))}" if self.stdin else ""
        return f"{shlex.join(self.command)}{redirect} >{shlex.quote(str(self.output))}"


@dataclass
class Run:
    """A row with a seed."""

    row: str
    seed: int
    folder: Path
    steps: list[Step]
    updates: int | None

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.row}, seed {self.seed}"


def plan(args: argparse.Namespace, row: str, seed: int) -> Run:
    """Decide on the steps of a row with a seed."""
    options = load_row(args.configs / f"{row}.yaml")
    options.setdefault("common", {})["seed"] = seed
    options.setdefault("checkpoint", {})["save_dir"] = None
    options.get("task", {}).pop("data", None)
    generation = {"beam": 5, **options.pop("generation", {})}
    generation |= {} if args.beam is None else {"beam": args.beam}
    for name in ("max_update", "max_epoch"):
        if (value := getattr(args, name)) is not None:
            options.setdefault("optimization", {})[name] = value
    share_out(options, args.gpus_per_run, row)
    folder = args.out / row / f"seed{seed}"
    common = [str(args.data), "--user-dir", "fairseq_phrase"]
    languages = ["--source-lang", args.source_lang, "--target-lang", args.target_lang]
    task = ["--task", options["task"]["_name"], *languages]
    options["task"] = {
        name: value
        for name, value in options["task"].items()
        if name not in ("source_lang", "target_lang")
    }
    options.get("common", {}).pop("user_dir", None)
    training = ["fairseq-train", *common, *languages, *flags(options)]
    if args.gpus_per_run > 1:
        training += ["--distributed-world-size", str(args.gpus_per_run)]
    training += [*shlex.split(args.train_flags), "--save-dir", str(folder), "--no-progress-bar"]
    average = folder / "average.pt"
    last = args.average or options["checkpoint"].get("keep_last_epochs") or 10
    # A training that is stopped within its first epoch has no other checkpoint than the last.
    averaged = ["--last", str(last)] if last > 1 else []
    inputs = folder if averaged else folder / "checkpoint_last.pt"
    averaging = ["fairseq-phrase-average", str(inputs), *averaged, "--out", str(average)]
    steps = [
        Step("train", training, folder / "train.log", appends=True),
        Step("average", averaging, folder / "average.txt"),
    ]
    decoding = [*task, "--path", str(average), *flags({"generation": generation})]
    # Where several GPUs are seen, fairseq-generate takes but its share of the test set.
    decoding += ["--distributed-world-size", "1", *shlex.split(args.generate_flags)]
    decoding += ["--bpe", "syntax"] if args.bpe == "syntax" else args.bpe.split()
    for subset in args.subsets.split(","):
        generate = ["fairseq-generate", *common, *decoding, "--gen-subset", subset]
        generate += ["--max-tokens", str(args.max_tokens)]
        steps.append(Step(f"translate {subset}", generate, folder / f"generate-{subset}.txt"))
    if args.raw is not None:
        raw = [
            "fairseq-interactive",
            *common,
            *decoding,
            "--tokenizer",
            "syntax",
            "--bpe",
            "syntax",
        ]
        raw += ["--buffer-size", "100", "--max-tokens", str(args.max_tokens)]
        output = folder / f"interactive-{args.subsets.split(',')[0]}.txt"
        steps.append(Step("parse and translate", raw, output, stdin=args.raw))
    updates = options.get("optimization", {}).get("max_update")
    return Run(row, seed, folder, steps, updates)


def share_out(options: dict[str, dict[str, Any]], gpus: int, row: str) -> None:
    """Divide the steps of an update among GPUs.

    Raises:
        SystemExit: they cannot be divided.
    """
    given = options.get("optimization", {}).get("update_freq", [1])
    steps = given if isinstance(given, list) else [given]
    if any(count % gpus for count in steps):
        sys.exit(
            f"--gpus-per-run {gpus}: row {row} has update_freq {','.join(map(str, steps))} on one GPU, "
            f"which {gpus} cannot share; give a number that divides it"
        )
    if gpus > 1:
        options["optimization"]["update_freq"] = [count // gpus for count in steps]


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
        bar.reset(run.updates)
        for step in run.steps:
            if step.done.exists():
                continue
            bar.set_description(f"{run}: {step.name}")
            self._do_step(run, step, bar, environment)

    def _do_step(self, run: Run, step: Step, bar: tqdm, environment: dict[str, str]) -> None:
        if step.name == "train":
            repair_last_checkpoint(run.folder)
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
                    _advance(bar, step.output)
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
        if step.appends:
            step.done.touch()
        else:
            os.replace(partial, step.output)


def _advance(bar: tqdm, log: Path) -> None:
    """Move a bar to where a log is."""
    with open(log, "rb") as stream:
        stream.seek(max(0, log.stat().st_size - 4000))
        found = _PROGRESS.findall(stream.read().decode("utf-8", errors="replace"))
    if found:
        loss, updates = found[-1]
        bar.set_postfix_str(f"loss {loss}", refresh=False)
        bar.update(int(updates.replace(",", "")) - bar.n)


def _check_gpus(gpus: list[str]) -> None:
    if gpus:
        import torch

        there = torch.cuda.device_count()
        missing = [gpu for gpu in gpus if not gpu.isdigit() or int(gpu) >= there]
        if missing:
            sys.exit(f"--gpus {','.join(gpus)}: this machine has {there}, numbered from 0")


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
    groups = zip(*[iter(gpus)] * args.gpus_per_run, strict=True)
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
