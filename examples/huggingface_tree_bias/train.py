"""A BERT that tags words and reads trees. Replace the two lines that make it to load your own."""

import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForTokenClassification,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

from fairseq_phrase.huggingface import add_relation_bias, collate, from_pretrained

WORDS = [["the", "dog", "barks"], ["dogs", "bark"]]
PARSES = [([1, 2, 2], ["det", "nsubj", "root"]), ([1, 1], ["nsubj", "root"])]
LABELS = ["det", "nsubj", "root"]
TAGS = [[0, 1, 2], [1, 2]]

vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS[0], *WORDS[1]])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 3}
model = BertForTokenClassification(BertConfig(**sizes, vocab_size=len(vocabulary)))

add_relation_bias(model, kind="both", labels=LABELS)  # all biases are 0: the same function


def batch(rows):
    sentences, parses, tags = zip(*rows, strict=True)
    encoded = tokenizer(
        list(sentences), is_split_into_words=True, padding=True, return_tensors="pt"
    )
    targets = torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row) for row in tags], batch_first=True, padding_value=-100
    )
    return {**encoded, **collate(encoded, parses, LABELS), "labels": targets}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=20, learning_rate=3e-3, lr_scheduler_type="constant", report_to="none"
    )
    rows = list(zip(WORDS, PARSES, TAGS, strict=True))
    trainer = Trainer(model, arguments, batch, train_dataset=rows)
    trainer.train()
    trainer.save_model()
    # BertForTokenClassification.from_pretrained and AutoModel… refuse to load it without the biases.
    loaded = from_pretrained(BertForTokenClassification, folder)
loss = loaded(**batch(rows)).loss
print(f"loss {loss.item():.3f}")
