"""The sources of phrases of this package: n-grams, chains of dependencies, constituents, chunks.

Most phrases are chains along a successor. The successor s of a word is the next word (n-grams of whole
words) or the head (dependency chains, eq. 8). The phrase of size l that begins at w holds
``w, s(w), ..., s^(l-1)(w)``. The smaller phrases inside it are exactly its subchains. So the pairs of
eq. 4 are listed in O(N k^2), without comparing nodes with each other.

The collater makes the lists with NumPy. A batch on a GPU is copied to the host. Below, a *word* is an
index into the flat grid of sentences and words, ``b * W + w``.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tensors import check_mask, check_tensor, exact_product, may_read
from fairseq_phrase.methods.common.tree_batch import TreeBatch
from fairseq_phrase.methods.phrases.ngram_phrases import (
    check_max_length,
    token_ngrams,
    without_phrases,
)
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.phrases.phrase_sources import (
    SourceOptions,
    SourceTokens,
    listed_phrases,
    phrase_source,
)


@phrase_source("ngram", fields=lambda options: ["words"] if options.phrase_unit == "word" else [])
def ngram(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> PhraseBatch:
    """Every span of 2..k adjacent tokens, or of whole words with ``--phrase-unit word``."""
    if options.phrase_unit == "word":
        return word_ngrams(parse["words"], tokens.padding_mask, options.phrase_max_length)
    # Saves k - 1 slots per sentence; read only where reading does not wait for the device.
    last = tokens.is_unit[:, -1]
    ends_with_eos = may_read(last) and not last.numpy().any()
    return token_ngrams(
        tokens.is_unit, tokens.padding_mask, options.phrase_max_length, ends_with_eos=ends_with_eos
    )


@phrase_source("none")
def no_phrases(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> PhraseBatch:
    """No phrases, as a control."""
    return without_phrases(tokens.padding_mask)


def word_ngrams(words: Tensor, padding_mask: Tensor, max_length: int) -> PhraseBatch:
    """Make every span of 2..k whole words, and every word of several subwords, a phrase.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words (begin and
            end of sentence, padding). Each word up to the last must have a token.
            Shape: (batch, tokens)
        padding_mask: True at padding. Shape: (batch, tokens)
        max_length: most words in a phrase, k.
    """
    _check(words, padding_mask, max_length)
    of_tokens = words.cpu().numpy()
    # A sentence has at most as many words as tokens.
    num_words = min(int(of_tokens.max(initial=-1)) + 1, words.size(1))
    count_index, counts = _count_tokens(of_tokens, num_words)
    has_next = np.zeros((len(words), num_words), dtype=bool)
    has_next[:, :-1] = counts[:, 1:-1] > 0
    following = np.arange(1, has_next.size + 1).reshape(has_next.shape)
    successor = np.where(has_next, following, -1)
    _refuse("a token's word index is out of range", of_tokens >= num_words)
    return _chain_phrases(
        successor, count_index, counts, padding_mask, max_length, single_words=True
    )


@phrase_source("dependency", fields=["words", "heads"])
def dependency(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> PhraseBatch:
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
    of_tokens, parents = words.cpu().numpy(), heads.cpu().numpy()
    num_words = parents.shape[1]
    count_index, counts = _count_tokens(of_tokens, num_words)
    is_word = parents >= 0
    has_tokens = counts[:, :num_words] > 0
    _refuse("a head lies outside its sentence", parents >= num_words)
    word = np.arange(parents.size).reshape(parents.shape)
    parent = np.where(is_word, word[:, :1] + parents, word)
    _refuse("a head is a word that is not in the sentence", is_word & ~is_word.take(parent))
    is_root = parent == word
    # Doubling the step ceil(log2 W) times leads from every word of a tree to its root.
    ancestor = parent
    for _ in range(max(num_words - 1, 0).bit_length()):
        ancestor = ancestor.take(ancestor)
    _refuse("heads run in a circle", ~is_root.take(ancestor))
    _refuse("a word with a head has no token", is_word & ~has_tokens)
    _refuse("a token's word has no head", ~is_word & has_tokens)
    _refuse("a token's word index is out of range", of_tokens >= num_words)
    successor = np.where(is_root, -1, parent)
    return _chain_phrases(
        successor, count_index, counts, padding_mask, max_length, single_words=False
    )


def _check(words: Tensor, padding_mask: Tensor, max_length: int) -> None:
    check_max_length(max_length)
    check_tensor("words", words, torch.int64)
    check_mask("padding_mask", padding_mask, *words.shape)


def _refuse(fault: str, is_faulty: np.ndarray) -> None:
    if is_faulty.any():
        raise ValueError(f"cannot build phrases: {fault} (indices are 0-based)")


def _chain_phrases(
    successor: np.ndarray,
    count_index: np.ndarray,
    counts: np.ndarray,
    padding_mask: Tensor,
    max_length: int,
    *,
    single_words: bool,
) -> PhraseBatch:
    """Build the phrases that are the chains of 2..k words along a successor.

    Args:
        successor: the word after each in its chain, -1 where the chain ends.
            Shape: (batch, W)
        count_index: flat index of each token's word in ``counts``. Shape: (batch, tokens)
        counts: number of tokens of each word; the last column is for tokens outside words.
            Shape: (batch, W + 1)
        padding_mask: Shape: (batch, tokens)
        max_length: most words in a chain, k.
        single_words: whether a word of several subwords is a phrase.
    """
    (batch, num_tokens), num_words = count_index.shape, successor.shape[1]
    has_tokens = counts[:, :num_words] > 0
    _refuse("a word index is skipped", has_tokens[:, 1:] & ~has_tokens[:, :-1])

    chains = _follow(successor.ravel(), max_length)
    if single_words:
        chains[0] = chains[0][:, counts[:, :num_words].ravel() > 1]
    else:
        chains[0] = chains[0][:, :0]
    # Number the phrases of a sentence consecutively over all sizes, without unused slots.
    rank, per_sentence = [], np.zeros(batch, dtype=np.int64)
    for chain in chains:
        sentence = chain[0] // max(num_words, 1)
        per_size = np.bincount(sentence, minlength=batch)
        # Chains are sorted by sentence: subtract the sentence's first, add its phrases so far.
        before = per_sentence - (per_size.cumsum() - per_size)
        rank.append(np.arange(len(sentence)) + before[sentence])
        per_sentence += per_size
    num_phrases = int(per_sentence.max(initial=0))
    num_nodes = num_tokens + num_phrases
    nodes = [
        chain[0] // max(num_words, 1) * num_nodes + num_tokens + number
        for chain, number in zip(chains, rank, strict=True)
    ]

    phrase, token = _chain_tokens(chains, nodes, count_index, counts)
    # From the token index b * tokens + t to the node index b * nodes + t.
    token_node = token // num_tokens * num_phrases + token
    itself = np.arange(batch * num_nodes)
    pairs = [(itself, itself), (phrase, token_node), (token_node, phrase)]
    pairs += _chain_parts(chains, nodes, successor.size)
    query, key = (np.concatenate(part) for part in zip(*pairs, strict=True))
    # NumPy sorts numbers of 16 bits in linear time.
    order = query.astype(np.uint16 if itself.size <= 1 << 16 else np.int64).argsort(kind="stable")
    # Pairs (phrase, token) directly follow the pairs of nodes with themselves.
    member = order - itself.size
    member = member[(member >= 0) & (member < len(token))]
    # From the node index b * nodes + tokens + s to the slot index b * phrases + s.
    slot = phrase - (phrase // num_nodes + 1) * num_tokens
    slot_padding = np.arange(num_phrases) >= per_sentence[:, None]

    return listed_phrases(
        padding_mask, slot_padding, query[order], key[order], slot[member], token[member]
    )


def _follow(successor: np.ndarray, max_length: int) -> list[np.ndarray]:
    """List the chains of 1..k words, of each size in the order of their first words.

    Args:
        successor: Shape: (words,)

    Returns:
        The words of the chains of each size, up to the largest existing size, and at least of size 1.
        Shape of each: (size, chains)
    """
    chains = [np.arange(len(successor))[None]]
    while len(chains) < max_length and chains[-1].size:
        following = successor[chains[-1][-1]]
        chains.append(np.concatenate([chains[-1], following[None]])[:, following >= 0])
    return chains


def _chain_parts(
    chains: list[np.ndarray], nodes: list[np.ndarray], num_words: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pair every chain with the shorter chains inside it, in both directions.

    Args:
        chains: by size, the words of the chains. Shape of each: (size, chains)
        nodes: by size, the chains' nodes. Shape of each: (chains,)
        num_words: the number of words of all sentences, padding included.

    Returns:
        Pairs of nodes (query, key).
    """
    # The node of the chain of each size that begins at a word, -1 without a chain.
    node_at = np.full((len(chains), num_words), -1)
    for at, chain, node in zip(node_at, chains, nodes, strict=True):
        at[chain[0]] = node
    pairs = []
    for size, (chain, chain_node) in enumerate(zip(chains, nodes, strict=True), 1):
        for part_size in range(1 if len(nodes[0]) else 2, size):
            for shift in range(size - part_size + 1):
                part = node_at[part_size - 1][chain[shift]]
                exists = part >= 0
                pairs += [(chain_node[exists], part[exists]), (part[exists], chain_node[exists])]
    return pairs


