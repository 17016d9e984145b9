"""The phrases of a padded batch as nodes beside its tokens, built on the device without loops.

Token n-grams, word n-grams and dependency chains are all *chains along a successor*: the next
token, the next word, or the head. The phrase of size l that begins at w holds
``w, s(w), ..., s^(l-1)(w)``, and the smaller phrases inside it are exactly its shorter pieces, so
the pairs of eq. 4 can be listed in O(N k^2) and no two nodes need comparing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["NgramLevel", "PhraseBatch", "PhraseEdges"]

Cached = TypeVar("Cached")


class PhraseEdges(NamedTuple):
    """The pairs of adjacent nodes of a batch (eq. 4), sorted by query.

    Node ``i`` of sentence ``b`` has the flat index ``b * num_nodes + i``. Both directions of a
    pair and the pair of each node with itself, padded nodes too, are listed.

    Attributes:
        query: flat index of the node that attends.
            Shape: (edges,)
        key: flat index of the node attended to.
            Shape: (edges,)
    """

    query: Tensor
    key: Tensor


class NgramLevel(NamedTuple):
    """Where the token n-grams of one size stand: size, first node, number of nodes.

    Node ``offset + i`` is the phrase that begins at token ``i``; tokens themselves are size 1.
    """

    size: int
    offset: int
    length: int


class PhraseBatch:
    """The nodes of a padded batch: its n token positions, then slots for phrases, N in all.

    Built once per batch by one of the constructors (:meth:`token_ngrams`, :meth:`word_ngrams`,
    :meth:`dependency`, :meth:`from_members`, :meth:`without_phrases`) and shared by all layers.
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
        # A sentence has at most as many words as tokens; taking that bound spares a device sync.
        batch, max_words = words.shape
        counts = _count_tokens(words, max_words)
        following = torch.arange(1, max_words + 1, device=words.device).expand(batch, max_words)
        has_next = pad(counts[:, 1:max_words] > 0, (0, 1))
        successor = following.masked_fill(~has_next, max_words)
        return _chain_batch(
            successor, counts, words, padding_mask, max_length, single_words=True, faults=[]
        )

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
            (
                "a head is a word that is not in the sentence",
                is_word & ~is_word.gather(1, in_range),
            ),
            ("heads run in a circle", is_word & ~ends.gather(1, ancestor)),
            ("a word with a head has no token", is_word & (counts[:, :max_words] == 0)),
            ("a token's word has no head", ~is_word & (counts[:, :max_words] > 0)),
        ]
        successor = heads.masked_fill(~is_word | ends, max_words).clamp(max=max_words)
        return _chain_batch(
            successor, counts, words, padding_mask, max_length, single_words=False, faults=faults
        )

    @classmethod
    def from_members(
        cls, members: Sequence[Iterable[Sequence[int]]], padding_mask: Tensor
    ) -> PhraseBatch:
        """Make phrases of explicit sets of tokens, such as the constituents of a parse.

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
        batch, num_tokens = padding_mask.shape
        if len(members) != batch:
            raise ValueError(f"phrases of {len(members)} sentences for a batch of {batch}")
        is_token = (~padding_mask).tolist()
        unique = [
            list(dict.fromkeys(_token_set(phrase, is_token[row]) for phrase in phrases))
            for row, phrases in enumerate(members)
        ]
        num_nodes = num_tokens + max((len(phrases) for phrases in unique), default=0)
        contains = torch.zeros(batch, num_nodes, num_tokens)
        contains[:, :num_tokens] = torch.diag_embed((~padding_mask).float().cpu())
        for row, phrases in enumerate(unique):
            for slot, phrase in enumerate(phrases):
                contains[row, num_tokens + slot, list(phrase)] = 1
        sizes = contains.sum(-1)
        # i is part of j iff they share all of i's tokens.
        shared = contains @ contains.transpose(1, 2)
        adjacency = (shared == sizes[:, :, None]) | (shared == sizes[:, None, :])
        is_node = sizes > 0
        adjacency &= is_node[:, :, None] & is_node[:, None, :]
        adjacency |= torch.eye(num_nodes, dtype=torch.bool)
        sentence, query, key = adjacency.nonzero(as_tuple=True)
        edges = PhraseEdges(sentence * num_nodes + query, sentence * num_nodes + key)
        device = padding_mask.device
        return cls(
            padding_mask=~is_node.to(device),
            num_tokens=num_tokens,
            edges=PhraseEdges(*(index.to(device) for index in edges)),
        )

    # Which nodes are adjacent

    def edges(self) -> PhraseEdges:
        """List the adjacent pairs of nodes (eq. 4), sorted by query."""
        if self._edges is None:
            self._edges = self._ngram_edges()
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

        def count() -> Tensor:
            counts = _count(self.edges().query, self.padding_mask.numel())
            return counts.view(self.padding_mask.shape)

        return self.cached("degrees", count)

    def _build_adjacency(self) -> Tensor:
        num_nodes = self.num_nodes
        if self.levels:
            is_node = ~self.padding_mask
            sizes = torch.cat([torch.full((level.length,), level.size) for level in self.levels])
            starts = torch.cat([torch.arange(level.length) for level in self.levels])
            pattern = _within_span(starts, sizes, starts, sizes).to(self.device)
            adjacency = pattern & is_node[:, :, None] & is_node[:, None, :]
            return adjacency | torch.eye(num_nodes, dtype=torch.bool, device=self.device)
        query, key = self.edges()
        adjacency = torch.zeros(
            self.batch_size * num_nodes, num_nodes, dtype=torch.bool, device=self.device
        )
        adjacency[query, key % num_nodes] = True
        return adjacency.view(self.batch_size, num_nodes, num_nodes)

    def _ngram_edges(self) -> PhraseEdges:
        is_node = ~self.padding_mask
        index = torch.arange(self.padding_mask.numel(), device=self.device)
        index = index.view(self.padding_mask.shape)
        pairs = [(index, index, torch.ones_like(is_node))]
        for larger in self.levels[1:]:
            whole = slice(larger.offset, larger.offset + larger.length)
            for smaller in self.levels[: larger.size - 1]:
                for shift in range(larger.size - smaller.size + 1):
                    first = smaller.offset + shift
                    part = slice(first, first + larger.length)
                    # A phrase's parts exist if it does.
                    exists = is_node[:, whole]
                    pairs.append((index[:, whole], index[:, part], exists))
                    pairs.append((index[:, part], index[:, whole], exists))
        return _select_edges(pairs)

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
        query, key = self.cached("contained tokens", self._contained_tokens)
        # Half precision is too coarse to add up in.
        tokens = states.reshape(-1, width).index_select(0, key)
        tokens = tokens if states.dtype == torch.float64 else tokens.float()
        sums = tokens.new_zeros(batch * num_phrases, width).index_add(0, query, tokens)
        sizes = _count(query, batch * num_phrases).clamp(min=1)
        means = (sums / sizes[:, None]).view(batch, num_phrases, width)
        return torch.cat([states, means.to(states.dtype)], dim=1)

    def _contained_tokens(self) -> tuple[Tensor, Tensor]:
        """Return flat indices (phrase of all slots, token of all positions) of each membership."""
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
        phrases, contained = self._contained_tokens()
        for phrase, token in zip(phrases.tolist(), contained.tolist(), strict=True):
            sentence, slot = divmod(phrase, num_phrases)
            tokens[sentence][self.num_tokens + slot].append(token % self.num_tokens)
        return [[tuple(sorted(node)) for node in row] for row in tokens]

    # Blocks of a batch of token n-grams

    def split_queries(self, states: Tensor, block: int) -> Tensor:
        """Cut the nodes of token n-grams into blocks by the position at which they begin.

        Args:
            states: anything per node.
                Shape: (batch, nodes, ...)
            block: positions in a block.

        Returns:
            Shape: (batch, blocks, levels * block, ...), zeros where no node is
        """
        batch = states.size(0)
        num_blocks = self._num_blocks(block)
        pieces = []
        for _, offset, length in self.levels:
            level = _pad_nodes(states[:, offset : offset + length], 0, num_blocks * block)
            pieces.append(level.view(batch, num_blocks, block, *states.shape[2:]))
        return torch.cat(pieces, dim=2)

    def split_keys(self, states: Tensor, block: int) -> Tensor:
        """Give each block of :meth:`split_queries` all nodes adjacent to one of its own.

        Those of size l begin at most l-1 positions before the block and at most k-l positions
        after it, so that each level adds k-1 nodes to the block's.

        Args:
            states: anything per node.
                Shape: (batch, nodes, ...)
            block: positions in a block, at least k-1.

        Returns:
            Shape: (batch, blocks, levels * (block + k - 1), ...), zeros where no node is
        """
        batch = states.size(0)
        num_blocks = self._num_blocks(block)
        halo = len(self.levels) - 1
        pieces = []
        for size, offset, length in self.levels:
            level = states[:, offset : offset + length]
            level = _pad_nodes(level, size - 1, (num_blocks + 1) * block)
            level = level.view(batch, num_blocks + 1, block, *states.shape[2:])
            pieces += [level[:, :-1], level[:, 1:, :halo]]
        return torch.cat(pieces, dim=2)

    def merge_queries(self, blocks: Tensor, block: int) -> Tensor:
        """Undo :meth:`split_queries`.

        Args:
            blocks: Shape: (batch, blocks, levels * block, ...)
            block: positions in a block.

        Returns:
            Shape: (batch, nodes, ...)
        """
        batch, num_blocks = blocks.shape[:2]
        levels = blocks.unflatten(2, (len(self.levels), block))
        pieces = [
            levels[:, :, index].reshape(batch, num_blocks * block, *blocks.shape[3:])[:, :length]
            for index, (_, _, length) in enumerate(self.levels)
        ]
        return torch.cat(pieces, dim=1)

    def block_adjacency(self, block: int) -> Tensor:
        """Return A of eq. 6 between each block's queries and keys.

        Returns:
            Shape: (batch, blocks, levels * block, levels * (block + k - 1))
        """
        return self.cached(("block adjacency", block), lambda: self._build_blocks(block))

    def _build_blocks(self, block: int) -> Tensor:
        window = block + len(self.levels) - 1
        sizes = torch.tensor([level.size for level in self.levels])
        query_sizes, key_sizes = sizes.repeat_interleave(block), sizes.repeat_interleave(window)
        query_starts = torch.arange(block).repeat(len(sizes))
        key_starts = torch.arange(window).repeat(len(sizes)) - (key_sizes - 1)
        same_start = query_starts[:, None] == key_starts[None, :]
        itself = same_start & (query_sizes[:, None] == key_sizes[None, :])
        pattern = _within_span(query_starts, query_sizes, key_starts, key_sizes)
        is_query = self.split_queries(~self.padding_mask, block)[:, :, :, None]
        is_key = self.split_keys(~self.padding_mask, block)[:, :, None, :]
        return (pattern.to(self.device) & is_query & is_key) | itself.to(self.device)

    def _num_blocks(self, block: int) -> int:
        if not self.levels:
            raise ValueError("only a batch of token n-grams can be cut into blocks")
        if block < len(self.levels) - 1:
            raise ValueError(
                f"a block of {block} positions is too small for phrases of {len(self.levels)}"
            )
        return -(-self.num_tokens // block)


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


def _token_set(phrase: Sequence[int], is_token: list[bool]) -> tuple[int, ...]:
    tokens = tuple(sorted(set(phrase)))
    if len(tokens) < 2:
        raise ValueError(f"a phrase has at least two tokens, got {tuple(phrase)}")
    if tokens[0] < 0 or tokens[-1] >= len(is_token) or not all(is_token[i] for i in tokens):
        raise ValueError(f"phrase {tuple(phrase)} contains padding or lies outside the sentence")
    return tokens


def _within_span(
    starts: Tensor, sizes: Tensor, other_starts: Tensor, other_sizes: Tensor
) -> Tensor:
    """Tell for all pairs of spans whether one contains the other. Shape: (spans, other spans)."""
    start, other_start = starts[:, None], other_starts[None, :]
    end, other_end = start + sizes[:, None], other_start + other_sizes[None, :]
    inside = (start >= other_start) & (end <= other_end)
    around = (start <= other_start) & (end >= other_end)
    return inside | around


def _pad_nodes(states: Tensor, before: int, length: int) -> Tensor:
    """Pad dimension 1 with zeros to a length."""
    after = length - before - states.size(1)
    return pad(states, (0, 0) * (states.dim() - 2) + (before, after))


def _count(index: Tensor, length: int) -> Tensor:
    """Count how often each of ``length`` indices occurs, without bincount's wait for a GPU."""
    return torch.zeros(length, dtype=torch.int64, device=index.device).scatter_add(
        0, index, torch.ones_like(index)
    )


