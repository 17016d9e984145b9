"""The inverse of reading brackets."""

from __future__ import annotations

from collections.abc import Sequence

from fairseq_phrase.syntax.constituency import ConstituencyTree


def format_brackets(words: Sequence[str], tags: Sequence[str], tree: ConstituencyTree) -> str:
    """Write a sentence's tree or trees on one line, as ``parse_brackets`` reads them.

    Args:
        words: the words; their brackets are escaped.
        tags: their tags.
        tree: the constituents over them.

    Raises:
        ValueError: there are more or fewer words or tags than the tree has.
    """
    if not len(words) == len(tags) == tree.num_words:
        raise ValueError(f"{len(words)} words and {len(tags)} tags for {tree.num_words} leaves")
    opening: list[list[str]] = [[] for _ in words]
    closing = [""] * len(words)
    for (start, end), label in zip(tree.spans.tolist(), tree.labels, strict=True):
        opening[start].append(f"({escaped(label)} ")
        closing[end - 1] += ")"
    leaves = (
        # Parents come after their children, so the last of the opening brackets is the outermost.
        f"{''.join(reversed(brackets))}({escaped(tag)} {escaped(word)}){closed}"
        for brackets, tag, word, closed in zip(opening, tags, words, closing, strict=True)
    )
    return " ".join(leaves)


def escaped(word: str) -> str:
    """Return a word or label as it may stand between brackets: its own become ``-LRB-``, ``-RRB-``."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")
