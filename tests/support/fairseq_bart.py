"""Small checkpoints of fairseq's BART and mBART, in folders as the public ones."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from tokenizers import ByteLevelBPETokenizer

SIZE = {"embed_dim": 16, "ffn_embed_dim": 24, "attention_heads": 2, "layers": 1}


def write_bart(folder: Path, text: Path) -> Path:
    """Write ``encoder.json``, ``vocab.bpe``, ``dict.txt`` and ``model.pt``.

    Args:
        text: the file that the BPE is trained on.
    """
    folder.mkdir(exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train([str(text)], 320, special_tokens=[], show_progress=False)
    tokenizer.save_model(str(folder))
    encoder = json.loads((folder / "vocab.json").read_text())
    encoder["<|endoftext|>"] = len(encoder)
    (folder / "encoder.json").write_text(json.dumps(encoder))
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    entries = [f"{number} 1" for number in encoder.values()] + ["madeupword0000 0"]
    (folder / "dict.txt").write_text("\n".join(entries) + "\n")
    write_checkpoint(folder, "bart_base", ["<mask>"])
    return folder


def write_checkpoint(folder: Path, arch: str, added: Iterable[str]) -> torch.Tensor:
    """Write ``model.pt`` of random weights.

    Args:
        added: the entries that the task adds to ``dict.txt``.

    Returns:
        Its embeddings.
    """
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    for symbol in added:
        dictionary.add_symbol(symbol)
    sizes = {f"{side}_{key}": v for side in ("encoder", "decoder") for key, v in SIZE.items()}
    args = Namespace(arch=arch, task="denoising", data="", **sizes)
    args.max_source_positions = args.max_target_positions = 128
    ARCH_CONFIG_REGISTRY[arch](args)
    torch.manual_seed(0)
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = ARCH_MODEL_REGISTRY[arch].build_model(args, task)
    torch.save({"args": args, "model": model.state_dict()}, folder / "model.pt")
    return model.encoder.embed_tokens.weight.detach()
