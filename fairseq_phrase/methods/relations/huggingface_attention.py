"""An attention of transformers whose scores take biases for the relations of two tokens.

transformers calls a registered function for each attention of a model, and another that makes the mask.
:func:`attend` is ``sdpa``, except in an encoder whose self-attentions have a ``relation_bias``. There the
relations of the batch, :class:`BatchRelations`, are a keyword argument of all layers, which transformers
hands on to the attention. They become small integers, with one more number for masked pairs.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop_out
from torch.nn.functional import pad

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.biased_attention import (
    biased_attention,
    pair_bias,
    scaled_scores,
)
from fairseq_phrase.methods.relations.batch_relations import BatchRelations, LabelledEdges
from fairseq_phrase.methods.relations.relation_bias import NUM_BUCKETS, RelationBias

#: The attention's name in transformers, which checks that a model has sdpa because the name contains it.
ATTENTION = "fairseq_phrase_sdpa"
#: The attention of :func:`self_attentions`.
PROBE = "fairseq_phrase_sdpa_probe"
#: The keyword argument of a model's layers that has the relations of the batch.
RELATIONS = "token_relations"
#: The keyword argument of an attention with the cosines and sines of its rotation by positions.
ROTATION = "token_rotation"
_NUM_PROBED = 4
#: The attentions that were called, while :func:`self_attentions` looks for them.
_CALLS: ContextVar[list[Any]] = ContextVar("attentions that were called")


def register_attention() -> None:
    """Register the attentions and their masks in transformers."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    for name, attention, mask in ((ATTENTION, attend, make_mask), (PROBE, _record, _all_pairs)):
        AttentionInterface.register(name, attention)
        AttentionMaskInterface.register(name, mask)


def make_mask(config: Any = None, **options: Any) -> Any:
    """Make the mask of ``sdpa``.

    Without a mask, ``sdpa`` attends to all tokens or, in a decoder, to those before. With relations, an
    attention cannot know which; but the encoder of a model with a decoder attends to all.
    """
    from transformers.masking_utils import sdpa_mask

    if getattr(config, "is_encoder_decoder", False):
        return sdpa_mask(config=config, **options)
    return _all_pairs(config=config, **options)


