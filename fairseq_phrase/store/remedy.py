"""What to do about parses that are missing or damaged: run again what made them."""

from __future__ import annotations

import json
import os
from pathlib import Path

PREPROCESS, ATTACH = "fairseq-phrase-preprocess", "fairseq-phrase-attach"


def maker_of(directory: str | os.PathLike) -> str:
    """Name the command that made a data directory's parses.

    Returns:
        :data:`ATTACH` if a manifest says so, else :data:`PREPROCESS`, whatever is damaged there.
    """
    for path in Path(directory).glob("syntax.*.json"):
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(manifest, dict) and manifest.get("made_by") == ATTACH:
            return ATTACH
    return PREPROCESS


def rerun(directory: str | os.PathLike) -> str:
    """Say what makes a data directory's parses anew, ``run … again``."""
    return f"run {maker_of(directory)} again"
