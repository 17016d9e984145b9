"""Encoders of transformers: the model's own function at the start, order of padding, bad folders."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import shutil
from argparse import Namespace
from functools import partial

import pytest
import torch
import transformers
from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from tokenizers import normalizers, pre_tokenizers

from fairseq_phrase.checkpoints.pretrained import (
    PretrainedOptions,
    begin_from_checkpoint,
    take_options,
)
from fairseq_phrase.checkpoints.trust import load_checkpoint
from fairseq_phrase.data.subwords.encoded_sentences import encode_sentence
from fairseq_phrase.data.subwords.segmenters import EveryWord, TokenizerSegmenter, tokenizer_file
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.huggingface_encoder import HuggingFaceEncoder, take_configuration
from fairseq_phrase.models.huggingface_vocabulary import load_tokenizer
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.testing import SIZES
from tests.support.huggingface_models import (
    tokenizer_of_bytes,
    tokenizer_of_metaspace,
    write_bert,
    write_family,
    write_model,
)
from tests.support.labellers import build, make_task

LINES = ["the old dog sees a cat", "every farmer admires the yellow horse", "a watch"]
#: White space does not separate all words of these lines.
TEXT = ["the old dog (a cat) sleeps.", "«every farmer» admires the yellow-horse!", "a watch?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_bert(tmp_path_factory.mktemp("bert") / "model", LINES * 5)


@pytest.fixture
def task(folder):
    return task_of(folder)


def task_of(folder):
    task = make_task("word")
    task.source_dictionary = Dictionary()
    for symbol in TokenizerSegmenter(tokenizer_file(str(folder))).vocabulary:
        task.source_dictionary.add_symbol(symbol)
    task.source_dictionary.pad_to_multiple_(8)
    return task


def words_of(line):
    """A sentence whose words are separated by white space, or are marks."""
    matches = re.findall(r"(\s|^)?(\w+|[^\w\s])", line)
    return ParsedSentence(
        [word for _, word in matches], [s != "" or not n for n, (s, _) in enumerate(matches)]
    )


def batch(task, segmenter, left_pad=False, lines=LINES):
    """Lines as fairseq's batch, with a chain of words as their trees."""
    rows = [encode_sentence(words_of(line), segmenter) for line in lines]
    tokens = [
        [task.source_dictionary.index(subword) for subword in row.subwords] + [2] for row in rows
    ]
    words = [[*row.words, -1] for row in rows]
    heads = [[max(0, i - 1) for i in range(row.num_words)] for row in rows]

    def padded(values, pad, left=False):
        longest = max(map(len, values))
        fill = [[pad] * (longest - len(row)) for row in values]
        return torch.tensor(
            [f + row if left else row + f for f, row in zip(fill, values, strict=True)]
        )

    return {
        "src_tokens": padded(tokens, 1, left_pad),
        "src_words": padded(words, -1, left_pad),
        "src_heads": padded(heads, -1),
        "src_deprels": padded([[4] * len(row) for row in heads], -1),
    }


@pytest.fixture
def segmenter(folder):
    return TokenizerSegmenter(tokenizer_file(str(folder)))


def encoder_of(folder, task, **options):
    """As users build it: :func:`tests.support.labellers.build` replaces zeros."""
    sizes = {f"encoder_{name}": value for name, value in SIZES.items()}
    model_options = {"encoder": "huggingface", "huggingface_model": str(folder), **sizes, **options}
    cfg = MODEL_DATACLASS_REGISTRY["labeller"](**model_options)
    return ARCH_MODEL_REGISTRY["labeller"].build_model(cfg, task).encoder.double().eval()


