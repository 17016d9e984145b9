"""What ``--help`` of every command says."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import platform
import re
import sys
from importlib.metadata import version

import pytest
import sentencepiece

import fairseq_phrase
from fairseq_phrase import cli, option_values
from fairseq_phrase.__main__ import main as fairseq_phrase_main
from fairseq_phrase.data.subwords.segmenters import SEGMENTERS
from fairseq_phrase.metrics.measure_registry import FORMS
from fairseq_phrase.parsers.registry import BUILT_IN
from tests.support.repository import REPOSITORY

COMMANDS = [
    module.name
    for module in pkgutil.iter_modules(cli.__path__)
    if module.name not in ("arguments", "command", "raw_text", "__main__")
]


def parsers_of(command: str) -> list[argparse.ArgumentParser]:
    """A command's parser, or those of its subcommands too."""
    parser = importlib.import_module(f"fairseq_phrase.cli.{command}").make_parser()
    parsers = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers += action.choices.values()
    return parsers


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_and_its_default_shown(command):
    for parser in parsers_of(command):
        help_text = " ".join(parser.format_help().split())
        for action in parser._actions:
            if not action.option_strings:
                continue
            assert action.help, f"{parser.prog} {action.option_strings}"
            if action.default not in (None, False, argparse.SUPPRESS, "", (), []):
                assert "default" in parser._get_formatter()._get_help_string(action)
        for nothing in ("None", "False", "()", "[]", ")"):
            assert f"default: {nothing}" not in help_text


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
    # The synthetic corpus has two languages.
    exceptions = {"--out", "--test", "--subset", "-s", "-t", "--source-lang", "--target-lang"}
    # The size of a batch that labels fastest depends on the device.
    exceptions |= {"--bpe", "--max-tokens"}
    assert {name for name, values in defaults.items() if len(values) > 1} <= exceptions
    for metavar in (
        "--split",
        "--gen-subset",
        "--index",
        "--checkpoint",
        "--output",
        "--model",
        "--cpu",
    ):
        assert metavar not in metavars, metavar


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_prints_its_version(command, capsys):
    for parser in parsers_of(command):
        with pytest.raises(SystemExit) as ended:
            parser.parse_args(["--version"])
        assert ended.value.code == 0
        assert capsys.readouterr().out == f"fairseq-phrase {fairseq_phrase.__version__}\n"


def test_choices_are_what_the_package_has():
    # Tokenizers of transformers leave no text that could be read again.
    assert set(option_values.SUBWORD_MODELS) == set(SEGMENTERS) - {"huggingface", "gpt2"}
    assert set(option_values.FORMS) == set(FORMS)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_package_lists_its_commands(arguments, capsys):
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    fairseq_phrase_main(arguments)
    printed = capsys.readouterr().out
    assert "`" not in printed  # marks of docstrings
    listed = re.findall(r"^(fairseq-phrase-\S+) +\w", printed, re.MULTILINE)
    assert listed == re.findall(r"^(fairseq-phrase-\S+) = ", project, re.MULTILINE)


def test_the_list_of_commands_is_itself_a_command(capsys):
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    module, _, function = re.search(r'(?m)^fairseq-phrase = "(.*)"$', project)[1].partition(":")
    getattr(importlib.import_module(module), function)(["--version"])
    assert capsys.readouterr().out == f"fairseq-phrase {fairseq_phrase.__version__}\n"


@pytest.mark.parametrize("arguments", [["--version", "--verbose"], ["--verbose", "--version"]])
def test_what_a_report_of_a_bug_needs_is_printed(arguments, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    fairseq_phrase_main(arguments)
    facts = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert facts["fairseq-phrase"].startswith(f"{fairseq_phrase.__version__} in ")
    assert f"Python {platform.python_version()}" in facts["software"]
    for package in ("torch", "fairseq-fixed", "hydra-core", "spacy"):
        assert f"{package} {version(package)}" in facts["software"]
    assert "cores" in facts["machine"]
    assert "OMP_NUM_THREADS=3" in facts["settings"].split()
    assert "plugins" in facts


def test_a_package_that_cannot_be_imported_is_in_the_report(capsys, monkeypatch):
    """A broken torch is what such a report is for."""
    monkeypatch.setitem(sys.modules, "torch", None)
    fairseq_phrase_main(["--version", "--verbose"])
    assert "machine: unknown: import torch: ModuleNotFoundError" in capsys.readouterr().out


def test_plugins_of_other_packages_are_in_the_report(tmp_path, capsys, monkeypatch):
    package = tmp_path / "my_parser-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: my-parser\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[fairseq_phrase.parsers]\nmine = my_parser:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    fairseq_phrase_main(["--version", "--verbose"])
    assert "parsers: mine (my_parser:Mine)" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_reached_by_its_name(command, capsys):
    name = {"inspect_data": "inspect"}.get(command, command)
    with pytest.raises(SystemExit) as ended:
        fairseq_phrase_main([name, "--version"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"fairseq-phrase {fairseq_phrase.__version__}\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("translte", r"unknown command 'translte' .*, translate\)$"),
        ("--verbose", r"unknown command '--verbose' \(choose from analyze, .*, translate\)$"),
    ],
)
def test_a_command_that_is_not_there_is_named(name, message, capsys):
    with pytest.raises(SystemExit) as ended:
        fairseq_phrase_main([name])
    assert ended.value.code == 2
    assert re.search(message, capsys.readouterr().err.strip())


def test_a_mistake_is_one_line(refused):
    message = refused(parsers_of("translate")[0].parse_args, ["--zzz"])
    expected = "fairseq-phrase-translate: error: unrecognized arguments: --zzz (see --help)"
    assert message.strip() == expected


_LANGUAGES = ["-s", "de", "-t", "en"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "--path", "x", "--unk-dictionary", "y"], "needs --replace-unk"),
        (["preprocess", *_LANGUAGES], "nothing to do: give --trainpref, --validpref"),
        (["attach", "x", *_LANGUAGES, "--bpe", "none"], "nothing to do: give --trainpref"),
        (
            ["attach", "x", *_LANGUAGES, "--bpe", "none", "--trainpref", "x", "--lang", "fr"],
            "--lang fr is neither the source language nor the target language",
        ),
        (["export", "x", "y", "z", "--quantization", "int8"], "needs --to ctranslate2"),
        (
            ["export", "x", "y", "z", "--to", "ctranslate2", "--license", "mit"],
            "--to ctranslate2 writes no model card: leave its options out",
        ),
    ],
)
def test_options_that_need_others_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        fairseq_phrase_main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["preprocess", "attach"])
def test_every_parser_is_named(command):
    help_text = " ".join(parsers_of(command)[0].format_help().split())
    for parser in BUILT_IN.values():
        assert parser.usage.replace("…", "...") in help_text


def test_every_normal_form_is_one_of_sentencepiece():
    for name in option_values.NORMAL_FORMS:
        sentencepiece.SentencePieceNormalizer(rule_name=name)
