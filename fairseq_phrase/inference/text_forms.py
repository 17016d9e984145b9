"""Between raw text and the text that a data directory was made from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.raw_text.segmenters import Segmenter
from fairseq_phrase.raw_text.source_encoder import segmenter_of
from fairseq_phrase.store.manifest import Manifest


def source_form(
    manifest: Manifest, dictionary: Any, *, tokenized: bool = False
) -> Callable[[str], str]:
    """Return what makes a raw line a line like those of the data.

    Data of tokenized text (``--source-tokenized``) need tokenized lines. The dictionary shows which of
    Moses' options made them.

    Args:
        manifest: of the source language.
        dictionary: the source dictionary.
        tokenized: whether the lines that come in are tokenized in the same way as the data.
    """
    if tokenized or not manifest.tokenized:
        return str
    moses = _sacremoses(f"{manifest.language} text of the data is tokenized")
    symbols = set(dictionary.symbols)
    return partial(
        moses.MosesTokenizer(manifest.language).tokenize,
        escape=any(symbol.startswith(("&apos", "&quot")) for symbol in symbols),
        aggressive_dash_splits="@-@" in symbols,
        return_str=True,
    )


class TargetForm:
    """Subwords of the target to text, and text to subwords.

    Args:
        directory: the data directory.
        manifest: of the source language; the target is cut by the same subword model.
        target: the target language.
        tokenized: leave the text tokenized if that of the data is.
    """

    def __init__(self, directory: str, manifest: Manifest, target: str, *, tokenized: bool = False):
        self._segmenter: Segmenter = segmenter_of(directory, manifest)
        self._moses: tuple[Any, Any] | None = None
        # subword-nmt cuts tokenized text; SentencePiece cuts raw text unless the data say otherwise.
        if not tokenized and (manifest.tokenized or manifest.bpe == "subword_nmt"):
            moses = _sacremoses(f"{target} text of the data is tokenized")
            self._moses = moses.MosesTokenizer(target), moses.MosesDetokenizer(target)

    def text(self, subwords: str) -> str:
        """Join subwords with spaces between them to text."""
        joined = self._segmenter.join(subwords)
        return joined if self._moses is None else self._moses[1].detokenize(joined.split())

    def subwords(self, text: str) -> str:
        """Cut text into subwords with spaces between them."""
        if self._moses is not None:
            text = self._moses[0].tokenize(text, return_str=True)
        return " ".join(self._segmenter.line_pieces(text))


def _sacremoses(why: str) -> Any:
    try:
        import sacremoses
    except ModuleNotFoundError:
        raise UserError(
            f"the {why}, and raw text needs Moses' tokenizer: pip install 'fairseq-phrase[moses]'. Or "
            "give tokenized text (source_tokenized), and get it (target_tokenized)"
        ) from None
    return sacremoses
