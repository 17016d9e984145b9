"""Pre-training by fairseq's commands: train, resume, validate, hydra; stock tasks on the same data."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from fairseq_cli import train as train_command
from fairseq_cli import validate as validate_command

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.pretrainer import Objective
from fairseq_phrase.tasks.syntax_pretraining import (
    SyntaxPretrainingConfig,
    SyntaxPretrainingTask,
)
from tests.support.attaching import write_lines
from tests.support.commands import run_by_two_processes
from tests.support.labelled_corpora import make_data as make_labelled
from tests.support.labelled_corpora import write_corpus
from tests.support.monolingual_corpora import make_data, write_documents

USER = ["--user-dir", "fairseq_phrase"]
SIZES = [
    "--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64",
    "--encoder-attention-heads", "2",
]  # fmt: skip
TRAINING = [
    "--optimizer", "adam", "--lr", "0.005", "--lr-scheduler", "inverse_sqrt", "--warmup-updates",
    "50", "--seed", "1", "--num-workers", "0", "--no-progress-bar", "--log-format", "json",
    "--log-interval", "1", "--cpu", "--max-tokens", "500",
]  # fmt: skip
OBJECTIVES = {
    "phrases": ["--encoder", "tree_transformer", "--mask-unit", "phrase"],
    "pairs": [
        "--encoder", "structural_transformer", "--structural-relative", "--next-sentence",
        "--criterion", "next_sentence", "--mask-unit", "word",
    ],
    "permutation": ["--objective", "permutation", "--encoder", "xl_transformer", "--memory", "9"],
    "causal": [
        "--objective", "causal", "--encoder", "phrase_transformer", "--criterion", "cross_entropy",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    options = ["--parser", "conllu", "--constituents", "from-dependencies", "--vocab-size", "36"]
    return make_data(write_documents(folder / "corpus"), folder / "data", *options)


def train(command, data, save, *arguments):
    task = ["--task", "syntax_pretraining", "--arch", "pretrainer"]
    criterion = [] if "--criterion" in arguments else ["--criterion", "masked_lm"]
    return command(
        train_command, data, *USER, *task, *SIZES, *TRAINING, *criterion, "--save-dir", save,
        *arguments,
    )  # fmt: skip


def valid_losses(log):
    return [
        float(json.loads(line)["valid_loss"]) for line in log.splitlines() if '"valid_loss"' in line
    ]


@pytest.mark.fast(1)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_an_objective_trains_resumes_and_has_a_perplexity(data, tmp_path, command, objective):
    flags = OBJECTIVES[objective]
    log = train(command, data, tmp_path / "once", *flags, "--max-epoch", "2")
    first, second = valid_losses(log)
    assert second < first
    train(command, data, tmp_path / "twice", *flags, "--max-epoch", "1")
    assert valid_losses(train(command, data, tmp_path / "twice", *flags, "--max-epoch", "2")) == [
        second
    ]
    checkpoint = tmp_path / "once" / "checkpoint_last.pt"
    printed = command(
        validate_command, data, *USER, "--task", "syntax_pretraining", "--path", checkpoint,
        "--valid-subset", "valid,test", "--batch-size", "7", "--num-workers", "0", "--cpu",
        "--no-progress-bar",
    )  # fmt: skip
    results = re.findall(r"(valid|test) \|.* loss ([\d.]+) .*ppl ([\d.]+)", printed)
    assert [subset for subset, _, _ in results] == ["valid", "test"]
    assert float(results[0][1]) == pytest.approx(second, abs=0.002)
    for _, loss, perplexity in results:
        assert float(perplexity) == pytest.approx(2 ** float(loss), rel=0.01)
    if objective == "pairs":
        assert "next_sentence_accuracy" in printed


@pytest.mark.slow
def test_two_processes_permute_as_one_with_the_doubled_batch(data, tmp_path, command):
    flags = [*OBJECTIVES["permutation"], "--dropout", "0", "--max-update", "4"]
    single = train(command, data, tmp_path / "one", *flags, "--update-freq", "2")
    two = run_by_two_processes(
        data, *USER, "--task", "syntax_pretraining", "--arch", "pretrainer", *SIZES, *TRAINING,
        "--criterion", "masked_lm", "--save-dir", tmp_path / "two", *flags,
    )  # fmt: skip
    losses = [re.findall(r'"loss": "([\d.]+)".*"num_updates"', log) for log in (single, two)]
    assert len(losses[0]) == 4
    assert list(map(float, losses[1])) == pytest.approx(list(map(float, losses[0])), abs=2e-3)


def test_labelling_starts_from_the_encoder(data, tmp_path, command):
    train(command, data, tmp_path / "pre", *OBJECTIVES["phrases"], "--max-update", "1")
    model_arguments = [
        "--srcdict",
        data / "dict.en.txt",
        "--sentencepiece-model",
        data / "spm.model",
    ]
    parser = ["--parser", "conllu", "--constituents", "from-dependencies"]
    corpus = write_corpus(tmp_path / "corpus")
    labelled = make_labelled(corpus, tmp_path / "data", "sentence", *parser, *model_arguments)
    log = command(
        train_command, labelled, *USER, "--task", "syntax_labelling", "--arch", "labeller",
        "--encoder", "tree_transformer", *SIZES, *TRAINING, "--criterion", "cross_entropy",
        "--save-dir", tmp_path / "out", "--max-update", "1", "--pretrained",
        tmp_path / "pre" / "checkpoint_last.pt", "--freeze-encoder",
    )  # fmt: skip
    assert re.search(r"checkpoint_last\.pt: loaded \d+ tensors of the encoder", log)
    assert "are new" not in log
    assert "cannot be compared" not in log
    before, after = (
        torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=True)["model"]
        for folder in ("pre", "out")
    )
    # Without <mask>, the last embedding.
    for name in (name for name in after if name.startswith("encoder.")):
        expected = before[name][:-1] if name.endswith("embed_tokens.weight") else before[name]
        assert torch.equal(after[name], expected), name


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("task", "arch", "flags"),
    [
        ("masked_lm", "roberta_base", ["--criterion", "masked_lm", "--max-positions", "64"]),
        ("language_modeling", "transformer_lm", ["--criterion", "cross_entropy"]),
    ],
)
def test_fairseqs_own_tasks_read_the_same_data(data, tmp_path, command, task, arch, flags):
    sizes = [flag.replace("--encoder", "--decoder") for flag in SIZES]
    log = command(
        train_command, data, "--task", task, "--arch", arch, *TRAINING, *flags,
        *(SIZES if task == "masked_lm" else sizes), "--save-dir", tmp_path, "--max-update", "2",
        "--tokens-per-sample", "64", "--required-batch-size-multiple", "1",
    )  # fmt: skip
    assert math.isfinite(valid_losses(log)[0])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mask-prob", "0"], "--mask-prob 0.0: expected a number between 0 and 1"),
        (["--mask-prob", "1"], "--mask-prob 1.0: expected a number between 0 and 1"),
        (["--objective", "causal", "--encoder", "tree_transformer"], "cannot be masked causally"),
        (["--criterion", "cross_entropy"], "--objective masked predicts some of the tokens"),
        (["--next-sentence"], "--next-sentence: use --criterion next_sentence"),
        (["--criterion", "next_sentence"], "it needs --next-sentence; without pairs use"),
        (
            ["--criterion", "next_sentence", "--objective", "causal"],
            "--objective causal has none: use --criterion cross_entropy",
        ),
        (["--objective", "causal", "--mask-unit", "word"], "--objective causal masks nothing"),
        (
            ["--encoder", "tree_transformer", "--sample-break-mode", "none"],
            "--sample-break-mode none crosses the boundaries",
        ),
        (
            ["--next-sentence", "--criterion", "next_sentence", "--sample-break-mode", "complete"],
            "--sample-break-mode complete crosses the boundaries of sentences or documents, and "
            "--next-sentence need them",
        ),
        (["--objective", "permutation"], "the encoder transformer has no query stream"),
        (
            ["--objective", "permutation", "--encoder", "xl_transformer", "--memory", "99999"],
            "--memory 99999: longer than the text",
        ),
        (["--source-lang", "fr"], "dict.fr.txt is not there: make the data with"),
        (["--train-subset", "other"], "other.en.bin is not there"),
        (["--source-factors", "tags"], "--task syntax_pretraining has no factors"),
    ],
)
def test_bad_input_has_one_clear_message(data, tmp_path, command, flags, message):
    with pytest.raises(UserError, match=re.escape(message)):
        train(command, data, tmp_path, *flags, "--max-update", "1")


def test_data_of_a_translation_are_refused(data_directory, tmp_path, command):
    with pytest.raises(UserError, match="--only-source"):
        train(command, data_directory, tmp_path, "--max-update", "1")


def test_pairs_need_blank_lines_between_documents(tmp_path, command):
    write_documents(tmp_path / "corpus")
    for path in (tmp_path / "corpus").glob("*.en"):
        path.write_text(re.sub("\n\n+", "\n", path.read_text()))
    data = make_data(tmp_path / "corpus", tmp_path / "data", "--parser", "none", "--bpe", "none")
    flags = ["--next-sentence", "--criterion", "next_sentence", "--max-update", "1"]
    with pytest.raises(UserError, match="put a blank line between documents"):
        train(command, data, tmp_path / "out", *flags)


@pytest.mark.parametrize(("most", "longest"), [(24, 21), (25, 25), (26, 25)])
def test_a_pair_of_segments_with_its_beginning_has_at_most_so_many_tokens(tmp_path, most, longest):
    """Sentences of two tokens, with their ends, fill segments to the last token."""
    (tmp_path / "corpus").mkdir()
    for split in ("train", "valid", "test"):
        write_lines(tmp_path / "corpus" / f"{split}.en", [*["a"] * 40, "", *["b"] * 40])
    data = make_data(tmp_path / "corpus", tmp_path / "data", "--parser", "none", "--bpe", "none")
    task = SyntaxPretrainingTask.setup_task(
        SyntaxPretrainingConfig(
            data=str(data), source_lang="en", tokens_per_sample=most,
            sample_break_mode="complete_doc", seed=1, train_subset="train",
        )
    )  # fmt: skip
    task.require_objective(Objective("masked", next_sentence=True))
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    assert max(dataset.sizes) == longest
    assert max(len(dataset[index]["source"]) for index in range(len(dataset))) == longest
