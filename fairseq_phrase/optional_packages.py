"""Imports of packages that not every user has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from typing import Any

from fairseq_phrase.errors import UserError

#: What installs the distribution of fairseq that pyproject.toml requires, without a compiler (README.md).
INSTALL_FAIRSEQ = (
    "READTHEDOCS=1 pip install --no-cache-dir --no-deps --no-build-isolation "
    "fairseq-fixed==0.12.3.1"
)


@contextmanager
def optional_packages(task: str, packages: str) -> Iterator[None]:
    """Import optional packages in a ``with`` block.

    Args:
        task: the task that needs the packages.
        packages: the argument of ``pip install``.

    Raises:
        UserError: a package cannot be imported; with the reason if it is installed.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise UserError(f"{task}: pip install {packages}") from None
    except ImportError as error:
        raise UserError(
            f"{task}, which cannot be imported ({error}): pip install {packages}"
        ) from None


@contextmanager
def fairseq_needed(by: str) -> Iterator[None]:
    """Run a ``with`` block that imports fairseq; ``by`` names what needs it.

    Raises:
        UserError: fairseq is not installed, or is too old to have a module.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] not in ("fairseq", "fairseq_cli"):
            raise
        missing = f"a fairseq that has {name}" if find_spec("fairseq") else "fairseq"
        raise UserError(f"{by} needs {missing}: {INSTALL_FAIRSEQ}") from None


def import_transformers(task: str) -> Any:
    """Import transformers, which takes seconds; ``task`` is the task that needs it.

    Raises:
        UserError: it is missing, or torchaudio, which it imports where it is installed, cannot be loaded.
    """
    with optional_packages(f"{task} needs transformers", "transformers"):
        import transformers
    with suppress(ModuleNotFoundError):
        try:
            import_module("torchaudio")
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"transformers imports torchaudio, which is made for another torch ({error}): "
                "pip uninstall torchaudio, or install the one of this torch"
            ) from None
    return transformers


def load_entry(entry: EntryPoint, message: str) -> Any:
    """Load an entry point of an installed package. A broken package must not end the command.

    Args:
        message: the start of the message; the reason follows.

    Raises:
        UserError: it cannot be imported.
    """
    try:
        return entry.load()
    except (ImportError, AttributeError, SystemExit) as error:
        raise UserError(f"{message}: {error}") from error
