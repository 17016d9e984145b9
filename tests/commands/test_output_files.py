"""Files of ``translate --out`` and ``label --out``, of runs that are killed, and of parts."""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Callable
from typing import NamedTuple

import pytest

from fairseq_phrase.cli.label import main as label
from fairseq_phrase.cli.translate import main as translate
from tests.support.commands import SIZES, TRAINING, run
from tests.support.labelled_corpora import make_data, write_corpus
from tests.support.small_checkpoints import make_checkpoint
from tests.support.small_checkpoints import make_data as make_translation_data
from tests.support.warm_start import python

#: Runs a command that is killed at a call of a function, the COUNT-th.
KILLED = """
import importlib, os, shutil, signal, sys
from fairseq_phrase.inference import labelling, output_files
command, place, count = sys.argv[1:4]
labelling.BUFFER_SIZE = 6
owner, name = {
    "chunk": (output_files, "_digest"),
    "output": (output_files, "_short"),
    "finished": (os, "replace"),
    "joining": (shutil, "copyfileobj"),
}[place]
original, calls = getattr(owner, name), []
def killed(*arguments, **options):
    result = original(*arguments, **options)
    calls.append(name)
    if len(calls) == int(count):
        os.kill(os.getpid(), signal.SIGKILL)
    return result
setattr(owner, name, killed)
importlib.import_module(f"fairseq_phrase.cli.{command}").main(sys.argv[4:])
"""


class Model(NamedTuple):
    """A command, its main function and the arguments that name its model and its text."""

    command: str
    main: Callable[[list[str]], None]
    arguments: list


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """30 lines."""
    path = tmp_path_factory.mktemp("text") / "text"
    rng = random.Random(1)
    lines = [" ".join(rng.choices(("the", "dog", "der", "cat"), k=1 + n % 5)) for n in range(30)]
    lines[7] = ""
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def labeller(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labeller")
    options = ("word", "--bpe", "none", "--parser", "none")
    data = make_data(write_corpus(folder / "corpus"), folder / "data", *options)
    sizes = [option for option in SIZES if "encoder" in option]
    training = [option for option in TRAINING if option != "--share-all-embeddings"]
    run(
        "fairseq-train", data, "--user-dir", "fairseq_phrase", "--task", "syntax_labelling", "--arch",
        "labeller", *sizes, *training, "--max-tokens", "400", "--max-update", "1", "--save-dir", folder,
        "--disable-validation",
    )  # fmt: skip
    arguments = [data, "--path", folder / "checkpoint_last.pt", text, "--device", "cpu"]
    return Model("label", label, arguments)


@pytest.fixture(scope="module")
def translator(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("translator")
    data = make_translation_data(folder / "data", "none")
    short = ("--arch", "transformer", "--max-target-positions", "9")
    checkpoint = make_checkpoint(folder / "checkpoint.pt", data, *short)
    arguments = [data, "--path", checkpoint, text, "--device", "cpu", "--buffer-size", "6"]
    return Model("translate", translate, [*arguments, "--scores"])


@pytest.fixture(params=["translator", "labeller"])
def model(request, monkeypatch):
    monkeypatch.setattr("fairseq_phrase.inference.labelling.BUFFER_SIZE", 6)
    return request.getfixturevalue(request.param)


def call(model, *options):
    model.main([*map(str, model.arguments), *map(str, options)])


@pytest.mark.parametrize(
    ("place", "count", "shard"),
    [
        # The states after a kill at any line are in the tests of the module.
        ("output", 6, None),
        ("chunk", 3, 1),
        ("joining", 1, 2),
    ],
)
def test_a_killed_run_leaves_nothing_half_written_and_the_next_one_the_same_bytes(
    model, place, count, shard, tmp_path, capsys
):
    call(model)
    expected = capsys.readouterr().out.encode()
    assert len(expected.splitlines()) == 30 > len(set(expected.splitlines())) > 5
    out, shards = tmp_path / "out", [[]]
    if shard is not None:
        shards = [["--shard", f"{number}/2"] for number in (1, 2)]
    for options in shards[: (shard or 1) - 1]:
        call(model, "--out", out, *options)
    script = ["-c", KILLED, model.command, place, count, *model.arguments, "--out", out]
    command = [python(), *script, *shards[(shard or 1) - 1]]
    ended = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not out.exists() or out.read_bytes() == expected
    for options in shards[(shard or 1) - 1 :]:
        call(model, "--out", out, *options)
    assert out.read_bytes() == expected
    parts = [] if shard is None else ["out.1-of-2", "out.2-of-2"]
    assert b"".join((tmp_path / part).read_bytes() for part in parts) == expected * bool(parts)
    assert {path.name for path in tmp_path.iterdir()} == {
        "out", *parts, *(f"{part}.key" for part in parts),
    }  # fmt: skip
