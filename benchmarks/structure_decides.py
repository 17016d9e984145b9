"""Test whether models that read the tree translate better where it decides the order of words.

The synthetic corpus has sentences whose prepositional phrase may belong to a noun or to the verb; the
same German words then have two trees, and two English translations with different word orders. Models of
the paper's table 1 are trained on it for a few epochs, with fairseq's own commands and the gold trees,
once per seed. Columns, on the test set:

- ``BLEU`` and ``loss`` (validation, label smoothing left out, in bits), mean and range over the seeds,
- ``told apart``: of the test's sentences that occur in both readings, the share whose correct translation
  has a higher probability than the other reading's. A model that does not read the tree has one of each
  two correct: 50 %.

Finished steps in WORK_DIR are not repeated.

Example (half an hour on one core):
    OMP_NUM_THREADS=1 python benchmarks/structure_decides.py WORK_DIR --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import sacrebleu
from measuring import describe_machine, use_intel_kernels
from tqdm import tqdm

from fairseq_phrase.text import markdown_table

REPOSITORY = Path(__file__).resolve().parent.parent
#: Rows of the paper's table 1: name and flags.
MODELS = {
    "4: sequential absolute (fairseq's Transformer)": [],
    "7: both sequential": ["--sequential-relative"],
    "6: sequential absolute, both structural": ["--structural-absolute", "--structural-relative"],
    "9: all four": ["--sequential-relative", "--structural-absolute", "--structural-relative"],
}


@dataclass
class Score:
    """The scores of one trained model."""

    bleu: float
    loss: float
    told_apart: float


def run(log: Path, command: str, *arguments: object) -> str:
    """Run one of the environment's commands; keep and return its output.

    A command whose log exists is not run again.

    Raises:
        SystemExit: the command failed.
    """
    if log.exists():
        return log.read_text()
    script = Path(sys.executable).parent / command
    finished = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    output = finished.stdout + finished.stderr
    if finished.returncode != 0:
        failed = log.with_suffix(".failed")
        failed.write_text(output)
        sys.exit(f"{command} failed with status {finished.returncode}: see {failed}")
    log.write_text(output)
    return output


def prepare(options: argparse.Namespace) -> Path:
    """Write the corpus and preprocess it; return the data directory."""
    corpus, data = options.folder / "corpus", options.folder / "data"
    run(
        options.folder / "corpus.log", "fairseq-phrase-synthetic", "--out", corpus, "--train",
        options.pairs, "--valid", 500, "--test", 1000,
    )  # fmt: skip
    write_readings(corpus)
    tests = ",".join(str(corpus / name) for name in ("test", "right", "wrong"))
    run(
        options.folder / "preprocess.log", "fairseq-phrase-preprocess", "-s", "de", "-t", "en",
        "--trainpref", corpus / "train", "--validpref", corpus / "valid", "--testpref", tests,
        "--parser", "conllu", "--vocab-size", 1000, "--joined-dictionary", "--destdir", data,
    )  # fmt: skip
    return data


def write_readings(corpus: Path) -> None:
    """Write the test's sentences of two readings with the right and with the wrong translation."""
    sources = (corpus / "test.de").read_text().splitlines()
    targets = (corpus / "test.en").read_text().splitlines()
    parses = (corpus / "test.de.conllu").read_text().strip().split("\n\n")
    # The two readings of a sentence follow each other directly.
    firsts = [n for n in range(len(sources) - 1) if sources[n] == sources[n + 1]]
    pairs = [pair for first in firsts for pair in ((first, first + 1), (first + 1, first))]
    for name, side in (("right", 0), ("wrong", 1)):
        texts = {
            "de": [sources[index] for index, _ in pairs],
            "en": [targets[pair[side]] for pair in pairs],
            "de.conllu": [parses[index] + "\n" for index, _ in pairs],
        }
        for ending, lines in texts.items():
            (corpus / f"{name}.{ending}").write_text("\n".join(lines) + "\n")


