"""Losses that teach a model of transformers trees in training only, without fairseq.

    model = add_tree_losses(model, ParseLoss(0.1), TreeRegularization(0.5))
    model(**encoding, **collate(encoding, parses), **collate_spans(parses), labels=labels).loss

The mathematics are those of fairseq's side (``methods/losses/tree_losses.py``):
``docs/models/tree_relations.md``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface.batches import parsed
from fairseq_phrase.huggingface.training import derived_class, has_biases, with_keywords
from fairseq_phrase.methods.losses.parent_pointer import ParentPointer
from fairseq_phrase.methods.losses.tree_planting import tree_distances, tree_planting
from fairseq_phrase.methods.losses.tree_regularization import tree_regularization
from fairseq_phrase.methods.relations.batch_relations import check_numbers
from fairseq_phrase.methods.relations.huggingface_attention import (
    PROBE,
    AttentionSizes,
    register_attention,
    self_attentions,
)
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence

Model = TypeVar("Model", bound=nn.Module)

#: The attention's name in transformers, which checks that a model has sdpa because the name contains it.
_ATTENTION = "fairseq_phrase_sdpa_with_losses"
#: Arguments of a forward pass, of which the losses read what their trees need.
_PARSE = ("src_words", "src_heads", "src_spans")


@dataclass(frozen=True)
class AttentionCall:
    """A call of a self-attention by the model.

    Attributes:
        query: Shape: (batch, heads, tokens, head width)
        key, value: a head may serve several heads of queries.
            Shape of each: (batch, key heads, tokens, head width)
        attend: returns for other values the attended values, without dropout.
            Shape: (batch, tokens, heads, head width)
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attend: Callable[[Tensor], Tensor]

    def weights(self) -> Tensor:
        """Return the attention weights before dropout. Shape: (batch, heads, tokens, tokens).

        Attended rows of the identity are weights, whatever the attention adds to scores. Values keep
        their width, which fast kernels need, so there may be several parts.
        """
        batch, heads, tokens, width = self.value.shape
        identity = torch.eye(tokens, device=self.value.device, dtype=self.value.dtype)
        # What the attention adds to values, such as vectors of relations, is subtracted.
        nothing = self.attend(torch.zeros_like(self.value))
        parts = []
        for rows in identity.split(width, 1):
            padded = nn.functional.pad(rows, (0, width - rows.size(1)))
            attended = self.attend(padded.expand(batch, heads, -1, -1)) - nothing
            parts.append(attended[..., : rows.size(1)])
        return torch.cat(parts, 3).transpose(1, 2)


