"""User-defined metrics: functions of sources, hypotheses and references, tested like BLEU.

``fairseq-phrase-report --metric NAME[:ARGUMENT]`` takes one of :data:`BUILT_IN`, or an entry point of the
group :data:`METRIC_GROUP` in an installed package.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.metrics.corrections import Errant, Gleu
from fairseq_phrase.metrics.interface import Metrics, Statistics
from fairseq_phrase.optional_packages import load_entry
from fairseq_phrase.text import read_lines


class ScoreFile:
    """The numbers in a file, one for each sentence.

    Args:
        argument: ``NAME=SCORES[:lower]``: the scores' name in the table, and the file in each run's
            folder, or the file of a single run. ``SUBSET`` in it becomes the test set's name. With
            ``:lower``, a lower score is better.

    Attributes:
        notes: notes for below the table: files that are older than the translations.

    Raises:
        UserError: the argument has another form.
    """

    needs_sources = False

    def __init__(self, argument: str) -> None:
        self.title, _, name = argument.partition("=")
        self._name = name.removesuffix(":lower")
        self.lower_is_better = name != self._name
        self.notes: list[str] = []
        if not self.title or not self._name:
            raise UserError(
                f"--metric file:{argument}: expected file:NAME=SCORES, such as file:COMET=comet.txt"
            )
        self.signature = f"file:{Path(self._name).name}"
        self._runs: dict[Path, tuple[Path, str]] = {}
        self._is_outside = False  # of the runs' folders: the file of a single run

    def of_run(self, folder: Path, subset: str, output: Path) -> Callable[..., list[float]]:
        """Return a metric of a run's translation of a test set.

        Args:
            folder: the run's folder.
            subset: the test set's name.
            output: the file of the translation.

        Raises:
            UserError: the file is missing, is another run's too, or does not have a number for each
                sentence.
        """
        name = self._name.replace("SUBSET", subset)
        path = folder / name if (folder / name).is_file() else Path(name)
        if not path.is_file():
            raise UserError(
                f"--metric file:{self.title}={self._name}: {folder / name} is not there"
            )
        run = (folder, subset)
        is_shared = self._runs.setdefault(path.resolve(), run) != run
        self._is_outside |= path != folder / name
        if is_shared or (
            self._is_outside and len({run_folder for run_folder, _ in self._runs.values()}) > 1
        ):
            raise UserError(
                f"{path} has the scores of one translation, and this table has several: write each run's "
                "scores into its folder, with SUBSET in the name for several test sets"
            )
        if path.stat().st_mtime < output.stat().st_mtime:
            self.notes.append(
                f"{path} is older than {output.name}: its scores may be of an earlier translation."
            )
        scores = []
        for number, line in enumerate(read_lines(path), start=1):
            try:
                scores.append(float(line))
            except ValueError:
                raise UserError(
                    f"{location(path, number)}: expected a number, not '{line}'"
                ) from None

        def read_scores(sources: object, hypotheses: list[str], references: object) -> list[float]:
            if len(scores) != len(hypotheses):
                raise UserError(f"{path} has {len(scores)} scores of {len(hypotheses)} sentences")
            return scores

        return read_scores


#: A metric of a test set. Its arguments are the raw sources, the outputs, and the references, a list of
#: lines for each ``--reference``. It returns
#:
#: - a number for each sentence; the score is their mean;
#: - or one number, the score. Significance then needs the influence of each sentence: the function is
#:   called once more for each sentence, without it;
#: - or sufficient statistics of each sentence, (sentences, statistics), if its attribute ``score`` is a
#:   function from their sums, (..., statistics), to scores, (...).
#:
#: Other attributes are optional: ``title``, the column's heading; ``signature``, its version and
#: settings, for below the table; ``lower_is_better``.
MetricFunction = Callable[[list[str], list[str], list[list[str]]], ArrayLike]

#: The group of entry points in which installed packages offer metrics: a function, or a class, which is
#: called with ``ARGUMENT``, if it is given, and makes a function.
METRIC_GROUP = "fairseq_phrase.metrics"
BUILT_IN: dict[str, type] = {"errant": Errant, "file": ScoreFile, "gleu": Gleu}


def is_lower_better(function: MetricFunction) -> bool:
    """Return whether smaller values of a metric are better."""
    return bool(getattr(function, "lower_is_better", False))


def formula_of(function: MetricFunction) -> Callable[[Any], ArrayLike] | None:
    """Return a metric's function of sums of statistics; None if it has none, for means."""
    formula: Callable[[Any], ArrayLike] | None = getattr(function, "score", None)
    return formula


def load_metrics(specs: Sequence[str]) -> dict[str, MetricFunction]:
    """Load the metrics that ``--metric NAME[:ARGUMENT]`` names; by their titles.

    Raises:
        UserError: a metric is unknown or cannot be imported, does not accept its argument, or two metrics
            have one title.
    """
    metrics: dict[str, MetricFunction] = {}
    for spec in specs:
        metric = _load(spec)
        title = getattr(metric, "title", spec.partition(":")[0])
        if title in metrics:
            raise UserError(f"--metric {spec}: there are two metrics '{title}'")
        metrics[title] = metric
    return metrics


