"""A row of a table: its options, and the commands that train and translate with them.

A table is YAML: groups of fairseq's options that all rows share, and ``rows:``, each with a title, the
paper's number and the options in which it differs. OmegaConf merges them. The options become flags of
fairseq-train, because hydra cannot train fairseq's own ``transformer``, which is a row like the others.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf import DictConfig, OmegaConf

Options = dict[str, dict[str, Any]]  # by fairseq's groups: model, optimization, …
_NO_OPTIMIZER = "--no-save-optimizer-state"
#: Flags of the plugin, and of folders and files that a command writes.
_NO_INPUT = ("--user-dir", "--log-file", "--tensorboard-logdir", "--results-path")
#: A row's entries in addition to options.
_ABOUT = ("title", "paper", "steps", "data", "early", "nice")


def load_rows(files: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Read a table's rows: each has the options that all rows share, and its own, which take precedence.

    Args:
        files: the table's YAML; later files take precedence.

    Raises:
        SystemExit: a file is missing or broken, none has rows, or a row is not a group of options.
    """
    try:
        table = OmegaConf.merge(*map(OmegaConf.load, files))
    except (OSError, yaml.YAMLError) as error:
        sys.exit(str(error))
    table.pop("table", None)  # scripts/run_table.sh reads it
    rows = table.pop("rows", None) or sys.exit(f"{', '.join(map(str, files))} has no rows")
    if not isinstance(rows, DictConfig) or any(
        row is not None and not isinstance(row, DictConfig) for row in rows.values()
    ):
        sys.exit(
            f"{', '.join(map(str, files))}: expected names of rows below rows:, and below each "
            "its title and options"
        )
    # A row may have shared options only. ${oc.env:NAME} is a variable of the script.
    merged = {name: OmegaConf.merge(table, rows[name] or {}) for name in rows}
    return {name: OmegaConf.to_container(row, resolve=True) for name, row in merged.items()}


class _Texts(yaml.SafeLoader):
    """A loader that leaves values as texts; it merges what anchors share."""

    yaml_implicit_resolvers: ClassVar = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}


def titles(files: Iterable[Path], numbers: bool) -> dict[str, dict[str, str]]:
    """Read the fields of rows that fairseq-phrase-report shows; a number keeps its digits (20.90)."""
    texts = (yaml.load(path.read_text("utf-8"), _Texts).get("rows", {}) for path in files)
    rows: Any = OmegaConf.to_container(OmegaConf.merge(*texts))
    keys = ("title", "paper") if numbers else ("title",)
    return {name: {key: row[key] for key in keys if key in row} for name, row in rows.items()}


def flags(options: Options) -> list[str]:
    """Format options as flags of fairseq's commands."""
    words = []
    for group, values in options.items():
        for name, value in values.items():
            if value is None or value is False:
                continue
            flag = {"task": "task", "model": "arch"}.get(group, group) if name == "_name" else name
            words.append(f"--{flag.replace('_', '-')}")
            if value is not True:
                words.append(",".join(map(str, value if isinstance(value, list) else [value])))
    return words


@dataclass
class Step:
    """A command of a run.

    Attributes:
        output: the file of its output; the step is done if the file exists.
        trains: it continues where it was stopped, on all of the run's GPUs. Its output grows over several
            attempts, so another file marks it as done.
    """

    name: str
    command: list[str]
    output: Path
    trains: bool = False

    @property
    def done(self) -> Path:
        """The file that marks the step as done."""
        return self.output.with_suffix(".done") if self.trains else self.output

    def __str__(self) -> str:
        """Return the command line."""
        return f"{shlex.join(self.command)} >{shlex.quote(str(self.output))}"


@dataclass
class Run:
    """A row with a seed: its folder, its options, and the commands in order.

    Attributes:
        key: the inputs of its steps, by step and flag.
        files: other files that they depend on, or folders of data.
        named: the files and folders that flags name, by step and flag.
        nice: how far its processes give way to other runs, as for ``nice -n``.
    """

    row: str
    seed: int
    folder: Path
    steps: list[Step]
    options: Options
    key: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    named: dict[str, Path] = field(default_factory=dict)
    nice: int = 0

    @property
    def drops_optimizer(self) -> bool:
        """Whether checkpoints of a finished training can be without the optimizer's state."""
        return bool(self.options.get("checkpoint", {}).get("no_save_optimizer_state"))

    def __str__(self) -> str:
        """Return its name."""
        return f"{self.row}, seed {self.seed}"

    def left(self) -> list[Step]:
        """Name the steps that are not done."""
        return [step for step in self.steps if not step.done.exists()]

    def updates(self, in_epoch: int | None = None) -> int | None:
        """Return the largest number of updates of its training, given the updates per epoch."""
        ends = self.options.get("optimization", {})
        epochs = ends.get("max_epoch") and in_epoch and ends["max_epoch"] * in_epoch
        return min(filter(None, (ends.get("max_update"), epochs)), default=None)


