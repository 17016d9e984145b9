"""Memory of a training's data in one process, without a model: what fairseq and our datasets hold.

A data directory of random sentences (5 to 35 words on both sides, as in ``large_corpus.py``) is made,
with the fields ``words`` and ``heads``. Then each task loads it, orders it and makes the batches of an
epoch, in a process of its own. Memory is what the process holds beyond its imports, without pages of
files, which the system can drop: after loading, at the peak, and with all batches of the epoch.

Example:
    python benchmarks/training_memory.py --lines 1000000 10000000
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from measuring import describe_machine

from fairseq_phrase.data.store.indexed import IndexedWriter
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint

_ENTRIES, _BLOCK = 1000, 100_000  # of the dictionary; lines that are made at a time
_END = 2  # fairseq's number of </s>
TASKS = {
    "fairseq's translation": ("translation", ()),
    "syntax_translation, no parses": ("syntax_translation", ()),
    "syntax_translation, words and heads": ("syntax_translation", ("words", "heads")),
}


def make_data(folder: Path, lines: int) -> None:
    """Write a data directory of two languages, with parses of the first."""
    entries = "".join(f"w{number} 1\n" for number in range(_ENTRIES - 4))
    for language in ("xx", "yy"):
        (folder / f"dict.{language}.txt").write_text(entries)
        write(folder / f"train.xx-yy.{language}", text(lines, language), np.uint16, lines)
    # The words of the parse have one subword each.
    write(folder / "train.xx-yy.xx.words", positions(lines), np.uint8, lines)
    write(folder / "train.xx-yy.xx.heads", positions(lines), np.uint8, lines)
    manifest = Manifest(
        "xx", "made-up", "1", ["words", "heads"], "none", tokenized=False, bpe="none", bpe_model="",
        dictionary=fingerprint(folder / "dict.xx.txt"),
    )  # fmt: skip
    files = {path.name: fingerprint(path) for path in folder.glob("train.xx-yy.xx.*")}
    manifest.splits["train.xx-yy"] = SplitRecord(lines, 0, 0, files)
    manifest.save(folder)


Blocks = Iterator[tuple[np.ndarray, np.ndarray]]


def sizes_of(lines: int, language: str) -> Iterator[np.ndarray]:
    """Yield the numbers of words of consecutive sentences."""
    rng = np.random.default_rng(len(language) + ord(language[0]))
    for first in range(0, lines, _BLOCK):
        yield rng.integers(5, 36, min(_BLOCK, lines - first), dtype=np.int32)


def text(lines: int, language: str) -> Blocks:
    """Yield random words, with the end of each sentence."""
    rng = np.random.default_rng(7)
    for sizes in sizes_of(lines, language):
        values = rng.integers(4, _ENTRIES, int(sizes.sum()), dtype=np.int32)
        yield np.insert(values, sizes.cumsum(), _END), sizes + 1


def positions(lines: int) -> Blocks:
    """Yield 0, 1, 2, … for each source sentence."""
    for sizes in sizes_of(lines, "xx"):
        starts = (sizes.cumsum() - sizes).repeat(sizes)
        yield np.arange(sizes.sum()) - starts, sizes


def write(prefix: Path, blocks: Blocks, dtype: type, lines: int) -> None:
    """Write arrays in fairseq's format."""
    writer = IndexedWriter(prefix, np.dtype(dtype), lines)
    for values, sizes in blocks:
        writer.append(values, sizes)
    writer.close()


def held() -> int:
    """Return the bytes that this process holds, without pages of files."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


class Peak:
    """The largest memory while a block runs."""

    def __enter__(self) -> Peak:
        self.bytes, self._ended = held(), threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.bytes = max(self.bytes, held())

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()


def measure(folder: str, name: str, max_tokens: int) -> None:
    """Load the data as a task does and make an epoch's batches; print what is held, in bytes."""
    import logging

    from fairseq import options as fairseq_options
    from fairseq import tasks, utils

    logging.disable()
    task_name, fields = TASKS[name]
    user = str(Path(__file__).resolve().parent.parent / "fairseq_phrase")
    parser = fairseq_options.get_training_parser(default_task=task_name)
    arguments = [folder, "--user-dir", user, "--task", task_name, "--arch", "transformer"]
    parsed = fairseq_options.parse_args_and_arch(
        parser, [*arguments, "--max-tokens", str(max_tokens)]
    )
    utils.import_user_module(parsed)
    task = tasks.setup_task(parsed)
    if fields:
        task.require_parses(fields)
    before = held()
    with Peak() as peak:
        begin = time.perf_counter()
        task.load_dataset("train")
        loaded = held()
        iterator = task.get_batch_iterator(
            task.dataset("train"), max_tokens=max_tokens, max_positions=(1024, 1024), num_workers=0
        )
        batches = iterator.next_epoch_itr(shuffle=True)
        next(iter(batches))
        seconds = time.perf_counter() - begin
    print(loaded - before, peak.bytes - before, held() - before, seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each size and task."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--max-tokens", type=int, default=4096, help="a batch's tokens")
    parser.add_argument("--task", choices=TASKS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.task is not None:
        measure(options.folder, options.task, options.max_tokens)
        return
    print(f"{describe_machine('cpu')}\n")
    print("| sentence pairs | task | loaded | peak | epoch | bytes a pair | seconds |")
    print("|--:|:--|--:|--:|--:|--:|--:|")
    for lines in options.lines:
        with tempfile.TemporaryDirectory() as folder:
            make_data(Path(folder), lines)
            for name in TASKS:
                command = [sys.executable, __file__, "--folder", folder, "--task", name,
                           "--max-tokens", str(options.max_tokens)]  # fmt: skip
                printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                *sizes, seconds = map(float, printed.stdout.split()[-4:])
                cells = [f"{size / 1e6:,.0f} MB" for size in sizes]
                last = [f"{sizes[-1] / lines:.0f}", f"{seconds:.0f}"]
                print(f"| {lines:,} | {name} | {' | '.join([*cells, *last])} |", flush=True)


if __name__ == "__main__":
    main()
