"""``--arch seq2seq``: a recurrent decoder with attention, after a recurrent or any registered encoder."""

from __future__ import annotations

from typing import Any

from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.copying import copies, copying_class
from fairseq_phrase.models.named_encoder import (
    NamedEncoderModel,
    build_named_encoder,
    register_named_model,
)
from fairseq_phrase.models.pretrained import PretrainedModel
from fairseq_phrase.models.seq2seq_decoder import Seq2SeqDecoder
from fairseq_phrase.models.seq2seq_encoder import Seq2SeqEncoder
from fairseq_phrase.models.seq2seq_options import (
    RECURRENT,
    Seq2SeqOptions,
    check_options,
    encoder_width,
)


def _sizes(width: int, **options: Any) -> dict[str, Any]:
    names = ("embed_dim", "hidden_size")
    return {f"{side}_{name}": width for side in ("encoder", "decoder") for name in names} | options


@register_named_model(
    "seq2seq",
    options=Seq2SeqOptions,
    presets={
        "tiny": _sizes(128),
        # As fairseq's lstm_luong_wmt_en_de.
        "luong_wmt_en_de": _sizes(
            1000, encoder_layers=4, decoder_layers=4, input_feeding=True, attention_window="local-p"
        ),
    },
)
class Seq2SeqModel(PretrainedModel, NamedEncoderModel, FairseqEncoderDecoderModel):
    """A recurrent translation model, by options from no attention to local attention.

    The mathematics is in ``docs/models/recurrent.md``.

    Args:
        cfg: fairseq's nested options with those of this model.
        encoder: the encoder.
        decoder: the decoder.
    """

    def __init__(self, cfg: TransformerConfig, encoder: Any, decoder: Any):
        super().__init__(encoder, decoder)
        self.cfg = cfg

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> Seq2SeqModel:
        """Build the model, and ask the task for the parses that its encoder needs.

        Raises:
            UserError: the options contradict one another, or the data lack parses.
        """
        cfg = nested_config(cfg)
        check_options(cfg)
        source_embedding, target_embedding = _embeddings(cfg, task)
        if cfg.encoder_name == RECURRENT:
            encoder = Seq2SeqEncoder(cfg, task.source_dictionary, source_embedding)
        else:
            encoder = build_named_encoder(cfg, task, task.source_dictionary, source_embedding)
        target = task.target_dictionary
        if not copies(cfg):
            model = cls(cfg, encoder, Seq2SeqDecoder(cfg, target, target_embedding))
            model.use_pretrained(cfg, task)
            return model
        decoder = copying_class(Seq2SeqDecoder)(cfg, target, target_embedding)
        decoder.start_copying(str(cfg.copy), encoder_width(cfg), task)
        model = cls(cfg, encoder, decoder)
        model.use_pretrained(cfg, task)
        return model

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        **parses: Tensor,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Encode, and decode the whole target.

        Args:
            src_tokens: source, padded. Shape: (batch, tokens).
            src_lengths: source lengths. Shape: (batch,).
            prev_output_tokens: target, shifted right. Shape: (batch, target tokens).
            features_only: leave the output layer out.
            return_all_hiddens: also return every encoder layer's states.
            **parses: ``src_words``, ``src_heads``, … for encoders that need them.
        """
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return self.decoder(
            prev_output_tokens, encoder_out=encoder_out, features_only=features_only
        )


def _embeddings(cfg: TransformerConfig, task: Any) -> tuple[nn.Embedding, nn.Embedding]:
    """Make the embeddings of both sides; one for both with ``--share-all-embeddings``.

    Raises:
        UserError: they cannot be shared.
    """
    build = TransformerModelBase.build_embedding
    source = build(cfg, task.source_dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path)
    if not cfg.share_all_embeddings:
        path = cfg.decoder.embed_path
        return source, build(cfg, task.target_dictionary, cfg.decoder.embed_dim, path)
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            "--share-all-embeddings needs one dictionary of both languages: make the data with "
            "--joined-dictionary"
        )
    if cfg.encoder.embed_dim != cfg.decoder.embed_dim:
        raise UserError(
            f"--share-all-embeddings needs one width: --encoder-embed-dim {cfg.encoder.embed_dim} and "
            f"--decoder-embed-dim {cfg.decoder.embed_dim}"
        )
    cfg.share_decoder_input_output_embed = True
    return source, source
