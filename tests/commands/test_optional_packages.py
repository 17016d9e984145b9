"""Where fairseq is absent: what needs none works, and all else names what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import INSTALL_FAIRSEQ, fairseq_needed
from tests.support.repository import REPOSITORY

CODE = """
import contextlib, importlib, io, json, pkgutil, sys
sys.modules["fairseq"] = sys.modules["fairseq_cli"] = None  # the import raises ModuleNotFoundError
import fairseq_phrase
from fairseq_phrase.__main__ import commands, main

for package in ("huggingface", "parsers", "syntax"):
    path = [f"{fairseq_phrase.__path__[0]}/{package}"]
    for module in pkgutil.walk_packages(path, f"fairseq_phrase.{package}."):
        importlib.import_module(module.name)
messages = {}
for command, arguments in json.load(sys.stdin).items():
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            main([command, *arguments.split()])
        except SystemExit as end:
            messages[command] = f"{end.code}: {stderr.getvalue()}"
try:
    fairseq_phrase.load
except Exception as error:
    messages["load"] = repr(error)
print(json.dumps([messages, [*commands()]]))
"""
COMMANDS = {
    "analyze": "attention data --path model",
    "attach": "data -s de -t en --bpe sentencepiece --sentencepiece-model DATA/spm.model "
    "--trainpref train --parser conllu",
    "average": "a.pt b.pt --out c.pt",
    "demo": "bundle",
    "export": "model data bundle",
    "inspect": "DATA",
    "label": "data --path model",
    "plot": "attention data --path model --line 1",
    "preprocess": "-s de -t en --trainpref train --parser conllu --destdir out",
    "probe": "--path model --tasks tasks",
    "translate": "data --path model",
}


def test_what_needs_no_fairseq_works_and_all_else_names_what_to_install(data_directory, tmp_path):
    (tmp_path / "tasks").mkdir()
    (tmp_path / "data").symlink_to(data_directory)
    (tmp_path / "tasks/length.txt").write_text("tr\t1\ta\nva\t1\ta\nte\t1\ta\n")
    process = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True,
        input=json.dumps(COMMANDS).replace("DATA", "data"),
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    messages, commands = json.loads(process.stdout.splitlines()[-1])
    needs = f"needs fairseq: {INSTALL_FAIRSEQ}"
    assert needs in messages.pop("load")
    assert messages == {
        name: f"2: fairseq-phrase-{name}: error: this command {needs}\n" for name in COMMANDS
    }
    working = ("report", "score", "synthetic")  # report, if logs have no options
    assert {*commands} == {f"fairseq-phrase-{name}" for name in (*working, *COMMANDS)}


def test_a_fairseq_that_is_too_old_is_named():
    with (
        pytest.raises(
            UserError, match=r"this needs a fairseq that has fairseq\.none: READTHEDOCS=1 pip"
        ),
        fairseq_needed("this"),
    ):
        import fairseq.none  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match="'fairseq_other'"), fairseq_needed("this"):
        import fairseq_other  # noqa: F401


def test_the_message_names_what_the_project_requires():
    distribution = INSTALL_FAIRSEQ.split()[-1]
    assert f'"{distribution}"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert INSTALL_FAIRSEQ in (REPOSITORY / "README.md").read_text(encoding="utf-8")
