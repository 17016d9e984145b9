"""CPU seconds from the start of fairseq-phrase-translate to its first translation, against imports only.

Each repeat starts a process that imports torch, one that imports fairseq, and for this checkout and each
other named checkout one that translates a line; the table shows medians.

Example:
    python benchmarks/start_up.py --path CHECKPOINT --data DATA --line "Ein Hund läuft ." --tree ../before
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from fairseq_phrase.text import markdown_table

ROOT = Path(__file__).resolve().parents[1]


def cpu_seconds(arguments: list[str], line: str, tree: Path) -> float:
    """Run Python in a new process; return its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments],
        input=f"{line}\n",
        text=True,
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(tree.resolve()), "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--path", required=True, help="checkpoint")
    parser.add_argument("--data", required=True, help="its data directory")
    parser.add_argument("--line", required=True, help="the line to translate")
    parser.add_argument("--source-parser", default="none")
    parser.add_argument("--tree", type=Path, action="append", default=[], help="another checkout")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    code = "import sys; from fairseq_phrase.cli.translate import main; main(sys.argv[1:])"
    translate = ["-c", code, options.data, "--path", options.path, "--device", "cpu"]
    translate += ["--source-parser", options.source_parser]
    rows = {f"import {name}": (["-c", f"import {name}"], ROOT) for name in ("torch", "fairseq")}
    rows |= {f"translate, {tree.name}": (translate, tree) for tree in (ROOT, *options.tree)}
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(options.repeats):
        for name, (arguments, tree) in rows.items():
            times[name].append(cpu_seconds(arguments, options.line, tree))
    own = times[f"translate, {ROOT.name}"]
    cells = [
        [
            name,
            f"{statistics.median(found):.2f}",
            f"{statistics.median(a / b for a, b in zip(own, found, strict=True)):.2f}",
        ]
        for name, found in times.items()
    ]
    print(markdown_table(["", "CPU s", "this checkout / it"], cells, texts=1))


if __name__ == "__main__":
    main()
