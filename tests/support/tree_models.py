"""Small tree Transformers, and batches for them."""

from __future__ import annotations

from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from tests.support.tree_strategies import Tree, chain, flat, grown, unary

FOREST = [grown(6, 5, 4), Tree(1, [], [-1]), unary(3, 2), chain(3), flat(4)]


def labels() -> Dictionary:
    dictionary = Dictionary()
    for name in ("NP", "VP", "S"):
        dictionary.add_symbol(name)
    return dictionary


def build(dictionary: Dictionary, task=None, **options):
    """A small model with random weights, in double precision and without dropout."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    cfg = MODEL_DATACLASS_REGISTRY["tree_transformer"](**{**small, "dropout": 0.0, **options})
    task = task or Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=lambda field: labels(),
        require_parses=lambda _: None,
        require_structure=lambda key, make: None,
    )
    model = ARCH_MODEL_REGISTRY["tree_transformer"].build_model(cfg, task)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    return model.double().eval()


def batch(dictionary, forest, *, left=False, extra=0):
    """Random sentences with an end of sentence, padded; every leaf a word."""
    generator = torch.Generator().manual_seed(len(forest))
    width = max(tree.leaves for tree in forest) + 1 + extra
    tokens = torch.full((len(forest), width), dictionary.pad())
    words = torch.full((len(forest), width), -1)
    constituents = max(len(tree.parents) for tree in forest) + extra
    spans = torch.full((len(forest), constituents, 3), -1)
    for row, tree in enumerate(forest):
        n = tree.leaves
        start = width - n - 1 if left else 0
        drawn = torch.randint(dictionary.nspecial, len(dictionary), (n,), generator=generator)
        tokens[row, start : start + n] = drawn
        tokens[row, start + n] = dictionary.eos()
        words[row, start : start + n] = torch.arange(n)
        for node, span in enumerate(tree.spans):
            spans[row, node] = torch.tensor([*span, dictionary.nspecial + node % 3])
    return {"src_tokens": tokens, "src_words": words, "src_spans": spans}


def of_sentence(inputs, row, tree):
    """One sentence of a batch, without padding."""
    return {
        "src_tokens": inputs["src_tokens"][row : row + 1, : tree.leaves + 1],
        "src_words": inputs["src_words"][row : row + 1, : tree.leaves + 1],
        "src_spans": inputs["src_spans"][row : row + 1, : len(tree.parents)],
    }


KINDS = {
    "paper": {},
    "released": {"tree_convention": "released"},
    "no embeddings": {"no_hierarchical_embeddings": True},
    "no masking": {"no_subtree_masking": True},
    "neither": {"no_hierarchical_embeddings": True, "no_subtree_masking": True},
    "encoder only": {"tree_encoder_only": True},
    "one label, small tables": {
        "tree_one_label": True, "tree_max_vertical": 2, "tree_max_horizontal": 2,
    },
    "pre-norm, layer norm on embeddings": {
        "encoder_normalize_before": True, "decoder_normalize_before": True,
        "layernorm_embedding": True,
    },
}  # fmt: skip


each_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS.keys())
