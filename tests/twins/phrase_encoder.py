"""The PhraseTransformer's encoder: algorithm 1 and equations 2 to 7 in loops over nodes."""

from __future__ import annotations

import math

import torch


def twin_layer_norm(norm, vector):
    centred = vector - sum(vector) / len(vector)
    return centred / torch.sqrt(sum(centred**2) / len(vector) + norm.eps) * norm.weight + norm.bias


def twin_attention(attention, states, allowed, activation, mask):
    """Eq. 2-3, or eq. 5-7 where ``allowed(i, j)`` is A; one head and one node at a time."""
    nodes, width = len(states), states.shape[1] // attention.num_heads
    queries, keys, values = (
        [projection.weight @ state + projection.bias for state in states]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outputs = []
    for i in range(nodes):
        heads = []
        for head in range(attention.num_heads):
            part = slice(head * width, (head + 1) * width)
            weights = {}
            for j in range(nodes):
                score = queries[i][part] @ keys[j][part] / math.sqrt(width)
                if allowed(i, j):
                    weights[j] = torch.exp(score)
                elif mask == "hadamard":
                    weights[j] = torch.exp(0 * score)
            total = sum(weights.values())
            heads.append(activation(sum(w / total * values[j][part] for j, w in weights.items())))
        joined = torch.cat(heads)
        if attention.gate_proj is not None:
            gate = attention.gate_proj.weight @ states[i]
            joined = joined / (1 + torch.exp(-gate))
        outputs.append(attention.out_proj.weight @ joined + attention.out_proj.bias)
    return torch.stack(outputs)


def twin_encoder(model, cfg, tokens: torch.Tensor, members: list[set[int]]) -> torch.Tensor:
    encoder = model.encoder
    sigma = {
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "identity": lambda x: x,
    }[cfg.phrase_activation]  # fmt: skip
    n = len(tokens)
    states = list(encoder.forward_embedding(tokens.unsqueeze(0))[0][0])
    for phrase in members[n:]:
        mean = sum(states[token] for token in phrase) / len(phrase)
        states.append(mean if cfg.phrase_init == "mean" else torch.zeros_like(mean))
    states = torch.stack(states)

    def related(i, j):
        return cfg.phrase_mask == "all" or members[i] <= members[j] or members[j] <= members[i]

    for layer in encoder.layers:

        def phase_1(x, a=layer.self_attn):
            return twin_attention(a, x, lambda i, j: True, lambda h: h, "")

        def phase_2(x, a=layer.phrase_attn):
            return twin_attention(a, x, related, sigma, cfg.phrase_mask)

        def feed_forward(x, m=layer):
            hidden = [torch.relu(m.fc1.weight @ state + m.fc1.bias) for state in x]
            return torch.stack([m.fc2.weight @ state + m.fc2.bias for state in hidden])

        if cfg.phrase_residual == "both":
            blocks = [(layer.self_attn_layer_norm, lambda x, f=phase_1, g=phase_2: g(f(x)))]
        else:
            blocks = [
                (layer.self_attn_layer_norm, phase_1),
                (layer.phrase_attn_layer_norm, phase_2),
            ]
        blocks.append((layer.final_layer_norm, feed_forward))
        for norm, block in blocks:
            if cfg.encoder_normalize_before:
                inner = block(torch.stack([twin_layer_norm(norm, state) for state in states]))
                states = states + inner
            else:
                states = torch.stack(
                    [twin_layer_norm(norm, state) for state in states + block(states)]
                )
    if encoder.layer_norm is not None:
        states = torch.stack([twin_layer_norm(encoder.layer_norm, state) for state in states])
    return states[:n]


def twin_members(cfg, tokens, words, heads) -> list[set[int]]:
    """The nodes' token sets, by the definitions of ``docs/models/phrase_transformer.md``."""
    n = len(tokens) - 1  # without the end of sentence
    k = cfg.phrase_max_length
    phrases: list[set[int]] = []
    if cfg.phrase_source == "ngram" and cfg.phrase_unit == "token":
        phrases = [set(range(i, i + size)) for size in range(2, k + 1) for i in range(n - size + 1)]
    else:
        count = int(words.max()) + 1
        spans: list[list[int]] = []
        if cfg.phrase_source == "ngram":
            spans = [list(range(i, i + s)) for s in range(1, k + 1) for i in range(count - s + 1)]
        elif cfg.phrase_source == "dependency":
            for word in range(count):
                chain = [word]
                while len(chain) < k and heads[chain[-1]] != chain[-1]:
                    chain.append(int(heads[chain[-1]]))
                    spans.append(list(chain))
        for span in spans:
            members = {t for t in range(n) if int(words[t]) in span}
            if len(members) > 1:
                phrases.append(members)
    return [{token} for token in range(n + 1)] + phrases
