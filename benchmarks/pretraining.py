"""Words per second of pre-training, compared with fairseq's ``masked_lm`` and ``transformer_lm``.

All models have the same sizes, are built as fairseq-train builds them, and train on the same text.
They take their steps (making the batch, forward, backward, Adam) in turns: a slowdown of the machine
affects all of them. The table shows medians over the steps:

- ``words/s``: source tokens per second,
- ``/masked_lm`` and others: words per second divided by another row's, the median of the paired ratios.

Without DATA, the text is random words.

Example:
    OMP_NUM_THREADS=1 python benchmarks/pretraining.py --steps 15
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import random
import statistics
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import options as fairseq_options
from fairseq import tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from machine import describe_machine, seconds
from tqdm import tqdm

from fairseq_phrase import register
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.text import markdown_table

ROBERTA = [
    "--activation-fn", "gelu", "--encoder-learned-pos", "--layernorm-embedding",
    "--no-scale-embedding", "--attention-dropout", "0.1",
]  # fmt: skip
OURS = ["--task", "syntax_pretraining", "--arch", "pretrainer", "--sample-break-mode", "none"]
#: The flags of each model, and the row that it is compared with.
MODELS: dict[str, tuple[list[str], str | None]] = {
    "masked_lm (fairseq)": (
        ["--task", "masked_lm", "--arch", "roberta", "--criterion", "masked_lm"],
        None,
    ),
    "masked": ([*OURS, *ROBERTA, "--criterion", "masked_lm"], "masked_lm (fairseq)"),
    "transformer_lm (fairseq)": (
        [
            "--task", "language_modeling", "--arch", "transformer_lm", "--criterion",
            "cross_entropy", "--share-decoder-input-output-embed",
        ],
        None,
    ),
    "causal": (
        [*OURS, "--objective", "causal", "--criterion", "cross_entropy"],
        "transformer_lm (fairseq)",
    ),
    "permutation": (
        [
            *OURS, *ROBERTA, "--objective", "permutation", "--encoder", "xl_transformer",
            "--criterion", "masked_lm",
        ],
        "masked",
    ),
}  # fmt: skip


class Trained:
    """A model in training.

    Args:
        flags: its flags of fairseq-train.
        data: the data directory.
        options: sizes.
    """

    def __init__(self, flags: list[str], data: Path, options: argparse.Namespace):
        side = "decoder" if "transformer_lm" in flags else "encoder"
        sizes = {
            "embed-dim": options.width, "ffn-embed-dim": 4 * options.width,
            "attention-heads": options.heads, "layers": options.layers,
        }  # fmt: skip
        words = [str(data), *flags, "--tokens-per-sample", str(options.length), "--seed", "1"]
        words += [f"--{side}-{name}={size}" for name, size in sizes.items()]
        words += ["--dropout", "0.1", "--optimizer", "adam", "--lr", "0.0005"]
        if side == "encoder":
            longest = "max-positions" if "roberta" in flags else "max-source-positions"
            words += [f"--{longest}", str(options.length)]
        args = fairseq_options.parse_args_and_arch(fairseq_options.get_training_parser(), words)
        self.cfg = convert_namespace_to_omegaconf(args)
        self.device = torch.device(options.device)
        utils.set_torch_seed(1)
        self.task = tasks.setup_task(self.cfg.task)
        self.model = self.task.build_model(self.cfg.model).to(self.device).train()
        self.criterion = self.task.build_criterion(self.cfg.criterion)
        self.task.load_dataset("train")
        self.dataset = self.task.dataset("train")
        self.sentences = max(options.max_tokens // options.length, 1)
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = build_optimizer(self.cfg.optimizer, parameters)
        self.words = 0

    def step(self, number: int) -> None:
        """Make a batch and train on it; steps with the same number have the same text."""
        self.dataset.set_epoch(number + 1)
        first = number * self.sentences % (len(self.dataset) - self.sentences)
        samples = [self.dataset[index] for index in range(first, first + self.sentences)]
        batch: Any = self.dataset.collater(samples)
        if self.device.type == "cuda":
            batch = utils.move_to_cuda(batch)
        self.words = int(batch["ntokens"])
        self.optimizer.zero_grad()
        _, size, _ = self.task.train_step(batch, self.model, self.criterion, self.optimizer, number)
        self.optimizer.multiply_grads(1 / max(int(size), 1))
        self.optimizer.step()


def random_data(folder: Path, words: int = 8000, lines: int = 6000) -> Path:
    """Make a data directory of random words."""
    rng = random.Random(1)
    names = [f"w{number}" for number in range(words)]
    for split, count in (("train", lines), ("valid", 10)):
        text = [" ".join(rng.choices(names, k=rng.randint(5, 25))) for _ in range(count)]
        (folder / f"{split}.en").write_text("\n".join(text) + "\n")
    command = ["-s", "en", "--only-source", "--bpe", "none", "--parser", "none"]
    command += ["--trainpref", str(folder / "train"), "--validpref", str(folder / "valid")]
    with contextlib.redirect_stdout(io.StringIO()):
        preprocess([*command, "--destdir", str(folder / "data")])
    return folder / "data"


def measure(models: dict[str, Trained], options: argparse.Namespace) -> dict[str, np.ndarray]:
    """Train in turns, and return the words per second of each step."""
    speeds: dict[str, list[float]] = {name: [] for name in models}
    names = list(models)
    for number in tqdm(range(options.warmup + options.steps), unit="step", file=sys.stderr):
        # Each model comes first, second, ... equally often.
        for turn in range(len(names)):
            model = models[name := names[(number + turn) % len(names)]]
            taken = seconds(lambda m=model, n=number: m.step(n), model.device)
            if number >= options.warmup:
                speeds[name].append(model.words / taken)
    return {name: np.array(values) for name, values in speeds.items()}


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data", nargs="?", type=Path, help="of fairseq-phrase-preprocess --only-source"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=64, help="tokens in a block")
    parser.add_argument("--max-tokens", type=int, default=1024, help="in a batch")
    parser.add_argument("--steps", type=int, default=15, help="measured steps of each model")
    parser.add_argument("--warmup", type=int, default=2, help="steps before those")
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    return parser.parse_args()


def main() -> None:
    """Measure all models and print the table."""
    options = parse_arguments()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    register()
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or random_data(Path(folder))
        models = {name: Trained(flags, data, options) for name, (flags, _) in MODELS.items()}
        speeds = measure(models, options)
    lines = []
    for name, (_, base) in MODELS.items():
        ratio = "" if base is None else f"{statistics.median(speeds[name] / speeds[base]):.3f}"
        lines.append([name, f"{np.median(speeds[name]):.0f}", base or "", ratio])
    conditions = (
        f"{describe_machine(options.device)}, float32, {options.layers} layers of width "
        f"{options.width}, blocks of {options.length} tokens, batches of {options.max_tokens}, median "
        f"of {options.steps} steps each, in turns"
    )
    table = markdown_table(["model", "words/s", "compared with", "ratio"], lines, texts=1)
    print(report := f"{conditions}\n\n{table}\n")
    if options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
