"""Exports for other libraries.

CTranslate2 runs fairseq's Transformer, also with relative positions and source factors. For transformers,
a model becomes a bundle with a class of this package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from fairseq.models.transformer import TransformerConfig, TransformerModel, TransformerModelBase
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.utils import split_paths

from fairseq_phrase.checkpoints.loading import build_models, languages_of, read_checkpoint
from fairseq_phrase.data.batches.source_batches import SourceTask
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import new_folder, write_bundle
from fairseq_phrase.inference.factored_tokens import factor_rows, vocabulary
from fairseq_phrase.inference.model_card import CardOptions
from fairseq_phrase.inference.model_files import load_ensemble
from fairseq_phrase.methods.positions.structural_transformer import StructuralEncoder
from fairseq_phrase.models.source_factors import FactoredEmbedding, factored_embedding
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel
from fairseq_phrase.optional_packages import import_transformers, optional_packages

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary, Task

#: Every value of an option.
ANY = None

#: Options of fairseq's Transformer by the values that CTranslate2 computes. Others must have fairseq's
#: default, so an option that fairseq adds is refused.
_SUPPORTED: dict[str, tuple[Any, ...] | None] = {
    # Without an effect on a trained model, provided that the options they depend on are refused.
    **dict.fromkeys(
        (
            "dropout", "attention_dropout", "activation_dropout", "relu_dropout",
            "encoder_layerdrop", "decoder_layerdrop", "encoder_embed_path", "decoder_embed_path",
            "max_source_positions", "max_target_positions", "adaptive_softmax_dropout",
            "adaptive_softmax_factor", "tie_adaptive_weights", "tie_adaptive_proj",
            "quant_noise_pq_block_size", "checkpoint_activations", "offload_activations",
            "min_params_to_wrap", "base_sublayers", "base_shuffle", "export",
        ),
        ANY,
    ),
    **{
        f"{side}_{name}": ANY
        for side in ("encoder", "decoder")
        for name in (
            "embed_dim", "ffn_embed_dim", "layers", "attention_heads", "normalize_before",
            "learned_pos",
        )
    },
    **dict.fromkeys(
        (
            "decoder_input_dim", "decoder_output_dim", "share_decoder_input_output_embed",
            "share_all_embeddings", "no_scale_embedding", "layernorm_embedding",
            "no_decoder_final_norm",
        ),
        ANY,
    ),
    "activation_fn": ("relu", "gelu", "gelu_fast", "gelu_accurate"),
}  # fmt: skip


def stock_options(cfg: Any = TransformerConfig) -> dict[str, Any]:
    """List the options of fairseq's Transformer by the names of their flags.

    Args:
        cfg: fairseq's nested options; the defaults if none are given.
    """
    options: dict[str, Any] = {}
    for option in fields(TransformerConfig):
        value = getattr(cfg, option.name)
        if is_dataclass(option.default):
            parts = fields(option.default)
            options |= {f"{option.name}_{part.name}": getattr(value, part.name) for part in parts}
        else:
            options[option.name] = value
    return {name: value for name, value in options.items() if not name.endswith("_name")}


def export_obstacle(model: Any) -> str | None:
    """Return the part of a model that CTranslate2 cannot compute; None if it computes all."""
    kind: Any = type(model)
    if factored_embedding(model.encoder) is not None:
        kind = kind.__base__  # of the class without source factors
    if issubclass(kind, SyntaxTransformerModel):
        reason = _encoder_obstacle(model) or _decoder_obstacle(model)
    elif kind in (TransformerModel, TransformerModelBase, TransformerAlignModel):
        reason = None
    else:
        reason = f"a {kind.__name__}, which is not fairseq's Transformer"
    return reason or _option_obstacle(model.cfg) or _alignment_obstacle(model)


def _encoder_obstacle(model: Any) -> str | None:
    """Return what distinguishes an encoder of this package from CTranslate2's encoders."""
    method, cfg = model.method, model.cfg
    if cfg.attention_gate:
        return _flag("attention_gate", True)
    if method.encoder is not StructuralEncoder:
        return None if model.encoder.is_plain(cfg) else f"the encoder {method.name}"
    for name, is_on in (
        ("structural_absolute", cfg.structural_absolute),
        ("structural_relative", cfg.structural_relative),
    ):
        if is_on:
            return f"{_flag(name, True)}, positions in a tree"
    if cfg.sequential_relative and not cfg.no_sequential_absolute:
        return (
            "--sequential-relative without --no-sequential-absolute, and CTranslate2 has either relative "
            "or absolute positions"
        )
    if cfg.no_sequential_absolute and not cfg.sequential_relative:
        return "--no-sequential-absolute without --sequential-relative"
    return None


