"""Where the repository is, and real data that may lie beside it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
_SHARED = REPOSITORY.parent / "shared"
#: The sdist lacks git's history and the outputs of kept runs, which are 7 MB (MANIFEST.in).
IS_SDIST = (REPOSITORY / "PKG-INFO").is_file()
needs_history_and_outputs = pytest.mark.skipif(IS_SDIST, reason="this is an sdist")


def shared_data(folder: str) -> Path | None:
    """Find a folder of real data, ``multi30k`` or ``treebanks``.

    Returns:
        ``$FAIRSEQ_PHRASE_DATA/FOLDER``, else ``../shared/data/FOLDER`` beside the repository; None
        if neither exists.
    """
    roots = [os.environ.get("FAIRSEQ_PHRASE_DATA"), _SHARED / "data"]
    folders = (Path(root) / folder for root in roots if root)
    return next((path for path in folders if path.is_dir()), None)


def shared_pipeline(name: str = "de_ud_sm") -> Path | None:
    """Find a spaCy pipeline in ``../shared/parsers``; None if it does not exist."""
    path = _SHARED / "parsers" / name
    return path if (path / "meta.json").is_file() else None
