"""What a training step consists of: operations, launches of kernels, waits of the host for the device.

The models are those of ``training.py step``.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measuring import describe_machine, report, run_one_of, seconds, synchronize
from torch import Tensor, _dynamo
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from translation_models import (
    Built,
    Sample,
    Trained,
    add_arguments,
    add_batches,
    build_models,
    load_batches,
    load_dataset,
)

import fairseq_phrase
from fairseq_phrase.text import markdown_table

_LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
#: Operations that only allocate or describe, without a launch.
_FREE = {
    "aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided",
    "aten::new_empty_strided", "aten::_local_scalar_dense", "aten::lift_fresh", "aten::detach",
    "aten::_unsafe_view", "aten::alias", "aten::_reshape_alias", "aten::is_same_size",
    "aten::sym_size", "aten::item", "aten::_has_compatible_shallow_copy_type",
}  # fmt: skip
#: Operations whose result has a shape, or is a number, that the host must know.
_WAITING = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::masked_select",
    "aten::nonzero", "aten::bincount", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave",
}  # fmt: skip
_PROJECT = str(Path(fairseq_phrase.__file__).parent)

#: Measures a model's steps on batches; returns its line of the table, and details to print.
Measure = Callable[[str, Trained, list[Sample], argparse.Namespace], tuple[list[str], str]]


def operations(options: argparse.Namespace) -> None:
    """Milliseconds, kernels launched, and the slowest operations of a step (torch.profiler).

    Example:
        python benchmarks/step_profile.py operations --device cuda --dtype bfloat16 --size base
    """
    headings = ["model", "ms per step", "launches", "ms on the device"]
    measure_models(profile_step, headings, "", options)


def profile_step(
    name: str, trained: Trained, batches: list[Sample], options: argparse.Namespace
) -> tuple[list[str], str]:
    """Profile one step; see :data:`Measure`."""
    on_cuda = options.device.startswith("cuda")
    sample = batches[0]
    time = milliseconds(trained, sample, options)
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_cuda]
    with profile(activities=kinds) as record:
        trained.step(sample)
        synchronize(torch.device(options.device))
    events = record.key_averages()
    launches = sum(event.count for event in events if event.key in _LAUNCHES)
    busy = sum(event.self_device_time_total for event in events) / 1e3
    order = "self_device_time_total" if on_cuda else "self_cpu_time_total"
    table = events.table(sort_by=order, row_limit=options.most, max_name_column_width=60)
    line = [name, f"{time:.1f}", str(launches), f"{busy:.1f}"]
    return line, f"### {name}\n\n```\n{table}\n```"


def compiled(options: argparse.Namespace) -> None:
    """Effect of torch.compile on training steps over batches of different shapes.

    Every layer of the encoder and of the decoder is compiled in place, with dynamic shapes. The batches
    are trained on without compilation, then twice with it; the last round is timed.

    Columns: milliseconds per step without and with compilation, graph breaks (their reasons are listed),
    graphs that were made, and the seconds of the first step and of the whole first round, which compile.
    If a model cannot be compiled, its line gives the reason.

    Example:
        python benchmarks/step_profile.py compiled --models "relation bias, tree" tree
    """
    headings = [
        "model", "ms per step", "compiled", "gain", "graph breaks", "graphs", "first step, s",
        "first round, s, or error",
    ]  # fmt: skip
    conditions = f", {options.batches} batches, backend {options.backend}"
    measure_models(compiled_steps, headings, conditions, options)


def compiled_steps(
    name: str, trained: Trained, batches: list[Sample], options: argparse.Namespace
) -> tuple[list[str], str]:
    """Time steps without compilation, then of compiled layers; see :data:`Measure`."""
    device = torch.device(options.device)

    def one_round() -> list[float]:
        return [seconds(partial(trained.step, batch), device) for batch in batches]

    one_round()
    before = 1e3 * statistics.mean(one_round())
    _dynamo.reset()
    _dynamo.config.cache_size_limit = 64  # layers differ in attributes, batches in what they lack
    counters.clear()
    try:
        for layer in [*trained.model.encoder.layers, *trained.model.decoder.layers]:
            layer.compile(backend=options.backend, dynamic=True)
        begin = time.perf_counter()
        trained.step(batches[0])
        first = time.perf_counter() - begin
        one_round()
        total = time.perf_counter() - begin
        after = 1e3 * statistics.mean(one_round())
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return [name, f"{before:.1f}", *[""] * 5, reason], ""
    breaks: Counter[str] = counters["graph_break"]
    reasons = "\n".join(
        f"- {name}: {count} × {' '.join(why.split())[:200]}" for why, count in breaks.most_common(5)
    )
    graphs = counters["stats"]["unique_graphs"]
    times = [f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f}"]
    line = [name, *times, str(breaks.total()), str(graphs), f"{first:.0f}", f"{total:.0f}"]
    return line, reasons


def milliseconds(
    trained: Trained, sample: Sample, options: argparse.Namespace, warmup: int = 2
) -> float:
    """Return the median time of a step."""
    device = torch.device(options.device)
    times = [seconds(lambda: trained.step(sample), device) for _ in range(warmup + options.steps)]
    return 1e3 * statistics.median(times[warmup:])


def measure_models(
    measure: Measure, headings: list[str], conditions: str, options: argparse.Namespace
) -> None:
    """Measure all models; every line is printed when it is complete."""
    built = build_models(options)
    batches = load_batches(built, options)
    words = statistics.mean(batch["ntokens"] for batch in batches)
    conditions = (
        f"{describe_machine(options.device)}, {options.dtype}, size {options.size}, batches of "
        f"{words:.0f} words{conditions}"
    )
    lines = []
    for model in built:
        trained = Trained(model.cfg, model.task, model.model)
        line, details = measure(model.name, trained, [*map(model.own_inputs, batches)], options)
        lines.append(line)
        print(*line, details, "", sep="\n" if details else " | ", flush=True)
    report(conditions, markdown_table(headings, lines, texts=1))


def add_profile_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`operations`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=4096)
    parser.add_argument("--steps", type=int, default=9, help="timed steps")
    parser.add_argument("--most", type=int, default=12, help="operations in a model's table")


def add_compiled_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`compiled`."""
    add_arguments(parser)
    add_batches(parser, max_tokens=4096, batches=50)
    parser.add_argument("--backend", default="inductor", help="of torch.compile")


