"""Relation biases in models of transformers: the same function at the start, a twin, files."""

from __future__ import annotations

import copy
import io
import re

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoModelForTokenClassification
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import add_relation_bias, collate, from_pretrained, text_of
from fairseq_phrase.methods.relations import batch_relations, huggingface_attention
from fairseq_phrase.methods.relations.huggingface_attention import unrotated
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.huggingface_models import small_config, tokenizer_of_metaspace
from tests.support.relation_models import (
    LABELS,
    MASK,
    PARSE,
    Tokenized,
    bucket,
    gradients,
    inputs,
    made,
    moved,
    number_of,
    relation,
    states,
    stock,
    tables,
)

#: Norms after or before each sublayer; learned, rotated and relative positions; shared layers, windows,
#: several heads of queries for one of keys, values narrower than keys, causal masks.
ENCODERS = (
    "bert", "roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "electra",
    "albert", "distilbert", "ernie", "data2vec-text", "nomic_bert", "jina_embeddings_v3", "modernbert",
    "eurobert", "esm", "llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "gpt_neox", "opt",
    "phi3", "minicpm3", "deepseek_v3",
)  # fmt: skip
SEQ2SEQ = (
    "bart", "mbart", "m2m_100", "marian", "pegasus", "blenderbot", "plbart", "t5", "mt5", "umt5",
)  # fmt: skip
TYPES = ENCODERS + SEQ2SEQ
#: In all columns, or the first or last; in two kinds of layers.
ROTARY = (
    "nomic_bert", "modernbert", "eurobert", "llama", "qwen3", "gemma3_text", "gpt_neox", "minicpm3",
    "deepseek_v3",
)  # fmt: skip
#: The types that refuse biases, with a part of the reason.
REFUSED = {
    **dict.fromkeys(("deberta-v2", "mpnet", "xlnet", "bloom"), "its attention is not called by"),
    "longt5": "sdpa cannot compute its attention",
    "gemma2": "(sdpa cannot compute its attention|Gemma2Attention caps its scores)",  # by the version
    "doge": "DogeAttention changes the mask",
    "led": "its attention is not called by",
}


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("model_type", TYPES)
def test_tables_of_zeros_change_nothing_and_get_gradients(model_type, left):
    model = made(model_type)
    batch = inputs(model, left)
    expected = states(model, stock(batch))
    add_relation_bias(model, labels=LABELS, vectors=left)
    output = states(model, batch)
    assert torch.allclose(output, expected, rtol=0, atol=1e-12)
    (output * torch.randn_like(output)).sum().backward()
    layers = 1 if model_type == "albert" else 2
    assert len(tables(model)) == (7 if left else 3) * layers
    for name, table in tables(model).items():
        assert table.grad.abs().sum() > 0, name


