"""Exports for other libraries.

CTranslate2 runs fairseq's own Transformer. For transformers, a model becomes its FSMT class if that
computes the same, and otherwise a class of this package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerModel, TransformerModelBase
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.utils import split_paths

from fairseq_phrase.checkpoints.loading import build_models, languages_of, read_checkpoint
from fairseq_phrase.compat.late_imports import import_transformers
from fairseq_phrase.errors import UserError, needs
from fairseq_phrase.inference.bundle import new_folder, write_bundle
from fairseq_phrase.inference.model_files import load_ensemble

#: Every value of an option.
ANY = None

#: Options that do not change a trained model's outputs, provided that the options they depend on are
#: refused.
_WITHOUT_EFFECT = (
    "dropout", "attention_dropout", "activation_dropout", "relu_dropout", "encoder_layerdrop",
    "decoder_layerdrop", "encoder_embed_path", "decoder_embed_path", "max_source_positions",
    "max_target_positions", "adaptive_softmax_dropout", "adaptive_softmax_factor",
    "tie_adaptive_weights", "tie_adaptive_proj", "quant_noise_pq_block_size", "checkpoint_activations",
    "offload_activations", "min_params_to_wrap", "base_sublayers", "base_shuffle", "export",
)  # fmt: skip
#: Options that every other library supports.
_COMMON = (
    *(f"{side}_{name}" for side in ("encoder", "decoder")
      for name in ("embed_dim", "ffn_embed_dim", "layers", "attention_heads")),
    "decoder_input_dim", "decoder_output_dim", "share_decoder_input_output_embed",
    "share_all_embeddings", "no_scale_embedding",
)  # fmt: skip


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
    """Return the reason why another library cannot run a model; None if it can.

    Args:
        supported: by option, the values that the library computes, or :data:`ANY`. Every option that is
            neither here nor common to all libraries must have fairseq's default. Therefore options that
            fairseq adds are refused.
    """
    kinds = (TransformerModel, TransformerModelBase, TransformerAlignModel)
    if type(model) not in kinds:
        return f"a {type(model).__name__}, which is not fairseq's Transformer"
    supported = {**dict.fromkeys([*_WITHOUT_EFFECT, *_COMMON], ANY), **supported}
    defaults = stock_options()
    options = stock_options(model.cfg)
    for name, value in options.items():
        allowed = supported.get(name, (defaults[name],))
        if allowed is not ANY and value not in allowed and (value or any(allowed)):
            return _flag(name, value)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if options[name] != options["decoder_embed_dim"]:
            return f"{_flag(name, options[name])} with another --decoder-embed-dim"
    return None


def _flag(name: str, value: Any) -> str:
    flag = "--" + name.replace("_", "-")
    return flag if value is True else f"{flag} {value}"


_SUPPORTED = {
    "activation_fn": ("relu", "gelu", "gelu_fast", "gelu_accurate"),
    "encoder_normalize_before": ANY,
    "decoder_normalize_before": ANY,
    "encoder_learned_pos": ANY,
    "decoder_learned_pos": ANY,
    "layernorm_embedding": ANY,
}
#: A program that translates one line of the given words with the folder's model.
_TRIAL = """
import sys
import ctranslate2
translator = ctranslate2.Translator(sys.argv[1], device="cpu")
translator.translate_batch([sys.argv[2:]], beam_size=2, max_decoding_length=3, return_attention=True)
"""


def export_ctranslate2(
    checkpoint: Path, data: str | Path, out: Path, quantization: str | None = None, **identity: Any
) -> str:
    """Write a folder that ``ctranslate2.Translator`` loads; return the name of this class.

    CTranslate2 lacks phrases, trees, and this package's kinds of relative positions. Therefore only
    fairseq's own Transformer is exported.

    Args:
        quantization: the type of the weights, such as ``int8`` or ``float16``; by default the
            checkpoint's.
        **identity: see :func:`fairseq_phrase.inference.translator.load`.

    Raises:
        UserError: ctranslate2 is not installed, or it cannot run the model.
    """
    with needs("--to ctranslate2 needs ctranslate2", "'fairseq-phrase[ctranslate2]'"):
        from ctranslate2.converters import FairseqConverter
    with new_folder(out) as folder:
        saved = read_checkpoint(checkpoint)
        directory = split_paths(str(data))[0]
        source, target = languages_of(saved, directory)
        languages = {"source_lang": source, "target_lang": target}
        (model,), task = build_models([saved], directory, **languages, **identity)
        _refuse_tags(task, checkpoint)
        found = _obstacle(model)
        if found is not None:
            raise UserError(
                f"CTranslate2 cannot run {checkpoint}: it has {found}; use a bundle or --to transformers"
            )
        converter = FairseqConverter(str(checkpoint), directory, **languages)
        try:
            converter.convert(str(folder), quantization=quantization, force=True)
        except Exception as error:  # its checks are asserts and errors of many kinds
            raise UserError(
                f"CTranslate2 cannot convert {checkpoint}: {type(error).__name__}: {error}"
            ) from error
        _try(folder, task.source_dictionary.symbols[task.source_dictionary.nspecial :][:3])
    return "ctranslate2.Translator"


def _refuse_tags(task: Any, checkpoint: Path) -> None:
    """Refuse a model whose sentences end with tags."""
    if task.cfg.langs:
        raise UserError(f"{checkpoint} was trained with --langs: use a bundle")


def _obstacle(model: Any) -> str | None:
    """Return the part of a model that CTranslate2 cannot compute; None if there is none."""
    found = obstacle(model, _SUPPORTED)
    if found is not None:
        return found
    cfg = model.cfg
    for name in ("normalize_before", "attention_heads"):
        if getattr(cfg.encoder, name) != getattr(cfg.decoder, name):
            flag = name.replace("_", "-")
            return f"--encoder-{flag} that differs from --decoder-{flag}"
    # The options of transformer_align.
    layer = getattr(model, "alignment_layer", 0)
    if layer >= cfg.decoder.layers:
        return f"--alignment-layer {layer}, but --decoder-layers {cfg.decoder.layers}"
    return None


def _try(folder: Path, words: list[str]) -> None:
    """Load a model and run it once, in a separate process, because a crash would end this one."""
    ran = subprocess.run(
        [sys.executable, "-c", _TRIAL, str(folder), *words], capture_output=True, text=True
    )
    if ran.returncode:
        message = (ran.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(
            "CTranslate2 fails with the model that it converted "
            f"(exit status {ran.returncode}): {message}"
        )


#: The file that transformers runs with ``trust_remote_code=True``.
_CODE = '''"""A model of fairseq_phrase, which must be installed, with its extra [transformers]."""

from fairseq_phrase.inference.transformers_model import (  # noqa: F401
    FairseqPhraseConfig,
    FairseqPhraseModel,
)
'''
_MODULE = "modeling_fairseq_phrase"
#: FSMT's name of each of fairseq's activation functions.
_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_fast": "gelu_accurate",  # an older name in fairseq
    "gelu_accurate": "gelu_accurate",
    "tanh": "tanh",
    "linear": "linear",
}


def _search(dictionary: Any) -> dict[str, Any]:
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


def special_tokens(dictionary: Any) -> dict[str, int]:
    """Return fairseq's special tokens by their names in transformers' configurations."""
    return {
        "bos_token_id": dictionary.bos(),
        "pad_token_id": dictionary.pad(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }


def export_transformers(
    checkpoint: Path, data: str | Path, out: Path, source_parser: str | None = None, **identity: Any
) -> str:
    """Write a folder that ``AutoModelForSeq2SeqLM.from_pretrained`` loads.

    A plain Transformer with layer normalization after each block becomes FSMT. Every other model becomes
    a bundle with code that imports this package.

    Returns:
        The name of the model's class.

    Raises:
        UserError: transformers is not installed, or the checkpoint cannot be exported.
    """
    transformers = import_transformers("--to transformers")
    with new_folder(out) as folder:
        (model,), task = load_ensemble(str(checkpoint), data, source_parser, **identity)
        _refuse_tags(task, checkpoint)
        if _is_fsmt(model):
            _fsmt(transformers, model, task).save_pretrained(folder)
            return "FSMTForConditionalGeneration"
        write_bundle(checkpoint, data, folder, source_parser, **identity)
        _describe(folder, task.target_dictionary)
        return "FairseqPhraseModel"


def _describe(folder: Path, dictionary: Any) -> None:
    """Write the files that transformers needs in addition to a bundle."""
    special = special_tokens(dictionary)
    config = {
        "model_type": "fairseq_phrase",
        "architectures": ["FairseqPhraseModel"],
        "auto_map": {
            "AutoConfig": f"{_MODULE}.FairseqPhraseConfig",
            "AutoModel": f"{_MODULE}.FairseqPhraseModel",
            "AutoModelForSeq2SeqLM": f"{_MODULE}.FairseqPhraseModel",
        },
        "vocab_size": len(dictionary),
        **special,
    }
    generation = {**special, **_search(dictionary)}
    for name, content in (("config", config), ("generation_config", generation)):
        text = json.dumps(content, indent=2) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")
    (folder / f"{_MODULE}.py").write_text(_CODE, encoding="utf-8")


def _is_fsmt(model: Any) -> bool:
    """Return whether transformers' FSMT computes the same as a model."""
    return (
        obstacle(model, {"activation_fn": _ACTIVATIONS}) is None
        and model.cfg.encoder.embed_dim == model.cfg.decoder.embed_dim
    )


