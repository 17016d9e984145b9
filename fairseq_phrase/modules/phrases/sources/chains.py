"""Phrases that are chains along a successor: n-grams of whole words, and dependency chains (eq. 8).

The successor s of a word is the next word or the head. The phrase of size l that begins at w holds
``w, s(w), ..., s^(l-1)(w)``. The smaller phrases inside it are exactly its shorter pieces. So the
pairs of eq. 4 are listed in O(N k^2), without comparing nodes with each other.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import ListedPairs, PhraseBatch, select_edges
from fairseq_phrase.modules.phrases.sources.registry import (
    PhraseOptions,
    SourceTokens,
    check_max_length,
    phrase_source,
)
from fairseq_phrase.modules.tensors import check_mask, check_tensor


def word_ngrams(words: Tensor, padding_mask: Tensor, max_length: int) -> PhraseBatch:
    """Make every span of 2..k whole words, and every word of several subwords, a phrase.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens of no word (begin and
            end of sentence, padding). Each word up to the last must have a token.
            Shape: (batch, tokens)
        padding_mask: True at padding. Shape: (batch, tokens)
        max_length: most words in a phrase, k.

    Raises:
        ValueError: if ``max_length < 2``, or ``words`` or ``padding_mask`` has a wrong type or
            shape, or a word index is out of range or skipped.
    """
    _check(words, padding_mask, max_length)
    # A sentence has at most as many words as tokens. This bound avoids a device sync.
    batch, max_words = words.shape
    counts = _count_tokens(words, max_words)
    following = torch.arange(1, max_words + 1, device=words.device).expand(batch, max_words)
    has_next = pad(counts[:, 1:max_words] > 0, (0, 1))
    successor = following.masked_fill(~has_next, max_words)
    return _chain_nodes(
        successor, counts, words, padding_mask, max_length, single_words=True, faults=[]
    )


@phrase_source("dependency", fields=["words", "heads"])
def dependency(tokens: SourceTokens, parse: ParseBatch, options: PhraseOptions) -> PhraseBatch:
    """Every dependency edge, and for k >= 3 every chain of up to k words."""
    return chain_phrases(
        parse["words"], parse["heads"], tokens.padding_mask, options.phrase_max_length
    )


def chain_phrases(
    words: Tensor, heads: Tensor, padding_mask: Tensor, max_length: int
) -> PhraseBatch:
    """Make every dependency edge a phrase (eq. 8), and for k >= 3 every chain of up to k words.

    Args:
        words: as for :func:`word_ngrams`. Shape: (batch, tokens)
        heads: 0-based index of each word's head; a root is its own head; -1 is padding. Each word
            must have a token. Shape: (batch, words)
        padding_mask: True at padding. Shape: (batch, tokens)

    Raises:
        ValueError: if ``max_length < 2``, a tensor has a wrong type or shape, or the heads are not
            trees over the sentence's words.
    """
    _check(words, padding_mask, max_length)
    check_tensor("heads", heads, torch.int64)
    if heads.size(0) != words.size(0):
        raise ValueError(f"{heads.size(0)} rows of heads for {words.size(0)} sentences")
    max_words = heads.size(1)
    counts = _count_tokens(words, max_words)
    is_word = heads >= 0
    own_index = torch.arange(max_words, device=heads.device)
    in_range = heads.clamp(0, max(max_words - 1, 0))
    ends = in_range == own_index
    # Doubling the step ceil(log2 W) times carries every word of a tree to its root.
    ancestor = in_range
    for _ in range(max(max_words - 1, 0).bit_length()):
        ancestor = ancestor.gather(1, ancestor)
    faults = [
        ("a head lies outside its sentence", heads >= max_words),
        ("a head is a word that is not in the sentence", is_word & ~is_word.gather(1, in_range)),
        ("heads run in a circle", is_word & ~ends.gather(1, ancestor)),
        ("a word with a head has no token", is_word & (counts[:, :max_words] == 0)),
        ("a token's word has no head", ~is_word & (counts[:, :max_words] > 0)),
    ]
    successor = heads.masked_fill(~is_word | ends, max_words).clamp(max=max_words)
    return _chain_nodes(
        successor, counts, words, padding_mask, max_length, single_words=False, faults=faults
    )


def _check(words: Tensor, padding_mask: Tensor, max_length: int) -> None:
    check_max_length(max_length)
    check_tensor("words", words, torch.int64)
    check_mask("padding_mask", padding_mask, *words.shape)


def _chain_nodes(
    successor: Tensor,
    counts: Tensor,
    words: Tensor,
    padding_mask: Tensor,
    max_length: int,
    *,
    single_words: bool,
    faults: list[tuple[str, Tensor]],
) -> PhraseBatch:
    """Make the chains of 2..k words along a successor phrases.

    Args:
        successor: index of the word after each in its chain, W where the chain ends.
            Shape: (batch, W)
        counts: number of tokens of each word; the last column is for tokens of no word.
            Shape: (batch, W + 1)
        words: index of each token's word or -1. Shape: (batch, tokens)
        single_words: whether a word of several subwords is a phrase.
        faults: possible faults of the input: a message, and True at the words that have the fault.
            Shape of each: (batch, words)
    """
    device = words.device
    batch, num_tokens = words.shape
    num_words = successor.size(1)
    path = _follow(successor, max_length)
    has_tokens = counts[:, :num_words] > 0
    exists = [(counts[:, :num_words] > 1) & single_words, *(word < num_words for word in path[1:])]
    # Each chain, of any size, contributes each of its words once.
    sizes = [size for size in range(1, len(path) + 1) for _ in range(size)]
    chain_words = torch.stack([path[i] for size in range(1, len(path) + 1) for i in range(size)], 1)
    member_counts = counts.gather(1, chain_words.flatten(1)).view(chain_words.shape)
    member_counts = member_counts * torch.stack([exists[size - 1] for size in sizes], dim=1)
    # Number the phrases of a sentence consecutively over all sizes, so that no slot is wasted.
    is_phrase = torch.stack(exists, dim=1).flatten(1)
    rank = is_phrase.cumsum(1) - 1

    faults = [
        *faults,
        ("a token's word index is out of range", words >= num_words),
        ("a word index is skipped", has_tokens & ~pad(has_tokens[:, :-1], (1, 0), value=True)),
    ]
    # The only transfer from the device: the numbers that determine sizes of tensors.
    numbers = [is_phrase.sum(1).max(), member_counts.sum()]
    numbers += [fault.any().long() for _, fault in faults]
    num_phrases, num_members, *found = torch.stack(numbers).tolist()
    for (message, _), present in zip(faults, found, strict=True):
        if present:
            raise ValueError(f"cannot build phrases: {message} (indices are 0-based)")

    num_nodes = num_tokens + num_phrases
    first_node = torch.arange(batch, device=device)[:, None] * num_nodes
    node = (first_node + num_tokens + rank).view(batch, len(path), num_words)
    itself = torch.arange(batch * num_nodes, device=device)
    owner, token = _chain_tokens(words, counts, chain_words, member_counts, num_members)
    phrase_node = node[:, [size - 1 for size in sizes]].reshape(-1)[owner]
    token_node = token // num_tokens * num_nodes + token % num_tokens
    always = torch.ones_like(torch.cat([itself, token_node]), dtype=torch.bool)
    pairs = [
        (itself, itself, always[: len(itself)]),
        (phrase_node, token_node, always[len(itself) :]),
        (token_node, phrase_node, always[len(itself) :]),
        *_chain_pieces(path, exists, node),
    ]
    slot_padding = torch.arange(num_phrases, device=device) >= is_phrase.sum(1, keepdim=True)
    return PhraseBatch(
        padding_mask=torch.cat([padding_mask, slot_padding], dim=1),
        num_tokens=num_tokens,
        pairs=ListedPairs(select_edges(pairs)),
    )


def _follow(successor: Tensor, max_length: int) -> list[Tensor]:
    """Walk up to k-1 steps from every word; W means the chain has ended.

    Returns:
        For i = 0, 1, ... the word i steps after each. Shape of each: (batch, W)
    """
    batch, num_words = successor.shape
    ended = successor.new_full((batch, 1), num_words)
    step = torch.cat([successor, ended], dim=1)
    path = [torch.arange(num_words, device=successor.device).expand(batch, num_words)]
    while len(path) < min(max_length, num_words):
        path.append(step.gather(1, path[-1]))
    return path


def _chain_pieces(
    path: list[Tensor], exists: list[Tensor], node: Tensor
) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Pair every chain with the shorter chains inside it, in both directions.

    Args:
        path: from :func:`_follow`.
        exists: for each size whether the chain that begins at a word is a phrase.
            Shape of each: (batch, W)
        node: flat index of that phrase's node. Shape: (batch, sizes, W)

    Returns:
        Candidate pairs (query, key, exists).
    """
    pairs = []
    for size in range(2, len(path) + 1):
        whole = node[:, size - 1]
        for piece_size in range(1, size):
            for shift in range(size - piece_size + 1):
                begin = path[shift].clamp(max=node.size(2) - 1)
                piece = node[:, piece_size - 1].gather(1, begin)
                both = exists[size - 1] & exists[piece_size - 1].gather(1, begin)
                pairs += [(whole, piece, both), (piece, whole, both)]
    return pairs


