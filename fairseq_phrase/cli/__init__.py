"""Commands: argument parsing and nothing else."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Sequence

from fairseq_phrase.errors import UserError


class HelpFormatter(argparse.HelpFormatter):
    """Add ``(default: X)`` to the help of each option that has a default and does not say it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        without = not action.option_strings or action.default in (None, False, argparse.SUPPRESS)
        return text if without or "default" in text else f"{text} (default: %(default)s)"


def run(
    command: str,
    body: Callable[[Sequence[str] | None], None],
    argv: Sequence[str] | None,
    *,
    kept: str = "",
):
    """Run a command: bad input ends it with one message and status 2, Ctrl-C with 130.

    A reader that stops reading ends it in silence, with 141, as it does the shell's own commands.

    Args:
        command: the command's name, for the message.
        body: parses the arguments and does the work.
        argv: the arguments; those of the process if None.
        kept: what a stopped run leaves for the next one, for the message after Ctrl-C.
    """
    # fairseq, hydra and matplotlib tell their developers things that no user of a command needs.
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    try:
        body(argv)
    except UserError as error:
        sys.exit(_fail(command, str(error), 2))
    except BrokenPipeError:  # whoever read what is printed (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sys.exit(_fail(command, f"{place}{error.strerror or error}", 2))
    except KeyboardInterrupt:
        again = shlex.join([command, *(sys.argv[1:] if argv is None else argv)])
        stopped = f"interrupted; {kept}" if kept else "interrupted"
        sys.exit(_fail(command, f"{stopped}. To run it again:\n    {again}", 130))


def _fail(command: str, message: str, status: int) -> int:
    print(f"{command}: error: {message}", file=sys.stderr)
    return status
