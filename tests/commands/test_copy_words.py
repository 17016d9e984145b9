"""Unknown words are copied: preprocessing, training, and the words back in every way to translate."""

from __future__ import annotations

import random
import re
import shutil
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.hub_utils import GeneratorHubInterface

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.store.copied_words import copied_path, stored
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import translator as translators
from fairseq_phrase.inference.source_sentence import dataset_sentence
from fairseq_phrase.lab.probing.probe_checkpoints import EncodedLines, SentenceVectors
from tests.support.commands import run
from tests.support.data_tasks import make_task
from tests.support.stores import write_arrays

VERBS = {"mag": "likes", "sieht": "sees", "hört": "hears", "ruft": "calls"}
MODEL = [
    "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--arch", "seq2seq",
    "--attention", "dot", "--cell", "gru", "--share-all-embeddings", "--dropout", "0",
    *(f"--{side}-{size}=48" for side in ("encoder", "decoder") for size in ("embed-dim", "hidden-size")),
]  # fmt: skip
TRAINING = [
    "--optimizer", "adam", "--lr", "0.01", "--clip-norm", "1", "--lr-scheduler", "polynomial_decay",
    "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--batch-size", "50",
    "--seed", "1", "--num-workers", "0", "--no-progress-bar", "--cpu", "--save-interval", "99",
]  # fmt: skip


def sentences(count, seed):
    """ "Xobu sieht Gira ." and "Xobu sees Gira .", with names that occur nowhere else."""
    rng = random.Random(seed)
    for _ in range(count):
        first, second = (
            "".join(rng.choice("BDFGKLMNPRSTVXZ") + rng.choice("aeiou") for _ in range(5))
            for _ in range(2)
        )
        verb = rng.choice([*VERBS])
        yield f"{first} {verb} {second} .", f"{first} {VERBS[verb]} {second} ."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    for seed, (split, count) in enumerate({"train": 1500, "valid": 20, "test": 53}.items()):
        pairs = [*sentences(count, seed)]
        for language, side in (("de", 0), ("en", 1)):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines, encoding="utf-8")
    return folder


def preprocess(corpus, data, *options):
    arguments = [
        "--source-lang", "de", "--target-lang", "en", "--parser", "none", "--source-tokenized",
        "--bpe", "none", "--min-count", 5, "--trainpref", corpus / "train", "--validpref",
        corpus / "valid", "--testpref", corpus / "test", "--destdir", data, *options,
    ]  # fmt: skip
    preprocess_command.main(list(map(str, arguments)))
    return data


