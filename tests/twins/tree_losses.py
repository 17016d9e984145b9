"""TreeReg and tree-planting in loops over constituents, words and heads."""

from __future__ import annotations

import torch

from tests.twins.dependency import edges_between


def tokens_of(words):
    """The columns of each word's tokens."""
    columns_of = {}
    for column, word in enumerate(words.tolist()):
        if word >= 0:
            columns_of.setdefault(word, []).append(column)
    return columns_of


def divisions(spans, num_words):
    """First word, last word before the division, and last word, of the binarized tree's constituents."""
    nodes = {(start, end) for start, end, _ in spans.tolist() if start >= 0}
    nodes |= {(word, word + 1) for word in range(num_words)}
    splits = []
    for start, end in sorted(nodes):
        parts, begin = [], start
        while begin < end and end - start > 1:
            stop = max(e for s, e in nodes if s == begin and e <= end and (s, e) != (start, end))
            parts.append((begin, stop))
            begin = stop
        splits += [(first, after - 1, end - 1) for first, after in parts[:-1]]
    return splits


def independence(states, tokens, i, j):
    """SCIN(i, j): the part of h_j orthogonal to h_{i-1}, and of h_{j+1} to h_j."""

    def norm(x, y):
        return (x - (x @ y) / (y @ y) * y).norm()

    last = states[tokens[j][-1]]
    left = norm(last, states[tokens[i - 1][-1]]) if i > 0 else states.new_zeros(())
    right = norm(states[tokens[j + 1][0]], last) if j + 1 in tokens else states.new_zeros(())
    return left + right


def regularization(states, words, spans):
    """The sum of the losses, and how many of how many constituents are best divided as in the parse."""
    losses, correct = [], 0
    for row in range(len(words)):
        tokens = tokens_of(words[row])
        for i, p, j in divisions(spans[row], len(tokens)):
            if j - i < 2:
                continue
            scores = torch.stack([
                independence(states[row], tokens, i, q) + independence(states[row], tokens, q + 1, j)
                for q in range(i, j)
            ])  # fmt: skip
            losses.append(-scores.log_softmax(0)[p - i])
            correct += int(scores.argmax()) == p - i
    return torch.stack(losses).sum(), correct, len(losses)


def distances(tree, num_words):
    """Edges between the words of a dependency tree."""
    heads = tree[:num_words].tolist()
    roots = [word for word, head in enumerate(heads) if word == head]
    heads = [roots[0] if word in roots else head for word, head in enumerate(heads)]
    return [edges_between(heads, word) for word in range(num_words)]


def planting(weights, words, trees):
    """The sum of the divergences, and their number."""
    losses = []
    for row in range(len(words)):
        tokens = tokens_of(words[row])
        count = len(tokens)
        edges = torch.tensor(distances(trees[row], count), dtype=weights.dtype)
        for head in range(weights.size(1)):
            for i in range(count):
                target = (-edges[i]).exp() / (-edges[i]).exp().sum()
                attention = torch.stack([
                    sum(weights[row, head, t, u] for t in tokens[i] for u in tokens[j])
                    / len(tokens[i])
                    for j in range(count)
                ])  # fmt: skip
                attention = attention / attention.sum()
                losses.append((target * (target.log() - attention.log())).sum())
    return torch.stack(losses).sum(), len(losses)
