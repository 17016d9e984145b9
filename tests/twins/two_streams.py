"""XLNet's two streams by their definition: one token at a time, over an explicit set of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import linear


def sinusoids(distance: int, width: int) -> Tensor:
    """Sines and cosines of a distance."""
    half = (width + 1) // 2
    angles = [distance / 10000 ** (k / half) for k in range(half)]
    values = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
    return torch.tensor(values[:width], dtype=torch.float64)


def attend(attention, query, place, segment, seen):
    """Attend from one state at a place to (state, place, segment) of each seen token."""
    heads, width = attention.num_heads, attention.embed_dim // attention.num_heads
    q = attention.q_proj(query)
    outputs = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        u, v = attention.content_bias[head, 0], attention.position_bias[head, 0]
        scores, values = [], []
        for state, place_of_key, other_segment in seen:
            k, value = attention.k_proj(state)[part], attention.v_proj(state)[part]
            distance = sinusoids(place - place_of_key, attention.embed_dim)
            r = linear(distance, attention.distance_proj.weight)[part]
            score = (q[part] + u) @ k + (q[part] + v) @ r
            if attention.segment_keys is not None:
                s = attention.segment_keys[head, int(segment == other_segment)]
                score = score + (q[part] + attention.segment_bias[head, 0]) @ s
            scores.append(score / math.sqrt(width))
            values.append(value)
        if not seen:
            outputs.append(torch.zeros(width, dtype=torch.float64))
            continue
        weights = torch.stack(scores).softmax(0)
        outputs.append(sum(weight * value for weight, value in zip(weights, values, strict=True)))
    joined = torch.cat(outputs)
    if attention.gate_proj is not None:
        joined = joined / (1 + torch.exp(-attention.gate_proj(query)))
    return attention.out_proj(joined)


def updated(layer, state, place, segment, seen):
    """A layer with layer norms after the residual connections, or before the blocks."""
    norm, final_norm = layer.self_attn_layer_norm, layer.final_layer_norm
    if layer.normalize_before:
        seen = [(norm(other), *rest) for other, *rest in seen]
        state = state + attend(layer.self_attn, norm(state), place, segment, seen)
        return state + layer.fc2(layer.activation_fn(layer.fc1(final_norm(state))))
    state = norm(state + attend(layer.self_attn, state, place, segment, seen))
    return final_norm(state + layer.fc2(layer.activation_fn(layer.fc1(state))))


def two_streams(encoder, embeddings, ranks, first_query, memory=(), segments=None):
    """Compute both streams of one sentence.

    Args:
        encoder: an ``XLEncoder`` in double precision, without dropout.
        embeddings: scaled embeddings. Shape: (tokens, width)
        ranks: the tokens' places in the order.
        first_query: the first state of all queries. Shape: (width,)
        memory: scaled embeddings of the tokens before. Shape: (memory, width)
        segments: of the tokens.

    Returns:
        The query and the content stream. Shape of each: (tokens, width)
    """
    count = len(embeddings)
    segments = segments or [0] * count
    content, query = list(embeddings), [first_query] * count
    remembered = [state.detach() for state in memory]
    for layer in encoder.layers:
        before = [(state, i - len(remembered), 0) for i, state in enumerate(remembered)]
        new_content, new_query = [], []
        for i in range(count):
            up_to = [j for j in range(count) if ranks[j] <= ranks[i]]
            below = [j for j in range(count) if ranks[j] < ranks[i]]
            of = [(content[j], j, segments[j]) for j in range(count)]
            new_content.append(
                updated(layer, content[i], i, segments[i], [*before, *(of[j] for j in up_to)])
            )
            new_query.append(
                updated(layer, query[i], i, segments[i], [*before, *(of[j] for j in below)])
            )
        remembered = [
            updated(layer, state, place, 0, before).detach() for state, place, _ in before
        ]
        content, query = new_content, new_query
    streams = torch.stack(query), torch.stack(content)
    return streams if encoder.layer_norm is None else tuple(map(encoder.layer_norm, streams))
