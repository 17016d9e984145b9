"""Results of probing: the table by task and layer, differences of models, JSON, and a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.pictures.figures import new_figure, save
from fairseq_phrase.lab.probing.classifier import Probe
from fairseq_phrase.lab.probing.task_files import GROUPS, ProbingTask, title
from fairseq_phrase.metrics.interface import percentages
from fairseq_phrase.metrics.over_seeds import (
    SeedComparison,
    compare_seeds,
    holm,
    resample_sentences,
)
from fairseq_phrase.metrics.over_sentences import TRIALS
from fairseq_phrase.text import markdown_table

MAJORITY = "majority"
_COLUMNS = 5
SPREAD = "Accuracies are means over the seeds ± their standard deviation (n - 1)."
#: A checkpoint's classifiers, by layer and task.
LayerProbes = Mapping[int, Mapping[str, Probe]]


@dataclass(frozen=True)
class Results:
    """The accuracies of all models.

    Attributes:
        tasks: the tasks, in the table's order.
        probes: by model and checkpoint. The checkpoints of a model are its seeds. They have the same
            layers.
    """

    tasks: Sequence[ProbingTask]
    probes: Mapping[str, Mapping[str, LayerProbes]]

    def layers(self, model: str) -> list[int]:
        """Return the numbers of the probed layers of a model's checkpoints."""
        return list(next(iter(self.probes[model].values())))

    def accuracies(self, model: str, layer: int, tasks: Sequence[str]) -> list[float]:
        """Return the mean accuracy on some tasks, in percent, of each checkpoint of a model."""
        return [
            100 * mean(layers[layer][name].accuracy for name in tasks)
            for layers in self.probes[model].values()
        ]

    def table(self) -> str:
        """Format test accuracies in percent, with an average for each group of tasks that has results.

        A model with several checkpoints has their means and standard deviations.
        """
        names = [task.name for task in self.tasks]
        headings, columns = ["model", "layer", "seeds"], []
        for group, of_group in GROUPS.items():
            columns_of_group = [name for name in names if name in of_group]
            columns += [[name] for name in columns_of_group]
            headings += map(title, columns_of_group)
            if len(columns_of_group) > 1:
                columns.append(columns_of_group)
                missing = len(of_group) - len(columns_of_group)
                share = f" of {len(columns_of_group)}/{len(of_group)}" if missing else ""
                headings.append(f"{group} avg{share}")
        ungrouped = [name for name in names if not any(name in group for group in GROUPS.values())]
        columns += [[name] for name in ungrouped]
        headings += ungrouped
        majority = {task.name: task.majority for task in self.tasks}
        shares = [100 * mean(majority[name] for name in column) for column in columns]
        lines = [[MAJORITY, "", "", *(f"{share:.2f}" for share in shares)]]
        for model, checkpoints in self.probes.items():
            seeds = "1 seed" if len(checkpoints) == 1 else str(len(checkpoints))
            for layer in self.layers(model):
                cells = [_with_spread(self.accuracies(model, layer, column)) for column in columns]
                lines.append([model, str(layer), seeds, *cells])
        table = markdown_table(headings, lines, texts=1)
        several = any(len(checkpoints) > 1 for checkpoints in self.probes.values())
        return f"{table}\n\n{SPREAD}" if several else table

    def as_json(self) -> str:
        """Write all results of each checkpoint, with the settings of each classifier."""
        keys = [field.name for field in fields(Probe) if field.compare]
        tasks = {
            task.name: {
                "sentences": [len(task.train), len(task.valid), len(task.test)],
                "majority": task.majority,
            }
            for task in self.tasks
        }
        results = [
            {"model": model, "checkpoint": checkpoint, "layer": layer, "task": name}
            | {key: vars(probe)[key] for key in keys}
            for model, checkpoints in self.probes.items()
            for checkpoint, layers in checkpoints.items()
            for layer, probes in layers.items()
            for name, probe in probes.items()
        ]
        return json.dumps({"tasks": tasks, "results": results}, indent=1) + "\n"


def _with_spread(values: Sequence[float]) -> str:
    """Write a mean over seeds, with the standard deviation if there are several."""
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{mean(values):.2f}{spread}"


