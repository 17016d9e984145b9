"""Tests over seeds of what probed models know."""

from __future__ import annotations

import numpy as np
import pytest

from fairseq_phrase.lab.probing.classifier import Probe
from fairseq_phrase.lab.probing.results import Results, baseline_differences, differences_table
from fairseq_phrase.lab.probing.task_files import Example, ProbingTask
from fairseq_phrase.metrics.over_seeds import holm

EXAMPLE = [Example("a", "1")]
TASKS = ("sentence_length", "word_content", "tree_depth")
SENTENCES = {"sentence_length": 400, "word_content": 300, "tree_depth": 500}


def results(rates, seeds, layers=(0, 1)):
    """Results of models whose last layer labels a share of each task's sentences correctly."""
    rng = np.random.default_rng(1)

    def probed(rate, layer, name):
        chance = 0.5 if layer != layers[-1] else rate
        correct = rng.random(SENTENCES[name]) < chance
        return Probe(float(correct.mean()), 0.5, 50, 1e-3, 7, correct=correct)

    probes = {
        model: {
            f"{model}{seed}.pt": {
                layer: {name: probed(rate, layer, name) for name in TASKS} for layer in layers
            }
            for seed in range(count)
        }
        for (model, rate), count in zip(rates.items(), seeds, strict=True)
    }
    tasks = [ProbingTask(name, EXAMPLE, EXAMPLE, EXAMPLE) for name in TASKS]
    return Results(tasks, probes)


def test_averages_of_the_last_layer_are_compared_with_the_baselines():
    probed = results({"one": 0.6, "two": 0.8, "three": 0.6}, (3, 3, 4))
    compared = baseline_differences(probed, "one", resamples=2000)
    assert list(compared) == [
        ("two", "surface"), ("three", "surface"), ("two", "syntactic"), ("three", "syntactic"),
    ]  # fmt: skip
    surface = compared["two", "surface"]
    means = [
        np.mean(probed.accuracies(model, 1, ["sentence_length", "word_content"]))
        for model in ("two", "one")
    ]
    assert surface.difference == pytest.approx(means[0] - means[1])
    assert surface.low < surface.difference < surface.high
    assert surface.p_holm < 0.01
    assert compared["three", "surface"].p_holm > 0.1
    p_values = [comparison.p for comparison in compared.values()]
    assert [comparison.p_holm for comparison in compared.values()] == pytest.approx(holm(p_values))


def test_the_baseline_may_be_any_model():
    probed = results({"one": 0.6, "two": 0.8}, (2, 2))
    first, two = (
        baseline_differences(probed, baseline, resamples=500) for baseline in ("one", "two")
    )
    assert {model for model, _ in first} == {"two"}
    for (_, group), difference in first.items():
        assert difference.difference == pytest.approx(-two["one", group].difference)


@pytest.mark.parametrize(("seeds", "models"), [((1, 3, 3), []), ((3, 1, 2), ["three"])])
def test_a_model_with_one_seed_is_not_compared(seeds, models):
    probed = results({"one": 0.6, "two": 0.8, "three": 0.7}, seeds)
    compared = baseline_differences(probed, "one", resamples=500)
    assert list(dict.fromkeys(model for model, _ in compared)) == models


def test_the_table_has_a_line_for_each_model_and_says_how_it_was_tested():
    probed = results({"one": 0.6, "two": 0.8}, (3, 3))
    compared = baseline_differences(probed, "one", resamples=500)
    heading, _, line, _, note = differences_table(compared, "one").splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert [cell.strip() for cell in heading.strip("|").split("|")] == [
        "model", "Δsurface avg", "Δsyntactic avg",
    ]  # fmt: skip
    surface = compared["two", "surface"]
    assert 0.001 <= surface.p_holm < 0.05
    assert cells[:2] == [
        "two",
        f"{surface.difference:+.2f} ({surface.low:+.2f} to {surface.high:+.2f}), p {surface.p_holm:.3f}",
    ]
    assert "the mean of the last probed layer less that of one" in note  # --layer may be a number
    assert "2 comparisons" in note
