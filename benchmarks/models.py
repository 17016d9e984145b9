"""Speed of models other than translation's, each compared with the same work without this package.

What is compared runs in turns on the same input: a slowdown of the machine affects all. Tables show
medians, and ratios are medians of the paired ratios.

On a shared machine, set OMP_NUM_THREADS=1: then CPU time is measured.
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
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.optim import build_optimizer
from fairseq.tasks import setup_task
from measuring import (
    Run,
    Turns,
    add_device,
    add_out,
    add_steps,
    describe_machine,
    in_turns,
    report,
    run_one_of,
)
from torch import Tensor, nn
from translation_models import Sample, Trained, parse_flags
from tree_lstm_lengths import add_tree_lstm_arguments, tree_lstm

from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.fairseq_types import Task
from fairseq_phrase.inference.labelling import Labeller
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.models.named_encoder import build_named_encoder
from fairseq_phrase.text import markdown_table, read_lines


def labelling(options: argparse.Namespace) -> None:
    """Labelling raw text, and training a tagger, compared with a plain loop in torch.

    - Labelling (with --text): lines per second of ``fairseq-phrase-label``'s work without loading the
      model: reading lines, segmentation, batching by length, the model, writing labels.
    - Training: steps of ``--arch labeller`` through ``--task syntax_labelling`` (loading and collating a
      batch, forward, stock criterion, backward, clipping, Adam), and of a plain loop: the same encoder,
      built without fairseq's task, a linear layer and cross entropy, on the same sentences without
      parses. If the encoder needs parses, the loop has fairseq's own encoder.

    DATA is a data directory of ``--labels word --bpe none``. Sizes are for tagging: 2 layers, d=300, 6
    heads.

    Examples:
        python benchmarks/models.py labelling DATA --text ewt/train.en
        python benchmarks/models.py labelling DATA --steps 30 --encoder phrase_transformer
    """
    cfg = parse_flags(
        [
            options.data, "--task", "syntax_labelling", "--arch", "labeller",
            "--encoder", options.encoder, "--encoder-layers", "2", "--encoder-embed-dim", "300",
            "--encoder-ffn-embed-dim", "600", "--encoder-attention-heads", "6", "--dropout", "0.3",
            "--cpu", "--optimizer", "adam", "--lr", "1e-4",
            "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", *options.flags,
        ]
    )  # fmt: skip
    task = setup_task(cfg.task)
    model = task.build_model(cfg.model)
    print(describe_machine("cpu"))
    if options.text is not None:
        lines = list(read_lines(options.text))[: options.lines]
        labeller = Labeller([model], task, device="cpu", max_tokens=options.label_max_tokens)
        print(label_speed(labeller, lines, options.repeats))
    if options.steps:
        print(tagger_speed(cfg, task, model, options))


def label_speed(labeller: Labeller, lines: list[str], repeats: int) -> str:
    """Measure lines per second."""
    times = []
    for _ in range(1 + repeats):
        cpu, clock = time.process_time(), time.perf_counter()
        for _ in labeller.label(lines):
            pass
        times.append((time.process_time() - cpu, time.perf_counter() - clock))
    # The first run warms caches up.
    cpu, clock = (
        statistics.median(times_of_kind) for times_of_kind in zip(*times[1:], strict=True)
    )
    words = sum(len(line.split()) for line in lines) / len(lines)
    return (
        f"labelling: {len(lines) / cpu:,.0f} lines per second of CPU time, "
        f"{len(lines) / clock:,.0f} by the clock ({len(lines)} lines of {words:.1f} words)"
    )


def tagger_speed(cfg: Any, task: Task, model: Any, options: argparse.Namespace) -> str:
    """Measure training steps of a tagger."""
    task.load_dataset("train")
    dataset = task.dataset("train")
    without_parses = getattr(dataset, "dataset", dataset)
    batches = task.get_batch_iterator(dataset, max_tokens=options.max_tokens, seed=1).frozen_batches
    trained = Trained(cfg, task, model)
    plain = PlainTagger(cfg, task)
    optimizer = build_optimizer(cfg.optimizer, list(plain.parameters()))

    def step_of_task(batch: list[int]) -> None:
        trained.step(dataset.collater([dataset[index] for index in batch]), clip_norm=1.0)

    def step_of_loop(batch: list[int]) -> None:
        sample = without_parses.collater([without_parses[index] for index in batch])
        optimizer.zero_grad()
        plain(sample).backward()
        optimizer.multiply_grads(1 / sample["ntokens"])
        optimizer.clip_grad_norm(1.0)
        optimizer.step()

    def runs(number: int) -> list[Run]:
        batch = [int(index) for index in batches[number % len(batches)]]
        return [partial(step_of_task, batch), partial(step_of_loop, batch)]

    turns = in_turns(runs, options.steps, "cpu", warmup=2, unit="step")
    step_time, loop = (1e3 * turns.median(way) for way in range(2))
    return (
        f"training: {step_time:.0f} ms a step, a plain loop {loop:.0f} ms; speed divided by the loop's: "
        f"{turns.speed(0, 1):.3f}"
    )


class PlainTagger(nn.Module):
    """An encoder that does not read parses and a linear layer, without fairseq's task and criterion.

    Args:
        cfg: all of fairseq's options.
        task: has the dictionaries.
    """

    def __init__(self, cfg: Any, task: Task):
        super().__init__()
        nested = nested_config(cfg.model)
        if task.source_text.fields:
            nested.encoder_name = "transformer"
        labels = task.target_dictionary
        self.encoder = build_named_encoder(nested, task, task.source_dictionary)
        self.head = nn.Linear(300, len(labels))
        self.dropout = nn.Dropout(nested.dropout)
        self.loss = nn.CrossEntropyLoss(
            ignore_index=labels.pad(), reduction="sum", label_smoothing=0.1
        )

    def forward(self, sample: Sample) -> Tensor:
        """Return the loss of a batch, summed over words."""
        states = self.encoder(sample["net_input"]["src_tokens"])["encoder_out"][0][:-1]
        logits = self.head(self.dropout(states)).transpose(0, 1)
        return self.loss(logits.flatten(0, 1), sample["target"].flatten())


def add_labelling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`labelling`."""
    parser.add_argument("data", metavar="DATA")
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


