"""Label-smoothed cross entropy together with the output projection, without the scores of all words.

fairseq's decoder returns a score for each target token and word of the dictionary. Its criterion makes
several more tensors of this size, and so does the backward pass. Here the loss and its gradient are
computed for a part of the target tokens at a time, and only gradients of the states and of the projection
remain. Padded tokens are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from fairseq.criterions import (
    FairseqCriterion,
    cross_entropy,
    label_smoothed_cross_entropy,
    label_smoothed_cross_entropy_with_alignment,
    label_smoothed_cross_entropy_with_rdrop,
)
from fairseq.models import FairseqEncoderDecoderModel
from fairseq.models.bart import BARTModel
from fairseq.models.lstm import LSTMDecoder, LSTMModel
from fairseq.models.transformer import TransformerDecoderBase, TransformerModelBase
from fairseq.models.transformer_align import TransformerAlignModel
from fairseq.optim import AMPOptimizer
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from fairseq_phrase.models.model_parts import decoder_of
from fairseq_phrase.models.seq2seq import Seq2SeqDecoder, Seq2SeqModel
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel

#: How many scores are in memory at a time, by type of device: a CPU's cache has them, and a GPU needs
#: large products.
SCORES = {"cpu": 2**23, "cuda": 2**25}


def take_loss_by_parts(model: Any, criterion: Any, optimizer: Any) -> str | None:
    """Let a criterion compute its loss together with the output projection.

    Args:
        model: not wrapped.
        criterion: not wrapped, or within criteria that add losses. Its class changes.

    Returns:
        Why it stays fairseq's own; None if it does not.
    """
    while isinstance(getattr(criterion, "inner", None), FairseqCriterion):
        criterion = criterion.inner  # an added loss reads no scores
    if type(criterion) not in CRITERIA:
        return f"{type(criterion).__name__} reads the scores of all words"
    if isinstance(optimizer, AMPOptimizer):
        return "--amp chooses the precision of each operation"
    decoder = decoder_of(model)
    if decoder is None:
        return "the model has no decoder"
    for part in (model, decoder):
        if not _returns_scores(part):
            return f"{type(part).__name__} may change the scores of an output projection"
    if _projection(decoder) is None:
        return "adaptive softmax"
    criterion.__class__ = CRITERIA[type(criterion)]
    criterion.scaler = getattr(optimizer, "scaler", None)
    return None


#: Models and decoders whose ``forward`` returns the result of the decoder's output layer unchanged.
_RETURN_SCORES = (
    SyntaxTransformerModel, Seq2SeqModel, TransformerModelBase, TransformerAlignModel, BARTModel,
    FairseqEncoderDecoderModel, LSTMModel, TransformerDecoderBase, Seq2SeqDecoder, LSTMDecoder,
)  # fmt: skip
#: Their functions between the states and the loss.
_FUNCTIONS = (
    "forward", "output_layer", "get_targets", "get_normalized_probs", "get_normalized_probs_scriptable",
)  # fmt: skip


def _functions_of(kind: type) -> set[Any]:
    return {getattr(kind, name, None) for name in _FUNCTIONS}


_KNOWN = frozenset[Any]().union(*map(_functions_of, _RETURN_SCORES))


def _returns_scores(part: Any) -> bool:
    """Return whether a model or a decoder has no functions of its own between the states and the loss."""
    return _functions_of(type(part)) <= _KNOWN


def _projection(decoder: Any) -> tuple[Tensor, Tensor | None] | None:
    """Return the weight and the bias of an output layer; None if it has others."""
    if getattr(decoder, "adaptive_softmax", None) is not None:
        return None
    layer = getattr(decoder, "output_projection", None) or getattr(decoder, "fc_out", None)
    if layer is None:
        return decoder.embed_tokens.weight, None
    return (layer.weight, layer.bias) if type(layer) is nn.Linear else None


class ByParts(FairseqCriterion):
    """A criterion whose loss is computed by the decoder's output layer.

    It is computed within the model's ``forward``, because a model that is wrapped for several processes
    sees there which parameters are used. The classes have the names of fairseq's criteria, which
    checkpoints record.
    """

    #: Of half precision: its ``loss_scale`` multiplies the loss before the backward pass.
    scaler: Any = None
    # What only criteria with smoothing set.
    ignore_prefix_size: int = 0
    report_accuracy: bool = False
    eps: float | None = None

    def forward(self, model: Any, sample: dict[str, Any], reduce: bool = True) -> Any:
        """Compute the loss, as fairseq's criterion does; one loss per token as fairseq computes it."""
        if not reduce:
            return super().forward(model, sample, reduce)
        decoder = model.decoder
        decoder.output_layer = partial(self._losses, decoder, sample["target"])
        try:
            return super().forward(model, sample, reduce)
        finally:
            del decoder.output_layer  # that of its class is below

    def _losses(self, decoder: Any, target: Tensor, states: Tensor) -> Losses:
        """Compute the losses in place of the scores."""
        prefix = self.ignore_prefix_size
        if prefix:
            ignored = torch.full_like(target[:, :prefix], self.padding_idx)
            target = torch.cat([ignored, target[:, prefix:]], 1)
        projection = _projection(decoder)
        assert projection is not None
        return smoothed_cross_entropy(
            states, *projection, target, self.padding_idx, self.eps or 0.0,
            count_correct=self.report_accuracy,
            scale=float(self.scaler.loss_scale) if self.scaler is not None else 1.0,
        )  # fmt: skip

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
    for kind in (
        cross_entropy.CrossEntropyCriterion,
        label_smoothed_cross_entropy.LabelSmoothedCrossEntropyCriterion,
        label_smoothed_cross_entropy_with_alignment.LabelSmoothedCrossEntropyCriterionWithAlignment,
    )
}


def reads_attention(model: Any, criterion: Any) -> bool:
    """Return whether the loss may read the attention weights that a decoder returns.

    Args:
        model: not wrapped.
        criterion: not wrapped; if it adds a loss to another criterion, the loss may read them.
    """
    no_reader = (
        cross_entropy.CrossEntropyCriterion,
        label_smoothed_cross_entropy.LabelSmoothedCrossEntropyCriterion,
        label_smoothed_cross_entropy_with_rdrop.RdropLabelSmoothedCrossEntropyCriterion,
    )
    kinds = {*no_reader, *(CRITERIA[kind] for kind in no_reader if kind in CRITERIA)}
    decoder = decoder_of(model)
    return type(criterion) not in kinds or not (_returns_scores(model) and _returns_scores(decoder))


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
