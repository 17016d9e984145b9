"""The sources of phrases of this package: n-grams, chains of dependencies, constituents, chunks.

Each finds which tokens a phrase contains. The collater calls those that read a parse.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from fairseq_phrase.methods.common.labelling import have_tokens
from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tensors import check_mask, check_tensor, exact_product, may_read
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch
from fairseq_phrase.methods.phrases.phrase_sources import (
    SourceOptions,
    SourceTokens,
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


def token_ngrams(
    is_unit: Tensor, padding_mask: Tensor, max_length: int, *, ends_with_eos: bool = False
) -> PhraseBatch:
    """Make every span of 2..k adjacent tokens a phrase (eq. 1); left or right padding.

    Args:
        is_unit: True where a phrase may contain the token, False at end of sentence and padding.
            Shape: (batch, tokens)
        padding_mask: True at padding. The end of sentence is a node like any other token.
            Shape: (batch, tokens)
        max_length: most tokens in a phrase, k.
        ends_with_eos: promise that no sentence has a unit in the last column. Phrases that reach
            it then get no slots, which saves k-1 slots per sentence.

    Raises:
        ValueError: if ``max_length < 2`` or a mask is not boolean of shape (batch, tokens).
    """
    _check_max_length(max_length)
    check_mask("is_unit", is_unit)
    check_mask("padding_mask", padding_mask, *is_unit.shape)
    reach = is_unit.size(1) - int(ends_with_eos)
    # Checked only where the check does not wait for the device.
    if ends_with_eos and may_read(is_unit) and is_unit[:, reach:].numpy().any():
        raise ValueError("ends_with_eos was promised, but the last column holds a unit")
    spans = _spans(reach, range(2, max_length + 1), is_unit.device)
    is_member = _inside(spans, (is_unit & ~padding_mask)[:, :reach])
    return PhraseBatch(padding_mask, pad(is_member, (0, int(ends_with_eos))))


@phrase_source("none")
def no_phrases(tokens: SourceTokens, parse: ParseBatch, options: SourceOptions) -> PhraseBatch:
    """No phrases, as a control."""
    return without_phrases(tokens.padding_mask)


def without_phrases(padding_mask: Tensor) -> PhraseBatch:
    """Make a batch of tokens without phrases.

    Args:
        padding_mask: True at padding. Shape: (batch, tokens)
    """
    return PhraseBatch(padding_mask, padding_mask[:, None][:, :0])


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
    # A sentence has at most as many words as tokens.
    num_words = min(int(words.max()) + 1 if words.numel() else 0, words.size(1))
    _refuse("a token's word index is out of range", words >= num_words)
    exists = have_tokens(words, num_words)
    _refuse("a word index is skipped", exists[:, 1:] & ~exists[:, :-1])
    spans = _spans(num_words, range(1, max_length + 1), words.device)
    return PhraseBatch(padding_mask, _packed(_of_tokens(_inside(spans, exists), words)))


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
    num_words = heads.size(1)
    if not num_words:
        return without_phrases(padding_mask)
    index = torch.arange(num_words, device=heads.device).expand_as(heads)
    parent = _parents(words, heads, index)
    word, exists = index, heads >= 0
    chain = one_hot(index, num_words).bool()
    chains = [chain[:, :0]]
    for _ in range(min(max_length, num_words) - 1):
        head = parent.gather(1, word)
        word, exists = head, exists & (word != head)
        # The chain of a word, its head, and so on. Shape: (batch, words, words)
        chain = chain | one_hot(word, num_words).bool()
        chains.append(chain & exists[:, :, None])
    return PhraseBatch(padding_mask, _packed(_of_tokens(torch.cat(chains, 1), words)))


def _parents(words: Tensor, heads: Tensor, index: Tensor) -> Tensor:
    """Check the trees, and return each word's head, at padding the word itself. Shape: (batch, words)."""
    num_words = heads.size(1)
    is_word, has_tokens = heads >= 0, have_tokens(words, num_words)
    _refuse("a head lies outside its sentence", heads >= num_words)
    parent = heads.where(is_word, index)
    _refuse("a head is a word that is not in the sentence", is_word & ~is_word.gather(1, parent))
    # Doubling the step ceil(log2 W) times leads from every word of a tree to its root.
    ancestor = parent
    for _ in range(max(num_words - 1, 0).bit_length()):
        ancestor = ancestor.gather(1, ancestor)
    _refuse("heads run in a circle", parent.gather(1, ancestor) != ancestor)
    _refuse("a word with a head has no token", is_word & ~has_tokens)
    _refuse("a token's word has no head", ~is_word & has_tokens)
    _refuse("a token's word index is out of range", words >= num_words)
    return parent


