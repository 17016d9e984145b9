"""Checks of raw lines that ``fairseq-interactive`` reads, before they are cut."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from fairseq_phrase.batch.raw_lines import segmenter_of
from fairseq_phrase.batch.raw_tokens import SourceDictionary
from fairseq_phrase.corpus.segmenters import Segmenter
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.manifest import Manifest

_BOM = "\N{BYTE ORDER MARK}"
# The marks of text that is already cut into subwords, by SentencePiece and by subword-nmt.
_MARKS = ("▁", "@@ ")


class RawInput:
    """The lines of one input, in their order.

    Args:
        directory: the data directory.
        language: the source language.
        dictionary: the source dictionary.

    Attributes:
        lines_read: the number of lines so far.
    """

    def __init__(self, directory: str, language: str, dictionary: SourceDictionary):
        self._directory, self._language, self._dictionary = directory, language, dictionary
        self.lines_read = 0

    def cleaned(self, lines: Sequence[str]) -> list[str]:
        """Return lines without the byte order mark that a file may begin with.

        Raises:
            UserError: a line has bytes that are not UTF-8. In some locales Python reads them as lone
                surrogates.
        """
        for number, line in enumerate(lines, start=self.lines_read + 1):
            if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
                raise UserError(f"line {number} of the input is not UTF-8: {line[:60]!a}")
        self.lines_read += len(lines)
        return [line.removeprefix(_BOM).lstrip() for line in lines]

    def check_is_cut(
        self, lines: Sequence[str], tokens: Sequence[torch.Tensor], encode: Callable[[str], str]
    ) -> None:
        """Check that lines are already cut into subwords if no subword model cuts them.

        Args:
            lines: the lines.
            tokens: the indices of each. Shape: ``(tokens,)``.
            encode: the function with which fairseq cut the lines, or None.

        Raises:
            UserError: a line has an unknown word, perhaps with a place in the dictionary, that the data's
                subword model would cut into known subwords, and the line has no mark of cut text.
        """
        unknown = self._dictionary.unk()
        for line, indices in zip(lines, tokens, strict=True):
            has_unknown = unknown in indices or self._dictionary.has_place(indices.tolist())
            if not has_unknown or self._segmenter is None:
                continue
            text = encode(line)
            if any(mark in text for mark in _MARKS):
                continue
            for word in text.split():
                if self._dictionary.index(word) != unknown:
                    continue
                pieces = self._segmenter.word_pieces("▁" + word)
                if unknown not in map(self._dictionary.index, pieces):
                    raise UserError(
                        f"'{line[:60]}' is raw text, and its word '{word}' is unknown; the data's own "
                        f"subword model cuts it into '{' '.join(pieces)}': use --tokenizer syntax --bpe "
                        "syntax (they are for raw text, not for text that is cut into subwords already)"
                    )

    @functools.cached_property
    def _segmenter(self) -> Segmenter | None:
        """The data's subword model, or None."""
        if not Manifest.path(self._directory, self._language).is_file():
            return None
        manifest = Manifest.load(self._directory, self._language)
        return segmenter_of(self._directory, manifest) if manifest.bpe_model else None
