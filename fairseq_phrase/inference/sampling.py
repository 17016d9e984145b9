"""Sampling that draws the same translation of a line in any batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.search import Sampling
from torch import Tensor


def seed_of(seed: int, line: int, piece: int) -> int:
    """Return the seed of a line's segment, by the numbers of the line and of the segment in it."""
    digest = hashlib.blake2b(f"{seed} {line} {piece}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


class SamplingBySentence(Sampling):
    """fairseq's sampling, in which each sentence of a batch has a random state.

    fairseq draws for a whole batch from one state: a translation depends on the other sentences.
    """

    def begin(self, seeds: Sequence[int], device: torch.device) -> None:
        """Set the states of a batch.

        Args:
            seeds: a seed for each sentence.
        """
        self._device = device
        self._states = [torch.Generator(device).manual_seed(seed).get_state() for seed in seeds]

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor | None,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw the next subwords; the arguments and the results are fairseq's.

        Args:
            lprobs: Shape: ``(sentences, beams, vocabulary)``.
            original_batch_idxs: the numbers in the batch of the sentences that are not finished.
        """
        assert original_batch_idxs is not None
        drawn = []
        for row, sentence in enumerate(original_batch_idxs.tolist()):
            self._set_state(self._states[sentence])
            own = None if scores is None else scores[row : row + 1]
            drawn.append(super().step(step, lprobs[row : row + 1], own))
            self._states[sentence] = self._state()
        return tuple(map(torch.cat, zip(*drawn, strict=True)))  # type: ignore[return-value]

    def _state(self) -> Any:
        if self._device.type == "cuda":
            return torch.cuda.get_rng_state(self._device)
        return torch.get_rng_state()

    def _set_state(self, state: Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)
        else:
            torch.set_rng_state(state)