def _load(spec: str) -> MetricFunction:
    name, _, argument = spec.partition(":")
    installed = entry_points(group=METRIC_GROUP)
    if name not in BUILT_IN and name not in installed.names:
        names = sorted({*BUILT_IN, *installed.names})
        raise UserError(f"--metric {spec}: expected one of {', '.join(names)}")
    metric: MetricFunction | type | None = BUILT_IN.get(name)
    if metric is None:
        entry = installed[name]
        metric = load_entry(entry, f"--metric {spec}: {entry.value} cannot be used")
    arguments = [argument] if argument else []
    if not isinstance(metric, type):
        if arguments:
            raise UserError(f"--metric {spec}: {name} is a function and takes no argument")
        return metric
    try:
        inspect.signature(metric).bind(*arguments)
    except TypeError as error:
        raise UserError(f"--metric {spec}: {name} {error}") from None
    function: MetricFunction = metric(*arguments)
    return function


class FunctionMetrics(Metrics):
    """Functions, and the metrics of a measure.

    Args:
        functions: the functions by name; the first is the main metric.
        references: the references, a list for each file.

    Raises:
        UserError: the sources are missing.
    """

    def __init__(
        self,
        base: Metrics,
        functions: Mapping[str, MetricFunction],
        references: Sequence[Sequence[str]],
        sources: Sequence[str] | None,
    ) -> None:
        if sources is None and any(
            getattr(function, "needs_sources", True) for function in functions.values()
        ):
            raise UserError("--metric needs the raw sentences of each test set: --source FILE")
        if shared := set(functions) & set(base.names):
            raise UserError(f"--metric: the table has a metric '{min(shared)}' already")
        self._base, self._functions = base, functions
        self._sources, self._references = list(sources or ()), [list(lines) for lines in references]
        self.outputs, self.counted = base.outputs, base.counted
        self.tested = [*functions, *base.tested]
        lower = [name for name, function in functions.items() if is_lower_better(function)]
        self.lower_is_better = base.lower_is_better | frozenset(lower)
        main = next(iter(functions))
        self.sentence_metric = base.sentence_metric if main in lower else main

    @property
    def names(self) -> list[str]:
        """The functions, then the metrics of the measure."""
        return [*self._functions, *self._base.names]

    def of_run(self, folder: Path, subset: str, output: Path) -> Metrics:
        """Return these metrics, with the run's scores for functions that read them from its files."""
        metrics = copy.copy(self)
        metrics._functions = {
            name: function.of_run(folder, subset, output)
            if isinstance(function, ScoreFile)
            else function
            for name, function in self._functions.items()
        }
        return metrics

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Call the functions."""
        values = {name: self._values(name, list(hypotheses)) for name in self._functions}
        return values | self._base.statistics(hypotheses)

    def _values(self, name: str, hypotheses: list[str]) -> Statistics:
        function, count = self._functions[name], len(hypotheses)
        values = np.asarray(function(self._sources, hypotheses, self._references), np.float64)
        if values.ndim == 0:
            values = self._influences(function, hypotheses, float(values))
        if values.ndim == 1:
            values = np.stack([values, np.ones_like(values)], axis=1)
        elif formula_of(function) is None:
            raise UserError(f"--metric {name} returned statistics, but has no function 'score'")
        if len(values) != count or not np.isfinite(values).all():
            raise UserError(
                f"--metric {name}: expected a finite number for each of {count} sentences, or one of all"
            )
        return values

    def _influences(
        self, function: MetricFunction, hypotheses: list[str], score: float
    ) -> NDArray[np.float64]:
        """Return the jackknife's values, whose mean is the score of all sentences; (sentences,)."""
        count = len(hypotheses)
        if count == 1:
            return np.array([score])
        without = np.empty(count)
        for index in range(count):
            texts = (self._sources, hypotheses, *self._references)
            sources, outputs, *references = (lines[:index] + lines[index + 1 :] for lines in texts)
            without[index] = function(sources, outputs, references)
        values: NDArray[np.float64] = score + (count - 1) * (without.mean() - without)
        return values

    def scores(self, name: str, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a metric's score of many test sets; (resamples, statistics) -> (resamples,)."""
        if name not in self._functions:
            return self._base.scores(name, sums)
        formula = formula_of(self._functions[name]) or (lambda sums: sums[..., 0] / sums[..., 1])
        return np.asarray(formula(sums), np.float64)

    def correct_items(self, hypotheses: Sequence[str]) -> NDArray[np.bool_] | None:
        """Return which items are correct in the measure's main metric."""
        return self._base.correct_items(hypotheses)

    def people_agree(self, name: str, difference: float) -> float | None:
        """Return how often people agree with the measure's metrics; None if unknown."""
        return self._base.people_agree(name, difference)

    @property
    def notes(self) -> list[str]:
        """The notes of files of scores, and of the measure's metrics."""
        files: list[Any] = [
            function for function in self._functions.values() if isinstance(function, ScoreFile)
        ]
        return [*(note for file in files for note in file.notes), *self._base.notes]

    def signatures(self, **settings: object) -> dict[str, str]:
        """Return the functions' own signatures, by default their modules and names."""
        signatures = {}
        for name, function in self._functions.items():
            is_named = inspect.isroutine(function) or inspect.isclass(function)
            kind = function if is_named else type(function)
            signatures[name] = getattr(
                function, "signature", f"{kind.__module__}.{kind.__qualname__}"
            )
        return signatures | self._base.signatures(**settings)
