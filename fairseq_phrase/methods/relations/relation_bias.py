"""Self-attention with a learned bias for each relation of two tokens, in each head.

Source: ``docs/models/tree_relations.md``: ``S_ij += b[l, h, r(i, j)]``; after the masks of McDonald and
Chiang (2021) and the relative biases of T5 (Raffel et al. 2020). The relations are small integers.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_phrase.methods.common.biased_attention import biased_attention, pair_bias
from fairseq_phrase.methods.common.one_by_one import is_long, one_by_one, one_of
from fairseq_phrase.methods.common.projections import HeadsAttention
from fairseq_phrase.methods.common.tensors import may_read, upcast
from fairseq_phrase.methods.common.tree_positions import TreePositions

#: The relation of a key's word to the query's word. Two words at distance 2 are siblings unless one is
#: above the other, so distances begin with 3.
TREE_RELATIONS = (
    "same word",
    "parent",
    "child",
    "sibling",
    *(f"ancestor {distance}" for distance in ("2", "3", "4+")),
    *(f"descendant {distance}" for distance in ("2", "3", "4+")),
    *(f"distance {distance}" for distance in (*map(str, range(3, 9)), "9+")),
    "no word",
)
PARENT, CHILD = TREE_RELATIONS.index("parent"), TREE_RELATIONS.index("child")
assert PARENT + 1 == CHILD  # the order of the labels' biases
# For a word above another: indexed by the query's depth minus the key's depth, -4 to 4.
_IN_LINE = (9, 8, 7, CHILD, 0, PARENT, 4, 5, 6)
# For two other words: indexed by their distance, 2 to 9. At distance 2 they are siblings.
_SIBLING = TREE_RELATIONS.index("sibling")
_APART = (0, 0, _SIBLING, *range(10, 17))
_MOST = len(_APART) - 1
_NO_WORD = TREE_RELATIONS.index("no word")
#: The relations in a graph, where a word may have several heads: co-heads share a dependent.
GRAPH_RELATIONS = (*TREE_RELATIONS, "co-head")
_CO_HEAD = GRAPH_RELATIONS.index("co-head")

NUM_BUCKETS, _MAX_DISTANCE = 32, 128


def tree_relations(
    tree: TreePositions, labels: Tensor | None = None, num_labels: int = 0
) -> Tensor:
    """Number the relation of every two tokens' words.

    Subwords have the relations of their word. *Decision*: a token outside words (the end of sentence) has
    the relation "same word" to itself, and all its pairs with other tokens have the relation "no word".

    Args:
        labels: number of the relation of each word to its head. If given, pairs of parent and child are
            numbered by the dependent's label, after the numbers of :data:`TREE_RELATIONS`: L numbers
            for the parents, then L for the children. Shape: (batch, words), int64
        num_labels: number of labels L.

    Returns:
        For query token i and key token j the relation of j to i; undefined at padding.
        Shape: (batch, tokens, tokens), int64
    """
    device, depths = tree.words.device, tree.word_depths
    distances = tree.word_distances()
    above = depths[:, :, None] - depths[:, None, :]
    # One lookup: the words in line are numbered by depths, and then all others by distances.
    in_line = above.clamp(-4, 4).add_(4)
    apart = distances.clamp(max=_MOST).add_(len(_IN_LINE))
    number = torch.where(distances == above.abs(), in_line, apart)
    table = constant((*_IN_LINE, *_APART), device)
    relations = table.index_select(0, number.flatten()).view_as(number)
    if labels is not None:
        if labels.size(1) == 0:  # a batch without words; its heads have one word of padding
            labels = labels.new_zeros(len(labels), 1)
        if labels.shape != tree.heads.shape:
            raise ValueError(
                f"labels of shape {tuple(labels.shape)} for heads of {tuple(tree.heads.shape)}"
            )
        first = len(TREE_RELATIONS)
        by_parent = (first + labels)[:, :, None]
        by_child = (first + num_labels + labels)[:, None, :]
        relations = torch.where(relations == PARENT, by_parent, relations)
        relations = torch.where(relations == CHILD, by_child, relations)
    relations = tree.for_tokens(relations, outside=_NO_WORD)
    relations.diagonal(dim1=1, dim2=2).zero_()
    return relations


class EdgePairs(NamedTuple):
    """The labels of the edges of a batch's graphs, prepared for biases.

    Attributes:
        slots: for each edge the pair of its dependent as query and its head as key, then for each edge
            the opposite pair; the last slot for padding and roots. Shape: (batch, 2 edges), int64
        labels: labels of these slots: L numbers for heads as keys, then L for dependents; 2 L for the
            last slot. Shape: (batch, 2 edges), int64
        of_tokens: the slot of each pair of tokens; the last slot at tokens outside words.
            Shape: (batch, tokens, tokens), int64
    """

    slots: Tensor
    labels: Tensor
    of_tokens: Tensor


def edge_pairs(words: Tensor, edges: Tensor, num_labels: int) -> EdgePairs:
    """Prepare the labels of edges for :meth:`RelationBias.bias`; see :func:`graph_relations`."""
    count = words.size(1)
    head, dependent, label = edges.unbind(2)
    nothing = (head == dependent)[:, None]  # padding has -1 as head and dependent
    slots = torch.stack([dependent * count + head, head * count + dependent], 1)
    labels = torch.stack([label, num_labels + label], 1)
    return EdgePairs(
        slots.masked_fill(nothing, count * count).flatten(1),
        labels.masked_fill(nothing, 2 * num_labels).flatten(1),
        _token_pairs(words),
    )


def _token_pairs(words: Tensor) -> Tensor:
    """Number the pairs of tokens' words; n² at tokens outside words. Shape: (batch, tokens, tokens)."""
    count = words.size(1)
    if may_read(words) and (words >= count).any():
        raise ValueError("a token's word index is out of range")
    query, key = words[:, :, None], words[:, None]
    return (query * count + key).masked_fill((query < 0) | (key < 0), count * count)


