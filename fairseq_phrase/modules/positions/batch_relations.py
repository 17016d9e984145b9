"""The relations of a batch's tokens, for models of transformers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.relation_bias import (
    NUM_BUCKETS,
    TREE_RELATIONS,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
)
from fairseq_phrase.modules.positions.tree_positions import TreePositions
from fairseq_phrase.modules.tensors import check_tensor

# Versions of torch before 2.7 lack the first.
_is_exporting = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
#: The types of relations, the smallest first.
_INTEGERS = torch.uint8, torch.int16, torch.int32


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
    """

    def __init__(
        self,
        kind: str,
        num_labels: int = 0,
        words: Tensor | None = None,
        heads: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        self.kind, self.num_labels = kind, num_labels
        self.words, self.heads, self.labels = words, heads, labels
        trees = len(TREE_RELATIONS) + 2 * num_labels
        self.count = {"tree": trees, "sequence": NUM_BUCKETS, "both": trees * NUM_BUCKETS}[kind]
        self._pairs: Tensor | None = None
        self._masked: list[tuple[Tensor, Tensor]] = []  # of the masks of different layers

    def number(self) -> None:
        """Number the pairs of tokens before layers, which may be recomputed, read them.

        Without trees there is nothing to number; layers with biases then refuse the batch.
        """
        if self.words is not None:
            self._pairs = self._number(self.words.size(1))

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
        pairs = pairs[:, None]
        if pairs.shape[2:] != (queries, keys) or len(pairs) not in (1, batch):
            raise UserError(
                f"the batch has {batch} sentences of {keys} tokens, and src_words {len(pairs)} of "
                f"{pairs.size(2)}: pass src_words and src_heads of the same batch (collate)"
            )
        if mask is None:
            return pairs
        for known, numbers in self._masked:
            if known is mask:
                return numbers
        numbers = pairs.where(mask.to(pairs.device), self.count)
        if is_stored:
            self._masked.append((mask, numbers))
        return numbers

    def _number(self, tokens: int) -> Tensor:
        tree = buckets = device = None
        if self.kind != "sequence":
            words, heads, labels = self.words, self.heads, None
            if words is None or heads is None:
                raise UserError(
                    "this model has tree biases: pass src_words and src_heads (collate)"
                )
            if self.num_labels:
                labels = self.labels
                if labels is None:
                    raise UserError("this model has biases for labels: pass src_deprels (collate)")
            tree = _tree_relations(words, heads, labels, self.num_labels)
            tokens, device = words.size(1), words.device
        if self.kind != "tree":
            buckets = sentence_buckets(tokens, device)
        # One more number is for masked pairs.
        dtype = next(d for d in _INTEGERS if self.count <= torch.iinfo(d).max)
        if dtype == torch.int16 and _is_exporting():
            dtype = torch.int32  # onnxruntime chooses among no numbers of 16 bits
        return kinds_of_pairs(tree, buckets).to(dtype)


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
    what, where = {
        "src_words": ("word", "token"), "src_heads": ("head", "word"), "src_deprels": ("label", "word")
    }[name]  # fmt: skip
    limit = f"the sentence has {int(counts[row])} words"
    if what == "label":
        limit = f"the model has {num_labels} labels"
    number = int(parse[name][row, column])
    raise UserError(
        f"{name}: sentence {row}, {where} {column}: {what} {number}, and {limit}, from 0: make the "
        "parse by collate, with the labels of model.config.relation_bias"
    )
