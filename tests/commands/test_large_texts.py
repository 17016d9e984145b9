"""Large texts: parts, and files that an interrupted run goes on with."""

from __future__ import annotations

import os
from argparse import Namespace

import pytest
import torch

import fairseq_phrase
from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.errors import UserError
from tests.support.shared import Checkpoints

# Few target positions, as a model that has hardly learned writes translations of the largest length.
SHORT = ["--task", "translation", "--arch", "transformer", "--max-target-positions", "30"]


@pytest.fixture(scope="module")
def checkpoint(data_directory, tmp_path_factory):
    return Checkpoints(tmp_path_factory, data_directory, {"short": SHORT})["short"]


@pytest.fixture
def text(synthetic_corpus, tmp_path):
    lines = (synthetic_corpus / "test.de").read_text(encoding="utf-8").splitlines()[:20]
    lines[7] = ""
    path = tmp_path / "input.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture
def arguments(checkpoint, text):
    return [
        "--path", checkpoint, text, "--device", "cpu", "--source-parser", "none", "--buffer-size", "6",
        "--batch-size", "4",
    ]  # fmt: skip


@pytest.fixture
def translate(capsys, arguments):
    """Call the command with options; returns what it wrote, and said."""

    def called(*options):
        translate_command.main([*map(str, arguments), *map(str, options)])
        return capsys.readouterr()

    return called


@pytest.mark.parametrize("option", ["beam", "buffer_size"])
def test_numbers_below_1_are_refused(checkpoint, option):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    with pytest.raises(UserError, match=f"{option} 0: expected a positive number"):
        model.translate(["Hund"], **{option: 0})


def test_shards_are_the_lines_of_a_single_run(translate, tmp_path):
    options = ("--nbest", "2", "--scores")
    output, stderr = translate(*options)
    assert len(output.splitlines()) == 40
    parts = [translate(*options, "--shard", f"{number}/3").out for number in (1, 2, 3)]
    assert "".join(parts) == output
    assert all(parts)
    out = tmp_path / "out.en"
    for number in (3, 1, 2):
        assert not out.exists()
        stderr = translate(*options, "--shard", f"{number}/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == output
    assert "lines/s" in stderr
    # A part that is there is not translated again.
    out.unlink()
    assert ": 0 lines translated" in translate(*options, "--shard", "2/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == output
    parts = [f"out.en.{number}-of-3" for number in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {
        "input.txt", "out.en", *parts, *(f"{part}.key" for part in parts),
    }  # fmt: skip


def test_no_part_of_a_few_lines_is_empty(arguments, translate, text):
    lines = text.read_text(encoding="utf-8").splitlines()[:5]
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    output = translate("--beam", "1").out
    parts = [translate("--beam", "1", "--shard", f"{number}/4").out for number in (1, 2, 3, 4)]
    assert all(parts)
    assert "".join(parts) == output


def test_other_options_models_and_files_do_not_go_on_with_what_was_written(
    translate, checkpoint, text, tmp_path, refused
):
    out = tmp_path / "out.en"
    output = translate().out
    translate("--out", out)
    assert out.read_text(encoding="utf-8") == output
    assert f"{out} is there already" in refused(translate, "--out", out)
    translate("--out", tmp_path / "half.en", "--shard", "1/2")
    other_path = tmp_path / "other.pt"
    state = torch.load(checkpoint, weights_only=True)
    torch.save({**state, "extra_state": {}}, other_path)
    half = ("--out", tmp_path / "half.en", "--shard", "2/2")
    for options, difference in (
        (("--beam", "2"), "beam 5; this run has beam 2"),
        (("--path", other_path), "model 1 checkpoint_last.pt"),
        (
            ("--replace-unk", "--unk-dictionary", terms := tmp_path / "terms"),
            "unk_dictionary (none)",
        ),
        (("--source-parser", "factored"), "parser of the text"),
    ):
        terms.write_text("Hund dog\n")
        assert difference in refused(translate, *half, *options)
    text.write_text(text.read_text("utf-8").replace("e", "o"), "utf-8")
    assert f"{tmp_path}/half.en.1-of-2 was made with text input.txt" in refused(translate, *half)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "3/2"], "expected I/N with I from 1 to N, not 3/2"),
        (["--shard", "0/2"], "expected I/N with I from 1 to N, not 0/2"),
        (
            ["--shard", "1/2", "--out", "{out}"],
            "{out}.2-of-2 is there without out.2-of-2.key, which records what made it: remove it",
        ),
        (["--out", "{out}", "--source-parser", "spacy:nothing"], "spacy download nothing"),
    ],
)
def test_mistakes_are_one_message(options, message, translate, tmp_path, refused):
    out = tmp_path / "out"
    (tmp_path / "out.2-of-2").write_text("a\nb\nc\n")
    stderr = refused(translate, *(part.format(out=out) for part in options))
    assert message.format(out=out) in stderr.splitlines()[-1]
    assert not out.exists()
    assert not [*tmp_path.glob("*.partial")]


def test_parts_of_a_pipe_are_refused(arguments, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        monkeypatch.setattr("sys.stdin", Namespace(buffer=stream, isatty=lambda: False))
        with pytest.raises(SystemExit):
            translate_command.main([*map(str, (*arguments[:2], *arguments[3:])), "--shard", "1/2"])
    assert "name text files, not a pipe" in capsys.readouterr().err
