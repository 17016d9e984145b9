"""Differences of probed models: would other seeds and other sentences show them again?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.markdown import markdown_table
from fairseq_phrase.metrics.over_seeds import (
    RESAMPLES,
    SeedComparison,
    compare_seeds,
    holm,
    resample_sentences,
)
from fairseq_phrase.probing.results import Results
from fairseq_phrase.probing.task_files import GROUPS


@dataclass(frozen=True)
class GroupDifference:
    """How far a model's last layer is from the baseline's, in the average of a group of tasks.

    Attributes:
        group: ``surface``, ``syntactic`` or ``semantic``.
        comparison: the difference in percent, with interval and p.
    """

    model: str
    group: str
    comparison: SeedComparison


def differences(
    results: Results, baseline: str, resamples: int = RESAMPLES
) -> list[GroupDifference]:
    """Compare the averages of groups of tasks over seeds, at each model's last layer.

    Interval and p are those of :func:`~fairseq_phrase.metrics.over_seeds.compare_seeds`. p is corrected
    by Holm's method for all comparisons.

    Args:
        results: the accuracies. Models with one checkpoint are left out.
        baseline: the model that the others are compared with; one of ``results``.
    """
    counts = {model: len(seeds) for model, seeds in results.probes.items() if len(seeds) > 1}
    if baseline not in counts:
        return []
    found = []
    for group, tasks in GROUPS.items():
        names = [task.name for task in results.tasks if task.name in tasks]
        if not names:
            continue
        runs = [run for model in counts for run in _statistics(results, model, names)]
        resampled = resample_sentences(runs, _accuracy, resamples)
        ends = np.cumsum([0, *counts.values()])
        rows = {model: resampled[ends[i] : ends[i + 1]] for i, model in enumerate(counts)}
        scores = {
            model: np.array(results.accuracies(model, results.layers(model)[-1], names))
            for model in counts
        }
        for model in counts:
            own, other = (scores[model], rows[model]), (scores[baseline], rows[baseline])
            comparison = compare_seeds(own[0], other[0], own[1], other[1])
            if model != baseline and comparison is not None:
                found.append(GroupDifference(model, group, comparison))
    corrected = holm([one.comparison.p for one in found])
    return [
        replace(one, comparison=replace(one.comparison, p_holm=p))
        for one, p in zip(found, corrected, strict=True)
    ]


def _statistics(
    results: Results, model: str, tasks: Sequence[str]
) -> list[list[NDArray[np.float64]]]:
    """Return, by seed and task, whether each test sentence is right, and ones: (sentences, 2)."""
    last = results.layers(model)[-1]
    runs = []
    for layers in results.probes[model].values():
        counts = []
        for name in tasks:
            correct = layers[last][name].correct
            assert correct is not None  # classifier.probe fills it
            counts.append(np.stack([correct, np.ones_like(correct)], 1).astype(np.float64))
        runs.append(counts)
    return runs


def _accuracy(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    return 100 * sums[:, 0] / sums[:, 1]


def differences_table(found: Sequence[GroupDifference], baseline: str) -> str:
    """Format differences: a line for each model, a column for each group."""
    groups = list(dict.fromkeys(one.group for one in found))
    lines = []
    for model in dict.fromkeys(one.model for one in found):
        of_model = {one.group: one.comparison for one in found if one.model == model}
        lines.append([model, *(_cell(of_model.get(group)) for group in groups)])
    table = markdown_table(["model", *(f"Δ{group} avg" for group in groups)], lines, texts=1)
    return (
        f"{table}\n\nΔ: the last layer's mean less that of {baseline}, its 95% interval, and two-sided "
        "p, for other seeds and other sentences. p is corrected by Holm's method for "
        f"{len(found)} comparisons."
    )


def _cell(one: SeedComparison | None) -> str:
    if one is None:
        return "-"
    p = "<0.001" if one.p_holm < 0.001 else f"{one.p_holm:.3f}"
    return f"{one.difference:+.2f} ({one.low:+.2f} to {one.high:+.2f}), p {p}"
