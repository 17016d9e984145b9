"""The options of ``--arch seq2seq``, and what contradicts what in them."""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.copying.copying_decoder import CopyOptions
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.recurrent.attentive_layers import CELLS
from fairseq_phrase.methods.recurrent.source_attention import SCORES, WINDOWS

#: The value of ``--encoder`` for :class:`RecurrentEncoder`, the only unregistered encoder.
RECURRENT = "recurrent"


@dataclass
class Seq2SeqOptions(CopyOptions):
    """Options of ``--arch seq2seq``. Sizes of embeddings, layers and dropout are fairseq's options."""

    # fmt: off
    encoder: str = option(RECURRENT,
        "the encoder: recurrent, or any registered one (transformer, phrase_transformer, …) with "
        "its own options and --encoder-layers 1 unless it is given")
    cell: ChoiceEnum(list(CELLS)) = option("lstm",  # type: ignore[valid-type]
        "the recurrent cell of encoder and decoder")
    encoder_layers: int = option(1, "num encoder layers")
    decoder_layers: int = option(1, "num decoder layers")
    encoder_hidden_size: int = option(512,
        "width of the recurrent encoder's states, of each direction")
    decoder_hidden_size: int = option(512, "width of the decoder's states")
    encoder_bidirectional: bool = option(False, "run the recurrent encoder in both directions")
    self_attention: ChoiceEnum(["none", "plain", "bilinear"]) = option("none",  # type: ignore[valid-type]
        "self-attention over the recurrent encoder's states: without parameters (plain), or with "
        "a full matrix for each of --encoder-attention-heads (bilinear); with --encoder-layers 0,"
        " over the embeddings")
    attention: ChoiceEnum(["none", *SCORES]) = option("bilinear",  # type: ignore[valid-type]
        "the score of a source state for a decoder state; none: no attention", part="decoder")
    attention_time: ChoiceEnum(["after", "before"]) = option("after",  # type: ignore[valid-type]
        "attend from the state after the cell (Luong), or from the state before it, with the "
        "context as the cell's input (Bahdanau)", part="decoder")
    input_feeding: bool = option(False,
        "feed the attentional state to the next step's cell (Luong)", part="decoder")
    attention_window: ChoiceEnum(list(WINDOWS)) = option("all",  # type: ignore[valid-type]
        "attend to all of the source, or near the target's own position (local-m), or near a "
        "predicted position (local-p)", part="decoder")


def encoder_width(cfg: Any) -> int:
    """Return the width of the encoder's states."""
    if cfg.encoder_name != RECURRENT or not cfg.encoder.layers:
        return int(cfg.encoder.embed_dim)
    return int(cfg.encoder_hidden_size * (2 if cfg.encoder_bidirectional else 1))


def check_options(cfg: Any) -> None:
    """Check that the options do not contradict each other.

    Raises:
        UserError: two options contradict each other; the message names the option to change.
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
            "--input-feeding needs --attention-time after: with before, the context is the cell's "
            "input already"
        )
    if cfg.encoder_name != RECURRENT:
        for name, on in {
            "--encoder-bidirectional": cfg.encoder_bidirectional,
            f"--self-attention {cfg.self_attention}": cfg.self_attention != "none",
        }.items():
            if on:
                raise UserError(f"{name} needs --encoder recurrent, not {cfg.encoder_name}")
    elif cfg.encoder.layers < 1 and cfg.self_attention == "none":
        raise UserError("--encoder-layers 0 needs --self-attention plain or bilinear")
    # Without attention, the decoder reads only the last state of the recurrent layers.
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
    """Return the options that determine the width of the encoder's states."""
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
