"""Token indices that carry their raw line or its parse through fairseq.

Between a raw line and a batch, ``fairseq-interactive`` and the hub interface pass only strings and
tensors. Of a batch they keep only ``src_tokens`` and ``src_lengths``. Indices do not identify a line,
because all unknown words have the same index. So the strings and tensors carry the line, or its parse, as
an attribute:

1. :class:`~fairseq_phrase.batch.tokenizers.SyntaxTokenizer` and ``SyntaxBPE`` return :class:`CutText`;
2. :meth:`SourceDictionary.encode_line` turns it into :class:`RawTokens`;
3. the dataset for inference makes a batch's tokens :class:`RawTokens` with the parses of its rows.

The attribute is freed with its tensor; nothing is stored elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary

from fairseq_phrase.batch.syntax_dataset import Parse

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
            batch size for a batch, of shape ``(batch, tokens)``.
    """

    origins: Sequence[Origin]

    @classmethod
    def of(cls, tokens: torch.Tensor, origins: Sequence[Origin]) -> RawTokens:
        """Return the same indices, which carry their origins.

        Args:
            tokens: a sentence or a batch. Shape: ``(tokens,)`` or ``(batch, tokens)``.
            origins: one line or parse for each row.
        """
        carrying = tokens.as_subclass(cls)
        carrying.origins = origins
        return carrying

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
            return cls.of(result, source.origins)
        if function is torch.Tensor.unsqueeze and result.shape == (1, *source.shape):
            return cls.of(result, source.origins)
        if function is torch.Tensor.unbind and source.dim() == 2 and args[1:] in ((), (0,)):
            rows = zip(result, source.origins, strict=True)
            return tuple(cls.of(row, [origin]) for row, origin in rows)
        return result


_KEEPS_ROWS = frozenset(
    getattr(torch.Tensor, name)
    for name in ("to", "cuda", "cpu", "long", "clone", "detach", "contiguous", "pin_memory")
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
    return [RawTokens.of(row, [origin]) for row, origin in zip(rows, tokens.origins, strict=True)]


class SourceDictionary(Dictionary):
    """fairseq's dictionary; indices that it makes from :class:`CutText` carry the line."""

    def encode_line(self, line: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Encode a text of subwords as fairseq does. Shape: ``(tokens,)``."""
        tokens = super().encode_line(line, *args, **kwargs)
        return RawTokens.of(tokens, [line.line]) if isinstance(line, CutText) else tokens
