"""fairseq's Adam in few launches: the same update to rounding, with states in fairseq's own format.

fairseq 0.12.3 computes Adam, the norm of the gradients and the copies of half precision with a loop over
the parameters. Here each is one call over all of them. The classes have fairseq's names, because
checkpoints record the name of the optimizer.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from fairseq import optim
from fairseq.optim import OPTIMIZER_REGISTRY, adam
from torch import Tensor


@contextmanager
def few_launches() -> Iterator[None]:
    """Let fairseq build these classes in place of its own."""
    with (
        mock.patch.dict(OPTIMIZER_REGISTRY, adam=FairseqAdam),
        mock.patch.object(optim, "FP16Optimizer", FP16Optimizer),
    ):
        yield


class Adam(adam.Adam):
    """fairseq's Adam, with one kernel for all parameters of a step."""

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters that have gradients."""
        groups = [
            (group, [parameter for parameter in group["params"] if parameter.grad is not None])
            for group in self.param_groups
        ]
        tensors = [x for _, parameters in groups for p in parameters for x in (p, p.grad)]
        is_amsgrad = any(group["amsgrad"] for group in self.param_groups)
        if closure is not None or is_amsgrad or not _are_fusible(tensors):
            return inspect.unwrap(adam.Adam.step)(self, closure)  # its hooks have run already
        with torch.no_grad():
            for group, parameters in groups:
                for step, of_step in self._count_steps(parameters).items():
                    self._fused_update(group, step, of_step)
        return None

    def _count_steps(self, parameters: Sequence[Tensor]) -> dict[int, list[Tensor]]:
        """Add a step to the state of each parameter; return the parameters by their number of steps.

        The numbers differ if a parameter had no gradient in some step.
        """
        by_step = defaultdict(list)
        for parameter in parameters:
            state = self.state[parameter]
            state.setdefault("step", 0)
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

    _optimizer: Any

    def __init__(self, cfg: Any, params: Sequence[Tensor]) -> None:
        super().__init__(cfg, params)
        if type(self._optimizer) is adam.Adam:
            self._optimizer = Adam(params, **self.optimizer_config)

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
            or not gradients
            or not _are_fusible(gradients)
            or any(hasattr(parameter, "expert") for parameter in parameters)
        ):
            norm: Tensor = super().clip_grad_norm(max_norm, aggregate_norm_fn)
            return norm
        norm = torch.stack(torch._foreach_norm(gradients)).norm()
        if max_norm > 0:
            torch._foreach_mul_(gradients, (max_norm / (norm + 1e-6)).clamp_(max=1))
        return norm


class FP16Optimizer(optim.FP16Optimizer):
    """fairseq's optimizer of half precision, with few launches for the copies of its parameters."""

    def zero_grad(self) -> None:
        """Delete the gradients of the model, and set those in single precision to 0."""
        for parameter in self.fp16_params:
            parameter.grad = None
        torch._foreach_zero_([parameter.grad for parameter in self._single()])
        self._needs_sync = False
        if self.scaler is not None:
            self._multiply_factor = 1.0 / float(self.scaler.loss_scale)

    def _sync_fp16_grads_to_fp32(self) -> None:
        if self._needs_sync:
            single = self._of_half([parameter.grad for parameter in self._single()])
            # A parameter of the model without a gradient has one of 0 in single precision.
            rows = [
                (parameter.grad, gradient)
                for parameter, gradient in zip(self.fp16_params, single, strict=True)
                if parameter.grad is not None
            ]
            if rows:
                _copy(*zip(*rows, strict=True))
            self._needs_sync = False

    def _sync_fp32_params_to_fp16(self) -> None:
        single = self._of_half([parameter.data for parameter in self._single()])
        _copy(single, [parameter.data for parameter in self.fp16_params])

    def _single(self) -> list[Any]:
        """List the parameters in single precision: one for each of the model, or one flat tensor."""
        return list(self.fp32_params.values() if self.has_flat_params else self.fp32_params)

    def _of_half(self, single: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the part of the tensors in single precision for each parameter of the model."""
        if not self.has_flat_params:
            return single
        (flat,) = single
        sizes = [parameter.numel() for parameter in self.fp16_params]
        parts: Sequence[Tensor] = flat.split(sizes)
        return parts


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy tensors of any precision; the shapes of one side may be flat."""
    flat = [source.reshape(target.shape) for source, target in zip(sources, targets, strict=True)]
    torch._foreach_copy_(list(targets), flat)


def _are_fusible(tensors: Sequence[Tensor]) -> bool:
    """Return whether tensors are dense, of single precision or better, and alike in type and device."""
    kinds = {(x.dtype, x.device.type, x.layout) for x in tensors}
    return not kinds or (
        kinds.pop() in _FUSIBLE
        and not kinds
        and len({x.device for x in tensors}) == 1
        and all(x.is_contiguous() for x in tensors)
    )


#: What torch's kernel of Adam takes.
_FUSIBLE = {
    (dtype, device, torch.strided)
    for dtype in (torch.float32, torch.float64)
    for device in ("cpu", "cuda")
}
