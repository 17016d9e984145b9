"""A bidirectional recurrent layer over padded sequences."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fairseq_phrase.methods.common.tensors import check_mask


def run_packed(recurrence: nn.RNNBase, states: Tensor, padding_mask: Tensor) -> tuple[Tensor, Any]:
    """Run a batch-first LSTM or GRU over sequences without their padding, which is on either side.

    Args:
        states: the input. Shape: (batch, length, input width)
        padding_mask: True at padding. A sequence may be all padding. Shape: (batch, length), bool

    Returns:
        The states, 0 at padding, of shape (batch, length, output width); and PyTorch's last states.
    """
    # Packing expects padding after the other steps; the stable sort keeps their order.
    order = padding_mask.to(torch.uint8).argsort(dim=1, stable=True).unsqueeze(2)
    # Packing needs at least one step; the output at padding is set to 0 below.
    lengths = (~padding_mask).sum(1).clamp(min=1).cpu()
    packed = pack_padded_sequence(
        states.gather(1, order.expand_as(states)), lengths, batch_first=True, enforce_sorted=False
    )
    packed, last = recurrence(packed)
    output, _ = pad_packed_sequence(packed, batch_first=True, total_length=states.size(1))
    output = torch.zeros_like(output).scatter(1, order.expand_as(output), output)
    return output.masked_fill(padding_mask.unsqueeze(2), 0.0), last


class BidirectionalLayer(nn.Module):
    """One layer of PyTorch's LSTM or GRU, forward and backward. Batch-first.

    Each direction has half of the output width.

    Args:
        output_dim: width of the output, of both directions together; an even number.

    Raises:
        ValueError: the output width is odd.

    Examples:
        >>> layer = BidirectionalLayer("gru", input_dim=3, output_dim=4)
        >>> layer(torch.zeros(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 4])
    """

    def __init__(self, cell: Literal["lstm", "gru"], *, input_dim: int, output_dim: int) -> None:
        super().__init__()
        if output_dim % 2:
            raise ValueError(f"two directions need an even width, not {output_dim}")
        network = {"lstm": nn.LSTM, "gru": nn.GRU}[cell]
        self.recurrence = network(input_dim, output_dim // 2, batch_first=True, bidirectional=True)

    def forward(self, states: Tensor, padding_mask: Tensor) -> Tensor:
        """Read all sequences in both directions; for arguments and result see :func:`run_packed`."""
        check_mask("padding_mask", padding_mask, *states.shape[:2])
        return run_packed(self.recurrence, states, padding_mask)[0]