def _chain_tokens(
    words: Tensor, counts: Tensor, chain_words: Tensor, member_counts: Tensor, num_members: int
) -> tuple[Tensor, Tensor]:
    """List the tokens of every word of every chain.

    Args:
        words, counts: as for :func:`_chain_nodes`.
        chain_words: the words of all chains. Shape: (batch, chain words, W)
        member_counts: how many tokens each of them contributes. Shape: (batch, chain words, W)

    Returns:
        For every membership, its flat indices into ``chain_words`` and into ``words``.
    """
    # Sorted by word, the tokens of a word form a run. Each membership takes one token of the run.
    column = words.masked_fill(words < 0, counts.size(1) - 1)
    sentence = torch.arange(words.size(0), device=words.device)[:, None]
    by_word = (sentence * counts.size(1) + column).view(-1).argsort(stable=True)
    run_start = (counts.view(-1).cumsum(0) - counts.view(-1)).view(counts.shape)
    first_token = run_start.gather(1, chain_words.flatten(1)).view(-1)
    repeats = member_counts.view(-1)
    before = repeats.cumsum(0) - repeats
    owner = torch.repeat_interleave(repeats, output_size=num_members)
    within_run = torch.arange(num_members, device=words.device) - before[owner]
    return owner, by_word[first_token[owner] + within_run]


def _count_tokens(words: Tensor, max_words: int) -> Tensor:
    """Count each word's tokens; column ``max_words`` counts the tokens of no word, if any.

    Shape: (batch, max_words + 1)
    """
    batch = words.size(0)
    counts = torch.zeros(batch, max_words + 1, dtype=torch.int64, device=words.device)
    column = words.masked_fill(words < 0, max_words).clamp(max=max_words)
    return counts.scatter_add(1, column, torch.ones_like(words))
