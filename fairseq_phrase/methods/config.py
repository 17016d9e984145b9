"""One flat set of options for ``fairseq-train`` flags and ``fairseq-hydra-train`` YAML.

fairseq's ``TransformerConfig`` nests the encoder's and the decoder's options. A subclass of it cannot be
registered, because its nested defaults arrive as classes. The legacy registration without a dataclass
does not work with hydra. So this module flattens the fields and names them as fairseq's flags
(``encoder_embed_dim``), which works for both. :func:`nested_config` nests them again.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import Field, field, fields, make_dataclass
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from omegaconf import II, OmegaConf

from fairseq_phrase.errors import UserError

_NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}


def _flat_fields() -> list[tuple[str, Any, Field[Any]]]:
    flat = []
    for outer in fields(TransformerConfig):
        if outer.name == "_name":
            continue
        if outer.name not in _NESTED:
            flat.append((outer.name, outer.type, copied(outer, outer.default)))
            continue
        for inner in fields(_NESTED[outer.name]):
            if inner.name == "_name":
                continue
            default, kind = inner.default, inner.type
            if inner.name in ("input_dim", "output_dim"):
                default = II("model.decoder_embed_dim")
            if inner.name == "layers_to_keep":
                kind = Optional[str]  # noqa: UP045 - fairseq declares a list of integers and splits a string
            flat.append((f"{outer.name}_{inner.name}", kind, copied(inner, default)))
    return flat


def copied(original: Field[Any], default: Any) -> Any:
    """Copy an option and its help, with a different default."""
    return field(default=default, metadata=dict(original.metadata))


#: Every option of fairseq's Transformer, flat.
FlatTransformerConfig = make_dataclass(
    "FlatTransformerConfig", _flat_fields(), bases=(FairseqDataclass,)
)


def nested_config(cfg: Any) -> TransformerConfig:
    """Turn flat options into fairseq's nested options.

    Args:
        cfg: an instance of a subclass of :data:`FlatTransformerConfig`, as hydra passes it.

    Returns:
        fairseq's configuration, with the subclass' own options as additional attributes. ``--encoder``
        is ``encoder_name``.
    """
    if isinstance(cfg, TransformerConfig):
        return cfg
    if OmegaConf.is_config(cfg):
        options: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)
    else:
        options = dict(vars(cfg))
        for name in ("decoder_input_dim", "decoder_output_dim"):
            if not isinstance(options[name], int):
                options[name] = options["decoder_embed_dim"]
    if "encoder" in options:
        # fairseq's nested options store the encoder's sizes under this name.
        options["encoder_name"] = options.pop("encoder")
    nested = TransformerConfig.from_namespace(Namespace(**options))
    # fairseq sets encoder.layers to the number of kept layers.
    nested.trained_layers = nested.encoder.layers
    return nested


def trained_layers(cfg: TransformerConfig) -> int:
    """Return the number of encoder layers in training, also if ``--encoder-layers-to-keep`` prunes some.

    Options that name layers count these.
    """
    return int(getattr(cfg, "trained_layers", cfg.encoder.layers))


def kept_layers(cfg: TransformerConfig) -> list[int]:
    """Return the numbers, from 0, of the encoder layers that are built, in order.

    They are numbers of :func:`trained_layers`.
    """
    numbers = cfg.encoder.layers_to_keep
    return sorted(map(int, numbers.split(","))) if numbers else [*range(cfg.encoder.layers)]


def check_heads(cfg: TransformerConfig, side: str) -> None:
    """Check that the width of a side, ``encoder`` or ``decoder``, divides into its attention heads.

    Raises:
        UserError: it does not.
    """
    sizes = cfg.encoder if side == "encoder" else cfg.decoder
    width, heads = sizes.embed_dim, sizes.attention_heads
    if heads < 1 or width % heads:
        raise UserError(
            f"--{side}-embed-dim {width} is not divisible into --{side}-attention-heads {heads}"
        )
