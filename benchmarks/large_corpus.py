"""Time, memory and disk of preprocessing, by the size of a made-up corpus.

Both sides have random sentences of 5 to 35 words, the source also random trees: of a parser that costs
little time (``made_up_parser.py``), whose parses are kept on the way as those of every parser are, or in
CoNLL-U. A row is one run of the whole command. Memory is the peak of the command itself, without its
workers. Disk is the largest size of the data directory while the command runs, beside that of the two
texts and the final one; links count once.

Example:
    python benchmarks/large_corpus.py --lines 100000 1000000 --parts 4
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from measuring import describe_machine

_SYLLABLES = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
_WORDS = [
    "".join(word) for word in itertools.islice(itertools.product(_SYLLABLES, repeat=3), 0, None, 43)
]
_SECONDS = 0.2  # between two looks at the data directory


def sentences(lines: int, seed: int) -> Iterator[list[str]]:
    """Yield random sentences."""
    rng = random.Random(seed)
    for _ in range(lines):
        yield rng.choices(_WORDS, k=rng.randint(5, 35))


def make_corpus(folder: Path, lines: int, *, trees: bool) -> None:
    """Write ``train.xx`` and ``train.yy``, and with ``trees`` ``train.xx.conllu``."""
    rng = random.Random(3)
    for seed, language in enumerate(("xx", "yy")):
        with open(folder / f"train.{language}", "w", encoding="utf-8") as text:
            text.writelines(" ".join(words) + "\n" for words in sentences(lines, seed))
    if not trees:
        return
    with open(folder / "train.xx.conllu", "w", encoding="utf-8") as trees:
        for words in sentences(lines, 0):
            for number, word in enumerate(words, start=1):
                head = rng.randrange(number)
                columns = (
                    number,
                    word,
                    "_",
                    f"T{head % 9}",
                    "_",
                    "_",
                    head,
                    f"r{head % 20}",
                    "_",
                    "_",
                )
                print(*columns, sep="\t", file=trees)
            print(file=trees)


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder, links once; files may vanish meanwhile."""
    sizes = {}
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                stat = os.stat(os.path.join(path, name))
            except FileNotFoundError:
                continue
            sizes[stat.st_ino] = stat.st_size
    return sum(sizes.values())


def install_parser(folder: Path) -> None:
    """Make ``--parser made-up`` known to processes whose ``PYTHONPATH`` has the folder."""
    metadata = folder / "made_up-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: made-up\nVersion: 1.0\n")
    entry = "[fairseq_phrase.parsers]\nmade-up = made_up_parser:MadeUpParser\n"
    (metadata / "entry_points.txt").write_text(entry)
    shutil.copy(Path(__file__).with_name("made_up_parser.py"), folder)


def run(folder: Path, options: argparse.Namespace) -> tuple[float, int, int]:
    """Run the command; return its seconds, its peak memory in bytes, and the peak of the disk."""
    command = [
        sys.executable, "-m", "fairseq_phrase", "preprocess", "-s", "xx", "-t", "yy",
        "--trainpref", str(folder / "train"), "--destdir", str(folder / "data"),
        "--parser", options.parser, "--constituents", "from-dependencies",
        "--joined-dictionary", "--vocab-size", "1000",
        "--sentencepiece-lines", str(options.sentencepiece_lines), "--workers", str(options.workers),
        "--engine", options.engine,
        *([] if options.parts == 1 else ["--parts", str(options.parts)]),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    begin, peak, ended = time.perf_counter(), 0, threading.Event()
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - read after the command
    process = subprocess.Popen(command, stdout=errors, stderr=errors, env=environment)

    def watch() -> None:
        nonlocal peak
        while not ended.wait(_SECONDS):
            peak = max(peak, size_of(folder / "data"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    ended.set()
    watcher.join()
    if status:
        errors.seek(0)
        sys.exit(f"{' '.join(command)} failed: {errors.read().decode()[-500:]}")
    seconds = time.perf_counter() - begin
    return seconds, usage.ru_maxrss * 1024, max(peak, size_of(folder / "data"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--engine", choices=("processes", "ray"), default="processes")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--parser", choices=("made-up", "conllu"), default="made-up")
    parser.add_argument(
        "--sentencepiece-lines", type=int, default=20_000, help="SentencePiece's sample"
    )
    options = parser.parse_args(arguments)
    print(f"{describe_machine('cpu')}\n")
    print("| sentence pairs | seconds | memory | text | largest on the way | data |")
    print("|--:|--:|--:|--:|--:|--:|")
    for lines in options.lines:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_corpus(folder, lines, trees=options.parser == "conllu")
            install_parser(folder)
            text = sum((folder / f"train.{language}").stat().st_size for language in ("xx", "yy"))
            seconds, memory, peak = run(folder, options)
            sizes = [memory, text, peak, size_of(folder / "data")]
            cells = [f"{lines:,}", f"{seconds:.0f}", *(f"{size / 1e6:,.0f} MB" for size in sizes)]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