def _decoder_obstacle(model: Any) -> str | None:
    if model.cfg.copy != "none":
        return _flag("copy", model.cfg.copy)
    return f"the decoder of {model.method.name}" if model.method.decoder else None


def _option_obstacle(cfg: Any) -> str | None:
    defaults, options = stock_options(), stock_options(cfg)
    for name, value in options.items():
        allowed = _SUPPORTED.get(name, (defaults[name],))
        if allowed is not ANY and value not in allowed and (value or any(allowed)):
            return _flag(name, value)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if options[name] != options["decoder_embed_dim"]:
            return f"{_flag(name, options[name])} with another --decoder-embed-dim"
    return None if options["encoder_layers"] else _flag("encoder_layers", 0)


def _alignment_obstacle(model: Any) -> str | None:
    """Return the reason why the attention of ``transformer_align`` cannot be returned."""
    layer = model.alignment_layer if isinstance(model, TransformerAlignModel) else 0
    layers = model.cfg.decoder.layers
    return f"--alignment-layer {layer}, but --decoder-layers {layers}" if layer >= layers else None


def _flag(name: str, value: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {value}"


def export_ctranslate2(
    checkpoint: Path, data: str | Path, out: Path, quantization: str | None = None, **identity: Any
) -> None:
    """Write a folder that ``ctranslate2.Translator`` loads.

    CTranslate2 lacks phrases and trees. It computes fairseq's Transformer and ``structural_transformer
    --no-sequential-absolute --sequential-relative``, each also with source factors.

    Args:
        quantization: the type of the weights, such as ``int8`` or ``float16``; by default float32.
        **identity: see :func:`fairseq_phrase.inference.translator.load`.

    Raises:
        UserError: ctranslate2 is not installed, or it cannot run the model.
    """
    with optional_packages("--to ctranslate2 needs ctranslate2", "ctranslate2"):
        import ctranslate2.converters  # noqa: F401
    with new_folder(out) as folder:
        saved = read_checkpoint(checkpoint)
        directory = split_paths(str(data))[0]
        source, target = languages_of(saved, directory)
        languages = {"source_lang": source, "target_lang": target}
        (model,), task = build_models([saved], directory, **languages, **identity)
        _refuse_tags(task, checkpoint)
        reason = export_obstacle(model)
        if reason is not None:
            raise UserError(
                f"CTranslate2 cannot run {checkpoint}: it has {reason}; use a bundle or --to transformers"
            )
        try:
            save_ctranslate2(model, task, folder, quantization)
        except Exception as error:  # its checks are asserts and errors of many kinds
            raise UserError(
                f"CTranslate2 cannot convert {checkpoint}: {type(error).__name__}: {error}"
            ) from error


def _refuse_tags(task: Task, checkpoint: Path) -> None:
    if getattr(task.cfg, "langs", None):  # fairseq's own task lacks the option
        raise UserError(f"{checkpoint} was trained with --langs: use a bundle")


@torch.no_grad()  # else parameters cannot become NumPy's arrays
def save_ctranslate2(
    model: Any, task: SourceTask, folder: Path | str, quantization: str | None = None
) -> None:
    """Write a model without an :func:`export_obstacle` in CTranslate2's format.

    Args:
        folder: an empty folder.
    """
    from ctranslate2.converters.fairseq import set_transformer_decoder
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    model = deepcopy(model).float().cpu()  # NumPy lacks bfloat16
    encoder, cfg = model.encoder, model.cfg
    is_factored = isinstance(encoder.embed_tokens, FactoredEmbedding)
    aligns = isinstance(model, TransformerAlignModel)
    tables = list(_source_tables(encoder, task))
    shared = {
        "activation": _activation(str(cfg.activation_fn)),
        "layernorm_embedding": cfg.layernorm_embedding,
    }
    spec = TransformerSpec(
        TransformerEncoderSpec(
            cfg.encoder.layers,
            cfg.encoder.attention_heads,
            pre_norm=cfg.encoder.normalize_before,
            num_source_embeddings=len(tables),
            embeddings_merge=int(is_factored),
            relative_position=encoder.embed_positions is None,
            **shared,
        ),
        TransformerDecoderSpec(
            cfg.decoder.layers,
            cfg.decoder.attention_heads,
            pre_norm=cfg.decoder.normalize_before,
            no_final_norm=cfg.no_decoder_final_norm,
            alignment_layer=model.alignment_layer if aligns else -1,
            alignment_heads=model.alignment_heads if aligns else 0,
            **shared,
        ),
    )
    _set_encoder(spec.encoder, encoder)
    for embeddings, (symbols, weights) in zip(spec.encoder.embeddings, tables, strict=True):
        embeddings.weight = weights.numpy()
        spec.register_source_vocabulary(symbols)
    set_transformer_decoder(spec.decoder, model.decoder)
    spec.register_target_vocabulary(vocabulary(task.target_dictionary))
    spec.config.decoder_start_token = spec.config.eos_token
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def _activation(name: str) -> int:
    from ctranslate2.specs.common_spec import Activation

    gelu = Activation.GELU if name == "gelu" else Activation.GELUTanh
    return int(gelu if name.startswith("gelu") else Activation.RELU)


def _set_encoder(spec: Any, encoder: Any) -> None:
    from ctranslate2.converters import fairseq as converter

    spec.scale_embeddings = encoder.embed_scale
    if encoder.embed_positions is not None:
        converter.set_position_encodings(spec.position_encodings, encoder.embed_positions)
    for layer_spec, layer in zip(spec.layer, encoder.layers, strict=True):
        converter.set_transformer_encoder_layer(layer_spec, layer)
        if encoder.embed_positions is None:
            _set_relative_positions(layer_spec.self_attention, layer.self_attn)
    if encoder.layer_norm is not None:
        converter.set_layer_norm(spec.layer_norm, encoder.layer_norm)
    if encoder.layernorm_embedding is not None:
        converter.set_layer_norm(spec.layernorm_embedding, encoder.layernorm_embedding)


def _set_relative_positions(spec: Any, attention: Any) -> None:
    """Set the tables of one layer. CTranslate2 counts j - i, and this package i - j."""
    keys = attention.relative_keys["sequential"].flip(0)
    values = attention.relative_values
    spec.relative_position_keys = keys.numpy()
    # Its specification requires a table of values.
    values = torch.zeros_like(keys) if values is None else values["sequential"].flip(0)
    spec.relative_position_values = values.numpy()


def _source_tables(encoder: Any, task: SourceTask) -> Iterator[tuple[list[str], torch.Tensor]]:
    """Yield the vocabulary and the embeddings of the source tokens, and of each factor."""
    embedding = encoder.embed_tokens
    yield vocabulary(task.source_dictionary), embedding.weight
    if isinstance(embedding, FactoredEmbedding):
        tables: Any = embedding.factors
        for name, table in tables.items():
            rows = factor_rows(task, name)
            yield [*rows], table.weight[[*rows.values()]]


#: The file that transformers runs with ``trust_remote_code=True``.
_CODE = '''"""A model of fairseq_phrase, which must be installed, with its extra [transformers]."""

from fairseq_phrase.inference.transformers_model import (  # noqa: F401
    FairseqPhraseConfig,
    FairseqPhraseModel,
)
'''
_MODULE = "modeling_fairseq_phrase"
#: The classes in it by transformers' names.
_AUTO_MAP = {
    "AutoConfig": f"{_MODULE}.FairseqPhraseConfig",
    "AutoModel": f"{_MODULE}.FairseqPhraseModel",
    "AutoModelForSeq2SeqLM": f"{_MODULE}.FairseqPhraseModel",
}


def _search(dictionary: Dictionary) -> dict[str, Any]:
    """Return options of transformers' ``generate`` for fairseq's beam search, with its defaults.

    fairseq stops when it has found as many translations as beams, never selects padding, and makes no
    empty translation.
    """
    return {
        "num_beams": 5,
        # 200 subwords, the first token and the end.
        "max_length": 202,
        "min_new_tokens": 1,
        "length_penalty": 1.0,
        "early_stopping": True,
        "suppress_tokens": [dictionary.pad()],
        "forced_eos_token_id": dictionary.eos(),
    }


def special_tokens(dictionary: Dictionary) -> dict[str, int]:
    """Return fairseq's special tokens by their names in transformers' configurations."""
    return {
        "bos_token_id": dictionary.bos(),
        "pad_token_id": dictionary.pad(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }


def export_transformers(
    checkpoint: Path,
    data: str | Path,
    out: Path,
    source_parser: str | None = None,
    card: CardOptions | None = None,
    **identity: Any,
) -> None:
    """Write a folder that ``AutoModelForSeq2SeqLM.from_pretrained`` loads.

    It is a bundle with code that imports this package.

    Raises:
        UserError: transformers is not installed, or the checkpoint cannot be exported.
    """
    import_transformers("--to transformers")
    with new_folder(out) as folder:
        _, task = load_ensemble(str(checkpoint), data, source_parser, **identity)
        _refuse_tags(task, checkpoint)
        dictionary = task.target_dictionary
        special = special_tokens(dictionary)
        config = {"auto_map": _AUTO_MAP, "vocab_size": len(dictionary), **special}
        write_bundle(checkpoint, data, folder, source_parser, card, config, **identity)
        generation = json.dumps({**special, **_search(dictionary)}, indent=2) + "\n"
        (folder / "generation_config.json").write_text(generation, encoding="utf-8")
        (folder / f"{_MODULE}.py").write_text(_CODE, encoding="utf-8")
