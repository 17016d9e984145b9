"""Token indices that carry their origin through fairseq, and the dictionary that makes them.

Between a raw line and a batch, ``fairseq-interactive`` and the hub interface pass only strings and
tensors. Of a batch they keep only ``src_tokens`` and ``src_lengths``. Indices do not identify a line,
because all unknown words have the same index. The tensor therefore carries the line, or the sentence made
from it, as an attribute. The attribute is freed with the tensor; nothing is stored elsewhere:

1. ``--bpe syntax`` returns the subwords and, after :data:`LINE`, the raw line;
2. :meth:`SourceDictionary.encode_line` makes :class:`RawTokens` from both;
3. :class:`RawDataset` makes a batch's tokens :class:`RawTokens` with the sentences of its rows.

In the same way, tokens carry the unknown words of their sentence that have slots in the dictionary
(:mod:`fairseq_phrase.data.store.copied_words`), and :meth:`SourceDictionary.string` writes them back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils

from fairseq_phrase.data.store.copied_words import number_of_slots, number_unknown, slot
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.sentence import EncodedSentence

#: The origin of a sentence's indices.
Origin = str | EncodedSentence
#: Separates subwords from their raw line. It is white space, which subwords do not contain.
LINE = "\x1e"


class RawTokens(torch.Tensor):
    """Token indices that carry the line or sentence of origin of each row.

    The attribute is kept when the tensor is moved, copied or converted to another type. Every other
    operation returns an ordinary tensor.

    Attributes:
        origins: the line or encoded sentence of each row. Length: 1 for a sentence, of shape
            ``(tokens,)``; the batch size for a batch, of shape ``(batch, tokens)``; 0 if they carry
            only words.
        words: the words of each sentence that have slots in the dictionary, in the order of the slots.
            Length: the number of sentences, or 0.
    """

    origins: Sequence[Origin] = ()
    words: Sequence[Sequence[str]] = ()

    @classmethod
    def of(
        cls, tokens: torch.Tensor, origins: Sequence[Origin], words: Sequence[Sequence[str]] = ()
    ) -> RawTokens:
        """Return the same indices with their origins attached.

        Args:
            tokens: a sentence or a batch. Shape: ``(tokens,)`` or ``(batch, tokens)``.
            origins: one for each row; or empty.
            words: the words of each row that have slots; or empty.
        """
        carrying = tokens.as_subclass(cls)
        carrying.origins, carrying.words = origins, words
        return carrying

    def row(self, values: torch.Tensor, index: int) -> RawTokens:
        """Return indices of one row with the attributes of the row.

        Args:
            values: some of its indices. Shape: ``(tokens,)``.
        """
        origins = [self.origins[index]] if self.origins else ()
        return RawTokens.of(values, origins, [self.words[index]] if self.words else ())

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation on ordinary tensors, and set the origins of the result if they fit."""
        with torch._C.DisableTorchFunctionSubclass():
            result = function(*args, **(kwargs or {}))
        source = args[0] if args else None
        if not isinstance(source, cls) or not (source.origins or source.words):
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
        """Keep the words in a row or a part of a sentence: fairseq takes such parts for printing."""
        if self.dim() == 1:
            return RawTokens.of(result, self.origins, self.words) if result.dim() == 1 else result
        if isinstance(key, tuple) and len(key) == 2 and key[1] == slice(None):
            key = key[0]
        return self.row(result, key) if isinstance(key, int) else result


_KEEPS_ROWS = frozenset({
    torch.Tensor.to, torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.long, torch.Tensor.int,
    torch.Tensor.clone, torch.Tensor.detach, torch.Tensor.contiguous, torch.Tensor.pin_memory,
})  # fmt: skip


def plain_tensor(tokens: torch.Tensor) -> torch.Tensor:
    """Return the same indices as an ordinary tensor."""
    return tokens.as_subclass(torch.Tensor)


def unpadded(tokens: torch.Tensor, padding: int) -> list[torch.Tensor]:
    """Return sentences without padding, with the attributes of the rows. Shape of each: ``(tokens,)``.

    Args:
        tokens: a batch. Shape: ``(batch, tokens)``.
    """
    rows = [row[row != padding] for row in plain_tensor(tokens)]
    if not isinstance(tokens, RawTokens):
        return rows
    return [tokens.row(row, index) for index, row in enumerate(rows)]


def ends_of(dictionary: Dictionary) -> list[int]:
    """Return the tokens that end a sentence: ``</s>``, and with mBART the tag of its language."""
    tags = dictionary.tags if isinstance(dictionary, SourceDictionary) else ()
    return [dictionary.eos(), *tags]


