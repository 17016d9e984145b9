"""What made a data directory, and the advice to make it again."""

from __future__ import annotations

import json
import os
from pathlib import Path

PREPROCESS, ATTACH = "fairseq-phrase-preprocess", "fairseq-phrase-attach"


def maker_of(directory: str | os.PathLike[str]) -> str:
    """Return the command that made a data directory's parses.

    Returns:
        :data:`ATTACH` if a manifest says so, else :data:`PREPROCESS`, even if manifests are damaged.
    """
    for path in Path(directory).glob("syntax.*.json"):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and manifest.get("made_by") == ATTACH:
            return ATTACH
    return PREPROCESS


def rerun(directory: str | os.PathLike[str]) -> str:
    """Return the advice to make a data directory's parses again, ``run … again``."""
    return f"run {maker_of(directory)} again"
