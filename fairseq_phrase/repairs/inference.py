"""fairseq's generation: truncated sources and diverse beams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

_Function = Callable[..., Any]


#: The key in a task's state for ``--max-source-positions`` of a training with ``--truncate-source``.
TRUNCATED = "max_source_positions_of_truncated_sources"


def command_options(task: Any) -> Any:
    """Return a task's configuration: ``args`` of fairseq's older tasks, whose ``cfg`` is None."""
    cfg = getattr(task, "cfg", None)
    return getattr(task, "args", None) if cfg is None else cfg


def truncate_as_trained(task: Any, state: Mapping[str, Any]) -> None:
    """Make a task truncate sources as a model's training did.

    Args:
        state: the state of the model's task, from its checkpoint.
    """
    if (positions := state.get(TRUNCATED)) is not None:
        options = command_options(task)
        options.truncate_source = True
        options.max_source_positions = min(options.max_source_positions, positions)


def truncated_tokens(tokens: torch.Tensor, positions: int) -> torch.Tensor:
    """Truncate a source as ``--truncate-source`` does, and keep its end. Shape: (tokens,)."""
    if len(tokens) <= positions:
        return tokens
    return torch.cat([tokens[: positions - 1], tokens[-1:]])


def penalize_groups_by_their_own_sentence(
    original: _Function, self: Any, step: int, lprobs: Any, scores: Any,
    prev_output_tokens: Any = None, original_batch_idxs: Any = None,
) -> Any:  # fmt: skip
    """Let ``--diverse-beam-groups`` compare the groups of one sentence.

    Symptom: an IndexError, or words that another sentence's groups have are penalized. fairseq stores
    the overlap of groups by the row in the batch, and looks it up by the number of the sentence in the
    test set.
    """
    if original_batch_idxs is not None:
        if step == 0:
            self.sentences = original_batch_idxs
        is_sentence = original_batch_idxs.unsqueeze(1) == self.sentences
        original_batch_idxs = is_sentence.int().argmax(1)
    return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
