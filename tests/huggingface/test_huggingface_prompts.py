"""Trees of prompts in decoders: brute force, caches, padding, beams; generated text has no relations."""

from __future__ import annotations

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import add_relation_bias, collate, from_pretrained, text_of
from fairseq_phrase.methods.relations.huggingface_attention import unrotated
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.huggingface_models import (
    small_config,
    tokenizer_of_bytes,
    tokenizer_of_metaspace,
    write_bert,
)
from tests.support.relation_models import (
    LABELS,
    bucket,
    made,
    moved,
    number_of,
    relation,
    tables,
)

#: Several heads of queries for one of keys, windows, learned positions.
TYPES = ("llama", "qwen2", "qwen3", "mistral", "gemma3_text", "gpt2", "gpt_neox", "opt")
#: A prompt of a first token, three words and four tokens of them; and of two words, padded on the left.
PROMPTS = {
    "input_ids": torch.tensor([[2, 5, 6, 7, 8], [1, 1, 2, 9, 10]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
    "src_words": torch.tensor([[-1, 0, 1, 1, 2], [-1, -1, -1, 0, 1]]),
    "src_heads": torch.tensor([[1, 2, 2], [1, 1, -1]]),
    "src_deprels": torch.tensor([[0, 1, 2], [1, 2, 0]]),
}
TREES = ("src_words", "src_heads", "src_deprels")
TEXT = torch.tensor([[11, 12, 13], [14, 15, 16]])
ALONE = {
    name: rows[1:, 2:] if rows.size(1) == 5 else rows[1:, :2] for name, rows in PROMPTS.items()
}


def decoder(model_type, vectors=True, **options):
    model = made(model_type, AutoModelForCausalLM, eos_token_id=None, **options)
    return moved(add_relation_bias(model, labels=LABELS, vectors=vectors))


def whole(text=TEXT):
    """Prompts and the text after them."""
    return PROMPTS | {
        "input_ids": torch.cat([PROMPTS["input_ids"], text], 1),
        "attention_mask": torch.cat([PROMPTS["attention_mask"], torch.ones_like(text)], 1),
    }


def loops(module, query, key, value, attention_mask, scaling=None, token_rotation=None, **_):
    """Attention pair by pair."""
    stationary = unrotated(module, query, token_rotation)
    batch, heads, queries, width = query.shape
    words, parse_heads, labels = (PROMPTS[name].tolist() for name in TREES)
    scaling = width**-0.5 if scaling is None else scaling
    mask = attention_mask.expand(batch, -1, -1, -1)[:, 0]
    bias, vectors = module.relation_bias, module.relation_vectors
    output = torch.zeros(batch, queries, heads, value.size(3), dtype=query.dtype)
    for b in range(batch):
        for h in range(heads):
            group = h * key.size(1) // heads
            for i in range(queries):
                scores, values = [], []
                for j in mask[b, i].nonzero()[:, 0].tolist():
                    k, v, added = key[b, group, j], value[b, group, j], 0
                    if max(i, j) < len(words[b]):
                        name, label = relation(words[b], parse_heads[b], labels[b], i, j)
                        added = number_of(bias, h, name, label)
                        added = added + bias.sequence_bias[h, bucket(j - i)]
                        vector = number_of(vectors.key_vectors, slice(None), name, label)
                        added = added + stationary[b, h, i] @ vector * scaling
                        v = v + number_of(vectors.value_vectors, slice(None), name, label)
                    scores.append(query[b, h, i] @ k * scaling + added)
                    values.append(v)
                if scores:
                    output[b, i, h] = torch.stack(scores).softmax(0) @ torch.stack(values)
    return output, None


def logits(model, batch):
    with torch.no_grad():
        return model(**batch).logits[batch["attention_mask"].bool()]


@pytest.mark.parametrize("model_type", TYPES)
def test_a_prompt_and_its_text_are_the_equation_in_loops(model_type):
    model, batch = decoder(model_type), whole()
    expected = logits(model, batch)
    transformers.AttentionInterface.register("prompt_loops", loops)
    pairs = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    AttentionMaskInterface.register("prompt_loops", lambda **given: sdpa_mask(**given | pairs))
    model.set_attn_implementation("prompt_loops")
    tolerance = 1e-6 if "gemma" in model_type else 1e-10
    torch.testing.assert_close(logits(model, batch), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("cache", [transformers.DynamicCache, transformers.StaticCache])
@pytest.mark.parametrize("model_type", TYPES)
def test_a_cache_changes_nothing(model_type, cache):
    window = {"sliding_window": 3} if model_type in ("mistral", "gemma3_text") else {}
    model, batch = decoder(model_type, **window), whole()
    with torch.no_grad():
        sizes = {} if cache is transformers.DynamicCache else {"max_cache_len": 10}
        past = cache(config=model.config, **sizes)
        parts, start = [], 0
        expected = model(**batch).logits
        for end in (2, 5, 6, 8):  # the prompt in two parts
            part = batch | {
                "input_ids": batch["input_ids"][:, start:end],
                "attention_mask": batch["attention_mask"][:, :end],
            }
            parts.append(model(**part, past_key_values=past, use_cache=True).logits)
            start = end
    mask = batch["attention_mask"].bool()
    tolerance = 1e-5 if "gemma" in model_type else 1e-10
    torch.testing.assert_close(torch.cat(parts, 1)[mask], expected[mask], rtol=0, atol=tolerance)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "gemma3_text", "gpt_neox"])
def test_padding_on_the_left_changes_nothing_where_positions_are_rotated(model_type):
    model = decoder(model_type)
    with torch.no_grad():
        actual, expected = model(**PROMPTS).logits[1, 2:], model(**ALONE).logits[0]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_reads_the_tree_with_and_without_cache_and_alone(model_type, beams):
    model = decoder(model_type)
    options = {"max_new_tokens": 5, "num_beams": beams, "do_sample": False, "output_logits": True}
    options |= {"return_dict_in_generate": True, "pad_token_id": 1}
    cached, uncached = (
        model.generate(**PROMPTS, **options, use_cache=use) for use in (True, False)
    )
    assert torch.equal(cached.sequences, uncached.sequences)
    for actual, expected in zip(cached.logits, uncached.logits, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)
    alone = model.generate(**ALONE, **options)
    assert torch.equal(alone.sequences[0], cached.sequences[1, 2:])
    for actual, expected in zip(alone.logits, cached.logits, strict=True):
        torch.testing.assert_close(actual, expected[beams:], rtol=0, atol=1e-10)
    for name in TREES[1:]:
        expected = PROMPTS | {name: PROMPTS[name].roll(1, 1)}
        if name == "src_heads":
            expected[name] = torch.tensor([[0, 0, 1], [0, 0, -1]])
        first = model.generate(**expected, **options).logits[0]
        assert not torch.allclose(first, cached.logits[0], atol=1e-4), name


def test_text_after_the_prompt_has_no_relations():
    """Marked by -2 or left out, it is computed alike; without biases, text has stock attention."""
    model = decoder("llama")
    batch = whole()
    expected = logits(model, batch)
    outside = torch.full_like(TEXT, -2)
    batch["src_words"] = torch.cat([PROMPTS["src_words"], outside], 1)
    torch.testing.assert_close(logits(model, batch), expected, rtol=0, atol=1e-12)
    batch["src_words"] = torch.full_like(batch["src_words"], -2)
    stock = made("llama", AutoModelForCausalLM, eos_token_id=None)
    inputs = {name: rows for name, rows in batch.items() if name not in TREES}
    torch.testing.assert_close(logits(model, batch), logits(stock, inputs), rtol=0, atol=1e-12)


def test_tables_of_zeros_change_nothing_and_are_trained_by_responses():
    stock = made("llama", AutoModelForCausalLM)
    inputs = {name: rows for name, rows in whole().items() if name not in TREES}
    expected = logits(stock, inputs)
    model = add_relation_bias(stock, labels=LABELS, vectors=True)
    torch.testing.assert_close(logits(model, whole()), expected, rtol=0, atol=1e-12)
    targets = torch.cat([torch.full((2, 5), -100), TEXT], 1)
    model.train()(**whole(), labels=targets).loss.backward()
    # The last layer's numbers for pairs of the prompt do not reach the text.
    names = [name for name, table in tables(model).items() if table.grad.abs().sum() > 0]
    assert any("layers.0" in name for name in names)


def test_prompts_and_responses_are_collated():
    class Tokenized:
        def word_ids(self, row):
            return [None, 0, 1, 1, 2, 3, None][: 7 - row]

    parses = [([1, 1], LABELS[:2]), ([1, 2, 2], LABELS)]
    batch = collate(Tokenized(), parses[:1], LABELS, only_prompts=True)
    assert batch["src_words"].tolist() == [[-1, 0, 1, 1, -2, -2, -2]]
    with pytest.raises(UserError, match="sentence 0: 4 words have tokens"):
        collate(Tokenized(), parses[:1], LABELS)
    for labels in ("nsubj", [*LABELS, "det"]):
        with pytest.raises(UserError, match="expected a list in which each label stands once"):
            collate(Tokenized(), parses[:1], labels, only_prompts=True)
    for texts in ("a", ["a", "b"]):
        with pytest.raises(UserError, match="expected a list of 1 texts"):
            collate(Tokenized(), parses[:1], LABELS, texts=texts)


SENTENCE = ParsedSentence(
    ["Ein", "Hund", "schläft", "½", "."], [True, True, True, True, False],
    tree=DependencyTree([1, 2, 2, 2, 2]), deprels=["x"] * 5,
)  # fmt: skip
TOKENIZERS = {"bytes": tokenizer_of_bytes, "metaspace": tokenizer_of_metaspace}


@pytest.fixture(scope="module", params=["bytes", "metaspace", "wordpiece"])
def tokenizer(request, tmp_path_factory):
    lines = ["Translate : Ein Hund schläft ½ . assistant", "Ei n Hu nd schl äft ."] * 9
    if request.param == "wordpiece":
        folder = write_bert(tmp_path_factory.mktemp("bert") / "bert", lines)
        return transformers.AutoTokenizer.from_pretrained(folder)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[request.param](lines), unk_token="<unk>", pad_token="<pad>"
    )


