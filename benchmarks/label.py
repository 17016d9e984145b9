"""Speed of labelling raw text and of training a tagger.

- Labelling: lines per second of ``fairseq-phrase-label``'s work without loading the model: reading
  lines, segmentation, batching by length, the model, writing labels. Measured in the process's own CPU
  time, which other work on the machine hardly changes, and by the clock.
- Training: steps of ``--arch labeller`` through ``--task syntax_labelling`` (loading and collating a
  batch, forward, stock criterion, backward, clipping, Adam), and of a plain loop in torch: the same
  encoder, built without fairseq's task, a linear layer and cross entropy, on the same sentences without
  parses. If the encoder needs parses, the loop has fairseq's own encoder. Both train in turns on the same
  batches. The ratio of their times is the median of the paired ratios.

DATA is a data directory of ``--labels word --bpe none``. Sizes are for tagging: 2 layers, d=300, 6 heads.

On a shared machine, set OMP_NUM_THREADS=1.

Examples:
    python benchmarks/label.py DATA --text ewt/train.en
    python benchmarks/label.py DATA --steps 30 --encoder phrase_transformer
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.data import LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim import build_optimizer
from fairseq.tasks import setup_task
from machine import describe_machine
from torch import Tensor, nn
from tqdm import tqdm

from fairseq_phrase import register
from fairseq_phrase.inference.labelling import Labeller
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.named_encoder import build_named_encoder
from fairseq_phrase.text import read_lines


class PlainTagger(nn.Module):
    """The encoder and a linear layer, without fairseq's task and criterion.

    Args:
        encoder: an encoder that does not read parses.
        width: of its states.
        num_labels: size of the label dictionary.
        padding: the label of padding.
        dropout: its probability before the linear layer.
    """

    def __init__(self, encoder: Any, width: int, num_labels: int, padding: int, dropout: float):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, num_labels)
        self.dropout = nn.Dropout(dropout)
        self.loss = nn.CrossEntropyLoss(ignore_index=padding, reduction="sum", label_smoothing=0.1)

    def forward(self, sample: dict[str, Any]) -> Tensor:
        """Return the loss of a batch, summed over words."""
        states = self.encoder(sample["net_input"]["src_tokens"])["encoder_out"][0][:-1]
        logits = self.head(self.dropout(states)).transpose(0, 1)
        return self.loss(logits.flatten(0, 1), sample["target"].flatten())


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return the CPU time and the time by the clock of one call, in seconds."""
    cpu, clock = time.process_time(), time.perf_counter()
    run()
    return time.process_time() - cpu, time.perf_counter() - clock


def configured(args: argparse.Namespace) -> Any:
    """Read the options of a tagger as fairseq-train does."""
    flags = [
        args.data, "--task", "syntax_labelling", "--arch", "labeller", "--encoder", args.encoder,
        "--encoder-layers", "2", "--encoder-embed-dim", "300", "--encoder-ffn-embed-dim", "600",
        "--encoder-attention-heads", "6", "--dropout", "0.3", "--cpu", "--optimizer", "adam",
        "--lr", "1e-4", "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1",
        *args.flags,
    ]  # fmt: skip
    parser = fairseq_options.get_training_parser(default_task="syntax_labelling")
    return convert_namespace_to_omegaconf(
        fairseq_options.parse_args_and_arch(parser, input_args=flags)
    )


def labelling(model: Any, task: Any, lines: list[str], max_tokens: int | None, repeats: int) -> str:
    """Measure lines per second."""
    labeller = Labeller([model], task, device="cpu", max_tokens=max_tokens)

    def run() -> None:
        for _ in labeller.label(lines):
            pass

    run()  # the first run warms caches up
    times = [timed(run) for _ in range(repeats)]
    cpu, clock = (statistics.median(each) for each in zip(*times, strict=True))
    words = sum(len(line.split()) for line in lines) / len(lines)
    return (
        f"labelling: {len(lines) / cpu:,.0f} lines per second of CPU time, "
        f"{len(lines) / clock:,.0f} by the clock ({len(lines)} lines of {words:.1f} words)"
    )


def training(cfg: Any, task: Any, model: Any, max_tokens: int, steps: int) -> str:
    """Measure training steps in turns."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    without_parses = getattr(dataset, "dataset", dataset)
    assert isinstance(without_parses, LanguagePairDataset)
    batches = task.get_batch_iterator(dataset, max_tokens=max_tokens, seed=1).frozen_batches
    nested = nested_config(cfg.model)
    if task.source_text.fields:
        nested.encoder_name = "transformer"
    plain = PlainTagger(
        build_named_encoder(nested, task, task.source_dictionary),
        300,
        len(task.target_dictionary),
        task.target_dictionary.pad(),
        nested.dropout,
    ).train()
    criterion = task.build_criterion(cfg.criterion)
    optimizers = [
        build_optimizer(cfg.optimizer, list(trained.parameters())) for trained in (model, plain)
    ]

    def step_of_task(batch: list[int], update: int) -> None:
        sample = dataset.collater([dataset[index] for index in batch])
        optimizers[0].zero_grad()
        _, size, _ = task.train_step(sample, model, criterion, optimizers[0], update)
        finish(optimizers[0], size)

    def step_of_loop(batch: list[int], update: int) -> None:
        sample = without_parses.collater([without_parses[index] for index in batch])
        optimizers[1].zero_grad()
        plain(sample).backward()
        finish(optimizers[1], sample["ntokens"])

    def finish(optimizer: Any, size: int) -> None:
        optimizer.multiply_grads(1 / size)
        optimizer.clip_grad_norm(1.0)
        optimizer.step()

    model.train()
    times: list[tuple[float, float]] = []
    for update in tqdm(range(steps + 2), desc="training"):
        batch = list(batches[update % len(batches)])
        runs = [lambda: step_of_task(batch, update), lambda: step_of_loop(batch, update)]  # noqa: B023
        # The first one of a turn finds colder caches.
        order = (0, 1) if update % 2 else (1, 0)
        found = {place: timed(runs[place])[0] for place in order}
        times.append((found[0], found[1]))
    ratio = statistics.median(loop / own for own, loop in times[2:])
    own, loop = (1000 * statistics.median(each) for each in zip(*times[2:], strict=True))
    return (
        f"training: {own:.0f} ms of CPU time a step, a plain loop {loop:.0f} ms; speed divided by the "
        f"loop's: {ratio:.3f}"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data")
    parser.add_argument("--text", type=Path, help="lines to label (default: no labelling)")
    parser.add_argument("--lines", type=int, default=4000, help="label so many lines")
    parser.add_argument("--encoder", default="transformer")
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="the encoder's options"
    )
    parser.add_argument("--max-tokens", type=int, default=2000, help="in a training batch")
    parser.add_argument(
        "--label-max-tokens", type=int, help="in a batch of labelling (default: the command's)"
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    register()
    print(describe_machine("cpu"))
    cfg = configured(args)
    task = setup_task(cfg.task)
    torch.manual_seed(1)
    model = task.build_model(cfg.model)
    if args.text is not None:
        lines = list(read_lines(args.text))[: args.lines]
        print(labelling(model, task, lines, args.label_max_tokens, args.repeats))
    if args.steps:
        print(training(cfg, task, model, args.max_tokens, args.steps))


if __name__ == "__main__":
    main()
