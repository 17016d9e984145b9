"""The number of kernels that a training step launches.

On a GPU, launches determine the time of small batches. The number is counted on the CPU. A dispatch mode
counts the operations of forward and backward that reach a device. Views, which only change shapes, and
allocations of memory are not counted. A fused operation (attention, layer norm) counts as one launch,
which is nearly true on a GPU. The optimizer's updates are not counted, because they depend only on the
parameters.

Columns: launches of the whole step, of the forward pass, of the work once per batch (made from the
parse), and how many more than fairseq's Transformer.

Examples:
    python benchmarks/launches.py
    python benchmarks/launches.py --models phrase --most 15
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from typing import Any

from machine import describe_machine
from models import Built, add_arguments, build_models, load_dataset
from torch.utils._python_dispatch import TorchDispatchMode

#: Operations that only allocate or describe, without a launch.
FREE = {
    "aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided",
    "aten::new_empty_strided", "aten::_local_scalar_dense", "aten::lift_fresh", "aten::detach",
    "aten::_unsafe_view", "aten::alias", "aten::_reshape_alias", "aten::is_same_size",
    "aten::sym_size", "aten::item", "aten::_has_compatible_shallow_copy_type",
}  # fmt: skip


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
        if not function.is_view and name not in FREE:
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def count(built: Built, sample: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """Count the launches of one training step.

    Returns:
        The launches of forward and backward, and the launches of the forward pass only.
    """
    built.model.train()
    criterion = built.task.build_criterion(built.cfg.criterion)
    with LaunchCounter() as forward:
        loss, _, _ = criterion(built.model, built.own_inputs(sample))
    with LaunchCounter() as backward:
        loss.backward()
    return forward.counts + backward.counts, forward.counts


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--most", type=int, default=0, help="list the most frequent operations")
    options = parser.parse_args()
    models = build_models(options)
    dataset = load_dataset(models, "valid", options)
    sample = dataset.collater([dataset[index] for index in range(8)])
    print(describe_machine(options.device))
    print("\n| model | launches | forward | against the Transformer |\n|---|--:|--:|--:|")
    listed, base = [], 0
    for built in models:
        step, forward = count(built, sample)
        base = base or step.total()
        print(
            f"| {built.name} | {step.total():,} | {forward.total():,} | {step.total() - base:+,} |"
        )
        listed.append((built.name, step))
    for name, step in listed if options.most else []:
        print(f"\n{name}: " + ", ".join(f"{op} {n}" for op, n in step.most_common(options.most)))


if __name__ == "__main__":
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    sys.exit(main())
