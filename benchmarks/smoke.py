"""Check that every encoder works on this device: a table with one line for each row of the encoders.

Each model (sizes of ``--size``) trains with ``--checkpoint-activations`` by fairseq's own trainer in each
precision and then translates. Columns:

- ``fp32``, ``bf16``, ``fp16``: loss before and after the updates,
- ``values``, ``gradients``: errors of float32 here against float64 on the CPU, ‖x − reference‖ /
  ‖reference‖, of the encoder's output and the largest of all parameters' gradients,
- ``waits``: how often this project's code lets the host wait for the device in a training step (on a CPU:
  how often it would wait), and how often fairseq's code does,
- ``waits, decoding``: the same for each step of beam search, at most,
- ``problem``: the failure; the exit status is then 1.

The first line is attention with masked keys in bfloat16, at lengths and scores at which a kernel of cuDNN
had NaN in its gradients; its errors are relative to float64 on the CPU, too.

With --out, each line is written when it is complete, and a second run resumes after the last line.

Examples:
    python benchmarks/smoke.py --device cuda --out smoke.jsonl
    python benchmarks/smoke.py --device cpu --size tiny --models tree --updates 2
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.sequence_generator import SequenceGenerator
from fairseq.trainer import Trainer
from measuring import describe_machine, report, run_command
from step_profile import count_waits
from torch import Tensor
from translation_models import (
    Built,
    Sample,
    add_arguments,
    build,
    chosen_models,
    load_dataset,
    random_dataset,
    row_flags,
    write_dictionaries,
)

from fairseq_phrase.methods.common.biased_attention import biased_attention
from fairseq_phrase.methods.common.tensors import infinite
from fairseq_phrase.repairs.patches import patch_fairseq
from fairseq_phrase.text import markdown_table

PRECISIONS = ("fp32", "bf16", "fp16")
TOLERANCE = 1e-3
TARGET_LENGTH = 12
ATTENTION, LENGTHS = "attention", (64, 192, 320)
SCORE, BF16_TOLERANCE = -120.0, 0.03
_drawn: dict[frozenset[str], Sample] = {}  # by the parses that a model needs


def check(name: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """Check one model.

    Returns:
        Its line: the measurements, and the failures under ``problems``.
    """
    line: dict[str, Any] = {"model": name, "problems": []}
    begin = time.perf_counter()
    for part in (*options.precisions, "errors", "waits"):
        try:
            if part == "errors":
                # ReLU's gradient jumps where rounding moves a number over 0.
                line |= errors(plain(name, data, options, "--activation-fn", "gelu"), options)
            elif part == "waits":
                line |= waits(plain(name, data, options), options)
            else:
                line[part] = trained(name, part, data, options)
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            line["problems"].append(f"{part}: {type(error).__name__} in {where}: {error}"[:300])
    if max(line.get("values", 0.0), line.get("gradients", 0.0)) > TOLERANCE:
        line["problems"].append("errors beyond the tolerance")
    return line | {"seconds": round(time.perf_counter() - begin, 1)}


def check_attention(options: argparse.Namespace) -> dict[str, Any]:
    """Check attention with a mask in bfloat16 whose scores are near :data:`SCORE`; return its line."""
    line: dict[str, Any] = {"model": ATTENTION, "values": 0.0, "gradients": 0.0, "problems": []}
    begin = time.perf_counter()
    patch_fairseq()  # as for every training: without cuDNN's attention
    for tokens in LENGTHS:
        actual, reference = (
            attend(tokens, device, dtype)
            for device, dtype in ((options.device, torch.bfloat16), ("cpu", torch.float64))
        )
        value, *gradients = map(relative_error, actual, reference, [0.0] * 4)
        line["values"] = max(line["values"], value)
        line["gradients"] = max(line["gradients"], *gradients)
        if max(value, *gradients) > BF16_TOLERANCE:
            line["problems"].append(
                f"{tokens} tokens: errors beyond the tolerance; see docs/gpu.md"
            )
    return line | {"seconds": round(time.perf_counter() - begin, 1)}


def attend(tokens: int, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return the output and the gradients of queries, keys and values, for the same random states."""
    rng = torch.Generator().manual_seed(tokens)
    states = torch.randn(
        4, 2, 4, tokens, 64, generator=rng
    )  # (…, batch, heads, tokens, head width)
    # A product of constants in one dimension is the mean score.
    states[0, ..., 0], states[1, ..., 0] = 32.0, SCORE * math.sqrt(64) / 32
    query, key, value, gradient = states.bfloat16().to(device, dtype)
    inputs = [state.requires_grad_() for state in (query, key, value)]
    lengths = torch.tensor([tokens, tokens - tokens // 3], device=device)
    is_token = torch.arange(tokens, device=device) < lengths[:, None]
    attended, _ = biased_attention(*inputs, infinite(~is_token, dtype)[:, None, None])
    return [attended.detach(), *torch.autograd.grad(attended, inputs, gradient)]


def plain(name: str, data: str, options: argparse.Namespace, *flags: str) -> Built:
    """Build a model in float32, without checkpointed activations."""
    torch.manual_seed(1)
    return build(name, [*row_flags(name, options), *flags], data, options)


def draw(built: Built, options: argparse.Namespace) -> Sample:
    """Draw one batch of sentences of different lengths, on the device, with the model's parses only."""
    parses = frozenset(built.parses)
    if parses not in _drawn:
        if options.data:
            dataset = load_dataset([built], options.subset, options)
        else:
            dataset = random_dataset(built.task, options.length, options.sentences)
        _drawn[parses] = dataset.collater([dataset[i] for i in range(options.sentences)])
    sample = built.own_inputs(_drawn[parses])
    return utils.move_to_cuda(sample) if options.device.startswith("cuda") else sample


def trained(name: str, precision: str, data: str, options: argparse.Namespace) -> list[float]:
    """Train and translate; return the loss of the first and of the last update."""
    flags = ["--checkpoint-activations", "--fp16-init-scale", "4"]
    flags += [] if precision == "fp32" else [f"--{precision}"]
    torch.manual_seed(1)
    built = build(name, [*row_flags(name, options), *flags], data, options)
    sample = draw(built, options)
    criterion = built.task.build_criterion(built.cfg.criterion)
    if precision != "fp32" and not options.device.startswith("cuda"):
        # fairseq's trainer needs a GPU for these precisions. On a CPU the trainer is left out.
        built.model.to(dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
        loss = criterion(built.model.train(), sample)[0]
        loss.backward()
        translate(built, sample)
        return [round(float(loss), 3)]
    trainer = Trainer(built.cfg, built.task, built.model, criterion)
    losses = []
    for _ in range(options.updates):
        log = trainer.train_step([sample])
        losses.append(float(log["loss"]) if log else math.nan)
        assert log is None or math.isfinite(losses[-1]), f"the loss is {losses[-1]}"
    there = [loss for loss in losses if math.isfinite(loss)]  # without updates that overflowed
    assert there, "every update overflowed"
    assert len(there) < 10 or there[-1] < there[0], f"the loss rose: {there[0]} to {there[-1]}"
    translate(built, sample)
    return [round(there[0], 3), round(there[-1], 3)]


def translate(built: Built, sample: Sample, beam: int = 5) -> None:
    """Translate a batch by beam search."""
    generator = SequenceGenerator(
        [built.model.eval()], built.task.target_dictionary, beam_size=beam,
        max_len_a=0, max_len_b=TARGET_LENGTH,
    )  # fmt: skip
    with torch.no_grad():
        generated = generator.generate([built.model], sample)
    assert len(generated) == len(sample["net_input"]["src_tokens"]), "a sentence has no translation"
    assert all(math.isfinite(float(hypotheses[0]["score"])) for hypotheses in generated), "no score"


def errors(built: Built, options: argparse.Namespace) -> dict[str, float]:
    """Compare values and gradients with the same model's in float64 on the CPU."""
    sample = draw(built, options)
    model = built.model.eval()  # without dropout
    reference = copy.deepcopy(model).cpu().double()
    criterion = built.task.build_criterion(built.cfg.criterion)
    results = [
        run(variant, criterion, to_cpu(sample) if variant is reference else sample)
        for variant in (model, reference)
    ]
    (value, gradients), (true_value, true_gradients) = results
    largest = max(float(gradient.norm()) for gradient in true_gradients)
    # A gradient that is only rounding (of a key's bias) is compared with 1% of the largest gradient.
    return {
        "values": relative_error(value, true_value, 0.0),
        "gradients": max(
            relative_error(gradient, true_gradient, 1e-2 * largest)
            for gradient, true_gradient in zip(gradients, true_gradients, strict=True)
        ),
    }


def run(model: Any, criterion: Any, sample: Sample) -> tuple[Tensor, list[Tensor]]:
    """Return the encoder's output and the gradients of all parameters that have one."""
    net_input = {k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"}
    encoded = model.encoder(**net_input)
    # A GPU may pad more nodes than a CPU, because only the CPU can count them without a wait.
    real = encoded["encoder_out"][0].transpose(0, 1)[~encoded["encoder_padding_mask"][0]]
    model.zero_grad()
    criterion(model, sample)[0].backward()
    return real.detach(), [p.grad for p in model.parameters() if p.grad is not None]


def relative_error(found: Tensor, reference: Tensor, floor: float) -> float:
    """Return ‖found − reference‖ / max(‖reference‖, floor)."""
    difference = found.detach().cpu().double() - reference
    error = float(difference.norm() / max(float(reference.norm()), floor, 1e-30))
    return error if math.isfinite(error) else math.inf


def to_cpu(sample: Sample) -> Sample:
    """Copy a batch to the CPU."""
    return utils.apply_to_sample(lambda tensor: tensor.cpu(), sample)


def waits(built: Built, options: argparse.Namespace) -> dict[str, Any]:
    """Count where the host waits, in a training step and in each step of beam search."""
    sample = draw(built, options)
    criterion = built.task.build_criterion(built.cfg.criterion)
    built.model.train()
    criterion(built.model, sample)[0].backward()  # includes work that is done only once
    with count_waits(options.device) as step:
        criterion(built.model, sample)[0].backward()
    with count_waits(options.device) as encoded, torch.no_grad():
        net_input = {k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"}
        built.model.eval().encoder(**net_input)
    with count_waits(options.device) as decoding:
        translate(built, sample)
    per_step = (decoding.own - encoded.own).total() / TARGET_LENGTH
    return {
        "waits_step": dict(step.own),
        "waits_decoding": round(per_step, 1),
        "waits_fairseq": (step.lines - step.own).total(),
    }


def table(lines: list[dict[str, Any]]) -> str:
    """Format the lines in Markdown."""
    headings = [
        "model", *PRECISIONS, "values", "gradients", "waits", "fairseq's", "waits, decoding", "seconds",
        "problem",
    ]  # fmt: skip
    cells = []
    for line in lines:
        losses = [" → ".join(map(str, line.get(p, []))) for p in PRECISIONS]
        numbers = [f"{line[k]:.1e}" if k in line else "" for k in ("values", "gradients")]
        step = sum(line["waits_step"].values()) if "waits_step" in line else ""
        more = [
            str(step),
            str(line.get("waits_fairseq", "")),
            str(line.get("waits_decoding", "")),
            str(line["seconds"]),
        ]
        cells.append([line["model"], *losses, *numbers, *more, "; ".join(line["problems"])])
    waits = "\n".join(
        f"- {line['model']}: " + ", ".join(f"{k} ({n})" for k, n in line["waits_step"].items())
        for line in lines
        if line.get("waits_step")
    )
    return markdown_table(headings, cells, texts=1) + (
        f"\n\nThis project's waits in a training step, by line:\n\n{waits}" if waits else ""
    )


def add_smoke_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_arguments(parser)
    parser.set_defaults(size="tiny")
    parser.add_argument("--subset", default="valid", help="split of DATA that batches come from")
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--sentences", type=int, default=16, help="in the batch")
    parser.add_argument("--out", type=Path, help="write lines here, as JSON; done ones are kept")


def smoke(options: argparse.Namespace) -> int:
    """Check all models and print the table."""
    finished = options.out.read_text().splitlines() if options.out and options.out.exists() else []
    lines = [json.loads(line) for line in finished]
    names = [ATTENTION, *chosen_models(options)]
    with tempfile.TemporaryDirectory() as folder:
        if not options.data:
            write_dictionaries(folder, options)
        for name in names:
            if name in {line["model"] for line in lines}:
                continue
            if name == ATTENTION:
                lines.append(check_attention(options))
            else:
                lines.append(check(name, options.data or folder, options))
            if options.out:
                with open(options.out, "a") as out:
                    out.write(json.dumps(lines[-1]) + "\n")
    report(f"{describe_machine(options.device)}, size {options.size}", table(lines))
    return int(any(line["problems"] for line in lines))


if __name__ == "__main__":
    sys.exit(run_command(smoke, add_smoke_arguments, __doc__))
