"""``--user-dir fairseq_phrase`` with fairseq's own task and model, on today's torch (docs/compat.md)."""

from __future__ import annotations

import math
import re
import statistics
import sys

import pytest
from fairseq import checkpoint_utils
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import interactive as fairseq_interactive
from fairseq_cli import train as fairseq_train

from fairseq_phrase.cli import average as average_command
from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.errors import UserError
from tests.support.attaching import write_lines
from tests.support.commands import SIZES, TRAINING, losses, run, train_with_stops
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from pretraining_losses import loss_without_ends

STOCK = ["--user-dir", "fairseq_phrase", "--task", "translation"]


def test_a_stock_model_trains_resumes_is_averaged_and_translates_every_sentence(
    data_directory, tmp_path
):
    save, average = tmp_path / "save", tmp_path / "average.pt"
    training = [
        "fairseq-train", data_directory, *STOCK, "--arch", "transformer", *TRAINING, *SIZES,
        "--max-tokens", "1000", "--save-dir", save, "--save-interval-updates", "2",
        "--disable-validation",
    ]  # fmt: skip
    run(*training, "--max-update", "2")
    assert sorted(losses(run(*training, "--max-update", "4"))) == [3, 4]
    checkpoints = [save / f"checkpoint_1_{updates}.pt" for updates in (2, 4)]
    average_command.main([*map(str, checkpoints), "--out", str(average)])
    printed = run(
        "fairseq-generate", data_directory, *STOCK, "--path", average, "--cpu", "--max-len-b", "8"
    )
    numbers = sorted(map(int, re.findall(r"^H-(\d+)\t", printed, re.MULTILINE)))
    # Stock fairseq drops the last four.
    assert numbers == list(range(100))


@pytest.fixture(scope="module")
def stock_checkpoint(data_directory, tmp_path_factory):
    """One update of fairseq's own Transformer."""
    save = tmp_path_factory.mktemp("stock")
    run(
        "fairseq-train", data_directory, *STOCK, "--arch", "transformer", *TRAINING, *SIZES,
        "--max-tokens", "1000", "--save-dir", save, "--disable-validation", "--max-update", "1",
    )  # fmt: skip
    return save / "checkpoint_last.pt"


def test_bfloat16_needs_no_tpu(data_directory, tmp_path, command):
    printed = command(
        fairseq_train, data_directory, *STOCK, "--arch", "transformer", *TRAINING, *SIZES, "--bf16",
        "--max-tokens", "500", "--save-dir", tmp_path, "--disable-validation", "--max-update", "2",
        "--train-subset", "valid",
    )  # fmt: skip
    assert "num_updates 2" in printed
    trained = checkpoint_utils.load_checkpoint_to_cpu(str(tmp_path / "checkpoint_last.pt"))["cfg"]
    assert (trained.common.bf16, trained.common.tpu) == (True, False)


def test_shards_share_the_sentences(stock_checkpoint, data_directory, command):
    numbers_of_shards = [
        re.findall(
            r"^H-(\d+)\t",
            command(
                fairseq_generate, data_directory, *STOCK, "--path", stock_checkpoint, "--cpu",
                "--beam", "1", "--max-len-b", "4", "--batch-size", "30", "--num-shards", "2",
                "--shard-id", shard,
            ),
            re.MULTILINE,
        )
        for shard in "01"
    ]  # fmt: skip
    assert sorted(map(int, numbers_of_shards[0] + numbers_of_shards[1])) == list(range(100))


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("shard", "message"),
    [(1, "--gen-subset test, --shard-id 1: no batch .*fewer --num-sh"), (2, "expected 0 to 1, by")],
)
def test_a_shard_that_has_no_batch_is_named(
    stock_checkpoint, data_directory, command, shard, message
):
    with pytest.raises(UserError, match=message):
        command(
            fairseq_generate, data_directory, *STOCK, "--path", stock_checkpoint, "--cpu", "--beam",
            "1", "--max-len-b", "4", "--num-shards", "2", "--shard-id", shard,
        )  # fmt: skip


@pytest.fixture(scope="module")
def two_validation_sets(gold_corpus, tmp_path_factory):
    """Parsed data with ``valid`` and ``valid1``."""
    data = tmp_path_factory.mktemp("sets") / "data"
    preprocess_command.main([
        "-s", "de", "-t", "en", "--trainpref", str(gold_corpus / "train"), "--validpref",
        f"{gold_corpus / 'valid'},{gold_corpus / 'test'}", "--parser", "conllu", "--vocab-size", "200",
        "--destdir", str(data), "--joined-dictionary",
    ])  # fmt: skip
    return data


