"""What ``--help`` of every command says."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import runpy

import pytest
import sentencepiece

import fairseq_phrase
from fairseq_phrase import cli, errors
from fairseq_phrase.data.subwords.segmenters import SEGMENTERS
from fairseq_phrase.evaluation.metrics.measure_registry import FORMS
from fairseq_phrase.parsers import _BUILT_IN
from fairseq_phrase.synthetic.corpus import LANGUAGES
from tests.support.repository import REPOSITORY

COMMANDS = [
    module.name
    for module in pkgutil.iter_modules(cli.__path__)
    if module.name not in ("arguments", "__main__")
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


def test_the_same_thing_has_the_same_name_in_every_command():
    """Options of one name take the same kind of value, and names of the same thing are not mixed."""
    metavars: dict[str, set] = {}
    defaults: dict[str, set] = {}
    for command in COMMANDS:
        for parser in parsers_of(command):
            for action in parser._actions:
                if action.help != argparse.SUPPRESS:
                    for name in action.option_strings:
                        metavars.setdefault(name, set()).add(action.metavar)
                        defaults.setdefault(name, set()).add(str(action.default))
    # --out writes a file or a folder. --test is a size of the corpus, or a test of significance.
    assert {name for name, kinds in metavars.items() if len(kinds) > 1} <= {"--out", "--test"}
    # Besides those: a test set is translated by default, but a split to label or to look at is asked for.
    # The synthetic corpus has two languages. Sentences to make have another limit than those to read.
    others = {"--out", "--test", "--subset", "-s", "-t", "--source-lang", "--target-lang"}
    # The size of a batch that labels fastest depends on the device.
    others |= {"--bpe", "--max-words", "--max-tokens"}
    assert {name for name, values in defaults.items() if len(values) > 1} <= others
    for other in (
        "--split",
        "--gen-subset",
        "--index",
        "--checkpoint",
        "--output",
        "--model",
        "--cpu",
    ):
        assert other not in metavars, other


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_its_version(command, capsys):
    for parser in parsers_of(command):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"fairseq-phrase {fairseq_phrase.__version__}\n"


def test_choices_are_what_the_package_has():
    # Tokenizers of transformers leave no text that could be read again.
    assert set(errors.SUBWORD_MODELS) == set(SEGMENTERS) - {"huggingface", "gpt2"}
    assert set(errors.FORMS) == set(FORMS)
    assert set(errors.SYNTHETIC_LANGUAGES) == set(LANGUAGES)


def test_the_package_lists_its_commands(capsys):
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    runpy.run_module("fairseq_phrase", run_name="__main__")
    printed = capsys.readouterr().out
    listed = re.findall(r"^(fairseq-phrase-\S+) +\w", printed, re.MULTILINE)
    assert listed == re.findall(r"^(fairseq-phrase-\S+) = ", project, re.MULTILINE)


@pytest.mark.parametrize("command", ["preprocess", "attach"])
def test_every_parser_is_named(command):
    shown = " ".join(parsers_of(command)[0].format_help().split())
    for parser in _BUILT_IN.values():
        assert parser.usage.replace("…", "...") in shown


def test_every_normal_form_is_one_of_sentencepiece():
    for name in errors.NORMAL_FORMS:
        sentencepiece.SentencePieceNormalizer(rule_name=name)
