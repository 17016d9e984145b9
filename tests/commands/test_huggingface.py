"""A BERT to fine-tuned models with trees, by the commands: translation and labelling."""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.data_utils import load_indexed_dataset
from fairseq_cli import generate, interactive
from fairseq_cli import train as fairseq_train
from transformers import AutoTokenizer

from fairseq_phrase.cli.export import main as export
from fairseq_phrase.cli.label import main as label
from fairseq_phrase.cli.preprocess import main as preprocess
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines
from tests.support.commands import translations
from tests.support.huggingface_models import write_bert, write_model
from tests.support.labelled_corpora import make_data, write_corpus

USER = ["--user-dir", "fairseq_phrase"]
SIZES = ["--encoder-embed-dim", "16", "--encoder-layers", "2", "--encoder-ffn-embed-dim", "24"]
SIZES += ["--encoder-attention-heads", "2"]
TRAINING = [
    "--optimizer", "adam", "--lr", "0.005", "--seed", "1", "--num-workers", "0", "--max-tokens", "500",
    "--no-progress-bar", "--log-format", "simple", "--log-interval", "1", "--cpu",
]  # fmt: skip


def test_a_bert_translates_with_trees(synthetic_corpus, tmp_path, command):
    text = tmp_path / "text"
    text.mkdir()
    for split, count in (("train", 60), ("valid", 10), ("test", 10)):
        for suffix in ("de", "en", "de.conllu"):
            separator = "\n\n" if suffix.endswith("conllu") else "\n"
            parts = (synthetic_corpus / f"{split}.{suffix}").read_text().split(separator)[:count]
            (text / f"{split}.{suffix}").write_text(separator.join(parts) + separator)
    bert = write_bert(tmp_path / "bert", read_lines(text / "train.de"))
    data = tmp_path / "data"
    preprocess(
        ["-s", "de", "-t", "en", "--parser", "conllu", "--bpe", f"huggingface:{bert}"]
        + [f"--{split}pref={text / split}" for split in ("train", "valid", "test")]
        + ["--destdir", str(data), "--vocab-size", "60"]
    )
    manifest = Manifest.load(data, "de")
    assert (manifest.bpe, manifest.bpe_model) == ("huggingface", "tokenizer.json")
    assert (manifest.target_bpe, manifest.target_model) == ("sentencepiece", "spm.model")
    assert manifest.identity().entries["target-subword-model"].value == manifest.target_digest
    assert "##" in (data / "dict.de.txt").read_text()
    assert "▁" in (data / "dict.en.txt").read_text()

    def train(save, *options):
        return command(
            fairseq_train, data, *USER, "--task", "syntax_translation", *TRAINING, *SIZES,
            "--arch", "huggingface", "--decoder-embed-dim", "16", "--decoder-layers", "1",
            "--decoder-ffn-embed-dim", "24", "--decoder-attention-heads", "2",
            "--huggingface-model", bert, "--relation-bias", "both", "--save-dir", tmp_path / save,
            *options,
        )  # fmt: skip

    train("four", "--max-update", "4")
    # Half of the training, and the rest: the same parameters.
    train("two", "--max-update", "2", "--lr-scale-pretrained", "1")
    train("two", "--max-update", "4")
    four, two = (torch.load(tmp_path / s / "checkpoint_last.pt") for s in ("four", "two"))
    assert all(torch.equal(four["model"][name], two["model"][name]) for name in four["model"])
    assert any(four["model"][name].any() for name in four["model"] if "tree_bias" in name)
    # A frozen encoder, and one with a learning rate of 0, stay as they came.
    for save, option in (
        ("frozen", ["--freeze-encoder"]),
        ("slow", ["--lr-scale-pretrained", "0"]),
    ):
        train(save, "--max-update", "2", *option)
        model = torch.load(tmp_path / save / "checkpoint_last.pt")["model"]
        name = "encoder.model.encoder.layer.0.attention.self.query.weight"
        start = torch.load(tmp_path / "frozen" / "checkpoint_last.pt")["model"]
        assert torch.equal(model[name], start[name])
        assert not torch.equal(model[name], four["model"][name])

    shutil.rmtree(bert)  # the checkpoint has all that it needs
    path = ["--path", tmp_path / "four" / "checkpoint_last.pt", "--beam", "2", "--max-len-b", "10"]
    task = [*USER, "--task", "syntax_translation", *path, "--cpu"]
    printed = command(generate, data, *task, "--gen-subset", "test", "--batch-size", "5")
    translated = translations(printed)
    assert len(translated) == 10
    raw = ["--tokenizer", "syntax", "--bpe", "syntax", "--source-parser", f"gold:{text}/test.de"]
    raw += ["--input", text / "test.de", "--buffer-size", "20", "--batch-size", "5"]
    printed = command(interactive, data, *task, *raw)
    lines = translations(printed)
    assert lines == translated
    export([str(path[1]), str(data), str(tmp_path / "bundle"), "--source-parser", "none"])
    assert {"tokenizer.json", "spm.model"} <= {p.name for p in (tmp_path / "bundle").iterdir()}