def plan(args: argparse.Namespace, name: str, row: dict[str, Any], seed: int) -> Run:
    """Choose the steps of a row with a seed; the options of the command line take precedence.

    A row with ``data: NAME`` has the data directory DATA.NAME instead of DATA. A row with ``early: N`` is
    also translated after N updates. One with ``nice: N`` is short, and gives way to longer ones.
    """
    folder = args.out / name / f"seed{seed}"
    options = {group: dict(values) for group, values in row.items() if group not in _ABOUT}
    training = options.setdefault("optimization", {})
    training |= {n: v for n in ("max_update", "max_epoch") if (v := getattr(args, n)) is not None}
    schedule = options.get("lr_scheduler", {})
    if schedule.get("_name") == "polynomial_decay":  # fairseq-train lacks a default for it
        schedule.setdefault("total_num_update", training.get("max_update"))
    options.setdefault("common", {})["seed"] = seed
    words = shlex.split(args.train_flags)
    if _NO_OPTIMIZER in words:
        options.setdefault("checkpoint", {})["no_save_optimizer_state"] = True
        remaining_flags = shlex.join(word for word in words if word != _NO_OPTIMIZER)
        args = argparse.Namespace(**vars(args) | {"train_flags": remaining_flags})
    if row.get("data"):
        args = argparse.Namespace(**vars(args) | {"data": Path(f"{args.data}.{row['data']}")})
    kind = row.get("steps", "translation")
    if kind not in KINDS:
        sys.exit(f"row {name} has steps '{kind}': expected one of {', '.join(KINDS)}")
    on_one = argparse.Namespace(**vars(args) | {"gpus_per_run": 1})  # GPUs may change on the way
    inputs = KINDS[kind](on_one, deepcopy(options), folder)
    inputs += early_translation(inputs, row, training, folder)
    key, named_files = key_of(inputs, args, folder), named_in(inputs, args, folder)
    share_out(options, args.gpus_per_run, name)
    steps = KINDS[kind](args, options, folder)
    steps += early_translation(steps, row, training, folder)
    files = [*filter(None, (args.data, args.raw))]
    return Run(name, seed, folder, steps, options, key, files, named_files, row.get("nice", 0))


def user_dir(options: Options) -> str:
    """Return the plugin of a row: ``common: {user_dir: …}``, else this package."""
    return str(options.get("common", {}).get("user_dir", "fairseq_phrase"))