def spelled(encoded, text, words):
    """What the tokens of each word spell, by their offsets."""
    spans = {}
    for i, word in enumerate(words):
        if word >= 0:
            span = encoded.token_to_chars(0, i)
            first, last = spans.get(word, (span.start, span.end))
            spans[word] = min(first, span.start), max(last, span.end)
    return [text[first:last].strip() for first, last in (spans[word] for word in sorted(spans))]


@pytest.mark.parametrize(
    "text",
    [
        text_of(SENTENCE), f"Translate: {text_of(SENTENCE)}", "  Ein  Hund schläft  ½ . ",
        "Eine Ein Hund: Ein Hund schläft ½.", "Hund: 'Ein Hund schläft ½.'\nassistant\nA dog.",
        "Ein Hund schläft ½. Ein Hund schläft ½.",
    ],
)  # fmt: skip
def test_a_sentence_is_found_in_a_prompt(tokenizer, text):
    encoded = tokenizer([text])
    goes_on = text.endswith("dog.")
    if goes_on:
        with pytest.raises(
            UserError, match="or for a decoder whose prompt goes on, only_prompts=T"
        ):
            collate(encoded, [SENTENCE], texts=[text])
    (words,) = collate(encoded, [SENTENCE], texts=[text], only_prompts=goes_on)[
        "src_words"
    ].tolist()
    assert spelled(encoded, text, words) == SENTENCE.words
    first, last = words.index(0), len(words) - words[::-1].index(4)
    assert {*words[:first]} <= {-1}
    assert {*words[last:]} <= ({-2} if goes_on else {-1})
    if text == text_of(SENTENCE):
        assert words == collate(encoded, [SENTENCE])["src_words"][0].tolist()


