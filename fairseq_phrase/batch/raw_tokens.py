"""Token indices that carry their raw line or its parse through fairseq.

Between a raw line and a batch, ``fairseq-interactive`` and the hub interface pass only strings and
tensors. Of a batch they keep only ``src_tokens`` and ``src_lengths``. Indices do not identify a line,
because all unknown words have the same index. So the strings and tensors carry the line, or its parse, as
an attribute:

1. :class:`~fairseq_phrase.batch.tokenizers.SyntaxTokenizer` and ``SyntaxBPE`` return :class:`CutText`;
2. :meth:`SourceDictionary.encode_line` turns it into :class:`RawTokens`;
3. the dataset for inference makes a batch's tokens :class:`RawTokens` with the parses of its rows.

The attribute is freed with its tensor; nothing is stored elsewhere.

In the same way, tokens carry the unknown words of their sentence that have places in the dictionary
(:mod:`fairseq_phrase.store.copied_words`), and :meth:`SourceDictionary.string` writes them back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary, data_utils

from fairseq_phrase.batch.syntax_dataset import Parse
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.copied_words import number_of_places, number_unknown, place

#: The data that a sentence carries: its raw line or its parse.
Origin = str | Parse


class CutText(str):
    """Words or subwords, with the raw line that they were cut from.

    Attributes:
        line: the raw line.
    """

    line: str

    @classmethod
    def of(cls, text: str, line: str) -> CutText:
        """Return a text that carries its line."""
        cut = cls(text)
        cut.line = line
        return cut


def line_of(text: str) -> str:
    """Return the raw line that a text was cut from; the text itself if it carries none."""
    return text.line if isinstance(text, CutText) else text


class RawTokens(torch.Tensor):
    """Token indices that carry, for each row, the line or parse that it was made from.

    The attribute is kept when the tensor is moved, copied or converted to another type. Every other
    operation returns an ordinary tensor.

    Attributes:
        origins: the line or parse of each sentence. Length: 1 for a sentence, of shape ``(tokens,)``; the
            batch size for a batch, of shape ``(batch, tokens)``; 0 if they carry words only.
        words: the words of each sentence that have places in the dictionary, in the order of the places;
            as many sentences, or 0.
    """

    origins: Sequence[Origin]
    words: Sequence[Sequence[str]]

    @classmethod
    def of(
        cls,
        tokens: torch.Tensor,
        origins: Sequence[Origin],
        words: Sequence[Sequence[str]] = (),
    ) -> RawTokens:
        """Return the same indices, which carry their origins.

        Args:
            tokens: a sentence or a batch. Shape: ``(tokens,)`` or ``(batch, tokens)``.
            origins: one line or parse for each row; or none.
            words: the words of each row that have places; or none.
        """
        carrying = tokens.as_subclass(cls)
        carrying.origins, carrying.words = origins, words
        return carrying

    def row(self, values: torch.Tensor, index: int) -> RawTokens:
        """Return indices of one row, which carry what the row carries.

        Args:
            values: some of its indices. Shape: ``(tokens,)``.
            index: the row.
        """
        origins = [self.origins[index]] if self.origins else ()
        return RawTokens.of(values, origins, [self.words[index]] if self.words else ())

    @classmethod
    def __torch_function__(
        cls, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on ordinary tensors, and set the origins of the result if they fit."""
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        source = args[0] if args else None
        if not isinstance(source, cls) or not hasattr(source, "origins"):
            return result
        if function in _KEEPS_ROWS and result.shape == source.shape:
            return cls.of(result, source.origins, source.words)
        if function is torch.Tensor.unsqueeze and result.shape == (1, *source.shape):
            return cls.of(result, source.origins, source.words)
        if function is torch.Tensor.unbind and source.dim() == 2 and args[1:] in ((), (0,)):
            return tuple(source.row(row, index) for index, row in enumerate(result))
        if function is torch.Tensor.__getitem__ and source.words:
            return source._part(result, args[1])
        return result

    def _part(self, result: torch.Tensor, key: Any) -> torch.Tensor:
        """Let a row, or some indices of a sentence, carry the words: fairseq takes them for printing."""
        if self.dim() == 1:
            return RawTokens.of(result, self.origins, self.words) if result.dim() == 1 else result
        if isinstance(key, tuple) and len(key) == 2 and key[1] == slice(None):
            key = key[0]
        return self.row(result, key) if isinstance(key, int) else result