def _count_tokens(words: Tensor, max_words: int) -> Tensor:
    """Count each word's tokens; column ``max_words`` counts the tokens of no word, if any.

    Shape: (batch, max_words + 1)
    """
    batch = words.size(0)
    counts = torch.zeros(batch, max_words + 1, dtype=torch.int64, device=words.device)
    column = words.masked_fill(words < 0, max_words).clamp(max=max_words)
    return counts.scatter_add(1, column, torch.ones_like(words))


def _select_edges(pairs: Sequence[tuple[Tensor, Tensor, Tensor]]) -> PhraseEdges:
    """Keep the existing ones of candidate pairs (query, key, exists) and sort them by query."""
    query, key, exists = (
        torch.cat([part.reshape(-1) for part in parts]) for parts in zip(*pairs, strict=True)
    )
    query, key = query[exists], key[exists]
    order = query.argsort(stable=True)
    return PhraseEdges(query[order], key[order])


def _chain_batch(
    successor: Tensor,
    counts: Tensor,
    words: Tensor,
    padding_mask: Tensor,
    max_length: int,
    *,
    single_words: bool,
    faults: list[tuple[str, Tensor]],
) -> PhraseBatch:
    """Build the batch whose phrases are the chains of 2..k words along a successor.

    Args:
        successor: index of the word after each in its chain, W where the chain ends.
            Shape: (batch, W)
        counts: number of tokens of each word; the last column is for tokens of no word.
            Shape: (batch, W + 1)
        words: index of each token's word or -1.
            Shape: (batch, tokens)
        padding_mask: Shape: (batch, tokens)
        max_length: most words in a chain, k.
        single_words: whether a word of several subwords is a phrase of its own.
        faults: what may be wrong with the input, and where it is.
            Shape of each: (batch, words)

    Raises:
        ValueError: if a fault is found, or a word index is out of range or skipped.
    """
    device = words.device
    batch, num_tokens = words.shape
    num_words = successor.size(1)
    path = _follow(successor, max_length)
    has_tokens = counts[:, :num_words] > 0
    exists = [(counts[:, :num_words] > 1) & single_words, *(word < num_words for word in path[1:])]
    # A chain of every size contributes each of its words once.
    sizes = [size for size in range(1, len(path) + 1) for _ in range(size)]
    chain_words = torch.stack([path[i] for size in range(1, len(path) + 1) for i in range(size)], 1)
    member_counts = counts.gather(1, chain_words.flatten(1)).view(chain_words.shape)
    member_counts = member_counts * torch.stack([exists[size - 1] for size in sizes], dim=1)
    # Number the phrases of each sentence through, so that no slot is wasted.
    is_phrase = torch.stack(exists, dim=1).flatten(1)
    rank = is_phrase.cumsum(1) - 1

    faults = [
        *faults,
        ("a token's word index is out of range", words >= num_words),
        ("a word index is skipped", has_tokens & ~pad(has_tokens[:, :-1], (1, 0), value=True)),
    ]
    # The one transfer from the device: the numbers that sizes of tensors depend on.
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
        edges=_select_edges(pairs),
    )


def _follow(successor: Tensor, max_length: int) -> list[Tensor]:
    """Walk up to k-1 steps from every word; W means the chain has ended.

    Returns:
        For i = 0, 1, ... the word i steps after each.
        Shape of each: (batch, W)
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
        path: the word i steps after each, from :func:`_follow`.
        exists: for each size whether the chain that begins at a word is a phrase.
            Shape of each: (batch, W)
        node: flat index of that phrase's node.
            Shape: (batch, sizes, W)

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
        words: index of each token's word or -1.
            Shape: (batch, tokens)
        counts: number of tokens of each word; the last column is for tokens of no word.
            Shape: (batch, W + 1)
        chain_words: the words of all chains.
            Shape: (batch, chain words, W)
        member_counts: how many tokens each of them contributes.
            Shape: (batch, chain words, W)
        num_members: their sum.

    Returns:
        Flat indices, into ``chain_words`` and into ``words``, of every membership.
    """
    # Sorted by word, the tokens of a word are a run, of which each membership takes one.
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
