"""Checkpoints of older versions of fairseq: entry points use them like new ones."""

from __future__ import annotations

import hashlib
import itertools
import re

import pytest
import torch
from fairseq.models.transformer import TransformerModel
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import train as fairseq_train
from fairseq_cli import validate as fairseq_validate

from fairseq_phrase.cli import average as average_command
from fairseq_phrase.cli import export as export_command
from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.errors import UserError
from tests.support.commands import SIZES, TRAINING, run
from tests.support.old_checkpoints import write_old
from tests.support.selection import first_of_each

STOCK = ["--user-dir", "fairseq_phrase", "--task", "translation"]
MODEL = ["--arch", "transformer", *TRAINING, *SIZES, "--max-tokens", "1000", "--disable-validation"]
SEARCH = ["--cpu", "--beam", "2", "--max-len-b", "5"]


@pytest.fixture(scope="module")
def new_checkpoint(data_directory, tmp_path_factory):
    """One update of fairseq's own Transformer, whose seed differs from later trainings'."""
    save = tmp_path_factory.mktemp("new")
    options = ["--save-dir", save, "--max-update", "1", "--seed", "7"]
    run("fairseq-train", data_directory, *STOCK, *MODEL, *options)
    return save / "checkpoint_last.pt"


@pytest.fixture
def lines(synthetic_corpus, tmp_path):
    text = (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "lines").write_text("".join(text[:4]), encoding="utf-8")
    return tmp_path / "lines"


@pytest.fixture
def entry_points(data_directory, lines, tmp_path, command, capsys):
    """By the name of an entry point, what it makes of a checkpoint."""
    data = data_directory

    def hypotheses(printed):
        return re.findall(r"^H-(\d+\t\S+\t.*)$", printed, re.MULTILINE)

    def train(*options, task=STOCK):
        save = ["--save-dir", tmp_path / "save", "--no-save", "--max-update", "2"]
        printed = command(fairseq_train, data, *task, *MODEL, *save, *options)
        return re.findall(r" loss=([\d.]+).*num_updates=(\d+)", printed)

    def exported(path, *options):
        out = tmp_path / f"{path.stem}.export"
        export_command.main([str(path), str(data), str(out), *options])
        return {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in out.iterdir()
            if file.suffix in (".bin", ".safetensors")
        }

    def averaged(path):
        out = tmp_path / "average.pt"
        average_command.main([str(path), str(path), "--out", str(out)])
        return hypotheses(command(fairseq_generate, data, *STOCK, "--path", out, *SEARCH))

    def translated(path):
        translate_command.main(
            [str(data), "--path", str(path), str(lines), "--source-parser", "none"]
        )
        return capsys.readouterr().out

    def of_hub(path):
        model = TransformerModel.from_pretrained(str(path.parent), path.name, str(data))
        return model.generate(model.encode("ein Hund"), beam=2, max_len_b=5)[0]["positional_scores"]

    task_arguments = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
    return {
        "fairseq-generate": lambda path: hypotheses(
            command(fairseq_generate, data, *STOCK, "--path", path, *SEARCH)
        ),
        "fairseq-validate": lambda path: re.findall(
            r"valid on.* loss (\S+)",
            command(fairseq_validate, data, *STOCK, "--path", path, "--max-tokens", "1000", "--cpu"),
        ),
        "--finetune-from-model": lambda path: train("--finetune-from-model", path),
        "--restore-file": lambda path: train("--restore-file", path),
        "--pretrained": lambda path: train("--pretrained", path, task=task_arguments),
        "--take-options": lambda path: train(
            "--pretrained-model", path, "--take-options", "--encoder-layers", "1", task=task_arguments
        ),
        "hub": of_hub,
        "fairseq-phrase-translate": translated,
        "fairseq-phrase-average": averaged,
        "fairseq-phrase-export": exported,
    }  # fmt: skip


#: tests/checkpoints/test_trust.py holds that one function reads all checkpoints.
NAMES = [
    "fairseq-generate", "fairseq-phrase-translate", "fairseq-validate", "--finetune-from-model",
    "--restore-file", "--pretrained", "--take-options", "hub", "fairseq-phrase-average",
    "fairseq-phrase-export",
]  # fmt: skip


@pytest.mark.fast(4)
@pytest.mark.parametrize(
    ("name", "version"),
    first_of_each(
        [*itertools.product(NAMES, ["0.5"]), *itertools.product(NAMES[:2], ["0.9", "0.10"])]
    ),
)
def test_a_checkpoint_of_an_older_fairseq_is_used_like_a_new_one(
    name, version, new_checkpoint, entry_points, tmp_path, monkeypatch
):
    old = write_old(new_checkpoint, tmp_path / "old.pt", version, monkeypatch)
    use = entry_points[name]
    expected, result = use(new_checkpoint), use(old)
    if name == "hub":
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
    else:
        assert expected
        assert result == expected


def test_a_model_that_is_not_registered_is_named(
    new_checkpoint, entry_points, tmp_path, monkeypatch
):
    path = write_old(new_checkpoint, tmp_path / "old.pt", "0.10", monkeypatch)
    state = torch.load(path, weights_only=True)
    state["args"].arch = "theirs"
    torch.save(state, path)
    with pytest.raises(UserError, match=r"old\.pt holds a model 'theirs', which neither"):
        entry_points["fairseq-generate"](path)


def test_the_hub_asks_for_subword_files_that_an_old_checkpoint_names(
    new_checkpoint, entry_points, tmp_path, monkeypatch
):
    path = write_old(new_checkpoint, tmp_path / "old.pt", "0.10", monkeypatch)
    state = torch.load(path, weights_only=True)
    vars(state["args"]).update(bpe="fastbpe", bpe_codes="/theirs/codes")
    torch.save(state, path)
    with pytest.raises(UserError, match=r"^--bpe fastbpe lacks bpe_codes: give --bpe-codes FILE"):
        entry_points["hub"](path)
