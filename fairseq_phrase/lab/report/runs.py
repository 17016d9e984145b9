"""Run directories: finding, reading and checking them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fairseq_phrase.data.store.identity import Tolerance, check_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.generation import (
    Generation,
    check_same_test_set,
    read_generation,
    read_interactive_speed,
)
from fairseq_phrase.lab.report.references import ReferenceText
from fairseq_phrase.lab.report.training_log import TrainingLog, read_training_log
from fairseq_phrase.text import named_path, read_lines, require_file

_SEED = re.compile(r"seed[-_]?(\d+)")
_LOGS = ("train.log", "hydra_train.log")
_AS_ROWS = Tolerance(option="", remedy="name them as different rows, NAME=FOLDER")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, ``ROW/seedN`` or ``ROW``.

    Attributes:
        row: the row of the table that it belongs to.
        seed: the N of its folder ``seedN``; None if the row has one run.
        output: the file with its translations if it was named; None to search for it in the folder.
    """

    row: str
    seed: int | None
    path: Path
    output: Path | None = None


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        seed: fairseq's ``--seed``; None if it is unknown.
        generations: its translations by test set, in order.
        outputs: the files of its translations, by test set.
        parsed_speed: sentences per second from raw text, including parsing; None if not measured.
    """

    row: str
    seed: int | None
    path: Path
    training: TrainingLog
    generations: dict[str, Generation]
    outputs: dict[str, Path]
    parsed_speed: float | None

    @property
    def generation(self) -> Generation:
        """Its translation of the first test set."""
        return next(iter(self.generations.values()))

    @cached_property
    def hypotheses(self) -> list[str]:
        """The concatenated translations of all test sets."""
        return [line for generation in self.generations.values() for line in generation.hypotheses]

    @cached_property
    def sources(self) -> list[str]:
        """The concatenated sentences of all test sets, as fairseq printed them."""
        return [line for generation in self.generations.values() for line in generation.sources]


def find_runs(arguments: Sequence[str]) -> list[RunFolder]:
    """Find the run folders that the arguments name.

    Args:
        arguments: ``[NAME=]PATH``. PATH is a run, a row with a run in each folder ``seedN``, a folder of
            rows, or a file with the output of ``fairseq-generate``. A folder is a run if it has a
            ``train.log``, a ``hydra_train.log`` or a ``generate*.txt``, or if its name is ``seedN``.
            Other folders are ignored.

    Raises:
        UserError: a folder is missing or lacks runs, or two rows have the same name.
    """
    folders: list[RunFolder] = []
    for argument in arguments:
        name, path = named_path(argument)
        if path.is_file():
            run = _run_folder(path.parent)
            folders.append(RunFolder(name or run.row, run.seed, run.path, path))
            continue
        if not path.is_dir():
            require_file(path, "run")
        runs = list(_runs_in(path))
        if not runs:
            raise UserError(
                f"{path} has no runs: expected train.log and generate*.txt there, in its folders, or in "
                "folders seed1, seed2, … of those"
            )
        rows = {run.row for run in runs}
        if name and len(rows) > 1:
            raise UserError(f"{path} has {len(rows)} rows: they cannot all be named '{name}'")
        folders += [RunFolder(name or run.row, run.seed, run.path) for run in runs]
    _check_names(folders)
    return folders


def _runs_in(folder: Path) -> Iterator[RunFolder]:
    """Yield the runs in a folder, in the order of their names."""
    if _is_run(folder):
        yield _run_folder(folder)
        return
    for child in _folders(folder):
        if _is_run(child):
            yield _run_folder(child)
        else:
            yield from (
                _run_folder(grandchild) for grandchild in _folders(child) if _is_run(grandchild)
            )


def _folders(folder: Path) -> list[Path]:
    """List folders, ``seed10`` after ``seed9``."""

    def parts(path: Path) -> list[str | int]:
        # Texts and numbers alternate: parts of two names at one index have the same type.
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path.name)]

    return sorted((child for child in folder.iterdir() if child.is_dir()), key=parts)


def _is_run(folder: Path) -> bool:
    return (
        _SEED.fullmatch(folder.name) is not None
        or any((folder / name).is_file() for name in _LOGS)
        or any(folder.glob("generate*.txt"))
        or any(folder.glob("labels*.txt"))
    )


def _run_folder(path: Path) -> RunFolder:
    if match := _SEED.fullmatch(path.resolve().name):
        return RunFolder(path.resolve().parent.name, int(match[1]), path)
    return RunFolder(path.resolve().name, None, path)


def _check_names(runs: Sequence[RunFolder]) -> None:
    by_row: dict[str, list[RunFolder]] = {}
    for run in runs:
        for earlier in by_row.setdefault(run.row, []):
            apart = run.path.resolve().parent != earlier.path.resolve().parent
            if run.seed == earlier.seed or None in (run.seed, earlier.seed) or apart:
                raise UserError(
                    f"two rows are named '{run.row}': {earlier.path} and {run.path}; name one of them "
                    f"with NAME={run.path}"
                )
        by_row[run.row].append(run)


def read_run(
    folder: RunFolder,
    texts: Sequence[ReferenceText],
    needs_training: bool = True,
    labelled: bool = False,
) -> Run:
    """Read a finished run.

    Args:
        texts: the test sets. ``generate-SUBSET.txt`` is the translation of one, or ``generate.txt`` in a
            run of one test set. ``interactive-SUBSET.txt`` or ``interactive.txt``, if it exists, is the
            translation of the first one's raw text.
        labelled: the output is labels, in ``labels-SUBSET.txt``, as ``fairseq-phrase-label`` writes them.
    """
    training = _read_training(folder, needs_training)
    read = _read_labels if labelled else _read_translation
    is_only = len(texts) == 1
    outputs = {text.subset: _output(folder, text.subset, labelled, is_only) for text in texts}
    generations = {text.subset: read(outputs[text.subset], text) for text in texts}
    subset = texts[0].subset
    interactive = _first_of(folder.path, (f"interactive-{subset}.txt", "interactive.txt"))
    return Run(
        folder.row,
        folder.seed if folder.seed is not None else training.seed,
        folder.path,
        training,
        generations,
        outputs,
        read_interactive_speed(interactive) if interactive is not None else None,
    )


def _read_training(folder: RunFolder, needs_training: bool) -> TrainingLog:
    log = _first_of(folder.path, _LOGS)
    if log is None:
        if needs_training:
            raise UserError(f"{folder.path} has no train.log")
        return TrainingLog()
    training = read_training_log(log)
    if needs_training and not training.finished:
        raise UserError(f"{log}: the training {_state_of(training)}")
    if None not in (folder.seed, training.seed) and folder.seed != training.seed:
        raise UserError(f"{log}: the training has --seed {training.seed}")
    return training


def _output(folder: RunFolder, subset: str, labelled: bool, is_only: bool) -> Path:
    """Find the output of a test set; its name may be left out if it is the only one."""
    kind, stem = ("labels", "labels") if labelled else ("translations", "generate")
    names = [f"{stem}-{subset}.txt", f"{stem}.txt"][: 2 if is_only else 1]
    output = folder.output or _first_of(folder.path, names)
    if output is None:
        missing = f"neither {' nor '.join(names)}" if is_only else f"no {names[0]}"
        raise UserError(f"{folder.path} has no {kind}: {missing}")
    return output


def _read_translation(output: Path, text: ReferenceText) -> Generation:
    generation = read_generation(output)
    if generation.subset not in (text.subset, None):
        raise UserError(
            f"{output} is the translation of '{generation.subset}', not of '{text.subset}'"
        )
    check_same_test_set(output, generation, text.lines, text.sources)
    return generation


def _read_labels(output: Path, text: ReferenceText) -> Generation:
    lines = list(read_lines(output))
    if len(lines) != len(text.lines):
        raise UserError(
            f"{output} has {len(lines)} lines of labels, and the reference {len(text.lines)}"
        )
    none = [""] * len(lines)
    return Generation(lines, none, none, text.subset, None, None, None)


def _first_of(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _state_of(training: TrainingLog) -> str:
    where = f"after {training.updates} updates" if training.updates else "before its first update"
    if training.failure is not None:
        return f"failed {where}: {training.failure}"
    return f"is still running, or was stopped {where} ('done training' is missing)"


def check_alike(runs: Sequence[Run]) -> None:
    """Check that the runs can be compared in a table.

    Raises:
        UserError: two runs of a row are models of different sizes, or their records differ.
    """
    by_row: dict[str, list[Run]] = {}
    for run in runs:
        by_row.setdefault(run.row, []).append(run)
    for row, group in by_row.items():
        first = group[0]
        for run in group[1:]:
            sizes = [model.training.parameters for model in (first, run)]
            if sizes[0] != sizes[1]:
                raise UserError(
                    f"row '{row}' mixes two models: {first.path} has {sizes[0]} parameters, {run.path} "
                    f"{sizes[1]}"
                )
            trained, tested = first.training.identity, run.training.identity
            if trained and tested:
                trained, tested = (
                    replace(trained, where=first.path), replace(tested, where=run.path)
                )  # fmt: skip
                if not (trained.is_whole and tested.is_whole):  # a log lacks what completes them
                    names = trained.entries.keys() & tested.entries.keys()
                    trained, tested = trained.only_named(names), tested.only_named(names)
                check_identity(trained, tested, "continue", _AS_ROWS)
