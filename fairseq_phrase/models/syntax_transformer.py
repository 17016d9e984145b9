"""The translation model: fairseq's Transformer with a registered encoder; its batches carry parses."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerModelBase,
)
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.copying import copies, copying_class
from fairseq_phrase.models.encoder_method import EncoderMethod
from fairseq_phrase.models.syntax_encoder import neutral_obstacle


def over_tokens(weights: Tensor, encoder_out: dict[str, list[Any]]) -> Tensor:
    """Keep the columns of attention to tokens: an encoder's other nodes follow them.

    Args:
        weights: Shape: (..., nodes).
        encoder_out: from an encoder. fairseq's own encoders leave ``src_tokens`` empty; their nodes are
            the tokens.

    Returns:
        The weights as they are, so they sum to less than 1 where other nodes have the rest.
        Shape: (..., tokens).
    """
    tokens = encoder_out["src_tokens"]
    return weights[..., : tokens[0].size(1)] if tokens else weights


class SyntaxDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder, for encoders whose nodes are more than the source tokens."""

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Decode without the output projection.

        Args:
            prev_output_tokens: target, shifted right. Shape: (rows, target tokens).

        Returns:
            What fairseq returns. ``attn`` has one column for each source token, because its users expect
            that (alignments, unknown words, copying, coverage, ensembles); ``node_attn`` has one for
            each node. Shapes: (rows, target tokens, tokens) and (rows, target tokens, nodes).
        """
        features, extra = super().extract_features(prev_output_tokens, encoder_out, *args, **kwargs)
        extra["node_attn"] = extra["attn"]
        extra["attn"] = [
            weights if weights is None else over_tokens(weights, encoder_out)
            for weights in extra["attn"]
        ]
        return features, extra


def require_parses(method: EncoderMethod, cfg: Any, task: Any) -> None:
    """Ask the task for the parses that an encoder needs, and for their labels.

    Args:
        cfg: fairseq's nested options; ``count_labels`` is set to a function that returns the number of
            labels of a parse field, special ones included, and ``label_number`` to one that returns the
            number of one label of a field.

    Raises:
        UserError: the task or its data lack the parses, or the options contradict one another.
    """
    needed = list(method.parse_fields(cfg))
    if getattr(cfg, "neutral_start", False) and (obstacle := neutral_obstacle(method.encoder, cfg)):
        raise UserError(f"--neutral-start, {method.name}: {obstacle}")
    cfg.count_labels = lambda field: len(task.label_dictionary(field))
    cfg.label_number = lambda field, label: task.label_dictionary(field).index(label)
    if not needed:
        return
    if not hasattr(task, "require_parses"):
        raise UserError(
            f"this model needs the source's {' and '.join(needed)}: use --task "
            "syntax_translation or syntax_labelling, on data made by fairseq-phrase-preprocess or -attach"
        )
    task.require_parses(needed)
    made = getattr(method.encoder, "batch_structure", lambda *_: None)(cfg, task.source_dictionary)
    if made is not None and hasattr(task, "require_structure"):
        task.require_structure(*made)


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
    def build_model(cls, cfg: Any, task: Any) -> SyntaxTransformerModel:
        """Build the model, and ask the task for the parses that it needs.

        Raises:
            UserError: the task or its data lack the parses, or the options contradict one another.
        """
        cfg = nested_config(cfg)
        require_parses(cls.method, cfg, task)
        copying = copies(cfg)
        model = super().build_model(cfg, task)
        if copying:
            model.decoder.start_copying(str(cfg.copy), cfg.encoder.embed_dim, task)
        return cast(SyntaxTransformerModel, model)

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Any, embed_tokens: nn.Embedding
    ) -> Any:
        """Build the registered encoder."""
        return cls.method.encoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Any, embed_tokens: nn.Embedding
    ) -> Any:
        """Build the method's own decoder, or the one of all others."""
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
                :func:`fairseq_phrase.batch.source_batches.collate_parses` makes them.
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return self.decoder(
            prev_output_tokens, encoder_out=encoder_out, features_only=features_only,
            alignment_layer=alignment_layer, alignment_heads=alignment_heads,
            src_lengths=src_lengths, return_all_hiddens=return_all_hiddens,
        )  # fmt: skip
