"""Score minimal pairs with trained models, for `fairseq-phrase-report --contrastive DIR`.

    python scripts/contrastive.py data/contrastive --data RUNS/data-bin --runs RUNS/rows \\
        -s en -t de --work RUNS/contrastive

All translations, correct and incorrect, are one test set: a model is loaded once. They are segmented and
parsed in the same way as the models' data, in WORK/pairs-bin, and scored by each run's average.pt
(fairseq-generate --score-reference). Scores go to RUNS/ROW/seedN/contrastive/PHENOMENON.correct.txt and
.incorrect.txt. Existing files are not made again. key.json beside them, and in WORK/pairs-bin, has what
they depend on; if that has changed, they are refused.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.cores import num_cores
from fairseq_phrase.data.store.outputs import (
    as_bytes,
    read_key,
    require_same,
    write_atomically,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.contrastive import FOLDER, SIDES, MinimalPairs, read_pairs
from fairseq_phrase.lab.report.runs import find_runs
from fairseq_phrase.text import digest_of, read_lines

_KEY = "key.json"
METHODS = Path(__file__).resolve().parents[1] / "examples/methods"
_NUMBERED = re.compile(r"([A-Z])-(\d+)(?=\t)")  # the beginning of a line of fairseq-generate's


@dataclass(frozen=True)
class Part:
    """The correct or the incorrect translations of a phenomenon.

    Attributes:
        name: the name of their scores' file.
        source: the file of sentences.
        target: the file of translations.
        start: the number of sentences before them in the test set of all parts.
    """

    name: str
    source: Path
    target: Path
    start: int


def parts_of(pairs: list[MinimalPairs]) -> list[Part]:
    """Put the sides of all phenomena in the order of the test set."""
    parts, start = [], 0
    for pair_set in pairs:
        for side, target in zip(SIDES, (pair_set.correct, pair_set.incorrect), strict=True):
            parts.append(Part(f"{pair_set.phenomenon}.{side}", pair_set.source, target, start))
            start += pair_set.count
    return parts


def write_text(parts: list[Part], prefix: Path, source: str, target: str) -> None:
    """Write all parts as one test set."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for language, side in ((source, "source"), (target, "target")):
        with open(f"{prefix}.{language}", "w", encoding="utf-8") as stream:
            for part in parts:
                stream.writelines(f"{line}\n" for line in read_lines(getattr(part, side)))


def preprocess(args: argparse.Namespace, prefix: Path, destination: Path) -> None:
    """Segment and parse the test set in the same way as the models' data, by their manifest.

    Raises:
        SystemExit: the models' data lack a manifest, or are not made from raw text.
    """
    manifest = args.data / f"syntax.{args.source}.json"
    if not manifest.is_file():
        sys.exit(
            f"{manifest} is not there: --data is the directory that the models were trained on"
        )
    content = json.loads(manifest.read_text(encoding="utf-8"))
    if content["tokenized"]:
        sys.exit(
            f"{args.data} has tokenized text, but the minimal pairs are raw: their scores differ"
        )
    parser = args.parser or content["parser"]
    models = {"sentencepiece": "--sentencepiece-model", "subword_nmt": "--bpe-codes"}
    command = [
        "fairseq-phrase-preprocess", "-s", args.source, "-t", args.target, "--testpref",
        prefix, "--destdir", destination, "--parser", parser,
        "--constituents", content["constituents"] if parser != "none" else "none",
        "--on-error", "flat", "--workers", num_cores(),
        "--srcdict", args.data / f"dict.{args.source}.txt",
        "--tgtdict", args.data / f"dict.{args.target}.txt",
        "--bpe", content["bpe"], models[content["bpe"]], args.data / content["bpe_model"],
    ]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True)


def data_key(args: argparse.Namespace, parts: list[Part]) -> dict[str, str]:
    """Return what the data of the pairs depend on: their texts, the models' data and the parser."""
    texts = {(part.name, path) for part in parts for path in (part.source, part.target)}
    manifest = args.data / f"syntax.{args.source}.json"
    return {
        **{f"{name} {path.name}": digest_of(path)[:16] for name, path in texts},
        "data": digest_of(manifest)[:16] if manifest.is_file() else "",
        "--parser": args.parser or "that of the data",
    }


def check_key(folder: Path, key: dict[str, str], remedy: str) -> None:
    """Check that the files in a folder were made with a key, if they have one.

    Raises:
        SystemExit: they have another key.
    """
    note = folder / _KEY
    if not note.is_file():
        return
    recorded = read_key(note.read_bytes(), note)
    if "checkpoint" not in key:  # a restored run has no model
        recorded.pop("checkpoint", None)
    try:
        require_same(recorded, key, folder, remedy)
    except UserError as error:
        sys.exit(str(error))