@pytest.fixture(scope="module")
def of_two_models(synthetic_corpus, tmp_path_factory):
    """Data whose sides were split by two models, and the arguments that made them."""
    folder = tmp_path_factory.mktemp("two_models")
    for language in ("de", "en"):
        lines = list(read_lines(synthetic_corpus / f"train.{language}"))[:60]
        (folder / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    bert = write_bert(folder / "bert", read_lines(folder / "train.de"))
    common = ["-s", "de", "-t", "en", f"--trainpref={folder / 'train'}", "--vocab-size", "60"]
    data = folder / "data"
    preprocess([*common, "--bpe", f"huggingface:{bert}", "--destdir", str(data), "--parse", "both"])
    serialized = (data / "spm.model").read_bytes()
    (folder / "other.model").write_bytes(serialized + b"\x1a\x00")  # another, which splits the same
    return folder, common


def test_each_side_records_the_subword_model_of_the_other(of_two_models):
    folder, _ = of_two_models
    source, target = (Manifest.load(folder / "data", language) for language in ("de", "en"))
    assert source.bpe_digest == target.target_digest != source.target_digest == target.bpe_digest
    assert (source.target_model, target.target_model) == ("spm.model", "tokenizer.json")


@pytest.mark.fast(3)
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("BERT TGT", r"target-subword-model spm\.model \(\w+\) and a new one: .*--sentencepiece-model"),
        ("BERT SRC TGT OTHER", r"target-subword-model spm\.model \(\w+\) and .*other\.model \("),
        ("SRC TGT SPM", r"subword-model tokenizer\.json \(\w+\) and .*spm\.model \(\w+\): .*KIND:FOLDER"),
        ("TGT --bpe none", r"subword-model spm\.model \(\w+\) and --bpe none: "),
        ("BERT SRC TGT SPM", None),
        ("BERT SRC", None),
    ],
)  # fmt: skip
def test_a_dictionary_needs_the_subword_model_of_its_side(
    of_two_models, tmp_path, refused, given, message
):
    folder, common = of_two_models
    words = {
        "BERT": ["--bpe", f"huggingface:{folder / 'bert'}"],
        "SRC": ["--srcdict", f"{folder}/data/dict.de.txt"],
        "TGT": ["--tgtdict", f"{folder}/data/dict.en.txt"],
        "SPM": ["--sentencepiece-model", f"{folder}/data/spm.model"],
        "OTHER": ["--sentencepiece-model", f"{folder}/other.model"],
    }
    arguments = [*common, "--destdir", f"{tmp_path}/new"]
    for word in given.split():
        arguments += words.get(word, [word])
    if message is None:
        preprocess(arguments)
        return
    assert re.search(message, error := refused(preprocess, arguments)), error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("manifests", "model"), [(["de"], r"spm\.model \(\w+\)"), ([], "the one that made .*en.txt")]
)
def test_the_manifest_of_one_side_is_enough(of_two_models, tmp_path, refused, manifests, model):
    folder, common = of_two_models
    for name in ("dict.en.txt", *(f"syntax.{language}.json" for language in manifests)):
        shutil.copy(folder / "data" / name, tmp_path)
    bert = ["--bpe", f"huggingface:{folder / 'bert'}", "--tgtdict", f"{tmp_path}/dict.en.txt"]
    assert re.search(
        rf"target-subword-model {model} and a new one: ",
        error := refused(preprocess, [*common, "--destdir", f"{tmp_path}/new", *bert]),
    ), error


