"""Export for CTranslate2, which runs fairseq's own Transformer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from fairseq.utils import split_paths

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import new_folder
from fairseq_phrase.inference.stock_options import ANY, obstacle
from fairseq_phrase.models.loading import build_models, languages_of, read_checkpoint

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
    """Write a folder that ``ctranslate2.Translator`` loads.

    CTranslate2 has no phrases, trees, or relative positions of this package's kinds. So only fairseq's
    own Transformer is exported.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory.
        out: the folder to make.
        quantization: the type of the weights, such as ``int8`` or ``float16``; by default as they are.
        **identity: see :func:`fairseq_phrase.inference.translator.load`.

    Returns:
        The name of what loads the folder.

    Raises:
        UserError: ctranslate2 is not installed, or it cannot run the model.
    """
    try:
        from ctranslate2.converters import FairseqConverter
    except ModuleNotFoundError:
        raise UserError(
            "--to ctranslate2 needs ctranslate2: pip install 'fairseq-phrase[ctranslate2]'"
        ) from None
    with new_folder(out) as folder:
        saved = read_checkpoint(checkpoint)
        directory = split_paths(str(data))[0]
        source, target = languages_of(saved, directory)
        languages = {"source_lang": source, "target_lang": target}
        (model,), task = build_models([saved], directory, **languages, **identity)
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


def _obstacle(model: Any) -> str | None:
    """Return what CTranslate2 cannot compute in a model; None if there is nothing."""
    found = obstacle(model, _SUPPORTED)
    if found is not None:
        return found
    cfg = model.cfg
    for name, flag in (
        ("normalize_before", "--{}-normalize-before"),
        ("attention_heads", "--{}-attention-heads"),
    ):
        if getattr(cfg.encoder, name) != getattr(cfg.decoder, name):
            return f"{flag.format('encoder')} that differs from {flag.format('decoder')}"
    # Those of transformer_align.
    layer = getattr(model, "alignment_layer", 0)
    if layer >= cfg.decoder.layers:
        return f"--alignment-layer {layer}, but --decoder-layers {cfg.decoder.layers}"
    return None


def _try(folder: Path, words: list[str]) -> None:
    """Load a model and run it once, in a process that it may end.

    Raises:
        UserError: CTranslate2 fails.
    """
    ran = subprocess.run(
        [sys.executable, "-c", _TRIAL, str(folder), *words], capture_output=True, text=True
    )
    if ran.returncode:
        message = (ran.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UserError(
            "CTranslate2 fails with the model that it converted "
            f"(exit status {ran.returncode}): {message}"
        )
