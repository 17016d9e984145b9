"""The translation model: fairseq's Transformer with a registered encoder; its batches carry parses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import nn

from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.copying.copying_decoder import copies, copying_class
from fairseq_phrase.methods.encoder_method import EncoderMethod
from fairseq_phrase.methods.syntax_decoder import SyntaxDecoder
from fairseq_phrase.models.syntax_task import SyntaxTask, require_parses

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class SyntaxTransformerModel(TransformerModelBase):
    """fairseq's Transformer with an encoder that reads parses.

    :mod:`fairseq_phrase.models.architectures` makes a subclass for every registered encoder.
    """

    method: ClassVar[EncoderMethod]

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags of the registered options."""
        gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")(), delete_default=True)

    @classmethod
    def build_model(cls, cfg: Any, task: SyntaxTask) -> SyntaxTransformerModel:
        """Build the model, and ask the task for the parses that it needs."""
        cfg = nested_config(cfg)
        require_parses(cls.method, cfg, task)
        copying = copies(cfg)
        model = super().build_model(cfg, task)
        if copying:
            from fairseq_phrase.data.store.data_directory import check_copying

            check_copying(task)
            model.decoder.start_copying(str(cfg.copy), cfg.encoder.embed_dim, task)
        return cast(SyntaxTransformerModel, model)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> Any:
        """Build the registered encoder."""
        return cls.method.encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> Any:
        """Build the method's own decoder, or the default decoder."""
        decoder = cls.method.decoder or SyntaxDecoder
        if copies(cfg):
            decoder = copying_class(decoder)
        return decoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def forward(
        self,
        src_tokens: torch.Tensor,
        src_lengths: torch.Tensor,
        prev_output_tokens: torch.Tensor,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
        **parses: torch.Tensor,
    ) -> Any:
        """Encode with the parses, and decode as fairseq's Transformer does.

        Args:
            src_tokens: source, padded. Shape: (batch, tokens).
            src_lengths: source lengths. Shape: (batch,).
            prev_output_tokens: target, shifted right. Shape: (batch, target tokens).
            **parses: ``src_words``, ``src_heads`` and ``src_spans``, as
                :func:`fairseq_phrase.data.batches.source_batches.collate_parses` makes them.
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return self.decoder(
            prev_output_tokens, encoder_out=encoder_out, features_only=features_only,
            alignment_layer=alignment_layer, alignment_heads=alignment_heads,
            src_lengths=src_lengths, return_all_hiddens=return_all_hiddens,
        )  # fmt: skip
