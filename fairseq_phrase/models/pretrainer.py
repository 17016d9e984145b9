"""``--arch pretrainer --encoder NAME --objective …``: pre-training of any encoder on monolingual text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from fairseq.dataclass import ChoiceEnum
from fairseq.models.roberta.model import RobertaClassificationHead, RobertaLMHead
from fairseq.models.transformer import TransformerModelBase
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.causal_window import CausalWindow
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import declare, option
from fairseq_phrase.models.named_encoder import (
    NamedEncoderModel,
    build_named_encoder,
    named_method,
    register_named_model,
)
from fairseq_phrase.models.syntax_task import SyntaxTask

OBJECTIVES = ("masked", "causal", "permutation")
DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Objective:
    """The prediction task of a model.

    Attributes:
        backward: with ``causal``, predict the previous token.
        next_sentence: predict whether a second segment follows the first.
        memory: with ``permutation``, the number of visible tokens before a sample.

    Raises:
        UserError: the options contradict each other.
    """

    name: str = "masked"
    backward: bool = False
    next_sentence: bool = False
    memory: int = 0

    def __post_init__(self) -> None:
        if self.next_sentence and self.name == "causal":
            raise UserError(
                "--next-sentence: use --objective masked or permutation; a causal model reads the "
                "second segment as the continuation of the first"
            )
        if self.memory and self.name != "permutation":
            raise UserError("--memory: only --objective permutation has a memory")
        if self.memory and self.next_sentence:
            raise UserError(
                "--memory: pairs of segments (--next-sentence) have no segment before them"
            )
        if self.memory < 0:
            raise UserError(f"--memory {self.memory}: expected 0 or more tokens")


@declare(part="decoder")
@dataclass
class PretrainerOptions:
    """Options of pre-training."""

    # fmt: off
    objective: ChoiceEnum(list(OBJECTIVES)) = option("masked",  # type: ignore[valid-type]
        "predict masked tokens from all others (masked, as BERT), each token from those before it"
        " (causal, as GPT), or tokens in a random order (permutation, as XLNet)")
    next_sentence: bool = option(False,
        "a sample is two segments, and whether the second follows the first is predicted from the"
        " first state; for text with blank lines between documents; with --criterion "
        "next_sentence")
    context: int = option(0, "causal: number of tokens that a prediction depends on; 0 for all")
    direction: ChoiceEnum(list(DIRECTIONS)) = option("forward",  # type: ignore[valid-type]
        "causal: predict the next token, or the previous one")
    memory: int = option(0,
        "permutation: number of tokens before a sample that it also sees, without gradient")


@runtime_checkable
class PretrainingTask(SyntaxTask, Protocol):
    """A task whose samples follow an objective."""

    def require_objective(self, objective: Objective) -> None:
        """Set the objective of all later samples."""


@register_named_model("pretrainer", options=PretrainerOptions)
class PretrainerModel(NamedEncoderModel):
    """Any encoder with fairseq's head of masked language models, tied to the embeddings.

    Under the causal objective the output is only the tied embeddings, as in fairseq's language models.
    """

    def __init__(self, encoder: Any, embed_tokens: nn.Embedding, cfg: Any) -> None:
        super().__init__()
        # A list hides the embeddings from torch, which has them as parameters of the encoder.
        self.encoder, self._embedding = encoder, [embed_tokens]
        self.causal = causal_window(cfg)
        width = cfg.encoder.embed_dim
        self.first_query: nn.Parameter | None = None
        if cfg.objective == "permutation":
            # The first state of all queries; embeddings are scaled to a size of about 1.
            self.first_query = nn.Parameter(torch.randn(width))
        self.lm_head: nn.Module | None = None
        if self.causal is None:
            self.lm_head = RobertaLMHead(
                width, embed_tokens.num_embeddings, cfg.activation_fn, embed_tokens.weight
            )
        self.segment_embeddings: nn.Embedding | None = None
        self.next_sentence_head: nn.Module | None = None
        if cfg.next_sentence:
            if self.first_query is None:
                self.segment_embeddings = nn.Embedding(2, width)
                nn.init.normal_(self.segment_embeddings.weight, std=width**-0.5)
            self.next_sentence_head = RobertaClassificationHead(
                width, width, 2, activation_fn="tanh", pooler_dropout=cfg.dropout
            )

    @classmethod
    def build_model(cls, cfg: Any, task: SyntaxTask) -> PretrainerModel:
        """Build the model, and pass its objective to the task.

        Raises:
            UserError: the task has no text of one language, the options contradict each other, or the
                encoder cannot be masked causally or cannot be built.
        """
        cfg = nested_config(cfg)
        if not isinstance(task, PretrainingTask):
            raise UserError("--arch pretrainer: use --task syntax_pretraining")
        window = causal_window(cfg)
        task.require_objective(
            Objective(
                str(cfg.objective),
                cfg.direction == "backward",
                cfg.next_sentence,
                cfg.memory,
            )
        )
        if cfg.objective == "permutation":
            if not hasattr(named_method(cfg.encoder_name).encoder, "two_streams"):
                raise UserError(
                    f"--objective permutation: the encoder {cfg.encoder_name} has no query stream: use "
                    "--encoder xl_transformer"
                )
            cfg.relative_segments = cfg.next_sentence
        embed_tokens = TransformerModelBase.build_embedding(
            cfg, task.source_dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path
        )
        if window is not None:
            check_causal(cfg, window)
        encoder = build_named_encoder(cfg, task, task.source_dictionary, embed_tokens)
        return cls(encoder, embed_tokens, cfg)

    def max_positions(self) -> int:
        """Return the largest number of tokens."""
        return int(self.encoder.max_positions())

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        segments: Tensor | None = None,
        ranks: Tensor | None = None,
        memory_tokens: Tensor | None = None,
        masked_tokens: Tensor | None = None,
        features_only: bool = False,
        **parse: Tensor,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Predict tokens.

        Args:
            src_tokens: source, padded on the right. Shape: (batch, tokens).
            src_lengths: source lengths. Shape: (batch,).
            segments: 0 in the first segment and 1 in the second. Shape: (batch, tokens).
            ranks: each token's position in the order of the permutation. Shape: (batch, tokens).
            memory_tokens: the tokens before each sample, padded on the left.
                Shape: (batch, memory).
            masked_tokens: True at tokens to predict; None for all. Shape: (batch, tokens).
            features_only: return states instead of logits.

        Returns:
            Logits over the dictionary, of shape (predicted, entries) with ``masked_tokens`` and
            (batch, tokens, entries) without; and ``next_sentence``, the logits of pairs (shape
            ``(batch, 2)``), if the model has them.
        """
        if self.first_query is not None and ranks is not None:
            return self._permuted(src_tokens, ranks, segments, memory_tokens, masked_tokens)
        options: dict[str, Any] = {} if self.causal is None else {"causal": self.causal}
        if segments is not None and self.segment_embeddings is not None:
            # The encoder multiplies embeddings by this scale; segment embeddings must stay unscaled.
            of_segments = self.segment_embeddings(segments) / self.encoder.embed_scale
            options["token_embeddings"] = self.embed_tokens(src_tokens) + of_segments
        encoded = self.encoder(src_tokens, src_lengths=src_lengths, **options, **parse)
        # (nodes, batch, width) -> (batch, tokens, width)
        states = encoded["encoder_out"][0].transpose(0, 1)[:, : src_tokens.size(1)]
        extra = {}
        if self.next_sentence_head is not None:
            # fairseq's head reads the first token's state.
            extra["next_sentence"] = self.next_sentence_head(states)
        if features_only:
            return states, extra
        return self.output_layer(states, masked_tokens), extra

    def _permuted(
        self,
        src_tokens: Tensor,
        ranks: Tensor,
        segments: Tensor | None,
        memory_tokens: Tensor | None,
        masked_tokens: Tensor | None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Predict tokens from the query stream."""
        if masked_tokens is None:
            masked_tokens = torch.ones_like(src_tokens, dtype=torch.bool)
        counts = masked_tokens.sum(1)
        # The positions to predict come first, in their order.
        predicted = masked_tokens.int().argsort(dim=1, descending=True, stable=True)
        predicted = predicted[:, : int(counts.max())]
        queries, contents = self.encoder.two_streams(
            src_tokens, ranks, predicted, self.first_query, memory_tokens, segments
        )
        extra = {}
        if self.next_sentence_head is not None:
            # fairseq's head reads the first token's state.
            extra["next_sentence"] = self.next_sentence_head(contents)
        # Queries beyond a sentence's count are padding.
        position = torch.arange(predicted.size(1), device=predicted.device)
        return self.output_layer(queries, position < counts[:, None]), extra

    @property
    def embed_tokens(self) -> nn.Embedding:
        """The encoder's embeddings."""
        return self._embedding[0]

    def output_layer(self, states: Tensor, masked_tokens: Tensor | None = None) -> Tensor:
        """Turn states into logits, see :meth:`forward`."""
        if self.lm_head is not None:
            return cast(Tensor, self.lm_head(states, masked_tokens))
        if masked_tokens is not None:
            states = states[masked_tokens]
        return linear(states, self.embed_tokens.weight)

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Return probabilities, or their logarithms. Shape: as the logits."""
        logits = net_output[0].float()
        return cast(Tensor, logits.log_softmax(-1) if log_probs else logits.softmax(-1))

    def get_targets(self, sample: dict[str, Any], net_output: Any) -> Tensor:
        """Return the tokens to predict, padding elsewhere. Shape: (batch, tokens)."""
        return cast(Tensor, sample["target"])


def causal_window(cfg: Any) -> CausalWindow | None:
    """Return the window of visible positions; None if the objective is not causal.

    Raises:
        UserError: an option is set that needs the causal objective.
    """
    if cfg.context < 0:
        raise UserError(f"--context {cfg.context}: expected 0 (all tokens) or more")
    if cfg.objective == "causal":
        return CausalWindow(cfg.direction == "backward", cfg.context)
    for name, is_set in (
        ("context", cfg.context),
        ("direction backward", cfg.direction != "forward"),
    ):
        if is_set:
            raise UserError(f"--{name}: only --objective causal has it, not {cfg.objective}")
    return None


def check_causal(cfg: Any, window: CausalWindow) -> None:
    """Check that the encoder can be masked causally.

    Raises:
        UserError: a state of the encoder depends on later tokens.
    """
    encoder = named_method(cfg.encoder_name).encoder
    obstacle = "it reads a sentence in both directions"
    if hasattr(encoder, "causal_obstacle"):
        obstacle = encoder.causal_obstacle(cfg, window)
    if obstacle is not None:
        raise UserError(
            f"--objective causal: the encoder {cfg.encoder_name} cannot be masked causally with these "
            f"options: {obstacle}. transformer, xl_transformer, structural_transformer with positions in "
            "the sentence and phrase_transformer with n-grams can"
        )