@pytest.mark.fast(1)
@pytest.mark.parametrize("labels", ["word", "sentence"])
def test_a_bert_labels_with_trees(tmp_path, command, capsys, labels):
    corpus = write_corpus(tmp_path / "corpus")
    bert = write_bert(tmp_path / "bert", read_lines(corpus / "train.en"))
    data = make_data(
        corpus, tmp_path / "data", labels, "--bpe", f"huggingface:{bert}", "--parser", "conllu"
    )
    log = command(
        fairseq_train, data, *USER, "--task", "syntax_labelling", *TRAINING, *SIZES,
        "--arch", "labeller", "--encoder", "huggingface", "--huggingface-model", bert,
        "--relation-labels", *(["--pooling", "cls"] if labels == "sentence" else []),
        "--criterion", "label_smoothed_cross_entropy", "--report-accuracy", "--max-epoch", "6",
        "--save-dir", tmp_path / "model",
    )  # fmt: skip
    accuracies = re.findall(r"valid on 'valid' subset.* accuracy ([\d.]+)", log)
    assert labels == "sentence" or float(accuracies[-1]) > 60
    text, model = corpus / "test.en", tmp_path / "model" / "checkpoint_last.pt"
    capsys.readouterr()
    label([str(data), str(text), "--path", str(model), "--source-parser", f"gold:{text}"])
    label_lines, lines = capsys.readouterr().out.splitlines(), text.read_text().splitlines()
    assert len(label_lines) == len(lines)
    if labels == "word":
        assert [len(label_line.split()) for label_line in label_lines] == [
            len(line.split()) for line in lines
        ]


def test_data_of_another_tokenizer_are_refused(tmp_path, command):
    corpus = write_corpus(tmp_path / "corpus")
    bert = write_bert(tmp_path / "bert", read_lines(corpus / "train.en"))
    data = make_data(corpus, tmp_path / "data", "word", "--parser", "conllu", "--vocab-size", "36")
    with pytest.raises(UserError, match="make the data with --bpe huggingface:"):
        command(
            fairseq_train, data, *USER, "--task", "syntax_labelling", *TRAINING, *SIZES, "--arch",
            "labeller", "--encoder", "huggingface", "--huggingface-model", bert, "--max-update", "1",
        )  # fmt: skip


def test_raw_text_gets_the_ids_of_xlm_r(tmp_path):
    lines = ["the dog (a cat) sleeps.", "a «yellow horse» runs!"]
    (tmp_path / "train.de").write_text("".join(f"{line}\n" for line in lines))
    text = ""
    for line in lines:
        for number, (word, space) in enumerate(re.findall(r"(\w+|[^\w\s])(\s?)", line), 1):
            relation = "dep" if number > 1 else "root"
            text += f"{number}\t{word}\t_\tX\t_\t_\t{number - 1}\t{relation}\t_\t"
            text += "_\n" if space else "SpaceAfter=No\n"
        text += "\n"
    (tmp_path / "train.de.conllu").write_text(text)
    folder = write_model("xlm-roberta", tmp_path / "xlm-r", lines * 5)
    data = tmp_path / "data"
    options = ["-s", "de", "--only-source", "--trainpref", str(tmp_path / "train")]
    options += ["--parser", "conllu", "--bpe", f"huggingface:{folder}"]
    preprocess([*options, "--destdir", str(data)])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    dictionary = Dictionary.load(str(data / "dict.txt"))
    stored = load_indexed_dataset(str(data / "train"), dictionary, "mmap")
    encoder = TextEncoder.from_data(data, "de", f"gold:{tmp_path}/train.de")
    for line, row, encoded in zip(lines, stored, encoder.encode_lines(lines), strict=True):
        assert dictionary.string(row).split() == tokenizer.tokenize(line) == encoded.subwords
