"""A parallel corpus with gold trees on both sides, from treebank files to a training."""

from __future__ import annotations

import torch
from fairseq_cli import train as train_command

from fairseq_phrase.cli import preprocess as preprocess_command
from tests.support.commands import SIZES, TRAINING


def test_an_encoder_trains_on_the_gold_trees_of_the_target_side(gold_corpus, command, tmp_path):
    data = tmp_path / "data"
    preprocess_command.main(
        ["-s", "de", "-t", "en", f"--trainpref={gold_corpus / 'train'}", "--vocab-size", "200",
         "--parser", "conllu", "--parse", "both", "--constituents", "from-dependencies",
         "--joined-dictionary", "--destdir", str(data)]
    )  # fmt: skip
    command(
        train_command, data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        "--source-lang", "en", "--target-lang", "de", *TRAINING, *SIZES, "--arch",
        "tree_transformer_tiny", "--save-dir", tmp_path, "--max-tokens", "800", "--max-update", "3",
        "--disable-validation",
    )  # fmt: skip
    state = torch.load(tmp_path / "checkpoint_last.pt", weights_only=True)
    assert state["optimizer_history"][-1]["num_updates"] == 3
