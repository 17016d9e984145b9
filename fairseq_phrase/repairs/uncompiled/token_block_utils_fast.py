"""Blocks of a text's tokens, the same as those of fairseq's compiled module of this name."""

from __future__ import annotations

import numpy as np


def _get_slice_indices_fast(
    sizes: np.ndarray, break_mode: str | None, block_size: int, document_sep_len: int
) -> np.ndarray:
    """Split a text into blocks of at most ``block_size`` tokens; a longer sentence is a block.

    Args:
        sizes: the length of each sentence in tokens. Shape: ``(sentences,)``
        break_mode: ``none`` splits anywhere, ``complete`` between sentences, ``complete_doc`` also
            between documents, and ``eos`` makes a block of each sentence.
        document_sep_len: a sentence of this length separates documents, and is in no block.

    Returns:
        Each block's first token and the one after its last, among all tokens from 0. Shape:
        ``(blocks, 2)``, int64

    Raises:
        ValueError: ``break_mode`` is none of these.
    """
    if break_mode is None or break_mode == "none":
        starts = np.arange(0, sizes.sum(), block_size, dtype=np.int64)
        ends = np.minimum(starts + block_size, sizes.sum())
    elif break_mode == "eos":
        ends = sizes.cumsum()
        starts = ends - sizes
    elif break_mode in ("complete", "complete_doc"):
        is_separator = sizes == document_sep_len
        by_document = break_mode == "complete_doc"
        starts, ends = _whole_sentences(sizes, block_size, is_separator & by_document)
        # A document of one token is only its end.
        kept = ends - starts > int(by_document)
        starts, ends = starts[kept], ends[kept]
    else:
        raise ValueError("Invalid break_mode: " + break_mode)
    return np.stack([starts, ends], axis=1).astype(np.int64, copy=False)


def _whole_sentences(
    sizes: np.ndarray, block_size: int, is_separator: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return where blocks of whole sentences start and end. Some blocks are empty."""
    starts, ends = [], []
    start = end = 0
    for size, separates in zip(sizes.tolist(), is_separator.tolist(), strict=True):
        if separates or end - start + size > block_size:
            starts.append(start)
            ends.append(end)
            start = end
        end += size
        if separates:
            start = end
    return np.array([*starts, start], np.int64), np.array([*ends, end], np.int64)


def _get_block_to_dataset_index_fast(sizes: np.ndarray, slice_indices: np.ndarray) -> np.ndarray:
    """Find the sentences of each block.

    Args:
        sizes: the length of each sentence in tokens. Shape: ``(sentences,)``
        slice_indices: the blocks. Shape: ``(blocks, 2)``

    Returns:
        Each block's first sentence, the first of its tokens in the block, and the block's last sentence,
        all from 0. Shape: ``(blocks, 3)``, int64
    """
    begins = sizes.cumsum() - sizes
    starts, ends = slice_indices.T
    first = _sentence_of(starts, begins)
    last = np.where(ends > starts, _sentence_of(ends - 1, begins), first)
    return np.stack([first, starts - begins[first], last], axis=1)


def _sentence_of(tokens: np.ndarray, begins: np.ndarray) -> np.ndarray:
    """Return each token's sentence; before its first token, empty sentences count as its own."""
    after = np.searchsorted(begins, tokens)
    return np.asarray(after - (begins[np.minimum(after, len(begins) - 1)] != tokens))
