"""Syntax-aware encoders for fairseq, used with ``--user-dir fairseq_phrase``.

:func:`load` loads a trained model for raw text.

Importing this package does not import any other module. So ``fairseq_phrase.syntax`` needs only NumPy,
and ``fairseq_phrase.modules`` needs only torch. fairseq imports every file in ``tasks/`` and ``models/``.
Importing either of these packages registers everything and makes checkpoints loadable (see
:mod:`fairseq_phrase.compat`).
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import :func:`fairseq_phrase.inference.translator.load` when it is asked for."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("fairseq_phrase.inference.translator").load