def _all_pairs(**options: Any) -> Any:
    """Make the mask of ``sdpa``, also where it masks nothing; to find out waits for the device."""
    from transformers.masking_utils import sdpa_mask

    return sdpa_mask(
        **options | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    token_relations: BatchRelations | None = None,
    token_rotation: Any = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend as ``sdpa``, with the biases of a module that has them.

    Args:
        module: the attention of a model.
        query: Shape: (batch, heads, queries, head width)
        key, value: a head may serve several heads of queries. Shape: (batch, key heads, keys, head width)
        attention_mask: from :func:`make_mask`. Shape: (batch or 1, 1, queries, keys), bool
        position_bias: the model's own biases (T5). Shape: (batch or 1, heads, queries, keys)
        token_relations: the batch's relations, a keyword argument of all layers.
        token_rotation: from :func:`hand_on_rotation`.

    Returns:
        The attended values, of shape (batch, queries, heads, head width), and None.
    """
    bias = getattr(module, "relation_bias", None)
    if bias is None or (
        token_relations is not None and token_relations.without_queries(query.size(2))
    ):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, position_bias=position_bias, **options,
        )  # fmt: skip
    if token_relations is None:
        raise UserError("attentions with relation biases are called by their model or its encoder")
    if not _is_mask(attention_mask):
        raise UserError(
            "with relation biases, attention_mask has the shape (batch, tokens), or is boolean and has "
            "the shape (batch, 1, tokens, tokens)"
        )
    sizes = len(query), query.size(2), key.size(2)
    relations = token_relations.masked(attention_mask, *sizes)[:, 0].to(query.device)
    key, value = (_for_queries(query, states) for states in (key, value))
    edges, is_tree = token_relations.labelled, not token_relations.of_graph
    # Rows in which all pairs are masked would be NaN with -inf. The last number is for no relation.
    table = pad(bias.table(with_labels=is_tree), (0, 1), value=torch.finfo(query.dtype).min)
    table = pad(table, (0, 1))
    added = pair_bias(table.to(query.dtype), relations)
    if edges is not None:
        added = added + bias.edge_bias(edges.pairs).to(added.dtype)
    if position_bias is not None:
        added = added + position_bias
    if vectors := getattr(module, "relation_vectors", None):
        trees = relations.long() // (1 if bias.sequence_bias is None else NUM_BUCKETS)
        sides = vectors.key_vectors, vectors.value_vectors
        # The vectors of masked pairs, and of no relation, are 0.
        keys, values = (
            pad(side.table(with_labels=is_tree).mT, (0, 0, 0, 1)).to(query.dtype) for side in sides
        )
        of_edges = None
        if edges is not None:
            of_edges = EdgeVectors(edges, *(_label_vectors(side, edges, query) for side in sides))
        stationary = unrotated(module, query, token_rotation)
        attended = attend_with_vectors(
            query, stationary, key, value, added, trees, keys, values, dropout, scaling, of_edges
        )
    else:
        attended, _ = biased_attention(query, key, value, added, dropout, scale=scaling)
    return attended.transpose(1, 2).contiguous(), None


def _label_vectors(side: RelationBias, edges: LabelledEdges, query: Tensor) -> Tensor:
    """Look up the vectors of edges' labels, 0 at padding. Shape: (batch, 1, 2 edges, head width)."""
    assert side.label_bias is not None
    vectors: Tensor = pad(side.label_bias.mT, (0, 0, 0, 1)).to(query.dtype)
    return vectors[edges.labels][:, None]


class EdgeVectors(NamedTuple):
    """The vectors of the labels of a graph's edges, which are added to those of relations.

    Attributes:
        edges: the edges.
        keys, values: Shape of each: (batch, 1, 2 edges, head width)
    """

    edges: LabelledEdges
    keys: Tensor
    values: Tensor


def _for_queries(query: Tensor, states: Tensor) -> Tensor:
    """Repeat each head of keys or values for its heads of queries."""
    groups = query.size(1) // states.size(1)
    return states.repeat_interleave(groups, 1) if groups > 1 else states


def _is_mask(mask: Tensor | None) -> bool:
    return mask is None or (mask.dtype == torch.bool and mask.dim() == 4 and mask.size(1) == 1)


def hand_on_rotation(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Hand the rotation by positions, an argument of attentions, on to :func:`attend`."""
    if RELATIONS in kwargs and kwargs.get("position_embeddings") is not None:
        kwargs[ROTATION] = kwargs["position_embeddings"]
    return args, kwargs


def unrotated(module: Any, query: Tensor, rotation: Any) -> Tensor:
    """Undo the rotation of queries by positions (RoPE): what vectors add depends on relations only.

    Args:
        module: an attention. The function of its file rotates, in the layout of its columns.
        query: Shape: (batch, heads, queries, head width)
        rotation: cosines and sines of the first columns, or of the last (DeepSeek's latent attention),
            which may be scaled (YaRN); None if there is no rotation.
            Shape of each: (batch or 1, queries, columns)
    """
    if rotation is None:
        return query
    cosines, sines = rotation
    rotate = sys.modules[type(module).__module__].apply_rotary_pos_emb
    width, size = cosines.size(-1), query.size(-1)
    start = size - width if hasattr(module, "qk_rope_head_dim") else 0
    before, columns, after = query.split([start, width, size - start - width], -1)
    square = cosines * cosines + sines * sines
    columns, _ = rotate(columns, columns, cosines / square, -sines / square)
    return torch.cat((before, columns, after), -1)


def attend_with_vectors(
    query: Tensor, stationary: Tensor, key: Tensor, value: Tensor, bias: Tensor, relations: Tensor,
    keys: Tensor, values: Tensor, dropout: float = 0.0, scaling: float | None = None,
    labels: EdgeVectors | None = None,
) -> Tensor:  # fmt: skip
    """Attend with a vector for each relation added to key and value (Shaw et al. 2018, eq. 3-4).

    Args:
        query, key, value: values may have another width than keys.
            Shape of each: (batch, heads, tokens, head width)
        stationary: the queries for the vectors, before a rotation by positions. Its shape is the same.
        bias: Shape: (batch or 1, heads, tokens, tokens)
        relations: number of each pair's vectors; larger numbers have the last.
            Shape: (batch, tokens, tokens), int64
        keys, values: the vectors, which the heads share. Shape of each: (relations, head width)
        labels: the vectors of labels in graphs, where two words may have several edges.

    Returns:
        Shape: (batch, heads, tokens, head width of values)
    """
    index = relations.clamp(max=len(keys) - 1)[:, None].expand(*query.shape[:3], -1)
    scores = scaled_scores(query, key, scaling) + bias
    scores = scores + scaled_scores(stationary, keys, scaling).gather(3, index)
    if labels is not None:
        scores = scores + labels.edges.spread(scaled_scores(stationary, labels.keys, scaling))
    weights = drop_out(scores.softmax(-1), dropout).to(value.dtype)
    of_relations = weights.new_zeros(*query.shape[:3], len(keys)).scatter_add(3, index, weights)
    attended = weights @ value + of_relations @ values
    if labels is not None:
        attended = attended + labels.edges.collect(weights) @ labels.values
    return attended


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

    def __init__(self, sizes: AttentionSizes, num_labels: int, of_graph: bool = False) -> None:
        super().__init__()
        # A number for each relation and dimension, instead of each relation and head.
        options = "tree", num_labels, of_graph
        self.key_vectors = RelationBias(sizes.key_width, *options)
        self.value_vectors = RelationBias(sizes.value_width, *options)

    def biases(self) -> list[Tensor]:
        """Return the parameters."""
        return self.key_vectors.biases() + self.value_vectors.biases()


def add_tables(
    module: nn.Module,
    sizes: AttentionSizes,
    kind: str,
    num_labels: int,
    vectors: bool,
    of_graph: bool = False,
) -> None:
    """Add the biases to an attention, and with ``vectors`` a vector for each relation in the tree."""
    weight = next(p for p in module.parameters() if p.is_floating_point())  # others are quantized
    bias = RelationBias(sizes.heads, kind, num_labels, of_graph)
    tables: dict[str, nn.Module] = {"relation_bias": bias}
    if vectors:
        tables["relation_vectors"] = RelationVectors(sizes, num_labels, of_graph)
        module.register_forward_pre_hook(hand_on_rotation, with_kwargs=True)
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


def rotates(model: nn.Module) -> bool:
    """Return whether a model rotates queries and keys by positions (RoPE)."""
    return any("Rotary" in type(module).__name__ for module in model.modules())


def _check_rotation(module: Any, query: Tensor, rotation: Any) -> None:
    """Check for tokens at several positions that their queries without rotation are the same.

    Raises:
        UserError: the rotation is unknown, or an attention does not rotate by it.
    """
    try:
        query = unrotated(module, query, rotation)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        rotation = None
    tolerance = max(8 * torch.finfo(query.dtype).eps, 1e-4) * query.abs().max()
    difference = (query - query[:, :, :1]).abs().max()
    if rotation is None or not difference <= tolerance or tolerance == 0:
        raise UserError(
            f"{type(module).__name__} rotates queries by positions in a way that vectors cannot undo; "
            "with vectors=False, it takes biases"
        )


def self_attentions(encoder: Any, vectors: bool = False) -> dict[Any, AttentionSizes]:
    """Find an encoder's self-attentions and their sizes.

    The encoder reads two tokens, each four times, and transformers calls the attention :data:`PROBE`,
    which was set.

    Args:
        vectors: whether attentions are to have vectors of relations.

    Raises:
        UserError: the encoder cannot take biases, with the reason.
    """
    calls: list[Any] = []
    device = next(encoder.parameters()).device
    # The states of padding, which token 1 may be, are 0, and show no rotation.
    tokens = torch.tensor([[1], [2]], device=device).expand(-1, _NUM_PROBED)
    training = encoder.training
    variable = _CALLS.set(calls)
    hooks = [m.register_forward_pre_hook(hand_on_rotation, with_kwargs=True)
             for m in encoder.modules()]  # fmt: skip
    try:
        with torch.no_grad():
            encoder.eval()(input_ids=tokens, **{RELATIONS: BatchRelations("sequence")})
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if RELATIONS in str(error):
            raise UserError("its encoder gives its attention no keyword arguments") from None
        raise UserError(f"its encoder does not read token numbers ({error})") from None
    finally:
        _CALLS.reset(variable)
        for hook in hooks:
            hook.remove()
        encoder.train(training)
    if not calls:
        raise UserError("its attention is not called by transformers' AttentionInterface")
    sizes, is_rotary = {}, rotates(encoder)
    for module, query, key, value, mask, options in calls:
        name = type(module).__name__
        if (query.size(2), key.size(2)) != (_NUM_PROBED, _NUM_PROBED):
            raise UserError(f"{name} does not attend to all tokens")
        if mask is None or not _is_mask(mask):
            raise UserError(f"{name} changes the mask")
        if RELATIONS not in options:
            raise UserError(f"{name} gets no keyword arguments of the encoder")
        for option, reason in _NOT_IN_SDPA.items():
            if options.get(option) is not None:
                raise UserError(f"{name} {reason}")
        if vectors and (is_rotary or ROTATION in options):
            _check_rotation(module, query, options.get(ROTATION))
        sizes[module] = AttentionSizes(query.size(1), key.size(3), value.size(3))
    return sizes
