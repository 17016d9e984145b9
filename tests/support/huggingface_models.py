"""Small models of transformers, in folders as users have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
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


def write_model(kind: str, folder: Path, lines: Iterable[str]) -> Path:
    """Write a model of random weights whose tokenizer cuts bytes, as those of RoBERTa and BART.

    Args:
        kind: the name of its configuration's class without ``Config``.
    """
    folder.mkdir(parents=True)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(lines, 290, special_tokens=special, show_progress=False)
    start = "" if kind == "T5" else "<s> "
    names = [(name, special.index(name)) for name in f"{start}</s>".split()]
    trainer.post_processor = TemplateProcessing(single=f"{start}$A </s>", special_tokens=names)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=trainer._tokenizer, cls_token=start.strip() or None,
        pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    sizes = {
        "Roberta": BERT | {"type_vocab_size": 1},
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        "Bart": {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1}
        | {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
        | {f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")},
        "T5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=trainer.get_vocab_size(), pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes
    )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder
