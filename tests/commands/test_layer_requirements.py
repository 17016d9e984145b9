"""What each layer of the package needs installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.repository import REPOSITORY

PACKAGE = REPOSITORY / "fairseq_phrase"


#: Encoders, decoders, options and losses of fairseq. All other files of methods need torch alone.
OF_FAIRSEQ = {
    f"fairseq_phrase.methods.{name}" for name in (
        "config", "encoder_method", "model_parts", "syntax_decoder", "syntax_encoder",
        "transformer_encoder", "accumulation.tree_transformer", "copying.copying_decoder",
        "losses.added_losses", "losses.tree_losses", "parents.parent_scaled_transformer",
        "phrases.phrase_transformer",
        "positions.structural_transformer",
        "recurrent.recurrent_encoders", "relations.relation_options", "relations.relation_transformer",
        "xl.xl_transformer",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "missing"),
    [
        ("syntax", ["torch", "fairseq", "spacy", "sentencepiece"]),
        ("methods", ["fairseq", "spacy", "sentencepiece"]),
        ("parsers", ["torch", "fairseq"]),
    ],
)
def test_a_layer_works_where_what_it_does_not_need_is_not_installed(layer, missing):
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for path in (PACKAGE / layer).rglob("[a-z]*.py")
    ]
    modules = [name for name in modules if name not in OF_FAIRSEQ]
    code = "import sys\n"
    code += "".join(f"sys.modules[{name!r}] = None\n" for name in missing)
    code += "".join(f"import {name}\n" for name in modules)
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