def graph_relations(words: Tensor, edges: Tensor) -> Tensor:
    """Number the relations of tokens' words in a graph. Shape: (batch, tokens, tokens), int64.

    The numbers are of :data:`GRAPH_RELATIONS`. A distance is the length of the shortest path along edges
    in any direction. A word is above another if a path of this length leads down to it, from heads to
    dependents. Two other words at distance 2 are siblings if they share a head, else co-heads.
    In a tree these are the relations of :func:`tree_relations`. *Decisions*: words without a path between
    them have the relation "distance 9+". Of two words that are each other's head, the key is the parent.
    Edges of roots are ignored.

    Args:
        words: 0-based index of the word of each token, -1 at tokens outside words. Shape: (batch, tokens)
        edges: head, dependent and label of each edge, -1 at padding. Shape: (batch, edges, 3)
    """
    batch, count = words.shape
    # Larger than all path lengths of the batch, and at least 9.
    far = 2 * count + _MOST
    # Steps up from query to key. No sentence has more words than tokens. Edges of roots and padding are
    # on the diagonal, which is overwritten.
    ends = edges[..., :2].clamp(min=0)
    up = words.new_full((batch, count * count), far)
    up = up.scatter(1, ends[..., 1] * count + ends[..., 0], 1).unflatten(1, (count, count))
    up.diagonal(dim1=1, dim2=2).zero_()
    has_head = (up == 1).float()
    lengths = torch.stack([up, torch.minimum(up, up.mT)])
    for middle in range(count):  # Floyd and Warshall
        through = lengths[..., middle, None] + lengths[..., None, middle, :]
        lengths = torch.minimum(lengths, through)
    up, apart = lengths
    # Steps down, from a query that is above the key, are negative.
    down = -up.mT
    in_line = ((up == apart) | (-down == apart)) & (apart < far)
    signed = torch.where(up == apart, up, down).clamp(-4, 4)
    device = words.device
    relations = torch.where(
        in_line,
        constant(_IN_LINE, device)[signed + 4],
        constant(_APART, device)[apart.clamp(max=_MOST)],
    )
    common_heads = has_head @ has_head.mT
    relations.masked_fill_((relations == _SIBLING) & (common_heads == 0), _CO_HEAD)
    pairs = _token_pairs(words).flatten(1)
    of_tokens: Tensor = pad(relations.flatten(1), (0, 1), value=_NO_WORD).gather(1, pairs)
    of_tokens = of_tokens.view_as(relations)
    return of_tokens.masked_fill_(torch.eye(count, dtype=torch.bool, device=device), 0)


def with_co_heads(parameters: dict[str, Tensor], prefix: str) -> None:
    """Add the biases of co-heads to parameters that lack them: copies of the biases of siblings.

    Args:
        parameters: of a checkpoint, by name.
        prefix: the prefix of the names of an encoder's parameters.
    """
    for name in [name for name in parameters if name.endswith(".tree_bias")]:
        if name.startswith(prefix):
            siblings = parameters[name][:, _SIBLING, None]
            parameters.setdefault(f"{name.removesuffix('tree_bias')}co_head_bias", siblings.clone())


