"""Alignments of translations: attention to the source, for any decoder with attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.visualization.constituent_maps import translate
from fairseq_phrase.visualization.source_sentence import SourceSentence, require_length, written

#: Longer sentences are not drawn: labels would be unreadable. Translations end at this length.
MAX_TOKENS = 100


@dataclass(frozen=True)
class AlignmentPicture:
    """The attention of a translation.

    Attributes:
        weights: row attends to column. Shape: ``(target tokens, source tokens)``.
    """

    sentence: str
    source: list[str]
    target: list[str]
    weights: np.ndarray


def alignment_picture(model: Any, task: Any, sentence: SourceSentence) -> AlignmentPicture:
    """Translate a sentence, and compute the attention of each token of the translation.

    Args:
        model: a model whose decoder returns its attention, as fairseq's decoders do.

    Raises:
        UserError: the model does not translate, its decoder lacks attention, or the sentence is too long.
    """
    require_length(len(sentence.tokens), MAX_TOKENS, "tokens")
    dictionary = task.target_dictionary
    with torch.no_grad():
        tokens = translate(model, sentence.net_input, dictionary, longest=MAX_TOKENS)
        encoded = model.encoder(**sentence.net_input)
        previous = tokens.roll(1).unsqueeze(0)  # the end of sentence comes first
        _, extra = model.decoder(previous, encoder_out=encoded)
    weights = extra["attn"][0] if extra["attn"] else None
    if weights is None:
        raise UserError(
            f"{type(model.decoder).__name__} returns no attention, so there is nothing to draw: the "
            "model was trained with --attention none"
        )
    target = written(tokens, dictionary, sentence.copied)
    return AlignmentPicture(
        sentence.text, sentence.tokens, target, weights[0].float().cpu().numpy()
    )
