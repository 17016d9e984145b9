"""The parses of a padded batch: one validated object that goes from the collater to the encoder.

What is computed for a batch, and where:

1. The collater, in a worker process, pads each field of the parses to a tensor. If the encoder declares a
   ``batch_structure``, the collater also makes the tensors that need the host: lists of phrases, sizes of
   trees. They travel with the fields (:data:`MADE`), so that no training step waits for a GPU.
2. ``encoder.structure()``, once per batch, makes what the layers attend with. It takes the made tensors
   (:meth:`ParseBatch.made`), or makes them itself where they are missing: at inference, after R-Drop has
   repeated a batch, in an ensemble of models with different trees.
3. Layers share what follows from the structure. A property of the structure is computed when the first
   layer asks for it (:class:`~fairseq_phrase.modules.tensors.kept`); what follows from a plain tensor is
   remembered with it (:func:`~fairseq_phrase.modules.tensors.made_once`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fairseq_phrase.modules.tensors import carried
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

#: What the names of tensors begin with that the collater has made of parses.
MADE = f"{PREFIX}made."
#: The size of the batch that they were made of, in a carrier.
ROWS = f"{MADE}rows"
#: Makes tensors of a batch's tokens and parses, on the host.
MakeStructure = Callable[[Tensor, "ParseBatch"], Sequence[Tensor]]


class ParseBatch:
    """The parses of a batch's sentences, a tensor for each field.

    fairseq's ``net_input`` carries the tensors by name: ``src_words`` for the field ``words``. An
    encoder receives them as this object.

    Further tensors, whose names begin with :data:`MADE`, are what the collater has made of the parses
    (``SyntaxEncoder.batch_structure``).

    Args:
        tensors: by field (a name in :data:`fairseq_phrase.syntax.fields.FIELDS`), int64, padded with -1.
            Shape: (batch, tokens), (batch, words), (batch, constituents, columns) or (batch, edges, 3),
            as the field counts.

        made: by name, what the collater has made.

    Raises:
        ValueError: a field is unknown, or a tensor has another type or shape than its field or than the
            other tensors.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], made: Mapping[str, Tensor] | None = None
    ) -> None:
        sizes: dict[str, tuple[str, int]] = {}
        for name, tensor in tensors.items():
            if name not in FIELDS:
                raise ValueError(
                    f"unknown parse field {name!r}: expected one of {', '.join(FIELDS)}"
                )
            row = FIELDS[name]
            items = "tokens" if row.per == "subword" else f"{row.per}s"
            axes = ["batch", items, *([str(row.columns)] if row.columns > 1 else [])]
            shape = f"({', '.join(axes)})"
            if tensor.dtype != torch.int64 or tensor.dim() != len(axes):
                raise ValueError(
                    f"{PREFIX}{name}: expected int64 of shape {shape}, got {tensor.dtype} of shape "
                    f"{tuple(tensor.shape)}"
                )
            if row.columns > 1 and tensor.size(-1) != row.columns:
                raise ValueError(
                    f"{PREFIX}{name}: expected shape {shape}, got {tuple(tensor.shape)}"
                )
            # All fields have the same batch size. Fields that count the same things have one length;
            # each graph has its own number of edges.
            counted = axes[:1] if row.per == "edge" else axes[:2]
            for axis, size in zip(counted, tensor.shape, strict=False):
                other, expected = sizes.setdefault(axis, (name, size))
                if size != expected:
                    raise ValueError(
                        f"{PREFIX}{name} has {axis} of size {size}, and {PREFIX}{other} {expected}"
                    )
        self._tensors = dict(tensors)
        self._made = dict(made or {})

    @classmethod
    def from_net_input(cls, net_input: Mapping[str, Tensor | None]) -> ParseBatch:
        """Take the parse out of an encoder's keyword arguments, ``src_words``, ``src_heads``, …."""
        fields: dict[str, Tensor] = {}
        made: dict[str, Tensor] = {}
        for name, tensor in net_input.items():
            if tensor is not None and "/" not in name:  # "/": heads of another model of an ensemble
                of = made if name.startswith(MADE) else fields
                of[name.removeprefix(MADE).removeprefix(PREFIX)] = tensor
        # Whoever repeats or takes rows of a batch, such as R-Drop, knows nothing of what was made of it.
        rows = made.pop(ROWS.removeprefix(MADE), None)
        if rows is not None and any(len(tensor) != carried(rows) for tensor in fields.values()):
            made = {}
        return cls(fields, made)

    def made(self, key: str) -> list[Tensor]:
        """Return the tensors that the collater has made under a key, in their order; else none."""
        return [tensor for name, tensor in self._made.items() if name.rpartition(".")[0] == key]

    def __contains__(self, field: str) -> bool:
        return field in self._tensors

    def __getitem__(self, field: str) -> Tensor:
        """Return a field's tensor.

        Raises:
            ValueError: the batch does not carry it.
        """
        if field not in self._tensors:
            raise ValueError(
                f"the batch carries no {field}: use --task syntax_translation, or pass "
                f"{PREFIX}{field}"
            )
        return self._tensors[field]
