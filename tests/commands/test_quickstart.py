"""The quickstart, shortened: the commands that it prints at its end run as they are printed."""

from __future__ import annotations

import os
import re
import socket
import subprocess

import pytest

from tests.support.commands import run_script
from tests.support.multi30k import multi30k_of
from tests.support.repository import REPOSITORY
from tests.support.table_slices import FEW, pipeline_of
from tests.support.warm_start import REAL, commands

ENVIRONMENT = {
    **os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip


@pytest.fixture(autouse=True)
def commands_start_warm(monkeypatch):
    path = os.pathsep.join(map(str, (commands(), REAL, os.environ["PATH"])))
    monkeypatch.setitem(ENVIRONMENT, "PATH", path)


def printed_commands(output: str) -> dict[str, str]:
    """The indented lines at the quickstart's end, by the command that each runs."""
    end = output[output.index("\nTranslate a sentence of your own:") :]
    lines = re.findall(r"^    (.*)$", end, re.MULTILINE)
    return {re.search(r"fairseq-phrase-(\w+)", line)[1]: line for line in lines}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_as_printed(printed: dict[str, str]) -> str:
    """Run the translation, and the demo until it serves; return the translation."""
    translated = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", printed["translate"]],
        cwd=REPOSITORY, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert translated.returncode == 0, translated.stderr
    demo = subprocess.Popen(
        ["bash", "-c", f"exec {printed['demo']} --port {free_port()}"],
        cwd=REPOSITORY, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    lines = []
    for line in demo.stdout:
        lines.append(line)
        if "http://" in line:
            break
    demo.terminate()
    demo.wait()
    assert "http://127.0.0.1" in "".join(lines)
    return translated.stdout


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("option", "length"), [("--fast", "--max-update 900"), ("--full", "--max-epoch 6")]
)
def test_each_part_states_the_time_so_far(option, length, tmp_path):
    output = run_script("quickstart", option, "--dry-run", "--out", tmp_path / "out")
    assert re.findall(r"== (\d) of 4: .*\nSince the start: \d+:\d\d", output) == list("1234")
    assert output.count(f" {length} ") == 3
    assert ("--max-update" in output) == (option == "--fast"), "no limit of updates but the epochs"


def test_restored_runs_are_reported_without_a_parser_or_models(tmp_path):
    (tmp_path / "multi30k").mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            (tmp_path / "multi30k" / f"{name}.{language}.gz").touch()
    output = run_script(
        "quickstart", "--report-only", "--dry-run", "--out", tmp_path / "out",
        FAIRSEQ_PHRASE_DATA=str(tmp_path),
    )  # fmt: skip
    assert f"Multi30k from {tmp_path}/multi30k" in output
    assert "fairseq-phrase-report" in output
    assert not {"preprocess", "inspect", "attention"} & set(re.findall(r"\w+", output))


def test_the_commands_after_the_fast_quickstart_run_as_printed(tmp_path):
    """With --slice, too: the synthetic corpus is smaller then, and so are its trees."""
    out = tmp_path / "my run"
    printed = printed_commands(
        run_script(
            "quickstart", "--fast", *FEW, "--rows", "transformer,phrase", "--out", out,
            PATH=ENVIRONMENT["PATH"],
        )
    )  # fmt: skip
    assert (out / "synthetic" / "train.de").read_text().count("\n") == 300
    assert run_as_printed(printed).count("\n") == 1


@pytest.mark.slow
def test_the_commands_after_the_quickstart_run_as_printed(
    synthetic_corpus, trained_pipeline, tmp_path
):
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    printed = printed_commands(
        run_script(
            "quickstart", *FEW, "--rows", "transformer,relation", "--out", tmp_path / "out",
            PATH=ENVIRONMENT["PATH"], FAIRSEQ_PHRASE_DATA=str(tmp_path),
            FAIRSEQ_PHRASE_PARSER=pipeline_of("de", trained_pipeline),
        )
    )  # fmt: skip
    assert "demo relation=" in printed["demo"]
    assert run_as_printed(printed).count("\n") == 1
