"""Who may import whom, and how much is read to understand a model."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "fairseq_phrase"
#: Packages from the ground up. Each imports only from those before it.
PACKAGES = (
    "repairs", "syntax", "parsers", "methods", "huggingface", "data.store", "data.subwords",
    "data.preprocessing", "data.batches", "models", "checkpoints", "metrics", "tasks", "inference",
    "lab", "cli",
)  # fmt: skip
MAY_IMPORT = {name: set(PACKAGES[:index]) for index, name in enumerate(PACKAGES)}
#: Packages that import fewer.
MAY_IMPORT |= {"syntax": set(), "methods": {"syntax"}, "metrics": set()}
#: What a reader of a model reads at most: its file and what it imports inside the package, to the ground.
MOST_FILES, MOST_LINES = 20, 3800


#: Every module and package of the project and every script, by its name.
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}
MODULES |= {path.stem: path for path in (REPOSITORY / "scripts").glob("*.py")}


def imported_modules(path: Path, *, later_too: bool = True) -> set[str]:
    """The project's modules that a file imports; a package only if it takes more than modules.

    Args:
        path: the file.
        later_too: also imports within functions and under ``if TYPE_CHECKING``.
    """
    names = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if later_too else tree.body:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in MODULES else node.module for name in modules}
    return names & set(MODULES)


def package_of(module: str) -> str | None:
    """The package of a module, such as ``data.store``; None for the modules that are in none."""
    parts = module.split(".")[1:-1]
    return next((".".join(parts[:n]) for n in (2, 1) if ".".join(parts[:n]) in MAY_IMPORT), None)


def imported_packages(path: Path) -> set[str]:
    names = imported_modules(path)
    return {package for name in names if (package := package_of(name) or package_of(f"{name}.x"))}


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_a_package_imports_only_those_below_it(package):
    files = list((PACKAGE / package.replace(".", "/")).rglob("*.py"))
    assert files
    for path in files:
        assert imported_packages(path) <= MAY_IMPORT[package] | {package}, path


def test_every_package_is_among_them():
    inside = {package_of(name) for name in MODULES if name.count(".") > 1}
    assert inside - {None} == set(MAY_IMPORT)
    outside = {name for name in MODULES if name.count(".") > 1 and package_of(name) is None}
    assert outside <= {f"fairseq_phrase.{name}" for name in MAY_IMPORT}


def test_no_modules_import_each_other_in_a_circle():
    imports = {name: imported_modules(path) - {name} for name, path in MODULES.items()}
    assert len(list(TopologicalSorter(imports).static_order())) == len(MODULES)


MODELS = sorted(
    name for name in MODULES
    if name.startswith(("fairseq_phrase.methods.", "fairseq_phrase.models."))
    and name != "fairseq_phrase.models.architectures"  # it imports all models
)  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_a_model_is_read_in_few_files(model):
    read, new = set(), {model}
    while new:
        read |= new
        new = {m for name in new for m in imported_modules(MODULES[name], later_too=False)} - read
    assert len(read) <= MOST_FILES, sorted(read)
    lines = {name: len(MODULES[name].read_text(encoding="utf-8").splitlines()) for name in read}
    assert sum(lines.values()) <= MOST_LINES, lines
    assert "fairseq_phrase.models.architectures" not in read
