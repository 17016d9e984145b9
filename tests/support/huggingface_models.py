"""Small models of transformers, in folders as users have them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from tokenizers import (
    BertWordPieceTokenizer,
    ByteLevelBPETokenizer,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertModel, BertTokenizerFast

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "max_position_embeddings": 128}
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


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


def tokenizer_of_bytes(lines: Iterable[str]) -> Tokenizer:
    """Train a tokenizer as that of RoBERTa and BART."""
    trainer = ByteLevelBPETokenizer()
    trainer.train_from_iterator(lines, 290, special_tokens=SPECIAL, show_progress=False)
    return trainer._tokenizer


def tokenizer_of_metaspace(lines: Iterable[str], scheme: str = "always") -> Tokenizer:
    """Train a tokenizer as that of XLM-R and T5, whose words begin with ``▁``."""
    tokenizer = Tokenizer(models.Unigram())
    metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    splits = [pre_tokenizers.WhitespaceSplit()] * (scheme == "always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    # SentencePiece, which made theirs, leaves punctuation apart.
    marks = pre_tokenizers.Punctuation()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, metaspace, marks])
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, metaspace])
    return tokenizer


def write_model(kind: str, folder: Path, lines: Iterable[str]) -> Path:
    """Write a model of random weights, with its kind's tokenizer.

    Args:
        kind: the name of its configuration's class without ``Config``.
    """
    folder.mkdir(parents=True)
    has_bytes = kind in ("Roberta", "DistilBert", "Bart")
    tokenizer = (tokenizer_of_bytes if has_bytes else tokenizer_of_metaspace)(lines)
    start = "" if kind in ("T5", "MT5", "Marian") else "<s> "
    names = [(name, SPECIAL.index(name)) for name in f"{start}</s>".split()]
    tokenizer.post_processor = TemplateProcessing(single=f"{start}$A </s>", special_tokens=names)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=start.strip() or None,
        pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    sequence = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1}
    for side in ("encoder", "decoder"):
        sequence |= {f"{side}_attention_heads": 2, f"{side}_ffn_dim": 24}
    t5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    sizes = {
        **dict.fromkeys(("Roberta", "XLMRoberta"), BERT | {"type_vocab_size": 1}),
        "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24},
        **dict.fromkeys(("Bart", "Marian"), sequence),
        **dict.fromkeys(("T5", "MT5"), t5),
    }[kind]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=tokenizer.get_vocab_size(),
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **sizes,
    )
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder
