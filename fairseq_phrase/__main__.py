"""``fairseq-phrase`` lists the commands, runs one by its name, and states versions.

``python -m fairseq_phrase`` is the same.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import fairseq_phrase

PREFIX = "fairseq-phrase-"
USAGE = f"""usage: fairseq-phrase COMMAND ARGUMENTS, the same as {PREFIX}COMMAND ARGUMENTS

{{commands}}

Each has --help. fairseq's own commands take --user-dir fairseq_phrase.
fairseq-phrase --version            the version
fairseq-phrase --version --verbose  what a bug report needs: packages, processor, settings, plugins"""


def commands() -> dict[str, tuple[str, str]]:
    """Return the module and the description of each command, from the first lines of their files."""
    descriptions = {}
    for path in sorted((Path(__file__).parent / "cli").glob("*.py")):
        name, mark, purpose = str(ast.get_docstring(ast.parse(path.read_bytes()))).partition(": ")
        if mark and name.startswith(f"``{PREFIX}"):
            descriptions[name.strip("`")] = (
                f"fairseq_phrase.cli.{path.stem}",
                purpose.splitlines()[0].replace("``", ""),
            )
    return descriptions


def usage() -> str:
    """Return the list of the commands."""
    width = max(map(len, commands()))
    lines = [f"{name:{width}}  {purpose}" for name, (_, purpose) in commands().items()]
    return USAGE.format(commands="\n".join(lines))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; without arguments, list all commands."""
    name, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(usage())
    elif name == "--version" and not arguments:
        print(f"fairseq-phrase {fairseq_phrase.__version__}")
    elif sorted([name, *arguments]) == ["--verbose", "--version"]:
        print(import_module("fairseq_phrase.lab.versions").report())
    else:
        modules = {key.removeprefix(PREFIX): module for key, (module, _) in commands().items()}
        if name not in modules:
            _refuse(name, list(modules))
        import_module(modules[name]).main(arguments)


def _refuse(name: str, names: list[str]) -> None:
    print(
        f"fairseq-phrase: error: unknown command '{name}' (choose from {', '.join(names)})",
        file=sys.stderr,
    )
    sys.exit(2)


if __name__ == "__main__":
    main()
