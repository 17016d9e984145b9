"""Small models of transformers, in folders as users have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, BertTokenizerFast

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "max_position_embeddings": 128}


def write_bert(folder: Path, lines: Iterable[str], **options: object) -> Path:
    """Write a BERT of random weights with a tokenizer that is trained on lines."""
    folder.mkdir(parents=True)
    trainer = BertWordPieceTokenizer()
    trainer.train_from_iterator(lines, vocab_size=120, show_progress=False)
    trainer.save_model(str(folder))
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    torch.manual_seed(0)
    size = trainer.get_vocab_size()
    BertModel(BertConfig(vocab_size=size, **BERT, **options)).save_pretrained(folder)
    return folder
