"""Loading of fairseq's checkpoints, old and new, by torch 2.6 and later, without code in them."""

from __future__ import annotations

import argparse
import collections
import importlib
import re
import typing
from collections.abc import Container, Mapping
from typing import Any

import numpy as np
import torch
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.distributed.utils import _TensorPlaceholder
from omegaconf import base, dictconfig, listconfig, nodes


def make_checkpoints_loadable() -> None:
    """Register the classes in a fairseq checkpoint; none of them runs code when it is loaded.

    torch 2.6 and later load checkpoints with ``weights_only=True``, which allows only tensors and
    registered classes. fairseq's checkpoints also contain the configuration and meters.
    """
    torch.serialization.add_safe_globals([
        argparse.Namespace, collections.OrderedDict, collections.defaultdict, dict, list, int,
        typing.Any, dictconfig.DictConfig, listconfig.ListConfig, base.ContainerMetadata,
        base.Metadata, nodes.AnyNode, nodes.BooleanNode, nodes.EnumNode, nodes.FloatNode,
        nodes.IntegerNode, nodes.InterpolationResultNode, nodes.StringNode, _TensorPlaceholder,
        *_numpy_reconstruction(), *_old_meters(),
    ])  # fmt: skip


def _old_meters() -> list[tuple[Any, str]]:
    """The meters of fairseq 0.9 and older, under names that fairseq 0.12 neither has nor reads.

    An ordered dictionary takes a meter's attributes, and is saved again without these names.
    """
    names = ("AverageMeter", "StopwatchMeter", "TimeMeter")
    return [(collections.OrderedDict, f"fairseq.meters.{name}") for name in names]


def _numpy_reconstruction() -> list[Any]:
    """The functions and types that restore NumPy scalars and arrays."""
    core = importlib.import_module("numpy._core.multiarray")
    dtypes = {type(np.dtype(code)) for code in "?bBhHiIlLqQefd"}
    # NumPy 1 pickles these under numpy.core, NumPy 2 under numpy._core; both names are read.
    functions = [
        (function, f"numpy.{module}.multiarray.{name}")
        for name, function in (("scalar", core.scalar), ("_reconstruct", core._reconstruct))
        for module in ("core", "_core")
    ]
    return [np.ndarray, np.dtype, *dtypes, *functions]


def override_options(state: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set options of a loaded checkpoint by name, in every section.

    Checkpoints of fairseq 0.10 and older have all options in ``args``. fairseq reads this namespace, not
    the ``cfg`` that it makes of it.
    """
    if state.get("args") is not None:
        vars(state["args"]).update(overrides)
    if state.get("cfg") is not None:
        overwrite_args_by_name(state["cfg"], dict(overrides))
        segmenter = state["cfg"].get("bpe")
        if isinstance(segmenter, dictconfig.DictConfig):  # fairseq skips options that are missing
            names = set(segmenter.keys()) & set(overrides)
            segmenter.update({str(name): overrides[str(name)] for name in names})


def rename_old_parameters(saved: dict[str, torch.Tensor], model_names: Container[str]) -> None:
    """Rename parameters of a Transformer of fairseq 0.8 and older.

    fairseq does so for its own classes, in whole models. Before 0.9 an attention had one matrix for
    queries, keys and values; before 0.6 a layer numbered its layer norms.

    Args:
        saved: a checkpoint's parameters, by name; changed.
        model_names: the names of the model's parameters. A name that the model has is kept.
    """
    for name in [name for name in saved if name not in model_names]:
        if joined := _JOINED.fullmatch(name):
            projections = [f"{joined[1]}{part}_proj.{joined[2]}" for part in "qkv"]
            if all(projection in model_names for projection in projections):
                saved.update(zip(projections, saved.pop(name).chunk(3), strict=True))
        elif norm := _NUMBERED_NORM.fullmatch(name):
            blocks = _NORMS_OF[norm[2]]
            saved[f"{norm[1]}{blocks[int(norm[3])]}_layer_norm.{norm[4]}"] = saved.pop(name)


_JOINED = re.compile(r"(.*\.)in_proj_(weight|bias)")
_NUMBERED_NORM = re.compile(
    r"((encoder|decoder)\.layers\.\d+\.)layer_norms\.([012])\.(weight|bias)"
)
_NORMS_OF = {
    "encoder": ("self_attn", "final"),
    "decoder": ("self_attn", "encoder_attn", "final"),
}
