"""Relations of two words in a tree, a graph and the sentence, by paths and searches; batches for them."""

from __future__ import annotations

import math

import torch

from fairseq_phrase.testing import LABELS, make_batch

LENGTHS = [12, 1, 5, 7]
NUM_LABELS = len(LABELS) + 4


def batch(dictionary, *, left=False):
    """Random trees, the third sentence with two roots, and a chain of ten words."""
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    words = int((inputs["src_heads"][2] >= 0).sum())
    inputs["src_heads"][2, : min(words, 2)] = torch.arange(min(words, 2))
    for word in range(2, words):
        inputs["src_heads"][2, word] = word - 1
    count = int((inputs["src_heads"][0] >= 0).sum())
    inputs["src_heads"][0, :count] = torch.arange(count).clamp(min=1) - 1
    return inputs


def graph(dictionary, *, left=False):
    """Graphs of several heads a word; the first sentence's has few edges, and parts without a path."""
    inputs = make_batch(dictionary, LENGTHS, left=left, extra=1)
    edges = inputs["src_enhanced"]
    edges[0] = -1
    first = torch.tensor([[0, 1], [0, 2], [2, 3], [4, 4], [1, 4], [3, 4]])
    edges[0, : len(first), :2] = first
    edges[0, : len(first), 2] = 4
    return inputs["src_words"], edges


def path_up(heads, word):
    """The word, its head and so on up to the root; later roots hang off the first."""
    roots = [w for w, head in enumerate(heads) if w == head]
    path = [word]
    while path[-1] != roots[0]:
        path.append(roots[0] if path[-1] in roots else heads[path[-1]])
    return path


def twin_relation(heads, i, j):
    """The relation of word j to word i, by their paths to the root."""
    up_i, up_j = path_up(heads, i), path_up(heads, j)
    common = next(word for word in up_i if word in up_j)
    rise, fall = up_i.index(common), up_j.index(common)
    if rise + fall == 0:
        return "same word"
    if fall == 0:
        return {1: "parent", 2: "ancestor 2", 3: "ancestor 3"}.get(rise, "ancestor 4+")
    if rise == 0:
        return {1: "child", 2: "descendant 2", 3: "descendant 3"}.get(fall, "descendant 4+")
    if rise == fall == 1:
        return "sibling"
    return f"distance {rise + fall}" if rise + fall < 9 else "distance 9+"


def twin_bucket(offset):
    """Bucket of T5, as its paper says: exact up to 8, then logarithmic up to 128."""
    size, half = abs(offset), 16 if offset > 0 else 0
    if size < 8:
        return half + size
    return half + min(15, 8 + int(math.log(size / 8) / math.log(16) * 8))


def twin_graph_relation(edges, i, j):
    """The relation of word j to word i by breadth-first search."""

    def steps(start, end, neighbours):
        reached, count = {start}, 0
        while end not in reached:
            new = reached | {b for a in reached for b in neighbours(a)}
            if new == reached:
                return math.inf
            reached, count = new, count + 1
        return count

    pairs = {(h, d) for h, d, _ in edges}
    up = steps(i, j, lambda a: {h for h, d in pairs if d == a})
    down = steps(j, i, lambda a: {h for h, d in pairs if d == a})
    apart = steps(i, j, lambda a: {h for h, d in pairs if d == a} | {d for h, d in pairs if h == a})
    if i == j:
        return "same word"
    if up == apart < math.inf:
        return "parent" if up == 1 else f"ancestor {up}" if up < 4 else "ancestor 4+"
    if down == apart < math.inf:
        return "child" if down == 1 else f"descendant {down}" if down < 4 else "descendant 4+"
    if apart == 2:
        return "sibling" if any({(m, i), (m, j)} <= pairs for m, _ in pairs) else "co-head"
    return f"distance {apart}" if apart < 9 else "distance 9+"
