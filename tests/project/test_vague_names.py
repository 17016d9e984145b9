"""Names of locals are nouns: few are pronouns, or participles that say how a value came."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.support.repository import REPOSITORY

#: Words that do not say what is in a variable.
VAGUE = {
    "found", "one", "own", "each", "given", "made", "kept", "here", "others", "other", "came",
    "taken", "known", "chosen", "wanted", "left", "done", "gone", "seen", "shown", "asked", "told",
    "named", "said", "whole", "rest", "both", "such", "same", "these", "those", "them", "it",
    "what", "which", "something", "anything",
}  # fmt: skip


def vague_names(source: str) -> Counter[str]:
    """Count the vague names that functions bind; parameters are not counted."""
    return Counter(
        node.id
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE
    )


def test_names_are_counted_in_functions_where_they_are_bound():
    source = (
        "each = 1\ndef f(given):\n    for one in given:\n        found = [own for own in one]\n"
    )
    assert vague_names(source) == Counter(["one", "found", "own"])


# Most of them are left, the side.
@pytest.mark.parametrize(
    ("folder", "most"),
    [("fairseq_phrase", 30), ("tests", 40), ("scripts", 5), ("benchmarks", 5), ("examples", 3)],
)
def test_few_names_are_pronouns_or_participles(folder, most):
    files = {
        path.relative_to(REPOSITORY): vague_names(path.read_text("utf-8"))
        for path in Path(REPOSITORY, folder).rglob("*.py")
    }
    assert sum(map(Counter.total, files.values())) <= most, {
        str(path): dict(names) for path, names in files.items() if names
    }
