"""The nodes of a batch's trees by height, for networks that compute a node from its children.

All nodes of one height are computed in one step, for all sentences together. The schedule is made once a
batch on the host with NumPy. It has one index tensor for all steps, so that it needs one transfer to the
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.syntax.tree_arrays import node_heights, sibling_numbers


@dataclass(frozen=True)
class Step:
    """The nodes of one height.

    The nodes below that wait for their parents are a pool. A step takes the children of its nodes from
    the pool, and leaves there what waits for a higher parent. Then its own nodes enter the pool, at the
    end.

    Attributes:
        size: number of nodes of this height.
        chosen: indices in the pool: first the children of these nodes, then what stays in it. Roots
            do not stay. Shape: (children + staying,), int64
        num_children: number of children.
        parents: for each child the position of its parent among the nodes of this height.
            Shape: (children,), int64
        sides: for each child its number among its siblings from left to right, from 0.
            Shape: (children,), int64
    """

    size: int
    chosen: Tensor
    num_children: int
    parents: Tensor
    sides: Tensor


@dataclass(frozen=True)
class TreeLevels:
    """The schedule of a batch of trees.

    Attributes:
        nodes: all nodes, by height. Nodes behind those of the batch were added by binarization and have
            neither an input nor an output. Shape: (scheduled nodes,), int64
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
            device: the device of the index tensors.

        Raises:
            ValueError: the parents run in a circle.
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
        arrays = [array for _, *each in plans for array in each]
        joined = torch.from_numpy(np.concatenate([nodes, *arrays]).astype(np.int64)).to(device)
        first, *rest = joined.split([len(nodes), *map(len, arrays)])
        steps = [
            Step(size, rest[3 * number], len(positions), rest[3 * number + 1], rest[3 * number + 2])
            for number, (size, _, positions, _) in enumerate(plans)
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
        has_parent = above >= 0  # roots leave the pool here
        is_child = has_parent & (heights[above] == height)
        children = np.flatnonzero(is_child)
        children = children[np.lexsort((sides[pool[children]], positions[above[children]]))]
        stays = np.flatnonzero(has_parent & ~is_child)
        chosen = np.concatenate([children, stays])
        yield len(level), chosen, positions[above[children]], sides[pool[children]]
        pool = np.concatenate([pool[stays], level])
