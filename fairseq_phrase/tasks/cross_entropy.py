"""Label-smoothed cross entropy together with the output projection, without the scores of all words.

fairseq's decoder returns a score for each target token and word of the dictionary. Its criterion makes
several more tensors of this size, and so does the backward pass. Here the loss and its gradient are
computed for a part of the target tokens at a time, and only gradients of the states and of the projection
remain. Padded tokens are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
from fairseq.criterions import CRITERION_REGISTRY, FairseqCriterion
from fairseq.criterions.cross_entropy import CrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.models.bart import BARTModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from fairseq_phrase.methods.model_parts import decoder_of, unwrapped
from fairseq_phrase.models.seq2seq import Seq2SeqDecoder, Seq2SeqModel
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel

#: How many scores are in memory at a time, by type of device: a CPU's cache has them, and a GPU needs
#: large products.
SCORES = {"cpu": 2**23, "cuda": 2**25}


@contextmanager
def by_parts() -> Iterator[None]:
    """Let fairseq build criteria of these classes in place of its own."""
    classes = {
        name: CRITERIA[kind] for name, kind in CRITERION_REGISTRY.items() if kind in CRITERIA
    }
    with mock.patch.dict(CRITERION_REGISTRY, classes):
        yield


#: Models and decoders whose ``forward`` gives the states that the decoder's output layer reads, and whose
#: output layer is a projection. A user's subclass may have other scores.
_PLAIN = (
    SyntaxTransformerModel, Seq2SeqModel, TransformerModelBase, BARTModel,
    TransformerDecoderBase, Seq2SeqDecoder,
)  # fmt: skip
#: Their functions between the states and the loss.
_FUNCTIONS = (
    "forward", "output_layer", "get_targets", "get_normalized_probs", "get_normalized_probs_scriptable",
)  # fmt: skip


def _functions_of(kind: type) -> set[Any]:
    return {getattr(kind, name, None) for name in _FUNCTIONS}


_KNOWN = frozenset[Any]().union(*map(_functions_of, _PLAIN))


def projection_of(model: Any) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight and the bias by which a model makes scores of states.

    Args:
        model: may be wrapped for several processes.

    Returns:
        None if the scores may differ from those of a projection, or if the wrapper looks for the
        parameters that ``forward`` uses.
    """
    if getattr(model, "find_unused_parameters", False):
        return None
    model = unwrapped(model)
    decoder = decoder_of(model)
    if decoder is None or not _functions_of(type(model)) | _functions_of(type(decoder)) <= _KNOWN:
        return None
    layer = decoder.output_projection
    if layer is None and getattr(decoder, "adaptive_softmax", None) is None:
        return decoder.embed_tokens.weight, None
    is_plain = type(layer) is nn.Linear and not (layer._forward_hooks or layer._forward_pre_hooks)
    return (layer.weight, layer.bias) if is_plain else None


