"""Count of the host's waits for the device, by the line of code that causes them.

On CUDA, torch itself reports them (``torch.cuda.set_sync_debug_mode``). Elsewhere a dispatch mode and a
few patched methods count the operations that would wait on CUDA. They miss copies from the host, and code
that differs on CUDA. Conversions to NumPy arrays are not counted: only CPU tensors allow them.
"""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fairseq_phrase

# Operations whose result has a shape, or is a number, that the host must know.
WAITING = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::masked_select",
    "aten::nonzero", "aten::bincount", "aten::_unique2", "aten::unique_dim",
    "aten::unique_consecutive", "aten::repeat_interleave",
}  # fmt: skip
_PROJECT = str(Path(fairseq_phrase.__file__).parent)


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
            own = frame.filename.startswith(_PROJECT)
            if own or "fairseq" in path.parts or "fairseq_cli" in path.parts:
                line = f"{path.name}:{frame.lineno}"
                self.lines[line] += 1
                self.own[line] += own
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
        if name in WAITING or by_mask:
            self.waits.record()
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def count_waits(device: str) -> Iterator[Waits]:
    """Count the waits of the code in its block."""
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
