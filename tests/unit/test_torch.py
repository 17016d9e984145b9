"""Relation biases in models of transformers: the same function at the start, a twin, files."""

from __future__ import annotations

import pytest
import torch
import transformers

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.relation_bias import RelationBias
from fairseq_phrase.torch import add_relation_bias, collate, from_pretrained

BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT |= {"intermediate_size": 24, "vocab_size": 30, "max_position_embeddings": 40}
SEQ = {"d_model": 16, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 2}
SEQ |= {"decoder_attention_heads": 4, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
SEQ |= {
    "vocab_size": 30,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "init_std": 0.5,
}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "vocab_size": 30}
FAMILIES = {
    "Bert": ("BertForTokenClassification", "BertConfig", BERT),
    "Roberta": ("RobertaForTokenClassification", "RobertaConfig", BERT),
    "Bart": ("BartForConditionalGeneration", "BartConfig", SEQ),
    "Marian": ("MarianMTModel", "MarianConfig", SEQ | {"decoder_start_token_id": 1}),
    "T5": ("T5ForConditionalGeneration", "T5Config", T5 | {"decoder_start_token_id": 0}),
}
LABELS = ["det", "nsubj", "root"]
PARSE = {
    "src_words": torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, -1, -1, -1]]),
    "src_heads": torch.tensor([[1, 2, 2], [1, 1, -1]]),
    "src_deprels": torch.tensor([[0, 1, 2], [1, 2, 0]]),
}
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def made(family, attention="sdpa", seed=0):
    torch.manual_seed(seed)
    name, config, sizes = FAMILIES[family]
    config = getattr(transformers, config)(**sizes)
    model = getattr(transformers, name)._from_config(config, attn_implementation=attention)
    return model.double().eval()


def inputs(model):
    tokens = torch.arange(4, 16).view(2, 6) * MASK + (1 - MASK)
    batch = {"input_ids": tokens, "attention_mask": MASK}
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.tensor([[2, 5, 6], [2, 7, 8]])
    return batch


def biases(model):
    return [module for module in model.modules() if isinstance(module, RelationBias)]


def moved(model):
    torch.manual_seed(3)
    for bias in biases(model):
        for table in bias.parameters():
            torch.nn.init.normal_(table)
    return model


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_zero_biases_change_nothing_and_get_gradients(family, attention):
    model = made(family, attention)
    batch = inputs(model)
    stock = model(**batch).logits
    add_relation_bias(model, labels=LABELS)
    found = model(**batch, **PARSE).logits
    assert torch.allclose(found, stock, rtol=0, atol=1e-6)
    (found * torch.randn_like(found)).sum().backward()
    assert len(biases(model)) == 2
    for bias in biases(model):
        for table in (bias.tree_bias, bias.label_bias, bias.sequence_bias):
            assert table.grad.abs().sum() > 0
    assert not torch.allclose(moved(model)(**batch, **PARSE).logits, stock, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_saved_and_loaded_with_its_biases(family, tmp_path):
    model = moved(add_relation_bias(made(family), "tree", LABELS))
    expected = model(**inputs(model), **PARSE).logits
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(getattr(transformers, FAMILIES[family][0]), tmp_path)
    found = loaded.double().eval()(**inputs(model), **PARSE).logits
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", ["Bart", "Marian", "T5"])
def test_beams_read_the_biases(family):
    model = moved(add_relation_bias(made(family), labels=LABELS))
    batch = inputs(model)
    del batch["decoder_input_ids"]
    options = {"num_beams": 3, "max_new_tokens": 4, "output_scores": True}
    options |= {"return_dict_in_generate": True, "do_sample": False}
    found = model.generate(**batch, **PARSE, **options)
    model(**inputs(model), **PARSE)  # leaves its relations, which the encoder reads
    encoded = model.get_encoder()(input_ids=batch["input_ids"], attention_mask=MASK)
    expected = model.generate(encoder_outputs=encoded, attention_mask=MASK, **options)
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.allclose(found.sequences_scores, expected.sequences_scores)
    with pytest.raises(UserError, match="pass src_words"):
        model.generate(**batch, max_new_tokens=2)


def test_a_layer_is_the_equation_in_loops():
    """The self-attention of a BERT, with the bias of each pair from its table."""
    model = moved(add_relation_bias(made("Bert"), "tree"))
    module = model.bert.encoder.layer[0].attention.self
    seen = []
    module.register_forward_hook(
        lambda _, args, kwargs, out: seen.append((args, out[0])), with_kwargs=True
    )
    model(**inputs(model), **PARSE)
    (args, found), table = seen[0], module.relation_bias.tree_bias
    names = {"same": 0, "parent": 1, "child": 2, "sibling": 3, "up 2": 4, "down 2": 7, "none": 17}
    chain = {(0, 1): "parent", (1, 2): "parent", (0, 2): "up 2", (2, 0): "down 2"}
    chain |= {(1, 0): "child", (2, 1): "child"}
    states, words = args[0][0], PARSE["src_words"][0].tolist()
    for i in range(6):
        for head in range(2):
            part = slice(8 * head, 8 * head + 8)
            scores, values = [], []
            for j in range(6):
                pair = words[i], words[j]
                name = "none" if min(pair) < 0 else chain.get(pair, "same")
                name = "same" if i == j else name
                product = module.query(states[i])[part] @ module.key(states[j])[part]
                scores.append(product / 8**0.5 + table[head, names[name]])
                values.append(module.value(states[j])[part])
            weights = torch.stack(scores).softmax(0)
            expected = sum(w * value for w, value in zip(weights, values, strict=True))
            assert torch.allclose(found[0, i, part], expected, rtol=0, atol=1e-10)


class Tokenized:
    """What a fast tokenizer returns, as far as words go."""

    def word_ids(self, row):
        return [None if word < 0 else word for word in PARSE["src_words"][row].tolist()]


def test_words_heads_and_labels_are_collated():
    parses = [([1, 2, 2], LABELS), ([1, 1], LABELS[1:])]
    found = collate(Tokenized(), parses, LABELS)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in PARSE.items()
    }
    assert "src_deprels" not in collate(Tokenized(), parses)


def test_bad_input_is_refused():
    with pytest.raises(UserError, match="word_ids"):
        collate(object(), [([0], [])])
    with pytest.raises(UserError, match="sentence 0: 3 words"):
        collate(Tokenized(), [([0], [])])
    with pytest.raises(UserError, match="unknown labels nsubj"):
        collate(Tokenized(), [([1, 2, 2], LABELS)], ["det", "root"])
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9)
    )
    with pytest.raises(UserError, match="a gpt2 model takes no relation biases"):
        add_relation_bias(gpt)
    with pytest.raises(ValueError, match="unknown kind"):
        add_relation_bias(made("Bert"), "trees")
    with pytest.raises(UserError, match="already"):
        add_relation_bias(add_relation_bias(made("Bert")))
    model = add_relation_bias(made("Bert"))
    with pytest.raises(UserError, match="pass src_words"):
        model(**inputs(model))
