"""Batches, blocks of text and counts of BLEU by their definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sacrebleu.metrics import BLEU


def batches(
    sizes: Sequence[int], max_tokens: int, max_sentences: int, multiple: int
) -> list[list[int]]:
    """Take as many sentences as fit, and give back those beyond a multiple; repeat with the rest."""

    def fits(count: int) -> bool:
        padded = count * max(sizes[:count])
        return not (padded > max_tokens > 0 or count > max_sentences > 0)

    positions: list[list[int]] = []
    first = 0
    while sizes:
        count = max(count for count in range(1, len(sizes) + 1) if fits(count))
        if count > multiple:
            count -= count % multiple
        positions.append(list(range(first, first + count)))
        sizes, first = sizes[count:], first + count
    return positions


def fixed_batches(
    indices: Sequence[int], length: Callable[[int], int], shapes: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Add a sentence to the last batch, if some shape holds both.

    The first sentence of a later batch counts as empty, as in fairseq.
    """
    result: list[list[int]] = [[]]
    for index in indices:
        counted = result[-1] if len(result) == 1 else result[-1][1:]
        longest = max(map(length, [*counted, index]))
        if not any(len(result[-1]) < rows and longest <= columns for rows, columns in shapes):
            result.append([])
        result[-1].append(index)
    return result if indices else []


def blocks(sizes: Sequence[int], mode: str, most: int, separator: int) -> list[list[int]]:
    """Return the tokens of each block, counted through all sentences from 0."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    sentences = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    if mode == "eos":
        return sentences
    if mode == "none":
        return [
            list(range(first, min(first + most, ends[-1]))) for first in range(0, ends[-1], most)
        ]
    result: list[list[int]] = [[]]
    for sentence in sentences:
        if mode == "complete_doc" and len(sentence) == separator:
            result.append([])
        elif not result[-1] or len(result[-1]) + len(sentence) <= most:
            result[-1] += sentence
        else:
            result.append(sentence)
    return [block for block in result if len(block) > (mode == "complete_doc")]


def sentence_of(token: int, sizes: Sequence[int]) -> int:
    """Return the first sentence that begins at a token or contains it."""
    begins = [sum(sizes[:index]) for index in range(len(sizes))]
    return next(
        index
        for index, (begin, size) in enumerate(zip(begins, sizes, strict=True))
        if begin == token or begin <= token < begin + size
    )


def bleu_counts(reference: Sequence[int], prediction: Sequence[int]) -> list[int]:
    """Count by sacrebleu: tokens of both, then matches and all n-grams, one to four."""
    texts = [" ".join(map(str, sentence)) for sentence in (prediction, reference)]
    score = BLEU(tokenize="none", force=True).corpus_score([texts[0]], [[texts[1]]])
    pairs = zip(score.counts, score.totals, strict=True)
    return [score.ref_len, score.sys_len, *(count for pair in pairs for count in pair)]
