"""The projections of multi-head self-attention: applied as one, initialized as in fairseq."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def project(states: Tensor, projections: Sequence[nn.Linear]) -> Sequence[Tensor]:
    """Apply projections as one product, and return views. Shape of each: (..., output width).

    The projections keep their own parameters. One product launches fewer kernels than one product for
    each, forward and backward, with the same arithmetic.

    Args:
        states: Shape: (..., width)
        projections: for example, the projections of queries, keys and values.
    """
    sizes = [projection.out_features for projection in projections]
    return cast(Sequence[Tensor], _joined_product(states, projections).split(sizes, -1))


def _joined_product(states: Tensor, projections: Sequence[nn.Linear]) -> Tensor:
    """Compute the concatenated outputs of :func:`project`. Shape: (..., sum of widths)."""
    if any(projection._forward_pre_hooks for projection in projections):
        # Quantization noise is a hook of each projection, which runs only if the projection is called.
        return torch.cat([projection(states) for projection in projections], -1)
    # Concatenate whole projections: their gradients are then contiguous and need no copy.
    weight = torch.cat([projection.weight for projection in projections])
    biases = [projection.bias for projection in projections]
    bias = None
    if any(bias is not None for bias in biases):
        bias = torch.cat(
            [
                weight.new_zeros(projection.out_features) if bias is None else bias
                for bias, projection in zip(biases, projections, strict=True)
            ]
        )
    return linear(states, weight, bias)


class HeadsAttention(nn.Module):
    """The projections of multi-head self-attention: a base class for attentions.

    Projections are named and initialized as in fairseq's ``MultiheadAttention``. A subclass calls
    :meth:`reset_parameters` after it has added its own parameters.

    ``forward`` of a subclass takes the states, the structure of their nodes, and ``need_weights``
    (which is slower). It returns the attended states, shaped as the states, and the weights before
    dropout, of shape (batch, heads, queries, keys), or None.

    Args:
        embed_dim: model width d.
        num_heads: number of heads h, a divisor of d.
        dropout: probability with which an attention weight is dropped in training.

    Raises:
        ValueError: d is not a multiple of h.
    """

    #: The order in which random numbers are drawn for the projections.
    order: ClassVar[Sequence[str]] = ("k_proj", "v_proj", "q_proj")
    k_proj: nn.Linear
    v_proj: nn.Linear
    q_proj: nn.Linear

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads != 0:
            raise ValueError(f"embed_dim {embed_dim} is not divisible into {num_heads} heads")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.retains_dropout = False
        for name in self.order:
            setattr(self, name, nn.Linear(embed_dim, embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.gate_proj: nn.Linear | None = None

    def add_gate(self) -> None:
        """Add :func:`head_gate`, with a projection W_g of its own."""
        self.gate_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=False)
        nn.init.xavier_uniform_(self.gate_proj.weight)

    def reset_parameters(self) -> None:
        """Initialize as fairseq does for queries, keys and values of one width."""
        for name in self.order:
            nn.init.xavier_uniform_(self.get_parameter(f"{name}.weight"), gain=1 / math.sqrt(2))
        nn.init.xavier_uniform_(self.out_proj.weight)
        nn.init.zeros_(self.out_proj.bias)

    def make_generation_fast_(
        self, retain_dropout: bool = False, retain_dropout_modules: Any = None, **options: Any
    ) -> None:
        """Let fairseq's ``--retain-dropout`` drop weights at inference, as in its own attention."""
        names = retain_dropout_modules or [type(self).__name__]
        self.retains_dropout = retain_dropout and type(self).__name__ in names

    @property
    def dropout_p(self) -> float:
        """The current probability of dropping a weight; 0 outside training, unless it is retained."""
        return self.dropout if self.training or self.retains_dropout else 0.0

    def split(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values. Shape of each: (batch, heads, tokens, head width).

        One copy makes all of them contiguous, which avoids copies in products over heads.

        Args:
            states: Shape: (tokens, batch, width)
        """
        projected = _joined_product(states, (self.q_proj, self.k_proj, self.v_proj))
        # (tokens, batch, all widths) -> (projections, batch, heads, tokens, head width)
        heads = projected.unflatten(-1, (3, self.num_heads, -1)).permute(2, 1, 3, 0, 4)
        query, key, value = heads.contiguous().unbind()
        return query, key, value

    def join(self, heads: Tensor, states: Tensor) -> Tensor:
        """Project the heads' attended values to time-first states. Shape: (tokens, batch, width).

        Args:
            heads: Shape: (batch, heads, tokens, head width)
            states: the attention's input, which a gate reads. Shape: (tokens, batch, width)
        """
        return self.output(heads.permute(2, 0, 1, 3).flatten(2), states)

    def output(self, heads: Tensor, states: Tensor) -> Tensor:
        """Project the concatenated heads, behind their gate if there is one. Shape: (..., width).

        Args:
            heads: Shape: (..., width)
            states: the attention's input. Shape: (..., width)
        """
        return cast(Tensor, self.out_proj(head_gate(heads, states, self.gate_proj)))


def head_gate(heads: Tensor, states: Tensor, projection: nn.Linear | None) -> Tensor:
    """Multiply the heads' outputs Y by sigmoid(X W_g), elementwise. Shape: (..., width).

    Source: Qiu et al., *Gated Attention for Large Language Models* (2025, arXiv 2505.06708): the gate
    after attention and before the output projection, with an own value for each element of each head.

    Args:
        heads: Y, the concatenated heads. Shape: (..., width)
        states: X, the input of the attention. Shape: (..., width)
        projection: W_g; None for no gate.
    """
    return heads if projection is None else heads * torch.sigmoid(projection(states))