def plot_results(results: Results, path: Path) -> None:
    """Draw accuracy by layer: a panel for each task, a line for each model, and the majority's share.

    A model with several seeds has their means, with a bar of one standard deviation to each side.
    """
    columns = min(len(results.tasks), _COLUMNS)
    rows = -(-len(results.tasks) // columns)
    figure = new_figure(path, (1.5 + 2.4 * columns, 0.8 + 2.2 * rows))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for panel, task in zip(panels, results.tasks, strict=False):
        for model, checkpoints in results.probes.items():
            layers = results.layers(model)
            accuracies = [results.accuracies(model, layer, [task.name]) for layer in layers]
            spreads = [stdev(values) for values in accuracies] if len(checkpoints) > 1 else None
            panel.errorbar(
                layers, [mean(values) for values in accuracies], spreads, capsize=2, marker="o",
                markersize=3, label=model,
            )  # fmt: skip
        panel.axhline(100 * task.majority, color="grey", linestyle=":", label=MAJORITY)
        panel.set_title(title(task.name), fontsize=9)
        panel.xaxis.get_major_locator().set_params(integer=True)
    for panel in panels[len(results.tasks) :]:
        panel.set_axis_off()
    figure.supxlabel("layer (0: what enters the first)", fontsize=9)
    figure.supylabel("accuracy, %", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8)
    save(figure, path)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Name checkpoints by the parts of their paths that differ; a single one by its folder and file.

    >>> short_names([Path("runs/a/seed1/last.pt"), Path("runs/b/seed1/last.pt")])
    ['a', 'b']
    >>> short_names([Path("runs/a/last.pt")])
    ['a/last.pt']
    """
    if len(paths) == 1:
        return ["/".join(paths[0].parts[-2:])]
    parts = [path.parts for path in paths]
    if len(set(parts)) < len(parts):
        raise UserError("a checkpoint is named twice")
    shared = [len(set(column)) == 1 for column in zip(*parts, strict=False)]
    same_at_end = [len(set(column)) == 1 for column in zip(*map(reversed, parts), strict=False)]
    # If all parts of the shortest path are shared, no part is left to name it.
    first, last = ([*is_shared, False].index(False) for is_shared in (shared, same_at_end))
    names = ["/".join(path_parts[first : len(path_parts) - last]) for path_parts in parts]
    return names if all(names) and len(set(names)) == len(names) else list(map(str, paths))


#: By model and group of tasks, how far the last probed layer is from the baseline's, in percent.
Differences = Mapping[tuple[str, str], SeedComparison]


def baseline_differences(results: Results, baseline: str, resamples: int = TRIALS) -> Differences:
    """Compare the averages of groups of tasks over seeds, at each model's last probed layer.

    :func:`~fairseq_phrase.metrics.over_seeds.compare_seeds` computes interval and p. p is
    corrected by Holm's method for all comparisons.

    Args:
        results: the accuracies. Models with one checkpoint are left out.
        baseline: the model that the others are compared with; one of ``results``.
    """
    counts = {model: len(seeds) for model, seeds in results.probes.items() if len(seeds) > 1}
    if baseline not in counts:
        return {}
    comparisons = {}
    for group, tasks in GROUPS.items():
        names = [task.name for task in results.tasks if task.name in tasks]
        if not names:
            continue
        runs = [run for model in counts for run in _statistics(results, model, names)]
        resampled = resample_sentences(runs, percentages, resamples)
        ends = np.cumsum([0, *counts.values()])
        rows = {model: resampled[ends[i] : ends[i + 1]] for i, model in enumerate(counts)}
        scores = {
            model: np.array(results.accuracies(model, results.layers(model)[-1], names))
            for model in counts
        }
        for model in counts:
            comparison = compare_seeds(scores[model], scores[baseline], rows[model], rows[baseline])
            if model != baseline and comparison is not None:
                comparisons[model, group] = comparison
    corrected = holm([comparison.p for comparison in comparisons.values()])
    return {
        key: replace(comparison, p_holm=p)
        for (key, comparison), p in zip(comparisons.items(), corrected, strict=True)
    }


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


def differences_table(comparisons: Differences, baseline: str) -> str:
    """Format differences: a line for each model, a column for each group."""
    models, groups = (list(dict.fromkeys(names)) for names in zip(*comparisons, strict=True))
    lines = [
        [model, *(_cell(comparisons.get((model, group))) for group in groups)] for model in models
    ]
    table = markdown_table(["model", *(f"Δ{group} avg" for group in groups)], lines, texts=1)
    return (
        f"{table}\n\nΔ: the mean of the last probed layer less that of {baseline}, its 95% interval, and "
        "two-sided p, for other seeds and other sentences. p is corrected by Holm's method for "
        f"{len(comparisons)} comparisons."
    )


def _cell(comparison: SeedComparison | None) -> str:
    if comparison is None:
        return "-"
    p = "<0.001" if comparison.p_holm < 0.001 else f"{comparison.p_holm:.3f}"
    return f"{comparison.difference:+.2f} ({comparison.low:+.2f} to {comparison.high:+.2f}), p {p}"
