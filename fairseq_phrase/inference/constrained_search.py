"""Beam search for translations that have required texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq.search import BeamSearch, LexicallyConstrainedBeamSearch
from fairseq.token_generation_constraints import ConstraintNode, UnorderedConstraintState
from torch import Tensor

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.metrics.tokenizers import is_word_boundary

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


class RequiredText(NamedTuple):
    """A text that a translation must have.

    Attributes:
        text: the text, joined from its subwords.
        after_space: the target's indices of the text after a space or at the start of a line.
        after_text: its indices directly after other text; none if they are the same, or the dictionary
            lacks one.
    """

    text: str
    after_space: tuple[int, ...]
    after_text: tuple[int, ...] = ()


class WrittenTexts:
    """The required texts that a hypothesis has, for fairseq's search.

    fairseq's state (``by_subwords``) knows a text by one segmentation, that of the start of a line. This
    state also reads the text of the hypothesis: a required text may have another segmentation there, or
    follow other text without a space: after an opening bracket, and everywhere in Thai or Chinese.
    """

    def __init__(
        self,
        required: Sequence[RequiredText],
        text_of: Callable[[Sequence[int]], str],
        by_subwords: UnorderedConstraintState | None = None,
        written: tuple[int, ...] = (),
    ) -> None:
        """Make the state of a hypothesis.

        Args:
            text_of: joins subwords, by their indices, to text.
            by_subwords: fairseq's state.
            written: the indices of the hypothesis' subwords.
        """
        self._required, self._text_of, self._written = required, text_of, written
        if by_subwords is None:
            trie = ConstraintNode.create([list(text.after_space) for text in required])
            by_subwords = UnorderedConstraintState(trie)
        self._by_subwords = by_subwords

    def advance(self, token: Any) -> WrittenTexts:
        """Return the state of the hypothesis with one more subword."""
        written = (*self._written, int(token))
        by_subwords = self._by_subwords.advance(token)
        return WrittenTexts(self._required, self._text_of, by_subwords, written)

    @property
    def tokens(self) -> set[int]:
        """The subwords of the texts. The search subtracts banks from their number."""
        return self._by_subwords.tokens  # type: ignore[no-any-return]

    @cached_property
    def finished(self) -> bool:
        """Whether the hypothesis has all texts."""
        return self._by_subwords.finished or not self._missing

    @cached_property
    def bank(self) -> int:
        """How much the hypothesis has of the texts, in subwords."""
        total, missing = (
            sum(len(text.after_space) for text in texts)
            for texts in (self._required, self._missing)
        )
        begun = max((count for _, count in self._begun()), default=0)
        return max(int(self._by_subwords.bank), total - missing + begun)

    def next_tokens(self) -> set[int]:
        """Return the subwords that may begin a text, or go on with a text."""
        tokens: set[int] = self._by_subwords.next_tokens()
        return tokens | {text.after_text[count] for text, count in self._begun()}

    @cached_property
    def _missing(self) -> list[RequiredText]:
        """The texts that the hypothesis lacks; longer texts are searched first."""
        written = self._text_of(self._written)
        free, missing = written, []
        for required in sorted(self._required, key=lambda required: -len(required.text)):
            start, end = 0, 0
            while start >= 0:
                start = free.find(required.text, end)
                end = start + len(required.text)
                if start >= 0 and _is_word_start(written, start, required.text):
                    free = free[:start] + "\0" * len(required.text) + free[end:]
                    break
            else:
                missing.append(required)
        return missing

    def _begun(self) -> Iterator[tuple[RequiredText, int]]:
        """Yield texts that may go on here directly after other text, and their numbers of subwords."""
        for required in self._missing:
            for count in range(min(len(required.after_text), len(self._written))):
                before = self._written[: len(self._written) - count]
                begins = self._written[len(before) :] == required.after_text[:count]
                if begins and is_word_boundary(self._text_of(before), required.text):
                    yield required, count


def _is_word_start(written: str, start: int, text: str) -> bool:
    """Return whether a part of the written text is a required text: not the end of another word."""
    end = start + len(text)
    # A combining mark belongs to the character before it.
    is_whole = end == len(written) or is_word_boundary("", written[end])
    return is_whole and is_word_boundary(written[:start], text)


class ConstrainedSearch(LexicallyConstrainedBeamSearch):
    """fairseq's search with constraints in any order, after a forced prefix.

    With a prefix, fairseq would put the constraints' next tokens, whose probability is then 0, into the
    beam. Here the search starts after the prefix, which may fulfil constraints.

    Args:
        text_of: joins subwords, by their indices, to text.
    """

    def __init__(self, dictionary: Dictionary, text_of: Callable[[Sequence[int]], str]) -> None:
        super().__init__(dictionary, "unordered")
        self.constraint_states: list[list[Any]] = []
        self._plain, self._text_of = BeamSearch(dictionary), text_of
        self._ends = ends_of(dictionary)
        # Hypotheses that lack a constraint at the largest length are not finished.
        self.stop_on_max_len = True

    def begin(self, required: Sequence[Sequence[RequiredText]], prefix: int = 0) -> None:
        """Set the texts that the sentences of a batch require.

        Args:
            prefix: the number of tokens of the prefix of every sentence.
        """
        self._required, self._prefix = required, prefix

    def init_constraints(self, batch_constraints: Any, beam_size: int) -> None:
        """Begin a batch; the constraints are those of :meth:`begin`."""
        self.constraint_states = [
            [WrittenTexts(texts, self._text_of)] * beam_size for texts in self._required
        ]

    def step(
        self, step: int, lprobs: Tensor, scores: Tensor, tokens: Tensor, indices: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Choose the candidates of a step, see fairseq."""
        if step < self._prefix:
            candidates: tuple[Tensor, Tensor, Tensor] = self._plain.step(step, lprobs, scores)
            self.constraint_states = [
                [states[0].advance(token)] * candidates[1].size(1)
                for states, token in zip(self.constraint_states, candidates[1][:, 0], strict=True)
            ]
            return candidates
        open_ones = [[not state.finished for state in states] for states in self.constraint_states]
        unmet = torch.tensor(open_ones, device=lprobs.device)[..., None]
        for end in self._ends:
            lprobs[..., end : end + 1].masked_fill_(unmet, -math.inf)
        if step and step == self._prefix:
            lprobs = lprobs + scores[:, :, step - 1 : step]
            step = 0
        return super().step(step, lprobs, scores, tokens, indices)  # type: ignore[no-any-return]
