"""What ``--help`` of every command says."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

import pytest

from fairseq_phrase import cli

COMMANDS = [
    module.name
    for module in pkgutil.iter_modules(cli.__path__)
    if module.name not in ("arguments", "numbers")
]


def parsers_of(command: str) -> list[argparse.ArgumentParser]:
    """A command's parser, or those of its subcommands too."""
    parser = importlib.import_module(f"fairseq_phrase.cli.{command}")._parser()
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += action.choices.values()
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_and_its_default_shown(command):
    for parser in parsers_of(command):
        shown = " ".join(parser.format_help().split())
        for action in parser._actions:
            if not action.option_strings:
                continue
            assert action.help, f"{parser.prog} {action.option_strings}"
            if action.default not in (None, False, argparse.SUPPRESS):
                assert "default" in parser._get_formatter()._get_help_string(action)
        assert "default: None" not in shown
        assert "default: False" not in shown
