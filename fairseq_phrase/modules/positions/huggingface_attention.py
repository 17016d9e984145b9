"""An attention of transformers whose scores take biases for the relations of two tokens.

transformers calls a registered function for each attention of a model, and another that makes the mask.
:func:`attend` and :func:`make_mask` are ``sdpa``, except in an encoder whose self-attentions have a
``relation_bias``. There the mask is the relations of all pairs of tokens as small integers, with one more
number for masked pairs. It is made once per batch and shared by the layers, and gradient checkpointing
keeps it like every mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop_out
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.biased_attention import (
    biased_attention,
    pair_bias,
    scaled_scores,
)
from fairseq_phrase.modules.positions.relation_bias import (
    NUM_BUCKETS,
    TREE_RELATIONS,
    RelationBias,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
)
from fairseq_phrase.modules.positions.tree_positions import TreePositions
from fairseq_phrase.modules.tensors import check_tensor

#: The attention's name in transformers, which checks that a model has sdpa because the name contains it.
ATTENTION = "fairseq_phrase_sdpa"
#: The attention of :func:`self_attentions`.
PROBE = "fairseq_phrase_sdpa_probe"
_NUM_PROBED = 4
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

    def masked(self, mask: Tensor | None, batch: int, queries: int, keys: int) -> Tensor:
        """Number the pairs of tokens; masked pairs get the number of kinds.

        Args:
            mask: True where a query may attend; None for all. Shape: (batch or 1, 1, queries, keys)

        Returns:
            Shape: (batch or 1, 1, queries, keys), the smallest type of integers

        Raises:
            UserError: the batch's trees are missing, or come from another batch.
        """
        if self._pairs is None:
            self._pairs = self._number(queries)
        pairs = self._pairs[:, None]
        if pairs.shape[2:] != (queries, keys) or len(pairs) not in (1, batch):
            raise UserError(
                f"the batch has {batch} sentences of {keys} tokens, and src_words {len(pairs)} of "
                f"{pairs.size(2)}: pass src_words and src_heads of the same batch (collate)"
            )
        return pairs if mask is None else pairs.where(mask.to(pairs.device), self.count)

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


#: The relations of the batch that an encoder reads; None outside encoders.
_IN_ENCODER: ContextVar[BatchRelations | None] = ContextVar("relations in an encoder", default=None)
#: The attentions that were called, while :func:`self_attentions` looks for them.
_CALLS: ContextVar[list[Any]] = ContextVar("attentions that were called")


@contextmanager
def set_to(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Set a variable of this thread for a while."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def enter_encoder(relations: BatchRelations) -> None:
    """Let the attentions read the relations of a batch, until :func:`leave_encoder`."""
    _IN_ENCODER.set(relations)


def leave_encoder(*_: Any) -> None:
    """Restore transformers' own attentions; a forward hook."""
    _IN_ENCODER.set(None)


def register_attention() -> None:
    """Register the attentions and their mask in transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, function in ((ATTENTION, attend), (PROBE, _record)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, make_mask)


def make_mask(**options: Any) -> Any:
    """Make the mask of ``sdpa``; in an encoder with biases, :meth:`BatchRelations.masked`."""
    from transformers.masking_utils import sdpa_mask

    relations = _IN_ENCODER.get()
    if relations is None:
        return sdpa_mask(**options)
    # Without a mask of all pairs, there would be none to number; to find out waits for the device.
    mask: Any = sdpa_mask(
        **options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )
    sizes = (options[name] for name in ("batch_size", "q_length", "kv_length"))
    return relations.masked(mask, *sizes).to(options.get("device"))


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as ``sdpa``, with the biases of a module that has them.

    Args:
        module: the attention of a model.
        query: Shape: (batch, heads, queries, head width)
        key, value: a head may serve several heads of queries. Shape: (batch, key heads, keys, head width)
        attention_mask: from :func:`make_mask`.
        position_bias: the model's own biases (T5). Shape: (batch or 1, heads, queries, keys)

    Returns:
        The attended values, of shape (batch, queries, heads, head width), and None.
    """
    bias = getattr(module, "relation_bias", None)
    if bias is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        given = {"dropout": dropout, "scaling": scaling, "position_bias": position_bias, **options}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **given)
    if not _has_relations(attention_mask):
        raise UserError("with relation biases, attention_mask has the shape (batch, tokens)")
    relations = attention_mask[:, 0]  # type: ignore[index]
    key, value = (_for_queries(query, states) for states in (key, value))
    # Rows in which all pairs are masked would be NaN with -inf.
    table = pad(bias.table(), (0, 1), value=torch.finfo(query.dtype).min)
    added = pair_bias(table.to(query.dtype), relations)
    if position_bias is not None:
        added = added + position_bias
    if vectors := getattr(module, "relation_vectors", None):
        trees = relations.long() // (1 if bias.sequence_bias is None else NUM_BUCKETS)
        sides = vectors.key_vectors, vectors.value_vectors
        keys, values = (side.table().mT.to(query.dtype) for side in sides)
        attended = attend_with_vectors(
            query, key, value, added, trees, keys, values, dropout, scaling
        )
    else:
        attended, _ = biased_attention(query, key, value, added, dropout, scale=scaling)
    return attended.transpose(1, 2).contiguous(), None


