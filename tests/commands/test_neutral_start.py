"""From a checkpoint of stock fairseq to an encoder that reads trees, by fairseq's own commands."""

from __future__ import annotations

import re
from functools import cache

import pytest
import torch
from fairseq import utils
from fairseq_cli import train as train_command

from fairseq_phrase import load
from fairseq_phrase.checkpoints.loading import load_model
from fairseq_phrase.cli import export as export_command
from fairseq_phrase.errors import UserError
from tests.support.commands import SIZES, TRAINING, run

RESETS = [f"--reset-{what}" for what in ("optimizer", "lr-scheduler", "meters", "dataloader")]
NORMS = {"post": [], "pre": ["--encoder-normalize-before", "--decoder-normalize-before"]}
CASES = {
    "relation": ["relation_transformer", "--relation-bias", "both", "--relation-labels"],
    "trees": ["tree_transformer", "--neutral-start"],
}  # fmt: skip


@pytest.fixture(scope="module")
def stock(data_directory, tmp_path_factory):
    """A function that trains fairseq's Transformer for 20 updates, once for each kind of norms.

    Its checkpoint is perturbed.
    """

    @cache
    def trained(norm):
        folder = tmp_path_factory.mktemp("stock")
        run(
            "fairseq-train", data_directory, "--task", "translation", *TRAINING, *SIZES, *NORMS[norm],
            "--arch", "transformer", "--save-dir", folder, "--max-tokens", "1000", "--max-update",
            "20", "--disable-validation", "--train-subset", "valid",
        )  # fmt: skip
        state = torch.load(folder / "checkpoint_last.pt", weights_only=False)
        torch.manual_seed(3)
        for name, value in state["model"].items():
            if value.is_floating_point() and not name.endswith("version"):
                value += 0.1 * torch.randn_like(value)
        torch.save(state, folder / "stock.pt")
        return folder / "stock.pt"

    return trained


@pytest.fixture(scope="module")
def stock_losses() -> dict[str, str]:
    """The validation loss of each checkpoint in fairseq's Transformer, once it is known."""
    return {}


def logits(checkpoint, data, monkeypatch):
    """In double precision, of a few sentences."""
    model, task = load_model(checkpoint, data)
    if not task.datasets:
        task.load_dataset("valid")
    dataset = task.dataset("valid")
    batch = dataset.collater([dataset[index] for index in range(12)])
    # Fairseq's cross-attention computes its softmax in single precision.
    with monkeypatch.context() as patch:
        patch.setattr(utils, "softmax", lambda x, dim, onnx_trace=False: x.softmax(dim))
        return model.double().eval()(**batch["net_input"])[0]


# Unit tests compare the logits of every encoder.
@pytest.mark.fast(1)
@pytest.mark.parametrize(("case", "norm"), [*zip(CASES, NORMS, strict=True)])
def test_a_stock_checkpoint_is_continued_exactly(
    command, data_directory, stock, stock_losses, tmp_path, case, norm, monkeypatch
):
    entry_point = {"post": "--finetune-from-model", "pre": "--restore-file"}[norm]

    def train(folder, updates, *options, arch=CASES[case]):
        return command(
            train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING, *SIZES, *NORMS[norm], "--arch", *arch, "--save-dir",
            tmp_path / folder, "--max-tokens", "1000", "--max-update", updates, "--train-subset",
            "valid", "--dropout", "0.1", *options,
        )  # fmt: skip

    start = [entry_point, stock(norm), *(RESETS if entry_point == "--restore-file" else [])]

    def loss(text):
        return re.search(r"valid on 'valid' subset \| loss (\S+)", text)[1]

    if norm not in stock_losses:
        stock_losses[norm] = loss(train("stock", 1, *start, "--lr", "0", arch=["transformer"]))
    printed = train("begun", 1, *start, "--lr", "0")
    assert loss(printed) == stock_losses[norm]
    begun = tmp_path / "begun" / "checkpoint_last.pt"
    with torch.no_grad():
        expected, actual = (
            logits(checkpoint, data_directory, monkeypatch) for checkpoint in (stock(norm), begun)
        )
    assert (actual - expected).abs().max() <= 1e-12 * expected.abs().max()
    train("trained", 8, *start, "--disable-validation")
    trained = tmp_path / "trained" / "checkpoint_last.pt"
    states = [
        torch.load(checkpoint, weights_only=False)["model"] for checkpoint in (begun, trained)
    ]
    new = states[0].keys() - torch.load(stock(norm), weights_only=False)["model"].keys()
    assert new
    assert all(name in printed for name in new)
    still = {name for name in new if torch.equal(*(state[name] for state in states))}
    # A softmax does not depend on what is added to all keys.
    assert {name for name in still if not name.endswith("k_proj.bias")} == set()
    assert "@ 8 updates" in train("trained", 9, "--disable-validation")
    export_command.main([str(trained), str(data_directory), str(tmp_path / "bundle")])
    (model,) = load(tmp_path / "bundle").models
    trained_on = torch.load(trained, weights_only=False)["model"]
    assert all(torch.equal(model.state_dict()[name], trained_on[name]) for name in new)