@functools.cache
def constant(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    """Make a constant on a device, once; a copy from the host would wait for the device."""
    return torch.cat([torch.arange(n, n + 1, device=device) for n in numbers])


def sentence_buckets(num_tokens: int, device: torch.device | None = None) -> Tensor:
    """Number the distances j - i in the sentence, as T5 does. Shape: (1, tokens, tokens), int64.

    Half of the buckets is for keys after the query. In each half, the first 8 buckets are single
    distances; the others grow logarithmically up to 128.

    Args:
        num_tokens: length of the padded batch. Padding on the left shifts all tokens equally.
    """
    offsets = torch.arange(1 - num_tokens, num_tokens, device=device)
    half = NUM_BUCKETS // 2
    exact = half // 2
    sizes = offsets.abs()
    growth = (sizes.clamp(min=1) / exact).log() / math.log(_MAX_DISTANCE / exact)
    far = (exact + (growth * (half - exact)).long()).clamp(max=half - 1)
    buckets = torch.where(sizes < exact, sizes, far).add(offsets > 0, alpha=half)
    # Each query sees one bucket per offset; the offset of its first key falls from query to query.
    return buckets.unfold(0, num_tokens, 1).flip(0)[None]


def kinds_of_pairs(tree: Tensor | None, buckets: Tensor | None) -> Tensor:
    """Number all pairs of a relation and a bucket. Shape: (batch or 1, tokens, tokens), int64.

    Args:
        tree: from :func:`tree_relations`; None without trees. Shape: (batch, tokens, tokens), int64
        buckets: from :func:`sentence_buckets`; None without distances.
            Shape: (1, tokens, tokens), int64
    """
    if tree is None or buckets is None:
        kinds = buckets if tree is None else tree
        assert kinds is not None
        return kinds
    return torch.add(buckets, tree, alpha=NUM_BUCKETS)


#: The relations that may have biases: in the tree, in the sentence, or both; distance has a fixed prior.
BIASES = ("tree", "sequence", "both", "distance", "none")
#: What the relations' vectors are added to.
VECTORS = ("none", "keys", "keys-values")


class RelationBias(nn.Module):
    """Biases of the relations of two tokens, in each head; all are 0 at the start.

    Args:
        kind: ``"tree"``, ``"sequence"`` or ``"both"``.
        num_labels: number of dependency labels L, if pairs of parent and child have a bias for their
            label.
        of_graph: whether the relations are of graphs (:data:`GRAPH_RELATIONS`).

    Attributes:
        tree_bias: for :data:`TREE_RELATIONS`; None without trees. Shape: (heads, relations)
        co_head_bias: for co-heads; None without graphs. Shape: (heads, 1)
        label_bias: for the labels of parents, then of children; None without labels.
            Shape: (heads, 2 L)
        sequence_bias: None without distances in the sentence. Shape: (heads, buckets)

    Raises:
        ValueError: the kind is unknown.
    """

    def __init__(
        self, num_heads: int, kind: str = "tree", num_labels: int = 0, of_graph: bool = False
    ) -> None:
        super().__init__()
        self._add_biases(num_heads, kind, num_labels, of_graph)

    def _add_biases(self, num_heads: int, kind: str, num_labels: int, of_graph: bool) -> None:
        if kind not in BIASES[:3]:
            raise ValueError(f"unknown kind {kind!r}, expected one of {', '.join(BIASES[:3])}")

        def numbers(count: int, is_learned: bool) -> nn.Parameter | None:
            return nn.Parameter(torch.zeros(num_heads, count)) if is_learned else None

        self.num_heads, self.kind, self.num_labels = num_heads, kind, num_labels
        self.tree_bias = numbers(len(TREE_RELATIONS), kind != "sequence")
        self.co_head_bias = numbers(1, kind != "sequence" and of_graph)
        self.label_bias = numbers(2 * num_labels, kind != "sequence" and num_labels > 0)
        self.sequence_bias = numbers(NUM_BUCKETS, kind != "tree")

    def biases(self) -> list[Tensor]:
        """Return the parameters."""
        biases = self.tree_bias, self.co_head_bias, self.label_bias, self.sequence_bias
        return [bias for bias in biases if bias is not None]

    def extra_repr(self) -> str:
        """Show the options in ``print(module)``."""
        return f"num_heads={self.num_heads}, kind={self.kind}, num_labels={self.num_labels}"

    def bias(
        self, pairs: Tensor, masked: Tensor | None = None, edges: EdgePairs | None = None
    ) -> Tensor:
        """Look up the biases of all pairs. Shape: (batch or 1, heads, tokens, tokens).

        Args:
            pairs: from :func:`kinds_of_pairs`. Shape: (batch or 1, tokens, tokens), int64
            masked: True at pairs without weight, whose bias is -inf.
                Shape: (batch, 1 or tokens, tokens)
            edges: the labels of a graph's edges; the biases of parallel edges are added.
        """
        bias = pair_bias(self.table(with_labels=edges is None), pairs, masked)
        return bias if edges is None else bias + self.edge_bias(edges).to(bias.dtype)

    def table(self, with_labels: bool = True) -> Tensor:
        """Return the bias of each kind of :func:`kinds_of_pairs`. Shape: (heads, kinds)."""
        table: Tensor | None = self.sequence_bias
        tree: Tensor | None = self.tree_bias
        if tree is not None:
            if self.label_bias is not None and with_labels:
                # A labelled parent or child has two biases: of its relation and of its label.
                of_labels = self.label_bias.unflatten(1, (2, -1))
                labelled = tree[:, PARENT : CHILD + 1, None] + of_labels
                tree = torch.cat([tree, labelled.flatten(1)], dim=1)
            if self.co_head_bias is not None:
                tree = torch.cat([tree, self.co_head_bias], dim=1)
            table = tree if table is None else (tree[:, :, None] + table[:, None]).flatten(1)
        assert table is not None
        return table

    def edge_bias(self, edges: EdgePairs) -> Tensor:
        """Add up the labels' biases of each pair. Shape: (batch, heads, tokens, tokens)."""
        assert self.label_bias is not None
        # Few edges have a label, so its gradient is summed over edges instead of pairs of tokens.
        numbers = pad(upcast(self.label_bias), (0, 1)).T[edges.labels]
        tokens = edges.of_tokens.size(1)
        slots = numbers.new_zeros(len(numbers), tokens * tokens + 1, self.num_heads)
        slots = slots.scatter_add(1, edges.slots[..., None].expand_as(numbers), numbers)
        pairs = edges.of_tokens.flatten(1)[..., None].expand(-1, -1, self.num_heads)
        of_pairs: Tensor = slots.gather(1, pairs).mT.unflatten(2, (tokens, tokens))
        return of_pairs


@dataclass(frozen=True)
class PairRelations:
    """The relations of a batch's pairs of tokens.

    Attributes:
        pairs: their kinds, from :func:`kinds_of_pairs`. Shape: (batch or 1, tokens, tokens), int64
        masked: True at pairs that get no weight. Shape: (batch, 1 or tokens, tokens)
        edges: the labels of a graph's edges; None if not needed.
    """

    pairs: Tensor
    masked: Tensor | None = None
    edges: EdgePairs | None = None

    def sentence(self, index: int) -> PairRelations:
        """Take the relations of one sentence of the batch."""
        edges = self.edges and EdgePairs(*(one_of(tensor, index) for tensor in self.edges))
        return PairRelations(one_of(self.pairs, index), one_of(self.masked, index), edges)


class RelationAttention(RelationBias, HeadsAttention):
    """Multi-head self-attention with :class:`RelationBias`, see its arguments. Time-first.

    All biases start at 0, so training starts from attention without biases.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        kind: str = "tree",
        num_labels: int = 0,
        of_graph: bool = False,
        dropout: float = 0.0,
    ) -> None:
        HeadsAttention.__init__(self, embed_dim=embed_dim, num_heads=num_heads, dropout=dropout)
        self._add_biases(num_heads, kind, num_labels, of_graph)
        self.reset_parameters()

    def forward(
        self, states: Tensor, relations: PairRelations, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Attend once.

        Args:
            states: token states. Shape: (tokens, batch, width)
        """

        def attend(
            relations: PairRelations, query: Tensor, key: Tensor, value: Tensor
        ) -> tuple[Tensor, Tensor | None]:
            bias = self.bias(relations.pairs, relations.masked, relations.edges)
            return biased_attention(query, key, value, bias, self.dropout_p, need_weights)

        heads = self.split(states)
        if is_long(heads[0]) and not need_weights:
            return self.join(one_by_one(attend, relations, *heads), states), None
        attended, weights = attend(relations, *heads)
        return self.join(attended, states), weights
