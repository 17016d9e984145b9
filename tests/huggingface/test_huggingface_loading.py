"""Saved models with relation biases, loaded by transformers' and peft's own classes."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from functools import partial

import pytest
import torch
import transformers
from peft import (
    AutoPeftModelForSeq2SeqLM,
    AutoPeftModelForTokenClassification,
    LoraConfig,
    PeftModel,
    get_peft_model,
    prepare_model_for_kbit_training,
)
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import (
    add_relation_bias,
    collate,
    from_pretrained,
    lora_options,
    parameter_groups,
    parsing_tokenizer,
)
from fairseq_phrase.huggingface.biased_models import BiasedModel
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.huggingface_models import add_adapter_of_transformers, small_config, write_bert

LABELS = ["det", "nsubj", "root"]
#: Types of all kinds, and the auto class of their head.
TYPES = {
    **dict.fromkeys(("bert", "xlm-roberta", "modernbert", "distilbert", "albert", "llama", "qwen3"),
                    AutoModelForTokenClassification),
    **dict.fromkeys(("m2m_100", "bart", "mbart", "t5", "mt5", "pegasus"), AutoModelForSeq2SeqLM),
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """The folder into which transformers copies the files of models."""
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "code")
    )


def biased(model_type, **options):
    torch.manual_seed(0)
    config = small_config(model_type, vocab_size=30)
    config.decoder_start_token_id = 2
    model = TYPES[model_type].from_config(config).eval()
    add_relation_bias(model, labels=LABELS, **{"vectors": True, **options})
    for name, table in model.named_parameters():
        if ".relation_" in name:
            torch.nn.init.normal_(table)
    return model


def batch(model):
    inputs = {
        "input_ids": torch.arange(4, 16).view(2, 6),
        "attention_mask": torch.tensor([[1] * 6, [1, 1, 1, 1, 0, 0]]),
        "src_words": torch.tensor([[-1, 0, 1, 1, 2, -1], [-1, 0, 1, -1, -1, -1]]),
        "src_heads": torch.tensor([[1, 2, 2], [1, 1, -1]]),
        "src_deprels": torch.tensor([[0, 1, 2], [1, 2, 0]]),
    }
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.tensor([[2, 5, 6], [2, 7, 8]])
    return inputs


def outputs(model):
    with torch.no_grad():
        return model(**batch(model))[0]


@pytest.mark.fast(4)
@pytest.mark.parametrize("model_type", TYPES)
def test_auto_classes_load_a_saved_model_to_the_last_bit(model_type, tmp_path):
    model = biased(model_type)
    model.save_pretrained(tmp_path / "model")
    auto_class = TYPES[model_type]
    loaded = auto_class.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert torch.equal(outputs(loaded), outputs(model))
    assert isinstance(loaded, BiasedModel)
    assert type(loaded).__name__ == type(model).__name__
    # Saved again, and loaded into another class.
    loaded.save_pretrained(tmp_path / "again")
    again = AutoModel.from_pretrained(tmp_path / "again", trust_remote_code=True)
    encoded = outputs(AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True))
    assert torch.equal(outputs(again), encoded)
    for folder in ("model", "again"):
        assert torch.equal(outputs(from_pretrained(auto_class, tmp_path / folder)), outputs(model))
        for plain in (auto_class, AutoModel):
            with pytest.raises(ValueError, match=r"fairseq_phrase\.huggingface\.from_pretrained"):
                plain.from_pretrained(tmp_path / folder, trust_remote_code=False)
    # The classes without biases stay as they were.
    stock = auto_class.from_config(small_config(model_type, vocab_size=30))
    stock.save_pretrained(tmp_path / "stock")
    stock = auto_class.from_pretrained(tmp_path / "stock", trust_remote_code=True)
    assert not isinstance(stock, BiasedModel)


@pytest.mark.parametrize("model_type", ["m2m_100", "t5", "bart"])
def test_a_loaded_model_generates_the_same(model_type, tmp_path):
    model = biased(model_type)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, trust_remote_code=True)
    inputs = batch(model)
    del inputs["decoder_input_ids"]
    options = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    assert loaded.generate(**inputs, **options).equal(model.generate(**inputs, **options))


@pytest.mark.parametrize(("model_type", "auto_peft"), [
    ("bert", AutoPeftModelForTokenClassification), ("llama", AutoPeftModelForTokenClassification),
    ("t5", AutoPeftModelForSeq2SeqLM), ("m2m_100", AutoPeftModelForSeq2SeqLM),
])  # fmt: skip
def test_auto_classes_of_peft_load_an_adapter_with_its_base(model_type, auto_peft, tmp_path):
    model = biased(model_type)
    model.save_pretrained(tmp_path / "base")
    task = "SEQ_2_SEQ_LM" if model.config.is_encoder_decoder else "TOKEN_CLS"
    modules = ["q_proj", "v_proj"] if model_type == "m2m_100" else None
    options = lora_options(model, task_type=task, target_modules=modules)
    adapted = get_peft_model(model, LoraConfig(**options)).eval()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = auto_peft.from_pretrained(tmp_path / "adapter", trust_remote_code=True).eval()
    expected = outputs(adapted)
    assert torch.equal(outputs(loaded), expected)
    for parameter in loaded.parameters():
        assert parameter.isfinite().all()
    merged = loaded.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    again = TYPES[model_type].from_pretrained(tmp_path / "merged", trust_remote_code=True)
    assert torch.equal(outputs(again), outputs(merged))
    torch.testing.assert_close(outputs(again), expected, rtol=1e-4, atol=1e-5)
    # transformers' own way to an adapter.
    beside = TYPES[model_type].from_pretrained(tmp_path / "adapter", trust_remote_code=True).eval()
    assert torch.equal(outputs(beside), expected)


def test_an_adapter_of_a_model_in_four_bits_is_trained_saved_and_loaded(tmp_path):
    config = small_config("bert", vocab_size=30, hidden_size=64, intermediate_size=64)
    transformers.BertForTokenClassification(config).save_pretrained(tmp_path / "bert")
    bits = transformers.BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=["classifier"])
    stock = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "bert", quantization_config=bits
    )
    query = stock.bert.encoder.layer[0].attention.self.query
    assert query.weight.dtype == torch.uint8
    plain = {name: batch(stock)[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        without_biases = stock(**plain)[0]
    model = add_relation_bias(stock, labels=LABELS, vectors=True)
    expected = outputs(model)
    # Another attention kernel, and bitsandbytes multiplies in bfloat16 where the processor does.
    torch.testing.assert_close(expected, without_biases, rtol=0, atol=2**-8)
    model.save_pretrained(tmp_path / "base")
    base = AutoModelForTokenClassification.from_pretrained(
        tmp_path / "base", trust_remote_code=True
    )
    options = lora_options(base, task_type="TOKEN_CLS")
    adapted = get_peft_model(prepare_model_for_kbit_training(base), LoraConfig(**options))
    adam = torch.optim.AdamW(parameter_groups(adapted, lr=1e-3, bias_lr=1e-1))
    adapted.train()(**batch(base), labels=batch(base)["input_ids"] % 2).loss.backward()
    adam.step()
    adapted.eval().save_pretrained(tmp_path / "adapter")
    loaded = AutoPeftModelForTokenClassification.from_pretrained(
        tmp_path / "adapter", trust_remote_code=True
    ).eval()
    assert not torch.equal(outputs(adapted), expected)
    assert torch.equal(outputs(loaded), outputs(adapted))
    merged = outputs(loaded.merge_and_unload())  # rounded to four bits again
    torch.testing.assert_close(merged, outputs(adapted), rtol=0, atol=0.1)


def test_pipelines_load_a_saved_model(tmp_path):
    """Biases of the sentence need no trees."""
    write_bert(tmp_path / "bert", ["the old dog sees a cat"] * 5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    stock = AutoModelForSequenceClassification.from_pretrained(tmp_path / "bert")
    model = add_relation_bias(stock, "sequence").eval()
    torch.nn.init.normal_(model.bert.encoder.layer[0].attention.self.relation_bias.sequence_bias)
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "model")
    folder = str(tmp_path / "model")
    classify = transformers.pipeline("text-classification", folder, trust_remote_code=True)
    assert isinstance(classify.model, BiasedModel)
    with torch.no_grad():
        logits = model(**tokenizer("the dog", return_tensors="pt")).logits
    scores = classify("the dog", top_k=None, function_to_apply="none")
    # Threads and the place of a tensor in memory change the last bits.
    assert sorted(row["score"] for row in scores) == pytest.approx(
        sorted(logits[0].tolist()), abs=1e-6
    )


class Chains:
    """A parser whose trees are chains of words."""

    def parse(self, lines):
        for line in lines:
            words = line.split()
            heads = DependencyTree([0, *range(1, len(words))])  # 0: the root
            yield ParsedSentence(
                words, [True] * len(words), tree=heads, deprels=LABELS[: len(words)]
            )


@pytest.mark.parametrize("size", [1, 3])
def test_pipelines_read_trees_by_a_tokenizer_that_parses(tmp_path, size):
    lines = ["the old dog", "a cat", "  the  dog "]
    write_bert(tmp_path / "bert", lines * 5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    model = add_relation_bias(
        AutoModelForTokenClassification.from_pretrained(tmp_path / "bert"), labels=LABELS
    )
    for name, table in model.named_parameters():
        if ".relation_" in name:
            torch.nn.init.normal_(table)
    model.save_pretrained(tmp_path / "model")
    pipeline = partial(transformers.pipeline, model=str(tmp_path / "model"), trust_remote_code=True)
    parsing = parsing_tokenizer(tokenizer, Chains(), LABELS)
    assert type(tokenizer) is not type(parsing)
    assert parsing("a cat")["src_heads"] == [0, 0]
    assert parsing(["a cat"])["src_words"] == [[-1, *parsing("a cat").word_ids()[1:-1], -1]]
    tag = pipeline("token-classification", tokenizer=parsing, batch_size=size, ignore_labels=[])
    extract = pipeline("feature-extraction", tokenizer=parsing, batch_size=size)
    encoder = AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True)
    model.eval()
    for line, tags, states in zip(lines, tag(lines), extract(lines), strict=True):
        text = " ".join(line.split())
        encoded = tokenizer(text, return_tensors="pt")
        encoded |= collate(encoded, list(Chains().parse([line])), LABELS)
        with torch.no_grad():
            scores = model(**encoded).logits[0].softmax(-1).max(-1).values[1:-1]
            expected = encoder(**encoded).last_hidden_state
        assert [row["score"] for row in tags] == pytest.approx(scores.tolist(), rel=1e-6)
        piped = torch.tensor(states)[:, : expected.size(1)]
        if size == 1:
            assert torch.equal(piped, expected)
        torch.testing.assert_close(piped, expected)
        spelled = [line[row["start"] : row["end"]] for row in tags]
        assert "".join(spelled) == text.replace(" ", "")
    with pytest.raises(UserError, match="pairs and words have no parse"):
        parsing("a cat", "a dog")
    with pytest.raises(UserError, match="pairs and words have no parse"):
        parsing([["a", "cat"]], is_split_into_words=True)


@pytest.fixture
def parsing(tmp_path):
    write_bert(tmp_path / "bert", ["the old dog", "a cat"] * 5)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "bert")
    return parsing_tokenizer(tokenizer, Chains(), LABELS), tokenizer


def test_a_tokenizer_that_parses_goes_to_other_processes(parsing):
    parsing[0].padding_side = "left"
    lines = ["the old dog", "a cat"]
    for tokenizer in (pickle.loads(pickle.dumps(parsing[0])), copy.deepcopy(parsing[0])):
        assert tokenizer(lines, padding=True) == parsing[0](lines, padding=True)
        assert tokenizer.padding_side == "left"


def test_a_tokenizer_that_parses_shares_no_settings_with_its_model(parsing):
    for first, second in (parsing, parsing[::-1]):
        first("a cat", truncation=True, max_length=3, padding="max_length")
        assert None not in (first.backend_tokenizer.truncation, first.backend_tokenizer.padding)
        assert second.backend_tokenizer.truncation is second.backend_tokenizer.padding is None
        first("a cat")
    parsing[0].add_tokens("newword")
    assert "newword" not in parsing[1].get_vocab()


@pytest.mark.parametrize("kind", [None, "pt", "np"])
@pytest.mark.parametrize("lines", ["the old dog", ["a cat", "the old dog"]])
def test_each_row_of_a_long_text_has_the_tree_of_the_text(parsing, lines, kind):
    options = {"truncation": True, "max_length": 4, "return_overflowing_tokens": True}
    rows = parsing[0](lines, padding=True, return_tensors=kind, **options)
    words = [[-1, 0, 1, -1], [-1, 2, -1, -1]]  # of the old dog
    heads, labels = [[0, 0, 0]] * 2, [[0, 1, 2]] * 2
    if isinstance(lines, list):
        words, heads, labels = [words[0], *words], [[0, 0, -1], *heads], [[0, 1, 0], *labels]
    for name, expected in (("words", words), ("heads", heads), ("deprels", labels)):
        assert torch.as_tensor(rows[f"src_{name}"]).tolist() == expected


def test_rows_of_different_lengths_are_lists(parsing):
    rows = parsing[0](["a cat", "the old dog"])
    assert list(map(len, rows["src_words"])) == list(map(len, rows["input_ids"])) == [4, 5]
    with pytest.raises(UserError, match="expected one parse per sentence: 1 for 2 sentences"):
        collate(parsing[1](["a cat", "the old dog"]), [*Chains().parse(["a cat"])])
    with pytest.raises(UserError, match="tokenize with padding"):
        collate(parsing[1](["a cat", "the old dog"]), [*Chains().parse(["a cat", "the old dog"])])


def test_the_code_in_the_folder_names_what_to_install(tmp_path, monkeypatch):
    biased("bert").save_pretrained(tmp_path / "model")
    # As if the package were not installed.
    monkeypatch.setitem(sys.modules, "fairseq_phrase.huggingface.biased_models", None)
    with pytest.raises(ImportError, match=r"pip install 'fairseq-phrase\[transformers\] @ "):
        AutoModel.from_pretrained(tmp_path / "model", trust_remote_code=True)


def test_a_folder_has_one_file_of_code_and_the_classes_of_its_type(tmp_path):
    model = biased("bert")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["auto_map"]["AutoModel"] == "modeling_relation_bias.BertModel"
    assert config["auto_map"]["AutoModelForMaskedLM"] == "modeling_relation_bias.BertForMaskedLM"
    assert [path.name for path in tmp_path.glob("*.py")] == ["modeling_relation_bias.py"]


STRANGERS = "stranger/evil--evil"


@pytest.mark.parametrize("model_type", ["bert", "nomic_bert", "jina_embeddings_v3"])
def test_the_code_that_the_base_model_names_does_not_run(model_type, tmp_path):
    """The public configurations of Nomic BERT and Jina v3 name code, which transformers has now."""
    config = small_config(model_type, vocab_size=30)
    auto_classes = AutoModel, AutoModelForTokenClassification
    AutoModelForTokenClassification.from_config(config).save_pretrained(tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    names = ("AutoConfig", "AutoTokenizer", "AutoModelForQuestionAnswering")
    content = json.loads(path.read_text()) | {
        "auto_map": dict.fromkeys(names, f"{STRANGERS}.Evil"),
        "custom_pipelines": {"token-classification": {"impl": f"{STRANGERS}.Evil", "pt": []}},
    }
    path.write_text(json.dumps(content))
    stock = AutoModelForTokenClassification.from_pretrained(tmp_path / "base")
    model = add_relation_bias(stock, labels=LABELS)
    model.save_pretrained(tmp_path / "model")
    options = lora_options(model, task_type="TOKEN_CLS", target_modules=["query", "q_proj"])
    get_peft_model(model, LoraConfig(**options)).save_pretrained(tmp_path / "adapter")
    merged = AutoPeftModelForTokenClassification.from_pretrained(
        tmp_path / "adapter", trust_remote_code=True
    ).merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for folder in ("model", "merged"):
        for auto_class in auto_classes:
            auto_class.from_pretrained(tmp_path / folder, trust_remote_code=True)
    for file in tmp_path.glob("[!b]*/*.json"):
        assert "stranger" not in file.read_text(), file


def test_the_file_goes_to_the_hub_with_the_model(tmp_path, monkeypatch):
    model, pushed = biased("bert"), []
    monkeypatch.setattr(type(model), "push_to_hub", lambda self, *names, **options: pushed.append(
        (names, options)), raising=False)  # fmt: skip
    model.save_pretrained(tmp_path / "name", push_to_hub=True, private=True)
    assert pushed == [(("name",), {"private": True})]


@pytest.mark.parametrize("model_type", ["bert", "bart"])
def test_a_saved_encoder_is_not_loaded_as_a_decoder(model_type, tmp_path):
    biased(model_type).save_pretrained(tmp_path)
    for load in (
        lambda: AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True),
        lambda: from_pretrained(AutoModelForCausalLM, tmp_path),
    ):
        with pytest.raises(UserError, match="is a decoder without an encoder"):
            load()


def test_bad_options_are_refused_by_auto_classes_too(tmp_path):
    model = biased("bert")
    model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="'flash_attention_2' takes no biases"):
        AutoModel.from_pretrained(
            tmp_path, trust_remote_code=True, attn_implementation="flash_attention_2"
        )
    eager = AutoModelForTokenClassification.from_pretrained(
        tmp_path, trust_remote_code=True, attn_implementation="eager"
    )
    assert torch.equal(outputs(eager), outputs(model))
    for name in ("relation_bias.tree_bias", "relation_vectors.value_vectors.tree_bias"):
        lost = {
            n: p for n, p in model.state_dict().items() if f"layer.1.attention.self.{name}" not in n
        }
        assert len(lost) < len(model.state_dict())
        model.save_pretrained(tmp_path, state_dict=lost)
        with pytest.raises(UserError, match=rf"its weights lack .*layer\.1.*{name}"):
            AutoModel.from_pretrained(tmp_path, trust_remote_code=True)


@pytest.mark.parametrize("part", ["encoder", "decoder", None])
def test_a_configuration_does_not_choose_code(part, tmp_path):
    sizes = small_config("bert")
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(sizes, sizes)
    add_relation_bias(transformers.EncoderDecoderModel(config)).save_pretrained(tmp_path)
    loads = (
        lambda **given: from_pretrained(AutoModelForSeq2SeqLM, tmp_path, **given),
        lambda **given: AutoModelForSeq2SeqLM.from_pretrained(
            tmp_path, trust_remote_code=True, **given
        ),
    )
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    inner = getattr(config, part) if part else config
    if part:
        inner._attn_implementation_internal = "kernels-community/flash-attn2"
    for load in loads:
        model = load(config=config, experts_implementation="eager")
        assert model.config._experts_implementation == "eager"
        names = {p.config._attn_implementation for p in model.modules() if hasattr(p, "config")}
        assert names == {"fairseq_phrase_sdpa"}
        with pytest.raises(UserError, match=r"experts_implementation='sonicmoe' of .* code: "):
            load(experts_implementation="sonicmoe")
    inner._experts_implementation_internal = "sonicmoe"  # a repository's code
    for load in loads:
        with pytest.raises(UserError, match=f"'sonicmoe' of the {inner.model_type} configuration"):
            load(config=config)


def test_the_experts_of_a_folder_do_not_choose_code(tmp_path):
    biased("bert").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {"experts_implementation": "sonicmoe"}
    path.write_text(json.dumps(values))
    for load in (partial(from_pretrained, AutoModel), AutoModel.from_pretrained):
        with pytest.raises(UserError, match="'sonicmoe' of the bert configuration may fetch code"):
            load(tmp_path, trust_remote_code=True)


def test_a_class_with_biases_loads_its_own_models(tmp_path):
    model = biased("bert")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(outputs(loaded), outputs(model))
    assert torch.equal(outputs(from_pretrained(type(model), tmp_path)), outputs(model))
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]


def test_an_adapter_of_transformers_is_saved_alone(tmp_path):
    model = biased("bert")
    model.save_pretrained(tmp_path / "base")
    add_adapter_of_transformers(model, LoraConfig(**lora_options(model)))
    torch.nn.init.normal_(
        model.bert.encoder.layer[0]
        .attention.self.relation_bias.modules_to_save["default"]
        .tree_bias
    )
    model.save_pretrained(tmp_path / "adapter")
    assert not list((tmp_path / "adapter").glob("*.py"))
    base = from_pretrained(AutoModelForTokenClassification, tmp_path / "base")
    loaded = PeftModel.from_pretrained(base, tmp_path / "adapter")
    assert torch.equal(outputs(loaded), outputs(model))
