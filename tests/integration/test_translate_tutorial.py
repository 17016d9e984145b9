"""The commands of docs/tutorials/translate.md run, and then the Python of docs/translate.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fairseq_phrase.inference import translator
from fairseq_phrase.inference.transformers_export import export_transformers
from tests.support import warm_start
from tests.support.repository import REPOSITORY

# Nothing is downloaded here, and the page of the demo has tests of its own.
LEFT_OUT = ("python -m spacy download", "fairseq-phrase-demo")


def commands(pipeline: Path) -> list[str]:
    """The page's commands, with a small corpus and a short training."""
    page = (REPOSITORY / "docs" / "tutorials" / "translate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    small = {
        "--train 20000": "--train 300",
        "--vocab-size 800": "--vocab-size 300",
        "--max-epoch 3": "--max-update 3 --cpu",
        "--gen-subset test": "--gen-subset test --max-len-b 8 --cpu",
        "spacy:de_core_news_sm": f"spacy:{pipeline}",
        "--user-dir fairseq_phrase": f"--user-dir {REPOSITORY / 'fairseq_phrase'}",
        # It changes how its output is encoded, which a fork cannot do.
        "fairseq-phrase-inspect": f"{warm_start.REAL}/fairseq-phrase-inspect",
    }
    found = []
    for line in lines:
        if not line.startswith(LEFT_OUT):
            for long, short in small.items():
                line = line.replace(long, short)
            found.append(line)
    assert all(any(short in line for line in found) for short in small.values())
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands run."""
    return tmp_path_factory.mktemp("tutorial")


def test_the_commands_of_the_tutorial_run(spacy_pipeline, folder):
    path = f"{warm_start.commands()}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    printed = []
    for command in commands(spacy_pipeline):
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=folder, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stderr[-2000:])
        printed.append(done.stdout)
    _, _, trees, _, _, readings, own, _ = printed
    assert trees.count("Der Mann wird manchmal die Zeitung vom Anwalt stehlen.") == 2
    assert len(readings.splitlines()) == 2
    assert re.fullmatch(r"(-\d+\.\d+\t.*\n){2}", own)
    assert (folder / "attention.png").stat().st_size > 10_000


def test_the_python_of_the_page_on_translation_runs(spacy_pipeline, folder, monkeypatch):
    """With the model that the commands trained."""
    monkeypatch.setattr(translator, "longest_target", lambda source: 10)
    checkpoint = folder / "checkpoints" / "trees" / "checkpoint_best.pt"
    data, exported = folder / "data-bin" / "synthetic", folder / "chains.hf"
    export_transformers(checkpoint, data, exported, f"spacy:{spacy_pipeline}")
    page = (REPOSITORY / "docs" / "translate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    options = f'source_parser="spacy:{spacy_pipeline}", device="cpu")'
    here = {
        '"runs/chains/seed1/average.pt", "data-bin/multi30k.de-en")': (
            f'"{checkpoint}", "{data}", {options}'
        ),
        'load("chains.hf")': f'load("{exported}", {options}',
        '"chains.hf"': f'"{exported}"',
        "num_beams=5": "num_beams=5, max_length=12",
    }
    code = "\n".join(blocks)
    for said, replaced in here.items():
        assert said in code
        code = code.replace(said, replaced)
    names: dict = {}
    exec(code, names)
    assert names["sentence"].words == ["Ein", "Hund", "läuft", "."]
    assert names["found"].shape[0] == 2
