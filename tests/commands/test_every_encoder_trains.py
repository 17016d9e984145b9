"""Every registered encoder, and a recurrent copying model, by fairseq's own commands: train, resume,
generate, hydra.
"""

from __future__ import annotations

import re

import pytest
import torch
import yaml
from fairseq_cli import generate as generate_command
from fairseq_cli import train as train_command

from fairseq_phrase.methods.encoder_method import ENCODERS, translation_encoders
from tests.support.commands import SIZES, TRAINING, run, train_with_stops
from tests.support.repository import REPOSITORY

USER = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
#: The encoders of this package, each with its first variant: its paper's form.
FIRST_VARIANTS = {
    name: next(iter(method.variants))
    for name, method in translation_encoders().items()
    if method.encoder.__module__.startswith("fairseq_phrase.")
}
#: The options of each training's model.
MODELS = {name: ENCODERS[name].variants[variant] for name, variant in FIRST_VARIANTS.items()}
MODELS["seq2seq"] = {"copy": "gate", "encoder_hidden_size": 32, "decoder_hidden_size": 32}
#: Those of its task.
TASKS = {"seq2seq": {"coverage": 1.0}}
every_model = pytest.mark.parametrize("name", list(MODELS))


def flags_of(name):
    if name in FIRST_VARIANTS:
        return ENCODERS[name].flags(FIRST_VARIANTS[name])
    options = {**MODELS[name], **TASKS[name]}
    flags = [f"--{option.replace('_', '-')}={value}" for option, value in options.items()]
    return ["--arch", name, *flags]


@pytest.mark.fast(1)
@every_model
def test_a_resumed_training_ends_where_an_uninterrupted_one_does(
    data_directory, tmp_path, command, name
):
    options = [*USER, *TRAINING, *SIZES, *flags_of(name), "--max-tokens", "300"]
    train_with_stops(
        lambda *others: command(
            train_command, data_directory, *options, "--train-subset", "valid",
            "--disable-validation", *others,
        ),
        tmp_path,
        epochs=1,  # test_resuming.py stops at the end of an epoch, too
    )  # fmt: skip
    printed = command(
        generate_command, data_directory, *USER, "--path", tmp_path / "once" / "checkpoint_last.pt",
        "--beam", "2", "--max-len-b", "6", "--batch-size", "50", "--cpu",
    )  # fmt: skip
    assert len(re.findall(r"^H-\d+\t", printed, re.MULTILINE)) == 100


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", MODELS)
def test_hydra_trains_it_from_a_file(data_directory, tmp_path, name):
    options, of_task = dict(MODELS[name]), TASKS.get(name, {})
    sizes = dict(flag.removeprefix("--").split("=") for flag in SIZES)
    sizes = {key.replace("-", "_"): int(value) for key, value in sizes.items()}
    config = {
        "common": {
            "user_dir": str(REPOSITORY / "fairseq_phrase"),
            "cpu": True,
            "log_format": "simple",
        },
        "task": {"_name": "syntax_translation", "data": str(data_directory), **of_task},
        "model": {"_name": name, "share_all_embeddings": True, **sizes, **options},
        "criterion": {"_name": "cross_entropy"},
        "optimizer": {"_name": "adam", "adam_betas": [0.9, 0.98]},
        "lr_scheduler": {"_name": "fixed"},
        "dataset": {"max_tokens": 400, "num_workers": 0, "disable_validation": True},
        "optimization": {"max_update": 1, "lr": [0.001]},
        "checkpoint": {"save_dir": str(tmp_path / "out")},
    }
    (tmp_path / "mine.yaml").write_text(f"# @package _group_\n{yaml.safe_dump(config)}")
    run(
        "fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "mine",
        f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    saved = torch.load(tmp_path / "out" / "checkpoint_last.pt", weights_only=True)
    assert saved["cfg"]["model"]["_name"] == name
    for part, values in (("model", options), ("task", of_task)):
        for option, value in values.items():
            assert saved["cfg"][part][option] == value


CONFIGS = REPOSITORY / "configs"


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "name", sorted({path.stem for path in CONFIGS.glob("*.yaml")} - {"labelling"})
)
def test_every_configuration_file_trains(data_directory, tmp_path, name):
    """With the values in it, but for sizes, data and the length of the training."""
    sizes = dict(flag.removeprefix("--").replace("-", "_").split("=") for flag in SIZES)
    run(
        "fairseq-hydra-train", "--config-dir", CONFIGS, "--config-name", name,
        f"common.user_dir={REPOSITORY / 'fairseq_phrase'}", f"task.data={data_directory}",
        "task.source_lang=de", "task.target_lang=en", "common.cpu=true",
        *(f"++model.{size}={value}" for size, value in sizes.items()),
        "dataset.num_workers=0", "dataset.max_tokens=500", "++dataset.disable_validation=true",
        "++optimization.max_update=1", "++optimization.update_freq=[1]",
        f"checkpoint.save_dir={tmp_path}", f"hydra.run.dir={tmp_path}",
    )  # fmt: skip
    saved = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)["cfg"]["model"]
    configured = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"))["model"]
    for option, value in {
        **configured,
        **{size: int(value) for size, value in sizes.items()},
    }.items():
        assert saved[option] == value, option
