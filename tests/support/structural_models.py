"""Small structural-position Transformers, and batches for them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from torch import Tensor

#: The nine models of the paper's table 1, by their number.
TABLE_1: dict[str, dict[str, Any]] = {
    "1": {"no_sequential_absolute": True},
    "2": {"no_sequential_absolute": True, "structural_absolute": True},
    "3": {"no_sequential_absolute": True, "structural_relative": True},
    "4": {},
    "5": {"structural_absolute": True},
    "6": {"structural_absolute": True, "structural_relative": True},
    "7": {"sequential_relative": True},
    "8": {"sequential_relative": True, "structural_absolute": True},
    "9": {"sequential_relative": True, "structural_absolute": True, "structural_relative": True},
}


def config(**options):
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    return MODEL_DATACLASS_REGISTRY["structural_transformer"](
        **{**small, "dropout": 0.0, **options}
    )


def build(dictionary: Dictionary, task=None, **options):
    """A small model with random weights, in double precision and without dropout."""
    torch.manual_seed(0)
    task = task or Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=lambda field: range(10),
        require_parses=lambda _: None,
        require_structure=lambda key, make: None,
    )
    model = ARCH_MODEL_REGISTRY["structural_transformer"].build_model(config(**options), task)
    return model.double().eval()


#: Heads of non-projective trees, and the number of subwords of each word.
HEADS = [[2, 3, 2, 2, 0], [0], [1, 2, 2, 0]]


SUBWORDS = [[1, 2, 1, 1, 3], [2], [1, 1, 1, 1]]


def batch(dictionary: Dictionary, rows=(0, 1, 2), *, left: bool = False, extra: int = 0):
    """The sentences above with their end, padded; every token another word of the dictionary."""
    generator = torch.Generator().manual_seed(1)
    drawn = [
        torch.randint(dictionary.nspecial, len(dictionary), (sum(counts),), generator=generator)
        for counts in SUBWORDS
    ]
    width = max(len(drawn[row]) for row in rows) + 1 + extra
    tokens = torch.full((len(rows), width), dictionary.pad())
    words = torch.full((len(rows), width), -1)
    heads = torch.full((len(rows), max(len(HEADS[row]) for row in rows)), -1)
    for place, row in enumerate(rows):
        length = len(drawn[row])
        start = width - length - 1 if left else 0
        tokens[place, start : start + length] = drawn[row]
        tokens[place, start + length] = dictionary.eos()
        of_word = [word for word, count in enumerate(SUBWORDS[row]) for _ in range(count)]
        words[place, start : start + length] = torch.tensor(of_word)
        heads[place, : len(HEADS[row])] = torch.tensor(HEADS[row])
    return {"src_tokens": tokens, "src_words": words, "src_heads": heads}


def encode(model, inputs) -> Tensor:
    return model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)
