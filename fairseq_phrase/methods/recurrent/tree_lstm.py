"""Tree-LSTMs: a node's state from its input and its children's states, all nodes of a height at once.

Source: Tai, Socher and Manning, *Improved Semantic Representations From Tree-Structured Long Short-Term
Memory Networks* (ACL 2015): eqs. 2-8 (child-sum) and 9-14 (N-ary, here with N = 2).

All nodes of one height are computed in one step, for all sentences together. The host makes the schedule
with NumPy, once per batch. It has one index tensor for all steps, for one transfer to the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.methods.common.tensors import check_mask, check_tensor
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.syntax.tree_arrays import (
    binarized,
    constituent_parents,
    node_heights,
    sibling_numbers,
)


@dataclass(frozen=True)
class Step:
    """The nodes of one height.

    The lower nodes that wait for their parents are a pool. A step takes the children of its nodes from
    the pool, and leaves there the nodes with higher parents. Then it appends its own nodes to the pool.

    Attributes:
        size: number of nodes of this height.
        chosen: indices in the pool: first the children of these nodes, then the nodes that stay. Roots
            do not stay. Shape: (children + staying,), int64
        parents: for each child, the position of its parent among the nodes of this height.
            Shape: (children,), int64
        sides: for each child, its number among its siblings from left to right, from 0.
            Shape: (children,), int64
    """

    size: int
    chosen: Tensor
    parents: Tensor
    sides: Tensor


@dataclass(frozen=True)
class TreeLevels:
    """The schedule of a batch of trees.

    Attributes:
        nodes: all nodes, by height. Nodes after the batch's nodes were added by binarization and have
            neither inputs nor outputs. Shape: (scheduled nodes,), int64
        steps: the steps, from the leaves (height 0) to the highest root.

    Examples:
        >>> levels = TreeLevels.from_parents(np.array([2, 2, -1]))  # node 2 over nodes 0 and 1
        >>> [step.size for step in levels.steps]
        [2, 1]
    """

    nodes: Tensor
    steps: tuple[Step, ...]

    @classmethod
    def from_parents(
        cls,
        parents: np.ndarray,
        scheduled: np.ndarray | None = None,
        *,
        sides: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> TreeLevels:
        """Schedule the nodes of trees.

        Args:
            parents: the parent of each node of all sentences, -1 at roots.
                Shape: (nodes,), indices into this array
            scheduled: False at nodes that are not computed (padding), which neither have nor are
                parents; by default all nodes are. Shape: (nodes,), bool
            sides: the number of each node among its siblings, from 0; by default by their indices.
                Shape: (nodes,)

        Raises:
            ValueError: the parents form a cycle.
        """
        if scheduled is None:
            scheduled = np.ones(len(parents), dtype=bool)
        if sides is None:
            sides = sibling_numbers(parents)
        heights = node_heights(parents)
        if (heights < 0).any():
            raise ValueError("no trees: a node is below itself")
        nodes = np.flatnonzero(scheduled)
        nodes = nodes[np.argsort(heights[nodes], kind="stable")]
        plans = list(_steps(nodes, parents, heights, sides))
        arrays = [array for _, *arrays_of_step in plans for array in arrays_of_step]
        joined = torch.from_numpy(np.concatenate([nodes, *arrays]).astype(np.int64)).to(device)
        first, *indices = joined.split([len(nodes), *map(len, arrays)])
        steps = [
            Step(size, *indices[3 * number : 3 * number + 3])
            for number, (size, *_) in enumerate(plans)
        ]
        return cls(first, tuple(steps))


def _steps(
    nodes: np.ndarray, parents: np.ndarray, heights: np.ndarray, sides: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
    """Yield the number of nodes of each height, and the step's ``chosen``, ``parents``, ``sides``."""
    positions = np.zeros(len(parents), dtype=np.int64)
    pool = nodes[:0]
    bounds = np.searchsorted(heights[nodes], np.arange(heights[nodes].max(initial=-1) + 2))
    for height, (start, end) in enumerate(pairwise(bounds)):
        level = nodes[start:end]
        positions[level] = np.arange(len(level))
        above = parents[pool]
        has_parent = above >= 0  # roots leave the pool
        is_child = has_parent & (heights[above] == height)
        children = np.flatnonzero(is_child)
        # By parent, then from left to right.
        children = children[np.lexsort((sides[pool[children]], positions[above[children]]))]
        stays = np.flatnonzero(has_parent & ~is_child)
        rows = np.concatenate([children, stays])
        yield len(level), rows, positions[above[children]], sides[pool[children]]
        pool = np.concatenate([pool[stays], level])


