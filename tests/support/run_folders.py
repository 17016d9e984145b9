"""Run folders as fairseq leaves them, in the formats of fairseq-fixed 0.12.3.1 to the letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 11, 20, 22, 44, 38)
GPU_BANNER = "***********************CUDA enviroments for all {} workers***********************"


class LogWriter:
    """Writes what fairseq-train logs.

    Args:
        style: ``simple``, ``json``, or ``hydra`` (fairseq-hydra-train with the simple format).
        start: the time of the first line.
    """

    def __init__(self, style: str = "simple", start: datetime = START):
        self.style, self.time, self.lines = style, start, []

    def line(self, logger: str, text: str, seconds: float = 0) -> None:
        """Add a line, some time after the one before it."""
        self.time += timedelta(seconds=seconds)
        stamp = f"{self.time:%Y-%m-%d %H:%M:%S}"
        if self.style == "hydra":
            self.lines.append(f"[{stamp},123][{logger}][INFO] - {text}")
        else:
            self.lines.append(f"{stamp} | INFO | {logger} | {text}")

    def head(
        self, seed: int = 1, parameters: int = 1506304, gpus: int = 0, devices: int = 1,
        resumed_at: int | None = None, best: str = "loss", sentences: str = "29,000",
    ) -> None:  # fmt: skip
        """Begin a session."""
        self.line(
            "fairseq.tasks.text_to_speech", "Please install tensorboardX: pip install tensorboardX"
        )
        config = f"'common': {{'_name': None, 'log_interval': 10, 'seed': {seed}, 'cpu': False}}"
        config += f", 'checkpoint': {{'_name': None, 'best_checkpoint_metric': '{best}'}}"
        self.line("fairseq_cli.train", f"{{'_name': None, {config}, 'criterion': None}}")
        self.line("fairseq_cli.train", "TransformerModel(")
        self.lines += ["  (encoder): TransformerEncoderBase(", "  )", ")"]
        trained = f"{parameters:,} (num. trained: {parameters:,})"
        self.line("fairseq_cli.train", f"num. shared model params: {trained}")
        self.line("fairseq_cli.train", "num. expert model params: 0 (num. trained: 0)")
        if gpus:
            self.line("fairseq.utils", GPU_BANNER.format(gpus))
            for rank in range(gpus):
                self.line(
                    "fairseq.utils",
                    f"rank {rank:3d}: capabilities =  9.0  ; total memory = 139.720 GB ; name = "
                    f"{'NVIDIA H200':40s}",
                )
            self.line("fairseq.utils", GPU_BANNER.format(gpus))
        self.line("fairseq_cli.train", f"training on {gpus or devices} devices (GPUs/TPUs)")
        for split, count in (("valid", "1,014"), ("train", sentences)):
            for language in ("de", "en"):
                text = f"loaded {count} examples from: data/bpe-training/{split}.de-en.{language}"
                self.line("fairseq.data.data_utils", text)
        checkpoint = "runs/transformer/checkpoint_last.pt"
        if resumed_at is None:
            self.line("fairseq.trainer", f"No existing checkpoint found {checkpoint}")
        else:
            self.line(
                "fairseq.trainer",
                f"Loaded checkpoint {checkpoint} (epoch 1 @ {resumed_at} updates)",
            )

    def train_inner(self, update: int, wps: float, seconds: float = 5) -> None:
        numbers = {"loss": "5.1", "ppl": "12.5", "wps": f"{wps:g}", "num_updates": str(update),
                   "lr": "2.5e-05", "train_wall": "5", "wall": "99"}  # fmt: skip
        if self.style == "json":
            text = json.dumps({"epoch": 1, "update": 0.125, **numbers})
        else:
            pairs = ", ".join(f"{name}={value}" for name, value in numbers.items())
            text = f"epoch 001:  {update:5d} / 289 {pairs}"
        self.line("train_inner", text, seconds)

    def valid(self, update: int, loss: float, bleu: float | None = None) -> None:
        numbers = {"loss": f"{loss:g}", "ppl": f"{round(2**loss, 2):g}", "wps": "8697.8"}
        numbers |= {} if bleu is None else {"bleu": f"{bleu:g}"}
        numbers["num_updates"] = str(update)
        if self.style == "json":
            text = json.dumps(
                {"epoch": 1, **{f"valid_{name}": number for name, number in numbers.items()}}
            )
        else:
            pairs = " | ".join(f"{name} {value}" for name, value in numbers.items())
            text = f"epoch 001 | valid on 'valid' subset | {pairs}"
        self.line("valid", text)

    def epoch(self, update: int, wps: float = 3157.6) -> None:
        numbers = {"loss": "3.9", "wps": f"{wps:g}", "num_updates": str(update), "train_wall": "145",
                   "wall": "60"}  # fmt: skip
        if self.style == "json":
            text = json.dumps(
                {"epoch": 1, **{f"train_{name}": number for name, number in numbers.items()}}
            )
        else:
            text = "epoch 001 | " + " | ".join(f"{name} {value}" for name, value in numbers.items())
        self.line("train", text)

    def done(self) -> None:
        self.line("fairseq_cli.train", "done training in 10.2 seconds")

    def write(self, path: Path) -> Path:
        path.write_text("\n".join(self.lines) + "\n")
        return path


def write_generation(
    path: Path, hypotheses: Sequence[str], sources: Sequence[str], targets: Sequence[str], *,
    subset: str = "test", beam: int = 5, speed: float | None = None,
) -> Path:  # fmt: skip
    """Write what fairseq-generate prints, and beside it what it logs."""
    lines = []
    # It sorts by length, so that the order is none.
    for index in sorted(range(len(hypotheses)), key=lambda number: (len(sources[number]), number)):
        lines += [f"S-{index}\t{sources[index]}", f"T-{index}\t{targets[index]}",
                  f"H-{index}\t-0.5\t▁{hypotheses[index].replace(' ', ' ▁')}",
                  f"D-{index}\t-0.5\t{hypotheses[index]}", f"P-{index}\t-0.1 -0.2"]  # fmt: skip
    lines.append(
        f"Generate {subset} with beam={beam}: BLEU4 = 28.43, 60.2/36.5/23.5/15.1 (BP=0.957)"
    )
    path.write_text("\n".join(lines) + "\n")
    if speed is not None:
        count = len(hypotheses)
        path.with_suffix(".log").write_text(
            "INFO:fairseq_cli.generate:{'_name': None, 'dataset': {'_name': None, 'num_workers': 1, "
            "'max_tokens': None, 'batch_size': 100, 'required_batch_size_multiple': 8}}\n"
            "INFO:fairseq_cli.generate:NOTE: hypothesis and token scores are output in base 2\n"
            f"INFO:fairseq_cli.generate:Translated {count:,} sentences (10,013 tokens) in "
            f"{count / speed:.1f}s ({speed:.2f} sentences/s, 308.10 tokens/s)\n"
        )
    return path


def write_interactive(path: Path, sentences: int, seconds: float) -> None:
    """Write what fairseq-interactive prints, and beside it what it logs."""
    path.write_text(
        "".join(f"S-{i}\tx\nW-{i}\t0.004\tseconds\nD-{i}\t-0.5\ty\n" for i in range(sentences))
    )
    path.with_suffix(".log").write_text(
        f"INFO:fairseq_cli.interactive:Total time: {seconds:.3f} seconds; translation time: 0.144\n"
    )


def write_run(
    folder: Path, hypotheses: Sequence[str], sources: Sequence[str], targets: Sequence[str], *,
    seed: int = 1, parameters: int = 1506304, gpus: int = 0, done: bool = True, best: str = "loss",
) -> Path:  # fmt: skip
    """Write a whole run: a training of 20 updates in 10 s, and its translations at 20 sentences/s."""
    folder.mkdir(parents=True)
    log = LogWriter()
    log.head(seed, parameters, gpus, best=best)
    log.train_inner(10, 3000)
    log.valid(10, 6.0, bleu=10.0)
    log.train_inner(20, 4000)
    log.valid(20, 5.0 + seed / 10, bleu=20.0)
    log.epoch(20)
    if done:
        log.done()
    log.write(folder / "train.log")
    write_generation(folder / "generate-test.txt", hypotheses, sources, targets, speed=20.0)
    return folder
