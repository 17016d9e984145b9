"""transformers, also beside a torchaudio that does not fit torch."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import transformers

try:
    importlib.import_module("torchaudio")
except (ImportError, OSError):
    # It would keep transformers, which looks for it first, from importing any model. No test needs it.
    sys.modules["torchaudio"] = ModuleType("torchaudio")

__all__ = ["transformers"]
