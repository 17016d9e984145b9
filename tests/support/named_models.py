"""Small encoders and models that are chosen by ``--encoder``, without commands."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY

from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.models.named_encoder import build_named_encoder
from fairseq_phrase.testing import SIZES, any_label_dictionary, randomized


def make_task(dictionary: Dictionary, **attributes: Any) -> Namespace:
    """What models ask of a task."""
    defaults = {"source_dictionary": dictionary, "target_dictionary": dictionary}
    defaults |= {"label_dictionary": any_label_dictionary, "require_parses": lambda fields: None}
    defaults |= {"require_structure": lambda key, make: None}
    defaults |= {"check_record": lambda record, use, without: None}
    defaults |= {"cfg": Namespace()}
    return Namespace(**{**defaults, **attributes})


def options(arch: str, **changed: Any) -> Any:
    """The options of a small model."""
    sizes = {f"encoder_{name}": value for name, value in SIZES.items()}
    return MODEL_DATACLASS_REGISTRY[arch](**{**sizes, "dropout": 0.0, **changed})


def build_encoder(
    name: str, dictionary: Dictionary, *, segments: bool = False, **changed: Any
) -> Any:
    """A small encoder in double precision, with random weights and without dropout."""
    torch.manual_seed(0)
    cfg = nested_config(options("pretrainer", encoder=name, **changed))
    cfg.relative_segments = segments  # as the pre-trainer sets it
    return randomized(build_named_encoder(cfg, make_task(dictionary), dictionary))
