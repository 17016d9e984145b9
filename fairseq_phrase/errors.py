"""Errors that are shown to the user, and the values that options accept.

``--help`` reads the values here, without importing the libraries behind them.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

#: Where parsing runs, ``--engine``.
ENGINES = ("processes", "ray")
#: The source of constituents, ``--constituents``.
CONSTITUENTS = ("parser", "from-dependencies", "none")
#: The parsers of this project, ``--parser NAME``.
PARSERS = ("spacy", "stanza", "conllu", "ptb", "factored", "none")
#: The treatment of a line without a parse, ``--on-error``.
ON_ERROR = ("stop", "skip", "flat")
#: The method that splits words into subwords, ``--bpe``.
SUBWORD_MODELS = ("sentencepiece", "subword_nmt")
#: The normal form of text in a SentencePiece model, ``--normal-form``, by SentencePiece's names.
NORMAL_FORMS = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
#: ``--bpe``, if words are not split into subwords.
WHOLE_WORDS = "none"
#: The units that the labels of a data directory belong to, ``--labels``.
LABELLED = ("word", "sentence")
#: The languages of the synthetic corpus.
SYNTHETIC_LANGUAGES = ("de", "en")
#: The longest sentence of the synthetic corpus, in words.
MAX_WORDS = 30
#: The toy tasks of ``--kind``: copying letters, leaving out letters, and sorting sentences.
TOY_TASKS = ("copy", "subsample", "order")
#: The longest training sequence of the toy tasks, in letters or sentences.
TOY_WORDS = 10
#: Formal languages of outputs, ``--form``.
FORMS = ("calls", "lambda", "regex", "sql")


class UserError(Exception):
    """Invalid input. The message has the error, its location, and advice.

    Commands print only the message, without a traceback, and exit with status 2.
    """


def as_given(name: str, value: str = "") -> str:
    """Write an option of :func:`fairseq_phrase.load` as the user writes it.

    Args:
        name: the flag without hyphens in front, ``source-parser``.

    Returns:
        ``--source-parser VALUE`` in a command, ``source_parser="VALUE"`` in Python.
    """
    program = Path(sys.argv[0] if sys.argv else "")
    if program.name.startswith("fairseq") or program.parent.name in ("cli", "fairseq_cli"):
        return f"--{name} {value}".rstrip()
    return name.replace("-", "_") + (f'="{value}"' if value else "")


@contextmanager
def optional_packages(what: str, packages: str) -> Iterator[None]:
    """Import optional packages in a ``with`` block.

    Args:
        what: the task that needs the packages.
        packages: the argument of ``pip install``.

    Raises:
        UserError: a package cannot be imported; with the reason if it is installed.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise UserError(f"{what}: pip install {packages}") from None
    except ImportError as error:
        raise UserError(
            f"{what}, which cannot be imported ({error}): pip install {packages}"
        ) from None


def import_transformers(what: str) -> Any:
    """Import transformers, which takes seconds; ``what`` is the task that needs it.

    Raises:
        UserError: it is missing, or torchaudio, which it imports where it is installed, cannot be loaded.
    """
    with optional_packages(f"{what} needs transformers", "'fairseq-phrase[transformers]'"):
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


def file_of(error: OSError) -> str | None:
    """Return the file that an error concerns.

    Python's copying functions name the file that they read, even if the copy does not fit on the disk.
    """
    name: str | None = (is_full(error) and error.filename2) or error.filename
    return name


def is_full(error: OSError) -> bool:
    """Return whether the disk is full or the file has reached its largest size."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def named_in_errors(path: str | Path) -> Iterator[None]:
    """Add the file's name to a write error: "No space left on device" has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def location(path: object, line: int | None = None) -> str:
    """Name a file, ``FILE``, or a line of it, from 1, ``FILE, line N``."""
    return str(path) if line is None else f"{path}, line {line}"
