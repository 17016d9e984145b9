"""Losses that teach an encoder trees in training only: they are added to any criterion.

- ``--parse-loss``: the first head of a layer learns to point at parents, by a matrix between the queries
  and keys of the layer's input states, which is a parameter of the criterion;
- ``--tree-regularization``: states of constituents become independent of their context;
- ``--tree-planting``: attention between words decreases with their distance in the tree.

The model does not change, so translation needs neither parses nor this module.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor, nn
from torch.nn.functional import linear

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.losses.added_losses import AddedLoss, Call, Loss, calls_of
from fairseq_phrase.methods.losses.parent_pointer import ParentPointer
from fairseq_phrase.methods.losses.tree_planting import tree_distances, tree_planting
from fairseq_phrase.methods.losses.tree_regularization import tree_regularization
from fairseq_phrase.methods.model_parts import encoder_of
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoderLayer


@dataclass
class TreeLossOptions:
    """Options of losses that teach trees."""

    # fmt: off
    parse_loss: float = option(0.0,
        "weight λ of a loss that teaches the first head of the middle encoder layer to point at each "
        "word's parent; it is added to the criterion's loss; translation needs no parses for it")
    tree_regularization: float = option(0.0,
        "weight λ of TreeReg, a loss that makes the states of constituents independent of their "
        "context; translation needs no parses for it")
    tree_planting: float = option(0.0,
        "weight λ of a loss that makes an encoder layer's attention decrease with the distance in "
        "the tree; translation needs no parses for it")
    # fmt: on


class LossSetting(NamedTuple):
    """The number of a layer's first heads that a loss teaches, and their width."""

    heads: int
    width: int