def loops(
    module, query, key, value, attention_mask, scaling=None, position_bias=None, token_rotation=None,
    **_,
):  # fmt: skip
    """Attention pair by pair."""
    stationary = unrotated(module, query, token_rotation)
    batch, heads, length, width = query.shape
    words, parse_heads, labels = (rows.tolist() for rows in loops.parse)
    scaling = width**-0.5 if scaling is None else scaling
    mask = attention_mask.expand(batch, -1, -1, -1)[:, 0]
    biases = getattr(module, "relation_bias", None)
    vectors = getattr(module, "relation_vectors", None)
    output = torch.zeros(batch, length, heads, value.size(3), dtype=query.dtype)
    for b in range(batch):
        for h in range(heads):
            group = h * key.size(1) // heads
            for i in range(length):
                scores, values = [], []
                for j in mask[b, i].nonzero()[:, 0].tolist():
                    k, v = key[b, group, j], value[b, group, j]
                    added = of_relation = 0
                    if biases is not None:
                        name, label = relation(words[b], parse_heads[b], labels[b], i, j)
                        added = number_of(biases, h, name, label)
                        added = added + biases.sequence_bias[h, bucket(j - i)]
                    if vectors is not None:
                        of_relation = number_of(vectors.key_vectors, slice(None), name, label)
                        v = v + number_of(vectors.value_vectors, slice(None), name, label)
                    if position_bias is not None:
                        added = added + position_bias[0, h, i, j]
                    if vectors is not None:
                        added = added + stationary[b, h, i] @ of_relation * scaling
                    scores.append(query[b, h, i] @ k * scaling + added)
                    values.append(v)
                if scores:
                    output[b, i, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return output, None


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("model_type", TYPES)
def test_attention_is_the_equation_in_loops(model_type, left):
    model = made(model_type)
    batch = inputs(model, left)
    expected = states(model, stock(batch))
    moved(add_relation_bias(model, labels=LABELS, vectors=left))
    with torch.no_grad():
        output = states(model, batch)
        assert not torch.allclose(output, expected, atol=1e-4)
        transformers.AttentionInterface.register("loops", loops)
        all_pairs = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        AttentionMaskInterface.register("loops", lambda **given: sdpa_mask(**given | all_pairs))
        loops.parse = [batch[name] for name in PARSE]
        model.set_attn_implementation("loops")
        # Within the encoder, and for no other query, the keys are the parse's tokens.
        twin = states(model, stock(batch) | dict.fromkeys(PARSE))
    assert torch.allclose(output, twin, rtol=0, atol=1e-6 if "gemma" in model_type else 1e-10)


@pytest.mark.parametrize("model_type", ROTARY)
def test_vectors_do_not_depend_on_absolute_positions(model_type):
    model = moved(add_relation_bias(made(model_type), labels=LABELS, vectors=True))
    positions = torch.arange(6)[None]
    actual, expected = (
        states(model, inputs(model) | {"position_ids": p}) for p in (positions + 3, positions)
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scaled", [{}, {"rope_type": "yarn", "factor": 4.0}])
def test_vectors_are_multiplied_with_queries_as_projected(scaled, monkeypatch):
    rope = {"rope_type": "default", "rope_theta": 10000.0} | scaled
    model = made("llama", rope_parameters=rope)
    moved(add_relation_bias(model, labels=LABELS, vectors=True))
    attention, attend = model.layers[0].self_attn, huggingface_attention.attend_with_vectors
    projected, queries = [], []
    attention.q_proj.register_forward_hook(lambda module, args, output: projected.append(output))
    monkeypatch.setattr(
        huggingface_attention, "attend_with_vectors",
        lambda query, stationary, *rest: queries.append(stationary) or attend(query, stationary, *rest),
    )  # fmt: skip
    model(**inputs(model))
    actual = queries[0].transpose(1, 2).flatten(2)
    torch.testing.assert_close(actual, projected[0], rtol=0, atol=1e-6)


def test_vectors_are_refused_where_some_layers_do_not_rotate():
    for vectors in (True, False):
        model = made("smollm3", no_rope_layers=[1, 0])
        if vectors:
            with pytest.raises(UserError, match=r"SmolLM3Attention rotates .* vectors=False"):
                add_relation_bias(model, vectors=True)
        assert torch.isfinite(states(add_relation_bias(model), inputs(model))).all()


def test_vectors_of_rotated_queries_that_an_older_version_saved_are_refused(tmp_path):
    for model_type in ("bert", "llama"):
        model = add_relation_bias(made(model_type), labels=LABELS, vectors=True)
        del model.config.relation_bias["unrotated"]
        model.save_pretrained(tmp_path / model_type)
    from_pretrained(AutoModel, tmp_path / "bert")
    with pytest.raises(UserError, match="an older version trained these vectors"):
        from_pretrained(AutoModel, tmp_path / "llama")


@pytest.mark.parametrize("model_type", sorted({*TYPES} - {"albert"}))  # which has none
def test_gradient_checkpointing_keeps_the_relations_of_each_batch(model_type):
    model = moved(add_relation_bias(made(model_type), labels=LABELS)).train()
    batches = inputs(model), inputs(model, left=True)
    expected = gradients(model, *batches)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    actual = gradients(model, *batches)
    assert actual.keys() == expected.keys() >= tables(model).keys()
    for name, gradient in expected.items():
        assert torch.allclose(actual[name], gradient, atol=1e-12), name


@pytest.mark.parametrize("model_type", TYPES)
def test_a_model_is_saved_and_loaded_with_its_biases(model_type, tmp_path):
    model = moved(add_relation_bias(made(model_type), "tree", LABELS, vectors=True))
    expected = states(model, inputs(model))
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(AutoModel, tmp_path).eval()
    assert loaded.config.relation_bias == model.config.relation_bias
    assert torch.allclose(states(loaded, inputs(model)), expected, rtol=0, atol=1e-12)
    for plain in (AutoModel, getattr(transformers, type(model).__name__)):
        with pytest.raises(ValueError, match=r"fairseq_phrase\.huggingface\.from_pretrained"):
            plain.from_pretrained(tmp_path)


@pytest.mark.parametrize("model_type", SEQ2SEQ)
def test_beams_read_the_biases_in_the_encoder(model_type):
    model = moved(add_relation_bias(made(model_type, AutoModelForSeq2SeqLM), labels=LABELS))
    batch = inputs(model)
    del batch["decoder_input_ids"]
    options = {"num_beams": 3, "max_new_tokens": 5, "output_scores": True}
    options |= {"return_dict_in_generate": True, "do_sample": False, "decoder_start_token_id": 2}
    generated = model.generate(**batch, **options)
    encoded = model.get_encoder()(**batch)
    expected = model.generate(
        encoder_outputs=encoded, attention_mask=MASK, use_cache=False, **options
    )
    assert torch.equal(generated.sequences, expected.sequences)
    assert torch.allclose(generated.sequences_scores, expected.sequences_scores)
    with pytest.raises(UserError, match="pass src_words"):
        model.generate(**stock(batch), max_new_tokens=2, decoder_start_token_id=2)


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_type_with_another_attention_is_refused_by_name(model_type):
    model = made(model_type)
    before = model.config._attn_implementation
    with pytest.raises(UserError, match=f"a {model_type} model .* biases: {REFUSED[model_type]}"):
        add_relation_bias(model)
    assert model.config._attn_implementation == before
    assert not hasattr(model.config, "relation_bias")


def test_an_encoder_that_is_a_plain_module_is_refused_by_name():
    sizes = {"src_vocab_size": 30, "tgt_vocab_size": 30, "d_model": 16, "encoder_layers": 1}
    sizes |= {"decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = transformers.FSMTModel(transformers.FSMTConfig(langs=["en", "de"], **sizes))
    with pytest.raises(
        UserError, match=r"a fsmt model .*: its encoder gives its attention no keyword"
    ):
        add_relation_bias(model)


def test_a_soft_cap_is_refused_by_name():
    sizes = small_config("gemma2", num_hidden_layers=1).to_dict()
    config = transformers.T5GemmaConfig(encoder=sizes, decoder=sizes, vocab_size=30)
    with pytest.raises(UserError, match=r"a t5gemma model .*: (sdpa cannot|.* caps its scores)"):
        add_relation_bias(AutoModel.from_config(config))


@pytest.mark.parametrize(("kind", "dtype"), [("tree", torch.uint8), ("both", torch.int16)])
def test_relations_are_small_integers_made_once_per_batch(kind, dtype, monkeypatch):
    model = add_relation_bias(made("modernbert"), kind)  # it makes two masks
    made_from, masks = [], {}
    numbered, attended = batch_relations.tree_relations, huggingface_attention.pair_bias
    # Count the calls, and keep what they get.
    monkeypatch.setattr(
        batch_relations,
        "tree_relations",
        lambda *parse: made_from.append(parse) or numbered(*parse),
    )
    monkeypatch.setattr(
        huggingface_attention,
        "pair_bias",
        lambda table, pairs: masks.update({pairs.data_ptr(): pairs}) or attended(table, pairs),
    )
    model(**inputs(model))
    assert len(made_from) == 1
    assert {pairs.dtype for pairs in masks.values()} == {dtype}
    assert len(masks) == 2


def test_biases_of_the_sentence_need_no_parse():
    model = moved(add_relation_bias(made("bert"), "sequence"))
    batch = stock(inputs(model))
    assert torch.allclose(states(model, batch), states(model, inputs(model)))


def pickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("model_type", ["bart", "llama"])
def test_a_copy_reads_its_own_biases(model_type, copied):
    model = moved(add_relation_bias(made(model_type), labels=LABELS, vectors=True))
    expected = states(model, inputs(model))
    model_copy = copied(model)
    for table in tables(model).values():
        torch.nn.init.zeros_(table)
    assert type(model_copy) is type(model)
    assert torch.equal(states(model_copy, inputs(model)), expected)


def test_half_precision_has_no_nan_where_all_pairs_are_masked():
    model = moved(add_relation_bias(made("llama").bfloat16(), labels=LABELS, vectors=True))
    output = model(**inputs(model, left=True))[0]  # the first tokens of a causal mask are padding
    output.float().sum().backward()
    assert output.isfinite().all()
    assert all(table.grad.isfinite().all() for table in tables(model).values())


def test_words_heads_and_labels_are_collated():
    parses = [([1, 2, 2], LABELS), ([1, 1], LABELS[1:])]
    collated = collate(Tokenized(), parses, LABELS)
    assert {name: tensor.tolist() for name, tensor in collated.items()} == {
        name: tensor.tolist() for name, tensor in PARSE.items()
    }
    assert "src_deprels" not in collate(Tokenized(), parses)


@pytest.mark.parametrize("parse", [[1, 1], [1, 2, 2], [([1, 1], [])]])
def test_heads_without_labels_are_refused_with_the_expected_form(parse):
    with pytest.raises(UserError, match=r"sentence 0: expected .* or \(\[1, 1\], \[\]\), got"):
        collate(Tokenized(), [parse, parse])


def test_a_batch_without_words_is_collated():
    class Special:
        def word_ids(self, row):
            return [None, None]

    model = moved(add_relation_bias(made("bert"), labels=LABELS))
    parse = collate(Special(), [([], []), ([], [])], LABELS)
    assert {tensor.dtype for tensor in parse.values()} == {torch.int64}
    assert [list(tensor.shape) for tensor in parse.values()] == [[2, 2], [2, 0], [2, 0]]
    output = model(torch.tensor([[4, 5], [6, 7]]), **parse)[0]
    alone = model(torch.tensor([[4, 5]]), **{name: rows[:1] for name, rows in parse.items()})[0]
    assert output.isfinite().all()
    torch.testing.assert_close(output[:1], alone)


def test_words_are_found_in_the_text_of_a_parsed_sentence():
    words, spaces = ["Hunde", "(", "die", "2▁000", ")", "bellen", "."], [1, 1, 0, 1, 0, 1, 0]
    tree = DependencyTree([5, 3, 3, 0, 3, 5, 5])
    sentence = ParsedSentence(words, list(map(bool, spaces)), tree=tree, deprels=["x"] * 7)
    text = text_of(sentence)
    assert text == "Hunde (die 2 000) bellen."
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of_metaspace([text] * 9), pad_token="<pad>"
    )
    encoded = tokenizer([text, "Hunde"], padding=True)
    short = ParsedSentence(["Hunde"], [True], tree=DependencyTree([0]), deprels=["x"])
    collated = collate(encoded, [sentence, short], ["x"])
    assert collated["src_heads"].tolist() == [tree.heads.tolist(), [0, *[-1] * 6]]
    spelled = dict.fromkeys(range(-1, 7), "")
    for token, word in zip(encoded.tokens(0), collated["src_words"][0].tolist(), strict=True):
        spelled[word] += token
    spelled.pop(-1)
    assert [word.strip("▁") for word in spelled.values()] == words
    assert set(collated["src_words"][1].tolist()) == {0, -1}
    with pytest.raises(UserError, match=r"sentence 0: the tokens go on .* text_of"):
        collate(tokenizer(["Hunde bellen laut"]), [short])
    with pytest.raises(UserError, match="sentence 0 has no dependency tree"):
        collate(tokenizer(["Hunde"]), [ParsedSentence(["Hunde"], [True])])


def test_bad_parses_are_refused():
    sentence = ParsedSentence(["Hunde"], [True], tree=DependencyTree([0]))
    for parse in (sentence, ([0], [])):
        with pytest.raises(UserError, match="word_ids"):
            collate(transformers.BatchEncoding({"input_ids": [[4]]}), [parse])
    with pytest.raises(UserError, match="sentence 0: 3 words"):
        collate(Tokenized(), [([0], [])])
    with pytest.raises(UserError, match="unknown labels nsubj"):
        collate(Tokenized(), [([1, 2, 2], LABELS)], ["det", "root"])
    model = add_relation_bias(made("bert"), labels=LABELS)
    batch = inputs(model)
    with pytest.raises(UserError, match="pass src_words and src_heads"):
        model(**stock(batch))
    with pytest.raises(UserError, match="pass src_deprels"):
        model(**batch | {"src_deprels": None})
    with pytest.raises(
        UserError, match="the batch has 1 sentences of 6 tokens, and src_words 2 of 6"
    ):
        model(**batch | {name: batch[name][:1] for name in ("input_ids", "attention_mask")})
    with pytest.raises(
        UserError, match=r"attention_mask has the shape \(batch, tokens\), or is bool"
    ):
        model(**batch | {"attention_mask": torch.zeros(2, 1, 6, 6)})
    with pytest.raises(UserError, match="are called by their model or its encoder"):
        model.encoder(torch.zeros(2, 6, 16).double())


def test_a_mask_of_pairs_is_read():
    model = moved(add_relation_bias(made("bert"), labels=LABELS))
    batch = inputs(model)
    pairs = MASK[:, None, None].bool().expand(2, 1, 6, 6)
    output = model(**batch | {"attention_mask": pairs})[0][MASK.bool()]
    torch.testing.assert_close(output, states(model, batch), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "row", "column", "number", "message"),
    [
        ("src_deprels", 0, 2, 3, "sentence 0, word 2: label 3, and the model has 3 labels, from 0"),
        ("src_deprels", 1, 0, 700, "sentence 1, word 0: label 700, and the model has 3 labels"),
        ("src_deprels", 0, 0, -1, "sentence 0, word 0: label -1, and the model has 3 labels"),
        ("src_heads", 1, 0, 2, "sentence 1, word 0: head 2, and the sentence has 2 words, from 0"),
        ("src_heads", 0, 1, -2, "sentence 0, word 1: head -2, and the sentence has 3 words"),
        ("src_heads", 0, 0, -1, "sentence 0, word 0: head -1, and the sentence has 3 words"),
        ("src_words", 1, 1, 2, "sentence 1, token 1: word 2, and the sentence has 2 words, from 0"),
        ("src_words", 0, 0, -2, "sentence 0, token 0: word -2, and the sentence has 3 words"),
    ],
)
def test_numbers_out_of_range_are_named(name, row, column, number, message):
    model = add_relation_bias(made("bert"), labels=LABELS)
    batch = inputs(model)
    batch[name] = batch[name].clone()
    batch[name][row, column] = number
    with pytest.raises(UserError, match=f"{name}: {message}"):
        model(**batch)


def test_labels_of_padding_are_not_read():
    model = moved(add_relation_bias(made("bert"), labels=LABELS))
    batch = inputs(model)
    expected = states(model, batch)
    for number in (-1, 700):
        batch["src_deprels"] = batch["src_deprels"].masked_fill(batch["src_heads"] < 0, number)
        assert torch.equal(states(model, batch), expected)


def test_heads_in_a_circle_and_other_shapes_are_refused():
    model = add_relation_bias(made("bert"), "tree", LABELS)
    batch = inputs(model)
    for name, tensor, message in (
        ("src_heads", torch.tensor([[1, 2, 2], [1, 0, -1]]), "heads run in a circle"),
        ("src_heads", batch["src_heads"][:1], "heads must be .* got .* of shape"),
        ("src_words", batch["src_words"].int(), "words must be a torch.int64 tensor"),
        (
            "src_deprels",
            batch["src_deprels"][:, :2],
            r"labels must be .* of shape \(2, 3\), got .*\(2, 2\)",
        ),
    ):
        with pytest.raises(UserError, match=f"src_words, src_heads, src_deprels: .*{message}"):
            model(**batch | {name: tensor})


def test_more_labels_than_small_integers_number():
    labels = list(map(str, range(600)))
    model = moved(add_relation_bias(made("bert"), "both", labels))
    batch = inputs(model)
    expected = states(model, batch)
    for table in tables(model).values():
        if len(table) and table.size(1) == 1200:  # the last labels of parents and of children
            table.data[:, 597:600], table.data[:, 1197:] = (
                table[:, :3].clone(),
                table[:, 600:603].clone(),
            )
    batch["src_deprels"] = torch.where(batch["src_heads"] < 0, 0, batch["src_deprels"] + 597)
    assert torch.equal(states(model, batch), expected)


def test_bad_models_are_refused():
    decoders = (
        (transformers.BartForCausalLM, small_config("bart")),
        (transformers.BertModel, small_config("bert", is_decoder=True)),
    )
    for decoder, config in decoders:
        with pytest.raises(UserError, match=f"{decoder.__name__} is a decoder without an encoder"):
            add_relation_bias(decoder(config))
    with pytest.raises(ValueError, match="unknown kind"):
        add_relation_bias(made("bert"), "trees")
    with pytest.raises(UserError, match='vectors need kind="tree" or "both"'):
        add_relation_bias(made("bert"), "sequence", vectors=True)
    for labels in ("nsubj", ["nsubj", "nsubj"]):
        with pytest.raises(UserError, match="expected a list in which each label stands once"):
            add_relation_bias(made("bert"), labels=labels)
    with pytest.raises(UserError, match="already"):
        add_relation_bias(add_relation_bias(made("bert")))
    flash = made("bert")
    flash.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UserError, match=r"'flash_attention_2' takes no biases: .*sdpa"):
        add_relation_bias(flash)


