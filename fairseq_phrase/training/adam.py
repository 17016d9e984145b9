"""fairseq's Adam in few launches: the same update to rounding, with states in fairseq's own format.

fairseq 0.12.3 computes Adam, the norm of the gradients and the copies of half precision with a loop over
the parameters. Here each is one call over all of them. The classes have fairseq's names, because
checkpoints record the name of the optimizer.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from fairseq import optim
from fairseq.optim import adam
from torch import Tensor

#: Devices on which torch computes Adam in one kernel.
FUSED = ("cpu", "cuda")


def take_fused_adam(optimizer: Any) -> str | None:
    """Let an optimizer compute Adam in few launches.

    Args:
        optimizer: as fairseq's trainer builds it. The classes of it and of its parts change.

    Returns:
        Why it stays fairseq's own; None if it does not.
    """
    wrapper = None
    if type(optimizer) in (optim.FP16Optimizer, optim.AMPOptimizer):
        wrapper, optimizer = optimizer, optimizer.fp32_optimizer
    if type(optimizer) is not adam.FairseqAdam:
        return f"the optimizer is {type(optimizer).__name__}"
    if type(optimizer.optimizer) is not adam.Adam:
        return f"Adam is that of {type(optimizer.optimizer).__module__.partition('.')[0]}"
    optimizer.__class__, optimizer.optimizer.__class__ = FairseqAdam, Adam
    optimizer.optimizer._patch_step_function()  # as by torch's constructor: hooks of a step run
    if type(wrapper) is optim.FP16Optimizer:
        wrapper.__class__ = FP16Optimizer
    return None


class Adam(adam.Adam):
    """fairseq's Adam, with one kernel for all parameters of a step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients."""
        if closure is not None or not all(map(_is_fusible, self.param_groups)):
            return inspect.unwrap(adam.Adam.step)(self, closure)  # its hooks have run already
        with torch.no_grad():
            self._fused_step()
        return None

    def _fused_step(self) -> None:
        for group in self.param_groups:
            for step, parameters in self._count_steps(_with_gradients(group)).items():
                self._fused_update(group, step, parameters)

    def _count_steps(self, parameters: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        """Add a step to the state of each parameter; return the parameters by their number of steps.

        The numbers differ if a parameter had no gradient in some step.
        """
        by_step = defaultdict(list)
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                average = state[name] if name in state else torch.zeros_like(parameter)
                state[name] = average.to(parameter)
            state["step"] += 1
            by_step[state["step"]].append(parameter)
        return by_step

    def _fused_update(self, group: dict[str, Any], step: int, parameters: Sequence[Tensor]) -> None:
        """Update the parameters of a group that have the same number of steps.

        torch divides the root of the second average by √(1 - β₂ᵗ) before it adds ε. fairseq adds ε first.
        """
        beta1, beta2 = group["betas"]
        states = [self.state[parameter] for parameter in parameters]
        # A kernel of the device writes the number, so the host does not wait for a copy.
        step_tensor = torch.full((), step, dtype=torch.float32, device=parameters[0].device)
        torch._fused_adamw_(
            list(parameters),
            [parameter.grad for parameter in parameters],  # type: ignore[misc]
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [step_tensor] * len(parameters),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"] / math.sqrt(1 - beta2**step),
            amsgrad=False,
            maximize=False,
        )


class FairseqAdam(adam.FairseqAdam):
    """fairseq's optimizer around Adam, with few launches for the norm of the gradients."""

    @torch.no_grad()
    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """Scale the gradients so that their norm is at most a number.

        Args:
            max_norm: the number; 0 for no limit.
            aggregate_norm_fn: the norm over processes that have parts of the gradients.

        Returns:
            The norm before.
        """
        parameters = list(self.params)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if (
            aggregate_norm_fn is not None
            or not _are_alike(gradients)
            or any(hasattr(parameter, "expert") for parameter in parameters)
        ):
            norm: Tensor = super().clip_grad_norm(max_norm, aggregate_norm_fn)
            return norm
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        if max_norm > 0:
            factor = (max_norm / (norm + 1e-6)).clamp_(max=1)
            # Reading the factor makes the host wait for a device, but not for a CPU.
            if norm.device.type != "cpu" or factor != 1:
                torch._foreach_mul_(gradients, factor)
        return norm


class FP16Optimizer(optim.FP16Optimizer):
    """fairseq's optimizer of half precision, with few launches for the copies of its parameters."""

    def zero_grad(self) -> None:
        """Delete the gradients of the model, and set those in single precision to 0."""
        single = [] if self.has_flat_params else _gradients(self.fp32_params)
        if not _are_alike(single):
            super().zero_grad()
            return
        torch._foreach_zero_(single)
        for parameter in self.fp16_params:
            parameter.grad = None
        self._needs_sync = False
        if self.scaler is not None:
            self._multiply_factor = 1.0 / float(self.scaler.loss_scale)

    def _sync_fp16_grads_to_fp32(self) -> None:
        if not self._needs_sync:
            return
        half = _gradients(self.fp16_params)
        single = self._of_half([parameter.grad for parameter in self._single()])
        if len(half) < len(single) or not _are_alike(half) or not _are_alike(single):
            super()._sync_fp16_grads_to_fp32()
            return
        _copy(half, single)
        self._needs_sync = False

    def _sync_fp32_params_to_fp16(self) -> None:
        half = [parameter.data for parameter in self.fp16_params]
        single = self._of_half([parameter.data for parameter in self._single()])
        if not _are_alike(half) or not _are_alike(single):
            super()._sync_fp32_params_to_fp16()
            return
        _copy(single, half)

    def _single(self) -> list[Tensor]:
        """List the parameters in single precision: one for each of the model, or one flat tensor."""
        flat = self.has_flat_params
        return list(self.fp32_params.values() if flat else self.fp32_params)

    def _of_half(self, single: Sequence[Tensor | None]) -> Sequence[Any]:
        """Return a part of the tensors in single precision for each parameter of the model."""
        if not self.has_flat_params:
            return single
        sizes = [parameter.numel() for parameter in self.fp16_params]
        return single[0].split(sizes) if len(single) == 1 and single[0] is not None else [None]


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy tensors of any precision; the shapes of one side may be flat."""
    flat = [source.reshape(target.shape) for source, target in zip(sources, targets, strict=True)]
    torch._foreach_copy_(list(targets), flat)


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _with_gradients(group: dict[str, Any]) -> list[Tensor]:
    return [parameter for parameter in group["params"] if parameter.grad is not None]


def _is_fusible(group: dict[str, Any]) -> bool:
    """Return whether one kernel can update a group of parameters."""
    parameters = _with_gradients(group)
    tensors = [*parameters, *_gradients(parameters)]
    return not group.get("amsgrad", False) and (
        not tensors
        or (
            _are_alike(tensors)
            and tensors[0].dtype in (torch.float32, torch.float64)
            and tensors[0].device.type in FUSED
            and all(tensor.is_contiguous() for tensor in tensors)
        )
    )


def _are_alike(tensors: Sequence[Tensor | None]) -> bool:
    """Return whether there are tensors, all dense, of one type and on one device."""
    kinds = {
        None if tensor is None else (tensor.dtype, tensor.device, tensor.layout)
        for tensor in tensors
    }
    return len(kinds) == 1 and None not in kinds and tensors[0].layout == torch.strided  # type: ignore[union-attr]
