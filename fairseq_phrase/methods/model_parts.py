"""The encoder and the decoder of any model: labellers lack a decoder, and language models an encoder."""

from __future__ import annotations

from typing import Any

from fairseq.distributed import (
    DistributedTimeoutWrapper,
    LegacyDistributedDataParallel,
    ModuleProxyWrapper,
)
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = (
    DistributedTimeoutWrapper, ModuleProxyWrapper, LegacyDistributedDataParallel,
    DistributedDataParallel,
)  # fmt: skip


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model; None if it has none."""
    return getattr(model, "encoder", None)


def decoder_of(model: Any) -> Any:
    """Return the decoder of a model; None if it has none."""
    return getattr(model, "decoder", None)


def unwrapped(module: Any) -> Any:
    """Return a model or a criterion without fairseq's wrappers for several processes."""
    while isinstance(module, _WRAPPERS):
        module = module.module
    return module
