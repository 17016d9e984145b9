"""Small PhraseTransformers, and batches for them."""

from __future__ import annotations

from argparse import Namespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

WORDS = 30


PhraseTransformerConfig = MODEL_DATACLASS_REGISTRY["phrase_transformer"]


def build(dictionary: Dictionary, task=None, **options):
    """A small model with random weights, in double precision and without dropout."""
    torch.manual_seed(0)
    sizes = {"embed_dim": 8, "ffn_embed_dim": 16, "attention_heads": 2, "layers": 2}
    small = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    cfg = PhraseTransformerConfig(**{**small, "dropout": 0.0, **options})
    task = task or Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=lambda field: range(10),
        require_parses=lambda _: None,
        require_structure=lambda key, make: None,
    )
    model = ARCH_MODEL_REGISTRY["phrase_transformer"].build_model(cfg, task)
    return model.double().eval()


def batch(dictionary: Dictionary, lengths: list[int], *, left: bool = False, extra: int = 0):
    """Random sentences of so many words and an end of sentence, padded; with words and heads."""
    generator = torch.Generator().manual_seed(sum(lengths))
    width = max(lengths) + 1 + extra
    tokens = torch.full((len(lengths), width), dictionary.pad())
    words = torch.full((len(lengths), width), -1)
    heads = torch.full((len(lengths), max(lengths)), -1)
    for row, length in enumerate(lengths):
        start = width - length - 1 if left else 0
        drawn = torch.randint(dictionary.nspecial, len(dictionary), (length,), generator=generator)
        tokens[row, start : start + length] = drawn
        tokens[row, start + length] = dictionary.eos()
        count = max(1, length - 2)  # the first word has up to three subwords
        of_word = torch.arange(length) - (length - count)
        words[row, start : start + length] = of_word.clamp(min=0)
        heads[row, :count] = torch.tensor(
            [0] + [int(torch.randint(0, word, (), generator=generator)) for word in range(1, count)]
        )
    return {"src_tokens": tokens, "src_words": words, "src_heads": heads}


def encode(model, inputs):
    return model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)