def launches(options: argparse.Namespace) -> None:
    """Number of kernels that a whole update launches.

    On a GPU, launches determine the time of small batches. The number is counted on the CPU. A dispatch
    mode counts the operations that reach a device. Views, which only change shapes, and allocations of
    memory are not counted. A fused operation (attention, layer norm, Adam of all parameters) counts as
    one launch, which is nearly true on a GPU.

    Columns: launches of the whole update, of the forward and the backward pass, of the rest (scaling and
    clipping of gradients, Adam, copies of half precision); how many more than fairseq's Transformer's
    forward and backward pass; and the whole update as fairseq computes it.

    Examples:
        python benchmarks/step_profile.py launches
        python benchmarks/step_profile.py launches --dtype bfloat16
        python benchmarks/step_profile.py launches --models phrase --most 15
    """
    models = build_models(options)
    dataset = load_dataset(models, "valid", options)
    sample = dataset.collater([dataset[index] for index in range(8)])
    lines, most = [], []
    base = None
    for built in models:
        stock = count_launches(built, sample, True)
        forward, backward, further = counts = count_launches(built, sample, False)
        step = forward.total() + backward.total()
        base = step if base is None else base
        lines.append(
            [
                built.name, f"{step + further.total():,}", f"{forward.total():,}",
                f"{backward.total():,}", f"{further.total():,}", f"{step - base:+,}",
                f"{sum(part.total() for part in stock):,}",
            ]
        )  # fmt: skip
        frequent = sum(counts, Counter()).most_common(options.most)
        most.append(f"{built.name}: {', '.join(f'{op} {n}' for op, n in frequent)}\n")
    headings = [
        "model",
        "update",
        "forward",
        "backward",
        "rest",
        "against the Transformer",
        "fairseq's",
    ]
    conditions = f"{describe_machine(options.device)}, {options.dtype}, size {options.size}"
    report(conditions, markdown_table(headings, lines, texts=1))
    print(*most if options.most else (), sep="\n")


