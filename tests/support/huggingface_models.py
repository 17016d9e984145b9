"""Small models of transformers, in folders as users have them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig
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
from transformers.integrations.peft import MIN_PEFT_VERSION
from transformers.utils import check_peft_version

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


#: Sizes of small models, by all the names that configurations have for them.
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "hidden_dim", "ffn_dim"), 24),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 128),
    **dict.fromkeys(("d_kv", "head_dim"), 8),
    **dict.fromkeys(("num_key_value_heads", "decoder_layers"), 1),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"), 8),
    "v_head_dim": 6,
    "word_embed_proj_dim": 16, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2, "type_vocab_size": 2,
}  # fmt: skip


def small_config(model_type: str, **options: object) -> transformers.PreTrainedConfig:
    """Make a small configuration of a type of transformers' models."""
    default = transformers.AutoConfig.for_model(model_type)
    option_names = default.to_dict().keys() | default.attribute_map.keys()
    sizes = {name: size for name, size in SIZES.items() if name in option_names}
    if "kv_lora_rank" in option_names:  # every head of queries has its own keys
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    return type(default)(**sizes | options)


def add_adapter_of_transformers(model: transformers.PreTrainedModel, config: LoraConfig) -> None:
    """Let transformers itself add an adapter, for which it needs a peft that it knows."""
    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError:
        pytest.skip(
            f"transformers {transformers.__version__} needs peft {MIN_PEFT_VERSION} or later"
        )
    model.add_adapter(config)


def write_model(model_type: str, folder: Path, lines: Iterable[str]) -> Path:
    """Write a model of random weights, with a tokenizer of its type."""
    folder.mkdir(parents=True)
    has_bytes = model_type in ("roberta", "distilbert", "bart", "gpt2")
    tokenizer = (tokenizer_of_bytes if has_bytes else tokenizer_of_metaspace)(lines)
    start = "" if model_type in ("t5", "mt5", "marian", "gpt2") else "<s> "
    names = [(name, SPECIAL.index(name)) for name in f"{start}</s>".split()]
    tokenizer.post_processor = TemplateProcessing(single=f"{start}$A </s>", special_tokens=names)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, cls_token=start.strip() or None,
        pad_token=None if model_type == "gpt2" else "<pad>", eos_token="</s>", unk_token="<unk>",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=tokenizer.get_vocab_size())
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


#: The model type of tokenizers' classes, the kind of their subword model, and its special tokens.
FAMILIES = {
    "NllbTokenizer": ("m2m_100", "BPE", SPECIAL),
    "MBart50Tokenizer": ("mbart", "Unigram", SPECIAL),
    "MBartTokenizer": ("mbart", "Unigram", SPECIAL),
    "XLMRobertaTokenizer": ("xlm-roberta", "Unigram", SPECIAL),
    "T5Tokenizer": ("t5", "Unigram", ["<pad>", "</s>", "<unk>"]),
    "LlamaTokenizer": ("llama", "BPE", ["<unk>", "<s>", "</s>"]),
    "GemmaTokenizer": ("gemma", "BPE", ["<pad>", "<eos>", "<bos>", "<unk>"]),
    "Qwen2Tokenizer": ("qwen2", "bytes", ["<|endoftext|>"]),
    "GPT2Tokenizer": ("gpt2", "bytes", ["<|endoftext|>"]),
    "XLNetTokenizer": ("xlnet", "Unigram", ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>"]),
}
#: The first token of released models whose tokenizers' classes add none by themselves.
_STARTS = {"LlamaTokenizer": "<s>", "GemmaTokenizer": "<bos>"}


def write_family(name: str, folder: Path, lines: Iterable[str]) -> Path:
    """Write a model of random weights, with a trained tokenizer of a family's own class."""
    model_type, kind, specials = FAMILIES[name]
    options = {"special_tokens": specials, "show_progress": False}
    if kind == "Unigram":
        trained = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(vocab_size=100, unk_token="<unk>", **options)
    else:
        trained = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(vocab_size=150, **options)
    split = pre_tokenizers.Metaspace()
    if kind == "bytes":
        split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # SentencePiece, which made most of them, leaves punctuation apart.
    trained.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Punctuation()])
    trained.train_from_iterator(lines, trainer)
    parts = json.loads(trained.to_str())["model"]
    vocabulary = {"vocab": parts["vocab"]}
    if kind == "Unigram":
        vocabulary = {"vocab": [tuple(entry) for entry in parts["vocab"]]}
    else:
        vocabulary["merges"] = [tuple(merge) for merge in parts["merges"]]
    tokenizer = getattr(transformers, name)(**vocabulary)
    if start := _STARTS.get(name):
        number = tokenizer.convert_tokens_to_ids(start)
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{start} $A", special_tokens=[(start, number)]
        )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=len(tokenizer))
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


def write_nllb(folder: Path, lines: Iterable[str]) -> Path:
    """Write an NLLB of random weights, with a tokenizer that is trained on lines."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=150, special_tokens=specials, show_progress=False)
    trained.train_from_iterator(lines, trainer)
    parts = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in parts["merges"]]
    tokenizer = transformers.NllbTokenizer(vocab=parts["vocab"], merges=merges)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = small_config("m2m_100", vocab_size=len(tokenizer))
    transformers.M2M100ForConditionalGeneration(config).save_pretrained(folder)
    return folder
