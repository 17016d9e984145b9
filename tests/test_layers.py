"""Who may import whom (the project's layers), and what each layer needs installed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

PACKAGE = REPOSITORY / "fairseq_phrase"
#: From the bottom up; a layer imports layers before it in a row that leads to it, never after.
MAY_IMPORT = {
    "syntax": set(),
    "modules": {"syntax"},
    "parsers": {"syntax"},
    "data": {"syntax", "parsers", "modules"},
    "tasks": {"syntax", "parsers", "modules", "data"},
    "models": {"syntax", "parsers", "modules", "data"},
    "analysis": {"syntax", "parsers", "modules", "data", "tasks", "models"},
    "synthetic": {"syntax"},
}


def imported_layers(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    parts = [name.split(".") for name in names if name.startswith("fairseq_phrase.")]
    return {part[1] for part in parts} & ({*MAY_IMPORT, "cli"})


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_those_below_it(layer):
    files = list((PACKAGE / layer).rglob("*.py"))
    assert files
    for path in files:
        assert imported_layers(path) <= MAY_IMPORT[layer] | {layer}, path


@pytest.mark.parametrize(
    ("layer", "missing"),
    [
        ("syntax", ["torch", "fairseq", "spacy", "sentencepiece"]),
        ("modules", ["fairseq", "spacy", "sentencepiece"]),
        ("parsers", ["torch", "fairseq"]),
    ],
)
def test_a_layer_works_where_what_it_does_not_need_is_not_installed(layer, missing):
    modules = [
        f"fairseq_phrase.{layer}.{path.stem}" for path in (PACKAGE / layer).glob("[a-z]*.py")
    ]
    code = "import sys\n"
    code += "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    code += "".join(f"import {name}\n" for name in modules)
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
