"""How the tests themselves are laid out."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from tests.support.repository import REPOSITORY

TESTS = REPOSITORY / "tests"
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py"))
#: What starts processes, commands of fairseq, or trains and loads parsers.
SLOW_MODULES = ("subprocess.", "fairseq_cli.", "tests.support.commands.", "spacy.", "stanza.")
SLOW_MODULES += ("tests.support.attaching.", "tests.support.stanza_training.")
SLOW_MODULES += ("tests.support.warm_start.",)
SLOW_FIXTURES = {"trained_pipeline", "spacy_pipeline", "stock_bpe_data", "stock_sp_data"}
SLOW_FIXTURES |= {"attached_data", "bpe_corpus", "sp_corpus"}


@functools.cache
def parsed(name: str) -> ast.Module:
    return ast.parse((TESTS / name).read_text(encoding="utf-8"))


def imported(name: str) -> set[str]:
    """Every module and every name of a module that a file imports."""
    names = set()
    for node in ast.walk(parsed(name)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_tests_mirror_the_package():
    rooms = {Path(name).parent.as_posix() for name in FILES if Path(name).name.startswith("test_")}
    others = {"commands", "scripts", "project", "twins"}
    assert others < rooms
    assert [
        room for room in rooms - others if not (REPOSITORY / "fairseq_phrase" / room).is_dir()
    ] == []


def test_ci_names_tests_that_exist():
    scripts = [path for path in (REPOSITORY / ".ci").iterdir() if "." not in path.name]
    text = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    named = set(re.findall(r"::(test_\w+)", text))
    defined = {
        node.name
        for name in FILES
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.FunctionDef)
    }
    assert named
    assert named <= defined


def test_no_file_imports_a_file_of_tests():
    importers = {
        name: [module for module in imported(name) if ".test_" in f".{module}"] for name in FILES
    }
    assert not {name: modules for name, modules in importers.items() if modules}


def test_no_file_imports_a_private_name_of_the_package():
    private = {
        name: [
            module for module in imported(name) if re.match(r"fairseq_phrase\..*\b_(?!_)", module)
        ]
        for name in FILES
    }
    assert not {name: names for name, names in private.items() if names}


def replaced(name: str) -> list[str]:
    """What a file replaces in the package's modules and classes, except limits, which are in capitals."""
    ours = {
        alias.asname or alias.name
        for node in ast.walk(parsed(name))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("fairseq_phrase.")
        for alias in node.names
    }
    calls = [
        call
        for call in ast.walk(parsed(name))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in ("setattr", "setitem") and call.args
    ]
    owners = [".".join(re.findall(r"\w+", " ".join(map(ast.unparse, c.args[:-1])))) for c in calls]
    return [
        owner
        for owner in owners
        if owner.partition(".")[0] in ours | {"fairseq_phrase"}
        if not any(part.isupper() and len(part) > 2 for part in owner.split("."))
    ]


def test_few_functions_of_the_package_are_replaced():
    """What is left stops or counts work, draws no random numbers, or stands in for another machine."""
    functions = {name: replaced(name) for name in FILES}
    assert sum(map(len, functions.values())) <= 35, functions


def test_nothing_sleeps():
    texts = {name: (TESTS / name).read_text(encoding="utf-8") for name in FILES}
    assert not [name for name, text in texts.items() if re.search(r"\bsleep\(", text)]


def test_only_tests_of_commands_start_processes_and_train():
    names = [name for name in FILES if not name.startswith(("commands/", "support/", "conftest"))]
    assert len(names) > 150
    slow = {}
    for name in names:
        arguments = {node.arg for node in ast.walk(parsed(name)) if isinstance(node, ast.arg)}
        slow[name] = arguments & SLOW_FIXTURES
        slow[name] |= {m for m in imported(name) if f"{m}.".startswith(SLOW_MODULES)}
    assert not {name: calls for name, calls in slow.items() if calls}
