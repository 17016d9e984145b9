"""``fairseq_phrase.torch`` imports little, and its example trains."""

from __future__ import annotations

import runpy
import subprocess
import sys

import torch
import transformers

from tests.support.repository import REPOSITORY


def test_neither_fairseq_nor_spacy_is_imported():
    check = "import sys, fairseq_phrase.torch; print({'fairseq', 'spacy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_example_trains():
    transformers.set_seed(1)
    made = runpy.run_path(str(REPOSITORY / "examples/huggingface_tree_bias/train.py"))
    assert made["loss"].item() < 0.3
    for module in made["model"].modules():
        if hasattr(module, "relation_bias"):
            assert module.relation_bias.tree_bias.abs().sum() > 0
    trained, loaded = (made[name].state_dict() for name in ("model", "loaded"))
    assert trained.keys() == loaded.keys()
    for name, values in trained.items():
        assert torch.equal(values, loaded[name]), name