@pytest.mark.parametrize("left_pad", [False, True])
@pytest.mark.parametrize("options", [{}, {"relation_bias": "both", "relation_labels": True}])
def test_it_starts_as_the_models_own_function(folder, task, segmenter, left_pad, options):
    encoder = encoder_of(folder, task, **options)
    inputs = batch(task, segmenter, left_pad)
    output = encoder(**inputs, return_all_hiddens=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    for row, line in enumerate(LINES):
        ids = tokenizer(line, return_tensors="pt")
        expected = model(**ids).last_hidden_state[0, 1:]
        real = inputs["src_tokens"][row].ne(1)
        torch.testing.assert_close(
            output["encoder_out"][0][real, row], expected, rtol=0, atol=1e-12
        )
    assert len(output["encoder_states"]) == 3


#: Types, padded on the right and on the left in turn.
OTHER_TYPES = zip(
    (
        *("roberta", "distilbert", "bart", "t5", "mt5", "xlm-roberta", "marian", "m2m_100"),
        *("camembert", "electra", "modernbert", "eurobert", "gpt2", "llama"),
    ),
    itertools.cycle([False, True]),
)


@pytest.mark.parametrize(("model_type", "left_pad"), OTHER_TYPES)
def test_other_models_start_as_their_own_function(tmp_path, model_type, left_pad):
    folder = write_model(model_type, tmp_path / "model", TEXT * 5)
    task, segmenter = task_of(folder), TokenizerSegmenter(tokenizer_file(str(folder)))
    encoder = encoder_of(folder, task, relation_bias="both", relation_labels=True)
    inputs = batch(task, segmenter, left_pad, TEXT)
    padded_states = encoder(**inputs)["encoder_out"][0]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    for row, line in enumerate(TEXT):
        ids = tokenizer(line, return_tensors="pt", return_token_type_ids=False)
        real = inputs["src_tokens"][row].ne(1)
        states = model(**ids).last_hidden_state[0]
        expected = states[tokenizer.cls_token_id is not None :]  # T5 and Marian have no <s>
        torch.testing.assert_close(padded_states[real, row], expected, rtol=0, atol=1e-12)
    (padded_states * torch.randn_like(padded_states)).sum().backward()
    biases = [p for n, p in encoder.named_parameters() if ".relation_bias." in n]
    assert len(biases) == 6
    assert all(p.grad.any() for p in biases)


#: Families, the language of sentences, and the tokens around them.
FRAMES = [
    ("NllbTokenizer", "deu_Latn", ["deu_Latn"], ["</s>"]),
    ("MBart50Tokenizer", "de_DE", ["de_DE"], ["</s>"]),
    ("MBartTokenizer", "de_DE", [], ["</s>", "de_DE"]),
    ("XLMRobertaTokenizer", None, ["<s>"], ["</s>"]),
    ("T5Tokenizer", None, [], ["</s>"]),
    ("LlamaTokenizer", None, ["<s>"], []),
    ("GemmaTokenizer", None, ["<bos>"], []),
    ("Qwen2Tokenizer", None, [], []),
    ("GPT2Tokenizer", None, [], []),
    ("XLNetTokenizer", None, [], ["<sep>", "<cls>"]),
]
LANGUAGE = [(name, language) for name, language, *_ in FRAMES]
SIDES = itertools.cycle([False, True])


def framed(tmp_path, name, language, **options):
    """An encoder of a family, its task, and the family's own tokenizer and model."""
    folder = write_family(name, tmp_path / "model", TEXT * 5)
    task = task_of(folder)
    biases = {"relation_bias": "none"} if name == "XLNetTokenizer" else {"relation_bias": "both"}
    encoder = encoder_of(folder, task, huggingface_language=language, **biases, **options)
    language_options = {} if language is None else {"src_lang": language}
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **language_options)
    model = transformers.AutoModel.from_pretrained(folder).double().eval()
    model = model.get_encoder() if model.config.is_encoder_decoder else model
    return encoder, task, tokenizer, model