def test_what_cannot_begin_from_it_is_refused(command, data_directory, stock, tmp_path):
    def train(*options):
        return command(
            train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING, *SIZES, "--save-dir", tmp_path, "--max-tokens", "1000",
            "--max-update", "1", *options,
        )  # fmt: skip

    start = ["--finetune-from-model", stock("post")]
    for arch, message in (
        (["parent_scaled_transformer"], "give --neutral-start"),
        (
            ["xl_transformer"],
            "it has no neutral start; or begin from parts of it, with --pretrained",
        ),
        (["structural_transformer", "--structural-absolute"], "give --structural-fusion add"),
        (
            ["relation_transformer", "--encoder-layers", "3"],
            "encoder-layers 2 and 3: give --encoder-layers 2",
        ),
        (["relation_transformer", "--encoder-ffn-embed-dim", "40"], "embed-dim .* and 40: give"),
    ):
        with pytest.raises(UserError, match=message):
            train("--arch", *arch, *start)
    for options, message in (
        (["--take-options"], "--take-options: give the checkpoint with --pretrained-model"),
        (["--pretrained", "a.pt", "--pretrained-model", "a.pt"], "-model: give one of them"),
    ):
        with pytest.raises(UserError, match=message):
            train("--arch", "relation_transformer", *options)
    with pytest.raises(UserError, match="no optimizer's state for the parameters that relation_tr"):
        train("--arch", "relation_transformer", "--restore-file", stock("post"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_parameters_of_a_whole_model_have_a_smaller_learning_rate(
    command, data_directory, stock, tmp_path
):
    def trained(folder, *options):
        command(
            train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
            "syntax_translation", *TRAINING[1:], "--save-dir", tmp_path / folder, "--max-tokens",
            "1000", "--max-update", "1", "--train-subset", "valid", "--disable-validation", "--arch",
            "relation_transformer", "--pretrained-model", stock("pre"), "--take-options", *options,
        )  # fmt: skip
        return torch.load(tmp_path / folder / "checkpoint_last.pt", weights_only=False)["model"]

    before, moved = trained("begun", "--lr", "0"), {}
    for factor in ("1", "0.5"):
        # Without it, the first update has the learning rate 0.
        options = ("--lr-scale-pretrained", factor, "--warmup-init-lr", "0.001")
        after = trained(factor, *options)
        moved[factor] = {name: after[name] - before[name] for name in before}
    for name, difference in moved["0.5"].items():
        scale = 1.0 if name.endswith("_bias") else 0.5
        torch.testing.assert_close(difference, scale * moved["1"][name], atol=1e-7, rtol=1e-3)
    assert all(moved["1"][name].any() for name in before if name.endswith("fc1.weight"))


def test_the_encoder_alone_is_begun_by_fairseqs_architecture(
    command, data_directory, stock, tmp_path
):
    log = command(
        train_command, data_directory, "--user-dir", "fairseq_phrase", "--task",
        "syntax_translation", *TRAINING[1:], *SIZES, "--arch", "transformer", "--save-dir", tmp_path,
        "--max-tokens", "1000", "--max-update", "1", "--disable-validation", "--pretrained",
        stock("post"), "--freeze-encoder",
    )  # fmt: skip
    assert f"--pretrained {stock('post')}: loaded" in log
    states = [
        torch.load(checkpoint, weights_only=False)["model"]
        for checkpoint in (stock("post"), tmp_path / "checkpoint_last.pt")
    ]
    unchanged = {name for name in states[1] if torch.equal(*(state[name] for state in states))}
    assert {name for name in states[1] if name.startswith("encoder.")} <= unchanged
    assert "decoder.layers.0.fc1.weight" not in unchanged
