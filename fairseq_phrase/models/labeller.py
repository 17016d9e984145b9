"""``--arch labeller --encoder NAME``: labels of words or of sentences, with any registered encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.modules import FairseqDropout
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.labelling import (
    WordDropout,
    first_of_words,
    mean_of_tokens,
    mean_of_words,
    with_first_token,
)
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import declare, option
from fairseq_phrase.methods.recurrent.hierarchical_attention import AttentionSum
from fairseq_phrase.models.named_encoder import (
    NamedEncoderModel,
    build_named_encoder,
    register_named_model,
)
from fairseq_phrase.models.syntax_task import SyntaxTask

#: The values of ``--pooling``, by labelled unit. The first is the default.
POOLINGS = {"word": ("first", "mean"), "sentence": ("mean", "cls", "attention", "root")}


@declare(part="decoder")
@dataclass
class LabellerOptions:
    """Options of labelling."""

    # fmt: off
    pooling: ChoiceEnum(["default", "first", "mean", "cls", "attention", "root"]) = option("default",  # type: ignore[valid-type]
        "state from which a label is predicted. Words: their first subword (first, the default) "
        "or the mean of their subwords. Sentences: the mean of their tokens (the default), a "
        "additional first token as in BERT (cls), a sum weighted by attention (attention), or the"
        " tree's root (root)")
    head_layers: int = option(1, "linear layers from state to label; 2: with a tanh layer between")
    word_dropout: float = option(0.0,
        "in training, a token that occurs c times in the training text is unknown with "
        "probability W / (W + c): 0.25 suits words that are whole. 0: none", identity="free")


@runtime_checkable
class LabellingTask(SyntaxTask, Protocol):
    """A task with labels of words or of sentences (``labelled``)."""

    labelled: str
    whole_words: bool


class LabelHead(nn.Sequential):
    """Dropout and a linear layer, or two with a tanh between them.

    Args:
        layers: 1 or 2.
        dropout: before each linear layer.
    """

    def __init__(self, width: int, num_labels: int, layers: int, dropout: float) -> None:
        def linear(size: int) -> list[nn.Module]:
            layer = nn.Linear(width, size)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
            return [FairseqDropout(dropout, module_name="LabelHead"), layer]

        hidden = [*linear(width), nn.Tanh()] if layers == 2 else []
        super().__init__(*hidden, *linear(num_labels))


def checked_pooling(cfg: Any, labelled: str) -> str:
    """Check the options of labelling; return the pooling."""
    poolings = POOLINGS[labelled]
    pooling = poolings[0] if cfg.pooling == "default" else str(cfg.pooling)
    if pooling not in poolings:
        raise UserError(
            f"--pooling {pooling}: these data have labels of {labelled}s, for which the poolings are "
            f"{', '.join(poolings)}"
        )
    if cfg.head_layers not in (1, 2):
        raise UserError(f"--head-layers {cfg.head_layers}: expected 1 or 2")
    if not cfg.word_dropout >= 0:
        raise UserError(f"--word-dropout {cfg.word_dropout}: expected 0 or a positive number")
    return pooling


@register_named_model("labeller", options=LabellerOptions)
class LabellerModel(NamedEncoderModel):
    """Any encoder with a head that predicts labels of words or of sentences; without a decoder.

    It returns logits, and stock criteria train it.

    Args:
        labelled: ``word`` or ``sentence``.
        pooling: one of :data:`POOLINGS`.
        whole_words: whether every token except the last is a word.
    """

    def __init__(
        self,
        encoder: Any,
        head: nn.Module,
        *,
        width: int,
        labelled: str,
        pooling: str,
        whole_words: bool = False,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.labelled, self.pooling, self.whole_words = labelled, pooling, whole_words
        self.dictionary = words = encoder.dictionary
        counts = [-1] * words.nspecial + words.count[words.nspecial :]
        self.word_dropout = WordDropout(counts, word_dropout, words.unk())
        self.attention = AttentionSum(width) if pooling == "attention" else None

    @classmethod
    def build_model(cls, cfg: Any, task: SyntaxTask) -> LabellerModel:
        """Build the model for a task with labels.

        Raises:
            UserError: the task has no labels, the pooling does not fit them, or the encoder cannot be
                built (:func:`~fairseq_phrase.models.named_encoder.build_named_encoder`).
        """
        cfg = nested_config(cfg)
        if not isinstance(task, LabellingTask):
            raise UserError("--arch labeller: use --task syntax_labelling")
        pooling = checked_pooling(cfg, task.labelled)
        if pooling == "cls":
            # The added token needs one more position than the text.
            cfg.max_source_positions += 1
        encoder = build_named_encoder(cfg, task, task.source_dictionary)
        obstacle = getattr(encoder, "first_token_obstacle", lambda: None)()
        if pooling == "cls" and obstacle:
            raise UserError(f"--pooling cls: {obstacle}: expected mean, attention or root")
        if task.labelled == "word" and not task.whole_words:
            task.require_parses(["words"])
        width = cfg.encoder.embed_dim
        head = LabelHead(width, len(task.target_dictionary), cfg.head_layers, cfg.dropout)
        return cls(
            encoder, head, width=width, labelled=task.labelled, pooling=pooling,
            whole_words=task.whole_words, word_dropout=cfg.word_dropout,
        )  # fmt: skip

    def max_positions(self) -> tuple[int, int]:
        """Return the largest numbers of tokens and of labels."""
        # The added first token takes one position.
        tokens = self.encoder.max_positions() - (self.pooling == "cls")
        return tokens, tokens

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor | None = None, **parse: Tensor
    ) -> Tensor:
        """Predict labels.

        Args:
            src_tokens: source, padded on the right. Shape: (batch, tokens).
            src_lengths: source lengths. Shape: (batch,).

        Returns:
            Logits over the label dictionary. Shape: (batch, words, labels) for words, any values at
            padding, and ``(batch, 1, labels)`` for sentences.
        """
        words = parse.get("src_words")
        src_tokens = self.word_dropout(src_tokens)
        if self.pooling == "cls":
            src_tokens, words = with_first_token(src_tokens, words, self.dictionary.bos())
            parse = parse if words is None else {**parse, "src_words": words}
            src_lengths = None if src_lengths is None else src_lengths + 1
        encoded = self.encoder(src_tokens, src_lengths=src_lengths, **parse)
        # (nodes, batch, width) -> (batch, nodes, width)
        states = encoded["encoder_out"][0].transpose(0, 1)
        if self.labelled == "word":
            return cast(Tensor, self.head(self._word_states(states, src_tokens, words)))
        state = self._sentence_state(states, src_tokens, encoded, parse)
        return cast(Tensor, self.head(state.unsqueeze(1)))

    def _word_states(self, states: Tensor, src_tokens: Tensor, words: Tensor | None) -> Tensor:
        """Shape: (batch, words, width)."""
        if self.whole_words:
            # All tokens except the end of sentence of the longest sentence.
            return states[:, : src_tokens.size(1) - 1]
        assert words is not None
        pool = {"first": first_of_words, "mean": mean_of_words}[self.pooling]
        return pool(states, words, int(words.max()) + 1)

    def _sentence_state(
        self, states: Tensor, src_tokens: Tensor, encoded: dict[str, Any], parse: dict[str, Tensor]
    ) -> Tensor:
        """Shape: (batch, width)."""
        if self.pooling == "cls":
            return states[:, 0]
        if self.pooling == "root":
            rows = torch.arange(len(states), device=states.device)
            return states[rows, self._roots(encoded, parse)]
        # Tokens are the first nodes.
        states = states[:, : src_tokens.size(1)]
        is_unit = src_tokens.ne(self.dictionary.pad()) & src_tokens.ne(self.dictionary.eos())
        if self.attention is not None:
            return cast(Tensor, self.attention(states, ~is_unit))
        return mean_of_tokens(states, is_unit)

    def _roots(self, encoded: dict[str, Any], parse: dict[str, Tensor]) -> Tensor:
        roots = self.encoder.root_nodes(encoded, ParseBatch.from_net_input(parse))
        if roots is None:
            raise UserError(
                f"--pooling root: {type(self.encoder).__name__} has no root node, as it reads no tree: "
                "choose mean, cls or attention, or an encoder of trees"
            )
        return cast(Tensor, roots)

    def get_targets(self, sample: dict[str, Any], net_output: Tensor) -> Tensor:
        """Return the labels, padded to the width of the logits. Shape: (batch, words) or (batch, 1)."""
        target = sample["target"]
        # Source and labels may be padded to different lengths.
        width = net_output.size(1) - target.size(1)
        return pad(target, (0, width), value=self.dictionary.pad()) if width else target
