"""Small recurrent models."""

from __future__ import annotations

from typing import Any

from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_phrase.checkpoints.loading import register
from fairseq_phrase.testing import build_configured

SIZES = {
    "encoder_embed_dim": 16, "decoder_embed_dim": 16, "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2, "encoder_hidden_size": 12, "decoder_hidden_size": 10,
    "encoder_layers": 2, "decoder_layers": 2,
}  # fmt: skip


def build_recurrent(dictionary: Dictionary, **options: Any) -> Any:
    """Build a small recurrent translation model, as ``build_model`` builds others."""
    register()
    config = MODEL_DATACLASS_REGISTRY["seq2seq"](**{**SIZES, "dropout": 0.0, **options})
    return build_configured("seq2seq", config, dictionary)