def _fsmt(transformers: Any, model: Any, task: Any) -> Any:
    """Make transformers' model from a fairseq model's parameters."""
    cfg = model.cfg
    config = transformers.FSMTConfig(
        langs=[task.cfg.source_lang, task.cfg.target_lang],
        src_vocab_size=len(task.source_dictionary),
        tgt_vocab_size=len(task.target_dictionary),
        activation_function=_ACTIVATIONS[str(cfg.activation_fn)],
        d_model=cfg.encoder.embed_dim,
        max_position_embeddings=max(cfg.max_source_positions, cfg.max_target_positions),
        encoder_layers=cfg.encoder.layers,
        encoder_ffn_dim=cfg.encoder.ffn_embed_dim,
        encoder_attention_heads=cfg.encoder.attention_heads,
        decoder_layers=cfg.decoder.layers,
        decoder_ffn_dim=cfg.decoder.ffn_embed_dim,
        decoder_attention_heads=cfg.decoder.attention_heads,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        scale_embedding=not cfg.no_scale_embedding,
        # It ties all three embeddings. Two embeddings that fairseq shares are written twice.
        tie_word_embeddings=cfg.share_all_embeddings,
        decoder_start_token_id=task.target_dictionary.eos(),
    )
    made = transformers.FSMTForConditionalGeneration(config)
    states = {
        f"model.{name}": value
        for name, value in model.state_dict().items()
        if not name.endswith((".version", "._float_tensor"))
    }
    absent, unknown = made.load_state_dict(states, strict=False)
    absent = [name for name in absent if "embed_positions" not in name]
    if absent or unknown:
        raise UserError(f"this model has no form in transformers: {', '.join([*absent, *unknown])}")
    made.generation_config.update(**_search(task.target_dictionary))
    return made.eval()
