"""A checkpoint's parameters against those of a model: sizes, and parameters that are shared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from fairseq_phrase.errors import UserError


def check_sizes(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], path: str | Path
) -> None:
    """Check that the parameters of a checkpoint have the sizes of a model.

    Args:
        saved: the checkpoint's parameters, by name.

    Raises:
        UserError: the number of layers, the dictionary or another size differs.
    """
    for side in ("encoder", "decoder"):
        layer = re.compile(rf"{side}\.layers\.(\d+)\.")
        before, now = (
            max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)
            for names in (saved, parameters)
        )
        if before != now and before and now:
            raise UserError(
                f"{path}: its {side} has {before} layers, and here {now}: give --{side}-layers {before}"
            )
    for name in sorted(saved.keys() & parameters.keys()):
        old, new = tuple(saved[name].shape), tuple(parameters[name].shape)
        if old == new:
            continue
        if name.endswith("embed_tokens.weight") and old[1] == new[1]:
            raise UserError(
                f"{path}: {name} has {old[0]} entries, and the dictionary here has {new[0]}: make the "
                "data with its dictionary (--srcdict, --tgtdict)"
            )
        raise UserError(
            f"{path}: {name} has the shape {old}, and here {new}: give the sizes of that training "
            "(--encoder-embed-dim, --encoder-ffn-embed-dim, …), and make the data with its dictionary "
            "(--srcdict)"
        )


def check_ties(
    saved: Mapping[str, Tensor], parameters: Mapping[str, Tensor], path: str | Path
) -> None:
    """Check that parameters of a checkpoint are equal where a model shares one parameter.

    Args:
        saved: the checkpoint's parameters, by name.
        parameters: the model's parameters; shared parameters have the same memory.

    Raises:
        UserError: the values differ; the last one loaded would overwrite the others.
    """
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    for name, value in parameters.items():
        if name not in saved or not value.numel() or value.is_meta:
            continue
        memory = value.data_ptr()
        if saved[name].data_ptr() == memory:  # not of a checkpoint
            continue
        first_name = first.setdefault((memory, tuple(value.shape)), name)
        values, other_values = saved[name], saved[first_name]
        if values.data_ptr() != other_values.data_ptr() and not torch.equal(values, other_values):
            raise UserError(
                f"{path}: {first_name} and {name} have different values, and here they are one "
                "parameter: leave out --share-all-embeddings, --share-decoder-input-output-embed and "
                "other options that share parameters, as that training did"
            )
