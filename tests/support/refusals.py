"""Which refusals of the package the tests meet.

    FAIRSEQ_PHRASE_REFUSALS=FILE bash scripts/test.sh --all
    python -m tests.support.refusals FILE

The first writes the file and line of each ``UserError`` that a test or a command that starts warm
makes; the second lists the others of the package, and fails if they are more than :data:`LIMIT`, which
may only fall.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path

LIMIT = 35
PACKAGE = Path(__file__).resolve().parents[2] / "fairseq_phrase"


def record() -> None:
    """From here on, append the place of each error to the file that the environment names."""
    path = os.environ.get("FAIRSEQ_PHRASE_REFUSALS")
    if not path:
        return
    errors = importlib.import_module("fairseq_phrase.errors")
    initialize = errors.UserError.__init__

    def recorded(error: Exception, *args: object) -> None:
        caller = sys._getframe(1)
        with open(path, "a") as file:  # a line is written at once: processes do not mix
            file.write(f"{caller.f_code.co_filename}:{caller.f_lineno}\n")
        initialize(error, *args)

    errors.UserError.__init__ = recorded


def places() -> set[str]:
    """Return the file and line of each expression that makes a ``UserError`` or one derived from it."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    names = {"UserError"}
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef) and names & {ast.unparse(base) for base in node.bases}:
            names.add(node.name)
    return {
        f"{path}:{node.lineno}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    }


if __name__ == "__main__":
    unmet = sorted(places() - set(Path(sys.argv[1]).read_text().split("\n")))
    print(*unmet, f"{len(unmet)} refusals are met by no test; at most {LIMIT} may be", sep="\n")
    sys.exit(len(unmet) > LIMIT)
