"""The options of structural and relative positions, for any encoder over source tokens.

Source: *Self-Attention with Structural Position Representations*, section 3.
"""

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.modules.positions.depth_encoding import FUSIONS
from fairseq_phrase.syntax.dependency import RELATIONS


@dataclass
class PositionOptions:
    """Options of structural and relative positions.

    All are off by default. A flag can switch a boolean option on but not off, so no preset may switch
    one on.
    """

    no_sequential_absolute: bool = option(
        False,
        "leave the absolute positions in the sentence out of the encoder (the decoder keeps its "
        "own)",
    )
    sequential_relative: bool = option(
        False, "relative positions in the sentence in the encoder (Shaw et al. 2018)"
    )
    structural_absolute: bool = option(
        False, "depths in the dependency tree in the encoder (eq. 5)"
    )
    structural_relative: bool = option(
        False, "relative positions in the dependency tree in the encoder (eq. 6)"
    )
    structural_fusion: ChoiceEnum(list(FUSIONS)) = option(  # type: ignore[valid-type]
        "tanh",
        "how the two absolute positions are combined: tanh(W PE(seq) + W' PE(stru) + b) (eq. 7), "
        "or their sum",
    )
    structural_relation: ChoiceEnum(list(RELATIONS)) = option(  # type: ignore[valid-type]
        "edge",
        "relative position of two words in the tree: eq. 6 literally, where only the words of an "
        "edge have their difference of depths (edge); the difference of depths for all words "
        "above one another (path); or the length of the path between them, with the sign of their"
        " order (distance)",
    )
    relative_clip: int = option(
        16, "largest relative position in the sentence; larger ones are clipped"
    )
    structural_clip: int = option(
        16, "largest relative position in the tree; larger ones are clipped"
    )
    relative_keys_only: bool = option(False, "add relative positions to keys only, not to values")


def needs_tree(cfg: Any) -> bool:
    """Tell whether the options ask for dependency trees."""
    return cfg.structural_absolute or cfg.structural_relative


def relative_clips(cfg: Any) -> dict[str, int]:
    """Return the kinds of relative positions that the options ask for, with their clips."""
    clips = {}
    if cfg.sequential_relative:
        clips["sequential"] = cfg.relative_clip
    if cfg.structural_relative:
        clips["structural"] = cfg.structural_clip
    return clips


def check_positions(cfg: Any) -> None:
    """Check the options of positions.

    Raises:
        UserError: a clip leaves only the relative position 0, or the options ask for an implementation
            of attention that does not support relative positions.
    """
    for kind, clip in (("relative", cfg.relative_clip), ("structural", cfg.structural_clip)):
        if clip < 1:
            raise UserError(f"--{kind}-clip {clip}: expected 1 or more")
    if relative_clips(cfg) and cfg.encoder.xformers_att_config:
        raise UserError(
            "--encoder-xformers-att-config does not support relative positions: leave it out"
        )
