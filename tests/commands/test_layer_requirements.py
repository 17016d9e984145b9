"""What each layer of the package needs installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "fairseq_phrase"


@pytest.mark.parametrize(
    ("layer", "missing"),
    [
        ("syntax", ["torch", "fairseq", "spacy", "sentencepiece"]),
        ("modules", ["fairseq", "spacy", "sentencepiece"]),
        ("parsers", ["torch", "fairseq"]),
    ],
)
def test_a_layer_works_where_what_it_does_not_need_is_not_installed(layer, missing):
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in (PACKAGE / layer).rglob("[a-z]*.py")
    ]
    code = "import sys\n"
    code += "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    code += "".join(f"import {name}\n" for name in modules)
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