def train_and_score(
    flags: list[str], seed: int, name: str, data: Path, options: argparse.Namespace
) -> Score:
    """Train one model and translate the test set."""
    folder = options.folder / f"{name.split(':')[0]}-{seed}"
    folder.mkdir(exist_ok=True)
    device = ["--cpu"] if options.cpu else []
    task = ["--user-dir", REPOSITORY / "fairseq_phrase", "--task", "syntax_translation", *device]
    log = run(
        folder / "train.log", "fairseq-train", data, *task, "--arch", "structural_transformer_tiny",
        *flags, "--encoder-normalize-before", "--decoder-normalize-before", "--encoder-layers", 2,
        "--decoder-layers", 2, "--share-all-embeddings", "--optimizer", "adam", "--adam-betas",
        "(0.9, 0.98)", "--lr", 0.005, "--lr-scheduler", "inverse_sqrt", "--warmup-updates", 200,
        "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", 0.1, "--clip-norm", 1,
        "--dropout", 0.1, "--max-tokens", options.max_tokens, "--max-epoch", options.epochs, "--seed",
        seed, "--num-workers", 0, "--no-epoch-checkpoints", "--save-dir", folder,
        "--no-progress-bar", "--log-format", "simple",
    )  # fmt: skip
    loss = float(re.findall(r"valid on 'valid' subset .*? nll_loss ([\d.]+)", log)[-1])
    output = run(
        folder / "generate.log", "fairseq-generate", data, *task, "--path",
        folder / "checkpoint_last.pt", "--beam", 4, "--batch-size", 200, "--remove-bpe",
        "sentencepiece", "--max-len-b", 50,
    )  # fmt: skip
    hypotheses = {
        int(n): text for n, text in re.findall(r"^H-(\d+)\t\S+\t(.*)$", output, re.MULTILINE)
    }
    references = (options.folder / "corpus" / "test.en").read_text().splitlines()
    translations = [hypotheses[number] for number in range(len(references))]
    likelihoods = []
    for subset in ("test1", "test2"):  # the right translations, and the wrong
        output = run(
            folder / f"{subset}.log", "fairseq-generate", data, *task, "--path",
            folder / "checkpoint_last.pt", "--gen-subset", subset, "--score-reference",
            "--batch-size", 200,
        )  # fmt: skip
        scores = re.findall(r"^H-(\d+)\t(\S+)\t", output, re.MULTILINE)
        likelihoods.append({int(number): float(score) for number, score in scores})
    right, wrong = likelihoods
    told_apart = statistics.mean(right[number] > wrong[number] for number in right)
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    return Score(bleu, loss, 100 * told_apart)


def cell(values: list[float], digits: int) -> str:
    """Format a mean and a range."""
    mean, low, high = statistics.mean(values), min(values), max(values)
    return f"{mean:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", metavar="WORK_DIR", type=Path, help="for corpus, models and logs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--pairs", type=int, default=20000, help="of the training corpus")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=500, help="in a batch")
    parser.add_argument(
        "--models", nargs="+", default=["4", "7", "6", "9"], help="rows of the paper's table 1"
    )
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    return parser.parse_args(arguments)


def main() -> None:
    """Train all models with all seeds and print the table."""
    options = parse_arguments()
    use_intel_kernels()
    options.folder = options.folder.resolve()
    options.folder.mkdir(parents=True, exist_ok=True)
    data = prepare(options)
    names = [name for name in MODELS if name.split(":")[0] in options.models]
    scores: dict[str, list[Score]] = {name: [] for name in names}
    runs = [(name, seed) for seed in options.seeds for name in names]
    for name, seed in tqdm(runs, unit="model", file=sys.stderr):
        scores[name].append(train_and_score(MODELS[name], seed, name, data, options))
        tqdm.write(f"{name}, seed {seed}: {scores[name][-1]}", file=sys.stderr)
    print(
        f"{describe_machine('cpu' if options.cpu else 'cuda')}, {options.pairs} pairs, "
        f"{options.epochs} epochs of batches of {options.max_tokens} tokens, seeds "
        f"{', '.join(map(str, options.seeds))}\n"
    )
    lines = [
        [
            name,
            cell([row.bleu for row in rows], 1),
            cell([row.loss for row in rows], 3),
            cell([row.told_apart for row in rows], 1),
        ]
        for name, rows in scores.items()
    ]
    headings = ["model of table 1", "BLEU", "loss", "told apart, %"]
    print(markdown_table(headings, lines, texts=1))


if __name__ == "__main__":
    main()
