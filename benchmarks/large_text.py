"""Time, memory and disk of translating and of labelling, by the size of a made-up text.

The models are as small as fairseq allows, and trained for one update: what is measured is all else, such
as reading, segmenting, writing, and the record from which a killed run goes on. A row has ``--shards``
runs of the whole command, one after the other. Seconds are of CPU, of all runs; memory is the largest of
one; output is the size of all files that they leave.

Example:
    python benchmarks/large_text.py --lines 20000 200000 --shards 2
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from large_corpus import make_corpus, sentences, size_of
from measuring import describe_machine

_TRAINING_LINES = 2_000
_ENCODER, _DECODER = (
    [f"--{side}-{name}" for name in
     ("layers=1", "embed-dim=8", "ffn-embed-dim=8", "attention-heads=1")]
    for side in ("encoder", "decoder")
)  # fmt: skip
_TRAINING = [
    "--user-dir", "fairseq_phrase", "--optimizer", "adam", "--lr", "0.001", "--criterion",
    "cross_entropy", "--max-tokens", "4000", "--max-update", "1", "--disable-validation", "--cpu",
    *_ENCODER,
]  # fmt: skip
_DATA = {
    "translate": ["--vocab-size", "1000"],
    "label": ["--labels", "word", "--vocab-size", "1000"],
}
_MODELS = {
    # A translation has 7 subwords: the model has not learned to end it before.
    "translate": ["--task", "syntax_translation", "--arch", "transformer", *_DECODER,
                  "--max-target-positions", "8"],
    "label": ["--task", "syntax_labelling", "--arch", "labeller"],
}  # fmt: skip
_SEARCH = {
    "translate": ["--beam", "1", "--batch-size", "256", "--buffer-size", "4096"],
    "label": [],
}


def run(*command: object) -> tuple[float, int]:
    """Run a command; return its seconds of CPU and its peak memory in bytes."""
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen([*map(str, command)], stdout=printed, stderr=printed)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            printed.seek(0)
            sys.exit(f"{' '.join(map(str, command))} failed: {printed.read().decode()[-500:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def ours(command: str) -> list[object]:
    """Return how a command of this project begins."""
    return [sys.executable, "-m", "fairseq_phrase", command]


def make_model(folder: Path, command: str) -> list[object]:
    """Train a model for a command, of words to random labels; return the command that runs it."""
    make_corpus(folder, _TRAINING_LINES, trees=False)
    rng = random.Random(1)
    with open(folder / "train.label", "w", encoding="utf-8") as labels:
        for words in sentences(_TRAINING_LINES, 0):
            count = len(words) if command == "label" else 1
            print(*(f"L{rng.randrange(9)}" for _ in range(count)), file=labels)
    data, save = folder / "data", folder / "checkpoints"
    run(
        *ours("preprocess"), "-s", "xx", "-t", "label", *_DATA[command], "--trainpref", folder / "train",
        "--parser", "none", "--destdir", data,
    )  # fmt: skip
    train = Path(sys.executable).with_name("fairseq-train")
    run(train, data, *_TRAINING, *_MODELS[command], "--save-dir", save)
    return [*ours(command), data, "--path", save / "checkpoint_last.pt", *_SEARCH[command]]


def measure(folder: Path, begin: list[object], lines: int, shards: int) -> list[str]:
    """Run a command on a text; return the cells of a row."""
    make_corpus(folder, lines, trees=False)
    text, out = folder / "train.xx", folder / f"out{lines}"
    out.mkdir()
    command = [*begin, text, "--device", "cpu", "--out", out / "out", "--shard"]
    runs = [run(*command, f"{number}/{shards}") for number in range(1, shards + 1)]
    with open(out / "out", "rb") as stream:
        if (count := sum(1 for _ in stream)) != lines:
            sys.exit(f"{out}/out has {count} lines")
    seconds, memory = sum(seconds for seconds, _ in runs), max(peak for _, peak in runs)
    sizes = [f"{size / 1e6:,.0f} MB" for size in (memory, text.stat().st_size, size_of(out))]
    return [f"{lines:,}", str(shards), f"{seconds:.0f}", f"{lines / seconds:,.0f}", *sizes]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each command and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[20_000, 200_000])
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--commands", nargs="+", choices=[*_MODELS], default=[*_MODELS])
    options = parser.parse_args(arguments)
    print(f"{describe_machine('cpu')}\n")
    print("| command | lines | shards | seconds | lines/s | memory | text | output |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for command in options.commands:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            begin = make_model(folder, command)
            for lines in options.lines:
                cells = measure(folder, begin, lines, options.shards)
                print(f"| {' | '.join([command, *cells])} |", flush=True)


if __name__ == "__main__":
    main()