def score(run: Path, parts: list[Part], args: argparse.Namespace, key: dict[str, str]) -> None:
    """Score all parts by a run's model, unless that is done.

    Args:
        key: what the data of the pairs depend on.

    Raises:
        SystemExit: the run lacks a model, or was scored with other pairs, options or another model.
    """
    folder, checkpoint = run / FOLDER, run / args.checkpoint
    key = {**key, "--checkpoint": args.checkpoint, "--generate-flags": args.generate_flags}
    if checkpoint.exists():
        key["checkpoint"] = digest_of(checkpoint)[:16]
    check_key(folder, key, f"remove {folder} to score this run anew")
    if all((folder / f"{part.name}.txt").exists() for part in parts):
        return
    if not checkpoint.exists():
        sys.exit(f"{checkpoint} is not there: train {run} first (restored results have no models)")
    folder.mkdir(exist_ok=True)
    write_atomically(folder / _KEY, as_bytes(key))
    command = [
        # The folder also registers what --user-dir fairseq_phrase does; rows may be of its methods.
        "fairseq-generate", args.work / "pairs-bin", "--user-dir", METHODS,
        "--task", "syntax_translation", "--path", checkpoint, "--gen-subset", "test", "--score-reference",
        "--max-tokens", args.max_tokens, *args.generate_flags.split(),
    ]  # fmt: skip
    threads = {"OMP_NUM_THREADS": str(max(1, num_cores() // args.jobs))}
    partial = folder / "all.partial"
    with open(partial, "w") as stdout, open(folder / "all.log", "w") as stderr:
        subprocess.run(
            list(map(str, command)),
            check=True,
            stdout=stdout,
            stderr=stderr,
            env=threads | os.environ,
        )
    split(partial, parts, folder)
    partial.unlink()


def split(scores: Path, parts: list[Part], folder: Path) -> None:
    """Write each part's lines of fairseq-generate's output to a separate file."""
    starts = [part.start for part in parts]
    lines: list[list[str]] = [[] for _ in parts]
    with open(scores, encoding="utf-8", newline="\n") as stream:
        for line in stream:
            if match := _NUMBERED.match(line):
                number = int(match[2])
                index = bisect_right(starts, number) - 1
                lines[index].append(f"{match[1]}-{number - starts[index]}{line[match.end() :]}")
    for part, lines_of_part in zip(parts, lines, strict=True):
        file = folder / f"{part.name}.txt"
        file.with_suffix(".part").write_text("".join(lines_of_part), encoding="utf-8")
        file.with_suffix(".part").rename(file)


def main() -> None:
    """Score the pairs named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", type=Path, help="a folder for each phenomenon")
    parser.add_argument("--data", type=Path, required=True, help="the models' data directory")
    parser.add_argument("--runs", nargs="+", required=True, help="runs, as the report takes them")
    parser.add_argument("--work", type=Path, required=True, help="where the pairs' data go")
    parser.add_argument("-s", "--source", required=True, metavar="LANG")
    parser.add_argument("-t", "--target", required=True, metavar="LANG")
    parser.add_argument("--parser", help="of the source (default: that of the models' data)")
    parser.add_argument(
        "--checkpoint", default="average.pt", help="in each run's folder (average.pt)"
    )
    parser.add_argument("--max-tokens", type=int, default=8000, help="of a batch (8000)")
    parser.add_argument("--jobs", type=int, default=1, help="models scored at a time (1)")
    parser.add_argument("--generate-flags", default="", help="more flags for fairseq-generate")
    args = parser.parse_args()
    try:
        pairs = read_pairs(args.pairs)
        runs = find_runs(args.runs)
    except UserError as error:
        sys.exit(str(error))
    try:
        score_all(args, pairs, [run.path for run in runs])
    except subprocess.CalledProcessError as error:
        sys.exit(f"failed ({error.returncode}): {' '.join(error.cmd)}")


def score_all(args: argparse.Namespace, pairs: list[MinimalPairs], runs: list[Path]) -> None:
    """Make the data, unless they exist, and score them by every model."""
    parts, destination = parts_of(pairs), args.work / "pairs-bin"
    key = data_key(args, parts)
    if (destination / f"syntax.{args.source}.json").exists():
        check_key(destination, key, f"remove {args.work} to make them again")
    else:
        write_text(parts, args.work / "text" / "all", args.source, args.target)
        preprocess(args, args.work / "text" / "all", destination)
        write_atomically(destination / _KEY, as_bytes(key))
    with ThreadPoolExecutor(args.jobs) as pool, tqdm(total=len(runs), unit="model") as bar:
        futures = [pool.submit(score, run, parts, args, key) for run in runs]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        finally:  # after a failure, start no other model
            pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
