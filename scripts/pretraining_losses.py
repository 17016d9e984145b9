"""Make a table of the held-out losses of pre-training and of a unigram model.

    python scripts/pretraining_losses.py RUNS/objectives --data RUNS/text --rows FILE.yaml... --out DIR

writes DIR/losses.md and DIR/losses.csv. All losses are bits for each predicted token.
"""

from __future__ import annotations

import argparse
import csv
import logging
import math
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import yaml
from fairseq import checkpoint_utils
from fairseq.data import Dictionary, data_utils
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from fairseq_phrase import register
from fairseq_phrase.text import markdown_table

_VALID = re.compile(r"valid on 'valid' subset \| loss ([\d.]+)")
_TEST = re.compile(r"test \| .*?loss ([\d.]+) .*?ppl ([\d.]+)")
_WITHOUT_ENDS = "validate-test-without-ends.txt"  # in a run's folder, written once
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

    counts, counts_of_split = counted("train") + 1.0, counted(split)
    counts[: dictionary.nspecial] = 0
    counts_of_split[: dictionary.nspecial] = 0
    is_counted = counts_of_split > 0
    bits = -np.log2(counts[is_counted] / counts.sum())
    return float((counts_of_split[is_counted] * bits).sum() / counts_of_split.sum())


def losses_of(run: Path) -> list[float] | None:
    """Read the losses of a run; None if it is not finished."""
    log, test = run / "train.log", run / "validate-test.txt"
    if not (log.is_file() and test.is_file()):
        return None
    if (run / _WITHOUT_ENDS).is_file():
        test = run / _WITHOUT_ENDS
    valid = [float(loss) for loss in _VALID.findall(log.read_text())]
    match = _TEST.search(test.read_text())
    return [valid[0], valid[-1], float(match[1]), float(match[2])] if valid and match else None


def loss_without_ends(checkpoint: Path, data: Path, split: str) -> float:
    """Compute the loss of a model of fairseq's ``masked_lm``, in bits for each masked subword.

    fairseq's task also masks the begin and the end of a sentence, which are easy to predict. They do not
    count here, because the other models do not predict them.
    """
    models, config, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    task.load_dataset(split)
    batches = task.get_batch_iterator(task.dataset(split), max_tokens=config.dataset.max_tokens)
    ends = torch.tensor([task.dictionary.bos(), task.dictionary.eos(), task.dictionary.pad()])
    nats, predicted = 0.0, 0
    with torch.no_grad():
        for batch in tqdm(batches.next_epoch_itr(shuffle=False), desc=split, unit="batch"):
            masked = ~torch.isin(batch["target"], ends)
            scores = models[0].eval()(**batch["net_input"], masked_tokens=masked)[0]
            nats += float(cross_entropy(scores, batch["target"][masked], reduction="sum"))
            predicted += int(masked.sum())
    return nats / math.log(2) / predicted


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    register()
    lines = []
    files = [yaml.safe_load(path.read_text()).get("rows", {}) for path in args.rows]
    for name, row in {name: row for rows in files for name, row in rows.items()}.items():
        runs = {seed: losses_of(seed) for seed in sorted((args.runs / name).glob("seed*"))}
        runs = {seed: losses for seed, losses in runs.items() if losses is not None}
        if row.get("task", {}).get("_name") == "masked_lm":
            for seed in runs:
                if not (seed / _WITHOUT_ENDS).is_file():
                    bits = loss_without_ends(seed / "checkpoint_best.pt", args.data, "test")
                    line = f"test | loss {bits:.3f} | ppl {2**bits:.2f}\n"
                    (seed / _WITHOUT_ENDS).write_text(line)
                runs[seed] = losses_of(seed)
        if runs:
            means = [
                f"{statistics.mean(losses):.3f}" for losses in zip(*runs.values(), strict=True)
            ]
            tests = [losses[2] for losses in runs.values()]
            spread = f"{statistics.stdev(tests):.3f}" if len(tests) > 1 else ""
            lines.append([row["title"], str(len(runs)), *means, spread])
    unigram = unigram_loss(args.data, "test")
    lines.append(["unigram model", "", "", "", f"{unigram:.3f}", f"{2**unigram:.3f}", ""])
    headings = ["model", "seeds", *_COLUMNS, "sd of test loss"]
    args.out.mkdir(parents=True, exist_ok=True)
    notes = (
        "Bits for each predicted token. Different objectives and masks predict different tokens from "
        "different contexts, so they are compared with the unigram model and not with each other. "
        "The causal model also predicts the ends of sentences. So does fairseq's masked_lm, but its "
        "test loss and perplexity are per subword."
    )
    table = markdown_table(headings, lines, texts=1)
    (args.out / "losses.md").write_text(f"{table}\n\n{notes}\n")
    with open(args.out / "losses.csv", "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([headings, *lines])
    print(table)


if __name__ == "__main__":
    main()
