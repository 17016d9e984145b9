"""The real commands, one after the other, on the synthetic corpus, as a user types them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support.commands import PHRASE, TRAINING, losses, run, train, translations
from tests.support.shared import made_once


@pytest.fixture(scope="module")
def trained(data_directory, tmp_path_factory) -> tuple[Path, str]:
    """A PhraseTransformer over dependency phrases, trained for six epochs of a few sentences."""

    def make(save: Path) -> None:
        log = train(
            data_directory, save, *PHRASE, "--phrase-source", "dependency", "--phrase-max-length",
            "3", "--train-subset", "valid", "--max-tokens", "200", "--max-epoch", "6", warm=False,
        )  # fmt: skip
        (save / "train.log").write_text(log)

    save = made_once(tmp_path_factory, "end_to_end", make)
    return save, (save / "train.log").read_text()


def test_training_brings_the_loss_down(trained):
    after = losses(trained[1])
    assert len(after) > 20
    assert after[max(after)] < 0.8 * after[1]


def test_a_training_prints_no_warnings_of_other_libraries(trained):
    # fairseq's import has this one with torch 2.14, before it loads the user directory.
    printed = re.sub(r".*FutureWarning: `torch\.jit\.script` is deprecated.*", "", trained[1])
    assert "Warning" not in printed
    assert "deprecated" not in printed


def test_the_checkpoint_loads_with_weights_only(trained):

    state = torch.load(trained[0] / "checkpoint_last.pt", weights_only=True)
    assert state["cfg"]["model"]["phrase_source"] == "dependency"


def test_averaged_checkpoints_generate_every_sentence_of_the_test_set(
    trained, data_directory, synthetic_corpus, tmp_path
):
    average = tmp_path / "average.pt"
    run("fairseq-phrase-average", trained[0], "--last", "2", "--out", average)
    arguments = [
        data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation", "--path",
        average, "--beam", "3", "--max-len-b", "10", "--cpu",
    ]  # fmt: skip
    output = run("fairseq-generate", *arguments, "--batch-size", "33", "--remove-bpe",
                 "sentencepiece", "--scoring", "sacrebleu")  # fmt: skip
    assert "BLEU" in output
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "generate.txt").write_text(output, encoding="utf-8")
    (folder / "train.log").write_text(trained[1], encoding="utf-8")
    table = run(
        "fairseq-phrase-score", f"k=3={folder}", "--reference", synthetic_corpus / "test.en"
    )
    assert re.search(r"\| k=3 +\| \d+\.\d\d +\| \d+\.\d\d +\| [\d,]+", table)
    assert "tok:13a" in table
    one_by_one = run(
        "fairseq-generate", *arguments, "--batch-size", "1", "--remove-bpe", "sentencepiece"
    )

    assert len(translations(output)) == 100
    assert translations(output) == translations(one_by_one)


def test_validation_repeats_the_loss_of_training(trained, data_directory):
    output = run(
        "fairseq-validate", data_directory, "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", "--path", trained[0] / "checkpoint_last.pt", "--max-tokens", "2000",
        "--cpu",
    )  # fmt: skip
    (logged_loss,) = re.findall(r"\| valid \|? ?(?:.*)\| loss ([\d.]+)", output)[:1]
    logged = re.findall(r"valid on 'valid' subset \| loss ([\d.]+)", trained[1])[-1]
    assert float(logged_loss) == pytest.approx(float(logged), abs=2e-3)


def test_ngram_phrases_train_from_a_plain_fairseq_data_directory(data_directory, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in data_directory.glob("*"):
        if re.search(r"(^dict\.(de|en)\.txt|\.(de|en)\.(bin|idx))$", path.name):
            (plain / path.name).symlink_to(path)
    for task in ("translation", "syntax_translation"):
        log = run(
            "fairseq-train", plain, "--user-dir", "fairseq_phrase", "--task", task, *TRAINING,
            "--save-dir", tmp_path / task, *PHRASE, "--max-update", "2",
        )  # fmt: skip
        assert sorted(losses(log)) == [1, 2]
    message = train(plain, tmp_path / "tree", *PHRASE, "--phrase-source", "dependency", expect=1)
    assert "syntax.de.json is missing" in message
    assert "fairseq-phrase-preprocess" in message
    assert "Traceback" not in message


@pytest.mark.slow
def test_sharded_data_validation_bleu_and_truncation_work_as_in_fairseqs_task(
    data_directory, tmp_path
):
    log = run(
        "fairseq-train", f"{data_directory}:{data_directory}", "--user-dir", "fairseq_phrase",
        "--task", "syntax_translation", *TRAINING, "--save-dir", tmp_path, *PHRASE, "--phrase-source",
        "dependency", "--max-epoch", "2", "--truncate-source", "--max-source-positions", "12",
        "--eval-bleu", "--eval-bleu-remove-bpe", "sentencepiece", "--eval-bleu-args",
        '{"beam": 1, "max_len_b": 10}', "--skip-invalid-size-inputs-valid-test",
    )  # fmt: skip
    assert "epoch 002 | valid on 'valid' subset" in log
    assert re.search(r"valid on 'valid' subset .* bleu [\d.]+", log)
    assert "--eval-bleu: nrefs:1|case:mixed|eff:no|tok:13a|" in log
