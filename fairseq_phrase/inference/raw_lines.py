"""Raw lines as a model reads them: cut into subwords, parsed, and in pieces if they are too long."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import OmegaConf

from fairseq_phrase.batch.tokenizers import SyntaxEncoderConfig
from fairseq_phrase.inference.long_lines import cut_to_fit
from fairseq_phrase.inference.text_forms import SourceForm

__all__ = ["Chunk", "RawLines"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunk:
    """Lines that are ready for the model.

    Attributes:
        pieces: the token indices of every piece of a line. Shape: ``(tokens,)`` each.
        lines: for each line, the indices of its pieces; none for an empty line.
    """

    pieces: list[torch.Tensor]
    lines: list[list[int]]


class RawLines:
    """What makes token indices of raw lines.

    Args:
        source: makes a raw line the text that was preprocessed.
        task: the models' task.
        limit: the largest number of tokens that the models take.
    """

    def __init__(self, source: SourceForm, task: Any, limit: int):
        self._source, self._task, self._limit = source, task, limit
        # The tokenizer and the BPE of --tokenizer syntax --bpe syntax, in the task's own words.
        self._tokenizer, self._bpe = (
            build(OmegaConf.structured(SyntaxEncoderConfig(_name="syntax")))
            for build in (task.build_tokenizer, task.build_bpe)
        )

    def encode(self, lines: Sequence[str]) -> list[torch.Tensor]:
        """Cut lines into subwords, and parse them if the models need it.

        Args:
            lines: raw lines.

        Returns:
            Token indices with the end of the sentence, and the parse as
            :class:`~fairseq_phrase.batch.raw_tokens.RawTokens` has it. Shape: ``(tokens,)`` each.

        Raises:
            UserError: the parser is not installed, or cannot parse a line.
        """
        lines = [self._source(line) for line in lines]
        encode = lambda line: self._bpe.encode(self._tokenizer.encode(line))  # noqa: E731
        return self._task.get_interactive_tokens_and_lengths(lines, encode)[0]

    def chunk(self, numbered: tuple[int, list[str]]) -> Chunk:
        """Encode lines. A line that is too long has several pieces.

        Args:
            numbered: the number of the first line, from 1, and the lines.
        """
        first, chunk = numbered
        texts = [line for line in chunk if line.strip()]
        encoded = iter(self.encode(texts) if texts else [])
        pieces: list[torch.Tensor] = []
        places: list[list[int]] = []
        for number, line in enumerate(chunk, start=first):
            cut = self._pieces(line, next(encoded), number) if line.strip() else []
            places.append(list(range(len(pieces), len(pieces) + len(cut))))
            pieces += cut
        return Chunk(pieces, places)

    def _pieces(self, line: str, tokens: torch.Tensor, number: int) -> list[torch.Tensor]:
        """Cut a line that is too long. A line with nothing but the end of sentence has no pieces."""
        cut = cut_to_fit(line, tokens, self.encode, self._limit)
        if len(cut) > 1:
            logger.warning(
                "line %d has %d subwords, and the model takes %d: translated in %d pieces",
                number, len(tokens), self._limit, len(cut),
            )  # fmt: skip
        return [piece for piece in cut if len(piece) > 1]
