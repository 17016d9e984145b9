"""The parse of several sentences in a row, as parsers give it for a line with several sentences.

*Decision*: the separator ``</s>`` between two sentences is a word of the joined parse. It depends on the
root of the sentence before it and has an unknown label. So the words of a sample are next to
one another, which encoders of trees expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fairseq_phrase.store.fields import FIELDS

__all__ = ["joined", "parsed_tokens"]

#: ``<unk>`` in every dictionary of fairseq.
_UNKNOWN = 3


def joined(
    parses: Sequence[Mapping[str, np.ndarray]], root_label: int = 0
) -> dict[str, np.ndarray]:
    """Join the parses of sentences that become one source, with a separator after each but the last.

    The roots of later sentences depend on the first root and keep the root's relation. Constituency
    trees are joined under one constituent. A line that has such a root already loses it, so that all
    sentences are children of one node
    (:mod:`fairseq_phrase.syntax.sentence_boundaries` finds them again).

    Args:
        parses: the sentences' parses, with the same fields; each has a word.
        root_label: the label of the joining constituent.

    Returns:
        One parse, as :class:`fairseq_phrase.store.reader.ParseStore` returns it.

    Examples:
        >>> import numpy as np
        >>> parse = {"words": np.array([0, 1]), "heads": np.array([1, 1])}
        >>> joined([parse, parse])["heads"].tolist()
        [1, 1, 1, 4, 1]
    """
    if len(parses) == 1:
        return dict(parses[0])
    counts = [int(parse["words"][-1]) + 2 for parse in parses]
    ends = np.cumsum(counts)
    starts = ends - counts
    separators = ends[:-1] - 1
    made = {}
    for name in parses[0]:
        values = [parse[name] for parse in parses]
        if name == "spans":
            values = [
                _without_root(each, count - 1, root_label)
                for each, count in zip(values, counts, strict=True)
            ]
            # The last column is the label.
            shifts = [np.array([start, start, 0]) for start in starts]
            values = [each + shift for each, shift in zip(values, shifts, strict=True)]
            made[name] = np.concatenate([*values, [[0, ends[-1] - 1, root_label]]])
            continue
        if name in ("words", "heads"):
            values = [each + start for each, start in zip(values, starts, strict=True)]
            between = separators
        elif FIELDS[name].per == "word":
            between = np.full(len(separators), _UNKNOWN)
        else:
            raise ValueError(f"parses of several sentences have no joined {name}")
        pieces = [values[0]]
        for separator, each in zip(between, values[1:], strict=True):
            pieces += [np.array([separator]), each]
        made[name] = np.concatenate(pieces)
    if "heads" in made:
        own = made["heads"] == np.arange(len(made["heads"]))
        own[separators] = False
        # The first root of each sentence, for its separator.
        roots = np.flatnonzero(own)
        made["heads"][separators] = roots[np.searchsorted(roots, starts[:-1])]
        made["heads"][roots] = roots[0]
    return made


def _without_root(spans: np.ndarray, words: int, root_label: int) -> np.ndarray:
    """Leave out the joining constituent of a line. ``spans`` has shape ``(constituents, 3)``."""
    has_root = len(spans) and spans[-1].tolist() == [0, words, root_label]
    return spans[:-1] if has_root else spans


def parsed_tokens(tokens: np.ndarray, dictionary: Any) -> np.ndarray:
    """Return which tokens belong to words of the parse: subwords, and separators between sentences.

    Args:
        tokens: token indices, padded on the right. Shape: ``(…, tokens)``
        dictionary: their dictionary.

    Returns:
        Shape: ``(…, tokens)``, bool
    """
    pad, eos = tokens == dictionary.pad(), tokens == dictionary.eos()
    separates = eos.copy()
    separates[..., :1] = False
    separates[..., -1:] = False
    separates[..., :-1] &= ~pad[..., 1:]
    return np.asarray(separates | ~(pad | eos | (tokens == dictionary.bos())))