class ByParts(FairseqCriterion):
    """A criterion whose loss is computed of the decoder's states.

    The classes have the names of fairseq's criteria, which checkpoints record.
    """

    # What only criteria with smoothing set.
    ignore_prefix_size: int = 0
    report_accuracy: bool = False
    eps: float | None = None

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Compute the loss, as fairseq's criterion does; one loss per token as fairseq computes it."""
        projection = projection_of(model)
        if projection is None or not reduce or torch.is_autocast_enabled():
            return super().forward(model, sample, reduce)
        target = model.get_targets(sample, None)
        if self.ignore_prefix_size:
            target = target.clone()
            target[:, : self.ignore_prefix_size] = self.padding_idx

        def losses_of(**inputs: Any) -> tuple[Losses, Any]:
            states, extra = model(**inputs, features_only=True)
            losses = smoothed_cross_entropy(
                states, *projection, target, self.padding_idx, self.eps or 0.0,
                count_correct=self.report_accuracy, scale=self.task.loss_scale,
            )  # fmt: skip
            return losses, extra

        return super().forward(losses_of, sample, reduce)

    def compute_loss(
        self, model: Any, net_output: Any, sample: dict[str, Any], reduce: bool = True
    ) -> Any:
        """Return the loss and the loss without smoothing, of the output of the model."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            return super().compute_loss(model, net_output, sample, reduce)
        return losses.loss, losses.loss if self.eps is None else losses.nll_loss

    def compute_accuracy(self, model: Any, net_output: Any, sample: dict[str, Any]) -> Any:
        """Return the numbers of correct tokens and of all tokens."""
        losses = net_output[0]
        if not isinstance(losses, Losses):
            return super().compute_accuracy(model, net_output, sample)
        return losses.correct, losses.total


#: The criteria that can be computed by parts, by the class of fairseq's.
CRITERIA: dict[type, type[ByParts]] = {
    kind: type(kind.__name__, (ByParts, kind), {"__doc__": kind.__doc__})
    for kind in (CrossEntropyCriterion, LabelSmoothedCrossEntropyCriterion)
}


class Losses(NamedTuple):
    """Sums over the target tokens of a batch that are not padding.

    Attributes:
        loss: with label smoothing; it has a gradient.
        nll_loss: without label smoothing.
        correct: the number of tokens whose target has the best score; 0 if it is not counted.
        total: the number of tokens.
    """

    loss: Tensor
    nll_loss: Tensor
    correct: Tensor
    total: Tensor


def smoothed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    padding: int,
    smoothing: float = 0.0,
    *,
    count_correct: bool = False,
    scale: float = 1.0,
) -> Losses:
    """Compute fairseq's label-smoothed cross entropy of ``linear(states, weight, bias)``.

    Args:
        states: of the decoder. Shape: (batch, target tokens, width)
        weight: Shape: (words, width)
        bias: Shape: (words,)
        target: words. Shape: (batch, target tokens), int64
        padding: the word of the padding.
        smoothing: ε; each word that is not the target gets ε / (words - 1).
        count_correct: also count the tokens whose target has the best score.
        scale: the expected factor of the loss in the backward pass. It keeps gradients in half precision
            above the smallest number.
    """
    states, target = states.reshape(-1, states.size(-1)), target.reshape(-1)
    is_word = target.ne(padding)
    if states.device.type == "cpu":  # on a GPU the host would wait for the number of rows
        (rows,) = is_word.nonzero(as_tuple=True)
        if len(rows) < len(target):
            states, target, is_word = (x.index_select(0, rows) for x in (states, target, is_word))
    apply: Any = _SmoothedCrossEntropy.apply  # torch's is not typed
    loss, nll_loss, correct = apply(
        states, weight, bias, target, is_word, smoothing, count_correct, scale,
        torch.is_grad_enabled(),
    )  # fmt: skip
    return Losses(loss, nll_loss, correct, is_word.sum())


class _SmoothedCrossEntropy(torch.autograd.Function):
    """The loss of states, whose gradient is computed in the forward pass.

    Let p be the softmax of a token's scores, y its target, V the number of words and e = ε / (V - 1).
    The token's loss is -(1 - ε - e) log p_y - e Σ log p. The gradient for its scores is p, minus
    1 - ε - e at y, minus e everywhere. The last term does not depend on the scores: it is added once, at
    the end.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        target: Tensor,
        is_word: Tensor,
        smoothing: float,
        count_correct: bool,
        scale: float,
        needs_gradient: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        words, dtype = len(weight), _sum_type(states)
        of_others = smoothing / (words - 1)
        of_target = 1 - smoothing - of_others
        is_kept = is_word.to(dtype)
        nll, log_total = is_kept.new_zeros(2, len(states))
        correct = torch.zeros((), dtype=torch.int64, device=states.device)
        gradients = _Gradients(states, weight, bias, scale) if needs_gradient else None
        memory: Tensor | None = None
        for rows in _parts(len(states), words, states.device.type):
            scores = _scores(states[rows], weight, bias, memory)
            memory = scores if memory is None else memory
            index = target[rows].unsqueeze(1)
            if count_correct:
                correct += (scores.argmax(1).eq(target[rows]) & is_word[rows]).sum()
            best, score = scores.amax(1, keepdim=True), scores.gather(1, index)
            # The memory of the scores becomes that of the softmax.
            softmax = scores.sub_(best).exp_()
            total = softmax.sum(1, keepdim=True)
            log_total[rows] = total.log().add_(best)[:, 0]
            nll[rows] = log_total[rows] - score[:, 0]
            if gradients is not None:
                softmax.div_(total)
                minus = softmax.new_full((1, 1), -of_target).expand_as(index)
                gradients.add(
                    rows, softmax.scatter_add_(1, index, minus), is_kept[rows].unsqueeze(1)
                )
        nll_loss = nll.dot(is_kept)
        # Σ log p of a token is the sum of its scores, minus V times the logarithm of the softmax' total.
        weight_sum = weight.sum(0, dtype=dtype)
        score_sum = states.to(dtype) @ weight_sum
        if bias is not None:
            score_sum += bias.sum(dtype=dtype)
        uniform = (words * log_total - score_sum).dot(is_kept)
        ctx.scale, ctx.has_bias = scale, bias is not None
        if gradients is not None:
            gradients.subtract(of_others, weight_sum, is_kept)
            ctx.save_for_backward(*gradients.converted())
        ctx.mark_non_differentiable(nll_loss, correct)
        return of_target * nll_loss + of_others * uniform, nll_loss, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = list(ctx.saved_tensors)
        factor = gradient / ctx.scale
        # Mostly the factor is 1. On a CPU the host can read it.
        if factor.device.type != "cpu" or factor != 1:
            gradients = [stored * factor for stored in ctx.saved_tensors]
        if not ctx.has_bias:
            gradients.append(None)
        return *gradients, *[None] * 6