def _for_queries(query: Tensor, states: Tensor) -> Tensor:
    """Repeat each head of keys or values for its heads of queries."""
    groups = query.size(1) // states.size(1)
    return states.repeat_interleave(groups, 1) if groups > 1 else states


def _has_relations(mask: Tensor | None) -> bool:
    return mask is not None and mask.dtype in _INTEGERS


def attend_with_vectors(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, relations: Tensor,
    keys: Tensor, values: Tensor, dropout: float = 0.0, scaling: float | None = None,
) -> Tensor:  # fmt: skip
    """Attend with a vector for each relation added to key and value (Shaw et al. 2018, eq. 3-4).

    Args:
        query, key, value: values may have another width than keys.
            Shape of each: (batch, heads, tokens, head width)
        bias: Shape: (batch or 1, heads, tokens, tokens)
        relations: number of each pair's relation; larger than all others where it is masked.
            Shape: (batch, tokens, tokens), int64
        keys, values: the vectors, which the heads share. Shape of each: (relations, head width)

    Returns:
        Shape: (batch, heads, tokens, head width of values)
    """
    index = relations.clamp(max=len(keys) - 1)[:, None].expand(*query.shape[:3], -1)
    scores = scaled_scores(query, key, scaling) + bias
    scores = scores + scaled_scores(query, keys, scaling).gather(3, index)
    weights = drop_out(scores.softmax(-1), dropout).to(value.dtype)
    of_relations = weights.new_zeros(*query.shape[:3], len(keys)).scatter_add(3, index, weights)
    return weights @ value + of_relations @ values


class AttentionSizes(NamedTuple):
    """The number of query heads of an attention, and the widths of a head's keys and values."""

    heads: int
    key_width: int
    value_width: int


class RelationVectors(nn.Module):
    """A vector for each relation in the tree, for keys and for values; the heads share them.

    peft finds the modules that an adapter changes by the ends of their names, such as ``.value``:
    the names of these modules must not be those of projections.
    """

    def __init__(self, sizes: AttentionSizes, num_labels: int) -> None:
        super().__init__()
        # A number for each relation and dimension, instead of each relation and head.
        self.key_vectors = RelationBias(sizes.key_width, "tree", num_labels)
        self.value_vectors = RelationBias(sizes.value_width, "tree", num_labels)

    def biases(self) -> list[Tensor]:
        """Return the parameters."""
        return self.key_vectors.biases() + self.value_vectors.biases()


def add_tables(
    module: nn.Module, sizes: AttentionSizes, kind: str, num_labels: int, vectors: bool
) -> None:
    """Add the biases to an attention, and with ``vectors`` a vector for each relation in the tree."""
    weight = next(p for p in module.parameters() if p.is_floating_point())  # others are quantized
    tables: dict[str, nn.Module] = {"relation_bias": RelationBias(sizes.heads, kind, num_labels)}
    if vectors:
        tables["relation_vectors"] = RelationVectors(sizes, num_labels)
    for name, table in tables.items():
        setattr(module, name, table.to(device=weight.device, dtype=weight.dtype))


#: Options of an attention function that ``sdpa`` does not have.
_NOT_IN_SDPA = {"softcap": "caps its scores", "s_aux": "has attention sinks"}


def _record(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, None]:
    """Record a call, and return the values."""
    _CALLS.get().append((module, query, key, value, attention_mask, options))
    return _for_queries(query, value).transpose(1, 2), None


def self_attentions(encoder: Any) -> dict[Any, AttentionSizes]:
    """Find an encoder's self-attentions and their sizes.

    The encoder reads four tokens, and transformers calls the attention :data:`PROBE`, which was set.

    Raises:
        UserError: the encoder cannot take biases, with the reason.
    """
    calls: list[Any] = []
    device = next(encoder.parameters()).device
    tokens = torch.ones(1, _NUM_PROBED, dtype=torch.long, device=device)
    training = encoder.training
    try:
        with (
            set_to(_CALLS, calls),
            set_to(_IN_ENCODER, BatchRelations("sequence")),
            torch.no_grad(),
        ):
            encoder.eval()(input_ids=tokens)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"its encoder does not read token numbers ({error})") from None
    finally:
        encoder.train(training)
    if not calls:
        raise UserError("its attention is not called by transformers' AttentionInterface")
    found = {}
    for module, query, key, value, mask, options in calls:
        name = type(module).__name__
        if (query.size(2), key.size(2)) != (_NUM_PROBED, _NUM_PROBED):
            raise UserError(f"{name} does not attend to all tokens")
        if not _has_relations(mask):
            raise UserError(f"{name} changes the mask")
        for option, reason in _NOT_IN_SDPA.items():
            if options.get(option) is not None:
                raise UserError(f"{name} {reason}")
        found[module] = AttentionSizes(query.size(1), key.size(3), value.size(3))
    return found
