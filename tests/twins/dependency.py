"""Depths and relative positions of words in a dependency tree, by walks from word to word."""


def depth(heads, word):
    """Edges up to the root, one at a time."""
    count = 0
    while heads[word] != word:
        word, count = heads[word], count + 1
    return count


def edges_between(heads, start):
    """Edges from one word to every other, by breadth-first search."""
    neighbours = [[] for _ in heads]
    for word, head in enumerate(heads):
        if word != head:
            neighbours[word].append(head)
            neighbours[head].append(word)
    distances, front = {start: 0}, [start]
    for word in front:
        for neighbour in neighbours[word]:
            if neighbour not in distances:
                distances[neighbour] = distances[word] + 1
                front.append(neighbour)
    return [distances[word] for word in range(len(heads))]


def is_above(heads, upper, lower):
    """Whether a walk from one word towards the root meets the other."""
    while heads[lower] != lower:
        lower = heads[lower]
        if lower == upper:
            return True
    return False


def relative_position(heads, relation, i, j):
    """Eq. 6 for one pair, and what ``path`` and ``distance`` make of it."""
    order = (i > j) - (i < j)
    if relation == "distance":
        return order * edges_between(heads, i)[j]
    same_edge = i != j and (heads[i] == j or heads[j] == i)
    if relation == "path":
        same_edge = is_above(heads, i, j) or is_above(heads, j, i)
    if same_edge:
        return depth(heads, i) - depth(heads, j)
    return order * (depth(heads, i) + depth(heads, j))
