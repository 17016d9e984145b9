"""Projective dependency trees: those in which every subtree is a span of words."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.syntax.dependency import DependencyTree


def projected_bounds(tree: DependencyTree) -> tuple[np.ndarray, np.ndarray]:
    """Find the words of each subtree after the tree is made projective by lifting.

    Lifting (pseudo-projective: Nivre and Nilsson, 2005): if a word between a dependent and its head does
    not depend on that head, the dependent moves up to its head's head. *Decision*: the lowest words are
    lifted first. So each word ends under its lowest ancestor that reaches it without a gap. Of the words
    that depend on its top, a subtree keeps the longest span around the top. Nivre and Nilsson lift the
    shortest arc first. If arcs cross one another, their order may remove more from a subtree: the result
    differs for 13 of the 668 non-projective trees in UD's English EWT and PUD and German GSD and PUD.

    Args:
        tree: any dependency tree.

    Returns:
        The first word of each subtree, and one past its last. A subtree that already is a span keeps
        that span. The spans nest. Shape: ``(words,)`` each, int64, word indices from 0.
    """
    heads = tree.heads.tolist()
    from_above = np.argsort(tree.depths, kind="stable").tolist()
    sizes = _sizes(heads, from_above)
    numbers = _numbered_from_above(heads, from_above, sizes)
    count = len(tree)
    starts, ends = [0] * count, [0] * count
    # For each word, the longest span found so far that starts at it (stored as the end of the span), and
    # the longest that ends with it (stored as the start).
    end_from, start_to = [0] * count, [0] * count
    by_number = [0] * count
    for word, number in enumerate(numbers):
        by_number[number] = word
    for word in reversed(by_number):  # all below a word come before it
        lowest, highest = numbers[word], numbers[word] + sizes[word]
        start, end = word, word + 1
        while end < count and lowest < numbers[end] < highest:
            end = end_from[end]
        while start and lowest < numbers[start - 1] < highest:
            start = start_to[start - 1]
        starts[word] = start_to[end - 1] = start
        ends[word] = end_from[start] = end
    return np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)


def _sizes(heads: list[int], from_above: list[int]) -> list[int]:
    sizes = [1] * len(heads)
    for word in reversed(from_above):
        if heads[word] != word:
            sizes[heads[word]] += sizes[word]
    return sizes


def _numbered_from_above(heads: list[int], from_above: list[int], sizes: list[int]) -> list[int]:
    """Number the words so that a subtree has consecutive numbers, its top the first of them."""
    numbers = [0] * len(heads)
    free = [0] * len(heads)  # the next number under each word
    for word in from_above:
        head = heads[word]
        if head != word:
            numbers[word] = free[head]
            free[head] += sizes[word]
        free[word] = numbers[word] + 1
    return numbers
