"""Make a table of the held-out losses of pre-training, beside that of a unigram model.

    python scripts/pretraining_losses.py RUNS/objectives --data RUNS/text --rows FILE.yaml... --out DIR

writes DIR/losses.md and DIR/losses.csv. All losses are bits for each predicted token.
"""

from __future__ import annotations

import argparse
import csv
import logging
import re
import statistics
from pathlib import Path

import numpy as np
import yaml
from fairseq.data import Dictionary, data_utils

from fairseq_phrase.markdown import markdown_table

_VALID = re.compile(r"valid on 'valid' subset \| loss ([\d.]+)")
_TEST = re.compile(r"test \| .*?loss ([\d.]+) .*?ppl ([\d.]+)")
_COLUMNS = ("first valid loss", "last valid loss", "test loss", "test perplexity")


def unigram_loss(data: Path, split: str) -> float:
    """Compute the loss of the training text's frequencies, plus one, without ends of sentence."""
    dictionary = Dictionary.load(str(data / "dict.txt"))

    def counted(name: str) -> np.ndarray:
        text = data_utils.load_indexed_dataset(str(data / name), dictionary)
        return sum(
            np.bincount(tokens.numpy(), minlength=len(dictionary))
            for tokens in map(text.__getitem__, range(len(text)))
        )

    counts, found = counted("train") + 1.0, counted(split)
    counts[: dictionary.nspecial] = 0
    found[: dictionary.nspecial] = 0
    known = found > 0
    bits = -np.log2(counts[known] / counts.sum())
    return float((found[known] * bits).sum() / found.sum())


def losses_of(run: Path) -> list[float] | None:
    """Read the losses of a run; None if it is not finished."""
    log, test = run / "train.log", run / "validate-test.txt"
    if not (log.is_file() and test.is_file()):
        return None
    valid = [float(loss) for loss in _VALID.findall(log.read_text())]
    found = _TEST.search(test.read_text())
    return [valid[0], valid[-1], float(found[1]), float(found[2])] if valid and found else None


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    lines = []
    files = [yaml.safe_load(path.read_text())["rows"] for path in args.rows]
    for name, row in {name: row for rows in files for name, row in rows.items()}.items():
        seeds = sorted((args.runs / name).glob("seed*"))
        found = [losses for seed in seeds if (losses := losses_of(seed)) is not None]
        if found:
            means = [f"{statistics.mean(column):.3f}" for column in zip(*found, strict=True)]
            spread = f"{statistics.stdev(each[2] for each in found):.3f}" if len(found) > 1 else ""
            lines.append([row["title"], str(len(found)), *means, spread])
    unigram = unigram_loss(args.data, "test")
    lines.append(["unigram model", "", "", "", f"{unigram:.3f}", f"{2**unigram:.3f}", ""])
    headings = ["model", "seeds", *_COLUMNS, "sd of test loss"]
    args.out.mkdir(parents=True, exist_ok=True)
    notes = (
        "Bits for each predicted token. Different objectives and masks predict different tokens from "
        "different contexts, so they are compared with the unigram model and not with one another. "
        "fairseq's masked_lm also predicts the ends of sentences, and the causal model does."
    )
    table = markdown_table(headings, lines, texts=1)
    (args.out / "losses.md").write_text(f"{table}\n\n{notes}\n")
    with open(args.out / "losses.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([headings, *lines])
    print(table)


if __name__ == "__main__":
    main()
