"""Recurrent decoders with attention, one target word and one source word at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def score(module, name: str, query: Tensor, state: Tensor) -> Tensor:
    """e_ij of one decoder state and one source state, by its equation."""
    if name == "dot":
        return sum(a * b for a, b in zip(query, state, strict=True))
    if name == "bilinear":
        return query @ (module.weight @ state)
    if name == "additive":
        weight = torch.cat([module.query_weight, module.source_weight], 1)
        return module.vector @ torch.tanh(weight @ torch.cat([query, state]))
    assert name == "concat"
    return module.vector @ (module.weight @ torch.cat([query, state]))


def attend(
    attention, names: tuple[str, str], query: Tensor, states: list[Tensor], step: int
) -> tuple[Tensor, list[Tensor]]:
    """The context and the weights of one decoder state.

    Args:
        attention: the module that has the parameters.
        names: of its score and window.
        query: h̄_i.
        states: h_j of one sentence, without padding.
        step: i, from 0.
    """
    (score_name, window_name), length = names, len(states)
    reach = getattr(attention.window, "reach", None)
    centre = None
    if window_name == "local-m":
        centre = min(step, length - 1)
    elif window_name == "local-p":
        hidden = torch.tanh(attention.window.hidden.weight @ query)
        vector = attention.window.scaled_vector.weight[0] / math.sqrt(len(hidden))
        centre = length * torch.sigmoid(vector @ hidden)
    inside = [j for j in range(length) if centre is None or abs(j - centre) <= reach]
    scores = {j: score(attention.score, score_name, query, states[j]) for j in inside}
    largest = max(scores.values())
    total = sum(torch.exp(e - largest) for e in scores.values())
    weights = [torch.zeros_like(query[0]) for _ in states]
    for j, e in scores.items():
        weights[j] = torch.exp(e - largest) / total
        if window_name == "local-p":
            sigma = reach / 2
            weights[j] = weights[j] * torch.exp(-((j - centre) ** 2) / (2 * sigma**2))
    context = sum(weight * state for weight, state in zip(weights, states, strict=True))
    return context, weights


def lstm_cell(layer, inputs: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    w_input, w_hidden, b_input, b_hidden = layer
    gates = w_input @ inputs + b_input + w_hidden @ hidden + b_hidden
    into, forget, candidate, out = gates.chunk(4)
    memory = forget.sigmoid() * memory + into.sigmoid() * candidate.tanh()
    return out.sigmoid() * memory.tanh(), memory


def gru_cell(layer, inputs: Tensor, hidden: Tensor) -> Tensor:
    w_input, w_hidden, b_input, b_hidden = layer
    from_inputs, from_hidden = w_input @ inputs + b_input, w_hidden @ hidden + b_hidden
    (r, z, n), (hr, hz, hn) = from_inputs.chunk(3), from_hidden.chunk(3)
    reset, update = (r + hr).sigmoid(), (z + hz).sigmoid()
    return (1 - update) * (n + reset * hn).tanh() + update * hidden


def decode(module, names, inputs: Tensor, states: list[Tensor], first) -> tuple[Tensor, Tensor]:
    """One sentence through recurrent layers with attention.

    Args:
        module: :class:`AttentiveLayers`, whose parameters and options are used.
        names: of its score and window, or None without attention.
        inputs: x. Shape: (steps, input width)
        states: h_j without padding.
        first: for each layer, the first (hidden, memory) or (hidden,).

    Returns:
        o of every step, and α of every step, without padding.
    """
    cells = module.layers.cells
    is_lstm = module.layers.has_memory
    layers, outputs, maps = [list(state) for state in first], [], []
    fed = inputs.new_zeros(module.output_width)
    for step, step_input in enumerate(inputs):
        if module.before:
            context, weights = attend(module.attention, names, layers[-1][0], states, step)
            step_input = torch.cat([step_input, context])
        elif module.input_feeding:
            step_input = torch.cat([step_input, fed])
        for number, state in enumerate(layers):
            weights_of_layer = cells.all_weights[number]
            if is_lstm:
                layers[number] = [*lstm_cell(weights_of_layer, step_input, *state)]
            else:
                layers[number] = [gru_cell(weights_of_layer, step_input, *state)]
            step_input = layers[number][0]
        output = step_input
        if names is not None:
            if not module.before:
                context, weights = attend(module.attention, names, step_input, states, step)
            output = torch.cat([context, step_input])
            if module.readout.projection is not None:
                output = torch.tanh(module.readout.projection.weight @ output)
            maps.append(torch.stack(weights))
        fed = output
        outputs.append(output)
    return torch.stack(outputs), torch.stack(maps) if maps else inputs.new_zeros(0)


def coverage(weights: list[list[float]]) -> float:
    """The coverage loss of one sentence's weights, by target and source position."""
    loss = 0.0
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            loss += min(weight, sum(weights[earlier][j] for earlier in range(i)))
    return loss


def plain_self_attention(states: Tensor) -> Tensor:
    """x'_i = Σ_j softmax(x_i · x_j) x_j of one sentence."""
    rows = []
    for state in states:
        scores = [math.e ** (state @ state_2) for state_2 in states]
        rows.append(
            sum(s * state_2 for s, state_2 in zip(scores, states, strict=True)) / sum(scores)
        )
    return torch.stack(rows)


def bilinear_self_attention(module, states: Tensor) -> Tensor:
    """x'_k,i = Σ_j softmax(x_iᵀ W_k x_j) V_k x_j of one sentence, heads side by side."""
    heads = []
    values = module.values.weight.chunk(len(module.weight))
    for matrix, value in zip(module.weight, values, strict=True):
        rows = []
        for state in states:
            weights = torch.stack([state @ matrix @ state_2 for state_2 in states]).softmax(0)
            rows.append(
                sum(w * (value @ state_2) for w, state_2 in zip(weights, states, strict=True))
            )
        heads.append(torch.stack(rows))
    return torch.cat(heads, 1)
