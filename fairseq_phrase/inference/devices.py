"""The device of ``--device``."""

from __future__ import annotations

import torch

from fairseq_phrase.errors import UserError

__all__ = ["device_named"]


def device_named(name: str | None) -> torch.device:
    """Return the device of this name, or the GPU if there is one.

    Args:
        name: ``cpu``, ``cuda``, ``cuda:1``…; None for a GPU if there is one, and otherwise the CPU.

    Raises:
        UserError: there is no such device.
    """
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"device {name}: {reason}") from None
    return device
