"""What a row of a table consists of: its options, and the commands that train, average and translate.

A row is a file as fairseq-hydra-train reads it (``defaults: [base, _self_]`` and all); its options are
handed to fairseq-train as flags, so that fairseq's own ``transformer``, which hydra cannot train, is a
row like the others. ``generation:`` holds flags of fairseq-generate, and ``checkpoint:
keep_last_epochs:`` says how many checkpoints are averaged.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_NAMES = {"task": "task", "model": "arch"}  # groups whose _name has another flag than their own


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
    """A row with a seed.

    Attributes:
        most_updates, most_epochs: where its training ends, whichever comes first; none: no such end.
    """

    row: str
    seed: int
    folder: Path
    steps: list[Step]
    most_updates: int | None = None
    most_epochs: int | None = None

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.row}, seed {self.seed}"

    def updates(self, in_epoch: int) -> int | None:
        """Tell how many updates its training has at most, with so many in an epoch."""
        ends = [self.most_updates, self.most_epochs and self.most_epochs * in_epoch]
        return min(filter(None, ends), default=None)


def plan(args: argparse.Namespace, row: str, seed: int) -> Run:
    """Decide on the steps of a row with a seed.

    Args:
        args: the options of scripts/run_rows.py.
        row: its name.
        seed: of fairseq-train.
    """
    folder = args.out / row / f"seed{seed}"
    options = load_row(args.configs / f"{row}.yaml")
    optimization = options.setdefault("optimization", {})
    for name in ("max_update", "max_epoch"):
        if (value := getattr(args, name)) is not None:
            optimization[name] = value
    share_out(options, args.gpus_per_run, row)
    average = folder / "average.pt"
    generation = options.pop("generation", {})
    steps = [
        Step("train", _training(args, options, seed, folder), folder / "train.log", appends=True),
        Step("average", _averaging(args, options, folder, average), folder / "average.txt"),
        *_translations(args, options["task"]["_name"], generation, folder, average),
    ]
    return Run(
        row, seed, folder, steps, optimization.get("max_update"), optimization.get("max_epoch")
    )


def _data(args: argparse.Namespace) -> list[str]:
    return [str(args.data), "--user-dir", "fairseq_phrase"]


def _languages(args: argparse.Namespace) -> list[str]:
    return ["--source-lang", args.source_lang, "--target-lang", args.target_lang]


def _training(
    args: argparse.Namespace, options: dict[str, dict[str, Any]], seed: int, folder: Path
) -> list[str]:
    own = {group: dict(values) for group, values in options.items()}
    own.setdefault("common", {})["seed"] = seed
    for group, name in (
        ("common", "user_dir"),
        ("task", "data"),
        ("task", "source_lang"),
        ("task", "target_lang"),
        ("checkpoint", "save_dir"),
    ):
        own.get(group, {}).pop(name, None)  # said by this script
    command = ["fairseq-train", *_data(args), *_languages(args), *flags(own)]
    if args.gpus_per_run > 1:
        command += ["--distributed-world-size", str(args.gpus_per_run)]
    return [
        *command,
        *shlex.split(args.train_flags),
        "--save-dir",
        str(folder),
        "--no-progress-bar",
    ]


def _averaging(
    args: argparse.Namespace, options: dict[str, dict[str, Any]], folder: Path, average: Path
) -> list[str]:
    last = args.average or options.get("checkpoint", {}).get("keep_last_epochs") or 10
    # A training that is stopped within its first epoch has no other checkpoint than the last.
    inputs = (
        [str(folder), "--last", str(last)] if last > 1 else [str(folder / "checkpoint_last.pt")]
    )
    return ["fairseq-phrase-average", *inputs, "--out", str(average)]


def _translations(
    args: argparse.Namespace, task: str, generation: dict[str, Any], folder: Path, average: Path
) -> list[Step]:
    generation = {"beam": 5, **generation}
    generation |= {} if args.beam is None else {"beam": args.beam}
    common = [*_data(args), "--task", task, *_languages(args), "--path", str(average)]
    # Where several GPUs are seen, fairseq-generate takes but its share of the test set.
    common += [*flags({"generation": generation}), "--distributed-world-size", "1"]
    common += shlex.split(args.generate_flags)
    common += ["--max-tokens", str(args.max_tokens)]
    subwords = ["--bpe", "syntax"] if args.bpe == "syntax" else args.bpe.split()
    subsets = args.subsets.split(",")
    steps = []
    for subset in subsets:
        command = ["fairseq-generate", *common, *subwords, "--gen-subset", subset]
        steps.append(Step(f"translate {subset}", command, folder / f"generate-{subset}.txt"))
    if args.raw is not None:
        command = ["fairseq-interactive", *common, "--buffer-size", "100"]
        command += ["--tokenizer", "syntax", "--bpe", "syntax"]
        output = folder / f"interactive-{subsets[0]}.txt"
        steps.append(Step("parse and translate", command, output, stdin=args.raw))
    return steps


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
