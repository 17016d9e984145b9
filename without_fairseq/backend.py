"""Build the project's wheel without its dependency on fairseq.

The distribution has the project's name, so pip replaces one variant by the other, and no file belongs to
two distributions. Its version ends with ``+without.fairseq``.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from setuptools import build_meta

PROJECT = Path(__file__).resolve().parent.parent


def build_wheel(folder: str, settings: Any = None, metadata: str | None = None) -> str:
    """Build the wheel of an edited copy of the project (a hook of PEP 517); return its name."""
    folder = os.path.abspath(folder)
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.lstrip().startswith('"fairseq-fixed')]
    with TemporaryDirectory() as copy:
        for name in ("LICENSE", "README.md", "setup.py"):
            shutil.copy(PROJECT / name, copy)
        shutil.copytree(PROJECT / "fairseq_phrase", Path(copy, "fairseq_phrase"))
        Path(copy, "pyproject.toml").write_text("\n".join(kept), encoding="utf-8")
        Path(copy, "setup.cfg").write_text("[egg_info]\ntag_build = +without.fairseq\n")
        os.chdir(copy)
        return build_meta.build_wheel(folder, settings)