@pytest.fixture(scope="module")
def data(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return preprocess(corpus, folder, "--joined-dictionary", "--copy-words", 3)


@pytest.fixture(scope="module")
def without_slots(corpus, tmp_path_factory):
    """Data with unknown words, none of which can be copied."""
    return preprocess(corpus, tmp_path_factory.mktemp("unknown"), "--joined-dictionary")


@pytest.fixture(scope="module")
def checkpoint(data, tmp_path_factory):
    save = tmp_path_factory.mktemp("save")
    log = run(
        "fairseq-train", data, *MODEL, *TRAINING, "--copy", "joint", "--save-dir", save,
        "--max-update", 150, "--total-num-update", 150, "--eval-bleu", "--eval-bleu-print-samples",
    )  # fmt: skip
    # Validation decodes references and translations with their words.
    example = re.search(r"example hypothesis: (.*)", log)[1]
    assert "<copy" not in example
    return save / "checkpoint_last.pt"


def test_every_way_to_translate_writes_the_words(corpus, data, checkpoint):
    output = run(
        "fairseq-generate", data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--cpu", "--path", checkpoint, "--beam", 3,
    )  # fmt: skip
    targets = (corpus / "test.en").read_text(encoding="utf-8").splitlines()
    sources = (corpus / "test.de").read_text(encoding="utf-8").splitlines()
    printed = {
        kind: dict(re.findall(rf"^{kind}-(\d+)\t(?:-?[\d.e-]+\t)?(.*)$", output, re.MULTILINE))
        for kind in "STH"
    }
    assert [printed["S"][str(number)] for number in range(len(sources))] == sources
    assert [printed["T"][str(number)] for number in range(len(targets))] == targets
    right = sum(printed["H"][str(number)] == target for number, target in enumerate(targets))
    assert right >= 0.95 * len(targets)
    scored = run(
        "fairseq-generate", data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--cpu", "--path", f"{checkpoint}:{checkpoint}", "--score-reference",
    )  # fmt: skip
    assert "H-0\t" in scored
    assert targets[0] in scored
    lines = "Qixo mag Wexu .\nWexu ruft Qixo .\n"
    output = run(
        "fairseq-interactive", data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--cpu", "--path", checkpoint, "--buffer-size", 2, stdin=lines,
    )  # fmt: skip
    assert re.findall(r"^D-\d+\t\S+\t(.*)$", output, re.M) == [
        "Qixo likes Wexu .",
        "Wexu calls Qixo .",
    ]
    assert re.findall(r"^S-\d+\t(.*)$", output, re.M) == lines.splitlines()


def test_the_hub_interface_writes_the_words(data, checkpoint):
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    hub = GeneratorHubInterface(cfg, task, models)
    assert hub.translate(["Qixo mag Wexu .", "Ba sieht Lu ."]) == [
        "Qixo likes Wexu .",
        "Ba sees Lu .",
    ]


def test_texts_of_another_librarys_search_have_the_words(data, checkpoint):
    translator = translators.load(checkpoint, data)
    lines = ["Qixo mag Wexu .", "Ba sieht Lu ."]
    subwords = [
        "<copy1> likes <copy2> .",
        "<copy2> likes <copy1> .",
        "<copy2> sees <copy1> .",
        "<copy3>",
    ]
    index = translator.task.target_dictionary.index
    rows = [torch.tensor([index(subword) for subword in text.split()]) for text in subwords]
    assert translator.texts(rows, lines) == [
        "Qixo likes Wexu.", "Wexu likes Qixo.", "Lu sees Ba.", "<unk>",
    ]  # fmt: skip
    assert translator.texts([torch.tensor([index("likes"), index(".")])]) == ["likes."]
    with pytest.raises(UserError, match="give the lines that were translated"):
        translator.texts(rows)
    with pytest.raises(UserError, match="3 translations of 2 lines"):
        translator.texts(rows[:3], lines)


@pytest.mark.parametrize("task", ["syntax_translation", "translation"])
def test_without_copy_words_a_copying_model_says_what_to_run(without_slots, tmp_path, task):
    log = run(
        "fairseq-train", without_slots, *MODEL, *TRAINING, "--task", task, "--copy", "joint",
        "--save-dir", tmp_path, "--max-update", 1, "--total-num-update", 1, expect=1,
    )  # fmt: skip
    assert "fairseq-phrase-preprocess with --copy-words" in log
    assert "sentence 1 of" in log or task == "translation"
    assert "Traceback" not in log


def test_fairseqs_own_task_refuses_slots(data, tmp_path):
    log = run(
        "fairseq-train", data, *MODEL, *TRAINING, "--task", "translation", "--copy", "joint",
        "--save-dir", tmp_path, "--max-update", 1, "--total-num-update", 1, expect=1,
    )  # fmt: skip
    assert "only --task syntax_translation can write back" in log


def load(data, split="valid", **languages):
    task = make_task(data, **languages)
    task.load_dataset(split)
    return task.dataset(split)


def test_pictures_of_a_line_show_its_words(corpus, data):
    sentence = dataset_sentence(make_task(data), "valid", 2)
    line = (corpus / "valid.de").read_text(encoding="utf-8").splitlines()[2]
    assert sentence.tokens == [*line.split(), "</s>"]
    assert len(sentence.copied) == 2


def test_probing_reads_what_translation_reads(corpus, data):
    task = make_task(data)
    (line,) = (corpus / "valid.de").read_text(encoding="utf-8").splitlines()[:1]
    read = dataset_sentence(task, "valid", 0).net_input["src_tokens"][0]
    assert task.source_dictionary.index("<copy1>") in read
    probed = []

    class Encoder(torch.nn.Module):
        num_layers = 1

        def max_positions(self):
            return 100

        def forward(self, src_tokens, **inputs):
            probed.append(src_tokens[0])
            states = torch.zeros(*src_tokens.T.shape, 2)
            return {"encoder_out": [states], "encoder_states": [states, states]}

    sentences = EncodedLines().encode(task, [line])
    SentenceVectors(Namespace(encoder=Encoder()), task)(sentences)
    assert torch.equal(probed[0], read)


def test_data_without_words_to_copy_are_refused_where_the_dictionary_has_slots(
    corpus, data, tmp_path
):
    with pytest.raises(UserError, match=r"en has no words to copy .*--target-lang de .*-words 3"):
        load(data, source_lang="en", target_lang="de")
    preprocess(corpus, tmp_path / "data", "--joined-dictionary", "--srcdict", data / "dict.de.txt")
    with pytest.raises(UserError, match=r"de has no words to copy .*<copy1>.* run fairseq-phrase-"):
        load(tmp_path / "data", "test")


def test_words_to_copy_are_not_used_without_slots(without_slots, tmp_path):
    """Files of earlier data may be left in the folder."""
    data = shutil.copytree(without_slots, tmp_path / "data")
    write_arrays(copied_path(data / "valid.de-en.de"), [stored(["Qi"])])
    dataset = load(data)
    assert "copied" not in dataset.collater([dataset[0]])


def test_a_folder_that_is_made_again_without_words_to_copy_has_none(corpus, data, tmp_path):
    again = tmp_path / "data"
    shutil.copytree(data, again)
    (again / "valid.de-en.de.copied.bin").write_bytes(b"other words")
    with pytest.raises(UserError, match=r"valid\.de-en\.de\.copied\.bin"):
        ParseStore(again, "valid.de-en", "de", {"words"})
    preprocess(corpus, again, "--joined-dictionary")
    assert not [*again.glob("*.copied.*")]
    assert len(load(again)) == len(ParseStore(again, "valid.de-en", "de", {"words"})) == 20


def test_a_given_dictionary_of_other_slots_is_refused_before_parsing(
    corpus, data, tmp_path, refused
):
    for option, slots in (("--srcdict", 4), ("--tgtdict", 2)):
        output = refused(
            preprocess, corpus, tmp_path / "data", "--joined-dictionary", "--copy-words", slots, option,
            data / "dict.de.txt",
        )  # fmt: skip
        assert "dict.de.txt has 3 slots (<copy1>, …): give --copy-words 3" in output
        assert "writing train" not in output


def test_separate_dictionaries_are_refused(corpus, tmp_path, refused):
    output = refused(preprocess, corpus, tmp_path / "data", "--copy-words", 3)
    assert "--copy-words needs --joined-dictionary" in output
