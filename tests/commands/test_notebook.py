"""The notebook in examples/ runs from its first cell to its last."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from tests.support import warm_start
from tests.support.repository import REPOSITORY

NOTEBOOK = REPOSITORY / "examples" / "translate_with_trees.ipynb"
CONTENT = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
CODE = [cell for cell in CONTENT["cells"] if cell["cell_type"] == "code"]
#: A shorter training, this copy of the package, and a command that changes how its output is encoded,
#: which a fork cannot do.
CHANGED = {
    "fairseq-phrase-inspect": f"{warm_start.REAL}/fairseq-phrase-inspect",
    "--max-update 500": "--max-update 4",
    "--train 4000": "--train 200",
    "--user-dir fairseq_phrase": f"--user-dir {REPOSITORY}/fairseq_phrase",
}


def test_it_has_no_outputs_and_no_paths_of_a_machine():
    assert CONTENT["nbformat"] == 4
    assert not any(cell["outputs"] or cell["execution_count"] for cell in CODE)
    assert not re.search(r"/(home|tmp|root|Users|work)/", NOTEBOOK.read_text(encoding="utf-8"))
    assert len({cell["id"] for cell in CONTENT["cells"]}) == len(CONTENT["cells"])


def test_it_runs(tmp_path, monkeypatch, longest_translation, capsys):
    """Cells run in order in one namespace; a cell that begins with %%bash has commands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    longest_translation(8)
    path = f"{warm_start.commands()}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY),
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    names, used = {"__name__": "__main__"}, set()
    for cell in CODE:
        source = "".join(cell["source"])
        for text, replaced in CHANGED.items():
            used |= {text} if text in source else set()
            source = source.replace(text, replaced)
        magic, _, commands = source.partition("\n")
        if magic != "%%bash":
            exec(source, names)
            continue
        process = subprocess.run(
            ["bash", "-e", "-c", commands], env=environment, capture_output=True, text=True
        )
        assert process.returncode == 0, f"{commands}\n{process.stderr[-5000:]}"
        print(process.stdout)
    assert used == set(CHANGED)
    assert len(names["translations"]) == 200
    assert names["mean"].sum(1) == pytest.approx(1)
    assert (names["first"].tree.heads != names["second"].tree.heads).any()
    printed = capsys.readouterr().out
    assert "nrefs:1|case:mixed" in printed
    assert "config.json" in printed
