"""fairseq's commands, as tests run them: small models, a few updates, on a CPU."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from tests.support.repository import REPOSITORY
from tests.support.warm_start import REAL, commands, python

SIZES = [
    f"--{side}-{name}={value}"
    for side in ("encoder", "decoder")
    for name, value in (
        ("layers", 2), ("embed-dim", 32), ("ffn-embed-dim", 64), ("attention-heads", 2)
    )
]  # fmt: skip
TRAINING = [
    "--share-all-embeddings", "--optimizer", "adam", "--lr", "0.005", "--lr-scheduler",
    "inverse_sqrt", "--warmup-updates", "50", "--criterion", "label_smoothed_cross_entropy",
    "--label-smoothing", "0.1", "--seed", "1", "--num-workers", "0", "--no-progress-bar",
    "--log-format", "simple", "--log-interval", "1", "--cpu",
]  # fmt: skip

PHRASE = ["--arch", "phrase_transformer_tiny", *SIZES, "--max-tokens", "2000"]


def run(
    command: str,
    *arguments: object,
    expect: int = 0,
    stdin: str = "",
    warm: bool = True,
    **environment: str,
) -> str:
    """Run a command in the repository; return what it printed.

    It starts warm (:mod:`tests.support.warm_start`) or, with ``warm=False``, as users start it.
    """
    interpreter = python() if warm else sys.executable
    finished = subprocess.run(
        [interpreter, str(REAL / command), *map(str, arguments)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            # A user has none. fairseq's data loaders leave one in the process of earlier tests.
            "PYTHONWARNINGS": "",
            **environment,
        },
        input=stdin,
        capture_output=True,
        text=True,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == expect, output[-4000:]
    return output


def train(data: Path, save: Path, *arguments: object, **options) -> str:
    user = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
    return run("fairseq-train", data, *user, *TRAINING, "--save-dir", save, *arguments, **options)


def run_by_two_processes(data: Path, *arguments: object) -> str:
    """Train with two processes on this machine; return what the first one printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [
        python(), REAL / "fairseq-train", data, *arguments,
        "--distributed-world-size", "2", "--distributed-backend", "gloo", "--ddp-backend",
        "legacy_ddp", "--distributed-init-method", f"tcp://127.0.0.1:{port}",
        "--distributed-no-spawn", "--distributed-rank",
    ]  # fmt: skip
    processes = [
        subprocess.Popen(
            [*map(str, command), rank],
            cwd=REPOSITORY,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in "01"
    ]
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs[0][-4000:]
    return outputs[0]


def losses(log: str) -> dict[int, float]:
    """The training loss after each update."""
    matches = re.findall(r"train_inner.* loss=([\d.]+).*num_updates=(\d+)", log)
    return {int(update): float(loss) for loss, update in matches}


def translations(printed: str) -> dict[str, str]:
    """The first translation of each sentence that fairseq-generate prints, by the sentence's number."""
    return dict(re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE))


def train_with_stops(train: Callable[..., object], folder: Path, epochs: int = 2) -> None:
    """Compare a training with one that stops in the middle and at the end of each epoch.

    Args:
        train: trains with the options that it is given.
        folder: for both.
        epochs: their number.
    """
    train("--max-epoch", epochs, "--save-dir", folder / "once")
    once = torch.load(folder / "once" / "checkpoint_last.pt", weights_only=True)
    updates, remainder = divmod(once["optimizer_history"][-1]["num_updates"], epochs)
    assert not remainder
    assert updates > 2
    save = ("--save-dir", folder / "stopped")
    for epoch in range(1, epochs + 1):
        train("--max-update", epoch * updates - updates // 2, *save)
        train("--max-epoch", epoch, *save)
    stopped = torch.load(folder / "stopped" / "checkpoint_last.pt", weights_only=True)
    assert stopped["optimizer_history"][-1]["num_updates"] == epochs * updates
    for part in ("model", "last_optimizer_state"):
        torch.testing.assert_close(stopped[part], once[part], rtol=0, atol=0)


def script_environment(**settings: str) -> dict[str, str]:
    """The environment of a script that need not make one, in which commands start warm."""
    return {
        **os.environ,
        "PATH": f"{commands()}{os.pathsep}{REAL}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "FAIRSEQ_PHRASE_READY": "1",
        **settings,
    }


def run_script(
    name: str, *arguments: object, expect: int = 0, cwd: Path = REPOSITORY, **environment: str
) -> str:
    """Run a script in an environment that is ready, where commands start warm; return what it printed."""
    finished = subprocess.run(
        ["bash", f"scripts/{name}.sh", *map(str, arguments)],
        cwd=cwd,
        env=script_environment(FAIRSEQ_PHRASE_PARSER="spacy:any") | environment,
        capture_output=True,
        text=True,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == expect, output[-4000:]
    return output
