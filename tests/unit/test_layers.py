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
_MIDDLE = {"batch", "corpus", "modules", "raw_text", *_LOW}
_ANALYSIS = {"report", "inspection", "attention", "drawing", "probing", "inference", "demo"}
_HIGH = {"tasks", "models", "metrics", *_ANALYSIS, *_MIDDLE}
#: Rooms of one level may import one another, but not in a circle.
MAY_IMPORT = {
    **dict.fromkeys(_HIGH, _HIGH),
    **dict.fromkeys(_MIDDLE, _MIDDLE),
    **dict.fromkeys(_LOW, _LOW),
    "raw_text": _LOW,
    "modules": {"syntax", "store"},
    "metrics": set(),
    "syntax": set(),
    "synthetic": {"syntax"},
}


#: Every module and package of the project and every script, by its name.
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
MODULES |= {path.stem: path for path in (REPOSITORY / "scripts").glob("*.py")}


def imported_modules(path: Path, *, types_too: bool = True) -> set[str]:
    """The project's modules that a file imports; a package only if it takes more than modules.

    Args:
        path: the file.
        types_too: also imports under ``if TYPE_CHECKING``.
    """
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not types_too:
        tree.body = [n for n in tree.body if "TYPE_CHECKING" not in ast.dump(getattr(n, "test", n))]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in modules}
    return names & set(MODULES)


def imported_layers(path: Path) -> set[str]:
    parts = [name.split(".") for name in imported_modules(path) if "." in name]
    return {part[1] for part in parts} & ({*MAY_IMPORT, "cli"})


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
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
    imports = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(MODULES)


@pytest.mark.parametrize(
    ("encoder", "files"),
    [("structural_transformer", 15), ("relation_transformer", 14), ("phrase_transformer", 26)],
)
def test_an_encoder_is_read_in_few_files(encoder, files):
    read, new = set(), {f"fairseq_phrase.models.{encoder}"}
    while new:
        read |= new
        new = {m for name in new for m in imported_modules(MODULES[name], types_too=False)} - read
    assert len(read) <= files, sorted(read)
    assert "fairseq_phrase.models.architectures" not in read