def test_a_sentence_that_is_not_once_in_its_text_is_refused(tokenizer):
    for text, count in (
        ("Ein Hund bellt.", 0), ("Ein Hund schläft ½. Ein Hund schläft ½. So!", 2),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"sentence 0: its text contains it {count} times"):
            collate(tokenizer([text]), [SENTENCE], texts=[text], only_prompts=True)


def test_lists_of_words_of_a_parsed_sentence_have_their_own_offsets(tokenizer):
    words = SENTENCE.words
    for count in (1, 2, 5):
        sentence = ParsedSentence(words[:count], [True] * count, tree=DependencyTree([0] * count))
        encoded = tokenizer([words[:count]], is_split_into_words=True)
        expected = [-1 if word is None else word for word in encoded.word_ids(0)]
        assert collate(encoded, [sentence])["src_words"].tolist() == [expected]


def test_another_shorter_text_is_refused_unless_it_was_truncated(tokenizer):
    for short, options in (("Ein Hund", {}), (["Ein", "Hund"], {"is_split_into_words": True})):
        with pytest.raises(UserError, match="sentence 0: the tokens end before its word 'schläft'"):
            collate(tokenizer([short], **options), [SENTENCE])
    encoded = tokenizer([text_of(SENTENCE)], truncation=True, max_length=4)
    assert max(collate(encoded, [SENTENCE])["src_words"][0]) < 4
    last = ParsedSentence(["Hund", "\u200b"], [True, True], tree=DependencyTree([0, 0]))
    assert collate(tokenizer([text_of(last)]), [last])["src_words"].max() in (0, 1)