def _check(words: Tensor, padding_mask: Tensor, max_length: int) -> None:
    _check_max_length(max_length)
    check_tensor("words", words, torch.int64)
    check_mask("padding_mask", padding_mask, *words.shape)


def _check_max_length(max_length: int) -> None:
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )


def _refuse(fault: str, is_faulty: Tensor) -> None:
    if is_faulty.any():
        raise ValueError(f"cannot build phrases: {fault} (indices are 0-based)")


def _spans(length: int, sizes: range, device: torch.device) -> Tensor:
    """List the spans of these sizes among adjacent units. Shape: (spans, length), bool."""
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    spans = [ones[: length - size + 1].triu().tril(size - 1) for size in sizes if size <= length]
    return torch.cat([ones[:0], *spans])


def _inside(spans: Tensor, exists: Tensor) -> Tensor:
    """Keep a span in the sentences that have all its units. Shape: (batch, spans, units)."""
    return spans & ~(spans & ~exists[:, None]).any(2, keepdim=True)


def _of_tokens(of_words: Tensor, words: Tensor) -> Tensor:
    """Find the tokens of phrases of words; a phrase of one token is none.

    Args:
        of_words: whether a phrase contains a word. Shape: (batch, phrases, words)
        words: as for :func:`word_ngrams`.

    Returns:
        Shape: (batch, phrases, tokens), bool
    """
    index = words.clamp(min=0)[:, None].expand(-1, of_words.size(1), -1)
    is_member = of_words.gather(2, index) & (words >= 0)[:, None]
    return is_member & (is_member.sum(2, keepdim=True) > 1)


def _packed(is_member: Tensor) -> Tensor:
    """Move phrases before empty slots, and leave out unused slots. Shape: (batch, fewer, tokens)."""
    exists = is_member.any(2)
    most = int(exists.sum(1).max()) if exists.numel() else 0
    first = exists.long().argsort(dim=1, descending=True, stable=True)[:, :most]
    return is_member.gather(1, first[:, :, None].expand(-1, -1, is_member.size(2)))


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
    _check(words, padding_mask, max_length)
    is_member = _words_between(words, spans)
    is_phrase = (spans[..., 1] - spans[..., 0] <= max_length) & (is_member.sum(2) > 1)
    # A constituent with the same tokens as another directly follows it.
    is_phrase[:, 1:] &= (is_member[:, 1:] != is_member[:, :-1]).any(2)
    return PhraseBatch(padding_mask, _packed(is_member & is_phrase[:, :, None]))


def _words_between(words: Tensor, spans: Tensor) -> Tensor:
    """Find the tokens of constituents. Shape: (batch, constituents, tokens), bool."""
    start, end, word = spans[..., 0, None], spans[..., 1, None], words[:, None]
    return (start <= word) & (word < end) & (word >= 0)


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
    return _words_between(words, spans) & is_chunk[..., None]


def phrases_of_members(members: Tensor, padding_mask: Tensor) -> PhraseBatch:
    """Make phrases of arbitrary sets of tokens. Equal phrases become one phrase.

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
    sizes = members.sum(2)
    if bool((sizes == 1).any()):
        raise ValueError("a phrase has at least two tokens, got one of a single token")
    if bool((members & padding_mask[:, None]).any()):
        raise ValueError("a phrase contains padding")
    shared = exact_product(members, members.mT)
    is_equal = (shared == sizes[:, :, None]) & (shared == sizes[:, None, :])
    is_copy = is_equal.tril(diagonal=-1).any(2, keepdim=True)
    return PhraseBatch(padding_mask, _packed(members & ~is_copy))
