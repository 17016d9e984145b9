"""Large texts: sampling, parts, files that an interrupted run goes on with, and several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from fairseq_cli import train as fairseq_train

import fairseq_phrase
from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.corpus import engines
from fairseq_phrase.corpus.engines import EngineOptions
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.output_files import unwritten
from fairseq_phrase.inference.translator import base_2
from tests.support.commands import SIZES, TRAINING

SAMPLING = ["--sampling", "--sampling-topk", "20", "--nbest", "2", "--scores", "--seed", "5"]


# Few target positions, as a model that has hardly learned writes translations of the largest length.
@pytest.fixture(scope="module")
def checkpoint(data_directory, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    arguments = [
        data_directory, "--user-dir", "fairseq_phrase", *TRAINING, *SIZES, "--task", "translation",
        "--arch", "transformer", "--save-dir", folder, "--max-update", "20", "--max-tokens", "1000",
        "--disable-validation", "--max-target-positions", "30",
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["fairseq-train", *map(str, arguments)])
        fairseq_train.cli_main()
    return folder / "checkpoint_last.pt"


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


def test_what_is_drawn_is_fairseqs_sampling(checkpoint, text):
    model = fairseq_phrase.load(checkpoint, device="cpu", source_parser="none")
    lines = text.read_text(encoding="utf-8").splitlines()[:4]
    found = [*model.hypotheses(lines, sampling=True, sampling_topk=3, nbest=2, seed=9)]
    generator = model.task.build_generator(
        model.models, Namespace(beam=2, sampling=True, sampling_topk=3)
    )
    for first, chunk in ((1, lines[:1]), (2, lines[1:])):
        encoded = model._lines.encode(chunk)
        ((order, sample),) = model.task.source_text.batches(encoded, 12000, 32)
        torch.manual_seed(9 + first)
        for index, (one, other) in zip(
            order, generator.generate(model.models, sample), strict=True
        ):
            own = found[first - 1 + index]
            assert [each.score for each in own] == [base_2(each["score"]) for each in (one, other)]
            assert [each.text for each in own] == model.texts([one["tokens"], other["tokens"]])
    assert found != [*model.hypotheses(lines, sampling=True, sampling_topk=3, nbest=2, seed=8)]
    state = torch.get_rng_state()
    assert found == [*model.hypotheses(lines, sampling=True, sampling_topk=3, nbest=2, seed=9)]
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("options", [["--nbest", "2"], SAMPLING])
def test_shards_are_the_lines_of_a_single_run(options, translate, tmp_path):
    whole, said = translate(*options)
    assert len(whole.splitlines()) == 40
    parts = [translate(*options, "--shard", f"{number}/3").out for number in (1, 2, 3)]
    assert "".join(parts) == whole
    assert all(parts)
    out = tmp_path / "out.en"
    for number in (3, 1, 2):
        assert not out.exists()
        said = translate(*options, "--shard", f"{number}/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == whole
    assert "lines/s" in said
    # A part that is there is not translated again.
    out.unlink()
    assert ": 0 lines translated" in translate(*options, "--shard", "2/3", "--out", out).err
    assert out.read_text(encoding="utf-8") == whole
    assert {path.name for path in tmp_path.iterdir()} == {
        "input.txt", "out.en", *(f"out.en.{number}-of-3" for number in (1, 2, 3)),
    }  # fmt: skip


KILLED = """
import os, signal, sys
from itertools import count
from fairseq_phrase.cli import translate
written, number = translate._written, count(1)
def killed(*given):
    if next(number) == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return written(*given)
