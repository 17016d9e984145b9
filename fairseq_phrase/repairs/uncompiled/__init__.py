"""fairseq without a compiler: Python modules in place of the compiled ones that text needs.

Python asks :class:`_Finder` last, so a compiled module is used where there is one. The modules of this
folder have the names of those that they replace. They import nothing of this package:
``scripts/link_package.py`` links them next to fairseq, for commands without ``--user-dir``.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError

_FOLDER = Path(__file__).resolve().parent
_REPLACED = (
    "fairseq.data.data_utils_fast",
    "fairseq.data.token_block_utils_fast",
    "fairseq.libbleu",
)
#: Extensions that nothing replaces, and what needs them.
_NEEDED = {
    "fairseq.libnat": "Levenshtein and insertion Transformers",
    "fairseq.libbase": "BASE layers",
    "alignment_train_cpu_binding": "monotonic attention",
}


class NotCompiledError(UserError, ImportError):
    """A model needs an extension of fairseq that is not compiled."""


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name in _NEEDED:
            raise NotCompiledError(
                f"{_NEEDED[name]} need {name}, which is not compiled here. Compile it (docs/compat.md "
                "names what that needs): python -m pip install --force-reinstall --no-cache-dir "
                "--no-deps --no-build-isolation fairseq-fixed==0.12.3.1"
            )
        if name not in _REPLACED:
            return None
        return spec_from_file_location(name, _FOLDER / f"{name.rpartition('.')[2]}.py")


FINDER = _Finder()


def replace_missing_extensions() -> None:
    """Let Python find the replacements where it finds no compiled module."""
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)
