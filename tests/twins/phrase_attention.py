"""Attention within phrases: equations 2 to 7 in loops over nodes and heads."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fairseq_phrase.methods.phrases.phrase_attention import PhraseAttention
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch


def literal_adjacency(batch: PhraseBatch) -> Tensor:
    """Write eq. 4 and 6 out with sets."""
    adjacency = torch.zeros(batch.batch_size, batch.num_nodes, batch.num_nodes, dtype=torch.bool)
    for sentence, nodes in enumerate(batch.members()):
        for i, left in enumerate(nodes):
            for j, right in enumerate(nodes):
                within = set(left) <= set(right) or set(right) <= set(left)
                adjacency[sentence, i, j] = i == j or (bool(left) and bool(right) and within)
    return adjacency


def literal_attention(
    attention: PhraseAttention, states: Tensor, phrases: PhraseBatch
) -> tuple[Tensor, Tensor]:
    """Write eq. 2-7 out for the unpadded nodes, one node and one head at a time.

    Returns:
        The output, zero at padded nodes, and the weights, zero between padded nodes.
    """
    heads, width = attention.num_heads, attention.embed_dim // attention.num_heads
    activation = {
        "sigmoid": lambda x: 1 / (1 + (-x).exp()),
        "identity": lambda x: x,
        "tanh": lambda x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()),
        "relu": lambda x: x * (x > 0),
        "gelu": lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2,
    }[attention.activation]
    batch, num_nodes, _ = states.shape
    outputs = torch.zeros_like(states)
    weights = states.new_zeros(batch, heads, num_nodes, num_nodes)
    for sentence, members in enumerate(phrases.members()):
        nodes = [node for node, tokens in enumerate(members) if tokens]
        for i in nodes:
            per_head = []
            for head in range(heads):
                part = slice(head * width, (head + 1) * width)

                def project(layer: nn.Linear, node: int, part=part, sentence=sentence) -> Tensor:
                    return layer.weight[part] @ states[sentence, node] + layer.bias[part]

                query = project(attention.q_proj, i)
                exponentials = {}
                for j in nodes:
                    left, right = set(members[i]), set(members[j])
                    inside = left <= right or right <= left
                    score = query @ project(attention.k_proj, j) / math.sqrt(width)
                    if attention.mask == "all" or inside:
                        exponentials[j] = score.exp()
                    elif attention.mask == "hadamard":
                        exponentials[j] = (score * 0).exp()
                total = sum(exponentials.values())
                attended = torch.zeros(width, dtype=states.dtype)
                for j, exponential in exponentials.items():
                    weights[sentence, head, i, j] = (exponential / total).detach()
                    attended = attended + exponential / total * project(attention.v_proj, j)
                per_head.append(activation(attended))
            row = attention.out_proj.weight @ torch.cat(per_head) + attention.out_proj.bias
            selector = torch.zeros(batch, num_nodes, 1, dtype=states.dtype)
            selector[sentence, i] = 1
            outputs = outputs + selector * row
    return outputs, weights
