"""Tree-LSTMs by recursion, one node and one child at a time (Tai et al. 2015, eqs. 2-14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Node:
    """A node with its children from left to right; ``name`` says whose state it is.

    Attributes:
        name: the number of the node; -1 at a node that binarization made.
        children: from left to right.
    """

    name: int
    children: list[Node] = field(default_factory=list)


def binarized(node: Node) -> Node:
    """The same tree in which no node has more than two children, branching to the right."""
    children = [binarized(child) for child in node.children]
    while len(children) > 2:
        children[-2:] = [Node(-1, children[-2:])]
    return Node(node.name, children)


def child_sum(module, node: Node, inputs: Tensor, found: dict[int, Tensor]):
    """A node's h and c; all states below go to ``found`` by name."""
    width = module.hidden_dim
    x = inputs[node.name] if node.name >= 0 else torch.zeros_like(inputs[0])
    below = [child_sum(module, child, inputs, found) for child in node.children]
    w_i, w_o, w_u, w_f = (module.input_gates.weight @ x + module.input_gates.bias).split(width)
    total = torch.zeros(width, dtype=x.dtype) + sum(h for h, _ in below)
    u_i, u_o, u_u = (module.child_gates.weight @ total).split(width)
    c = torch.sigmoid(w_i + u_i) * torch.tanh(w_u + u_u)
    for h_k, c_k in below:
        c = c + torch.sigmoid(w_f + module.forget_gate.weight @ h_k) * c_k
    h = torch.sigmoid(w_o + u_o) * torch.tanh(c)
    found[node.name] = h
    return h, c


def binary(module, node: Node, inputs: Tensor, found: dict[int, Tensor]):
    """The same for two children with weights of their own."""
    width = module.hidden_dim
    x = inputs[node.name] if node.name >= 0 else torch.zeros_like(inputs[0])
    below = [binary(module, child, inputs, found) for child in node.children]
    w_i, w_o, w_u, w_f = (module.input_gates.weight @ x + module.input_gates.bias).split(width)
    # rows: i, o, u, f of the left and of the right child; columns: the left and the right child's h
    table = [rows.split(width, 1) for rows in module.child_gates.weight.split(width)]
    from_children = [
        torch.zeros(width, dtype=x.dtype)
        + sum(part @ h for part, (h, _) in zip(rows, below, strict=False))
        for rows in table
    ]
    u_i, u_o, u_u, *u_f = from_children
    c = torch.sigmoid(w_i + u_i) * torch.tanh(w_u + u_u)
    for (_, c_k), forget in zip(below, u_f, strict=False):
        c = c + torch.sigmoid(w_f + forget) * c_k
    h = torch.sigmoid(w_o + u_o) * torch.tanh(c)
    found[node.name] = h
    return h, c


def twin(module, roots: Sequence[Node], inputs: Tensor, cell) -> dict[int, Tensor]:
    """The states of all nodes of one sentence, by name.

    Args:
        module: has the weights.
        roots: the trees.
        inputs: of the nodes. Shape: (nodes, width)
        cell: :func:`child_sum` or :func:`binary`.
    """
    states: dict[int, Tensor] = {}
    for root in roots:
        cell(module, root, inputs, states)
    return states
