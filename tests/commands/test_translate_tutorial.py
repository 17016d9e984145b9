"""The commands of docs/tutorials/translate.md run, and then the Python of docs/translate.md."""

from __future__ import annotations

import re

import pytest

from fairseq_phrase.inference.exports import export_transformers
from tests.support.documented import run_page
from tests.support.repository import REPOSITORY


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the commands run."""
    return tmp_path_factory.mktemp("tutorial")


def test_the_commands_of_the_tutorial_run(spacy_pipeline, folder):
    _, trees, _, readings, scores_of_text, _, _ = run_page(
        "docs/tutorials/translate.md", folder,
        {"--train 20000": "--train 300", "spacy:de_core_news_sm": f"'spacy:{spacy_pipeline}'"},
    )  # fmt: skip
    assert trees.count("Der Mann wird manchmal die Zeitung vom Anwalt stehlen.") == 2
    assert len(readings.splitlines()) == 2
    assert re.fullmatch(r"(-\d+\.\d+\t.*\n){2}", scores_of_text)
    assert (folder / "attention.png").stat().st_size > 10_000


def test_the_python_of_the_page_on_translation_runs(spacy_pipeline, folder, longest_translation):
    """With the model that the commands trained."""
    longest_translation(16)
    checkpoint = folder / "checkpoints" / "trees" / "checkpoint_best.pt"
    data, exported = folder / "data-bin" / "synthetic", folder / "chains.hf"
    export_transformers(checkpoint, data, exported, f"spacy:{spacy_pipeline}")
    page = (REPOSITORY / "docs" / "translate.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    options = f'source_parser="spacy:{spacy_pipeline}", device="cpu")'
    replacements = {
        '"runs/chains/seed1/average.pt", "data-bin/multi30k.de-en")': (
            f'"{checkpoint}", "{data}", {options}'
        ),
        'load("chains.hf")': f'load("{exported}", {options}',
        '"chains.hf"': f'"{exported}"',
        "num_beams=5": "num_beams=5, max_length=12",
    }
    code = "\n".join(blocks)
    for text, replaced in replacements.items():
        assert text in code
        code = code.replace(text, replaced)
    names: dict = {}
    exec(code, names)
    assert names["sentence"].words == ["Ein", "Hund", "läuft", "."]
    assert names["found"].shape[0] == 2