def _chain_tokens(
    chains: list[np.ndarray], nodes: list[np.ndarray], count_index: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """List the tokens of every word of every chain.

    Args:
        chains: by size, the words of the chains. Shape of each: (size, chains)
        nodes: by size, the chains' nodes. Shape of each: (chains,)
        count_index: flat index of each token's word in ``counts``. Shape: (batch, tokens)
        counts: number of tokens of each word; the last column is for tokens outside words.
            Shape: (batch, W + 1)

    Returns:
        For every membership, the chain's node and the flat index of the token.
    """
    # Sorted by word, the tokens of a word form a run. Each membership takes one token of the run.
    by_word = count_index.ravel().argsort(kind="stable")
    run_start = (counts.cumsum() - counts.ravel()).reshape(counts.shape)[:, :-1].ravel()
    member = np.concatenate([chain.ravel() for chain in chains])
    owner = np.concatenate([np.tile(node, size) for size, node in enumerate(nodes, 1)])
    repeats = counts[:, :-1].ravel()[member]
    first = run_start[member] - (repeats.cumsum() - repeats)
    return owner.repeat(repeats), by_word[first.repeat(repeats) + np.arange(repeats.sum())]


def _count_tokens(words: np.ndarray, num_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Count each word's tokens; column ``num_words`` counts the tokens outside words, if any.

    Returns:
        The flat index of each token's word in the counts (shape (batch, tokens)), and the counts (shape
        (batch, num_words + 1)).
    """
    shape = len(words), num_words + 1
    column = np.where((words < 0) | (words > num_words), num_words, words)
    count_index = np.arange(len(words))[:, None] * shape[1] + column
    return count_index, np.bincount(count_index.ravel(), minlength=shape[0] * shape[1]).reshape(
        shape
    )


@phrase_source("constituency", fields=["words", "spans"])
def constituency(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> PhraseBatch:
    """Every constituent of up to k words, and every word of several subwords."""
    return constituent_phrases(
        parse["words"], parse["spans"], tokens.padding_mask, options.phrase_max_length
    )


def constituent_phrases(
    words: Tensor, spans: Tensor, padding_mask: Tensor, max_length: int
) -> PhraseBatch:
    """Make a phrase of every constituent of up to k words and at least two tokens.

    Of several constituents with the same tokens, only one becomes a phrase.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent, children before parents, words
            of several subwords included; -1 at padding. Other columns are ignored.
            Shape: (batch, constituents, 2 or more)
        padding_mask: True at padded tokens. Shape: (batch, tokens)
        max_length: most words in a phrase, k.
    """
    check_max_length(max_length)
    # Shape: (batch, constituents, 2)
    tokens = TreeBatch.from_words(words, spans, padding_mask).leaf_spans.cpu().numpy()
    of_words = spans.cpu().numpy()
    is_phrase_span = (tokens[..., 1] - tokens[..., 0] > 1) & (
        of_words[..., 1] - of_words[..., 0] <= max_length
    )
    # A constituent with the same tokens as another directly follows it.
    is_phrase_span[:, 1:] &= (tokens[:, 1:] != tokens[:, :-1]).any(2)
    # Chosen constituents to the front of their row. Shape of both: (batch, phrases)
    is_phrase = np.arange(is_phrase_span.sum(1).max(initial=0)) < is_phrase_span.sum(1)[:, None]
    starts, ends = np.full((2, *is_phrase.shape), -1)
    starts[is_phrase], ends[is_phrase] = tokens[is_phrase_span].T
    (batch, num_tokens), num_phrases = words.shape, is_phrase.shape[1]
    num_nodes = num_tokens + num_phrases
    columns = np.arange(num_tokens)
    member = (starts[..., None] <= columns) & (columns < ends[..., None])
    nested = (starts[:, :, None] <= starts[:, None]) & (ends[:, None] <= ends[:, :, None])
    nested &= is_phrase[:, :, None] & is_phrase[:, None]
    # Both directions, and every node with itself, padded ones too.
    contains = np.zeros((batch, num_nodes, num_nodes), dtype=bool)
    contains[:, num_tokens:, :num_tokens] = member
    contains[:, :num_tokens, num_tokens:] = member.swapaxes(1, 2)
    contains[:, num_tokens:, num_tokens:] = nested | nested.swapaxes(1, 2)
    contains.reshape(batch, -1)[:, :: num_nodes + 1] = True
    query, key = np.divmod(np.flatnonzero(contains), max(num_nodes, 1))
    key += query // max(num_nodes, 1) * num_nodes
    phrase, token = np.divmod(np.flatnonzero(member), max(num_tokens, 1))
    token += phrase // max(num_phrases, 1) * num_tokens

    return listed_phrases(padding_mask, ~is_phrase, query, key, phrase, token)


@phrase_source("chunk", fields=["words", "spans"])
def chunk(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> Tensor:
    """Every lowest constituent of several words; chunks do not overlap.

    ``phrase_max_length`` does not apply: the chunker determines the lengths of phrases.
    """
    return chunk_members(parse["words"], parse["spans"])


def chunk_members(words: Tensor, spans: Tensor) -> Tensor:
    """Find the tokens of each chunk.

    In a tree made of chunk labels (``scripts/labelled_text.py``), chunks are the constituents below the
    root. In a parsed tree, they are the constituents of height one.

    Args:
        words: 0-based index of the word each token belongs to, -1 at tokens outside words.
            Shape: (batch, tokens)
        spans: first word and one past the last of each constituent; -1 at padding. Other columns are
            ignored. Shape: (batch, constituents, 2 or more)

    Returns:
        True where a chunk contains a token; rows of other constituents contain none.
        Shape: (batch, constituents, tokens), bool
    """
    start, end = spans[..., 0], spans[..., 1]
    several = (start >= 0) & (end - start > 1)
    # inner[b, i, j]: constituent j has several words, all of them in i, but not all words of i
    inner = (start[:, :, None] <= start[:, None]) & (end[:, None] <= end[:, :, None])
    inner &= (end - start)[:, None] < (end - start)[:, :, None]
    inner &= several[:, None]
    is_chunk = several & ~inner.any(2)
    word = words[:, None]
    members = (start[..., None] <= word) & (word < end[..., None]) & (word >= 0)
    return members & is_chunk[..., None]


def phrases_of_members(members: Tensor, padding_mask: Tensor) -> PhraseBatch:
    """Make phrases of arbitrary sets of tokens.

    All pairs of a sentence's nodes are compared. Equal phrases become one phrase.

    Args:
        members: True where a phrase contains a token; an empty row is padding.
            Shape: (batch, phrases, tokens), bool
        padding_mask: True at padded tokens. Shape: (batch, tokens)

    Raises:
        ValueError: if a phrase has one token or contains padding, or the shapes do not agree.
    """
    check_mask("padding_mask", padding_mask)
    batch, num_tokens = padding_mask.shape
    check_tensor("members", members, torch.bool, batch, "phrases", num_tokens)
    if bool((members.sum(2) == 1).any()):
        raise ValueError("a phrase has at least two tokens, got one of a single token")
    if bool((members & padding_mask[:, None]).any()):
        raise ValueError("a phrase contains padding")
    members = _distinct(members)
    tokens = torch.diag_embed(~padding_mask)
    # Shape: (batch, nodes, tokens)
    contains = torch.cat([tokens, members], 1)
    sizes = contains.sum(2)
    # i is part of j iff they share all of i's tokens. Shape: (batch, nodes, nodes)
    shared = exact_product(contains, contains.mT)
    adjacency = (shared == sizes[:, :, None]) | (shared == sizes[:, None, :])
    is_node = sizes > 0
    adjacency &= is_node[:, :, None] & is_node[:, None, :]
    adjacency.diagonal(dim1=1, dim2=2).fill_(True)
    sentence, query, key = adjacency.nonzero(as_tuple=True)
    offset = sentence * is_node.size(1)
    owner, slot, token = members.nonzero(as_tuple=True)
    return listed_phrases(
        padding_mask,
        ~is_node[:, num_tokens:],
        *(offset + query, offset + key),
        *(owner * members.size(1) + slot, owner * num_tokens + token),
    )


def _distinct(members: Tensor) -> Tensor:
    """Keep each set once, before the empty rows. Shape: (batch, fewer phrases, tokens)."""
    sizes = members.sum(2)
    shared = exact_product(members, members.mT)
    is_equal = (shared == sizes[:, :, None]) & (shared == sizes[:, None, :])
    is_copy = is_equal.tril(diagonal=-1).any(2)
    keep = (sizes > 0) & ~is_copy
    num_phrases = int(keep.sum(1).max()) if keep.numel() else 0
    first = keep.long().argsort(dim=1, descending=True, stable=True)[:, :num_phrases]
    distinct = members & keep[:, :, None]
    return distinct.gather(1, first[:, :, None].expand(-1, -1, members.size(2)))
