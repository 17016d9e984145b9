"""What all commands share: their parsers, messages and exit codes."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO

import fairseq_phrase
from fairseq_phrase.errors import UserError, file_of, is_full, without_controls
from fairseq_phrase.optional_packages import fairseq_needed
from fairseq_phrase.repairs.ending import end_quickly
from fairseq_phrase.repairs.late_imports import import_late
from fairseq_phrase.repairs.mkl import advice

_OUTPUT = "standard output"
_PACKAGE = Path(fairseq_phrase.__file__).resolve().parent


class HelpFormatter(argparse.HelpFormatter):
    """Add ``(default: X)`` to the help of each option that has a default and does not mention it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        nothing: list[Any] = [None, argparse.SUPPRESS, "", (), []]
        without = not action.option_strings or action.default is False or action.default in nothing
        return text if without or "default" in text else f"{text} (default: %(default)s)"


class CommandParser(argparse.ArgumentParser):
    """The parser of a command's arguments, with defaults in the help and ``--version``."""

    def __init__(self, **options: Any):
        super().__init__(formatter_class=HelpFormatter, **options)
        version = f"fairseq-phrase {fairseq_phrase.__version__}"
        self.add_argument(
            "--version", action="version", version=version, help="print the version and exit"
        )

    def error(self, message: str) -> NoReturn:
        """Exit with one line: argparse's own message follows all options, which hide it."""
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


class MixedParser(CommandParser):
    """Accepts files after options: ``DATA --path CHECKPOINT FILE``."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse positional arguments that are mixed with options."""
        return self.parse_intermixed_args(args, namespace)


def standard_stream(name: str) -> BinaryIO:
    """Return the bytes of ``stdin`` or ``stdout``.

    Raises:
        UserError: the process was started without the stream.
    """
    stream: TextIO | None = {"stdin": sys.stdin, "stdout": sys.stdout}[name]
    if stream is None:
        sign, direction = {"stdin": ("<", "input"), "stdout": (">", "output")}[name]
        raise UserError(f"standard {direction} is closed: redirect it ({sign} FILE)")
    return stream.buffer


def command(
    make_parser: Callable[[], argparse.ArgumentParser], *, results: str = ""
) -> Callable[[Callable[[argparse.Namespace], None]], Callable[..., None]]:
    """Make a command from a function of parsed arguments.

    It exits with one message and status 2 for bad input, and with status 130 for Ctrl-C. If the reader of
    its output stops reading, it exits without a message and with status 141, like the shell's commands.

    Args:
        make_parser: makes the parser, whose ``prog`` is the command's name.
        results: the results that a stopped run keeps for the next run, for the message after Ctrl-C.

    Returns:
        A decorator. The command takes the arguments, by default the process's.
    """

    def decorate(body: Callable[[argparse.Namespace], None]) -> Callable[..., None]:
        def main(argv: Sequence[str] | None = None) -> None:
            parser = make_parser()
            _prepare(parser.prog)
            try:
                args = parser.parse_args(argv)
                if "device" in args and (message := advice()):  # it computes with torch
                    print(f"{parser.prog}: {message}", file=sys.stderr)
                with fairseq_needed("this command"):
                    body(args)
                if sys.stdout is not None:
                    sys.stdout.flush()
            except UserError as error:
                sys.exit(_fail(parser.prog, str(error), 2))
            except BrokenPipeError:  # the reader of the output (head, less) has stopped
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(141)
            except OSError as error:
                _drop_unwritten_output()
                # An error of writing a file has its name. Without a name, a full device is standard
                # output's.
                file = file_of(error) or (_OUTPUT if is_full(error) else None)
                place = f"{file}: " if file else ""
                sys.exit(_fail(parser.prog, f"{place}{error.strerror or error}", 2))
            except KeyboardInterrupt:
                again = shlex.join([parser.prog, *(sys.argv[1:] if argv is None else argv)])
                stopped = f"interrupted; {results}" if results else "interrupted"
                sys.exit(_fail(parser.prog, f"{stopped}. To run it again:\n    {again}", 130))

        return main

    return decorate


def _prepare(command: str) -> None:
    end_quickly()
    # Hide messages of fairseq, hydra and matplotlib that are meant for developers.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    if sys.stderr is None:  # closed by the process that started the command
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - open until the process ends
    if not sys.stderr.isatty():
        # In a log, tqdm writes one line per minute. It reads these variables when it is imported.
        os.environ.setdefault("TQDM_MININTERVAL", "60")
        os.environ.setdefault("TQDM_MAXINTERVAL", "60")
    if (copy := other_copy()) is not None:
        print(
            f"{command}: warning: this command runs {_PACKAGE}, and --user-dir fairseq_phrase in this "
            f"folder runs {copy}, which differs. Keep one, in the clone:\n    python -m pip install "
            "--no-build-isolation --editable . && python scripts/link_package.py",
            file=sys.stderr,
        )
    import_late()
    # Imports make many permanent objects. Garbage collection among them takes a tenth of the start.
    gc.set_threshold(50_000)


def other_copy() -> Path | None:
    """Find another copy of this package with different code, which fairseq would import here.

    fairseq looks for ``--user-dir fairseq_phrase`` in the working folder, then next to its own package.
    """
    fairseq = importlib.util.find_spec("fairseq")
    parents = [Path(fairseq.origin).parent.parent] if fairseq and fairseq.origin else []
    for folder in (Path.cwd(), *parents):
        package = (folder / _PACKAGE.name).resolve()
        if (package / "__init__.py").is_file():
            return None if package == _PACKAGE or _code(package) == _code(_PACKAGE) else package
    return None


def _code(package: Path) -> dict[Path, bytes]:
    return {path.relative_to(package): path.read_bytes() for path in package.rglob("*.py")}


def _drop_unwritten_output() -> None:
    """Discard output that cannot be written, because Python would try to write it at its end."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(command: str, message: str, status: int) -> int:
    print(f"{command}: error: {without_controls(message)}", file=sys.stderr)
    return status