class TreeLSTM(nn.Module):
    """The base of both kinds: gates of the inputs, and the steps over heights."""

    def __init__(self, *, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.hidden_dim = hidden_dim
        # W and b of the input gate, the output gate, the candidate and the forget gate.
        self.input_gates = nn.Linear(input_dim, 4 * hidden_dim)

    def forward(self, inputs: Tensor, levels: TreeLevels) -> Tensor:
        """Compute h, 0 at nodes not scheduled, from the leaves upwards. Shape: (batch, nodes, width).

        Args:
            inputs: the nodes' inputs x; zeros at nodes without an input.
                Shape: (batch, nodes, input width)
        """
        flat = inputs.flatten(0, 1)
        # Nodes added by binarization read the row of zeros at the end.
        rows = levels.nodes.clamp(max=len(flat))
        gates = self.input_gates(pad(flat, (0, 0, 0, 1)).index_select(0, rows))
        computed: list[Tensor] = []
        pool = gates.new_zeros(0, 2 * self.hidden_dim)  # (waiting nodes, h and c)
        for step, inputs_of_step in zip(
            levels.steps, gates.split([step.size for step in levels.steps]), strict=True
        ):
            pool_rows = pool.index_select(0, step.chosen)
            children, waiting = pool_rows.tensor_split([len(step.parents)])
            states = self.step(inputs_of_step, children, step)
            computed.append(states)
            pool = torch.cat([waiting, states])
        hidden = torch.cat([pool[:0], *computed])[:, : self.hidden_dim]
        output = hidden.new_zeros(len(flat) + 1, self.hidden_dim)
        # All added nodes write to the last row, which is dropped.
        return cast(Tensor, output.index_copy(0, rows, hidden)[:-1].unflatten(0, inputs.shape[:2]))

    def step(self, gates: Tensor, children: Tensor, step: Step) -> Tensor:
        """Compute h and c of the nodes of one height. Shape: (nodes, 2 * hidden width).

        Args:
            gates: the inputs' part of the gates. Shape: (nodes, 4 * hidden width)
            children: the children's h and c. Shape: (children, 2 * hidden width)
        """
        raise NotImplementedError


def _states(gates: Tensor, child_memory: Tensor) -> Tensor:
    """Compute h and c from the gates i, o, u and the children's c after the forget gates."""
    enter, leave, candidate = gates.chunk(3, 1)
    memory = torch.sigmoid(enter) * torch.tanh(candidate) + child_memory
    return torch.cat([torch.sigmoid(leave) * torch.tanh(memory), memory], 1)


class ChildSumTreeLSTM(TreeLSTM):
    """The child-sum Tree-LSTM (eqs. 2-8): any number of unordered children.

    Examples:
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
        memory_sums = zeros.index_add(0, step.parents, keep * memory)
        return _states(gates + self.child_gates(sums), memory_sums)


class BinaryTreeLSTM(TreeLSTM):
    """The N-ary Tree-LSTM with N = 2 (eqs. 9-14): each side has its own weights.

    An only child is on the left; a missing child's h and c are zero.

    Examples:
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
        child_part, keep = from_children.tensor_split([3 * self.hidden_dim], 1)
        # The forget gates of both sides share the input's part.
        keep = torch.sigmoid(keep.unflatten(1, (2, -1)) + forget.unsqueeze(1))
        return _states(gates + child_part, (keep * memory).sum(1))


@dataclass(frozen=True)
class TreeLSTMBatch:
    """The trees of a padded batch: their order of computation.

    Attributes:
        levels: the schedule of all nodes; a node's index is ``sentence * nodes + node``.
        padding_mask: True at padded nodes: tokens, then constituents of constituency trees.
            Shape: (batch, nodes), bool
        roots: the node at the top of each sentence, from 0; 0 in a sentence that is all padding.
            Shape: (batch,), int64
    """

    levels: TreeLevels
    padding_mask: Tensor
    roots: Tensor


def dependency_trees(words: Tensor, heads: Tensor, padding_mask: Tensor) -> TreeLSTMBatch:
    """Make the dependency trees of a batch's tokens.

    The first token of a word is the word's node. The word's other tokens are its children, like the words
    that depend on it. A token outside words (the end of sentence) is a separate tree.

    Args:
        words, heads, padding_mask: as for
            :class:`~fairseq_phrase.methods.common.tree_positions.TreePositions`.
            Shape: (batch, tokens), (batch, words), (batch, tokens)

    Raises:
        ValueError: a tensor has another type or shape, or the heads are not trees over the tokens' words.
    """
    check_tensor("words", words, torch.int64, *padding_mask.shape)
    check_tensor("heads", heads, torch.int64, words.size(0), "words")
    check_mask("padding_mask", padding_mask)
    of_token, head = words.cpu().numpy(), heads.cpu().numpy()
    batch, num_tokens = of_token.shape
    counts = (head >= 0).sum(1)
    if (head >= counts[:, None]).any() or (of_token >= counts[:, None]).any():
        raise ValueError(
            "no dependency trees: a head or a token's word lies outside its sentence (indices are "
            "0-based)"
        )
    starts = of_token != np.pad(of_token, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    sentence, token = np.nonzero((of_token >= 0) & starts)
    first = np.full(head.shape, -1)
    first[sentence, of_token[sentence, token]] = token
    is_root = head == np.arange(head.shape[1])
    root = is_root.argmax(1) if head.shape[1] else np.zeros(batch, dtype=np.int64)
    above = np.where(is_root, root[:, None], head)
    # A word's first token has its head's first token as parent; the word's others have the first.
    parents = np.full(of_token.shape, -1)
    sentence, token = np.nonzero(of_token >= 0)
    word = of_token[sentence, token]
    is_first = first[sentence, word] == token
    parents[sentence, token] = first[sentence, np.where(is_first, above[sentence, word], word)]
    # The root is its own head, and thus its own parent so far.
    parents[parents == np.arange(num_tokens)] = -1
    padding = padding_mask.cpu().numpy()
    tops = (~padding).argmax(1)
    if head.shape[1]:
        tops = np.where(counts > 0, first[np.arange(batch), root], tops)
    offsets = num_tokens * np.arange(batch)[:, None]
    levels = TreeLevels.from_parents(
        np.where(parents >= 0, parents + offsets, -1).ravel(),
        ~padding.ravel(),
        device=padding_mask.device,
    )
    return TreeLSTMBatch(levels, padding_mask, _on(padding_mask, tops))


def constituency_trees(
    words: Tensor, spans: Tensor, padding_mask: Tensor, *, binary: bool
) -> TreeLSTMBatch:
    """Make the constituency trees of a batch's tokens.

    Tokens are the leaves. A token outside all constituents (the end of sentence) is a separate tree.
    The top of a sentence is its last constituent in post-order; without constituents, its first token.

    Args:
        words, spans, padding_mask: as for :meth:`TreeBatch.from_words`.
            Shape: (batch, tokens), (batch, constituents, 2 or more), (batch, tokens)
        binary: binarize to the right (:func:`fairseq_phrase.syntax.tree_arrays.binarized`). The new nodes
            are only in the schedule.
    """
    tree = TreeBatch.from_words(words, spans, padding_mask)
    tokens, batch = tree.num_leaves, tree.batch_size
    padding = tree.node_padding_mask.cpu().numpy()
    leaves = np.arange(tokens)
    leaf_spans = np.broadcast_to(np.stack([leaves, leaves + 1], 1), (batch, tokens, 2))
    all_spans = np.concatenate([leaf_spans, tree.leaf_spans.cpu().numpy()], 1)
    sentence, node = np.nonzero(~padding)
    start, end = all_spans[sentence, node].T
    # In post-order the parent of a node, token or constituent, is the next one that does not start later,
    # and children come from left to right.
    order = np.lexsort((-start, end, sentence))
    above = constituent_parents(start[order], sentence[order])
    above, sides = binarized(above) if binary else (above, sibling_numbers(above))
    added = len(above) - len(order)
    flat = np.concatenate(
        [(sentence * padding.shape[1] + node)[order], padding.size + np.arange(added)]
    )
    parents, numbers = np.full((2, padding.size + added), -1)
    parents[flat] = np.where(above >= 0, flat[above], -1)
    numbers[flat] = sides
    levels = TreeLevels.from_parents(
        parents,
        np.concatenate([~padding.ravel(), np.ones(added, dtype=bool)]),
        sides=numbers,
        device=padding_mask.device,
    )
    last = np.where(padding, -1, np.arange(padding.shape[1])).max(1, initial=-1)
    tops = np.where(last < tokens, (~padding).argmax(1), last)
    return TreeLSTMBatch(levels, tree.node_padding_mask, _on(padding_mask, tops))


def _on(like: Tensor, indices: np.ndarray) -> Tensor:
    return torch.from_numpy(indices.astype(np.int64)).to(like.device)