def test_bad_folders_are_refused(tmp_path):
    with pytest.raises(UserError, match="nowhere: no model is there"):
        from_pretrained(AutoModel, str(tmp_path / "nowhere"))
    made("bert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no relation biases: load it by transformers"):
        from_pretrained(AutoModel, tmp_path)
    model = add_relation_bias(made("bert"))
    lost = {n: p for n, p in model.state_dict().items() if "layer.1.attention.self.rel" not in n}
    model.save_pretrained(tmp_path, state_dict=lost)
    with pytest.raises(UserError, match=r"its weights lack .*layer\.1.*relation_bias"):
        from_pretrained(AutoModel, tmp_path)
    with pytest.raises(UserError, match="'flash_attention_2' takes no biases"):
        from_pretrained(AutoModel, tmp_path, attn_implementation="flash_attention_2")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no model is there .*model\.safetensors"):
        from_pretrained(AutoModel, tmp_path)


def test_another_head_takes_the_biases_of_a_saved_encoder(tmp_path):
    model = moved(add_relation_bias(made("roberta"), "tree"))
    model.save_pretrained(tmp_path)
    tagger = from_pretrained(AutoModelForTokenClassification, tmp_path)
    for name, table in tables(model).items():
        assert torch.equal(tagger.get_parameter(f"roberta.{name}"), table)


