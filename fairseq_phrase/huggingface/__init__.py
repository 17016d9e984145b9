"""Relation biases in the encoders of transformers, without fairseq and spaCy.

    model = add_relation_bias(AutoModelForSeq2SeqLM.from_pretrained(folder), labels=["nsubj", …])
    model(**encoding, **collate(encoding, parses, labels))
    model.save_pretrained(saved)
    model = from_pretrained(AutoModelForSeq2SeqLM, saved)

``docs/models/tree_relations.md`` describes the biases, ``docs/tutorials/huggingface.md`` their use.
"""

from fairseq_phrase.huggingface.batches import collate, parsed, parsing_tokenizer, text_of
from fairseq_phrase.huggingface.biased_models import add_relation_bias, from_pretrained
from fairseq_phrase.huggingface.training import lora_options, parameter_groups
from fairseq_phrase.huggingface.tree_losses import (
    ParseLoss,
    TreePlanting,
    TreeRegularization,
    add_tree_losses,
    collate_spans,
    remove_tree_losses,
)

__all__ = [
    "ParseLoss",
    "TreePlanting",
    "TreeRegularization",
    "add_relation_bias",
    "add_tree_losses",
    "collate",
    "collate_spans",
    "from_pretrained",
    "lora_options",
    "parameter_groups",
    "parsed",
    "parsing_tokenizer",
    "remove_tree_losses",
    "text_of",
]
