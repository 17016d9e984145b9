"""The parses of a padded batch: one validated object, passed from the collater to the encoder.

Values of a batch are computed in three steps:

1. The collater, in a worker process, pads each field of the parses to a tensor. If the encoder declares a
   ``batch_structure``, the collater also computes the tensors that need the host: lists of phrases, sizes
   of trees. They are stored with the fields (:data:`MADE`), and training steps do not wait for a GPU.
2. ``encoder.structure()``, once per batch, computes the structure that the layers attend with. It takes
   the collater's tensors (:meth:`ParseBatch.made`), or computes them itself where they are missing: at
   inference, and after R-Drop has repeated a batch.
3. Layers share the values computed from the structure. A property of the structure is computed when the
   first layer reads it (:class:`~fairseq_phrase.methods.common.tensors.cached_property`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_phrase.syntax.fields import FIELDS, PREFIX

#: The prefix of the names of tensors and numbers that the collater computed from parses.
MADE = f"{PREFIX}made."
#: The name of the size of their batch.
ROWS = f"{MADE}rows"
#: Computes tensors and numbers from a batch's tokens and parses, on the host.
MakeStructure = Callable[[Tensor, "ParseBatch"], Sequence[Any]]


def to_device(net_input: Mapping[str, Any], device: torch.device | str) -> dict[str, Any]:
    """Move the tensors of a batch to a device; the collater's numbers stay on the host."""
    return {
        name: value.to(device) if isinstance(value, Tensor) else value
        for name, value in net_input.items()
    }


class ParseBatch:
    """The parses of a batch's sentences, one tensor per field.

    fairseq's ``net_input`` carries the tensors by name: ``src_words`` for the field ``words``. An
    encoder receives them as this object.

    Other values, whose names begin with :data:`MADE`, were computed from the parses by the collater
    (``SyntaxEncoder.batch_structure``).

    Args:
        tensors: by field (a name in :data:`fairseq_phrase.syntax.fields.FIELDS`), int64, padded with -1.
            Shape: (batch, tokens), (batch, words), (batch, constituents, columns) or (batch, edges, 3),
            depending on the field.
        structures: by key and number (``KEY.0``), the tensors and numbers that the collater computed,
            which :meth:`made` returns.

    Raises:
        ValueError: a field is unknown, or a tensor has another type or shape than its field or than the
            other tensors.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], structures: Mapping[str, Any] | None = None
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
            # All fields have the same batch size. Fields over the same units have one length;
            # each graph has its own number of edges.
            counted = axes[:1] if row.per == "edge" else axes[:2]
            for axis, size in zip(counted, tensor.shape, strict=False):
                first_name, expected = sizes.setdefault(axis, (name, size))
                if size != expected:
                    raise ValueError(
                        f"{PREFIX}{name} has {axis} of size {size}, and {PREFIX}{first_name} {expected}"
                    )
        self._tensors = dict(tensors)
        self._structures = dict(structures or {})

    @classmethod
    def from_net_input(cls, net_input: Mapping[str, Any]) -> ParseBatch:
        """Take the parse out of an encoder's keyword arguments, ``src_words``, ``src_heads``, …."""
        fields: dict[str, Tensor] = {}
        structures: dict[str, Any] = {}
        for name, tensor in net_input.items():
            if tensor is not None:
                of = structures if name.startswith(MADE) else fields
                of[name.removeprefix(MADE).removeprefix(PREFIX)] = tensor
        # Code that repeats or selects rows, such as R-Drop, does not update the collater's tensors.
        rows = structures.pop(ROWS.removeprefix(MADE), None)
        if rows is not None and any(len(tensor) != rows for tensor in fields.values()):
            structures = {}
        return cls(fields, structures)

    def made(self, key: str) -> list[Any]:
        """Return what the collater computed under a key, in order; empty without it."""
        return [x for name, x in self._structures.items() if name.rpartition(".")[0] == key]

    def __contains__(self, field: str) -> bool:
        return field in self._tensors

    def __getitem__(self, field: str) -> Tensor:
        """Return a field's tensor.

        Raises:
            ValueError: the batch does not carry the field.
        """
        if field not in self._tensors:
            raise ValueError(
                f"the batch carries no {field}: use --task syntax_translation, or pass "
                f"{PREFIX}{field}"
            )
        return self._tensors[field]