@pytest.mark.parametrize(
    ("name", "language", "before", "after", "left_pad"),
    [(*frame, left_pad) for frame, left_pad in zip(FRAMES, SIDES, strict=False)],
)
def test_a_sentence_has_the_frame_of_the_models_own_tokenizer(
    tmp_path, name, language, before, after, left_pad
):
    encoder, task, tokenizer, model = framed(tmp_path, name, language)
    inputs = batch(task, TokenizerSegmenter(tmp_path / "model/tokenizer.json"), left_pad, TEXT)
    encoded = encoder(**inputs, return_all_hiddens=True)
    for row, line in enumerate(TEXT):
        ids = tokenizer(line, return_tensors="pt", return_token_type_ids=False)
        names = tokenizer.convert_ids_to_tokens(ids["input_ids"][0])
        assert names[: len(before)] == before
        assert names[len(names) - len(after) :] == after
        output = model(**ids, output_hidden_states=True)
        real = inputs["src_tokens"][row].ne(1)
        for states, actual in (
            (output.last_hidden_state, encoded["encoder_out"][0]),
            (output.hidden_states[1], encoded["encoder_states"][1]),
        ):
            of_text = slice(len(before), len(before) + int(real.sum()))
            expected = states[0, of_text]
            if not after:  # no end is read, so it has no state
                expected = torch.cat([expected, expected.new_zeros(1, expected.size(1))])
            torch.testing.assert_close(actual[real, row], expected, rtol=0, atol=1e-12)
        padding = ~real
        padding[real.nonzero()[-1]] = not after
        assert torch.equal(encoded["encoder_padding_mask"][0][row], padding)
    assert encoded["src_lengths"][0][:, 0].tolist() == inputs["src_tokens"].ne(1).sum(1).tolist()


@pytest.mark.parametrize(("name", "language"), LANGUAGE)
def test_a_checkpoint_has_the_frame(tmp_path, name, language):
    encoder, task, *_ = framed(tmp_path, name, language)
    segmenter = TokenizerSegmenter(tmp_path / "model/tokenizer.json")
    options = {"relation_bias": encoder.cfg.relation_bias}
    cfg = encoder.cfg
    take_configuration(cfg)
    shutil.rmtree(tmp_path / "model")
    again = build(
        "word", "huggingface", task, huggingface_config=cfg.huggingface_config,
        huggingface_frame=cfg.huggingface_frame, **options,
    ).encoder  # fmt: skip
    assert (encoder.before.tolist(), encoder.after.tolist()) == (
        again.before.tolist(), again.after.tolist()
    )  # fmt: skip
    again.load_state_dict(encoder.state_dict())
    inputs = batch(task, segmenter, lines=TEXT)
    states, expected = (
        encoder_or_copy(**inputs)["encoder_out"][0] for encoder_or_copy in (again, encoder)
    )
    torch.testing.assert_close(states, expected)


@pytest.mark.parametrize(
    "frame",
    ["[1]", "{", '{"before": [1]}', '{"before": [-1], "after": []}', '{"before": 1, "after": 2}'],
)
def test_a_frame_in_a_checkpoint_is_checked(task, frame):
    with pytest.raises(
        UserError, match=r"huggingface_frame of a checkpoint is .* expected the numbers"
    ):
        build("word", "huggingface", task, huggingface_frame=frame)