class SourceDictionary(Dictionary):
    """fairseq's dictionary; indices that it makes from ``--bpe syntax`` carry the line.

    If it has slots for unknown words, the indices also carry these words, and :meth:`string` writes
    them.

    Attributes:
        tags: the tokens after the end of a sentence: for mBART, its language's tag.
        added: the entries that the task adds to the data's dictionary.
    """

    tags: tuple[int, ...] = ()
    added: Sequence[str] = ()

    @property
    def end(self) -> int:
        """The last token of a sentence."""
        return self.tags[-1] if self.tags else int(self.eos())

    @functools.cached_property
    def slots(self) -> int:
        """The number of slots."""
        return number_of_slots(self.indices)

    def has_slot(self, indices: Sequence[int]) -> bool:
        """Return whether any of these indices is a slot."""
        return any(self.index(slot(number + 1)) in indices for number in range(self.slots))

    def encode_line(self, line: str, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Encode a text of subwords as fairseq does. Shape: ``(tokens,)``.

        Raises:
            UserError: a constraint has an unknown word, and the dictionary has slots for unknown words.
        """
        line, mark, raw = line.partition(LINE)
        origins = [raw] if mark else []
        if not self.slots or kwargs.get("add_if_not_exist", True):
            tokens = super().encode_line(line, *args, **kwargs)
            if kwargs.get("append_eos", True):
                tokens = torch.cat([tokens, tokens.new_tensor(self.tags)])
            return RawTokens.of(tokens, origins) if origins else tokens
        subwords, words = number_unknown(line.split(), self.indices, self.slots)
        # fairseq encodes --constraints without an end and before their sources, which define the slots.
        if words and not kwargs.get("append_eos", True):
            raise UserError(
                f"--constraints: '{words[0]}' is not in the dictionary, and its slot depends on the "
                "source: constraints can have words of the dictionary only"
            )
        tokens = super().encode_line(" ".join(subwords), *args, **kwargs)
        return RawTokens.of(tokens, origins, [words])

    def encode_target(self, line: str, words: Sequence[str]) -> torch.Tensor:
        """Encode a target, with slots for the source's unknown words. Shape: ``(tokens,)``, int64.

        Args:
            words: the source's words that have slots.
        """
        subwords, _ = number_unknown(line.split(), self.indices, 0, words)
        return torch.tensor([*map(self.index, subwords), self.eos(), *self.tags])

    def string(self, tensor: Any, bpe_symbol: str | None = None, *args: Any, **kwargs: Any) -> str:
        """Join a sentence's subwords as fairseq does; the words that it carries replace their slots."""
        words = tensor.words if isinstance(tensor, RawTokens) and tensor.dim() == 1 else ()
        if not words:
            return str(super().string(tensor, bpe_symbol, *args, **kwargs))
        text = super().string(plain_tensor(tensor), None, *args, **kwargs)
        return str(data_utils.post_process(self.written(text, words[0]), bpe_symbol))

    def written(self, text: str, words: Sequence[str]) -> str:
        """Replace the slots in a text of subwords by a source's words.

        A slot that the source does not fill becomes an unknown word.
        """
        of_slot = {slot(number + 1): self.unk_word for number in range(self.slots)}
        of_slot |= {slot(number): word for number, word in enumerate(words, start=1)}
        return " ".join(of_slot.get(subword, subword) for subword in text.split(" "))


class RawDataset(LanguagePairDataset):
    """fairseq's dataset for inference. Its batches' ``src_tokens`` keep the sentences' attributes."""

    def collater(self, samples: Sequence[dict[str, Any]], **kwargs: Any) -> dict[str, Any]:
        """Make fairseq's batch."""
        plainly = [{**sample, "source": plain_tensor(sample["source"])} for sample in samples]
        batch: dict[str, Any] = super().collater(plainly, **kwargs)
        if batch:
            rows = [self.src[index] for index in batch["id"].tolist()]
            carrying = [row for row in rows if isinstance(row, RawTokens)]
            origins = [origin for row in carrying for origin in row.origins]
            words = [words_of_row for row in carrying for words_of_row in row.words]
            tokens = batch["net_input"]["src_tokens"]
            batch["net_input"]["src_tokens"] = RawTokens.of(tokens, origins, words)
        return batch


def write_back(
    sample: dict[str, Any],
    generated: Sequence[Sequence[dict[str, Any]]],
    words: Sequence[Sequence[str]],
) -> None:
    """Attach the sentences' words to generated tokens and to the batch's tokens, for printing.

    Args:
        sample: the batch; its ``src_tokens`` and ``target`` are replaced.
        generated: the hypotheses of each sentence; their ``tokens`` are replaced.
    """
    for hypotheses, words_of_sentence in zip(generated, words, strict=True):
        for hypothesis in hypotheses:
            hypothesis["tokens"] = RawTokens.of(
                plain_tensor(hypothesis["tokens"]), (), [words_of_sentence]
            )
    net_input = sample["net_input"]
    tokens = net_input["src_tokens"]
    origins = tokens.origins if isinstance(tokens, RawTokens) else ()
    net_input["src_tokens"] = RawTokens.of(plain_tensor(tokens), origins, words)
    if sample.get("target") is not None:
        sample["target"] = RawTokens.of(plain_tensor(sample["target"]), (), words)
