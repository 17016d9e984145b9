"""``--arch seq2seq``: a recurrent decoder with attention, after a recurrent or any registered encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from fairseq.dataclass import ChoiceEnum
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import nested_config
from fairseq_phrase.models.copying import CopyOptions, copies, copying_class
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.models.named_encoder import (
    NamedEncoderModel,
    build_named_encoder,
    register_named_model,
)
from fairseq_phrase.models.seq2seq_decoder import Seq2SeqDecoder
from fairseq_phrase.models.seq2seq_encoder import RECURRENT, Seq2SeqEncoder, encoder_width
from fairseq_phrase.modules.recurrent_attention.cells import CELLS
from fairseq_phrase.modules.recurrent_attention.source_attention import SCORES, WINDOWS


@dataclass
class Seq2SeqOptions(CopyOptions):
    """Options of ``--arch seq2seq``. Sizes of embeddings, layers and dropout are fairseq's options."""

    encoder: str = option(
        RECURRENT,
        "the encoder: recurrent, or any registered one (transformer, phrase_transformer, …) with "
        "its own options and --encoder-layers 1 unless it is given",
    )
    cell: ChoiceEnum(list(CELLS)) = option(  # type: ignore[valid-type]
        "lstm", "the recurrent cell of encoder and decoder"
    )
    encoder_layers: int = option(1, "num encoder layers")
    decoder_layers: int = option(1, "num decoder layers")
    encoder_hidden_size: int = option(
        512, "width of the recurrent encoder's states, of each direction"
    )
    decoder_hidden_size: int = option(512, "width of the decoder's states")
    encoder_bidirectional: bool = option(False, "run the recurrent encoder in both directions")
    self_attention: ChoiceEnum(["none", "plain", "bilinear"]) = option(  # type: ignore[valid-type]
        "none",
        "self-attention over the recurrent encoder's states: without parameters (plain), or with "
        "a full matrix for each of --encoder-attention-heads (bilinear); with --encoder-layers 0,"
        " over the embeddings",
    )
    attention: ChoiceEnum(["none", *SCORES]) = option(  # type: ignore[valid-type]
        "bilinear", "the score of a source state for a decoder state; none: no attention"
    )
    attention_time: ChoiceEnum(["after", "before"]) = option(  # type: ignore[valid-type]
        "after",
        "attend from the state after the cell (Luong), or from the state before it, with the "
        "context as the cell's input (Bahdanau)",
    )
    input_feeding: bool = option(
        False, "feed the attentional state to the next step's cell (Luong)"
    )
    attention_window: ChoiceEnum(list(WINDOWS)) = option(  # type: ignore[valid-type]
        "all",
        "attend to all of the source, or near the target's own position (local-m), or near a "
        "predicted position (local-p)",
    )
    window_size: int = option(10, "D: positions that a window reaches to each side of its centre")
    attention_output: ChoiceEnum(["tanh", "linear"]) = option(  # type: ignore[valid-type]
        "tanh",
        "the output layer reads tanh(W [context; state]), of the width of the decoder's "
        "embeddings (tanh, Luong), or [context; state] (linear)",
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
class Seq2SeqModel(NamedEncoderModel, FairseqEncoderDecoderModel):
    """A recurrent translation model, by options from no attention to local attention.

    The mathematics is in ``docs/models/recurrent.md``.

    Args:
        cfg: fairseq's nested options with those of this model.
    """

    def __init__(self, cfg: TransformerConfig, encoder: Any, decoder: Any) -> None:
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
            return cls(cfg, encoder, Seq2SeqDecoder(cfg, target, target_embedding))
        decoder = copying_class(Seq2SeqDecoder)(cfg, target, target_embedding)
        decoder.start_copying(str(cfg.copy), encoder_width(cfg), task)
        return cls(cfg, encoder, decoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None,
        prev_output_tokens: Tensor,
        features_only: bool = False,
        return_all_hiddens: bool = False,
        **parses: Tensor,
    ) -> tuple[Tensor, dict[str, list[Any]]]:
        """Encode, and decode the whole target; for the arguments see :class:`SyntaxTransformerModel`."""
        encoder_out = self.encoder(
            src_tokens, src_lengths=src_lengths, return_all_hiddens=return_all_hiddens, **parses
        )
        return cast(
            tuple[Tensor, dict[str, list[Any]]],
            self.decoder(prev_output_tokens, encoder_out=encoder_out, features_only=features_only),
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


def check_options(cfg: Any) -> None:
    """Check that the options do not contradict one another.

    Args:
        cfg: fairseq's nested options with :class:`Seq2SeqOptions`.

    Raises:
        UserError: they do; the message names the option to change.
    """
    attends = cfg.attention != "none"
    for name, on in {
        "--input-feeding": cfg.input_feeding,
        "--attention-time before": cfg.attention_time == "before",
        f"--attention-window {cfg.attention_window}": cfg.attention_window != "all",
    }.items():
        if on and not attends:
            raise UserError(f"{name} needs attention: choose --attention bilinear, or leave it out")
    if cfg.input_feeding and cfg.attention_time == "before":
        raise UserError(
            "--input-feeding goes with --attention-time after: with before, the context is the cell's "
            "input already"
        )
    if cfg.attention_window != "all" and cfg.window_size < 1:
        raise UserError(
            f"--window-size {cfg.window_size}: expected at least 1 position to each side "
            "(--attention-window all attends to the whole source)"
        )
    if cfg.encoder_name != RECURRENT:
        for name, on in {
            "--encoder-bidirectional": cfg.encoder_bidirectional,
            f"--self-attention {cfg.self_attention}": cfg.self_attention != "none",
        }.items():
            if on:
                raise UserError(f"{name} goes with --encoder recurrent, not {cfg.encoder_name}")
    elif cfg.encoder.layers < 1 and cfg.self_attention == "none":
        raise UserError("--encoder-layers 0 needs --self-attention plain or bilinear")
    # Without attention, the decoder starts from the recurrent layers' last state.
    if cfg.self_attention != "none" and cfg.encoder.layers and not attends and cfg.copy == "none":
        raise UserError(
            f"--self-attention {cfg.self_attention} makes states which nothing reads with --attention "
            "none: choose --attention bilinear, --copy joint or --encoder-layers 0, or leave it out"
        )
    if cfg.decoder.layers < 1:
        raise UserError(f"--decoder-layers {cfg.decoder.layers}: expected at least 1")
    if cfg.self_attention == "bilinear":
        width, heads = encoder_width(cfg), cfg.encoder.attention_heads
        if width % heads:
            raise UserError(
                f"--encoder-attention-heads {heads} does not divide the width {width} of the encoder's "
                f"states ({_origin_of_width(cfg)})"
            )
    if cfg.adaptive_softmax_cutoff is not None:
        raise UserError("--adaptive-softmax-cutoff: --arch seq2seq has one softmax over all words")
    _check_widths(cfg)


def _origin_of_width(cfg: Any) -> str:
    """Return the options that make the width of the encoder's states."""
    if cfg.encoder_name != RECURRENT or not cfg.encoder.layers:
        return f"--encoder-embed-dim {cfg.encoder.embed_dim}"
    times = "2 × " if cfg.encoder_bidirectional else ""
    return f"{times}--encoder-hidden-size {cfg.encoder_hidden_size}"


def _check_widths(cfg: Any) -> None:
    source, width = encoder_width(cfg), cfg.decoder_hidden_size
    if cfg.attention == "dot" and source != width:
        raise UserError(
            f"--attention dot needs states of one width, but the encoder's have {source} "
            f"({_origin_of_width(cfg)}) and the decoder's {width}: set --decoder-hidden-size {source}, "
            "or choose --attention bilinear"
        )
    shares = {
        "--share-all-embeddings": cfg.share_all_embeddings,
        "--share-decoder-input-output-embed": cfg.share_decoder_input_output_embed,
    }
    shared = " and ".join(flag for flag, on in shares.items() if on)
    if not shared:
        return
    if cfg.attention == "none" and width != cfg.decoder.embed_dim:
        raise UserError(
            f"embeddings of width {cfg.decoder.embed_dim} cannot be the output layer of states of width "
            f"{width}: set --decoder-embed-dim {width}, or leave {shared} out"
        )
    if cfg.attention != "none" and cfg.attention_output == "linear":
        raise UserError(
            f"--attention-output linear has an output layer of another width: leave {shared} out"
        )
