"""Recurrent layers that attend to a source: after the cell, before it, or after it with input feeding.

x_i is the embedding of the previous target word, h̄_i the last layer's state, c_i the context, o_i the
input of the output layer.

- none: h̄_i from x_i; o_i = h̄_i.
- after (Luong et al., 2015): h̄_i from x_i; c_i from h̄_i. With input feeding, h̄_i from [x_i; o_{i-1}].
- before (Bahdanau et al., 2015): c_i from h̄_{i-1}; h̄_i from [x_i; c_i].

With attention, o_i = tanh(W [c_i; h̄_i]) (Luong's attentional state), or o_i = [c_i; h̄_i].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from fairseq_phrase.methods.recurrent.source_attention import SourceAttention, SourceStates

#: PyTorch's layers by cell name.
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
        dropout: on the output of each layer except the last.

    Examples:
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
        # PyTorch warns about dropout with only one layer.
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
            state: from :meth:`unbind`, or from the previous step.

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
        """Split a state into the layers' states, (hidden, cell) or (hidden,); (batch, width) each."""
        if state.cell is None:
            return [(hidden,) for hidden in state.hidden]
        return [*zip(state.hidden, state.cell, strict=True)]

    def stack(self, state: list[tuple[Tensor, ...]]) -> CellState:
        """Join the layers' states; the inverse of :meth:`unbind`."""
        return CellState(*map(torch.stack, zip(*state, strict=True)))


class InitialState(nn.Module):
    """The decoder's first state, made from the encoder's last state.

    If the encoder has as many layers as the decoder, each layer starts from the same encoder layer.
    Otherwise each starts from the encoder's last layer. The states are projected if the widths differ.
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
        """Make the decoder's first state.

        Args:
            last: of the encoder; a state without memory also initializes the decoder's memory.
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


@dataclass(frozen=True)
class DecoderState:
    """The values that the next step needs from earlier steps.

    Attributes:
        fed: o_{i-1} with input feeding, else None. Shape: (batch, output width)
        keys: of the attention's score, once they are computed.
    """

    cells: CellState
    fed: Tensor | None = None
    step: int = 0
    keys: Tensor | None = None


class Readout(nn.Module):
    """o_i = tanh(W [c_i; h̄_i]), Luong's attentional state, of the output width."""

    def __init__(self, source_width: int, width: int, output_width: int) -> None:
        super().__init__()
        self.output_width = output_width
        self.projection = nn.Linear(source_width + width, output_width, bias=False)
        initialize(self)

    def forward(self, context: Tensor, states: Tensor) -> Tensor:
        """Return o_i. Shape: (..., output width)."""
        return cast(Tensor, self.projection(torch.cat([context, states], -1)).tanh())


class AttentiveLayers(nn.Module):
    """Recurrent layers of a decoder, with or without attention.

    Args:
        cell: ``lstm`` or ``gru``.
        attention: None for a decoder without attention.
        readout: computes o_i; None without attention.
        before: attend before the cell.
        input_feeding: feed o_{i-1}.
        dropout: between the layers, and on o_i.
    """

    def __init__(
        self,
        cell: str,
        input_width: int,
        width: int,
        num_layers: int,
        attention: SourceAttention | None = None,
        readout: Readout | None = None,
        *,
        before: bool = False,
        input_feeding: bool = False,
        dropout: float = 0.0,
        source_width: int = 0,
    ) -> None:
        super().__init__()
        self.attention, self.readout = attention, readout
        self.before, self.input_feeding, self.dropout = before, input_feeding, dropout
        self.output_width = width if readout is None else readout.output_width
        fed_width = self.output_width if input_feeding else source_width if before else 0
        self.layers = RecurrentLayers(cell, input_width + fed_width, width, num_layers, dropout)

    def forward(
        self, inputs: Tensor, source: SourceStates, state: DecoderState
    ) -> tuple[Tensor, Tensor | None, DecoderState]:
        """Run over a sequence of any length.

        Args:
            inputs: x. Shape: (batch, steps, input width)
            state: before the first of these steps.

        Returns:
            o, of shape (batch, steps, output width); α, of shape (batch, steps, source), or None without
            attention; and the state after the last step.
        """
        keys = state.keys
        if self.attention is not None and keys is None:
            keys = self.attention.score.keys(source.states)
        if keys is not None and (self.before or self.input_feeding):
            return self._stepwise(inputs, source, state, keys)
        states, cells = self.layers(inputs, state.cells)
        weights = None
        if self.attention is not None and self.readout is not None:
            # Cells do not depend on the attention, so all steps attend at once.
            context, weights = self.attention(states, source, keys, state.step)
            states = self.readout(context, states)
        after = DecoderState(cells, None, state.step + inputs.size(1), keys)
        return dropout(states, self.dropout, self.training), weights, after

    def _stepwise(
        self, inputs: Tensor, source: SourceStates, state: DecoderState, keys: Tensor
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Run step by step, because cells depend on the attention."""
        assert self.attention is not None
        assert self.readout is not None
        cells, fed = self.layers.unbind(state.cells), state.fed
        if fed is None:
            fed = inputs.new_zeros(len(inputs), self.output_width)
        outputs, weights = [], []
        for step, step_input in enumerate(inputs.unbind(1), start=state.step):
            if self.before:
                # h̄_{i-1}: the last layer's hidden state.
                context, own_weights = self.attention(cells[-1][0][:, None], source, keys, step)
                hidden, cells = self.layers.step(torch.cat([step_input, context[:, 0]], -1), cells)
            else:
                hidden, cells = self.layers.step(torch.cat([step_input, fed], -1), cells)
                context, own_weights = self.attention(hidden[:, None], source, keys, step)
            output = self.readout(context[:, 0], hidden)
            fed = dropout(output, self.dropout, self.training)
            outputs.append(fed)
            weights.append(own_weights)
        fed, step = fed if self.input_feeding else None, state.step + len(outputs)
        after = DecoderState(self.layers.stack(cells), fed, step, keys)
        return torch.stack(outputs, 1), torch.cat(weights, 1), after
