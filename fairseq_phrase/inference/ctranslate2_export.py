"""Export for CTranslate2, which runs fairseq's own Transformer."""

from __future__ import annotations

from pathlib import Path

from fairseq.utils import split_paths

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.loading import languages_of, read_checkpoint


def export_ctranslate2(
    checkpoint: Path, data: str | Path, out: Path, quantization: str | None = None
) -> str:
    """Write a folder that ``ctranslate2.Translator`` loads.

    CTranslate2 has no phrases, trees, or relative positions of this package's kinds. So only fairseq's
    own Transformer is exported.

    Args:
        checkpoint: a fairseq checkpoint.
        data: its data directory.
        out: the folder to make.
        quantization: the type of the weights, such as ``int8`` or ``float16``; by default as they are.

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
    if out.exists():
        raise UserError(f"{out} exists already: name a folder that does not, or remove it")
    saved = read_checkpoint(checkpoint)
    architecture = getattr(saved.state["cfg"].model, "arch", None) or saved.name("model")
    if not str(architecture).startswith("transformer"):
        raise UserError(
            f"CTranslate2 cannot run {architecture}, only fairseq's transformer: use a bundle or --to "
            "transformers"
        )
    directory = split_paths(str(data))[0]
    source, target = languages_of(saved, directory)
    converter = FairseqConverter(str(checkpoint), directory, source_lang=source, target_lang=target)
    try:
        converter.convert(str(out), quantization=quantization)
    except ValueError as error:  # an option of the model that CTranslate2 does not have
        raise UserError(f"CTranslate2 cannot run {checkpoint}: {error}") from None
    return "ctranslate2.Translator"
