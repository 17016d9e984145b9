"""What the processes of a test run share, so that it is made once."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.commands import SIZES, TRAINING, run


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder of this run, which the first process that needs it fills. No test changes it.

    Args:
        name: the folder's name.
        make: fills the folder. Meanwhile, other processes that need it wait.
    """
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    folder, marker = shared / name, shared / f"{name}.done"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if not marker.exists():
                shutil.rmtree(folder, ignore_errors=True)  # half made
                folder.mkdir()
                make(folder)
                marker.touch()
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # also for forks of this process
    return folder


class Checkpoints(Mapping[str, Path]):
    """A checkpoint of each model after a few updates, trained when it is asked for, once in a run.

    Args:
        factory: of the run's folders.
        data: the data directory of the fixture ``data_directory``.
        models: the options of each model and its task, by name.
        updates: the number of updates, by name; 30 for the others.
    """

    def __init__(
        self,
        factory: pytest.TempPathFactory,
        data: Path,
        models: Mapping[str, list[str]],
        updates: Mapping[str, int] | None = None,
    ) -> None:
        self.factory, self.data, self.models, self.updates = factory, data, models, updates or {}

    def __getitem__(self, name: str) -> Path:
        options = [*self.models[name], "--max-update", str(self.updates.get(name, 30))]

        def make(folder: Path) -> None:
            run(
                "fairseq-train", self.data, "--user-dir", "fairseq_phrase", *TRAINING, *SIZES, *options,
                "--save-dir", folder, "--max-tokens", "1000", "--disable-validation",
            )  # fmt: skip

        folder = "-".join(option.strip("-") for option in options)
        return made_once(self.factory, folder, make) / "checkpoint_last.pt"

    def __iter__(self) -> Iterator[str]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)
