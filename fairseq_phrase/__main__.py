"""``python -m fairseq_phrase`` lists the commands."""

from __future__ import annotations

import ast
from pathlib import Path


def commands() -> dict[str, tuple[str, str]]:
    """Return the module and the description of each command, from the first lines of their files."""
    found = {}
    for path in sorted((Path(__file__).parent / "cli").glob("*.py")):
        name, mark, purpose = str(ast.get_docstring(ast.parse(path.read_bytes()))).partition(": ")
        if mark and name.startswith("``fairseq-phrase-"):
            found[name.strip("`")] = (
                f"fairseq_phrase.cli.{path.stem}",
                purpose.splitlines()[0].replace("``", ""),
            )
    return found


if __name__ == "__main__":
    width = max(map(len, commands()))
    for name, (_, purpose) in commands().items():
        print(f"{name:{width}}  {purpose}")
    print("\nEach has --help. fairseq's own commands take --user-dir fairseq_phrase.")