ROBERTA = [
    "--activation-fn", "gelu", "--encoder-learned-pos", "--layernorm-embedding",
    "--no-scale-embedding", "--attention-dropout", "0.1",
]  # fmt: skip
OURS = ["--task", "syntax_pretraining", "--arch", "pretrainer", "--sample-break-mode", "none"]
#: The flags of each pre-training, and the row that it is compared with.
PRETRAINING: dict[str, tuple[list[str], str | None]] = {
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


def pretraining(options: argparse.Namespace) -> None:
    """Words per second of pre-training, compared with fairseq's ``masked_lm`` and ``transformer_lm``.

    All models have the same sizes, are built as fairseq-train builds them, and train on the same text. A
    step makes the batch, and is forward, backward and Adam. Columns: source tokens per second, and that
    number divided by another row's.

    Without DATA, the text is random words.

    Example:
        OMP_NUM_THREADS=1 python benchmarks/models.py pretraining --steps 15
    """
    logging.disable(logging.WARNING)
    names = list(PRETRAINING)
    with tempfile.TemporaryDirectory() as folder:
        data = options.data or random_data(Path(folder))
        models = [Pretrained(flags, data, options) for flags, _ in PRETRAINING.values()]

        def runs(number: int) -> list[Run]:
            return [partial(model.step, number + options.warmup) for model in models]

        turns = in_turns(runs, options.steps, options.device, warmup=options.warmup, unit="step")
    counts = zip(*(model.words[options.warmup :] for model in models), strict=True)
    per_word = Turns(
        [
            [time / count for time, count in zip(*pair, strict=True)]
            for pair in zip(turns.rows, counts, strict=True)
        ]
    )
    lines = []
    for way, (name, (_, base)) in enumerate(PRETRAINING.items()):
        ratio = f"{per_word.speed(way, names.index(base)):.3f}" if base else ""
        lines.append([name, f"{1 / per_word.median(way):.0f}", base or "", ratio])
    report(
        f"{describe_machine(options.device)}, float32, {options.layers} layers of width "
        f"{options.width}, blocks of {options.length} tokens, batches of {options.max_tokens}, median "
        f"of {options.steps} steps each, in turns",
        markdown_table(["model", "words/s", "compared with", "ratio"], lines, texts=1),
        options.out,
    )


class Pretrained:
    """A model in pre-training.

    Args:
        flags: its flags of fairseq-train.
        data: the data directory.
        options: sizes.

    Attributes:
        words: of each batch.
    """

    def __init__(self, flags: list[str], data: Path, options: argparse.Namespace):
        side = "decoder" if "transformer_lm" in flags else "encoder"
        sizes = {
            "embed-dim": options.width, "ffn-embed-dim": 4 * options.width,
            "attention-heads": options.heads, "layers": options.layers,
        }  # fmt: skip
        flags = [str(data), *flags, "--tokens-per-sample", str(options.length), "--seed", "1"]
        flags += [f"--{side}-{name}={size}" for name, size in sizes.items()]
        flags += ["--dropout", "0.1", "--optimizer", "adam", "--lr", "0.0005"]
        if side == "encoder":
            longest = "max-positions" if "roberta" in flags else "max-source-positions"
            flags += [f"--{longest}", str(options.length)]
        cfg = parse_flags(flags)
        utils.set_torch_seed(1)
        self.on_cuda = options.device.startswith("cuda")
        task = setup_task(cfg.task)
        self.trained = Trained(cfg, task, task.build_model(cfg.model).to(options.device))
        task.load_dataset("train")
        self.dataset = task.dataset("train")
        self.sentences = max(options.max_tokens // options.length, 1)
        self.words: list[int] = []

    def step(self, number: int) -> None:
        """Make a batch and train on it; steps with the same number have the same text."""
        self.dataset.set_epoch(number + 1)
        first = number * self.sentences % (len(self.dataset) - self.sentences)
        samples = [self.dataset[index] for index in range(first, first + self.sentences)]
        batch: Any = self.dataset.collater(samples)
        batch = utils.move_to_cuda(batch) if self.on_cuda else batch
        self.words.append(int(batch["ntokens"]))
        self.trained.step(batch, number)


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


def add_pretraining_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`pretraining`."""
    parser.add_argument(
        "data", nargs="?", type=Path, help="of fairseq-phrase-preprocess --only-source"
    )
    add_device(parser)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--length", type=int, default=64, help="tokens in a block")
    parser.add_argument("--max-tokens", type=int, default=1024, help="in a batch")
    add_steps(parser, 15)
    add_out(parser)


def huggingface(options: argparse.Namespace) -> None:
    """Training step of a model of transformers with relation biases, compared with the same model.

    A step is forward, backward and AdamW, on random sentences in random trees, each subword a word.

    Examples:
        python benchmarks/models.py huggingface                      BERT-base
        python benchmarks/models.py huggingface --type m2m_100 --layers 6 --sentences 4 --vectors
    """
    from fairseq_phrase.huggingface import add_relation_bias

    plain, biased = build_huggingface(options), build_huggingface(options)
    add_relation_bias(biased, options.kind, vectors=options.vectors)
    steps = [step_of(plain, has_biases=False), step_of(biased, has_biases=True)]

    def runs(number: int) -> list[Run]:
        batch = random_batch(options)
        return [partial(step, batch) for step in steps]

    turns = in_turns(runs, options.steps, options.device)
    lines = [
        [name, f"{1e3 * turns.median(way):.0f}", f"{turns.speed(way):.3f}"]
        for way, name in enumerate((options.type, f"{options.type}, relation biases"))
    ]
    report(
        f"{describe_machine(options.device)}, {options.sentences} sentences of {options.tokens} "
        f"tokens, median of {options.steps} steps each, in turns",
        markdown_table(["model", "ms per step", "speed"], lines, texts=1),
        options.out,
    )


def build_huggingface(options: argparse.Namespace) -> nn.Module:
    """Build the model, with random weights and the sizes of its type's default configuration."""
    import transformers

    config = transformers.AutoConfig.for_model(options.type)
    for name in ("num_hidden_layers", "encoder_layers", "decoder_layers"):
        if options.layers and hasattr(config, name):
            setattr(config, name, options.layers)
    return transformers.AutoModel.from_config(config).to(options.device).train()


def random_batch(options: argparse.Namespace) -> dict[str, Tensor]:
    """Draw sentences whose last quarter is padding in half of them, and their trees."""
    shape = options.sentences, options.tokens
    order = torch.arange(options.tokens)
    lengths = torch.full((options.sentences, 1), options.tokens)
    lengths[1::2] = options.tokens * 3 // 4
    mask = (order < lengths).long()
    # The head of a word is before it; the first word is the root.
    heads = (torch.rand(shape) * order).long()
    ids = torch.randint(5, 1000, shape)
    batch = {"input_ids": ids, "attention_mask": mask}
    batch["src_words"] = torch.where(mask.bool(), order, -1)
    batch["src_heads"] = torch.where(mask.bool(), heads, -1)
    return {name: tensor.to(options.device) for name, tensor in batch.items()}


def step_of(model: nn.Module, *, has_biases: bool) -> Callable[[dict[str, Tensor]], None]:
    """Return a function that trains the model on a batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(batch: dict[str, Tensor]) -> None:
        inputs = {n: t for n, t in batch.items() if has_biases or not n.startswith("src_")}
        if model.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = batch["input_ids"]
        model(**inputs)[0].square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def add_huggingface_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`huggingface`."""
    add_device(parser)
    parser.add_argument("--type", default="bert", help="a type of transformers' models")
    parser.add_argument("--layers", type=int, help="by default those of the type")
    parser.add_argument("--kind", default="both", choices=["tree", "sequence", "both"])
    parser.add_argument("--vectors", action="store_true", help="also a vector for each relation")
    parser.add_argument("--sentences", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="of the longest sentence")
    parser.add_argument("--steps", type=int, default=9, help="measured steps of each model")
    add_out(parser)


COMMANDS = {
    labelling: add_labelling_arguments,
    pretraining: add_pretraining_arguments,
    huggingface: add_huggingface_arguments,
    tree_lstm: add_tree_lstm_arguments,
}

if __name__ == "__main__":
    sys.exit(run_one_of(COMMANDS, __doc__))
