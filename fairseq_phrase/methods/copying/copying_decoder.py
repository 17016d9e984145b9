"""``--copy``: decoders that copy source words, for recurrent decoders and the Transformer's, any encoder.

A copying decoder returns the scores of words joined with the scores of source positions
(:mod:`fairseq_phrase.methods.copying.copy_scores`). Criteria, beam search, ensembles and the scorer of
references take a softmax of these scores, as for any other decoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.copying.copy_scores import COPIES, CopyScores, CopySource
from fairseq_phrase.methods.encoder_method import declare, option

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Task


@declare(part="decoder")
@dataclass
class CopyOptions:
    """The option that chooses how source words are copied."""

    copy: ChoiceEnum(["none", *COPIES]) = option(  # type: ignore[valid-type]
        "none",
        "copy source words: one softmax over words and source positions (joint), a gate between "
        "the words' probabilities and the attention (gate, pointer-generator), or source "
        "positions only (pointer); see --copy-words of fairseq-phrase-preprocess for unknown "
        "words",
    )


def copies(cfg: Any, *, is_recurrent: bool = False) -> bool:
    """Return whether a model copies.

    Raises:
        UserError: an option is incompatible with copying.
    """
    if cfg.copy == "none":
        return False
    if cfg.adaptive_softmax_cutoff is not None:
        raise UserError(
            f"--copy {cfg.copy} needs the scores of all words: leave --adaptive-softmax-cutoff out"
        )
    if COPIES[str(cfg.copy)].needs_attention:
        _check_attention(cfg, is_recurrent)
    return True


def _check_attention(cfg: Any, is_recurrent: bool) -> None:
    """Check that the decoder always returns the attention that is copied from."""
    if cfg.no_cross_attention or (is_recurrent and cfg.attention == "none"):
        raise UserError(
            f"--copy {cfg.copy} copies what the decoder attends to, but it does not attend: choose "
            "another --attention than none, or --copy joint"
        )
    # Recurrent decoders do not drop layers.
    if cfg.decoder.layerdrop and not is_recurrent:
        raise UserError(
            f"--copy {cfg.copy} copies what the decoder's last layer attends to, and with "
            f"--decoder-layerdrop {cfg.decoder.layerdrop} a training step may lack it: leave "
            "--decoder-layerdrop out, or choose --copy joint"
        )


def source_words(source: Dictionary, target: Dictionary) -> Tensor:
    """Find source words in the target dictionary, or its unknown word. Shape: (source words,), int64."""
    return torch.tensor([target.index(word) for word in source.symbols])


class CopyingDecoder(FairseqIncrementalDecoder):
    """A mixin that makes a decoder copy; :func:`copying_class` combines it with a decoder."""

    copy_scores: CopyScores
    source_words: Tensor

    def start_copying(self, kind: str, source_width: int, task: Task) -> None:
        """Add the parameters of copying.

        Args:
            kind: a name in :data:`COPIES`.
        """
        source, target = task.source_dictionary, task.target_dictionary
        width: Any = self.output_embed_dim
        self.copy_scores = COPIES[kind](width, source_width)
        self.source_padding = source.pad()
        # It is a function of the dictionaries, so checkpoints do not need it.
        self.register_buffer("source_words", source_words(source, target), persistent=False)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Any]],
        incremental_state: Any = None,
        features_only: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Decode; arguments and results are as in the decoder's base class."""
        features, extra = super().forward(
            prev_output_tokens,
            encoder_out=encoder_out,
            incremental_state=incremental_state,
            features_only=True,
            **kwargs,
        )
        if features_only:
            return features, extra
        words = self.output_layer(features)
        attention = extra["attn"][0] if extra["attn"] else None
        return self.joined(words, features, encoder_out, attention), extra

    def joined(
        self,
        words: Tensor,
        features: Tensor,
        encoder_out: dict[str, list[Any]],
        attention: Tensor | None,
    ) -> Tensor:
        """Join the scores of words and positions. Shape: (rows, target tokens, words)."""
        (tokens,) = encoder_out["src_tokens"]
        # Tokens are the first nodes. (nodes, sentences, width) -> (sentences, tokens, width)
        states = encoder_out["encoder_out"][0].transpose(0, 1)[:, : tokens.size(1)]
        shape = words.shape
        # Some encoders keep a sentence once for all rows of its beam; these rows are adjacent.
        words, features = (
            values.reshape(len(tokens), -1, values.size(-1)) for values in (words, features)
        )
        if not self.copy_scores.needs_attention:
            attention = None
        elif attention is not None:
            attention = attention.reshape(len(tokens), -1, attention.size(-1)).to(features)
        padding = tokens.eq(self.source_padding)
        source = CopySource(states, self.source_words[tokens], padding)
        return cast(Tensor, self.copy_scores(words, features, source, attention).view(shape))


@cache
def copying_class(decoder: type) -> Any:
    """Make a subclass of a decoder that copies.

    Returns:
        The subclass. Call :meth:`CopyingDecoder.start_copying` on each object.
    """
    return type(
        f"Copying{decoder.__name__}", (CopyingDecoder, decoder), {"__doc__": decoder.__doc__}
    )