def key_of(steps: Iterable[Step], args: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Return the inputs of steps: flags of commands, without the paths of files.

    Data and other texts are compared by content.
    """
    places = {str(args.data): "DATA", str(args.raw): "TEXT"}
    key: dict[str, str] = {}
    for step in steps:
        name = step.name
        for word in step.command:
            if word.startswith("--"):
                name = f"{step.name}: {word}"
                key.pop(name, None)  # the last one counts
                word = ""
            word = places.get(word, word.replace(str(folder), "RUN"))
            key[name] = f"{key.get(name, '')} {word}".strip()
    return key


def named_in(steps: Iterable[Step], args: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """Find the files and folders that flags name, such as a model to start from.

    The run's own folder, its data and what it writes are not among them.
    """
    files: dict[str, Path] = {}
    for step in steps:
        for flag, word in pairwise(step.command):
            is_input = flag.startswith("--") and flag not in _NO_INPUT and word != str(args.raw)
            if is_input and os.path.exists(word) and not Path(word).is_relative_to(folder):
                files[f"{step.name} {flag}"] = Path(word)
    return files


def share_out(options: Options, gpus: int, row: str) -> None:
    """Divide update_freq, which is for one GPU, among GPUs. The batch stays the same.

    Raises:
        SystemExit: update_freq cannot be divided.
    """
    frequencies = options.get("optimization", {}).get("update_freq", [1])
    steps = frequencies if isinstance(frequencies, list) else [frequencies]
    if any(count % gpus for count in steps):
        sys.exit(
            f"--gpus-per-run {gpus}: row {row} has update_freq {','.join(map(str, steps))} on one GPU, "
            f"which {gpus} cannot share; give a number that divides it"
        )
    if gpus > 1:
        options["optimization"]["update_freq"] = [count // gpus for count in steps]


def training(args: argparse.Namespace, options: Options, folder: Path, data: Sequence[str]) -> Step:
    """Make the step that trains.

    Args:
        args: the options of the command line.
        options: the row's options.
        folder: the run's folder.
        data: the arguments that name the data.
    """
    train_options = {
        group: dict(values) for group, values in options.items() if group != "generation"
    }
    train_options.get("common", {}).pop("user_dir", None)  # the data's arguments name it
    # A training that was stopped needs the optimizer's state. table.py removes it at the end.
    train_options.get("checkpoint", {}).pop("no_save_optimizer_state", None)
    train = ["fairseq-train", *data, *flags(train_options)]
    train += ["--distributed-world-size", str(args.gpus_per_run)] if args.gpus_per_run > 1 else []
    train += [] if args.precision == "fp32" else [f"--{args.precision}"]
    train += [*shlex.split(args.train_flags), "--save-dir", str(folder), "--no-progress-bar"]
    return Step("train", train, folder / "train.log", trains=True)


def trained(
    args: argparse.Namespace, options: Options, folder: Path
) -> tuple[list[str], list[Step], Path]:
    """Train, and average checkpoints, or use the best one if the row has a metric for it.

    If a training ends by its patience, the checkpoints around the best are averaged.

    Returns:
        The arguments of fairseq's commands that name the data, the steps, and the checkpoint to use.

    Raises:
        SystemExit: the data or their languages are not named; --average for a row that uses its best
            checkpoint, or more checkpoints to average than the training writes.
    """
    needed = {"--data": args.data, "-s": args.source_lang, "-t": args.target_lang}
    if missing := [option for option, value in needed.items() if value is None]:
        sys.exit(f"a training needs {', '.join(missing)}")
    data = [str(args.data), "--user-dir", user_dir(options)]
    data += ["--source-lang", args.source_lang, "--target-lang", args.target_lang]
    checkpoints = options.get("checkpoint", {})
    metric = checkpoints.get("best_checkpoint_metric")
    last = args.average or checkpoints.get("keep_last_epochs") or 10
    if metric and (args.average or 1) > 1:
        sys.exit(
            f"--average {args.average}: this table uses the checkpoint with the best {metric} on the "
            "validation set; leave the option out"
        )
    if metric or last == 1:
        # A training that is stopped in its first epoch has only the last checkpoint.
        inputs = [str(folder / f"checkpoint_{'best' if metric else 'last'}.pt")]
    else:
        patience = max(0, flag(args, options, "checkpoint", "patience") or 0)
        check_epochs(args, options, last, patience)
        inputs = [str(folder), "--around-best" if patience else "--last", str(last)]
        needed = patience + 1 + (last - 1) // 2 if patience else last
        if 0 < checkpoints.get("keep_last_epochs", 0) < needed:
            checkpoints["keep_last_epochs"] = needed
    train = training(args, options, folder, data)
    average = folder / "average.pt"
    command = ["fairseq-phrase-average", *inputs, "--out", str(average)]
    return data, [train, Step("average", command, folder / "average.txt")], average


def _largest(text: str) -> int:
    """Read a number, or several separated by commas, such as an update_freq for each epoch."""
    return max(map(int, text.split(",")))


def flag(args: argparse.Namespace, options: Options, group: str, name: str) -> int | None:
    """Return an option's number for fairseq-train: from --train-flags, else the row's, or None."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(f"--{name.replace('_', '-')}", type=_largest, dest="value")
    value: int | None = parser.parse_known_args(shlex.split(args.train_flags))[0].value
    return options.get(group, {}).get(name) if value is None else value


def check_epochs(args: argparse.Namespace, options: Options, averaged: int, patience: int) -> None:
    """Check before a training that it will write as many checkpoints as are averaged.

    Raises:
        SystemExit: the training will write fewer checkpoints.
    """
    interval = flag(args, options, "checkpoint", "save_interval") or 1
    updates = flag(args, options, "optimization", "max_update")
    ends = {
        "--max-epoch": flag(args, options, "optimization", "max_epoch"),
        "--max-update": most_epochs(args, options, updates) if updates else None,
        "--patience": patience + 1 if patience else None,
    }
    for name, epochs in ends.items():
        if epochs and epochs // interval < averaged:
            written = epochs // interval
            sys.exit(
                f"{averaged} checkpoints are to be averaged, and with this {name} the training may write "
                f"only {written}, one an epoch: give --average {written or 1}, or train longer"
            )


def most_epochs(args: argparse.Namespace, options: Options, updates: int) -> int:
    """Return the largest number of epochs in a number of updates, from the size of the target text.

    A batch has at most ``max_tokens`` target tokens. Without the data or ``max_tokens``, an epoch may be
    one update.
    """
    pair = f"{args.source_lang}-{args.target_lang}.{args.target_lang}"
    text = Path(args.data or "") / f"train.{pair}.bin"
    most = flag(args, options, "dataset", "max_tokens")
    if not most or not text.is_file():
        return updates
    steps = options.get("optimization", {}).get("update_freq", [1])
    steps = max(steps) if isinstance(steps, list) else steps
    steps = flag(args, {}, "optimization", "update_freq") or steps
    batch = most * steps * args.gpus_per_run
    # fairseq writes a token's index in 2 or 4 bytes.
    return max(1, updates * batch // max(1, text.stat().st_size // 4))


def translation(args: argparse.Namespace, options: Options, folder: Path) -> list[Step]:
    """Train, average the last checkpoints, translate each test set."""
    data, steps, average = trained(args, options, folder)
    generation = {"beam": 5, **options.get("generation", {})}
    # If several GPUs are visible, fairseq-generate translates only its share of the test set.
    common = [*data, "--task", options["task"]["_name"], "--path", str(average)]
    common += ["--bpe", "syntax"]
    common += [*flags({"": generation}), "--distributed-world-size", "1"]
    common += ["--max-tokens", "4000", *shlex.split(args.generate_flags)]
    subsets = args.subsets.split(",")
    for subset in subsets:
        command = ["fairseq-generate", *common, "--gen-subset", subset]
        steps.append(Step(f"translate {subset}", command, folder / f"generate-{subset}.txt"))
    if args.raw is not None:
        command = ["fairseq-interactive", *common, "--tokenizer", "syntax", "--buffer-size", "100"]
        command += ["--input", str(args.raw)]
        # A parser that the data name by a path is loaded only if it is also named here.
        command += ["--source-parser", args.parser] if args.parser else []
        output = folder / f"interactive-{subsets[0]}.txt"
        steps.append(Step("parse and translate", command, output))
    return steps


def early_translation(
    steps: Sequence[Step], row: dict[str, Any], training: dict[str, Any], folder: Path
) -> list[Step]:
    """Translate the first test set again, with a checkpoint before the end, if the row asks for it.

    Args:
        steps: of a translation.
        row: its ``early`` is the number of updates of the checkpoint.
        training: fairseq's group ``optimization``.
    """
    updates = row.get("early", 0)
    if not 0 < updates < training.get("max_update", 0):
        return []
    translation = next(step for step in steps if step.name.startswith("translate "))
    checkpoint = folder / f"updates{updates}.pt"
    command = ["fairseq-phrase-average", str(folder), "--updates", str(updates)]
    command += ["--out", str(checkpoint)]
    copy = Step(f"copy {checkpoint.name}", command, checkpoint.with_suffix(".txt"))
    words = list(translation.command)
    words[words.index("--path") + 1] = str(checkpoint)
    output = folder / f"generate-updates{updates}.txt"
    return [copy, Step(f"translate after {updates}", words, output)]


def labelling(args: argparse.Namespace, options: Options, folder: Path) -> list[Step]:
    """Train, average the last checkpoints or use the best, label each test set."""
    _, steps, average = trained(args, options, folder)
    plugin = user_dir(options)
    for subset in args.subsets.split(","):
        command = ["fairseq-phrase-label", str(args.data), "--path", str(average)]
        command += [] if plugin == "fairseq_phrase" else ["--user-dir", plugin]
        command += ["--subset", subset, *shlex.split(args.generate_flags)]
        steps.append(Step(f"label {subset}", command, folder / f"labels-{subset}.txt"))
    return steps


def pretraining(args: argparse.Namespace, options: Options, folder: Path) -> list[Step]:
    """Train on text of one language, and compute the loss of each test set with the best checkpoint."""
    data = [str(args.data), "--user-dir", user_dir(options)]
    steps = [training(args, options, folder, data)]
    for subset in args.subsets.split(","):
        command = ["fairseq-validate", *data, "--task", options["task"]["_name"]]
        command += ["--path", str(folder / "checkpoint_best.pt"), "--valid-subset", subset]
        command += ["--max-tokens", "4000", "--required-batch-size-multiple", "1"]
        command += ["--no-progress-bar"]
        steps.append(Step(f"validate {subset}", command, folder / f"validate-{subset}.txt"))
    return steps


#: The functions that make a row's steps; its ``steps:`` names one. A new kind of row is a new function.
KINDS: dict[str, Callable[[argparse.Namespace, Options, Path], list[Step]]] = {
    "translation": translation,
    "labelling": labelling,
    "pretraining": pretraining,
}
