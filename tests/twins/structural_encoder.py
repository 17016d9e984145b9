"""The structural-position encoder: equations 1 to 7 for one sentence, token by token and pair by pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fairseq_phrase.methods.common.tree_positions import sinusoids
from fairseq_phrase.methods.positions.structural_transformer import path_sizes
from fairseq_phrase.syntax.dependency import DependencyTree
from tests.support.structural_models import HEADS, SUBWORDS
from tests.twins.dependency import relative_position


def twin_positions(cfg, row: int) -> tuple[list[int], list[list[dict[str, int]]]]:
    """Eq. 5 of each token, and eq. 4 and 6 of each pair, not clipped; the last token is the end."""
    tree = DependencyTree(HEADS[row])
    of_word = [word for word, count in enumerate(SUBWORDS[row]) for _ in range(count)]
    absolute = [int(tree.depths[word]) for word in of_word] + [int(tree.depths.max()) + 1]
    n = len(absolute)
    relative = [[{"sequential": i - j} for j in range(n)] for i in range(n)]
    for i in range(n):
        for j in range(n):
            if max(i, j) == n - 1:
                size = 0 if i == j else absolute[i] + absolute[j]
                relative[i][j]["structural"] = size if i > j else -size
            else:
                relative[i][j]["structural"] = relative_position(
                    HEADS[row], cfg.structural_relation, of_word[i], of_word[j]
                )
    return absolute, relative


def twin_path(encoding, cfg, row: int, token: int) -> Tensor:
    """Shiv and Quirk's encoding of the path to a token's word: zeros for the root and the end."""
    of_word = [word for word, count in enumerate(SUBWORDS[row]) for _ in range(count)]
    heads = DependencyTree(HEADS[row]).heads.tolist()
    width = encoding.width
    levels, branches = path_sizes(width)
    stack = torch.zeros(levels, branches, len(encoding.decay), dtype=torch.double)
    root = next(word for word, head in enumerate(heads) if head == word)
    word = of_word[token] if token < len(of_word) else root
    for level in range(levels):
        if word == root:
            break
        siblings = [sibling for sibling, head in enumerate(heads) if head == heads[word] != sibling]
        step = min(siblings.index(word), branches - 1)
        for copy, raw in enumerate(encoding.decay):
            p = torch.tanh(raw)
            stack[level, step, copy] = p**level * torch.sqrt((1 - p * p) * width / 2)
        word = heads[word]
    flat = stack.flatten()
    return torch.cat([flat, torch.zeros(width - len(flat), dtype=torch.double)])


def twin_embedding(encoder, cfg, tokens: Tensor, absolute: list[int], row: int) -> list[Tensor]:
    """Word embedding and the absolute positions, as eq. 7 or its parts."""
    states = []
    width = encoder.embed_tokens.embedding_dim
    for place, (token, depth) in enumerate(zip(tokens, absolute, strict=True)):
        sequential = structural = torch.zeros(width, dtype=torch.double)
        if not cfg.no_sequential_absolute:
            number = place + 1 + encoder.padding_idx  # fairseq counts from there
            table = encoder.embed_positions
            sequential = table.weight[number] if cfg.encoder_learned_pos else table.weights[number]
        if cfg.structural_absolute == "path":
            structural = twin_path(encoder.depth_encoding, cfg, row, place)
        elif cfg.structural_absolute:
            structural = sinusoids(depth + 1, width)[depth].double()
        position = sequential + structural
        fusion = encoder.depth_encoding
        if cfg.structural_absolute and fusion.structural is not None:
            position = torch.tanh(
                fusion.sequential.weight @ sequential
                + fusion.structural.weight @ structural
                + fusion.structural.bias
            )
        states.append(math.sqrt(width) * encoder.embed_tokens.weight[token] + position)
    return states


def twin_attention(attention, cfg, states: list[Tensor], relative) -> list[Tensor]:
    """Shaw et al.'s eq. 3-4 with the terms of both kinds of positions."""
    clips = {"sequential": cfg.relative_clip, "structural": cfg.structural_clip}
    kinds = [kind for kind in clips if getattr(cfg, f"{kind}_relative")]
    n, width = len(states), len(states[0]) // cfg.encoder_attention_heads

    def table_row(tables, kind, position):
        return tables[kind][clips[kind] + max(-clips[kind], min(clips[kind], position))]

    queries, keys, values = (
        [projection.weight @ state + projection.bias for state in states]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    outputs = []
    for i in range(n):
        heads = []
        for head in range(cfg.encoder_attention_heads):
            part = slice(head * width, (head + 1) * width)
            scores, terms = [], []
            for j in range(n):
                key, value = keys[j][part], values[j][part]
                for kind in kinds:
                    position = relative[i][j][kind]
                    key = key + table_row(attention.relative_keys, kind, position)
                    if not cfg.relative_keys_only:
                        value = value + table_row(attention.relative_values, kind, position)
                scores.append(queries[i][part] @ key / math.sqrt(width))
                terms.append(value)
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(weight * term for weight, term in zip(weights, terms, strict=True)))
        outputs.append(attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias)
    return outputs


def twin_layer_norm(norm, state: Tensor) -> Tensor:
    centred = state - state.mean()
    return centred / torch.sqrt((centred**2).mean() + norm.eps) * norm.weight + norm.bias


def twin_encoder(model, cfg, tokens: Tensor, row: int) -> Tensor:
    encoder = model.encoder
    absolute, relative = twin_positions(cfg, row)
    states = twin_embedding(encoder, cfg, tokens, absolute, row)
    for layer in encoder.layers:

        def attend(inputs, attention=layer.self_attn):
            return twin_attention(attention, cfg, inputs, relative)

        def feed_forward(inputs, layer=layer):
            inner = [torch.relu(layer.fc1.weight @ x + layer.fc1.bias) for x in inputs]
            return [layer.fc2.weight @ x + layer.fc2.bias for x in inner]

        for norm, block in (
            (layer.self_attn_layer_norm, attend),
            (layer.final_layer_norm, feed_forward),
        ):
            if cfg.encoder_normalize_before:
                updates = block([twin_layer_norm(norm, state) for state in states])
                states = [state + update for state, update in zip(states, updates, strict=True)]
            else:
                states = [
                    twin_layer_norm(norm, state + update)
                    for state, update in zip(states, block(states), strict=True)
                ]
    if encoder.layer_norm is not None:
        states = [twin_layer_norm(encoder.layer_norm, state) for state in states]
    return torch.stack(states)