translate._written = killed
translate.main(sys.argv[1:])
"""


def test_a_run_that_was_killed_goes_on(arguments, translate, tmp_path):
    whole = translate(*SAMPLING).out
    out = tmp_path / "out.en"
    command = [sys.executable, "-c", KILLED, *arguments, *SAMPLING, "--out", out]
    ended = subprocess.run(list(map(str, command)), stderr=subprocess.DEVNULL)
    assert ended.returncode == -signal.SIGKILL
    (partial,) = tmp_path.glob("*.partial")
    # The chunks of one line and of three.
    assert partial.read_text(encoding="utf-8") == "".join(whole.splitlines(True)[:8])
    assert not out.exists()
    assert ": 16 lines translated" in translate(*SAMPLING, "--out", out).err
    assert out.read_text(encoding="utf-8") == whole
    assert not partial.exists()


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (b"", 0),
        (b"a", 0),
        (b"a\n", 0),
        (b"a\nb", 0),
        (b"a\nb\n", 1),
        (b"a\nb\nc\nd\ne\n", 1),
        (b"a\nb\nc\nd\ne\nf", 1),
        (b"a\nb\nc\nd\ne\nf\n", 2),
        (b"a\nb\nc\nd\ne\nf\ng\nh\n", 3),
    ],
)
def test_whole_chunks_are_kept(written, kept):
    chunks = [(1, ["1"]), (2, ["2", "3"]), (4, ["4"])]
    stream, skipped = BytesIO(written), []
    assert [*unwritten(iter(chunks), stream, 2, skipped.append)] == chunks[kept:]
    assert skipped == [len(lines) for _, lines in chunks[:kept]]
    assert stream.getvalue() == b"".join(written.splitlines(True)[: 2 * sum(skipped)])


def test_other_options_do_not_go_on_with_what_was_written(translate, tmp_path):
    out = tmp_path / "out.en"
    whole = translate().out
    translate("--out", out)
    assert out.read_text(encoding="utf-8") == whole
    with pytest.raises(SystemExit):
        translate("--out", out)
    out.unlink()
    (tmp_path / "out.en.0123.partial").write_text("of other options\n")
    translate("--out", out)
    assert out.read_text(encoding="utf-8") == whole


def die_once(job):
    mark = Path(os.environ["DIE_ONCE"])
    if job.number == 2 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return engines._do_job(job)


def test_processes_write_the_lines_of_one_also_if_one_dies(translate, monkeypatch, tmp_path):
    expected = translate(*SAMPLING).out
    monkeypatch.setenv("DIE_ONCE", str(tmp_path / "died"))
    monkeypatch.setattr(engines, "_do", die_once)
    assert translate(*SAMPLING, "--workers", "2").out == expected
    assert (tmp_path / "died").exists()


def test_an_actor_of_ray_writes_the_lines_of_one_process(translate):
    expected = translate(*SAMPLING).out
    assert translate(*SAMPLING, "--workers", "1", "--engine", "ray").out == expected


def test_processes_score(translate, text):
    expected = translate("--score", text).out
    assert len(expected.splitlines()) == 20
    assert translate("--score", text, "--workers", "2").out == expected


@pytest.mark.parametrize(
    ("engine", "device", "gpus"),
    [
        (EngineOptions(workers=2), "cuda", 0),
        (EngineOptions("ray", 2), "cpu", 0),
        (EngineOptions("ray", 2), "cuda", 1),
        (EngineOptions("ray", 2), None, 1),
        (EngineOptions("ray", 8, "auto"), "cuda", 1),
        (
            EngineOptions("ray", 3),
            None,
            "--workers 3: each actor needs a GPU, and this machine has 2",
        ),
        (EngineOptions("ray", 2), "cuda:1", "--device cuda:1: Ray chooses each actor's GPU"),
    ],
)
def test_an_actor_has_a_gpu_if_the_device_is_one(engine, device, gpus, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    if isinstance(gpus, int):
        assert translate_command._with_gpus(engine, device) == replace(engine, gpus=gpus)
    else:
        with pytest.raises(UserError, match=gpus):
            translate_command._with_gpus(engine, device)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard", "3/2"], "expected I/N with I from 1 to N, not 3/2"),
        (["--shard", "0/2"], "expected I/N with I from 1 to N, not 0/2"),
        (
            ["--shard", "1/2", "--out", "{out}"],
            "{out}.1-of-2 to 2-of-2 have [10, 3] lines, and",
        ),
        (["--sampling-topk", "3"], "sampling_topk goes with sampling"),
        (["--sampling", "--constraints", "{out}"], "need a search"),
        (["--ray-address", "auto"], "--ray-address goes with --engine ray"),
        (
            ["--out", "{out}", "--source-parser", "spacy:nothing"],
            "spacy download nothing",
        ),
    ],
)
def test_mistakes_are_one_message(options, message, translate, tmp_path, capsys):
    out = tmp_path / "out"
    (tmp_path / "out.2-of-2").write_text("a\nb\nc\n")
    with pytest.raises(SystemExit):
        translate(*(part.format(out=out) for part in options))
    said = capsys.readouterr().err
    assert message.format(out=out) in said.splitlines()[-1]
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
