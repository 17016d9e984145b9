"""The constituency trees of a padded batch over its leaves, built on the device, without loops."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.common.tensors import (
    cached_property,
    check_mask,
    check_tensor,
    may_read,
)

Cached = TypeVar("Cached")


class Paths(NamedTuple):
    """Every path from a nonterminal down to a leaf, node by node, sorted by sentence and leaf.

    In a triple (i, t, j), nonterminal t is on the path from nonterminal i down to leaf j; t may be i. A
    leaf under D nonterminals has D (D + 1) / 2 triples. Each tensor has the shape (triples,).

    Attributes:
        sentence: index in the batch.
        top: the nonterminal i at which the path begins.
        node: the nonterminal t on the path.
        leaf: the leaf j at which the path ends.
    """

    sentence: Tensor
    top: Tensor
    node: Tensor
    leaf: Tensor


class TreeBatch:
    """The trees of a padded batch. Its N nodes are n leaves, then m nonterminals.

    Leaves are the source tokens, including the end of sentence, which is not under any nonterminal. The
    object is built once per batch and shared by all layers and heads. Values that depend only on the
    trees are computed when first needed. Padded nodes do not have relations to other nodes.

    Args:
        leaf_spans: the leaves under each nonterminal, half-open ``[start, end)``, leaf indices from 0.
            Children come before parents: of two spans with the same leaves, the later one is the parent.
            -1 in both columns at padding. Shape: (batch, nonterminals, 2), int64
        padding_mask: True at padded leaves. Shape: (batch, leaves), bool
        labels: index of each nonterminal's label, any number at padding; None without labels.
            Shape: (batch, nonterminals), int64
        sizes: the result of :func:`tree_sizes`, which has checked the trees; computed by default,
            which waits for the device.

    Raises:
        ValueError: a tensor's type or shape is wrong; or a span is empty, out of range or contains
            padding, two spans cross, or a parent comes before its child. Spans are checked only where the
            check does not wait for the device.
    """

    def __init__(
        self,
        *,
        leaf_spans: Tensor,
        padding_mask: Tensor,
        labels: Tensor | None = None,
        sizes: Sequence[int] | None = None,
    ) -> None:
        check_mask("padding_mask", padding_mask, "batch", "leaves")
        check_tensor("leaf_spans", leaf_spans, torch.int64, padding_mask.size(0), "nonterminals", 2)
        self.leaf_spans = leaf_spans
        self.padding_mask = padding_mask
        self.labels = labels
        self.cache: dict[Any, Any] = {}
        self._sizes = sizes
        if sizes is None and may_read(leaf_spans):
            _check_spans(leaf_spans.numpy(), padding_mask.numpy())

    @classmethod
    def from_words(
        cls, words: Tensor, spans: Tensor, padding_mask: Tensor, sizes: Sequence[int] | None = None
    ) -> TreeBatch:
        """Make the trees of constituents over words whose subwords are the leaves.

        Args:
            words: 0-based index of the word each token belongs to, -1 at tokens outside words (end of
                sentence, padding). A word has one or more tokens, which are adjacent.
                Shape: (batch, tokens), int64
            spans: first word and one past the last of each constituent, children before parents, and
                optionally its label in a third column; -1 at padding.
                Shape: (batch, constituents, 2 or more), int64
            padding_mask: True at padding. Shape: (batch, tokens), bool
            sizes: see the class.
        """
        check_tensor("words", words, torch.int64, "batch", "tokens")
        check_tensor("spans", spans, torch.int64, "batch", "constituents", "2 or more")
        if sizes is None and may_read(words):
            _check_words(words.numpy(), spans.numpy())
        is_word = words >= 0
        first = is_word.long().argmax(1, keepdim=True)
        # bounds[:, k] is the token at which word k begins; one more entry is the end of the last word. A
        # sentence has at most as many words as tokens; this bound avoids a wait for the device.
        counts = torch.zeros_like(words).scatter_add_(1, words.clamp(min=0), is_word.long())
        bounds = first + pad(counts.cumsum(1), (1, 0))
        ends = spans[..., :2]
        leaf_spans = bounds.gather(1, ends.clamp(min=0).flatten(1)).view(ends.shape)
        return cls(
            leaf_spans=torch.where(ends < 0, ends, leaf_spans),
            padding_mask=padding_mask,
            labels=spans[..., 2].clamp(min=0) if spans.size(2) > 2 else None,
            sizes=sizes,
        )

    @property
    def batch_size(self) -> int:
        """Number of sentences."""
        return self.padding_mask.size(0)

    @property
    def num_leaves(self) -> int:
        """Number of leaves n of the padded batch."""
        return self.padding_mask.size(1)

    @property
    def num_nonterminals(self) -> int:
        """Number of nonterminals m of the padded batch."""
        return self.leaf_spans.size(1)

    @property
    def num_nodes(self) -> int:
        """Number of nodes N of the padded batch: leaves, then nonterminals."""
        return self.num_leaves + self.num_nonterminals

    @property
    def device(self) -> torch.device:
        """The device of the batch's tensors."""
        return self.padding_mask.device

    def index_select(self, order: Tensor) -> TreeBatch:
        """Select sentences, as ``Tensor.index_select`` along the batch.

        Args:
            order: indices of sentences. Shape: (new batch,), int64
        """
        sizes = None
        if self._sizes is not None and order.is_cuda and len(order) == self.batch_size:
            # Reordered sentences keep the same sizes, so the host need not wait for them.
            all_of_them = order.sort().values == torch.arange(len(order), device=order.device)
            torch._assert_async(all_of_them.all(), "as many rows, of which two are one sentence")
            sizes = self._sizes
        return TreeBatch(
            leaf_spans=self.leaf_spans.index_select(0, order),
            padding_mask=self.padding_mask.index_select(0, order),
            labels=self.labels if self.labels is None else self.labels.index_select(0, order),
            sizes=sizes,
        )

    def cached(self, build: Callable[..., Cached], *choices: Hashable) -> Cached:
        """Return ``build(self, *choices)``, called once per choices."""
        key = (build, *choices)
        if key not in self.cache:
            self.cache[key] = build(self, *choices)
        return cast(Cached, self.cache[key])

    # Nodes, spans and paths

    @property
    def is_nonterminal(self) -> Tensor:
        """True at nonterminals, False at padding. Shape: (batch, nonterminals), bool."""
        return self.leaf_spans[..., 0] >= 0

    @cached_property
    def node_padding_mask(self) -> Tensor:
        """True at padded nodes. Shape: (batch, nodes), bool."""
        return torch.cat([self.padding_mask, ~self.is_nonterminal], 1)

    @cached_property
    def membership(self) -> Tensor:
        """M: True where leaf j is under nonterminal i. Shape: (batch, nonterminals, leaves), bool."""
        leaves = torch.arange(self.num_leaves, device=self.device)
        starts, ends = self.leaf_spans.unsqueeze(2).unbind(3)
        return (starts <= leaves) & (leaves < ends)

    @cached_property
    def subtrees(self) -> Tensor:
        """Sub: True where nonterminal t is in the subtree of i, including i.

        Spans nest, so t is below i iff the leaves of t are a subset of the leaves of i. If both have the
        same leaves, t comes before its ancestor i.
        Shape: (batch, nonterminals i, nonterminals t), bool.
        """
        starts, ends = self.leaf_spans.unbind(2)
        order = torch.arange(self.num_nonterminals, device=self.device)
        inside = (starts[:, :, None] <= starts[:, None]) & (ends[:, None] <= ends[:, :, None])
        real = self.is_nonterminal
        return inside & (order[:, None] >= order) & real[:, :, None] & real[:, None]

    @property
    def leaf_counts(self) -> Tensor:
        """Leaves under each nonterminal, 0 at padding. Shape: (batch, nonterminals), int64."""
        return self.leaf_spans[..., 1] - self.leaf_spans[..., 0]

    @cached_property
    def _begin(self) -> Tensor:
        """Nonterminals that begin at each leaf. Shape: (batch, leaves), int64."""
        return self._count(self.leaf_spans[..., 0])

    def _count(self, leaves: Tensor) -> Tensor:
        """Count nonterminals by leaf; nonterminals that end after the last leaf are omitted."""
        counts = leaves.new_zeros(self.batch_size, self.num_leaves + 1)
        counts.scatter_add_(1, leaves.clamp(min=0), self.is_nonterminal.long())
        return counts[:, :-1]

    @cached_property
    def leaf_depths(self) -> Tensor:
        """D: nonterminals above each leaf. Shape: (batch, leaves), int64."""
        # Spans that began minus spans that ended.
        return (self._begin - self._count(self.leaf_spans[..., 1])).cumsum(1)

    @cached_property
    def depths(self) -> Tensor:
        """Nonterminals above each one, 0 at the root and padding. Shape: (batch, nonterminals), int64."""
        return (self.subtrees.sum(1) - 1).clamp(min=0)

    @cached_property
    def max_depth(self) -> int:
        """The largest number of nonterminals above a leaf."""
        return self.sizes[0]

    @cached_property
    def max_span(self) -> int:
        """The largest number of leaves under a nonterminal."""
        return self.sizes[1]

    @cached_property
    def num_paths(self) -> int:
        """Number of triples that :meth:`paths` lists; O(depth³) in a chain."""
        return self.sizes[2]

    @property
    def num_members(self) -> int:
        """Number of pairs of a nonterminal and a leaf under it."""
        return self.sizes[3]

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Largest depth and span, and numbers of paths, of members and of pairs in :attr:`subtrees`.

        If they were not given, the host waits for all of them once.
        """
        if self._sizes is not None:
            return self._sizes
        depths, begin = self.leaf_depths, self._begin
        # Of the nonterminals above its first leaf, those below this nonterminal begin there.
        pairs = begin * depths - begin * (begin - 1) // 2
        sums = [(depths * (depths + 1) // 2).sum(), depths.sum(), pairs.sum()]
        largest = [_maximum(depths), _maximum(self.leaf_counts)]
        return cast(list[int], torch.stack([*largest, *sums]).tolist())

    def paths(self) -> Paths:
        """List the triples (i, t on the path from i to j, j)."""
        sentence, leaf, node = true_at(self.membership.transpose(1, 2), self.num_members)
        # The paths through a node begin at the node or its ancestors. They are listed node by node.
        _, _, tops = true_at(self.subtrees.transpose(1, 2), self.sizes[4])
        num_tops = self.subtrees.sum(1).flatten()
        first = num_tops.cumsum(0) - num_tops
        flat = sentence * self.num_nonterminals + node
        repeats = num_tops[flat]
        pair = torch.repeat_interleave(repeats, output_size=self.num_paths)
        offset = torch.arange(len(pair), device=self.device) - (repeats.cumsum(0) - repeats)[pair]
        return Paths(sentence[pair], tops[first[flat[pair]] + offset], node[pair], leaf[pair])

    # Attention masks

    @cached_property
    def key_mask(self) -> Tensor:
        """True at nodes that may be attended to: all except padding.

        The padding of a sentence that is all padding may be attended to. It is not read, but a NaN in it
        would reach the gradients. Shape: (batch, 1, 1, nodes), bool.
        """
        padding = self.node_padding_mask
        return (~padding | padding.all(1, keepdim=True))[:, None, None]

    @cached_property
    def subtree_mask(self) -> Tensor:
        """True where a node attends to another in the encoder ("subtree masking").

        A leaf attends to the leaves, a nonterminal to the leaves and nonterminals of its subtree.
        Every node, including padding, attends to itself, because an empty softmax would give NaN.
        Shape: (batch, 1, nodes that attend, nodes attended to), bool.
        """
        leaves, nonterminals = self.num_leaves, self.num_nonterminals
        from_leaves = pad(~self.padding_mask[:, None], (0, nonterminals)).expand(-1, leaves, -1)
        from_nonterminals = torch.cat([self.membership, self.subtrees], 2)
        mask = torch.cat([from_leaves, from_nonterminals], 1)
        itself = torch.eye(self.num_nodes, dtype=torch.bool, device=self.device)
        return (mask | itself).unsqueeze(1)


@dataclass(frozen=True)
class Indices:
    """The length of branches and the numbering of embeddings.

    Attributes:
        from_root: follow the authors' code: vertical indices are counted from the root, and the leaf is
            not counted in the length of its branch. Otherwise follow the paper.
        max_vertical: largest vertical index, 0 without embeddings.
        max_horizontal: largest horizontal index, 0 without embeddings.
    """

    from_root: bool
    max_vertical: int
    max_horizontal: int

    def sizes(self, tree: TreeBatch) -> tuple[int, int, int]:
        """Count the nodes, vertical and horizontal indices that have coefficients in a batch."""
        return (
            tree.num_nodes,
            min(tree.max_depth, self.max_vertical),
            min(tree.max_span, self.max_horizontal),
        )


def tree_sizes(src_tokens: Tensor, parse: ParseBatch) -> list[int]:
    """Check the trees of a batch on the host, and compute the sizes that the host needs later."""
    # Spans cover only words, so the sizes do not depend on padding.
    padding_mask = torch.zeros(src_tokens.shape, dtype=torch.bool)
    tree = TreeBatch.from_words(parse["words"], parse["spans"], padding_mask)
    return [*tree.sizes]


def _maximum(counts: Tensor) -> Tensor:
    return counts.max() if counts.numel() else counts.sum()


# These checks of the collater's output use NumPy, which does not launch kernels.


def _check_words(words: np.ndarray, spans: np.ndarray) -> None:
    """Raise ``ValueError`` unless words come in order and spans cover only these words."""
    is_word = words >= 0
    tokens = np.arange(words.shape[1])
    first = is_word.argmax(1)[:, None] if words.size else np.zeros((len(words), 1), np.int64)
    together = (tokens >= first) & (tokens < first + is_word.sum(1, keepdims=True))
    steps = np.diff(words, axis=1, prepend=-1)
    in_order = np.where(tokens == first, words == 0, (steps == 0) | (steps == 1))
    if not ((is_word == together).all() and (in_order | ~is_word).all()):
        raise ValueError("the words of a sentence must be in order, from 0, and together")
    if (spans[..., :2] > (words.max(1, initial=-1) + 1)[:, None, None]).any():
        raise ValueError("a constituent has words that its sentence lacks")


def _check_spans(leaf_spans: np.ndarray, padding_mask: np.ndarray) -> None:
    """Raise ``ValueError`` unless the spans form trees, children before parents."""
    starts, ends = leaf_spans[..., 0], leaf_spans[..., 1]
    num_leaves = padding_mask.shape[1]
    padded, real = (starts == -1) & (ends == -1), starts >= 0
    fits = real & (starts < ends) & (ends <= num_leaves)
    broken = ~(padded | fits)
    if padding_mask.any():
        # Padding before each leaf; shape: (batch, leaves + 1)
        before = np.pad(padding_mask.cumsum(1), ((0, 0), (1, 0)))
        bounds = [
            np.take_along_axis(before, bound.clip(0, num_leaves), 1) for bound in (starts, ends)
        ]
        broken |= real & (bounds[0] < bounds[1])
    # Of two spans that share leaves, the later one contains the earlier one.
    start, end = starts[:, :, None], ends[:, :, None]
    right = (starts[:, None] <= start) & (end <= ends[:, None])
    right |= end <= starts[:, None]
    right |= ends[:, None] <= start
    right |= np.tri(starts.shape[1], dtype=bool)
    if right.all() and not broken.any():
        return
    sentence, node = np.argwhere(broken | ~right.all(2))[0].tolist()
    raise ValueError(
        f"nonterminal {node} of sentence {sentence} covers the leaves "
        f"{leaf_spans[sentence, node].tolist()} (half-open): expected leaves that are there, "
        "spans that do not cross, and children before parents"
    )


def true_at(mask: Tensor, count: int) -> tuple[Tensor, ...]:
    """Return ``mask.nonzero(as_tuple=True)``. Shape of each: (count,), int64.

    Args:
        count: number of True elements; the host thus need not wait for a GPU to count them.
    """
    return counted_true_at(mask, count) if mask.is_cuda else mask.nonzero(as_tuple=True)


def counted_true_at(mask: Tensor, count: int) -> tuple[Tensor, ...]:
    """Compute :func:`true_at` in operations whose results have known sizes."""
    # The n-th True element is the first element at which the running count of True is n.
    numbers = torch.arange(1, count + 1, device=mask.device)
    flat = torch.searchsorted(mask.flatten().cumsum(0), numbers)
    indices = []
    for size in reversed(mask.shape):
        indices.append(flat % size)
        flat = flat // size
    return tuple(reversed(indices))
