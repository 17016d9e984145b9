"""Recurrent networks and hierarchical attention with a loop over steps, words and sentences."""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_direction(network, states: list[Tensor], suffix: str) -> list[Tensor]:
    """One direction of PyTorch's LSTM: i, f, g, o."""
    w, u, b, d = weights(network, suffix)
    width = u.size(1)
    h = c = torch.zeros(width, dtype=states[0].dtype)
    outputs = []
    for x in states:
        i, f, g, o = (w @ x + b + u @ h + d).split(width)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(h)
    return outputs


def gru_direction(network, states: list[Tensor], suffix: str) -> list[Tensor]:
    """One direction of PyTorch's GRU: r, z, n."""
    w, u, b, d = weights(network, suffix)
    width = u.size(1)
    h = torch.zeros(width, dtype=states[0].dtype)
    outputs = []
    for x in states:
        r_x, z_x, n_x = (w @ x + b).split(width)
        r_h, z_h, n_h = (u @ h + d).split(width)
        z = torch.sigmoid(z_x + z_h)
        n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
        h = (1 - z) * n + z * h
        outputs.append(h)
    return outputs


def weights(network, suffix: str) -> list[Tensor]:
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [getattr(network, f"{name}_l0{suffix}") for name in names]


def bidirectional(layer, states: Tensor) -> Tensor:
    """A sequence without padding. Shape: (length, width)."""
    network = layer.recurrence
    direction = lstm_direction if isinstance(network, torch.nn.LSTM) else gru_direction
    forward = direction(network, [*states], "")
    backward = direction(network, [*states.flip(0)], "_reverse")[::-1]
    return torch.stack([torch.cat(pair) for pair in zip(forward, backward, strict=True)])


def attention_sum(summary, states: Tensor) -> Tensor:
    """The weighted sum of a sequence without padding. Shape: (width,)."""
    scores = [
        summary.query @ torch.tanh(summary.projection.weight @ h + summary.projection.bias)
        for h in states
    ]
    exponents = [torch.exp(score) for score in scores]
    return sum(e / sum(exponents) * h for e, h in zip(exponents, states, strict=True))


def document(network, sentences: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Hierarchical attention over one document.

    Args:
        network: has the weights.
        sentences: the inputs of each sentence's words. Shape: (words, width) each

    Returns:
        The words' states (shape (tokens, width)), the sentences' (shape (sentences, width)), and the
        document's (shape (width,)).
    """
    words = []
    for states in sentences:
        for layer in network.word_layers:
            states = bidirectional(layer, states)
        words.append(states)
    summaries = torch.stack([attention_sum(network.word_attention, states) for states in words])
    for layer in network.sentence_layers:
        summaries = bidirectional(layer, summaries)
    return torch.cat(words), summaries, attention_sum(network.sentence_attention, summaries)