def attention_layer(model: Any, flag: str) -> Any:
    """Find the encoder's middle layer, which a loss teaches.

    Args:
        flag: of the loss.

    Raises:
        UserError: the layer has no self-attention with queries and keys.
    """
    layers = getattr(encoder_of(model), "layers", None)
    if layers is None or not len(layers):
        raise UserError(f"{flag} needs an encoder with layers of self-attention")
    layer = layers[(len(layers) - 1) // 2]
    attention = getattr(layer, "self_attn", None)
    if not all(hasattr(attention, name) for name in ("q_proj", "k_proj", "num_heads")):
        raise UserError(
            f"{flag}: {type(layer).__name__} has no self-attention with queries and keys"
        )
    return layer


class TreeLossCriterion(AddedLoss):
    """A criterion with a loss that a layer of the encoder gets from trees; :meth:`over` makes it.

    Attributes:
        option: the name of the loss' weight.
        heads: the number of first heads that it teaches; 0 for a quarter of them.
        field: the parse field that it reads.
        logged: the name of its logged values.
        accuracy: the name of its logged accuracy; empty without one.

    Args:
        setting: from :meth:`setting_for`.
    """

    option: ClassVar[str]
    heads: ClassVar[int] = 1
    field: ClassVar[str]
    logged: ClassVar[str]
    accuracy: ClassVar[str] = ""

    def __init__(self, inner: FairseqCriterion, weight: float, setting: LossSetting) -> None:
        super().__init__(inner, weight)
        self.setting = setting

    @classmethod
    def flag(cls) -> str:
        """Return the option of the weight as it is given."""
        return f"--{cls.option.replace('_', '-')}"

    @classmethod
    def weight_in(cls, cfg: Any) -> float:
        """Return the loss' weight in the task's options."""
        return float(getattr(cfg, cls.option))

    @classmethod
    def setting_for(cls, cfg: Any, model: Any) -> LossSetting:
        """Check the loss' options for a model.

        Raises:
            UserError: the model has no layer for it.
        """
        attention = attention_layer(model, cls.flag()).self_attn
        heads = cls.heads or max(attention.num_heads // 4, 1)
        width = attention.q_proj.weight.size(0) // attention.num_heads
        return LossSetting(heads, width)

    @classmethod
    def check_source(cls, source: str | None) -> None:
        """Check that a source of trees makes the parse field that the loss reads.

        Args:
            source: ``--tree-source``.

        Raises:
            UserError: it does not.
        """
        if cls.field == "spans" and source not in (None, "parse"):
            raise UserError(
                f"--tree-source {source} makes only dependency heads, and {cls.flag()} reads "
                "constituents: leave one of them out"
            )

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Loss:
        """Compute the criterion's loss, plus λ times the tree loss averaged over what it counts.

        The average is multiplied by the sample size, because fairseq divides losses by it. R-Drop repeats
        the batch and sums the losses of both copies, but its sample size is the size of one copy.
        """
        trees = sample.get("parse")
        layer = attention_layer(model, self.flag())
        with calls_of(layer) as calls, self.watched(layer) as weights:
            loss, sample_size, logging_output = self.inner(model, sample, reduce)
        # A layer that was dropped (--encoder-layerdrop) has no input states.
        if trees is not None and calls and reduce:
            copies = len(_batch_first(calls[0].inputs[0], layer)) // len(trees["words"])
            if copies > 1:
                trees = {name: torch.cat([rows] * copies) for name, rows in trees.items()}
            summed, *correct, count = self.taught(layer, calls[0], trees, weights)
            average = summed / count.clamp(min=1)
            loss = loss + self.weight * copies * sample_size * average
            values = zip(("loss", "count", "correct"), (summed, count, *correct), strict=False)
            logging_output |= {f"{self.logged}_{name}": value.data for name, value in values}
        return loss, sample_size, logging_output

    def watched(self, layer: Any) -> AbstractContextManager[list[Tensor]]:
        """Collect the layer's attention weights, if the loss reads them."""
        return nullcontext([])

    def taught(
        self, layer: Any, call: Call, trees: dict[str, Tensor], weights: list[Tensor]
    ) -> Sequence[Tensor]:
        """Compute the loss: its sum, the number of correct items if it has an accuracy, and of all.

        Args:
            call: of the layer, by the model.
            trees: parse fields, one row for each of the layer's sentences.
            weights: from :meth:`watched`.
        """
        raise NotImplementedError

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the criterion's values, the average loss in bits, and the accuracy in percent."""
        cls.inner_class.reduce_metrics(logging_outputs)
        loss, count, correct = (
            sum(float(log.get(f"{cls.logged}_{name}", 0)) for log in logging_outputs)
            for name in ("loss", "count", "correct")
        )
        if count:
            metrics.log_scalar(f"{cls.logged}_loss", loss / count / math.log(2), count, round=3)
        if count and cls.accuracy:
            metrics.log_scalar(cls.accuracy, 100 * correct / count, count, round=2)


class ParseLossCriterion(TreeLossCriterion):
    """A criterion with the parse loss added."""

    suffix = "WithParseLoss"
    option, field, logged, accuracy = "parse_loss", "heads", "parse", "uas"

    def __init__(self, inner: FairseqCriterion, weight: float, setting: LossSetting) -> None:
        super().__init__(inner, weight, setting)
        self.pointer = ParentPointer(setting.width)

    def taught(
        self, layer: Any, call: Call, trees: dict[str, Tensor], weights: list[Tensor]
    ) -> Sequence[Tensor]:
        """Let the first head point at the parents of all words."""
        states = _batch_first(call.inputs[0], layer)
        if layer.normalize_before:
            states = layer.self_attn_layer_norm(states)
        # Tokens come before other nodes.
        states = states[:, : trees["words"].size(1)]
        width = self.setting.width
        query, key = (
            # The rows of the first head. Shape: (batch, tokens, head width)
            linear(
                states,
                projection.weight[:width],
                None if projection.bias is None else projection.bias[:width],
            )
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )
        return tuple(self.pointer(query, key, trees["words"], trees["heads"]))

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Load the matrix; a checkpoint that was trained without a parse loss lacks it."""
        return super().load_state_dict(state_dict or self.state_dict(), *args, **kwargs)


class TreeRegularizationCriterion(TreeLossCriterion):
    """A criterion with TreeReg added, on the first heads' columns of the layer's new states."""

    option, heads, field = "tree_regularization", 0, "spans"
    logged, accuracy = "treereg", "treereg_accuracy"

    def taught(
        self, layer: Any, call: Call, trees: dict[str, Tensor], weights: list[Tensor]
    ) -> Sequence[Tensor]:
        """Score the divisions of constituents by the states of their words."""
        states = call.output[0] if isinstance(call.output, tuple) else call.output
        columns = self.setting.heads * self.setting.width
        states = _batch_first(states, layer)[:, : trees["words"].size(1), :columns]
        return tree_regularization(states, trees["words"], trees["spans"])


class TreePlantingCriterion(TreeLossCriterion):
    """A criterion with tree-planting added, on the attention of the first heads."""

    option, field, logged = "tree_planting", "heads", "planting"

    def watched(self, layer: Any) -> AbstractContextManager[list[Tensor]]:
        """Collect the attention weights, unless --checkpoint-activations computes no gradients yet."""
        is_checkpointed = torch.is_grad_enabled() and "forward" in vars(layer)
        return nullcontext([]) if is_checkpointed else weights_of(layer.self_attn)

    def taught(
        self, layer: Any, call: Call, trees: dict[str, Tensor], weights: list[Tensor]
    ) -> Sequence[Tensor]:
        """Compare the attention of the first heads with the trees."""
        if not weights:
            with weights_of(layer.self_attn) as weights:
                type(layer).forward(layer, *call.inputs, **call.options)
        distances = tree_distances(trees["words"], trees["heads"])
        return tree_planting(weights[0][:, : self.setting.heads], trees["words"], distances)


#: The losses, in the order in which they are added. Only the last one has parameters, so checkpoints fit
#: with and without the other losses.
TREE_LOSSES: Sequence[type[TreeLossCriterion]] = (
    TreeRegularizationCriterion,
    TreePlantingCriterion,
    ParseLossCriterion,
)


def wanted_losses(cfg: TreeLossOptions) -> list[type[TreeLossCriterion]]:
    """Return the losses whose λ is not 0.

    Raises:
        UserError: a λ is negative.
    """
    for loss in TREE_LOSSES:
        if (weight := loss.weight_in(cfg)) < 0:
            raise UserError(f"{loss.flag()} {weight}: expected 0 or more")
    return [loss for loss in TREE_LOSSES if loss.weight_in(cfg)]


@contextmanager
def weights_of(attention: nn.Module) -> Iterator[list[Tensor]]:
    """Let an attention compute its weights before dropout. Shape: (batch, heads, nodes, nodes)."""
    weights: list[Tensor] = []

    def ask(_: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if "need_weights" not in options:
            return (*inputs[:2], True), options
        # fairseq's own layer. static_kv: else fairseq calls torch's function, which averages the heads.
        names = ("need_weights", "need_head_weights", "static_kv")
        return inputs, options | dict.fromkeys(names, True)

    def keep(_: nn.Module, inputs: Any, options: dict[str, Any], output: Any) -> None:
        # fairseq returns (heads, batch, queries, keys) to its own layer.
        weights.append(output[1].transpose(0, 1) if "need_weights" in options else output[1])

    asking = attention.register_forward_pre_hook(ask, with_kwargs=True)
    keeping = attention.register_forward_hook(keep, with_kwargs=True)
    try:
        yield weights
    finally:
        asking.remove()
        keeping.remove()


def _batch_first(states: Tensor, layer: Any) -> Tensor:
    is_batch_first = isinstance(layer, SyntaxEncoderLayer) and not layer.time_first
    return states if is_batch_first else states.transpose(0, 1)
