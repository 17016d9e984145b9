"""What another library's Transformer computes: the options of fairseq's, one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerModel, TransformerModelBase
from fairseq.models.transformer_align import TransformerAlignModel

__all__ = ["ANY", "obstacle", "stock_options"]

#: Every value of an option.
ANY = None

#: Options that change nothing in what a trained model computes, while those they depend on are refused.
_WITHOUT_EFFECT = dict.fromkeys(
    [
        "dropout",
        "attention_dropout",
        "activation_dropout",
        "relu_dropout",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "encoder_embed_path",
        "decoder_embed_path",
        "max_source_positions",
        "max_target_positions",
        "adaptive_softmax_dropout",
        "adaptive_softmax_factor",
        "tie_adaptive_weights",
        "tie_adaptive_proj",
        "quant_noise_pq_block_size",
        "checkpoint_activations",
        "offload_activations",
        "min_params_to_wrap",
        "base_sublayers",
        "base_shuffle",
        "export",
    ],
    ANY,
)
#: Options that every other library has.
_COMMON = dict.fromkeys(
    [
        *(
            f"{side}_{name}"
            for side in ("encoder", "decoder")
            for name in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")
        ),
        "decoder_input_dim",
        "decoder_output_dim",
        "share_decoder_input_output_embed",
        "share_all_embeddings",
        "no_scale_embedding",
    ],
    ANY,
)


def stock_options(cfg: Any = TransformerConfig) -> dict[str, Any]:
    """List the options of fairseq's Transformer by the names of their flags.

    Args:
        cfg: fairseq's nested options; the defaults if none are given.
    """
    options: dict[str, Any] = {}
    for each in fields(TransformerConfig):
        value = getattr(cfg, each.name)
        if is_dataclass(each.default):
            parts = fields(each.default)
            options |= {f"{each.name}_{part.name}": getattr(value, part.name) for part in parts}
        else:
            options[each.name] = value
    return {name: value for name, value in options.items() if not name.endswith("_name")}


def obstacle(model: Any, supported: Mapping[str, Collection[Any] | None]) -> str | None:
    """Return what keeps a model from another library's form; None if nothing does.

    Args:
        model: a model.
        supported: by option, the values that the library computes, or :data:`ANY`. Every option that is
            neither here nor common to all libraries must have fairseq's default, so that one that fairseq
            adds is refused.
    """
    kinds = (TransformerModel, TransformerModelBase, TransformerAlignModel)
    if type(model) not in kinds:
        return f"a {type(model).__name__}, which is not fairseq's Transformer"
    supported = {**_WITHOUT_EFFECT, **_COMMON, **supported}
    defaults = stock_options()
    options = stock_options(model.cfg)
    for name, value in options.items():
        allowed = supported.get(name, (defaults[name],))
        if allowed is not ANY and value not in allowed and (value or any(allowed)):
            return _flag(name, value)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if options[name] != options["decoder_embed_dim"]:
            return f"{_flag(name, options[name])} beside another --decoder-embed-dim"
    return None


def _flag(name: str, value: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {value}"
