"""The options of phrases, and checks of their combinations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fairseq.dataclass import ChoiceEnum

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.models.position_options import PositionOptions, check_positions, needs_tree
from fairseq_phrase.modules.phrases.first_states import FIRST_STATES
from fairseq_phrase.modules.phrases.phrase_attention import ACTIVATIONS, GATES, MASKS
from fairseq_phrase.modules.phrases.sources import load_source


@dataclass
class PhraseOptions(PositionOptions):
    """Options of phrases, and of positions."""

    phrase_source: str = option(
        "ngram",
        "source of phrases: spans of adjacent units (ngram); the edges and chains of the "
        "dependency tree (dependency); the constituents of the constituency tree (constituency), "
        "or only those that contain no others, which are what a chunker finds (chunk); no "
        "phrases, as a control (none); or a source of an installed package",
    )
    phrase_max_length: int = option(
        2, "largest number of units (words, for trees) in a phrase: the paper's k"
    )
    phrase_unit: ChoiceEnum(["token", "word"]) = option(  # type: ignore[valid-type]
        "token", "unit of n-grams: subwords, or whole words with all their subwords"
    )
    phrase_activation: ChoiceEnum(list(ACTIVATIONS)) = option(  # type: ignore[valid-type]
        "sigmoid",
        "σ of eq. 5, on each head's output within phrases; identity is the paper's Linear "
        "PhraseTransformer",
    )
    phrase_mask: ChoiceEnum(list(MASKS)) = option(  # type: ignore[valid-type]
        "subset",
        "mask of attention within phrases: other nodes are excluded, as the paper's text says "
        "(subset); eq. 5 literally, where other nodes get some weight (hadamard); or A = 1, as a "
        "control (all)",
    )
    phrase_init: ChoiceEnum(list(FIRST_STATES)) = option(  # type: ignore[valid-type]
        "zero",
        "first states of phrases: zero (algorithm 1); the mean of their tokens (mean); a learned "
        "weighted mean of their tokens (attention); a learned projection of the first and the "
        "last token (ends)",
    )
    phrase_gate: ChoiceEnum(list(GATES)) = option(  # type: ignore[valid-type]
        "none",
        "how attention within phrases starts: as in the paper (none); with an output projection "
        "of zeros (zero); or multiplied by a learned number that starts at 0 (scalar)",
    )
    phrase_relative_clip: int = option(
        0,
        "largest relative position of a part in its phrase; larger ones are clipped. Each "
        "position has a learned bias in each head of the attention within phrases; 0: no biases",
    )
    phrase_layers: str = option(
        "all",
        "the encoder layers with phrases, from 1: 'all', 2-4, or 2 for the first two; the other "
        "layers have tokens only",
    )
    phrase_to_decoder: bool = option(False, "the decoder attends to phrases as it does to tokens")


def phrase_layers(cfg: Any) -> range:
    """Read ``--phrase-layers``: the layers with phrases, from 0.

    Raises:
        UserError: it is not a range of the encoder's layers.
    """
    layers = cfg.encoder.layers
    text = str(cfg.phrase_layers).strip()
    if text == "all":
        return range(layers)
    first, dash, last = text.partition("-")
    try:
        chosen = range(int(first) - 1, int(last)) if dash else range(int(first))
    except ValueError:
        chosen = range(0)
    if not chosen or chosen.start < 0 or chosen.stop > layers:
        raise UserError(
            f"--phrase-layers {cfg.phrase_layers}: expected 'all', a number of layers from the first, or "
            f"a range such as 1-2, within the encoder's {layers} layers"
        )
    return chosen


def check_phrases(cfg: Any) -> list[str]:
    """Check the options, and return the parse fields that they need.

    Raises:
        UserError: the options contradict each other.
    """
    check_positions(cfg)
    if cfg.phrase_max_length < 2:
        raise UserError(
            f"--phrase-max-length {cfg.phrase_max_length}: a phrase has at least 2 units"
        )
    if cfg.phrase_max_length > cfg.max_source_positions:
        raise UserError(
            f"--phrase-max-length {cfg.phrase_max_length} is more than any sentence has: "
            f"--max-source-positions is {cfg.max_source_positions}"
        )
    if cfg.phrase_relative_clip < 0:
        raise UserError(f"--phrase-relative-clip {cfg.phrase_relative_clip}: expected 0 or more")
    if cfg.phrase_relative_clip and cfg.phrase_mask != "subset":
        raise UserError(
            "--phrase-relative-clip needs --phrase-mask subset: nodes that are not part of one another "
            "have no relative position"
        )
    chosen = phrase_layers(cfg)
    if cfg.phrase_to_decoder and (
        chosen.stop < cfg.encoder.layers or (chosen.start and cfg.encoder.layerdrop)
    ):
        raise UserError(
            f"--phrase-to-decoder needs phrases in the last layer, but --phrase-layers is "
            f"{cfg.phrase_layers}"
        )
    try:
        needed = load_source(cfg.phrase_source).fields(cfg)
    except ValueError as error:
        raise UserError(f"--phrase-source: {error}") from None
    return [*dict.fromkeys([*needed, *(["words", "heads"] if needs_tree(cfg) else [])])]
