"""The parses of a padded batch, as one validated object on its way from collater to encoder."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fairseq_phrase.store.fields import FIELDS

__all__ = ["ParseBatch"]

_PREFIX = "src_"


class ParseBatch:
    """The parses of a batch's sentences, a tensor for each field.

    fairseq's ``net_input`` carries the tensors by name, ``src_words`` for the field ``words``; an
    encoder takes them as this object.

    Args:
        tensors: by field (a name in :data:`fairseq_phrase.store.fields.FIELDS`), int64, padded with -1.
            Shape: ``(batch, subwords)``, ``(batch, words)`` or ``(batch, constituents, columns)``, as
            the field counts.

    Raises:
        ValueError: a field is unknown, or a tensor is not an integer tensor.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name not in FIELDS:
                raise ValueError(
                    f"unknown parse field {name!r}: expected one of {', '.join(FIELDS)}"
                )
            if tensor.is_floating_point():
                raise ValueError(f"{_PREFIX}{name} must hold integers, got {tensor.dtype}")
        self._tensors = dict(tensors)

    @classmethod
    def of_net_input(cls, net_input: Mapping[str, Tensor | None]) -> ParseBatch:
        """Take the parse out of an encoder's keyword arguments, ``src_words``, ``src_heads``, ….

        Raises:
            ValueError: see the class; also where an argument is no parse field.
        """
        return cls(
            {
                name.removeprefix(_PREFIX): tensor
                for name, tensor in net_input.items()
                if tensor is not None
            }
        )

    def __contains__(self, field: str) -> bool:
        """Tell whether the batch carries a field."""
        return field in self._tensors

    def __getitem__(self, field: str) -> Tensor:
        """Return a field's tensor.

        Raises:
            ValueError: the batch does not carry it.
        """
        if field not in self._tensors:
            raise ValueError(
                f"the batch carries no {field}: use --task syntax_translation, or pass "
                f"{_PREFIX}{field}"
            )
        return self._tensors[field]
