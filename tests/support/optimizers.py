"""Optimizers as fairseq's trainer builds them, from flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from fairseq import optim, options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from torch import nn

SHAPES = ((7, 5), (5,), (), (3, 2, 4))


def configuration(*flags: str) -> Any:
    """All of fairseq's options of a training."""
    parser = options.get_training_parser()
    train_arguments = [
        "data",
        "--arch",
        "transformer",
        "--optimizer",
        "adam",
        "--lr",
        "0.01",
        "--cpu",
    ]
    arguments = options.parse_args_and_arch(parser, [*train_arguments, *flags])
    return convert_namespace_to_omegaconf(arguments)


def make_parameters(
    dtype: torch.dtype = torch.float32, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[nn.Parameter]:
    """The same random parameters in every call."""
    rng = torch.Generator().manual_seed(1)
    return [
        nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype))
        for shape in shapes
    ]


def make_gradients(
    parameters: Sequence[nn.Parameter], steps: int, seed: int = 2
) -> list[list[torch.Tensor]]:
    """Random gradients for each step."""
    rng = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(p.shape, generator=rng, dtype=torch.float64).to(p.dtype) for p in parameters]
        for _ in range(steps)
    ]


def build_optimizer(parameters: Sequence[nn.Parameter], *flags: str) -> Any:
    """The optimizer that fairseq's trainer builds."""
    cfg, common = (cfg_of_all := configuration(*flags)).optimizer, cfg_of_all.common
    if common.memory_efficient_fp16 or common.memory_efficient_bf16:
        return optim.MemoryEfficientFP16Optimizer.build_optimizer(cfg_of_all, parameters)
    if common.amp:
        return optim.AMPOptimizer.build_optimizer(cfg_of_all, parameters)
    if common.fp16 or common.bf16:
        return optim.FP16Optimizer.build_optimizer(cfg_of_all, parameters)
    return optim.build_optimizer(cfg, parameters)


def update(
    optimizer: Any,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[torch.Tensor | None],
    *,
    sample_size: float = 3.0,
    clip_norm: float = 0.0,
) -> torch.Tensor:
    """Take a step as fairseq's trainer does; return the norm of the gradients before clipping.

    Args:
        gradients: of the loss, without the scale that an optimizer of half precision gives it.
    """
    optimizer.zero_grad()
    loss = sum(
        (parameter * gradient).sum()
        for parameter, gradient in zip(parameters, gradients, strict=True)
        if gradient is not None
    )
    optimizer.backward(loss)
    optimizer.multiply_grads(1 / sample_size)
    norm = optimizer.clip_grad_norm(clip_norm)
    optimizer.step()
    return norm
