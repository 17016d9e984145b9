"""How the tests shorten the scripts of tables: tiny models, a few updates, a slice of the text."""

from __future__ import annotations

from pathlib import Path

from tests.support.repository import shared_pipeline

TINY = " ".join(
    f"--{side}-{name} {value}"
    for side in ("encoder", "decoder")
    for name, value in (
        ("layers", 1), ("embed-dim", 16), ("ffn-embed-dim", 16), ("attention-heads", 2)
    )
)  # fmt: skip
FEW = [
    "--max-update", "4", "--train-flags", f"{TINY} --max-tokens 500 --update-freq 1 --num-workers 0",
    "--generate-flags", "--max-len-a 0 --max-len-b 5", "--jobs", "2", "--slice", "300",
]  # fmt: skip


def pipeline_of(language: str, fallback: Path) -> str:
    """A parser of a language for the scripts."""
    return f"spacy:{shared_pipeline({'en': 'en_ewt_sm', 'de': 'de_ud_sm'}[language]) or fallback}"