@pytest.mark.parametrize(
    ("name", "language", "left_pad"),
    [(*pair, side) for pair, side in zip(LANGUAGE, SIDES, strict=False)],
)
def test_an_empty_line_and_gradients_are_finite(tmp_path, name, language, left_pad):
    encoder, task, *_ = framed(tmp_path, name, language)
    inputs = batch(task, TokenizerSegmenter(tmp_path / "model/tokenizer.json"), left_pad, TEXT)
    empty = torch.tensor([1] * (inputs["src_tokens"].size(1) - 1) + [2])
    empty = empty if left_pad else empty.flip(0)
    inputs["src_tokens"] = torch.cat([inputs["src_tokens"], empty[None]])
    for field in ("src_words", "src_heads", "src_deprels"):
        nothing = inputs[field].new_full((1, inputs[field].size(1)), -1)
        inputs[field] = torch.cat([inputs[field], nothing])
    output = encoder.train()(**inputs)
    end = empty.eq(2)
    assert output["encoder_padding_mask"][0][-1].equal(~end)
    states = output["encoder_out"][0]
    real = inputs["src_tokens"].ne(1)
    assert states.transpose(0, 1)[real].isfinite().all()
    states.transpose(0, 1)[real].sum().backward()
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)
    alone = {field: rows[-1:, :1] for field, rows in inputs.items()}
    alone["src_tokens"] = torch.tensor([[2]])
    expected = encoder.eval()(**alone)["encoder_out"][0]
    together = encoder(**inputs)["encoder_out"][0][end, -1]
    torch.testing.assert_close(together, expected[:, 0])


def test_a_sentence_may_fill_all_positions(tmp_path):
    encoder, *_ = framed(tmp_path, "MBartTokenizer", "de_DE", max_source_positions=500)
    longest = torch.tensor([[5] * (encoder.max_positions() - 1) + [2]])
    words = torch.zeros_like(longest).masked_fill(longest == 2, -1)
    parse = {"src_words": words, "src_heads": torch.zeros(1, 1, dtype=torch.long)}
    encoder(longest, **parse)
    assert encoder.max_positions() == 128 - 1  # one for the language