def test_vectors_saved_by_the_first_version_have_other_names(tmp_path):
    model = moved(add_relation_bias(made("bert"), "tree", LABELS, vectors=True))
    expected = states(model, inputs(model))
    former = {re.sub(r"(key|value)_vectors", r"\1", n): p for n, p in model.state_dict().items()}
    attentions = model.config.relation_bias["attentions"]
    attentions |= {name: sizes[:2] for name, sizes in attentions.items()}
    model.save_pretrained(tmp_path / "former", state_dict=former)
    for folder in ("former", "saved_again"):
        model = from_pretrained(AutoModel, tmp_path / folder)
        assert torch.equal(states(model, inputs(model)), expected)
        model.save_pretrained(tmp_path / "saved_again")


@pytest.mark.parametrize("model_type", ["bert", "modernbert", "llama", "bart", "t5"])
def test_a_model_beside_it_that_shares_its_configuration_stays_as_it_was(model_type, tmp_path):
    config = small_config(model_type, vocab_size=30)
    values = config.to_dict()
    baseline, model, refused = (AutoModel.from_config(config).eval() for _ in range(3))
    expected = states(baseline, stock(inputs(baseline)))
    add_relation_bias(model, labels=LABELS)
    with pytest.raises(ValueError, match="unknown kind"):
        add_relation_bias(refused, "trees")
    assert config.to_dict() == values
    assert baseline.config is config
    assert {m.config._attn_implementation for m in (baseline, refused)} == {"sdpa"}
    assert torch.equal(states(baseline, stock(inputs(baseline))), expected)
    baseline.save_pretrained(tmp_path / "baseline")
    loaded = AutoModel.from_pretrained(tmp_path / "baseline")
    assert torch.equal(states(loaded, stock(inputs(loaded))), expected)
    later = AutoModel.from_config(config)
    assert not hasattr(later.config, "relation_bias")
    later(**stock(inputs(later)))


