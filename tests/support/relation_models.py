"""Small models of transformers with relation biases, a batch with trees, and relations in loops."""

from __future__ import annotations

import torch
from transformers import AutoModel

from fairseq_phrase.methods.relations.relation_bias import TREE_RELATIONS
from tests.support.huggingface_models import small_config

LABELS = ["det", "nsubj", "root"]
PARSE = {
    "src_words": torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, -1, -1, -1]]),
    "src_heads": torch.tensor([[1, 2, 2], [1, 1, -1]]),
    "src_deprels": torch.tensor([[0, 1, 2], [1, 2, 0]]),
}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
DROPOUTS = (
    "dropout", "dropout_rate", "attention_dropout", "activation_dropout", "hidden_dropout_prob",
    "hidden_dropout", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop", "resid_pdrop",
    "encoder_layerdrop", "decoder_layerdrop",
)  # fmt: skip


def made(model_type, auto_class=AutoModel, **options):
    small = small_config(model_type)
    options |= {name: 0.0 for name in DROPOUTS if hasattr(small, name)}
    # Larger weights than at the start: the functions differ by more than rounding.
    deviation = "init_std" if hasattr(small, "init_std") else "initializer_range"
    config = small_config(model_type, vocab_size=30, **{deviation: 0.3}, **options)
    torch.manual_seed(0)
    return auto_class.from_config(config).double().eval()


def inputs(model, left=False):
    """Two sentences, the second with padding; and their parse."""
    tokens = torch.arange(4, 16).view(2, 6) * MASK + (1 - MASK)
    batch = {"input_ids": tokens, "attention_mask": MASK, "src_words": PARSE["src_words"]}
    if left:
        batch = {n: torch.stack([rows[0], rows[1].roll(2)]) for n, rows in batch.items()}
    batch |= {name: PARSE[name] for name in ("src_heads", "src_deprels")}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.tensor([[2, 5, 6], [2, 7, 8]])
    return batch


def stock(batch):
    return {name: tensor for name, tensor in batch.items() if not name.startswith("src_")}


def states(model, batch):
    """The states of real tokens, of the decoder if there is one."""
    output = model(**batch)[0]
    return output if model.config.is_encoder_decoder else output[batch["attention_mask"].bool()]


def tables(model):
    return {n: p for n, p in model.named_parameters() if ".relation_" in n}


def moved(model):
    torch.manual_seed(3)
    for table in tables(model).values():
        torch.nn.init.normal_(table)
    return model


def gradients(model, *batches):
    """The gradients of a sum over several batches, whose forward passes come first."""
    model.zero_grad()
    outputs = [states(model, batch) for batch in batches]
    sum((out * out.detach().cos()).sum() for out in outputs).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relation(words, heads, labels, i, j):
    """The relation of token j to token i, and of a parent or child the label's number."""
    if i == j:
        return "same word", None
    if min(words[i], words[j]) < 0:
        return "no word", None
    query, key = words[i], words[j]
    if heads[query] == key != query:
        return "parent", labels[query]
    if heads[key] == query != key:
        return "child", len(LABELS) + labels[key]
    # The longer sentence is a chain of three words.
    return {0: "same word", 2: "ancestor 2", -2: "descendant 2"}[key - query], None


def number_of(table, row, name, label):
    number = table.tree_bias[row, TREE_RELATIONS.index(name)]
    return number if label is None else number + table.label_bias[row, label]


def bucket(offset):
    return abs(offset) + 16 * (offset > 0)


def words_of(row):
    return [None if word < 0 else word for word in PARSE["src_words"][row].tolist()]


class Tokenized:
    """What a fast tokenizer returns, as far as words go."""

    def word_ids(self, row):
        return words_of(row)
