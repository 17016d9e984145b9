"""Ensembles: each member reads its own fields, trees and factors."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from fairseq_phrase.data.batches.source_batches import add_structure
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import load
from tests.support.small_checkpoints import make_checkpoint, make_data

STRUCTURAL = ["--arch", "structural_transformer", "--structural-relative"]
CHAINS = ["--arch", "phrase_transformer", "--phrase-source", "dependency"]
KINDS = {
    "plain": ["--arch", "transformer"],
    "tags": ["--arch", "transformer", "--source-factors", "tags,subwords"],
    "deprels": ["--arch", "transformer", "--source-factors", "deprels"],
    "relations": ["--arch", "relation_transformer", "--relation-labels"],
    "random": [*STRUCTURAL, "--tree-source", "random", "--tree-seed", "7"],
    "paths": [*STRUCTURAL[:2], "--structural-absolute", "path"],
    "chains of 2": [*CHAINS, "--phrase-max-length", "2"],
    "chains of 3": [*CHAINS, "--phrase-max-length", "3"],
    "linear, tags": [*STRUCTURAL, "--tree-source", "linear", "--source-factors", "tags"],
}
LINE = "der Hund schläft der Hund der der Hund"
TARGET = "the dog sleeps"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ensembles")
    data = make_data(folder / "data")
    return {
        name: make_checkpoint(folder / f"{number}.pt", data, *options, seed=number)
        for number, (name, options) in enumerate(KINDS.items())
    }


def log_probabilities(path) -> torch.Tensor:
    """Of the target's words and end, by one model."""
    model = load(path, device="cpu")
    inputs = model.inputs([LINE])
    dictionary = model.task.target_dictionary
    target = dictionary.encode_line(TARGET, add_if_not_exist=False).long()[None]
    tokens, mask = inputs.pop("input_ids"), inputs.pop("attention_mask")
    output = model.models[0](tokens, mask.sum(1), target.roll(1, 1), **inputs)
    log_probs = model.models[0].get_normalized_probs(output, log_probs=True)
    return log_probs.gather(2, target[..., None]).flatten().double()


@pytest.mark.slow
def test_each_member_of_a_pair_reads_its_own_as_the_first_and_as_the_second(
    checkpoints, caplog
) -> None:
    alone = {name: log_probabilities(path) for name, path in checkpoints.items()}
    for number, names in enumerate(itertools.combinations(KINDS, 2)):
        # A control goes with models that read no trees.
        if {"random", "linear, tags"} & {*names} and not {"plain", "tags"} & {*names}:
            continue
        order = names[:: (-1) ** number]
        mean = torch.stack([alone[name] for name in names]).exp().mean(0)
        path = ":".join(str(checkpoints[name]) for name in order)
        score = load(path, device="cpu").score(LINE, TARGET)
        assert score == pytest.approx(float(mean.log2().mean()), abs=1e-4), order
    assert "differ" not in caplog.text


def test_two_structures_under_one_key_are_refused():
    structures = {}
    for function in (partial(torch.add, 1), partial(torch.add, 1)):
        add_structure(structures, "added", function)
    add_structure(structures, "plain", torch.add)
    differing = [("added", partial(torch.add, 2)), ("added", partial(torch.sub, 1))]
    differing += [
        ("added", partial(torch.add)),
        ("plain", torch.sub),
        ("plain", partial(torch.add)),
    ]
    for key, changed_function in differing:
        with pytest.raises(UserError, match=f"under the key '{key}'.*must name all options"):
            add_structure(structures, key, changed_function)
    assert len(structures) == 2
