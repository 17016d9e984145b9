"""Blocks of sentences as `inspect` reads them, made from lists."""

from __future__ import annotations

import numpy as np

from fairseq_phrase.lab.inspection.sentence_blocks import Ragged, SentenceBlock


def ragged(rows):
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([value for row in rows for value in row], dtype=np.int64), offsets)


def block(records, first=0):
    return SentenceBlock(
        first, {name: ragged([record[name] for record in records]) for name in records[0]}
    )
