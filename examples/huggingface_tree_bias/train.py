"""A BERT that tags words and reads trees. Replace the two lines that make it to load your own."""

import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForTokenClassification, PreTrainedTokenizerFast

from fairseq_phrase.torch import add_relation_bias, collate, from_pretrained

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
batch = tokenizer(WORDS, is_split_into_words=True, padding=True, return_tensors="pt")
trees = collate(batch, PARSES, LABELS)
targets = torch.nn.utils.rnn.pad_sequence(
    [torch.tensor(row) for row in TAGS], batch_first=True, padding_value=-100
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(20):
    loss = model(**batch, **trees, labels=targets).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.3f}")

# BertForTokenClassification.from_pretrained and AutoModel… would leave the biases out.
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    loaded = from_pretrained(BertForTokenClassification, folder)
