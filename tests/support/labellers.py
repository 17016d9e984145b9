"""Small labellers for tests."""

from __future__ import annotations

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from fairseq_phrase.testing import SIZES, any_label_dictionary, make_dictionary, randomized


def make_task(labelled, whole_words=False):
    labels = Dictionary()
    for number in range(5):
        labels.add_symbol(f"label{number}")
    return Namespace(
        cfg=Namespace(),
        source_dictionary=make_dictionary(),
        target_dictionary=labels,
        label_dictionary=any_label_dictionary,
        require_parses=lambda fields: None,
        require_structure=lambda key, make: None,
        check_record=lambda record, use, without: None,
        labelled=labelled,
        whole_words=whole_words,
    )


def build(labelled, name="transformer", task=None, **options):
    torch.manual_seed(0)
    sizes = {f"encoder_{key}": value for key, value in SIZES.items()}
    cfg = MODEL_DATACLASS_REGISTRY["labeller"](
        **{"encoder": name, "dropout": 0.0, **sizes, **options}
    )
    return randomized(ARCH_MODEL_REGISTRY["labeller"].build_model(cfg, task or make_task(labelled)))