def test_a_given_configuration_is_not_changed(tmp_path):
    add_relation_bias(made("bert"), labels=LABELS).save_pretrained(tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path, num_labels=5)
    values, attention = config.to_dict(), config._attn_implementation
    model = from_pretrained(AutoModelForTokenClassification, tmp_path, config=config)
    assert model.classifier.out_features == 5
    assert (config.to_dict(), config._attn_implementation) == (values, attention)


@pytest.mark.parametrize(
    "options", [{"kind": "sequence"}, {"kind": "tree"}, {"labels": LABELS}, {"vectors": True}]
)
def test_an_exported_program_reads_other_trees_of_the_same_shape(options):
    model = moved(add_relation_bias(made("bert"), **options)).requires_grad_(False)
    batch, other_batch = inputs(model), inputs(model)
    other_batch["input_ids"] = batch["input_ids"].flip(1)
    other_batch["attention_mask"] = torch.ones_like(MASK)
    other_batch["src_words"] = torch.tensor([[0, 0, 1, 2, 2, -1], [-1, 0, 0, 1, -1, -1]])
    other_batch["src_heads"] = torch.tensor([[0, 0, 1], [0, 0, -1]])
    program = torch.export.export(model, (), batch).module()
    expected = model(**other_batch)[0]
    assert not torch.allclose(expected, model(**batch)[0])
    assert torch.allclose(program(**other_batch)[0], expected, rtol=0, atol=1e-12)
    # onnxruntime has no choice among numbers of 16 bits.
    dtypes = {
        n.meta["val"].dtype for n in program.graph.nodes if hasattr(n.meta.get("val"), "dtype")
    }
    assert torch.int16 not in dtypes
