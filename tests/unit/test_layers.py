"""Who may import whom (the project's layers)."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "fairseq_phrase"
_LOWEST = {"syntax"}
_LOW = {"store", "parsers", *_LOWEST}
_MIDDLE = {"batch", "corpus", "modules", *_LOW}
_HIGH = {"tasks", "models", "report", "inspection", "attention", *_MIDDLE}
#: Rooms of one level may import one another, but not in a circle.
MAY_IMPORT = {
    **dict.fromkeys(_HIGH, _HIGH),
    **dict.fromkeys(_MIDDLE, _MIDDLE),
    **dict.fromkeys(_LOW, _LOW),
    "modules": {"syntax", "store"},
    "syntax": set(),
    "synthetic": {"syntax"},
}


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.startswith("fairseq_phrase.")}


def imported_layers(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported_modules(path)]
    return {part[1] for part in parts} & ({*MAY_IMPORT, "cli"})


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_a_layer_imports_only_those_below_it(layer):
    files = list((PACKAGE / layer).rglob("*.py"))
    assert files
    for path in files:
        assert imported_layers(path) <= MAY_IMPORT[layer] | {layer}, path


def test_no_rooms_import_one_another_in_a_circle():
    imports = {
        room: set().union(*map(imported_layers, (PACKAGE / room).rglob("*.py"))) - {room}
        for room in MAY_IMPORT
    }
    # static_order raises CycleError, which names the circle.
    order = list(TopologicalSorter(imports).static_order())
    assert set(order) >= set(MAY_IMPORT)


def test_no_modules_import_one_another_in_a_circle():
    paths = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
    }
    imports = {name: imported_modules(path) & set(paths) for name, path in paths.items()}
    assert list(TopologicalSorter(imports).static_order())
