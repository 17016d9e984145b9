"""The options of structural and relative positions, for any encoder over source tokens.

Source: *Self-Attention with Structural Position Representations*, section 3.
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.depth_encoding import FUSIONS
from fairseq_phrase.syntax.dependency import RELATIONS


@dataclass
class PositionOptions:
    """Options of structural and relative positions.

    All are off by default. Those that are on or off can only be switched on by a flag, so no preset
    may switch them on.
    """

    no_sequential_absolute: bool = field(
        default=False,
        metadata={
            "help": "leave the absolute positions in the sentence out of the encoder (the decoder "
            "keeps its own)"
        },
    )
    sequential_relative: bool = field(
        default=False,
        metadata={"help": "relative positions in the sentence in the encoder (Shaw et al. 2018)"},
    )
    structural_absolute: bool = field(
        default=False, metadata={"help": "depths in the dependency tree in the encoder (eq. 5)"}
    )
    structural_relative: bool = field(
        default=False,
        metadata={"help": "relative positions in the dependency tree in the encoder (eq. 6)"},
    )
    structural_fusion: ChoiceEnum(list(FUSIONS)) = field(  # type: ignore[valid-type]
        default="tanh",
        metadata={
            "help": "how both absolute positions are put together: tanh(W PE(seq) + W' PE(stru) + b) "
            "(eq. 7), or their sum"
        },
    )
    structural_relation: ChoiceEnum(list(RELATIONS)) = field(  # type: ignore[valid-type]
        default="edge",
        metadata={
            "help": "what two words' relative position in the tree is: eq. 6 to the letter, where only "
            "the words of an edge take their difference of depths; the same for all words above "
            "one another; or the length of the path between them, with the sign of their order"
        },
    )
    relative_clip: int = field(
        default=16,
        metadata={"help": "largest relative position in the sentence; those beyond are clipped"},
    )
    structural_clip: int = field(
        default=16,
        metadata={"help": "largest relative position in the tree; those beyond are clipped"},
    )
    relative_keys_only: bool = field(
        default=False,
        metadata={"help": "relative positions are added to keys alone, not to values as well"},
    )


def needs_tree(cfg: Any) -> bool:
    """Tell whether the options ask for dependency trees."""
    return cfg.structural_absolute or cfg.structural_relative


def relative_clips(cfg: Any) -> dict[str, int]:
    """Name the kinds of relative positions that the options ask for, with their clips."""
    clips = {}
    if cfg.sequential_relative:
        clips["sequential"] = cfg.relative_clip
    if cfg.structural_relative:
        clips["structural"] = cfg.structural_clip
    return clips


def check_positions(cfg: Any) -> None:
    """Check the options of positions.

    Raises:
        UserError: a clip leaves no relative position but 0, or another implementation of attention
            is asked for, which knows of none.
    """
    for kind, clip in (("relative", cfg.relative_clip), ("structural", cfg.structural_clip)):
        if clip < 1:
            raise UserError(f"--{kind}-clip {clip}: expected 1 or more")
    if relative_clips(cfg) and cfg.encoder.xformers_att_config:
        raise UserError("--encoder-xformers-att-config has no relative positions: leave it out")
