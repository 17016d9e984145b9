"""Checkpoints in the layout of older versions of fairseq and torch."""

from __future__ import annotations

import re
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

#: Options that fairseq 0.9 had under another name.
_RENAMED = {"stop_min_lr": "min_lr", "post_process": "remove_bpe"}
#: Options of a Transformer's training by the first versions of fairseq.
_FIRST = (
    "arch task criterion label_smoothing optimizer adam_betas adam_eps lr lr_scheduler warmup_updates "
    "min_lr weight_decay clip_norm data source_lang target_lang left_pad_source left_pad_target "
    "max_source_positions max_target_positions encoder_embed_dim encoder_ffn_embed_dim encoder_layers "
    "encoder_attention_heads decoder_embed_dim decoder_ffn_embed_dim decoder_layers "
    "decoder_attention_heads dropout share_decoder_input_output_embed share_all_embeddings seed "
    "sentence_avg save_dir"
)


class AverageMeter:
    """The meter of fairseq 0.9 in ``fairseq.meters``, a module that later versions lack."""

    def __init__(self):
        self.val, self.sum, self.count = 2.5, 5.0, 2


AverageMeter.__module__ = "fairseq.meters"


def write_old(checkpoint: Path, path: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a checkpoint of fairseq's Transformer as an older version of fairseq wrote it.

    Args:
        version: of fairseq. 0.10 has all options in a namespace. 0.9 also has meters, and 0.5 has other
            names of parameters and fewer options. These two are written with torch's format before 1.6.
    """
    state = torch.load(checkpoint, weights_only=True)
    state["args"] = old_options(state.pop("cfg")["model"])
    del state["task_state"]
    if version != "0.10":
        with monkeypatch.context() as context:
            module = ModuleType("fairseq.meters")
            module.AverageMeter = AverageMeter  # type: ignore[attr-defined]
            context.setitem(__import__("sys").modules, "fairseq.meters", module)
            extra = state["extra_state"]
            del extra["metrics"], extra["previous_training_time"]
            extra["train_meters"] = OrderedDict(train_loss=AverageMeter())
            if version == "0.5":
                state["model"] = old_parameters(state["model"])
                state["args"] = first_options(state["args"])
            torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        torch.save(state, path)
    return path


def old_options(options: Any) -> Namespace:
    """Return all options of a training in one namespace.

    Args:
        options: those of a model without a data class, which include the options of all parts.
    """
    old = Namespace(**{_RENAMED.get(name, name): value for name, value in vars(options).items()})
    del old._name
    old.lr = old.lr[0]
    return old


def first_options(options: Namespace) -> Namespace:
    """Return the options that the first versions of fairseq had."""
    return Namespace(
        **{name: value for name, value in vars(options).items() if name in _FIRST.split()}
    )


def old_parameters(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join the projections of an attention, and number the layer norms."""
    norms = {
        "encoder": ["self_attn_layer_norm", "final_layer_norm"],
        "decoder": ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"],
    }
    old: dict[str, torch.Tensor] = {}
    for name, value in parameters.items():
        if projection := re.fullmatch(r"(.*attn\.)q_proj\.(weight|bias)", name):
            prefix, kind = projection.groups()
            parts = [parameters[f"{prefix}{part}_proj.{kind}"] for part in "qkv"]
            old[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
        elif norm := re.fullmatch(r"((\w+)\.layers\.\d+\.)(\w+_layer_norm)(\.\w+)", name):
            old[f"{norm[1]}layer_norms.{norms[norm[2]].index(norm[3])}{norm[4]}"] = value
        elif not re.search(r"attn\.[kv]_proj\.", name):
            old[name] = value
    return old
