"""What the models of this package share: fairseq's Transformer whose encoder also takes parses."""

from typing import Any

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models.transformer import TransformerModelBase

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import nested_config


class SyntaxTransformerModel(TransformerModelBase):
    """fairseq's Transformer with an encoder over parses; to the decoder nothing has changed.

    A model says what it needs in :meth:`needed_parses`, builds its encoder in ``build_encoder`` and is
    registered with :func:`fairseq_phrase.models.config.register_presets`.
    """

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags of the registered options."""
        gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")(), delete_default=True)

    @classmethod
    def needed_parses(cls, cfg: Any) -> list[str]:
        """Name the fields of :data:`fairseq_phrase.store.fields.FIELDS` that the encoder takes.

        Raises:
            UserError: the options contradict one another.
        """
        raise NotImplementedError

    @classmethod
    def require_parses(cls, cfg: Any, task: Any) -> None:
        """Ask the task for the parses that the model needs.

        Raises:
            UserError: the task or its data have no such parses, or the options contradict one another.
        """
        needed = cls.needed_parses(cfg)
        if not needed:
            return
        if not hasattr(task, "require_parses"):
            raise UserError(
                f"this model needs the source's {' and '.join(needed)}: use --task "
                "syntax_translation, on data made by fairseq-phrase-preprocess"
            )
        task.require_parses(needed)

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "SyntaxTransformerModel":
        """Build the model, and ask the task for the parses that it needs.

        Raises:
            UserError: see :meth:`require_parses`.
        """
        cfg = nested_config(cfg)
        cls.require_parses(cfg, task)
        return super().build_model(cfg, task)

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
            src_tokens: source, padded. Shape: ``(batch, tokens)``.
            src_lengths: source lengths. Shape: ``(batch,)``.
            prev_output_tokens: target, shifted right. Shape: ``(batch, target tokens)``.
            return_all_hiddens: also return every layer's states.
            features_only: leave the output projection out.
            alignment_layer: decoder layer whose cross-attention is returned.
            alignment_heads: number of its heads to average.
            **parses: ``src_words``, ``src_heads`` and ``src_spans``, as
                :func:`fairseq_phrase.batch.syntax_dataset.collate_parses` makes them.
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
        )
