"""Score minimal pairs with trained models, for `fairseq-phrase-report --contrastive DIR`.

    python scripts/contrastive.py ../shared/data/contrastive --data RUNS/data-bin --runs RUNS/rows \\
        -s en -t de --work RUNS/contrastive

The correct translations of a phenomenon are a test set, and so are the incorrect ones. They are cut into
subwords and parsed as the models' data were, in WORK/data-bin, and scored by each run's average.pt
(fairseq-generate --score-reference) to RUNS/ROW/seedN/contrastive/PHENOMENON.correct.txt and
.incorrect.txt. Existing files are not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.errors import UserError
from fairseq_phrase.report.contrastive import FOLDER, SIDES, MinimalPairs, read_pairs
from fairseq_phrase.report.runs import find_runs
from fairseq_phrase.text import read_lines


def write_texts(pairs: list[MinimalPairs], folder: Path, source: str, target: str) -> list[str]:
    """Write each side of each phenomenon as a test set; return the prefixes, as `subsets` orders them."""
    folder.mkdir(parents=True, exist_ok=True)
    prefixes = []
    for one in pairs:
        for side, translations in zip(SIDES, (one.correct, one.incorrect), strict=True):
            prefix = folder / f"{one.phenomenon}.{side}"
            for language, file in ((source, one.source), (target, translations)):
                text = "".join(f"{line}\n" for line in read_lines(file))
                Path(f"{prefix}.{language}").write_text(text, encoding="utf-8")
            prefixes.append(str(prefix))
    return prefixes


def subsets(pairs: list[MinimalPairs]) -> list[tuple[str, str]]:
    """Return fairseq's name of each test set and the name of its scores."""
    names = [f"{one.phenomenon}.{side}" for one in pairs for side in SIDES]
    return [(f"test{number or ''}", name) for number, name in enumerate(names)]


def preprocess(args: argparse.Namespace, prefixes: list[str], destination: Path) -> None:
    """Cut and parse the test sets as the models' data were, says their manifest.

    Raises:
        SystemExit: the models' data have no manifest, or are not of raw text.
    """
    manifest = args.data / f"syntax.{args.source}.json"
    if not manifest.is_file():
        sys.exit(
            f"{manifest} is not there: --data is the directory that the models were trained on"
        )
    made = json.loads(manifest.read_text(encoding="utf-8"))
    if made["tokenized"]:
        sys.exit(
            f"{args.data} has tokenized text, but the minimal pairs are raw: their scores differ"
        )
    parser = args.parser or made["parser"]
    models = {"sentencepiece": "--sentencepiece-model", "subword_nmt": "--bpe-codes"}
    command = [
        "fairseq-phrase-preprocess", "-s", args.source, "-t", args.target, "--testpref",
        ",".join(prefixes), "--destdir", destination, "--parser", parser,
        "--constituents", made["constituents"] if parser != "none" else "none",
        "--on-error", "flat", "--workers", os.cpu_count(),
        "--srcdict", args.data / f"dict.{args.source}.txt",
        "--tgtdict", args.data / f"dict.{args.target}.txt",
        "--bpe", made["bpe"], models[made["bpe"]], args.data / made["bpe_model"],
    ]  # fmt: skip
    subprocess.run(list(map(str, command)), check=True)


def score(run: Path, checkpoint: Path, subset: str, name: str, args: argparse.Namespace) -> None:
    """Score a test set by a model."""
    output = run / FOLDER / f"{name}.txt"
    if output.exists():
        return
    output.parent.mkdir(exist_ok=True)
    partial = output.with_suffix(".part")
    command = [
        "fairseq-generate", args.work / "data-bin", "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", "--path", checkpoint, "--gen-subset", subset, "--score-reference",
        "--max-tokens", args.max_tokens, *args.generate_flags.split(),
    ]  # fmt: skip
    with open(partial, "w") as stdout, open(output.with_suffix(".log"), "w") as stderr:
        threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // args.jobs))}
        subprocess.run(
            list(map(str, command)),
            check=True,
            stdout=stdout,
            stderr=stderr,
            env=threads | os.environ,
        )
    partial.rename(output)


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
    """Make the data, unless they are there, and score every test set by every model."""
    destination = args.work / "data-bin"
    if not (destination / f"syntax.{args.source}.json").exists():
        preprocess(
            args, write_texts(pairs, args.work / "text", args.source, args.target), destination
        )
    jobs = [(run, *test) for run in runs for test in subsets(pairs)]
    with ThreadPoolExecutor(args.jobs) as pool, tqdm(total=len(jobs), unit="test set") as bar:
        futures = [
            pool.submit(score, run, run / args.checkpoint, *test, args) for run, *test in jobs
        ]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update()
        finally:  # after a failure, start no more
            pool.shutdown(wait=False, cancel_futures=True)


if __name__ == "__main__":
    main()
