"""The tree Transformer: attention, residual connections and layer norms one node at a time."""

from __future__ import annotations

import math

import torch

from tests.support.tree_strategies import Tree
from tests.twins.hierarchical_accumulation import twin
from tests.twins.phrase_encoder import twin_layer_norm


def twin_attention(attention, queries, states, allowed, tree, accumulation):
    """One sentence: rows of ``queries`` attend to rows of ``states`` where ``allowed(i, j)``."""
    heads = attention.num_heads
    width = attention.q_proj.out_features // heads
    query, key, value = (
        torch.stack([projection.weight @ row + projection.bias for row in rows])
        for projection, rows in (
            (attention.q_proj, queries), (attention.k_proj, states), (attention.v_proj, states)
        )
    )  # fmt: skip
    value = value.view(len(states), heads, width)
    if accumulation is not None:
        # (the end of sentence is a leaf: it stands between the words and the nonterminals)
        value = torch.cat([value[: tree.leaves], twin(value, states, tree, accumulation)])
    outputs = []
    for i in range(len(queries)):
        parts = []
        for head in range(heads):
            part = slice(head * width, (head + 1) * width)
            scores = {
                j: torch.exp(query[i, part] @ key[j, part] / math.sqrt(width))
                for j in range(len(states))
                if allowed(i, j)
            }
            total = sum(scores.values())
            parts.append(sum(score / total * value[j, head] for j, score in scores.items()))
        outputs.append(attention.out_proj.weight @ torch.cat(parts) + attention.out_proj.bias)
    return torch.stack(outputs)


def twin_layer(states, blocks, normalize_before):
    for norm, block in blocks:
        if normalize_before:
            states = states + block(torch.stack([twin_layer_norm(norm, row) for row in states]))
        else:
            states = torch.stack([twin_layer_norm(norm, row) for row in states + block(states)])
    return states


def feed_forward(layer):
    return lambda rows: torch.stack(
        [
            layer.fc2.weight @ torch.relu(layer.fc1.weight @ row + layer.fc1.bias) + layer.fc2.bias
            for row in rows
        ]
    )


def with_eos(tree: Tree) -> Tree:
    return Tree(tree.leaves + 1, tree.parents, [*tree.above, -1])


def twin_encoder(model, cfg, tokens, tree, numbers):
    """States of all nodes of one sentence. Shape: (nodes, width)."""
    encoder, n = model.encoder, tree.leaves
    states = [*encoder.forward_embedding(tokens.unsqueeze(0))[0][0]]
    for number in numbers:
        row = encoder.embed_labels.weight[0 if cfg.tree_one_label else number]
        row = math.sqrt(len(row)) * row
        if encoder.layernorm_embedding is not None:
            row = twin_layer_norm(encoder.layernorm_embedding, row)
        states.append(row)

    def allowed(i, j):
        if cfg.no_subtree_masking:
            return True
        if i < n:
            return j < n
        below = tree.under(i - n)
        return j in below if j < n else i == j or is_ancestor(i - n, j - n)

    def is_ancestor(i, t):
        while t >= 0 and t != i:
            t = tree.parents[t]
        return t == i

    states = torch.stack(states)
    for layer in encoder.layers:
        attention = layer.self_attn
        blocks = [
            (
                layer.self_attn_layer_norm,
                lambda x, a=attention: twin_attention(a, x, x, allowed, tree, a.accumulation),
            ),
            (layer.final_layer_norm, feed_forward(layer)),
        ]
        states = twin_layer(states, blocks, cfg.encoder_normalize_before)
    if encoder.layer_norm is not None:
        states = torch.stack([twin_layer_norm(encoder.layer_norm, row) for row in states])
    return states


def twin_decoder(model, cfg, previous, source, tree):
    """Features of one target. Shape: (target tokens, width)."""
    decoder = model.decoder
    states = decoder.embed_scale * decoder.embed_tokens(previous)
    states = states + decoder.embed_positions(previous.unsqueeze(0))[0]
    if decoder.layernorm_embedding is not None:
        states = torch.stack([twin_layer_norm(decoder.layernorm_embedding, row) for row in states])
    for layer in decoder.layers:
        self_attention, cross = layer.self_attn, layer.encoder_attn
        blocks = [
            (
                layer.self_attn_layer_norm,
                lambda x, a=self_attention: twin_attention(
                    a, x, x, lambda i, j: j <= i, tree, None
                ),
            ),
            (
                layer.encoder_attn_layer_norm,
                lambda x, a=cross: twin_attention(
                    a, x, source, lambda i, j: True, tree, a.accumulation
                ),
            ),
            (layer.final_layer_norm, feed_forward(layer)),
        ]
        states = twin_layer(states, blocks, cfg.decoder_normalize_before)
    if decoder.layer_norm is not None:
        states = torch.stack([twin_layer_norm(decoder.layer_norm, row) for row in states])
    return states
