"""Names that a user may have meant, for messages of argparse."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

from fairseq_phrase.text import suggestion

_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)' \(choose from .*\)", re.DOTALL)
_UNKNOWN = "unrecognized arguments: "
_MOST_CHOICES = 20


def fail(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """Exit with one line: argparse's own message follows all options, which hide it."""
    text = with_suggestion(parser, message)
    hint = "" if text.endswith("?") else " (see --help)"
    parser.exit(2, f"{parser.prog}: error: {text}{hint}\n")


def with_suggestion(parser: argparse.ArgumentParser, message: str) -> str:
    """Add similar names to a message about a misspelt option or choice.

    A long list of choices is left out if one of them is similar.
    """
    if message.startswith(_UNKNOWN):
        options = [name for action in parser._actions for name in action.option_strings]
        words = message.removeprefix(_UNKNOWN).split()
        flags = [word.partition("=")[0] for word in words if word.startswith("--")]
        return message + suggestion(
            near for flag in flags for near in get_close_matches(flag, options, n=1, cutoff=0.75)
        )
    if match := _CHOICE.fullmatch(message):
        choices = _choices(parser, match[1])
        near = get_close_matches(match[2], choices, n=3, cutoff=0.65)
        if near and len(choices) > _MOST_CHOICES:
            message = f"argument {match[1]}: invalid choice: '{match[2]}'"
        return message + suggestion(near)
    return message


def _choices(parser: argparse.ArgumentParser, names: str) -> list[str]:
    """Return the choices of the option that a message names, such as ``--arch/-a``."""
    for action in parser._actions:
        if names in ("/".join(action.option_strings), action.metavar, action.dest):
            return list(map(str, action.choices or ()))
    return []