#: fairseq's own task and model, and this package's with parses.
TASKS = {
    "stock": [*STOCK, "--arch", "transformer"],
    "parses": [
        "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--arch",
        "relation_transformer", "--relation-labels",
    ],
}  # fmt: skip


def test_a_model_of_truncated_sources_truncates_in_use(
    two_validation_sets, command, tmp_path, synthetic_corpus
):
    gold, task = f"gold:{synthetic_corpus}/valid.de", TASKS["parses"]
    command(
        fairseq_train, two_validation_sets, *task, *TRAINING, *SIZES, "--max-tokens", "1000",
        "--max-update", "1", "--save-dir", tmp_path, "--disable-validation", "--truncate-source",
        "--max-source-positions", "8",
    )  # fmt: skip
    use = [two_validation_sets, *task[:4], "--path", tmp_path / "checkpoint_last.pt", "--cpu",
           "--beam", "1", "--max-len-b", "4", "--remove-bpe", "sentencepiece"]  # fmt: skip
    of_data, lines = command(fairseq_generate, *use, "--gen-subset", "valid"), tmp_path / "lines"
    text = (synthetic_corpus / "valid.de").read_text().splitlines(keepends=True)[:20]
    lines.write_text("".join(text))
    options = ["--tokenizer", "syntax", "--bpe", "syntax", "--source-parser", gold]
    of_lines = command(fairseq_interactive, *use, "--input", lines, "--buffer-size", "9", *options)
    outputs = [
        dict(re.findall(r"^S-(\d+)\t(.*)$", printed, re.MULTILINE))
        for printed in (of_data, of_lines)
    ]
    assert len(outputs[0]) == 20
    assert outputs[0] == outputs[1]
    scores = [
        {number: float(score) for number, score in re.findall(r"^H-(\d+)\t(\S+)", printed, re.M)}
        for printed in (of_data, of_lines)
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "has no alignments: give --load-alignments"),
        (["--load-alignments"], r"has no train\.align\.de-en: make it with fairseq-preprocess"),
    ],
)
@pytest.mark.parametrize("task", TASKS)
def test_a_loss_of_alignments_asks_for_alignments(
    task, options, message, two_validation_sets, command, tmp_path
):
    with pytest.raises(UserError, match=message):
        command(
            fairseq_train, two_validation_sets, *TASKS[task], *TRAINING, *SIZES, "--max-tokens", "1000",
            "--criterion", "label_smoothed_cross_entropy_with_alignment", "--save-dir", tmp_path,
            "--ignore-unused-valid-subsets", *options,
        )  # fmt: skip


@pytest.mark.slow
def test_masked_lm_takes_sentences_with_numpy_2_and_is_resumed_with_the_same_masks(tmp_path):
    write_lines(tmp_path / "train.en", ["a man sleeps .", "the dog sees a man in a park ."] * 20)
    run(
        "fairseq-phrase-preprocess", "-s", "en", "--only-source", "--trainpref", tmp_path / "train",
        "--validpref", tmp_path / "train", "--parser", "none", "--vocab-size", "20",
        "--destdir", tmp_path / "data",
    )  # fmt: skip
    train_with_stops(
        # Workers keep the epoch in which they start, and so the masks. In this process each would be
        # waited for, for five seconds.
        lambda *options: run(
            "fairseq-train", tmp_path / "data", "--user-dir", "fairseq_phrase", "--task", "masked_lm",
            "--sample-break-mode", "eos", "--tokens-per-sample", "64", "--arch", "roberta",
            "--encoder-embed-dim", "8", "--encoder-ffn-embed-dim", "8", "--encoder-layers", "1",
            "--encoder-attention-heads", "2", "--criterion", "masked_lm", "--optimizer", "adam",
            "--lr", "0.01", "--batch-size", "8", "--num-workers", "1", "--cpu",
            "--disable-validation", *options,
        ),
        tmp_path,
    )  # fmt: skip

    checkpoint = tmp_path / "once" / "checkpoint_last.pt"
    overrides = {"data": str(tmp_path / "data")}
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)], overrides)
    task.load_dataset("valid")
    task.dataset("valid").set_epoch(1)  # masks are drawn anew in each epoch
    bits, ends = [], {task.dictionary.bos(), task.dictionary.eos(), task.dictionary.pad()}
    for sample in map(task.dataset("valid").collater, zip(task.dataset("valid"))):
        scores = model.eval()(**sample["net_input"])[0][0].double().log_softmax(-1)
        bits += [
            -float(row[target]) / math.log(2)
            for row, target in zip(scores, sample["target"][0].tolist(), strict=True)
            if target not in ends
        ]
    assert len(bits) > 50
    loss = loss_without_ends(checkpoint, tmp_path / "data", "valid")
    assert loss == pytest.approx(statistics.mean(bits), rel=1e-5)
