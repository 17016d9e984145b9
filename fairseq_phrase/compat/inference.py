"""fairseq's generation: truncated sources, replaced unknown words and diverse beams."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import torch
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from fairseq_phrase.errors import UserError

_Function = Callable[..., Any]


#: The key in a task's state for ``--max-source-positions`` of a training with ``--truncate-source``.
TRUNCATED = "max_source_positions_of_truncated_sources"


def options_of(task: Any) -> Any:
    """Return a task's configuration: ``args`` of fairseq's older tasks, whose ``cfg`` is None."""
    cfg = getattr(task, "cfg", None)
    return getattr(task, "args", None) if cfg is None else cfg


def truncate_as_trained(task: Any, state: Mapping[str, Any]) -> None:
    """Make a task truncate sources as a model's training did.

    Args:
        state: the state of the model's task, from its checkpoint.
    """
    if (positions := state.get(TRUNCATED)) is not None:
        options = options_of(task)
        options.truncate_source = True
        options.max_source_positions = min(options.max_source_positions, positions)


def truncated_tokens(tokens: torch.Tensor, positions: int) -> torch.Tensor:
    """Truncate a source as ``--truncate-source`` does, and keep its end. Shape: (tokens,)."""
    if len(tokens) <= positions:
        return tokens
    return torch.cat([tokens[: positions - 1], tokens[-1:]])


def truncate_in_use(original: _Function, self: Any, state_dict: dict[str, Any]) -> None:
    """Make ``fairseq-generate`` and ``-interactive`` truncate sources if the training did.

    fairseq 0.12.3 takes the option only from the command line. Without it, long lines are refused.
    """
    truncate_as_trained(self, state_dict)
    state_dict = {name: value for name, value in state_dict.items() if name != TRUNCATED}
    original(self, state_dict)


def truncate_raw_lines(
    original: _Function, self: Any, src_tokens: Any, src_lengths: Any, **options: Any
) -> Any:
    """Make ``--truncate-source`` truncate raw lines as it truncates data."""
    if getattr(self.cfg, "truncate_source", False):  # tasks that derive from it may lack the option
        positions = self.cfg.max_source_positions
        src_tokens = [truncated_tokens(tokens, positions) for tokens in src_tokens]
        src_lengths = list(map(len, src_tokens))
    return original(self, src_tokens, src_lengths, **options)


def replace_unknown_words_without_a_file(original: _Function, replace_unk: str | None) -> Any:
    """Make ``--replace-unk`` without a file copy source words.

    fairseq 0.12.3 gives the option a value, which it then opens as a file.
    """
    return original("" if replace_unk == "@@ " else replace_unk)


def align_where_unknown_words_are_replaced(
    original: _Function, self: Any, models: Any, args: Any, *further_args: Any, **options: Any
) -> Any:
    """Add to hypotheses the source token of each token, which ``--replace-unk`` reads.

    fairseq 0.12.3 has alignments only with ``--print-alignment``.
    """
    generator = original(self, models, args, *further_args, **options)
    is_there = getattr(args, "print_alignment", None) or getattr(args, "score_reference", False)
    if getattr(args, "replace_unk", None) is None or is_there:
        return generator
    generate, pad = generator.generate, generator.pad

    def aligned(models: Any, sample: Any, **kwargs: Any) -> Any:
        generated = generate(models, sample, **kwargs)
        tokens = sample["net_input"]["src_tokens"]
        for row, hypotheses in zip(tokens, generated, strict=True):
            for hypothesis in hypotheses:
                attention = hypothesis["attention"]
                if attention is None or not attention.numel():
                    raise UserError(
                        "--replace-unk needs a decoder with attention, and "
                        f"{type(models[0].decoder).__name__} returns no weights"
                    )
                # A decoder may attend to more nodes than tokens.
                of_tokens = attention[: len(row)][row.ne(pad)]
                hypothesis["alignment"] = of_tokens.argmax(0).tolist()
        return generated

    generator.generate = aligned
    return generator


def replace_before_joining(original: _Function, cfg: Any, *args: Any) -> None:
    """Refuse ``--replace-unk`` where fairseq has joined subwords: alignments number the subwords."""
    if isinstance(cfg, Namespace):  # of scripts and notebooks
        cfg = convert_namespace_to_omegaconf(cfg)
    if cfg.generation.replace_unk is not None and cfg.common_eval.post_process is not None:
        raise UserError(
            "--replace-unk counts subwords, which --post-process (--remove-bpe) joins before: leave it "
            "out, or use fairseq-phrase-translate --replace-unk"
        )
    original(cfg, *args)


def read_pairs_of_alignments(
    original: _Function, hypo_str: str, src_str: str, alignment: Any, *args: Any
) -> str:
    """Make ``--replace-unk`` accept the output of ``--print-alignment``: pairs of source and target."""
    if isinstance(alignment, list) and all(isinstance(pair, tuple) for pair in alignment):
        alignment = {target: source for source, target in alignment}
    return str(original(hypo_str, src_str, alignment, *args))


def penalize_groups_by_their_own_sentence(
    original: _Function, self: Any, step: int, lprobs: Any, scores: Any,
    prev_output_tokens: Any = None, original_batch_idxs: Any = None,
) -> Any:  # fmt: skip
    """Let ``--diverse-beam-groups`` compare the groups of one sentence.

    fairseq 0.12.3 stores the overlap of groups by the row in the batch, and looks it up by the number of
    the sentence in the test set: it finds another sentence's, or none (IndexError).
    """
    if original_batch_idxs is not None:
        if step == 0:
            self.sentences = original_batch_idxs
        is_sentence = original_batch_idxs.unsqueeze(1) == self.sentences
        original_batch_idxs = is_sentence.int().argmax(1)
    return original(self, step, lprobs, scores, prev_output_tokens, original_batch_idxs)
