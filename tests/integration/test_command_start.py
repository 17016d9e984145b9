"""How commands start: nothing heavy is imported before the arguments are read."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.repository import REPOSITORY

# Each of these takes from a tenth of a second to several seconds.
HEAVY = {
    "torch", "fairseq", "spacy", "stanza", "numpy", "scipy", "sacrebleu", "sentencepiece", "tqdm",
    "matplotlib", "ray", "omegaconf", "hydra", "yaml", "jinja2", "transformers", "safetensors",
}  # fmt: skip
CODE = """
import importlib, json, pkgutil, sys
from fairseq_phrase import cli
for module in pkgutil.iter_modules(cli.__path__):
    command = importlib.import_module(f"{cli.__name__}.{module.name}")
    if hasattr(command, "_parser"):
        assert command._parser().format_help()
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_help_and_version_import_nothing_heavy():
    # In a process of its own, because the tests have imported everything.
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    imported = set(json.loads(done.stdout))
    assert "argparse" in imported
    assert imported & HEAVY == set()
