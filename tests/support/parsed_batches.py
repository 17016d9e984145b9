"""Random batches with parses of every kind, and small models of every registered encoder for them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from fairseq_phrase.models.encoder_method import translation_encoders
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree

LABELS = ("one", "two", "three", "four")
SIZES = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 2}


def make_dictionary(words: int = 30) -> Dictionary:
    made = Dictionary()
    for number in range(words):
        made.add_symbol(f"w{number}")
    return made


def label_dictionary(field: str) -> Dictionary:
    made = Dictionary()
    for label in LABELS:
        made.add_symbol(f"{field}-{label}")
    return made


def build_model(name: str, dictionary: Dictionary, **options: Any) -> Any:
    """A small translation model in double precision, with random weights and without dropout."""
    torch.manual_seed(0)
    sizes = {
        f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SIZES.items()
    }
    methods = translation_encoders()
    if name in methods:
        cfg: Any = MODEL_DATACLASS_REGISTRY[name](**{**sizes, "dropout": 0.0, **options})
    else:
        cfg = Namespace(**{**sizes, "dropout": 0.0, **options})
    return _built(name, cfg, dictionary)


def build_recurrent(dictionary: Dictionary, **options: Any) -> Any:
    """A small recurrent translation model, as :func:`build_model` makes others."""
    torch.manual_seed(0)
    config = MODEL_DATACLASS_REGISTRY["seq2seq"]
    sizes = {f"{side}_embed_dim": 16 for side in ("encoder", "decoder")} | {
        "encoder_ffn_embed_dim": 24,
        "encoder_attention_heads": 2,
        "encoder_hidden_size": 12,
        "decoder_hidden_size": 10,
        "encoder_layers": 2,
        "decoder_layers": 2,
    }
    return _built("seq2seq", config(**{**sizes, "dropout": 0.0, **options}), dictionary)


def _built(name: str, cfg: Any, dictionary: Dictionary) -> Any:
    task = Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        label_dictionary=label_dictionary,
        require_parses=lambda fields: None,
    )
    model = ARCH_MODEL_REGISTRY[name].build_model(cfg, task)
    for parameter in model.parameters():
        # What starts at zero would hide what it multiplies.
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


def random_sentence(dictionary: Dictionary, subwords: int, seed: int) -> dict[str, torch.Tensor]:
    """One sentence of so many subwords with a random, perhaps non-projective tree."""
    generator = np.random.default_rng(seed)
    special = dictionary.nspecial
    tokens = generator.integers(special, len(dictionary), subwords + 1)
    tokens[-1] = dictionary.eos()
    words = np.r_[0, (generator.random(subwords - 1) < 0.7).cumsum()] if subwords else np.zeros(0)
    words = words.astype(np.int64)
    count = int(words[-1]) + 1 if subwords else 0
    heads = np.array([generator.integers(0, max(word, 1)) for word in range(count)], dtype=np.int64)
    # The words in another order, so that heads follow their dependents as well.
    order = generator.permutation(count)
    place = np.argsort(order)
    heads = place[heads[order]]
    labels = generator.integers(special, special + len(LABELS), (3, 4 * max(count, 1)))
    tree = ConstituencyTree.from_dependencies(DependencyTree(heads), ["x"] * count)
    split = np.flatnonzero(np.bincount(words, minlength=count) > 1)
    tree = tree.with_lower(split[:, None] + np.array([0, 1]), ["x"] * len(split))
    spans = np.column_stack([tree.spans, labels[0][: len(tree)]])
    # The tree's edges, and others between any words: several heads, parallel and opposite edges.
    ends = generator.integers(0, max(count, 1), (count, 2))
    ends = np.concatenate([np.column_stack([heads, np.arange(count)]), ends, ends[:2, ::-1]])
    of_edges = generator.integers(special, special + len(LABELS), len(ends))
    arrays = {
        "src_enhanced": np.column_stack([ends, of_edges]),
        "src_tokens": tokens,
        "src_words": np.r_[words, -1],
        "src_heads": heads,
        "src_deprels": labels[1][:count],
        "src_tags": labels[2][:count],
        "src_spans": spans,
    }
    return {name: torch.from_numpy(np.asarray(array, np.int64)) for name, array in arrays.items()}


def make_batch(
    dictionary: Dictionary, lengths: list[int], *, left: bool = False, extra: int = 0, seed: int = 7
) -> dict[str, torch.Tensor]:
    """Random sentences of so many subwords, padded, as an encoder's arguments.

    Args:
        dictionary: the source dictionary.
        lengths: of the sentences, in subwords without the end of sentence.
        left: pad the tokens on the left.
        extra: columns of padding more than are needed.
        seed: of the first sentence; the next ones count on.
    """
    rows = [random_sentence(dictionary, length, seed + i) for i, length in enumerate(lengths)]
    padded = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        by_token = name in ("src_tokens", "src_words")
        longest = max(map(len, values)) + (extra if by_token else 0)
        fill = dictionary.pad() if name == "src_tokens" else -1
        table = torch.full((len(rows), longest, *values[0].shape[1:]), fill)
        for row, value in zip(table, values, strict=True):
            start = longest - len(value) if left and by_token else 0
            row[start : start + len(value)] = value
        padded[name] = table
    return padded


def encode(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The encoder's states. Shape: (batch, nodes, width)."""
    return model.encoder(**inputs)["encoder_out"][0].transpose(0, 1)