_KEEPS_ROWS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("to", "cuda", "cpu", "long", "int", "clone", "detach", "contiguous", "pin_memory")
)


def plain(tokens: torch.Tensor) -> torch.Tensor:
    """Return the same indices as an ordinary tensor."""
    return tokens.as_subclass(torch.Tensor)


def rows_of(tokens: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """Return a batch's sentences without padding; each carries its line or parse.

    Args:
        tokens: a batch. Shape: ``(batch, tokens)``.
        padding: the index of padding.

    Returns:
        Each sentence's indices. Shape: ``(tokens,)``.
    """
    rows = [row[row != padding] for row in plain(tokens)]
    if not isinstance(tokens, RawTokens):
        return rows
    return [tokens.row(row, index) for index, row in enumerate(rows)]


class SourceDictionary(Dictionary):
    """fairseq's dictionary; indices that it makes from :class:`CutText` carry the line.

    If it has places for unknown words, the indices also carry these words, and :meth:`string` writes
    them.
    """

    @functools.cached_property
    def places(self) -> int:
        """The number of places."""
        return number_of_places(self.indices)

    def has_place(self, indices: Sequence[int]) -> bool:
        """Tell whether any of these indices is a place."""
        return any(self.index(place(number + 1)) in indices for number in range(self.places))

    def numbered(self, pieces: Sequence[str]) -> tuple[list[str], list[str]]:
        """Replace unknown words by places, and return them (:func:`number_unknown`)."""
        return number_unknown(pieces, self.indices, self.places)

    def encode_line(self, line: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Encode a text of subwords as fairseq does. Shape: ``(tokens,)``.

        Raises:
            UserError: a constraint has an unknown word, and there are places for unknown words.
        """
        origins = [line.line] if isinstance(line, CutText) else []
        if not self.places or kwargs.get("add_if_not_exist", True):
            tokens = super().encode_line(line, *args, **kwargs)
            return RawTokens.of(tokens, origins) if origins else tokens
        pieces, words = self.numbered(line.split())
        # fairseq encodes --constraints without an end, before their sources, which number the words.
        if words and not kwargs.get("append_eos", True):
            raise UserError(
                f"--constraints: '{words[0]}' is not in the dictionary, and its place depends on the "
                "source: constraints can have words of the dictionary only"
            )
        tokens = super().encode_line(" ".join(pieces), *args, **kwargs)
        return RawTokens.of(tokens, origins, [words])

    def encode_target(self, line: str, source: torch.Tensor) -> torch.Tensor:
        """Encode a target of subwords; the source's unknown words have their places in it.

        Args:
            line: the target's subwords.
            source: the source's indices, which may carry unknown words. Shape: ``(source tokens,)``.

        Returns:
            Shape: ``(tokens,)``, int64.
        """
        words = source.words[0] if isinstance(source, RawTokens) and source.words else ()
        pieces, _ = number_unknown(line.split(), self.indices, 0, words)
        return torch.tensor([*map(self.index, pieces), self.eos()])

    def string(self, tensor: Any, bpe_symbol: str | None = None, *args: Any, **kwargs: Any) -> str:
        """Join the subwords of a sentence as fairseq does; words that it carries replace their places."""
        words = tensor.words if isinstance(tensor, RawTokens) and tensor.dim() == 1 else ()
        if not words:
            return super().string(tensor, bpe_symbol, *args, **kwargs)
        text = super().string(plain(tensor), None, *args, **kwargs)
        # A place that the source does not fill is an unknown word.
        written = {place(number + 1): self.unk_word for number in range(self.places)}
        written |= {place(number): word for number, word in enumerate(words[0], start=1)}
        joined = " ".join(written.get(piece, piece) for piece in text.split(" "))
        return data_utils.post_process(joined, bpe_symbol)
