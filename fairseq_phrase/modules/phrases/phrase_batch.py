"""The phrases of a padded batch as nodes beside its tokens, built on the device without loops.

Token n-grams, word n-grams and dependency chains are all *chains along a successor*: the next
token, the next word, or the head. The phrase of size l that begins at w holds
``w, s(w), ..., s^(l-1)(w)``, and the smaller phrases inside it are exactly its shorter pieces, so
the pairs of eq. 4 can be listed in O(N k^2) and no two nodes need comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.modules.phrases.chains import dependency_chains, word_chains
from fairseq_phrase.modules.phrases.constituents import constituent_phrases
from fairseq_phrase.modules.phrases.edges import (
    NgramLevel,
    PhraseEdges,
    count,
    member_edges,
    ngram_edges,
    within_span,
)

__all__ = ["NgramLevel", "PhraseBatch", "PhraseEdges"]

Cached = TypeVar("Cached")


class PhraseBatch:
    """The nodes of a padded batch: its n token positions, then slots for phrases, N in all.

    Built once per batch by one of the constructors (:meth:`token_ngrams`, :meth:`word_ngrams`,
    :meth:`dependency`, :meth:`constituency`, :meth:`from_members`, :meth:`without_phrases`) and
    shared by all layers.
    Two nodes are adjacent iff the tokens of one are a subset of the other's (eq. 4). Every node,
    padded or not, is adjacent to itself, so that no softmax is empty; padded nodes are adjacent to
    nothing else.

    Args:
        padding_mask: True at padded nodes: padded tokens and slots without a phrase.
            Shape: (batch, nodes)
        num_tokens: number of token positions n; nodes 0..n-1 are the tokens.
        edges: all adjacent pairs; give this or ``levels``.
        levels: the layout of a batch of token n-grams, from which pairs follow.

    Raises:
        ValueError: if the padding mask is not boolean and two-dimensional, if it has fewer nodes
            than tokens, or unless exactly one of ``edges`` and ``levels`` is given.
    """

    def __init__(
        self,
        *,
        padding_mask: Tensor,
        num_tokens: int,
        edges: PhraseEdges | None = None,
        levels: Sequence[NgramLevel] = (),
    ) -> None:
        _check("padding_mask", padding_mask, torch.bool)
        if padding_mask.size(1) < num_tokens:
            raise ValueError(f"{num_tokens} tokens do not fit into {padding_mask.size(1)} nodes")
        if (edges is None) == (not levels):
            raise ValueError("give either the edges or the n-gram levels of a PhraseBatch")
        self.padding_mask = padding_mask
        self.num_tokens = num_tokens
        self.levels = tuple(levels)
        self._edges = edges
        self._cache: dict[Any, Any] = {}

    @property
    def batch_size(self) -> int:
        """Number of sentences B."""
        return self.padding_mask.size(0)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N of the padded batch: tokens and phrase slots."""
        return self.padding_mask.size(1)

    @property
    def device(self) -> torch.device:
        """Where the batch lives."""
        return self.padding_mask.device

    @property
    def max_edges(self) -> int:
        """Number of adjacent pairs; for token n-grams as if there were no padding."""
        if not self.levels:
            return self.edges().query.numel()
        pairs = self.num_nodes
        for size, _, length in self.levels:
            # Its parts of size p are size - p + 1; both directions.
            pairs += 2 * length * sum(size - part + 1 for part in range(1, size))
        return self.batch_size * pairs

    def to(self, device: torch.device | str) -> PhraseBatch:
        """Copy the batch to another device."""
        edges = self._edges and PhraseEdges(*(index.to(device) for index in self._edges))
        return PhraseBatch(
            padding_mask=self.padding_mask.to(device),
            num_tokens=self.num_tokens,
            edges=edges,
            levels=self.levels,
        )

    def cached(self, key: Any, build: Callable[[], Cached]) -> Cached:
        """Return what ``build`` made the first time it was asked for under this key.

        All layers share one batch, so what depends on the phrases alone is made once.
        """
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    # Constructors

    @classmethod
    def without_phrases(cls, padding_mask: Tensor) -> PhraseBatch:
        """Make a batch of tokens alone: the control without phrases.

        Args:
            padding_mask: True at padding.
                Shape: (batch, tokens)
        """
        num_tokens = padding_mask.size(1)
        levels = [NgramLevel(1, 0, num_tokens)]
        return cls(padding_mask=padding_mask, num_tokens=num_tokens, levels=levels)

    @classmethod
    def token_ngrams(
        cls,
        is_unit: Tensor,
        padding_mask: Tensor,
        max_length: int,
        *,
        ends_with_eos: bool = False,
    ) -> PhraseBatch:
        """Make every span of 2..k adjacent tokens a phrase (eq. 1); left or right padding.

        Args:
            is_unit: True where a phrase may contain the token, False at end of sentence and
                padding.
                Shape: (batch, tokens)
            padding_mask: True at padding. The end of sentence is a node like any other token.
                Shape: (batch, tokens)
            max_length: most tokens in a phrase, k.
            ends_with_eos: promise that the last column holds no unit in any sentence, so that no
                slots are kept for phrases that reach it. It saves k-1 slots per sentence.

        Raises:
            ValueError: if ``max_length < 2`` or a mask is not boolean of shape (batch, tokens).
        """
        _check_max_length(max_length)
        _check("is_unit", is_unit, torch.bool)
        _check("padding_mask", padding_mask, torch.bool, is_unit.shape)
        num_tokens = is_unit.size(1)
        reach = num_tokens - int(ends_with_eos)
        # Only where looking costs no wait for the device.
        if ends_with_eos and not is_unit.is_cuda and bool(is_unit[:, reach:].any()):
            raise ValueError("ends_with_eos was promised, but the last column holds a unit")
        levels = [NgramLevel(1, 0, num_tokens)]
        is_padding = [padding_mask]
        is_phrase = (is_unit & ~padding_mask)[:, :reach]
        first_units = is_phrase
        for size in range(2, min(max_length, reach) + 1):
            is_phrase = is_phrase[:, :-1] & first_units[:, size - 1 :]
            levels.append(
                NgramLevel(size, levels[-1].offset + levels[-1].length, is_phrase.size(1))
            )
            is_padding.append(~is_phrase)
        return cls(padding_mask=torch.cat(is_padding, dim=1), num_tokens=num_tokens, levels=levels)

    @classmethod
    def word_ngrams(cls, words: Tensor, padding_mask: Tensor, max_length: int) -> PhraseBatch:
        """Make every span of 2..k whole words, and every word of several subwords, a phrase.

        Args:
            words: 0-based index of the word each token belongs to, -1 at tokens of no word (begin
                and end of sentence, padding). Each word up to the last must have a token.
                Shape: (batch, tokens)
            padding_mask: True at padding.
                Shape: (batch, tokens)
            max_length: most words in a phrase, k.

        Raises:
            ValueError: if ``max_length < 2``, or ``words`` or ``padding_mask`` has a wrong type or
                shape, or a word index is out of range.
        """
        _check_max_length(max_length)
        _check("words", words, torch.int64)
        _check("padding_mask", padding_mask, torch.bool, words.shape)
        nodes, edges = word_chains(words, padding_mask, max_length)
        return cls(padding_mask=nodes, num_tokens=words.size(1), edges=edges)

    @classmethod
    def dependency(
        cls, words: Tensor, heads: Tensor, padding_mask: Tensor, max_length: int
    ) -> PhraseBatch:
        """Make every dependency edge a phrase (eq. 8), and for k >= 3 every chain of up to k words.

        Args:
            words: 0-based index of the word each token belongs to, -1 at tokens of no word. Each
                word must have a token.
                Shape: (batch, tokens)
            heads: 0-based index of each word's head; a root is its own head; -1 is padding.
                Shape: (batch, words)
            padding_mask: True at padding.
                Shape: (batch, tokens)
            max_length: most words in a phrase, k.

        Raises:
            ValueError: if ``max_length < 2``, a tensor has a wrong type or shape, or the heads are
                no trees over the sentence's words.
        """
        _check_max_length(max_length)
        _check("words", words, torch.int64)
        _check("heads", heads, torch.int64)
        _check("padding_mask", padding_mask, torch.bool, words.shape)
        if heads.size(0) != words.size(0):
            raise ValueError(f"{heads.size(0)} rows of heads for {words.size(0)} sentences")
        nodes, edges = dependency_chains(words, heads, padding_mask, max_length)
        return cls(padding_mask=nodes, num_tokens=words.size(1), edges=edges)

    @classmethod
    def constituency(
        cls, words: Tensor, spans: Tensor, padding_mask: Tensor, max_length: int
    ) -> PhraseBatch:
        """Make every constituent of up to k words a phrase, and every word of several subwords.

        Args:
            words: 0-based index of the word each token belongs to, -1 at tokens of no word.
                Shape: (batch, tokens)
            spans: first word and one past the last of each constituent, children before parents,
                among them the words of several subwords; -1 at padding.
                Shape: (batch, constituents, 2 or more)
            padding_mask: True at padding.
                Shape: (batch, tokens)
            max_length: most words in a phrase, k.

        Raises:
            ValueError: if ``max_length < 2``, or the constituents are no trees over the words.
        """
        _check_max_length(max_length)
        nodes, edges = constituent_phrases(words, spans, padding_mask, max_length)
        return cls(padding_mask=nodes, num_tokens=words.size(1), edges=edges)

    @classmethod
    def from_members(
        cls, members: Sequence[Iterable[Sequence[int]]], padding_mask: Tensor
    ) -> PhraseBatch:
        """Make phrases of explicit sets of tokens.

        Loops in Python and compares all pairs of a sentence: meant for phrases without structure.

        Args:
            members: for each sentence its phrases, each a collection of token positions in the
                padded batch. Phrases with the same tokens are one.
            padding_mask: True at padding.
                Shape: (batch, tokens)

        Raises:
            ValueError: if a phrase has fewer than two tokens or contains padding, or the number of
                sentences differs.
        """
        _check("padding_mask", padding_mask, torch.bool)
        nodes, edges = member_edges(members, padding_mask)
        return cls(padding_mask=nodes, num_tokens=padding_mask.size(1), edges=edges)

    # Which nodes are adjacent

    def edges(self) -> PhraseEdges:
        """List the adjacent pairs of nodes (eq. 4), sorted by query."""
        if self._edges is None:
            self._edges = ngram_edges(self.levels, self.padding_mask)
        return self._edges

    def adjacency(self) -> Tensor:
        """Return A of eq. 6: True where one node's tokens are a subset of the other's.

        Returns:
            Shape: (batch, nodes, nodes)
        """
        return self.cached("adjacency", self._build_adjacency)

    def degrees(self) -> Tensor:
        """Count the neighbours of each node, itself included.

        Returns:
            Shape: (batch, nodes)
        """

        def count_edges() -> Tensor:
            counts = count(self.edges().query, self.padding_mask.numel())
            return counts.view(self.padding_mask.shape)

        return self.cached("degrees", count_edges)

    def _build_adjacency(self) -> Tensor:
        num_nodes = self.num_nodes
        if self.levels:
            is_node = ~self.padding_mask
            sizes = torch.cat([torch.full((level.length,), level.size) for level in self.levels])
            starts = torch.cat([torch.arange(level.length) for level in self.levels])
            pattern = within_span(starts, sizes, starts, sizes).to(self.device)
            adjacency = pattern & is_node[:, :, None] & is_node[:, None, :]
            return adjacency | torch.eye(num_nodes, dtype=torch.bool, device=self.device)
        query, key = self.edges()
        adjacency = torch.zeros(
            self.batch_size * num_nodes, num_nodes, dtype=torch.bool, device=self.device
        )
        adjacency[query, key % num_nodes] = True
        return adjacency.view(self.batch_size, num_nodes, num_nodes)

    # States

    def extend(self, states: Tensor, init: str = "zero") -> Tensor:
        """Append the phrases' initial states to the tokens' (Algorithm 1, line 2).

        Args:
            states: token states.
                Shape: (batch, tokens, width)
            init: ``"zero"``, or ``"mean"`` for the mean of the states of the phrase's tokens.

        Returns:
            Shape: (batch, nodes, width)

        Raises:
            ValueError: if ``init`` is unknown or the shape does not fit.
        """
        batch, num_tokens, width = states.shape
        if (batch, num_tokens) != (self.batch_size, self.num_tokens):
            raise ValueError(
                f"states of shape {tuple(states.shape)} do not fit a batch of {self.batch_size} "
                f"sentences of {self.num_tokens} tokens"
            )
        num_phrases = self.num_nodes - num_tokens
        if init == "zero":
            return pad(states, (0, 0, 0, num_phrases))
        if init != "mean":
            raise ValueError(f"unknown initial phrase state {init!r}, expected 'zero' or 'mean'")
        query, key = self.contained_tokens()
        # Half precision is too coarse to add up in.
        tokens = states.reshape(-1, width).index_select(0, key)
        tokens = tokens if states.dtype == torch.float64 else tokens.float()
        sums = tokens.new_zeros(batch * num_phrases, width).index_add(0, query, tokens)
        sizes = count(query, batch * num_phrases).clamp(min=1)
        means = (sums / sizes[:, None]).view(batch, num_phrases, width)
        return torch.cat([states, means.to(states.dtype)], dim=1)

    def contained_tokens(self) -> tuple[Tensor, Tensor]:
        """Return flat indices (phrase of all slots, token of all positions) of each membership."""
        return self.cached("contained tokens", self._list_contained_tokens)

    def _list_contained_tokens(self) -> tuple[Tensor, Tensor]:
        query, key = self.edges()
        num_nodes, num_tokens = self.num_nodes, self.num_tokens
        keep = (query % num_nodes >= num_tokens) & (key % num_nodes < num_tokens)
        query, key = query[keep], key[keep]
        slot = query % num_nodes - num_tokens
        phrase = query // num_nodes * (num_nodes - num_tokens) + slot
        return phrase, key // num_nodes * num_tokens + key % num_nodes

    def members(self) -> list[list[tuple[int, ...]]]:
        """List the tokens of each node of each sentence, for plots and tests.

        Returns:
            For each sentence N sorted tuples of token positions, empty at padded nodes.
        """
        is_node = (~self.padding_mask).tolist()
        tokens: list[list[list[int]]] = [
            [[i] if real and i < self.num_tokens else [] for i, real in enumerate(row)]
            for row in is_node
        ]
        num_phrases = self.num_nodes - self.num_tokens
        phrases, contained = self.contained_tokens()
        for phrase, token in zip(phrases.tolist(), contained.tolist(), strict=True):
            sentence, slot = divmod(phrase, num_phrases)
            tokens[sentence][self.num_tokens + slot].append(token % self.num_tokens)
        return [[tuple(sorted(node)) for node in row] for row in tokens]


def _check(name: str, tensor: Tensor, dtype: torch.dtype, shape: torch.Size | None = None) -> None:
    """Raise ``ValueError`` unless a tensor has this type and two dimensions, or this shape."""
    if tensor.dtype != dtype or tensor.dim() != 2:
        raise ValueError(
            f"{name} must be a {dtype} tensor of shape (batch, length), "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if shape is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")


def _check_max_length(max_length: int) -> None:
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )
