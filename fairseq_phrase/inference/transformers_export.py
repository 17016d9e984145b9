"""Export for transformers: its own FSMT class where it computes the same, else this package's classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import write_bundle
from fairseq_phrase.inference.model_files import load_ensemble

#: The file that transformers runs with ``trust_remote_code=True``.
_CODE = '''"""A model of fairseq_phrase, which must be installed, with its extra [transformers]."""

from fairseq_phrase.inference.transformers_model import (  # noqa: F401
    FairseqPhraseConfig,
    FairseqPhraseModel,
)
'''
_MODULE = "modeling_fairseq_phrase"


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
    checkpoint: Path, data: str | Path, out: Path, source_parser: str | None = None
) -> str:
    """Write a folder that ``AutoModelForSeq2SeqLM.from_pretrained`` loads.

    A plain Transformer with layer normalization after each block becomes FSMT. Every other model becomes
    a bundle with code that imports this package.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory.
        out: the folder to make.
        source_parser: as for :func:`fairseq_phrase.inference.bundle.write_bundle`.

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
    if out.exists():
        raise UserError(f"{out} exists already: name a folder that does not, or remove it")
    (model,), task = load_ensemble(str(checkpoint), data, source_parser)
    if _is_fsmt(model):
        _fsmt(transformers, model, task).save_pretrained(out)
        return "FSMTForConditionalGeneration"
    from fairseq_phrase.inference.transformers_model import hugging_face_options

    write_bundle(checkpoint, data, out, source_parser)
    tokens = vars(hugging_face_options(task.target_dictionary, len(task.target_dictionary)))
    config = {
        "model_type": "fairseq_phrase",
        "architectures": ["FairseqPhraseModel"],
        "auto_map": {
            "AutoConfig": f"{_MODULE}.FairseqPhraseConfig",
            "AutoModel": f"{_MODULE}.FairseqPhraseModel",
            "AutoModelForSeq2SeqLM": f"{_MODULE}.FairseqPhraseModel",
        },
        **tokens,
    }
    special = {name: value for name, value in tokens.items() if name != "vocab_size"}
    for name, content in (
        ("config.json", config),
        (
            "generation_config.json",
            {**special, **_search(task.target_dictionary), "use_cache": False},
        ),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (out / f"{_MODULE}.py").write_text(_CODE, encoding="utf-8")
    return "FairseqPhraseModel"


def _is_fsmt(model: Any) -> bool:
    """Tell whether transformers' FSMT computes the same as a model."""
    from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase

    cfg, encoder, decoder = model.cfg, model.encoder, model.decoder
    is_stock = type(encoder) in (TransformerEncoderBase, *TransformerEncoderBase.__subclasses__())
    return (
        is_stock
        and type(encoder).__module__.startswith("fairseq.")
        and type(decoder).__module__.startswith("fairseq.")
        and isinstance(decoder, TransformerDecoderBase)
        and not (cfg.encoder.normalize_before or cfg.decoder.normalize_before)
        and not (cfg.encoder.learned_pos or cfg.decoder.learned_pos)
        and not (cfg.layernorm_embedding or cfg.no_token_positional_embeddings)
        and cfg.encoder.embed_dim == cfg.decoder.embed_dim
        and cfg.decoder.input_dim == cfg.decoder.output_dim == cfg.decoder.embed_dim
    )


def _fsmt(transformers: Any, model: Any, task: Any) -> Any:
    """Make transformers' model of a fairseq model's parameters."""
    cfg = model.cfg
    config = transformers.FSMTConfig(
        langs=[task.cfg.source_lang, task.cfg.target_lang],
        src_vocab_size=len(task.source_dictionary),
        tgt_vocab_size=len(task.target_dictionary),
        activation_function=str(cfg.activation_fn),
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
        tie_word_embeddings=cfg.share_decoder_input_output_embed or cfg.share_all_embeddings,
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