class _Gradients:
    """The gradients of states and projection, to which parts of the target tokens are added.

    Sums over tokens are in single precision or better, and converted at the end.
    """

    def __init__(self, states: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> None:
        self._inputs, self._projection, self._scale = states, weight, scale
        self._states = torch.empty_like(states)
        self._weight = torch.zeros_like(weight, dtype=_sum_type(weight))
        self._bias = None if bias is None else torch.zeros_like(bias, dtype=_sum_type(bias))

    def add(self, rows: slice, scores: Tensor, is_kept: Tensor) -> None:
        """Add a part of the tokens.

        Args:
            scores: the gradients of the scores, in single precision or better; their memory may be
                overwritten. Shape: (tokens, words)
            is_kept: 0 at padding, else 1. Shape: (tokens, 1)
        """
        if self._scale != 1:
            scores.mul_(self._scale)
        if self._bias is not None:
            self._bias.addmv_(scores.t(), is_kept[:, 0])
        # Products are of the states' type, as in fairseq.
        inputs = self._inputs[rows] * is_kept.to(self._inputs.dtype)
        if inputs.dtype == scores.dtype:
            self._weight.addmm_(scores.t(), inputs)
        else:
            scores = scores.to(inputs.dtype)
            self._weight += scores.t() @ inputs
        torch.mm(scores, self._projection, out=self._states[rows])
        self._states[rows] *= is_kept

    def subtract(self, number: float, weight_sum: Tensor, is_kept: Tensor) -> None:
        """Subtract a number from the gradients of all scores of tokens that are not padding."""
        number *= self._scale
        self._states -= (is_kept.unsqueeze(1) * (number * weight_sum)).to(self._states.dtype)
        self._weight -= number * (is_kept @ self._inputs.to(is_kept.dtype))
        if self._bias is not None:
            self._bias -= number * is_kept.sum()

    def converted(self) -> list[Tensor]:
        """Return the gradients of states, weight and, if there is one, bias, in their types."""
        biases = [] if self._bias is None else [self._bias.to(self._projection.dtype)]
        return [self._states, self._weight.to(self._projection.dtype), *biases]


def _sum_type(values: Tensor) -> torch.dtype:
    """Return the type of sums: single precision or better."""
    return torch.promote_types(values.dtype, torch.float32)


def _parts(tokens: int, words: int, device: str) -> Iterator[slice]:
    """Divide the target tokens into parts of about the same size."""
    count = max(1, -(-tokens * words // SCORES.get(device, SCORES["cuda"])))
    size = max(1, -(-tokens // count))
    for start in range(0, tokens, size):
        yield slice(start, start + size)


def _scores(states: Tensor, weight: Tensor, bias: Tensor | None, memory: Tensor | None) -> Tensor:
    """Compute the scores of words in single precision or better. Shape: (tokens, words).

    Args:
        memory: of other scores, for as many tokens or more, which is overwritten; None for new memory.
    """
    out = None if memory is None else memory[: len(states)]
    if states.dtype != _sum_type(states):
        scores = linear(states, weight, bias)
        return scores.to(_sum_type(states)) if out is None else out.copy_(scores)
    if bias is None:
        return torch.mm(states, weight.t(), out=out)
    return torch.addmm(bias, states, weight.t(), out=out)
