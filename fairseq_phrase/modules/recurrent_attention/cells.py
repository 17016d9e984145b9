"""PyTorch's recurrent layers, over a whole sequence or one step at a time with the same parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

#: PyTorch's layers by the name of their cell.
CELLS: dict[str, type[nn.LSTM] | type[nn.GRU]] = {"lstm": nn.LSTM, "gru": nn.GRU}


@dataclass(frozen=True)
class CellState:
    """The state of recurrent layers between two steps.

    Attributes:
        hidden: h. Shape: (layers, batch, width)
        cell: the cells' memory, which a GRU lacks. Shape: (layers, batch, width)
    """

    hidden: Tensor
    cell: Tensor | None = None


class RecurrentLayers(nn.Module):
    """Layers of LSTM or GRU cells, with dropout between them.

    Args:
        cell: a name in :data:`CELLS`.
        width: of the states.
        dropout: on the output of each layer except the last.

    Examples:
        >>> import torch
        >>> layers = RecurrentLayers("gru", input_width=4, width=6, num_layers=2)
        >>> start = CellState(torch.zeros(2, 3, 6))
        >>> states, last = layers(torch.zeros(3, 5, 4), start)
        >>> states.shape, last.hidden.shape
        (torch.Size([3, 5, 6]), torch.Size([2, 3, 6]))
    """

    def __init__(
        self, cell: str, input_width: int, width: int, num_layers: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.has_memory = cell == "lstm"
        # PyTorch warns of dropout where there is only one layer.
        between = dropout if num_layers > 1 else 0.0
        self.cells = CELLS[cell](input_width, width, num_layers, dropout=between, batch_first=True)
        initialize(self.cells)

    def forward(self, inputs: Tensor, state: CellState) -> tuple[Tensor, CellState]:
        """Run over a whole sequence.

        Args:
            inputs: Shape: (batch, steps, input width)
            state: before the first step.

        Returns:
            The last layer's states, of shape (batch, steps, width), and the state after the last step.
        """
        if not self.has_memory:
            states, hidden = self.cells(inputs, state.hidden.contiguous())
            return states, CellState(hidden)
        assert state.cell is not None
        memory = (state.hidden.contiguous(), state.cell.contiguous())
        states, last = self.cells(inputs, memory)
        return states, CellState(*last)

    def step(
        self, inputs: Tensor, state: list[tuple[Tensor, ...]]
    ) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
        """Run one step.

        Args:
            inputs: Shape: (batch, input width)
            state: from :meth:`unbind`, or from the step before.

        Returns:
            The last layer's states, of shape (batch, width), and the state after the step.
        """
        after: list[tuple[Tensor, ...]] = []
        for layer, before in enumerate(state):
            if layer:
                inputs = dropout(inputs, self.cells.dropout, self.training)
            weights = self.cells.all_weights[layer]
            if self.has_memory:
                after.append(torch.lstm_cell(inputs, before, *weights))
            else:
                after.append((torch.gru_cell(inputs, *before, *weights),))
            inputs = after[-1][0]
        return inputs, after

    def unbind(self, state: CellState) -> list[tuple[Tensor, ...]]:
        """Split a state into those of the layers, (hidden, cell) or (hidden,); (batch, width) each."""
        if state.cell is None:
            return [(hidden,) for hidden in state.hidden]
        return [*zip(state.hidden, state.cell, strict=True)]

    def stack(self, state: list[tuple[Tensor, ...]]) -> CellState:
        """Join the states of the layers, the inverse of :meth:`unbind`."""
        return CellState(*map(torch.stack, zip(*state, strict=True)))


class InitialState(nn.Module):
    """The decoder's first state, made from the encoder's last.

    If the encoder has as many layers as the decoder, each layer starts from its own. Otherwise each
    starts from the encoder's last layer. The states are projected if the widths differ.
    """

    def __init__(self, cell: str, source_width: int, width: int, num_layers: int) -> None:
        super().__init__()
        self.num_layers, self.has_memory = num_layers, cell == "lstm"
        differs = source_width != width
        self.hidden = nn.Linear(source_width, width) if differs else nn.Identity()
        self.memory = (
            nn.Linear(source_width, width) if differs and self.has_memory else nn.Identity()
        )
        initialize(self)

    def forward(self, last: CellState) -> CellState:
        """Make the first state.

        Args:
            last: of the encoder; a state without memory also starts the decoder's memory.
        """
        memory = last.hidden if last.cell is None else last.cell
        return CellState(
            self.hidden(self._layers(last.hidden)),
            self.memory(self._layers(memory)) if self.has_memory else None,
        )

    def _layers(self, states: Tensor) -> Tensor:
        if len(states) == self.num_layers:
            return states
        return states[-1:].expand(self.num_layers, -1, -1)


def initialize(module: nn.Module) -> None:
    """Draw all parameters from [-0.1, 0.1], as fairseq does for its recurrent models."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -0.1, 0.1)


def both_directions(state: CellState) -> CellState:
    """Join the two directions of each layer. Shape: (layers, batch, 2 * width).

    Args:
        state: of bidirectional layers, as PyTorch returns it. Shape: (layers * 2, batch, width)
    """

    def joined(states: Tensor) -> Tensor:
        return cast(Tensor, states.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2))

    return replace(
        state, hidden=joined(state.hidden), cell=None if state.cell is None else joined(state.cell)
    )
