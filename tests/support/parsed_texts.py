"""Parsed sentences for what draws them."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.lab.inspection.parsed_text import ParsedText


def sentence(words, heads=None, deprels=(), tags=(), tree=None, subwords=None):
    return ParsedText(
        "train.de-en.de, line 7",
        list(words),
        [True] * len(words),
        subwords or [[word] for word in words],
        None if heads is None else np.array(heads),
        list(deprels),
        list(tags),
        tree,
    )