def count_launches(built: Built, sample: Sample, is_fairseqs: bool) -> list[Counter[str]]:
    """Count the launches of an update's forward pass, backward pass and rest, by operation.

    Args:
        is_fairseqs: whether with fairseq's own update.
    """
    built.task.cfg.fairseq_update = is_fairseqs
    trained, inputs = Trained(built.cfg, built.task, built.model), built.own_inputs(sample)
    trained.step(inputs, clip_norm=1.0)  # which makes Adam's state
    trained.optimizer.zero_grad()
    with LaunchCounter() as forward:
        loss, sample_size, _ = trained.criterion(trained.model, inputs)
    with LaunchCounter() as backward:
        trained.optimizer.backward(loss)
    with LaunchCounter() as further:
        trained.optimizer.multiply_grads(1 / sample_size)
        trained.optimizer.clip_grad_norm(1.0)
        trained.optimizer.step()
        trained.optimizer.zero_grad()
    return [forward.counts, backward.counts, further.counts]


class LaunchCounter(TorchDispatchMode):
    """Count the operations that launch a kernel.

    Attributes:
        counts: launches by operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        """Count an operation and run it."""
        name = function._schema.name
        if not function.is_view and name not in _FREE:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def add_launch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`launches`."""
    add_arguments(parser)
    parser.add_argument("--most", type=int, default=0, help="list the most frequent operations")


class Waits:
    """Counts of waits, by line of code.

    Attributes:
        lines: waits of all code; a line is named ``file.py:12``.
        own: waits of this project's code only.
    """

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.own: Counter[str] = Counter()

    def record(self) -> None:
        """Count a wait for the innermost line of this project or of fairseq."""
        for frame in reversed(traceback.extract_stack()):
            path = Path(frame.filename)
            is_own = frame.filename.startswith(_PROJECT)
            if is_own or "fairseq" in path.parts or "fairseq_cli" in path.parts:
                line = f"{path.name}:{frame.lineno}"
                self.lines[line] += 1
                self.own[line] += is_own
                break
        self.own += Counter()  # without zeros


class _Dispatched(TorchDispatchMode):
    """Records the operations that would wait."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        name = function._schema.name
        by_mask = name in ("aten::index", "aten::index_put_", "aten::index_put") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if name in _WAITING or by_mask:
            self.waits.record()
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def count_waits(device: str) -> Iterator[Waits]:
    """Count the waits for the device in a block, by the line of code that causes them.

    On CUDA, torch itself reports them (``torch.cuda.set_sync_debug_mode``). Elsewhere a dispatch mode
    and a few patched methods count the operations that would wait on CUDA. They miss copies from the
    host, and code that differs on CUDA. Conversions to NumPy arrays are not counted: only CPU tensors
    allow them.
    """
    waits = Waits()
    if device.startswith("cuda"):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            show = warnings.showwarning

            def record(message: Any, *args: Any, **kwargs: Any) -> None:
                if "synchronizing" in str(message):
                    waits.record()
                else:
                    show(message, *args, **kwargs)

            warnings.showwarning = record
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield waits
            finally:
                torch.cuda.set_sync_debug_mode(before)
                warnings.showwarning = show
        return
    with contextlib.ExitStack() as patches:
        for name in ("tolist", "cpu"):
            method = getattr(Tensor, name)

            def waiting(self: Tensor, *args: Any, _method: Any = method, **kwargs: Any) -> Any:
                waits.record()
                return _method(self, *args, **kwargs)

            patches.enter_context(mock.patch.object(Tensor, name, waiting))
        patches.enter_context(_Dispatched(waits))
        yield waits


COMMANDS = {
    operations: add_profile_arguments,
    compiled: add_compiled_arguments,
    launches: add_launch_arguments,
}

if __name__ == "__main__":
    sys.exit(run_one_of(COMMANDS, __doc__))
