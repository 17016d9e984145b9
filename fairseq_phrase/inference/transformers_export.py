"""Export for transformers: its own FSMT class where it computes the same, else this package's classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import new_folder, write_bundle
from fairseq_phrase.inference.model_files import load_ensemble
from fairseq_phrase.inference.stock_options import obstacle

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
    "gelu_fast": "gelu_accurate",  # fairseq's older name for it
    "gelu_accurate": "gelu_accurate",
    "tanh": "tanh",
    "linear": "linear",
}


def _search(dictionary: Any) -> dict[str, Any]:
    """Return options of transformers' ``generate`` for fairseq's beam search, with its defaults.

    fairseq stops when it has found as many translations as beams, never selects padding, and makes no
    empty translation.

    Args:
        dictionary: fairseq's target dictionary.
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


def export_transformers(
    checkpoint: Path, data: str | Path, out: Path, source_parser: str | None = None, **identity: Any
) -> str:
    """Write a folder that ``AutoModelForSeq2SeqLM.from_pretrained`` loads.

    A plain Transformer with layer normalization after each block becomes FSMT. Every other model becomes
    a bundle with code that imports this package.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory.
        out: the folder to make.
        source_parser: as for :func:`fairseq_phrase.inference.bundle.write_bundle`.
        **identity: as there.

    Returns:
        The name of the model's class.

    Raises:
        UserError: transformers is not installed, or the checkpoint cannot be exported.
    """
    try:
        import transformers
    except ModuleNotFoundError:
        raise UserError(
            "--to transformers needs transformers: pip install 'fairseq-phrase[transformers]'"
        ) from None
    with new_folder(out) as folder:
        (model,), task = load_ensemble(str(checkpoint), data, source_parser, **identity)
        if _is_fsmt(model):
            _fsmt(transformers, model, task).save_pretrained(folder)
            return "FSMTForConditionalGeneration"
        write_bundle(checkpoint, data, folder, source_parser, **identity)
        _describe(folder, task.target_dictionary)
        return "FairseqPhraseModel"


def _describe(folder: Path, dictionary: Any) -> None:
    """Write what transformers needs beside a bundle.

    Args:
        folder: the bundle.
        dictionary: fairseq's target dictionary.
    """
    special = {
        "bos_token_id": dictionary.bos(),
        "pad_token_id": dictionary.pad(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }
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
    generation = {**special, **_search(dictionary), "use_cache": False}
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
    """Make transformers' model of a fairseq model's parameters."""
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
        # It ties all three embeddings. Two that fairseq shares are written twice.
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
