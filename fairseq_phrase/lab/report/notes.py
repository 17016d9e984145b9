"""Notes below a report's table: what differs or is missing, and what its tests mean (docs/compare.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fairseq_phrase.lab.report.generation import other_lines
from fairseq_phrase.lab.report.rows import Report, Row
from fairseq_phrase.lab.report.runs import Run
from fairseq_phrase.lab.report.text_form import form_differences
from fairseq_phrase.metrics.over_sentences import LEVEL, TESTS

_ENOUGH_SEEDS = 3  # of a comparison
#: Values of options without effect, as fairseq logs them.
_OFF = {"None", "False", "0", "0.0", "''", "[]", "{}"}


def table_notes(report: Report) -> list[str]:
    """State what limits the comparison of a table's rows, and what its numbers are."""
    kinds = (_table, _texts, _same_outputs, _trainings, baseline_notes, _choices, _costs)
    return [note for notes in kinds for note in notes(report)]


def _table(report: Report) -> Iterator[str]:
    if absent := [row.title for row in report.rows if row.absent]:
        yield f"Rows without runs: {'; '.join(absent)}."
    if len(report.texts) > 1:
        names = ", ".join(text.name for text in report.texts)
        yield f"Test sets: {names}. Columns that name none of them are means over all of them."
    if any(len(row.runs) > 1 for row in report.rows):
        yield "Scores are means over the seeds ± their standard deviation (n - 1)."


def _texts(report: Report) -> Iterator[str]:
    """The files of a test set are not what fairseq translated, or have another form than the outputs."""
    for text in report.texts:
        of = f" of {text.name}" if len(report.texts) > 1 else ""
        outputs = [(row, run.generations[text.subset]) for row, run in report.runs]
        for kind, printed, files in (
            ("reference", {tuple(output.targets) for _, output in outputs}, text.references),
            ("source", {tuple(output.sources) for _, output in outputs},
             [text.sources or outputs[0][1].sources]),
        ):  # fmt: skip
            if lines := {line for output in printed for line in other_lines(output, files)}:
                yield (
                    f"{len(lines):,} of {len(text.lines):,} lines of the {kind}{of} are not what fairseq "
                    f"printed, the first of them line {min(lines) + 1}: rows compare different sentences."
                )
        if report.metrics.outputs != "translations":
            continue
        forms: dict[str, dict[str, None]] = {}
        for row, output in outputs:
            for form in form_differences(output.hypotheses, text.lines):
                forms.setdefault(form, {})[row.title] = None
        for form, titles in forms.items():
            names = "; ".join(titles) if len(titles) < len(report.rows_with_runs) else "all rows"
            are = "are" if form.startswith("not ") else "are not"
            yield (
                f"The reference{of} is {form} and these translations {are}, so that the scores count "
                f"this difference: {names}."
            )


def _same_outputs(report: Report) -> Iterator[str]:
    """Runs may be one training: they have the same outputs, which are not all correct."""
    runs_by_output: dict[tuple[str, ...], list[tuple[Row, Run]]] = {}
    for row, run in report.runs:
        runs_by_output.setdefault(tuple(run.hypotheses), []).append((row, run))
    for output, runs in runs_by_output.items():
        if output != tuple(report.references) and len({row.name for row, _ in runs}) > 1:
            names = (
                row.title + ("" if run.seed is None else f", seed {run.seed}") for row, run in runs
            )
            yield f"Runs of different rows have the same outputs: {'; '.join(names)}."
    if repeated := [row.title for row in report.rows if row.repeated]:
        yield (
            "Two runs of a row have the same outputs, so that they may be one training, and the row has "
            f"no p over seeds: {'; '.join(repeated)}."
        )


def _trainings(report: Report) -> Iterator[str]:
    """Trainings of a row differ in more than the seed, or rows in their data; the user allowed some."""
    for row in report.rows:
        logs = [run.training for run in row.runs]
        trees = [log.identity.only("parser", "trees").labels() for log in logs if log.identity]
        differing = _differing([log.options for log in logs if log.options])
        differing |= _differing([log.sentences for log in logs], recorded_by_all=True)
        differing |= _differing(trees, recorded_by_all=True)
        differing |= _differing([{"updates": f"{log.updates:,}"} for log in logs if log.updates])
        if differing:
            yield f"Runs of {row.title} differ in {_listed(differing)}."
        records = [log.identity for log in logs]
        outputs = [output for run in row.runs for output in run.generations.values()]
        allowed = [text for record in records if record for text in record.allowed]
        allowed += [text for output in outputs for text in output.differences]
        if allowed:
            yield f"Differences that {row.title} let pass: {'; '.join(dict.fromkeys(allowed))}."
    # Of the options, rows are meant to differ; precision is also a matter of the machine.
    logs = [row.runs[0].training for row in report.rows_with_runs]
    parts = ("languages", "source", "target", "text")
    data = [log.identity.only(*parts).labels() for log in logs if log.identity]
    differing = _differing(data, recorded_by_all=True)
    differing |= _differing([log.sentences for log in logs], recorded_by_all=True)
    differing |= _differing([
        {name: log.options[name] for name in ("fp16", "bf16") if name in log.options} for log in logs
    ])  # fmt: skip
    if differing:
        yield f"Rows differ in their data or precision: {_listed(differing)}."


