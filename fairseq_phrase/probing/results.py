"""Results of probing: the table by task and layer, as JSON, and a picture of accuracy by layer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import mean

from fairseq_phrase.errors import UserError
from fairseq_phrase.figures import new_figure, save
from fairseq_phrase.markdown import markdown_table
from fairseq_phrase.probing.classifier import Probe
from fairseq_phrase.probing.task_files import GROUPS, ProbingTask, title

__all__ = ["Results", "draw", "short_names"]

MAJORITY = "majority"
_COLUMNS = 5


@dataclass(frozen=True)
class Results:
    """The accuracies of all models.

    Attributes:
        tasks: the tasks, in the table's order.
        probes: by model, layer and task.
    """

    tasks: Sequence[ProbingTask]
    probes: Mapping[str, Mapping[int, Mapping[str, Probe]]]

    def table(self) -> str:
        """Format test accuracies in percent, with an average for each group of tasks that is there."""
        names = [task.name for task in self.tasks]
        headings, columns = ["model", "layer"], []
        for group, of_group in GROUPS.items():
            found = [name for name in names if name in of_group]
            columns += [[name] for name in found]
            headings += map(title, found)
            if len(found) > 1:
                columns.append(found)
                missing = len(of_group) - len(found)
                share = f" of {len(found)}/{len(of_group)}" if missing else ""
                headings.append(f"{group} avg{share}")
        others = [name for name in names if not any(name in group for group in GROUPS.values())]
        columns += [[name] for name in others]
        headings += others
        majority = {task.name: task.majority for task in self.tasks}
        rows = [(MAJORITY, "", majority)] + [
            (model, str(layer), {name: one.accuracy for name, one in probes.items()})
            for model, layers in self.probes.items()
            for layer, probes in layers.items()
        ]
        lines = [
            [
                model,
                layer,
                *(f"{100 * mean(found[name] for name in column):.2f}" for column in columns),
            ]
            for model, layer, found in rows
        ]
        return markdown_table(headings, lines, texts=1)

    def as_json(self) -> str:
        """Write everything that is known, with the chosen settings of each classifier."""
        kept = [field.name for field in fields(Probe) if field.compare]
        tasks = {
            task.name: {
                "sentences": [len(task.train), len(task.valid), len(task.test)],
                "majority": task.majority,
            }
            for task in self.tasks
        }
        results = [
            {"model": model, "layer": layer, "task": name, **{key: vars(one)[key] for key in kept}}
            for model, layers in self.probes.items()
            for layer, probes in layers.items()
            for name, one in probes.items()
        ]
        return json.dumps({"tasks": tasks, "results": results}, indent=1) + "\n"


def draw(results: Results, path: Path) -> None:
    """Draw accuracy by layer: a panel for each task, a line for each model, and the majority's share.

    Raises:
        UserError: matplotlib is missing or does not know the format.
    """
    columns = min(len(results.tasks), _COLUMNS)
    rows = -(-len(results.tasks) // columns)
    figure = new_figure(path, (1.5 + 2.4 * columns, 0.8 + 2.2 * rows))
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True).flatten()
    for panel, task in zip(panels, results.tasks, strict=False):
        for model, layers in results.probes.items():
            accuracies = [100 * layers[layer][task.name].accuracy for layer in layers]
            panel.plot(list(layers), accuracies, marker="o", markersize=3, label=model)
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
    """Name checkpoints by what their paths do not share; a single one by its folder and file.

    >>> short_names([Path("runs/a/seed1/last.pt"), Path("runs/b/seed1/last.pt")])
    ['a', 'b']
    >>> short_names([Path("runs/a/last.pt")])
    ['a/last.pt']
    """
    if len(paths) == 1:
        return ["/".join(paths[0].parts[-2:])]
    parts = [path.parts for path in paths]
    shortest = min(map(len, parts))
    if len(set(parts)) < len(parts):
        raise UserError("a checkpoint is named twice")
    differs = [len({each[place] for each in parts}) > 1 for place in range(shortest)]
    differs_at_end = [len({each[-1 - place] for each in parts}) > 1 for place in range(shortest)]
    if not any(differs) or not any(differs_at_end):
        return list(map(str, paths))
    first, last = differs.index(True), differs_at_end.index(True)
    names = ["/".join(each[first : len(each) - last]) for each in parts]
    return names if all(names) and len(set(names)) == len(names) else list(map(str, paths))
