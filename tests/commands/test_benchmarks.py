"""The benchmarks that measure a GPU (docs/gpu.md) run on the CPU with small sizes."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from fairseq_phrase.methods.encoder_method import translation_encoders
from tests.support.repository import REPOSITORY
from tests.support.warm_start import python

sys.path.insert(0, str(REPOSITORY / "benchmarks"))

_STEP = "--size smallest --models 'phrase, k = 2'"
_FEW = "--max-tokens 128 --steps 1"
_BATCH = "--lengths 16 --repeats 1 --tokens-per-batch 64"
COMMANDS = {
    "training.py step": f"{_STEP} {_FEW} --batches 1 --pair='--phrase-residual each --neutral-start'",
    "training.py encoders": f"{_STEP} --length 16 --max-tokens 64 --steps 1",
    "losses.py": f"{_STEP} --max-tokens 64 --batches 1 --updates 1 2 --roundings 1",
    "attention_kernels.py phrase-attention": f"{_BATCH} --max-lengths 2",
    "decode.py": f"{_STEP} --batches 1 --batch-size 2 --target-length 4",
    "attention_kernels.py relative-positions": _BATCH,
    "attention_kernels.py hierarchical-accumulation": "--lengths 16 --repeats 1 --dense-limit 0",
    "learned_bias.py": _BATCH,
    "models.py huggingface": "--type distilbert --layers 1 --sentences 2 --tokens 8 --steps 1 --vectors",
    "models.py tree-lstm": "--lengths 5 --sentences 1",
    "step_profile.py launches": "--size smallest --models 'phrase, k = 2' --most 3",
    "step_profile.py compiled": f"{_STEP} --max-tokens 128 --batches 2 --backend eager",
}


def run(folder: Path, command: str) -> str:
    """Run a benchmark on the CPU; return what it printed."""
    program, *arguments = shlex.split(command)
    process = subprocess.run(
        [python(), REPOSITORY / "benchmarks" / program, *arguments, "--device", "cpu"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={
            **os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}:{folder}",
            "FAIRSEQ_PHRASE_MKL": "as-it-is",  # these processes cannot start again, with MKL's library
        },
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_prints_a_table(name, tmp_path):
    assert "|--" in run(tmp_path, f"{name} {COMMANDS[name]}").replace("|:-", "|--")


@pytest.mark.slow
def test_preprocessing_of_a_made_up_corpus_is_measured(capsys):
    import large_corpus

    large_corpus.main(["--lines", "2000"])
    row = re.findall(r"[0-9,]+", capsys.readouterr().out.splitlines()[-1])
    pairs, _, memory, text, peak, data = (int(cell.replace(",", "")) for cell in row)
    assert pairs == 2000
    assert memory > text
    assert peak >= data > 0


@pytest.mark.slow
def test_translating_and_labelling_a_made_up_text_are_measured(capsys):
    import large_text

    large_text.main(["--lines", "60", "--shards", "2"])
    rows = [row.split(" | ") for row in capsys.readouterr().out.splitlines()[-2:]]
    assert [row[:3] for row in rows] == [
        [f"| {name}", "60", "2"] for name in ("translate", "label")
    ]
    assert all(int(row[5].removesuffix(" MB").replace(",", "")) > 100 for row in rows)


@pytest.mark.slow
def test_the_memory_of_a_trainings_data_is_measured(capsys):
    import training_memory

    training_memory.main(["--lines", "2000"])
    rows = capsys.readouterr().out.splitlines()[-3:]
    assert [row.split(" | ")[:2] for row in rows] == [
        ["| 2,000", task] for task in training_memory.TASKS
    ]


@pytest.mark.slow
def test_an_update_is_measured_beside_fairseqs(tmp_path, data_directory):
    options = "--size smallest --models tree --max-tokens 200 --steps 2 --warmup 0"
    options += " --num-workers 0"
    printed = run(tmp_path, f"training.py whole {shlex.quote(str(data_directory))} {options}")
    for row in ("transformer, fairseq's update", "tree"):
        assert f"| {row} " in printed


@pytest.mark.slow
def test_raw_text_is_parsed_for_models_that_need_trees(
    tmp_path, data_directory, trained_pipeline, synthetic_corpus
):
    flags = f"--text '{synthetic_corpus}/test.de' --parser 'spacy:{trained_pipeline}' --size tiny"
    flags += " --models 'structural absolute' --batches 1 --batch-size 2 --target-length 4"
    table = run(tmp_path, f"decode.py {shlex.quote(str(data_directory))} {flags}")
    assert "with parsing" in table


@pytest.mark.slow
def test_models_are_tried_on_the_device(tmp_path):
    run(
        tmp_path,
        "smoke.py --size tiny --updates 2 --sentences 4 --models tree parent-scaled --out smoke.jsonl",
    )
    lines = [json.loads(line) for line in (tmp_path / "smoke.jsonl").read_text().splitlines()]
    tried = {line["model"] for line in lines}
    assert tried == {"attention", "transformer", "tree", "parent-scaled"}
    assert not any(line["problems"] for line in lines)


def test_a_wrong_gradient_of_long_attention_is_a_problem(monkeypatch):
    import smoke

    def broken(query, key, value, bias):
        attended = scaled_dot_product_attention(query, key, value, bias)
        if len(key[0, 0]) == 192 and key.dtype == torch.bfloat16:
            attended.register_hook(lambda gradient: gradient * math.nan)
        return attended, None

    options = Namespace(device="cpu")
    right = smoke.check_attention(options)
    assert right["problems"] == []
    assert 0 < right["gradients"] < 0.02
    monkeypatch.setattr(smoke, "biased_attention", broken)
    (problem,) = smoke.check_attention(options)["problems"]
    assert problem.startswith("192 tokens")


def test_one_row_of_each_encoder_is_chosen():
    from translation_models import chosen_models

    models = chosen_models(Namespace(models=[], first_rows=True))
    first = {next(iter(method.variants)) for method in translation_encoders().values()}
    assert models[0] == "transformer"
    assert set(models) == {"transformer"} | first


def test_waits_are_counted_by_the_line_that_causes_them():
    from step_profile import count_waits

    from fairseq_phrase.methods.accumulation.tree_transformer import regroup

    with count_waits("cpu") as waits:
        regroup(torch.tensor([1, 0]), 2, 1)
        torch.ones(3).sum().item()  # neither this project's nor fairseq's
    assert {line.split(":")[0] for line in waits.own} == {"tree_transformer.py"}
    assert waits.own.total() == waits.lines.total() == 2


def test_loading_reads_the_fields_that_the_data_have(tmp_path, capsys):
    from parse_corpus import loading_table, make_large

    make_large(tmp_path, 1000)
    loading_table(tmp_path, 1000)
    assert "opening 1,000 sentences" in capsys.readouterr().out