class TreeLoss(nn.Module):
    """A loss of one layer of a model's encoder, or of its decoder if it has no encoder.

    Args:
        weight: λ. The mean of the loss, times λ, is added to the model's loss.
        layer: from 1; 0 is the middle layer.

    Attributes:
        name: of the loss' last values in ``model.tree_losses.latest``.
        reads_attention: whether it reads a call of the layer's attention, or else the layer's new states.
        field: the field of the parse that it reads: heads or spans.
    """

    name: ClassVar[str]
    reads_attention: ClassVar[bool] = True
    heads: int = 1
    field: str = "heads"

    def __init__(self, weight: float, layer: int = 0) -> None:
        super().__init__()
        if not weight > 0:
            raise UserError(f"{type(self).__name__}: weight {weight}: expected a number above 0")
        self.weight, self.layer = weight, layer

    def prepare(self, config: Any, head_width: int) -> None:
        """Check the options for an encoder's configuration, and find the layer.

        Args:
            head_width: of the attention's queries.

        Raises:
            UserError: the layer does not exist, or has no such heads.
        """
        layers, name = config.num_hidden_layers, type(self).__name__
        if not 0 <= self.layer <= layers:
            raise UserError(f"{name}: layer {self.layer}: the model has layers 1 to {layers}")
        self.layer = self.layer or (layers + 1) // 2
        heads = self.heads
        if not 0 <= heads <= config.num_attention_heads:
            raise UserError(
                f"{name}: heads {heads}: the layer has {config.num_attention_heads} heads"
            )
        self.heads = heads or max(config.num_attention_heads // 4, 1)

    def forward(self, layer: Any, trees: dict[str, Tensor]) -> Sequence[Tensor]:
        """Return the sum of the losses, the number of correct items if it counts them, and of all.

        Args:
            layer: an :class:`AttentionCall`, or states of shape (batch, tokens, width).
            trees: ``words``, and ``heads`` or ``spans``, as of :func:`collate` and :func:`collate_spans`.
        """
        raise NotImplementedError


class ParseLoss(TreeLoss):
    """The layer's first head learns to point at each word's parent (LISA, Strubell et al. 2018)."""

    name = "parse_loss"

    def prepare(self, config: Any, head_width: int) -> None:
        """Make the matrix between queries and keys."""
        super().prepare(config, head_width)
        self.pointer = ParentPointer(head_width)

    def forward(self, layer: AttentionCall, trees: dict[str, Tensor]) -> Sequence[Tensor]:
        """Compare the head's scores with the heads of the words."""
        return tuple(
            self.pointer(layer.query[:, 0], layer.key[:, 0], trees["words"], trees["heads"])
        )


class TreeRegularization(TreeLoss):
    """TreeReg: states of constituents become independent of their context (Nandi et al. 2025).

    Args:
        heads: the loss changes the first columns of the states, as many as of this number of heads; 0 is
            a quarter of the heads.
    """

    name, reads_attention, field = "tree_regularization", False, "spans"

    def __init__(self, weight: float, layer: int = 0, heads: int = 0) -> None:
        super().__init__(weight, layer)
        self.heads = heads

    def prepare(self, config: Any, head_width: int) -> None:
        """Find the columns."""
        super().prepare(config, head_width)
        self.columns = self.heads * config.hidden_size // config.num_attention_heads

    def forward(self, layer: Tensor, trees: dict[str, Tensor]) -> Sequence[Tensor]:
        """Score the divisions of constituents by the states of their words."""
        return tree_regularization(layer[..., : self.columns], trees["words"], trees["spans"])


class TreePlanting(TreeLoss):
    """Attention decreases with the distance in the tree (Yoshida et al. 2024).

    Args:
        heads: the number of first heads that learn; 0 is a quarter of them.
    """

    name = "tree_planting"

    def __init__(self, weight: float, layer: int = 0, heads: int = 1) -> None:
        super().__init__(weight, layer)
        self.heads = heads

    def forward(self, layer: AttentionCall, trees: dict[str, Tensor]) -> Sequence[Tensor]:
        """Compare the attention of the first heads with the distances."""
        weights, words = layer.weights(), trees["words"]
        # A causal mask, or a window around each token, hides tokens from all heads.
        visible = (weights > 0).any(1)
        distances = tree_distances(words, trees["heads"])
        return tree_planting(weights[:, : self.heads], words, distances, visible)


class _Recorder:
    """Records calls of attentions, which are numbered from 1.

    Args:
        numbers: of the calls to keep.
    """

    def __init__(self, numbers: set[int]) -> None:
        self.numbers, self.count = numbers, 0
        self.calls: dict[int, AttentionCall] = {}

    def record(self, call: AttentionCall) -> None:
        """Keep a call if a loss reads it."""
        self.count += 1
        if self.count in self.numbers:
            self.calls[self.count] = call


class _Running(threading.local):
    """What a thread records now. Unlike a context variable, torch.compile can trace it.

    Attributes:
        recorder: of the model that runs with losses; None outside of calls.
    """

    def __init__(self) -> None:
        self.recorder: _Recorder | None = None


_RUNNING = _Running()


@contextmanager
def recorded_attention(numbers: set[int]) -> Iterator[_Recorder]:
    """Record the calls of the attention of some layers, by their numbers."""
    recorder, before = _Recorder(numbers), _RUNNING.recorder
    _RUNNING.recorder = recorder
    try:
        yield recorder
    finally:
        _RUNNING.recorder = before


def _attend_and_record(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    dropout: float = 0.0,
    **options: Any,
) -> Any:
    """Attend by the model's own attention, and record the call."""
    attend = functools.partial(_own_attention(module), module, query, key)
    recorder = _RUNNING.recorder
    if recorder is not None:

        def without_dropout(values: Tensor) -> Tensor:
            attended: Tensor = attend(values, attention_mask, dropout=0.0, **options)[0]
            return attended

        recorder.record(AttentionCall(query, key, value, without_dropout))
    return attend(value, attention_mask, dropout=dropout, **options)


def _own_attention(module: Any) -> Any:
    """Return the function by which an attention attends without losses."""
    from transformers import AttentionInterface

    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    return AttentionInterface().get_interface(
        module.config_without_losses._attn_implementation, eager
    )


class TreeLosses(nn.Module):
    """The losses of a model; :func:`add_tree_losses` makes it.

    Attributes:
        losses: in the order in which they were given.
        latest: the mean of each loss in the last call of the model that had trees, and where it has one,
            its accuracy. Each is a number on the model's device.
    """

    def __init__(self, losses: Sequence[TreeLoss]) -> None:
        super().__init__()
        self.losses: Any = nn.ModuleList(losses)
        self.latest: dict[str, Tensor] = {}

    def forward(self, model: Any, forward: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        """Call a model, and add the losses to its loss.

        Args:
            forward: the model's method without losses.
            kwargs: of the call. Unless the model is trained, there are no losses without labels or trees.

        Returns:
            The output of the model.

        Raises:
            UserError: labels or trees are missing in training; trees are of another batch; or a loss
                would not train the model.
        """
        parse = {name: kwargs.get(name) for name in _PARSE}
        kwargs = model.own_arguments(kwargs)
        is_trained = model.training and torch.is_grad_enabled()
        has_labels = any(kwargs.get(name) is not None for name in model.label_names)
        if not is_trained and (not has_labels or parse["src_words"] is None):
            return forward(**kwargs)
        if not has_labels:
            raise UserError(
                "the losses of trees are added to the model's loss, and this call has no labels: leave "
                "out label_smoothing_factor and compute_loss_func, for which Trainer takes them away"
            )
        trees = self._trees(parse)
        config = model.config
        states_wanted = kwargs.get("output_hidden_states", config.output_hidden_states)
        as_dict = kwargs.get("return_dict", config.return_dict)
        # Most models' own losses ignore num_items_in_batch. Both losses get the same weight here.
        part = _part(model, kwargs)
        kwargs = {**kwargs, "return_dict": True}
        kwargs.pop("num_items_in_batch", None)
        if not all(loss.reads_attention for loss in self.losses):
            kwargs["output_hidden_states"] = True
        with recorded_attention(
            {loss.layer for loss in self.losses if loss.reads_attention}
        ) as recorder:
            output = forward(**kwargs)
        states_name = "encoder_hidden_states" if config.is_encoder_decoder else "hidden_states"
        layers = {
            False: lambda number: output[states_name][number],
            True: recorder.calls.__getitem__,
        }
        added = self._add_up(
            lambda loss: layers[loss.reads_attention](loss.layer), trees, is_trained
        )
        output["loss"] = part * (output["loss"] + added)
        if not states_wanted:
            hidden = ("hidden_states", "encoder_hidden_states", "decoder_hidden_states")
            output = type(output)(**{n: x for n, x in output.items() if n not in hidden})
        return output if as_dict else output.to_tuple()

    def _trees(self, parse: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """Return the fields of the parse that the losses read."""
        fields = ["words", *dict.fromkeys(loss.field for loss in self.losses)]
        for field in fields:
            if parse[f"src_{field}"] is None:
                maker = "collate_spans" if field == "spans" else "collate"
                raise UserError(f"the losses of trees need src_{field}: pass it ({maker})")
        trees: dict[str, Any] = {field: parse[f"src_{field}"] for field in fields}
        _check_trees(trees)
        return trees

    def _add_up(
        self, layer_of: Callable[[TreeLoss], Any], trees: dict[str, Tensor], is_trained: bool
    ) -> Tensor:
        """Add up the means of the losses, times their weights."""
        total = torch.zeros((), device=trees["words"].device)
        self.latest = {}
        for loss in self.losses:
            layer = layer_of(loss)
            states = layer.query[:, 0] if loss.reads_attention else layer
            if is_trained and not states.requires_grad:
                raise UserError(
                    f"{type(loss).__name__} would not train the model: its layer {loss.layer} takes no "
                    "gradient: use gradient_checkpointing_kwargs={'use_reentrant': False}, and do not "
                    "freeze all parameters up to this layer"
                )
            shape = states.shape[:2]
            if shape != trees["words"].shape:
                raise UserError(
                    f"the batch has {shape[0]} sentences of {shape[1]} tokens, and src_words "
                    f"{len(trees['words'])} of {trees['words'].size(1)}: pass the parse of the same batch"
                )
            try:
                summed, *correct, count = loss(layer, trees)
            except ValueError as error:
                raise UserError(f"src_words, src_heads: {error}") from None
            mean = summed / count.clamp(min=1)
            total = total + loss.weight * mean
            self.latest[loss.name] = mean.detach()
            if correct:
                self.latest[f"{loss.name}_accuracy"] = correct[0] / count.clamp(min=1)
        return total


def _check_trees(trees: dict[str, Any]) -> None:
    """Check that words, heads and constituents exist; not on a GPU, for which the host would wait."""
    words = trees["words"]
    if "heads" in trees:
        check_numbers(words, trees["heads"], None, 0)
    is_readable = words.device.type == "cpu" and not torch.compiler.is_compiling()
    if "spans" in trees and is_readable:
        start, end = trees["spans"][..., 0], trees["spans"][..., 1]
        is_fault = (start >= 0) & (end <= start)
        if is_fault.any():
            row, number = is_fault.nonzero()[0].tolist()
            raise UserError(
                f"src_spans: sentence {row}, constituent {number}: words {int(start[row, number])} to "
                f"{int(end[row, number])}: the end is one past the last word (collate_spans)"
            )


def _part(model: Any, kwargs: dict[str, Any]) -> Any:
    """Return which part of the labels that Trainer divides the loss by are the batch's own.

    Trainer adds up the losses of ``gradient_accumulation_steps`` batches; their mean is wanted.
    """
    items = kwargs.get("num_items_in_batch")
    if items is None:
        return 1.0
    labels = kwargs["labels"]
    if kwargs.get("shift_labels") is not None:
        labels = kwargs["shift_labels"]  # as Trainer counts
    elif getattr(model, "loss_type", None) == "ForCausalLM" and not model.config.is_encoder_decoder:
        labels = labels[..., 1:]
    return labels.ne(-100).sum() / torch.as_tensor(items, device=labels.device).float().mean()


class _Taught:
    """The base of models with losses of trees."""


@functools.cache
def _with_losses(base: Any) -> Any:
    from transformers import AttentionInterface
    from transformers.utils.generic import find_labels

    AttentionInterface.register(_ATTENTION, _attend_and_record)
    signature = inspect.signature(base.forward)
    parse_arguments = [name for name in _PARSE if name not in signature.parameters]

    names = list(signature.parameters)[1:]

    class Taught(_Taught, base):
        label_names = find_labels(base)

        @staticmethod
        def own_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
            """Return the arguments that the class without losses has."""
            return {name: value for name, value in kwargs.items() if name not in parse_arguments}

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            kwargs |= dict(zip(names, args, strict=False))
            return self.tree_losses(self, super().forward, kwargs)

    if hasattr(base, "generate"):

        @functools.wraps(base.generate)
        def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
            return base.generate(self, *args, **self.own_arguments(kwargs))

        Taught.generate = generate
    Taught.forward.__signature__ = with_keywords(signature, parse_arguments)  # type: ignore[attr-defined]
    return derived_class(Taught, base, _with_losses)


def add_tree_losses(model: Model, *losses: TreeLoss) -> Model:
    """Add losses that teach trees to the loss of a model of transformers.

    The model then also takes ``src_words`` and ``src_heads`` (:func:`collate`) and ``src_spans``
    (:func:`collate_spans`). Without them it works as before, but is not trained. Its loss is the sum. The
    last values are in ``model.tree_losses.latest``.

    Args:
        model: a model that returns a loss: an encoder with a head, a sequence-to-sequence model, whose
            encoder is taught, or a decoder. It is changed.
        *losses: :class:`ParseLoss`, :class:`TreeRegularization` and :class:`TreePlanting`; at most one of
            each.

    Returns:
        The model.

    Raises:
        UserError: it has losses already, a layer or head does not exist, or a loss reads an attention
            that is not called by transformers' ``AttentionInterface``.
    """
    untyped: Any = model
    if isinstance(model, _Taught):
        raise UserError("this model has losses of trees already: remove_tree_losses first")
    names = [loss.name for loss in losses]
    if not losses or len(set(names)) < len(names):
        raise UserError(
            f"add_tree_losses: expected one loss or more of different kinds, and not {names}"
        )
    encoder = untyped.get_encoder() if untyped.config.is_encoder_decoder else untyped.base_model
    width = 0
    attentions: dict[Any, AttentionSizes] = {}
    if any(loss.reads_attention for loss in losses):
        attentions = _attentions(untyped, encoder)
        width = next(iter(attentions.values())).key_width
    for loss in losses:
        loss.prepare(encoder.config, width)
    for module in attentions:
        module.config_without_losses = module.config
        module.config = copy.copy(module.config)
        module.config._attn_implementation = _ATTENTION
    tree_losses = TreeLosses(losses)
    parameter = next(p for p in model.parameters() if p.is_floating_point())
    untyped.tree_losses = tree_losses.to(device=parameter.device, dtype=parameter.dtype)
    _become(untyped, _with_losses(untyped.__class__))
    return model


def _become(model: Any, kind: type) -> None:
    """Give a model of transformers another class, as its caller asks for."""
    model.__class__ = kind


def remove_tree_losses(model: Model) -> Model:
    """Remove the losses of :func:`add_tree_losses`, for saving: the model is then one of transformers.

    Raises:
        UserError: the model has no losses.
    """
    untyped: Any = model
    if not isinstance(model, _Taught):
        raise UserError("remove_tree_losses: this model has no losses of trees")
    _become(model, type(model).__bases__[1])
    del untyped.tree_losses
    for module in model.modules():
        if hasattr(module, "config_without_losses"):
            module.config = module.config_without_losses
            del module.config_without_losses
    return model


def _attentions(model: Any, encoder: Any) -> dict[Any, AttentionSizes]:
    """Find the self-attentions of an encoder and their sizes."""
    register_attention()
    if has_biases(model.config):
        attentions = model.config.relation_bias["attentions"].items()
        return {
            model.base_model.get_submodule(n): AttentionSizes(*sizes) for n, sizes in attentions
        }
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(PROBE)
        return self_attentions(encoder)
    except (UserError, ValueError) as error:
        raise UserError(
            f"a {model.config.model_type} model takes no losses of attention: {error}"
        ) from None
    finally:
        model.set_attn_implementation(before)


def collate_spans(parses: Sequence[Any]) -> dict[str, Tensor]:
    """Make a batch's constituents for :class:`TreeRegularization` and :class:`TreePlanting`.

    Args:
        parses: as for :func:`collate`. A sentence without constituents gets those of its dependency tree:
            each word with all words below it.

    Returns:
        ``src_spans``: the first word of each constituent, one past its last word, and 0; -1 is padding.
        Shape: (batch, constituents, 3), int64

    Raises:
        UserError: a sentence has neither constituents nor a dependency tree.
    """
    trees = [_constituents(row, parse) for row, parse in enumerate(parses)]
    spans = torch.full((len(trees), max(map(len, trees), default=0), 3), -1)
    for row, tree in enumerate(trees):
        spans[row, : len(tree), :2] = torch.from_numpy(tree.spans)
        spans[row, : len(tree), 2] = 0
    return {"src_spans": spans}


def _constituents(row: int, parse: Any) -> ConstituencyTree:
    tree: DependencyTree | None
    if isinstance(parse, tuple | list):
        tree = DependencyTree(parse[0])
    else:
        sentence = parsed(parse)
        tree = None
        if isinstance(sentence, ParsedSentence):
            if sentence.constituents is not None:
                return sentence.constituents
            tree = sentence.tree
    if tree is None:
        raise UserError(f"sentence {row} has neither constituents nor a dependency tree")
    return ConstituencyTree.from_dependencies(tree, ["x"] * len(tree.heads))
