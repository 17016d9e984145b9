"""Tree-LSTMs: a node's state from its input and its children's states, all nodes of a height at once.

Source: Tai, Socher and Manning, *Improved Semantic Representations From Tree-Structured Long Short-Term
Memory Networks* (ACL 2015): eqs. 2-8 (child-sum) and 9-14 (N-ary, here with N = 2).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.modules.recurrent.tree_levels import Step, TreeLevels


class TreeLSTM(nn.Module):
    """What both kinds share: gates of the inputs, and the steps over heights.

    Args:
        input_dim: width of the nodes' inputs.
        hidden_dim: width of the states.
    """

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        # W and b of the input gate, the output gate, the candidate and the forget gate.
        self.input_gates = nn.Linear(input_dim, 4 * hidden_dim)

    def forward(self, inputs: Tensor, levels: TreeLevels) -> Tensor:
        """Compute the states of all nodes, from the leaves upwards.

        Args:
            inputs: the nodes' inputs x; zeros at nodes without an input.
                Shape: (batch, nodes, input width)
            levels: the batch's schedule, over ``batch * nodes`` nodes.

        Returns:
            The states h; 0 at nodes that are not scheduled. Shape: (batch, nodes, hidden width)
        """
        flat = inputs.flatten(0, 1)
        # Nodes that binarization added read the row of zeros at the end.
        rows = levels.nodes.clamp(max=len(flat))
        gates = self.input_gates(pad(flat, (0, 0, 0, 1)).index_select(0, rows))
        computed: list[Tensor] = []
        pool = gates.new_zeros(0, 2 * self.hidden_dim)  # (nodes that wait, h and c)
        for step, own in zip(
            levels.steps, gates.split([step.size for step in levels.steps]), strict=True
        ):
            chosen = pool.index_select(0, step.chosen)
            children, waiting = chosen.tensor_split([step.num_children])
            states = self.step(own, children, step)
            computed.append(states)
            pool = torch.cat([waiting, states])
        hidden = torch.cat([pool[:0], *computed])[:, : self.hidden_dim]
        output = hidden.new_zeros(len(flat) + 1, self.hidden_dim)
        # The added nodes all write to the last row, which is dropped.
        return cast(Tensor, output.index_copy(0, rows, hidden)[:-1].unflatten(0, inputs.shape[:2]))

    def step(self, gates: Tensor, children: Tensor, step: Step) -> Tensor:
        """Compute the nodes of one height.

        Args:
            gates: their inputs' part of the gates. Shape: (nodes, 4 * hidden width)
            children: their children's h and c. Shape: (children, 2 * hidden width)
            step: which child is whose.

        Returns:
            Their h and c. Shape: (nodes, 2 * hidden width)
        """
        raise NotImplementedError


def _states(gates: Tensor, kept: Tensor) -> Tensor:
    """Compute h and c from the gates i, o, u and what the forget gates kept of the children's c."""
    enter, leave, candidate = gates.chunk(3, 1)
    memory = torch.sigmoid(enter) * torch.tanh(candidate) + kept
    return torch.cat([torch.sigmoid(leave) * torch.tanh(memory), memory], 1)


class ChildSumTreeLSTM(TreeLSTM):
    """The child-sum Tree-LSTM (eqs. 2-8): any number of children, whose order does not matter.

    Examples:
        >>> import numpy as np
        >>> levels = TreeLevels.from_parents(np.array([1, -1, 1]))
        >>> ChildSumTreeLSTM(input_dim=3, hidden_dim=4)(torch.zeros(1, 3, 3), levels).shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__(input_dim=input_dim, hidden_dim=hidden_dim)
        self.child_gates = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
        self.forget_gate = nn.Linear(hidden_dim, hidden_dim, bias=False)

    def step(self, gates: Tensor, children: Tensor, step: Step) -> Tensor:
        """Compute the nodes of one height from the sums over their children."""
        hidden, memory = children.chunk(2, 1)
        gates, forget = gates.tensor_split([3 * self.hidden_dim], 1)
        zeros = torch.zeros_like(forget)
        sums = zeros.index_add(0, step.parents, hidden)
        keep = torch.sigmoid(forget.index_select(0, step.parents) + self.forget_gate(hidden))
        kept = zeros.index_add(0, step.parents, keep * memory)
        return _states(gates + self.child_gates(sums), kept)


class BinaryTreeLSTM(TreeLSTM):
    """The N-ary Tree-LSTM with N = 2 (eqs. 9-14): each side has its own weights.

    A node with one child has it on the left; a missing child's h and c are zero.

    Examples:
        >>> import numpy as np
        >>> levels = TreeLevels.from_parents(np.array([2, 2, -1]))
        >>> BinaryTreeLSTM(input_dim=3, hidden_dim=4)(torch.zeros(1, 3, 3), levels).shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__(input_dim=input_dim, hidden_dim=hidden_dim)
        # i, o, u, and a forget gate for each side, from the states of both children.
        self.child_gates = nn.Linear(2 * hidden_dim, 5 * hidden_dim, bias=False)

    def step(self, gates: Tensor, children: Tensor, step: Step) -> Tensor:
        """Compute the nodes of one height from their left and right children."""
        slots = children.new_zeros(2 * step.size, children.size(1))
        slots = slots.index_copy(0, 2 * step.parents + step.sides, children)
        # (2 * nodes, h and c) -> (nodes, sides, hidden width) each
        hidden, memory = slots.unflatten(0, (step.size, 2)).chunk(2, 2)
        gates, forget = gates.tensor_split([3 * self.hidden_dim], 1)
        from_children = self.child_gates(hidden.flatten(1))
        own, keep = from_children.tensor_split([3 * self.hidden_dim], 1)
        # The forget gates of both sides share the input's part.
        keep = torch.sigmoid(keep.unflatten(1, (2, -1)) + forget.unsqueeze(1))
        return _states(gates + own, (keep * memory).sum(1))
