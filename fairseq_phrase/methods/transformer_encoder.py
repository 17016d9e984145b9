"""fairseq's Transformer encoder as a registered encoder, for models that choose one by its name."""

from __future__ import annotations

from typing import Any

from fairseq.models.transformer import TransformerConfig

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.encoder_method import register_encoder
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoder


# No translation architecture: fairseq already has one of this name.
@register_encoder("transformer", translation=False)
class TransformerEncoder(SyntaxEncoder):
    """fairseq's Transformer encoder: its layers and its ``forward``; parses are ignored."""

    @classmethod
    def is_plain(cls, cfg: TransformerConfig) -> bool:
        """Return True: fairseq's own layers and ``forward`` run."""
        return True

    def root_nodes(self, encoded: dict[str, list[Any]], parse: ParseBatch) -> None:
        """Return None: the encoder does not read trees."""
        return