def _differing(
    facts: Sequence[Mapping[str, str]], *, recorded_by_all: bool = False
) -> dict[str, list[str]]:
    """Return the values of each setting that differs, by name; ``-`` where it is not recorded.

    A setting that is off does not differ from one that an earlier version did not have.

    Args:
        recorded_by_all: leave out settings that a mapping lacks: an earlier version recorded fewer.
    """
    differing = {}
    for name in dict.fromkeys(name for mapping in facts for name in mapping):
        values = list(dict.fromkeys(mapping.get(name, "-") for mapping in facts))
        is_off = len(values) == 2 and "-" in values and _OFF & {*values}
        if len(values) > 1 and not is_off and not ("-" in values and recorded_by_all):
            differing[name] = values
    return differing


def _listed(differing: Mapping[str, Iterable[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())


def baseline_notes(report: Report) -> Iterator[str]:
    """State what the differences from the baseline and the tests are."""
    metric, baseline, test = report.main, report.baseline, report.sentence_test
    if baseline is None or report.rows_with_runs == [baseline]:
        return
    yield f"Δ{metric}: the row's mean less that of {baseline.title}."
    if report.metrics.people_agree(metric, 0.0) is not None:
        yield f"People agree: with the order of two systems of this Δ{metric} (Kocmi et al., 2024)."
    if compared := [row for row in report.rows_with_runs if metric in row.by_seeds]:
        count = len(compared)
        holm = f"; p is corrected by Holm's method for {count} comparisons" if count > 1 else ""
        yield (
            "95% interval and p: Student's t, for another training of both models, tested on other "
            f"sentences{holm}. Smallest gain found in 80%: the Δ{metric} that this test finds in 80% of "
            f"the cases (p < {LEVEL}, before Holm's correction), if seeds vary as these do."
        )
        if min(len(row.runs) for row in (*compared, baseline)) < _ENOUGH_SEEDS:
            few = f"With fewer than {_ENOUGH_SEEDS} seeds of a row"
            yield f"{few}, the interval is wide and p says little."
    if len(baseline.runs) == 1:
        yield f"{baseline.title} has 1 seed: no p over seeds. Another training of it may differ as much."
    pairs = [row.by_sentences[metric].pairs for row in report.rows if metric in row.by_sentences]
    if test is not None and pairs:
        median = f": the median over the seeds; how many are better (+) and worse (-), p < {LEVEL}"
        corrected = f"; not corrected for {len(pairs)} comparisons" if len(pairs) > 1 else ""
        yield (
            f"p, sentences: {TESTS[test]} of {metric}, for these very trainings on other sentences, by "
            f"seed{median if max(pairs) > 1 else ''}{corrected}."
        )


def _choices(report: Report) -> Iterator[str]:
    """Checkpoints or searches were chosen differently: the rows' scores depend on that, too."""
    metrics = {run.training.best_metric or "loss" for _, run in report.runs}
    for metric in sorted(metrics - {"loss"}):
        yield f"Training chose its best checkpoint by {metric} on the validation set."
    outputs = [output for _, run in report.runs for output in run.generations.values()]
    searches = {output.search for output in outputs} - {None}
    for what, values, comma in (
        ("Beams differ", {str(output.beam) for output in outputs if output.beam}, ", "),
        ("Options of the search differ", {s or "fairseq's defaults" for s in searches}, "; "),
        ("Translations are of checkpoints of different names",
         {str(output.models) for output in outputs if output.models}, "; "),
    ):  # fmt: skip
        if len(values) > 1:
            yield f"{what}: {comma.join(sorted(values))}."


def _costs(report: Report) -> Iterator[str]:
    """State what the columns of speed and time are."""
    if hardware := sorted({row.hardware for row in report.rows if row.hardware is not None}):
        yield (
            f"Trained on {'; '.join(hardware)}. Words/s: {report.metrics.counted} per second of "
            "training, the median. Hours: of all processes, times the devices."
        )
    if any(row.speed(parsed=False) for row in report.rows):
        outputs = [run.generation for _, run in report.runs]
        batches = {f"beam {o.beam or '?'}, batches of {o.batch or 'unknown size'}" for o in outputs}
        yield f"Sentences/s: fairseq-generate's own ({'; '.join(sorted(batches))}), of parsed data."
    if any(row.speed(parsed=True) for row in report.rows):
        yield "With parsing: fairseq-interactive's, from raw text; loading model and parser counts."