def test_a_decoder_is_saved_and_loaded_also_as_an_encoder(tmp_path):
    model = decoder("llama")
    model.save_pretrained(tmp_path)
    loaded = from_pretrained(AutoModelForCausalLM, tmp_path).eval()
    assert torch.equal(logits(loaded, whole()), logits(model, whole()))
    tagger = from_pretrained(AutoModelForTokenClassification, tmp_path)
    for name, table in tables(model).items():
        assert torch.equal(tagger.get_parameter(name), table)


def test_gradient_checkpointing_and_compiling_change_nothing():
    model = decoder("llama")
    expected = logits(model, whole())
    torch._dynamo.reset()
    model.compile(backend="eager", fullgraph=True)
    torch.testing.assert_close(logits(model, whole()), expected, rtol=0, atol=1e-12)
    torch._dynamo.reset()


def test_bad_decoders_and_prompts_are_refused():
    for options in ({"kind": "sequence"}, {"source": "links"}):
        with pytest.raises(
            UserError, match="LlamaForCausalLM reads the trees of prompts: expected"
        ):
            add_relation_bias(made("llama", AutoModelForCausalLM), **options)
    bert = transformers.BertLMHeadModel(small_config("bert"))
    with pytest.raises(UserError, match="BertLMHeadModel is a decoder without an encoder, and no"):
        add_relation_bias(bert)
    model = decoder("llama")
    with pytest.raises(UserError, match="pass src_words and src_heads"):
        model.generate(PROMPTS["input_ids"], max_new_tokens=2)
    with pytest.raises(UserError, match="the batch has 2 sentences, and src_words 1"):
        model(**PROMPTS | {name: PROMPTS[name][:1] for name in TREES})
    for start, heads in ((2, 3), (3, 2)):  # before and after as many tokens as the new ones
        past = transformers.DynamicCache(config=model.config)
        parts = [
            {name: rows[:, part] if name != "attention_mask" else rows[:, : part.stop]
             for name, rows in PROMPTS.items() if name in ("input_ids", "attention_mask", "src_words")}
            for part in (slice(0, start), slice(start, 5))
        ]  # fmt: skip
        model(**PROMPTS | parts[0], past_key_values=past, use_cache=True)
        with pytest.raises(
            UserError, match=f"src_words have {heads} tokens, as many as are new, after"
        ):
            model(**PROMPTS | parts[1], past_key_values=past, use_cache=True)
    with pytest.raises(UserError, match="src_words: sentence 0, token 0: word -3"):
        model(**PROMPTS | {"src_words": PROMPTS["src_words"] - 2})