def test_the_language_is_the_tokenizers_unless_it_is_given(tmp_path):
    folder = write_family("NllbTokenizer", tmp_path / "model", TEXT * 5)
    task = task_of(folder)
    number = task.source_dictionary.index
    codes = transformers.AutoTokenizer.from_pretrained(folder).get_vocab()
    assert number("eng_Latn") != task.source_dictionary.unk()
    assert encoder_of(folder, task).before.tolist() == [codes["eng_Latn"]]
    german = encoder_of(folder, task, huggingface_language="deu_Latn")
    assert german.before.tolist() == [codes["deu_Latn"]]
    refused(folder, task, "--huggingface-language de: .* not know it: expected one of ace_Arab",
            huggingface_language="de")  # fmt: skip
    path = folder / "tokenizer_config.json"  # as in the released folders
    path.write_text(json.dumps({**json.loads(path.read_text()), "src_lang": None}))
    refused(
        folder, task, "marks the language of a sentence: give --huggingface-language, one of ace"
    )
    bert = write_bert(tmp_path / "bert", LINES * 5)
    refused(bert, task_of(bert), "--huggingface-language deu_Latn: .* marks no language: leave it out",
            huggingface_language="deu_Latn")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("NllbTokenizer", None),
        ("MBart50Tokenizer", None),
        ("XLMRobertaTokenizer", None),
        ("MBartTokenizer", "the tokenizer of this mbart model puts no token before a sentence"),
        ("T5Tokenizer", "the tokenizer of this t5 model puts no token before a sentence"),
        ("GPT2Tokenizer", "the tokenizer of this gpt2 model puts no token before a sentence"),
        ("LlamaTokenizer", "the first token of a llama model does not read the tokens after it"),
        ("GemmaTokenizer", "the first token of a gemma model does not read the tokens after it"),
    ],
)
def test_pooling_of_the_first_token_needs_one_that_reads_the_sentence(tmp_path, name, reason):
    folder = write_family(name, tmp_path / "model", TEXT * 5)
    task = make_task("sentence")
    task.source_dictionary = task_of(folder).source_dictionary
    sizes = {f"encoder_{part}": value for part, value in SIZES.items()}
    cfg = MODEL_DATACLASS_REGISTRY["labeller"](
        encoder="huggingface",
        huggingface_model=str(folder),
        pooling="cls",
        relation_labels=True,
        **sizes,
    )
    make = partial(ARCH_MODEL_REGISTRY["labeller"].build_model, cfg, task)
    if reason:
        with pytest.raises(
            UserError, match=f"--pooling cls: {reason}: expected mean, attention or"
        ):
            make()
        return
    model = make().double().eval()
    inputs = batch(task, TokenizerSegmenter(folder / "tokenizer.json"), lines=TEXT)
    logits = model(inputs.pop("src_tokens"), **inputs)
    stock = transformers.AutoModel.from_pretrained(folder).double().eval()
    stock = stock.get_encoder() if stock.config.is_encoder_decoder else stock
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for row, line in enumerate(TEXT):
        state = stock(**tokenizer(line, return_tensors="pt")).last_hidden_state[:, :1]
        torch.testing.assert_close(logits[row], model.head(state)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("left_pad", [False, True])
def test_biases_change_the_states_and_have_gradients(folder, task, segmenter, left_pad):
    encoder = encoder_of(folder, task, relation_bias="both", relation_labels=True)
    inputs = batch(task, segmenter, left_pad)
    before = encoder(**inputs)["encoder_out"][0]
    for name, parameter in encoder.named_parameters():
        if name.endswith(("tree_bias", "label_bias", "sequence_bias")):
            torch.nn.init.normal_(parameter)
    after = encoder(**inputs)["encoder_out"][0]
    assert not torch.allclose(before, after)
    states_of_other_side = encoder(**batch(task, segmenter, not left_pad))["encoder_out"][0]
    for row in range(len(LINES)):
        real = inputs["src_tokens"][row].ne(1)
        moved = batch(task, segmenter, not left_pad)["src_tokens"][row].ne(1)
        torch.testing.assert_close(after[real, row], states_of_other_side[moved, row])
    after.square().sum().backward()
    biases = {n: p for n, p in encoder.named_parameters() if n.endswith("_bias")}
    assert len(biases) == 6
    assert all(p.grad is not None and p.grad.any() for p in biases.values())
    assert biases.keys().isdisjoint(encoder.pretrained_names)
    assert encoder.pretrained_names == {n for n, _ in encoder.named_parameters()} - biases.keys()


@pytest.mark.parametrize("relation_bias", ["both", "none"])
def test_biases_of_a_frozen_encoder_are_warned_about(folder, task, caplog, relation_bias):
    model = build(
        "word", "huggingface", task, huggingface_model=str(folder), relation_bias=relation_bias
    )
    for name, parameter in model.named_parameters():
        if ".relation_bias." in name:
            torch.nn.init.zeros_(parameter)
    begin_from_checkpoint(model, PretrainedOptions(freeze_encoder=True), task)
    assert ("relation biases of the encoder are 0" in caplog.text) == (relation_bias == "both")


def test_a_first_token_of_labelling_is_the_models(folder, task, segmenter):
    encoder = encoder_of(folder, task, relation_bias="none")
    tokens = batch(task, segmenter)["src_tokens"][:1]
    with_first = torch.cat([torch.tensor([[0]]), tokens], 1)
    states = encoder(with_first)["encoder_out"][0]
    torch.testing.assert_close(states[1:], encoder(tokens)["encoder_out"][0])


def test_a_checkpoint_needs_no_folder(folder, task, segmenter):
    model = build("word", "huggingface", task, huggingface_model=str(folder))
    cfg = model.encoder.cfg
    take_configuration(cfg)
    again = build("word", "huggingface", task, huggingface_config=cfg.huggingface_config)
    again.load_state_dict(model.state_dict())
    inputs = batch(task, segmenter)
    torch.testing.assert_close(model(**inputs), again(**inputs))


def changed(folder, tmp_path, **config):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    return copy


def refused(folder, task, match, **options):
    with pytest.raises(UserError, match=match):
        encoder_of(folder, task, **options)


def test_bad_folders_are_named(folder, task, tmp_path):
    refused(tmp_path / "nowhere", task, "nowhere: no model is there")
    refused(
        folder, task, "--encoder-embed-dim 32: .* has 16: give --encoder-embed-dim 16",
        encoder_embed_dim=32,
    )  # fmt: skip
    refused(folder, task, "--encoder-layers 3: .* has 2: give --encoder-layers 2", encoder_layers=3)
    refused(folder, task, "--relation-source enhanced: .*leave it out", relation_source="enhanced")
    copy = changed(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    refused(copy, task, "its weights cannot be loaded .*expected model.safetensors")
    shutil.rmtree(copy)
    refused(
        changed(folder, tmp_path, is_decoder=True), task, "copy is a decoder without an encoder"
    )
    shutil.rmtree(copy)
    refused(changed(folder, tmp_path, relation_bias={}), task, "copy has relation biases of")
    task.source_dictionary.add_symbol("Wörterbuch")
    refused(folder, task, "lacks 1 entries .* 'Wörterbuch': make the data with --bpe huggingface:")


def test_a_type_with_another_attention_has_no_biases(tmp_path):
    folder = write_model("deberta-v2", tmp_path / "model", LINES * 5)
    refused(folder, task_of(folder), "--relation-bias both: a deberta-v2 model takes no relation biases",
            relation_bias="both")  # fmt: skip
    assert encoder_of(folder, task_of(folder), relation_bias="none").pretrained_names


def test_weights_that_lack_a_layer_are_refused(folder, task, tmp_path):
    state = transformers.AutoModel.from_pretrained(folder).state_dict()
    lost = "encoder.layer.1.output.dense.weight"
    copy = changed(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    torch.save({n: t for n, t in state.items() if n != lost}, copy / "pytorch_model.bin")
    refused(copy, task, f"its weights lack {lost}")
    torch.save(state, copy / "pytorch_model.bin")
    assert encoder_of(copy, task).pretrained_names


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_a_pickle_of_more_than_tensors_is_not_run(folder, task, tmp_path):
    copy = changed(folder, tmp_path)
    (copy / "model.safetensors").unlink()
    (copy / "pytorch_model.bin").write_bytes(pickle.dumps(Harmful(str(tmp_path / "run"))))
    refused(copy, task, "its weights cannot be loaded")
    assert not (tmp_path / "run").exists()


def test_code_in_a_folder_is_not_run(folder, task, tmp_path):
    classes = {"AutoConfig": "code.C", "AutoModel": "code.C", "AutoTokenizer": ["code.C", "code.C"]}
    copy = changed(folder, tmp_path, auto_map=classes)
    (copy / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'run')!r})\n")
    settings = copy / "tokenizer_config.json"
    values = json.loads(settings.read_text()) | {"auto_map": classes, "tokenizer_class": "C"}
    settings.write_text(json.dumps(values))
    assert encoder_of(copy, task).pretrained_names
    load_tokenizer(str(copy), None)
    TokenizerSegmenter(copy / "tokenizer.json")
    values = json.loads((copy / "config.json").read_text()) | {"model_type": "unknown"}
    (copy / "config.json").write_text(json.dumps(values))
    refused(copy, task, "no model is there")
    assert not (tmp_path / "run").exists()


#: Names of attention for which transformers fetches and runs the code of a repository.
KERNELS = ["a/kernel", "kernels-community/flash-attn2", "flash_attention_2"]


@pytest.mark.parametrize("name", KERNELS)
def test_a_folder_does_not_choose_code(folder, task, tmp_path, name):
    changed_folder = changed(
        folder, tmp_path, attn_implementation=name, auto_map={"AutoModel": "a/b--c.D"}
    )
    with pytest.raises(ImportError):  # the package that fetches it is not installed
        transformers.AutoModel.from_pretrained(changed_folder, local_files_only=True)
    encoder = encoder_of(changed_folder, task, relation_bias="none")
    assert encoder.model.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize("name", KERNELS)
def test_a_configuration_in_a_checkpoint_does_not_choose_code(folder, task, name):
    values = json.loads(transformers.AutoConfig.from_pretrained(folder).to_json_string())
    values |= {"attn_implementation": name, "experts_implementation": "sonicmoe"}
    values |= {"auto_map": {"AutoModel": "a/b--c.D"}, "_name_or_path": "a/b"}
    encoder = encoder_of(
        "", task, huggingface_config=json.dumps(values), encoder_embed_dim=16, encoder_layers=2
    )
    config = encoder.model.config
    assert config._attn_implementation not in KERNELS
    assert config._experts_implementation != "sonicmoe"
    assert not hasattr(config, "auto_map")


def test_a_folder_that_a_checkpoint_names_is_not_read(folder, task, tmp_path):
    options = {"encoder": "huggingface", "huggingface_model": str(folder)}
    config = {**vars(MODEL_DATACLASS_REGISTRY["labeller"](**options)), "_name": "labeller"}
    config = {name: value for name, value in config.items() if "${" not in str(value)}
    path = tmp_path / "a.pt"
    torch.save({"cfg": {"model": config, "task": {}}, "model": {}}, path)
    assert load_checkpoint(path)["cfg"]["model"]["huggingface_model"] is None
    for mine in (None, "mine"):
        cfg = MODEL_DATACLASS_REGISTRY["labeller"](huggingface_model=mine)
        take_options(cfg, path)
        assert cfg.huggingface_model == mine


def test_a_tokenizer_without_word_ids_is_named(folder, tmp_path):
    copy = changed(folder, tmp_path)
    (copy / "tokenizer.json").unlink()
    with pytest.raises(
        UserError, match=r"no tokenizer.json, .*\(word_ids\): save a fast tokenizer"
    ):
        tokenizer_file(str(copy))


def test_words_are_segmented_as_in_their_line(segmenter, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for line in LINES:
        segmented = tokenizer(line.split(), is_split_into_words=True, add_special_tokens=False)
        subwords = [segmenter.segment_word(f"▁{word}") for word in line.split()]
        assert [p for word in subwords for p in word] == segmented.tokens()
        assert [i for i, word in enumerate(subwords) for _ in word] == segmented.word_ids()
        assert segmenter.join(" ".join(segmented.tokens())) == line


def with_space_before(lines):
    """A tokenizer as that of Llama, whose normalizer adds the space."""
    tokenizer = tokenizer_of_metaspace(lines)
    tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()
    parts = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(parts)
    return tokenizer


def bytes_with_space_before(lines):
    tokenizer = tokenizer_of_bytes(lines)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.mark.parametrize(
    "make",
    [
        tokenizer_of_bytes,
        bytes_with_space_before,
        with_space_before,
        *(partial(tokenizer_of_metaspace, scheme=s) for s in ("always", "first", "never")),
    ],
)
def test_marks_are_segmented_as_in_their_line(make, tmp_path):
    tokenizer = make(TEXT * 5)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    segmenter = TokenizerSegmenter(tmp_path / "tokenizer.json")
    for line in TEXT:
        subwords = tokenizer.encode(line, add_special_tokens=False).tokens
        assert encode_sentence(words_of(line), segmenter).subwords == subwords
        assert segmenter.join(" ".join(subwords)) == tokenizer.decoder.decode(subwords).strip()
    for line in LINES:  # words with labels, and without a parse
        subwords = tokenizer.encode(line, add_special_tokens=False).tokens
        assert EveryWord(segmenter).segment_line(line) == subwords


def test_layers_are_not_pruned_by_fairseqs_names():
    cfg = Namespace(encoder=Namespace(layers_to_keep="0,2"))
    with pytest.raises(UserError, match="--encoder-layers-to-keep 0,2 prunes layers by fairseq's"):
        HuggingFaceEncoder(cfg, Dictionary(), None)
