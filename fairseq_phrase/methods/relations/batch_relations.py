"""The relations of a batch's tokens, for models of transformers."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.tensors import check_tensor
from fairseq_phrase.methods.common.tree_positions import TreePositions
from fairseq_phrase.methods.relations.relation_bias import (
    GRAPH_RELATIONS,
    NUM_BUCKETS,
    TREE_RELATIONS,
    EdgePairs,
    edge_pairs,
    graph_relations,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
)

# Versions of torch before 2.7 lack the first.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
#: The types of relations, the smallest first.
_INTEGERS = torch.uint8, torch.int16, torch.int32


class LabelledEdges(NamedTuple):
    """The labels of a batch's edges, each twice: from dependent to head, and from head to dependent.

    Attributes:
        pairs: for biases.
        is_query: True where the word of the token is the query of the edge.
            Shape: (batch, 1, tokens, 2 edges)
        keys: word of the edge that is attended to. Shape: (batch, 1, 1, 2 edges), int64
        labels: number of the label, as in :class:`EdgePairs`. Shape: (batch, 2 edges), int64
        words: word of each token; the number of tokens at tokens of no word.
            Shape: (batch, 1, 1, tokens), int64
    """

    pairs: EdgePairs
    is_query: Tensor
    keys: Tensor
    labels: Tensor
    words: Tensor

    @classmethod
    def of_graph(cls, words: Tensor, edges: Tensor, num_labels: int) -> LabelledEdges:
        """Prepare edges; arguments as in :func:`edge_pairs`."""
        pairs, tokens = edge_pairs(words, edges, num_labels), words.size(1)
        # The last slot, of padding and roots, has the number of tokens as query, which is no word.
        queries, keys = pairs.slots // max(tokens, 1), pairs.slots % max(tokens, 1)
        is_query = words[:, None, :, None] == queries[:, None, None]
        outside = words.masked_fill(words < 0, tokens)
        return cls(pairs, is_query, keys[:, None, None], pairs.labels, outside[:, None, None])

    def spread(self, per_edge: Tensor) -> Tensor:
        """Add up the numbers of all edges between two tokens' words.

        Args:
            per_edge: a number for each query and edge. Shape: (batch, heads, tokens, 2 edges)

        Returns:
            Shape: (batch, heads, tokens, tokens)
        """
        per_edge = per_edge * self.is_query
        sums = per_edge.new_zeros(*per_edge.shape[:3], self.words.size(3) + 1)
        sums = sums.scatter_add(3, self.keys.expand_as(per_edge), per_edge)
        return sums.gather(3, self.words.expand(*per_edge.shape[:3], -1))

    def collect(self, pairs: Tensor) -> Tensor:
        """Add up the numbers of all pairs of tokens that an edge connects, the transpose of ``spread``.

        Args:
            pairs: a number for each pair. Shape: (batch, heads, tokens, tokens)

        Returns:
            Shape: (batch, heads, tokens, 2 edges)
        """
        sums = pairs.new_zeros(*pairs.shape[:3], self.words.size(3) + 1)
        sums = sums.scatter_add(3, self.words.expand_as(pairs), pairs)
        return sums.gather(3, self.keys.expand(*pairs.shape[:3], -1)) * self.is_query


class BatchRelations:
    """The relations of a batch's tokens.

    Args:
        kind: ``"tree"``, ``"sequence"`` or ``"both"``, as of :class:`RelationBias`.
        num_labels: number of dependency labels that have a bias.
        words: index of the word of each token, -1 at tokens of no word; None if it was not given.
            Shape: (batch, tokens), int64
        heads: index of the head of each word, -1 at padding; None if it was not given.
            Shape: (batch, words), int64
        labels: number of each word's dependency label; None without labels. Shape: (batch, words), int64
        edges: head, dependent and label of each edge of a graph, -1 at padding; None if it was not given.
            Shape: (batch, edges, 3), int64
        of_graph: whether the relations are of graphs.
    """

    def __init__(
        self,
        kind: str,
        num_labels: int = 0,
        words: Tensor | None = None,
        heads: Tensor | None = None,
        labels: Tensor | None = None,
        edges: Tensor | None = None,
        of_graph: bool = False,
    ) -> None:
        self.kind, self.num_labels, self.of_graph = kind, num_labels, of_graph
        self.words, self.heads, self.labels, self.edges = words, heads, labels, edges
        #: The labels of a graph's edges, which are added to its relations; None without labels.
        self.labelled: LabelledEdges | None = None
        trees = len(GRAPH_RELATIONS) if of_graph else len(TREE_RELATIONS) + 2 * num_labels
        self.count = {"tree": trees, "sequence": NUM_BUCKETS, "both": trees * NUM_BUCKETS}[kind]
        self._pairs: Tensor | None = None
        self._masked: list[tuple[Tensor, Tensor]] = []  # of the masks of different layers

    def number(self) -> None:
        """Number the pairs of tokens before layers, which may be recomputed, read them.

        Without trees there is nothing to number; layers with biases then refuse the batch.
        """
        if self.words is None:
            return
        self._pairs = self._number(self.words.size(1))
        if self.of_graph and self.num_labels and self.edges is not None:
            self.labelled = LabelledEdges.of_graph(self.words, self.edges, self.num_labels)

    def masked(self, mask: Tensor | None, batch: int, queries: int, keys: int) -> Tensor:
        """Number the pairs of tokens; masked pairs get the number of kinds.

        Args:
            mask: True where a query may attend; None for all. Shape: (batch or 1, 1, queries, keys)

        Returns:
            Shape: (batch or 1, 1, queries, keys), the smallest type of integers

        Raises:
            UserError: the trees are missing, or come from another batch.
        """
        # A compiled layer that is recomputed must not change an object outside it.
        is_stored = not torch.compiler.is_compiling()
        pairs = self._number(queries) if self._pairs is None else self._pairs
        if is_stored:
            self._pairs = pairs
        pairs = self._of_attention(pairs[:, None], batch, queries, keys)
        if mask is None:
            return pairs
        for earlier, numbers in self._masked:
            if earlier is mask:
                return numbers
        numbers = pairs.where(mask.to(pairs.device), self.count)
        if is_stored:
            self._masked.append((mask, numbers))
        return numbers

    def without_queries(self, queries: int) -> bool:
        """Return whether no query of a layer has relations.

        Args:
            queries: their number.
        """
        return False

    def _of_attention(self, pairs: Tensor, batch: int, queries: int, keys: int) -> Tensor:
        """Return the numbers of the queries and keys of an attention."""
        sentences = 1 if self.kind == "sequence" else batch
        if pairs.shape[2:] != (queries, keys) or len(pairs) != sentences:
            raise UserError(
                f"the batch has {batch} sentences of {keys} tokens, and src_words {len(pairs)} of "
                f"{pairs.size(2)}: pass src_words and src_heads of the same batch (collate)"
            )
        return pairs

    def _number(self, tokens: int) -> Tensor:
        tree = buckets = device = None
        if self.kind != "sequence":
            tree = self._graph() if self.of_graph else self._tree()
            tokens, device = tree.size(1), tree.device
        if self.kind != "tree":
            buckets = sentence_buckets(tokens, device)
        # The next number is for masked pairs, and another for those without a relation.
        dtype = next(d for d in _INTEGERS if self.count < torch.iinfo(d).max)
        if dtype == torch.int16 and _is_exporting():
            dtype = torch.int32  # onnxruntime chooses among no numbers of 16 bits
        return kinds_of_pairs(tree, buckets).to(dtype)

    def _tree(self) -> Tensor:
        if self.words is None or self.heads is None:
            raise UserError("this model has tree biases: pass src_words and src_heads (collate)")
        if self.num_labels and self.labels is None:
            raise UserError("this model has biases for labels: pass src_deprels (collate)")
        labels = self.labels if self.num_labels else None
        return _tree_relations(self.words, self.heads, labels, self.num_labels)

    def _graph(self) -> Tensor:
        words, edges = self.words, self.edges
        if words is None or edges is None:
            raise UserError(
                "this model has biases of graphs: pass src_words and src_edges (collate)"
            )
        try:
            check_tensor("words", words, torch.int64)
            check_tensor("edges", edges, torch.int64, len(words), "edges", 3)
        except ValueError as error:
            raise UserError(f"src_words, src_edges: {error}") from None
        _check_edges(words, edges, self.num_labels)
        return graph_relations(words, edges)


class PromptRelations(BatchRelations):
    """The relations of a prompt's tokens in a decoder. Text after the prompt has no relations.

    Pairs without a relation have the number of kinds plus 1. The decoder reads prompt and text at once,
    or a few tokens at a time with a cache.

    Args:
        words: as in :class:`BatchRelations`; also -2 at tokens after the prompt. All tokens after those
            of this tensor are after the prompt, too.

    Attributes:
        past: how many tokens the cache has; a tensor of one number if the cache has a fixed size.
    """

    past: int | Tensor = 0

    def without_queries(self, queries: int) -> bool:
        """Return whether all queries come after the prompt; in a cache of fixed size they may not.

        Raises:
            UserError: the words seem to be those of the new tokens, and not of the prompt.
        """
        if self.words is None or not isinstance(self.past, int):
            return False
        tokens = self.words.size(1)
        if self.past and queries == tokens > 1:
            raise UserError(
                f"src_words have {tokens} tokens, as many as are new, after {self.past} in the cache: "
                "pass src_words of the whole prompt; if they are, add -2 at their end"
            )
        return self.past >= tokens

    def number(self) -> None:
        """Number the pairs of the prompt, unless it was read before."""
        if not self.without_queries(0):
            super().number()

    def _of_attention(self, pairs: Tensor, batch: int, queries: int, keys: int) -> Tensor:
        assert self.words is not None
        tokens, device = self.words.size(1), pairs.device
        if len(pairs) != batch:
            raise UserError(
                f"the batch has {batch} sentences, and src_words {len(pairs)}: pass src_words and "
                "src_heads of the same batch (collate)"
            )
        rows = torch.arange(queries, device=device) + self.past
        # Layers with a window keep the last keys; caches of a fixed size have keys to come.
        first = (rows[-1] + 1 - keys).clamp(min=0)
        columns = torch.arange(keys, device=device) + first
        pairs = pad(pairs, (0, 1, 0, 1), value=self.count + 1)
        return pairs[:, :, rows.clamp(max=tokens)][..., columns.clamp(max=tokens)]

    def _number(self, tokens: int) -> Tensor:
        if self.words is None:
            return super()._number(tokens)  # which refuses the batch
        in_prompt = self.words != -2
        words = self.words.where(in_prompt, -1)
        prompt = BatchRelations(self.kind, self.num_labels, words, self.heads, self.labels)
        pairs = prompt._number(tokens)
        return pairs.where(in_prompt[:, :, None] & in_prompt[:, None], self.count + 1)


def _tree_relations(words: Tensor, heads: Tensor, labels: Tensor | None, num_labels: int) -> Tensor:
    """Number the relations of a batch's parse, as :func:`tree_relations`.

    Raises:
        UserError: the tensors are not a parse.
    """
    try:
        check_tensor("words", words, torch.int64)
        check_tensor("heads", heads, torch.int64, len(words), "words")
        check_numbers(words, heads, labels, num_labels)
        positions = TreePositions(words, heads, torch.zeros_like(words, dtype=torch.bool))
        return tree_relations(positions, labels, num_labels)
    except ValueError as error:
        raise UserError(f"src_words, src_heads, src_deprels: {error}") from None


def check_numbers(words: Tensor, heads: Tensor, labels: Tensor | None, num_labels: int) -> None:
    """Check that words, heads and labels exist.

    Tensors on a GPU are not checked, because the host would wait for them in every step.

    Raises:
        UserError: one does not exist; with the sentence and the word.
    """
    if torch.compiler.is_compiling() or words.device.type != "cpu":
        return
    ends = torch.arange(1, heads.size(1) + 1, device=heads.device).where(heads != -1, 0)
    counts = pad(ends, (0, 1)).amax(1, keepdim=True)  # without words there is no largest end
    is_word = torch.arange(heads.size(1), device=heads.device) < counts
    parse = {"src_words": words, "src_heads": heads}
    faults = {
        "src_words": (words < -1) | (words >= counts),
        "src_heads": is_word & ((heads < 0) | (heads >= counts)),
    }
    if labels is not None:
        check_tensor("labels", labels, torch.int64, *heads.shape)
        parse["src_deprels"] = labels
        faults["src_deprels"] = is_word & ((labels < 0) | (labels >= num_labels))
    if not torch.stack([fault.any() for fault in faults.values()]).any():
        return
    name = next(name for name, fault in faults.items() if fault.any())
    row, column = faults[name].nonzero()[0].tolist()
    kind, where = {
        "src_words": ("word", "token"), "src_heads": ("head", "word"), "src_deprels": ("label", "word")
    }[name]  # fmt: skip
    limit = f"the sentence has {int(counts[row])} words"
    if kind == "label":
        limit = f"the model has {num_labels} labels"
    number = int(parse[name][row, column])
    raise UserError(
        f"{name}: sentence {row}, {where} {column}: {kind} {number}, and {limit}, from 0: make the "
        "parse by collate, with the labels of model.config.relation_bias"
    )


def _check_edges(words: Tensor, edges: Tensor, num_labels: int) -> None:
    """Check that the words and labels of edges exist, on a CPU.

    Raises:
        UserError: one does not exist; with the sentence and the edge.
    """
    if torch.compiler.is_compiling() or words.device.type != "cpu":
        return
    if not edges.numel():
        return
    is_edge, ends = edges[..., 0] != -1, edges[..., :2]
    wrong = is_edge & ((ends < 0) | (ends >= words.size(1))).any(2)
    if num_labels:
        wrong |= is_edge & ((edges[..., 2] < 0) | (edges[..., 2] >= num_labels))
    if wrong.any():
        row, edge = wrong.nonzero()[0].tolist()
        raise UserError(
            f"src_edges: sentence {row}, edge {edge}: {edges[row, edge].tolist()} has a word or a label "
            f"that does not exist, of {words.size(1)} tokens and {num_labels} labels, from 0: make the "
            "edges by collate, with the labels of model.config.relation_bias"
        )
