"""Notes below a report's table: what differs or is missing, and what its tests mean (docs/compare.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fairseq_phrase.lab.report.generation import Generation, other_lines
from fairseq_phrase.lab.report.references import ReferenceText
from fairseq_phrase.lab.report.rows import Row
from fairseq_phrase.lab.report.runs import Run
from fairseq_phrase.lab.report.text_form import form_differences
from fairseq_phrase.metrics.interface import Metrics
from fairseq_phrase.metrics.over_sentences import LEVEL, TESTS

_ENOUGH_SEEDS, _CLAIM = 3, 5  # seeds of a comparison, and of a claim
#: Values of options without effect, as fairseq logs them.
_OFF = {"None", "False", "0", "0.0", "''", "[]", "{}"}


def table_notes(
    rows: Sequence[Row],
    baseline: Row | None,
    metrics: Metrics,
    texts: Sequence[ReferenceText],
    sentence_test: str | None,
    trials: int,
) -> list[str]:
    """State what limits the comparison of a table's rows, and what its numbers are.

    Args:
        baseline: the row that the others are compared with; None without one.
        sentence_test: ``ar``, ``bs`` or ``mcnemar``; None without a test over sentences.
    """
    full = [row for row in rows if row.runs]
    notes = [
        *_row_notes(rows, full, texts),
        *_text_notes(full, texts, judge_form=metrics.outputs == "translations"),
        *_same_output_notes(full, texts),
        *_difference_notes(full),
    ]
    if baseline is not None:
        notes += _seed_notes(full, baseline, metrics, trials)
        if sentence_test is not None:
            notes += _sentence_notes(full, baseline, metrics.main, sentence_test, trials)
    return [*notes, *_choice_notes(full), *_cost_notes(full, metrics.counted)]


def _row_notes(
    rows: Sequence[Row], full: Sequence[Row], texts: Sequence[ReferenceText]
) -> Iterable[str]:
    """Name missing rows and several test sets."""
    if absent := [row.title for row in rows if row.absent]:
        yield f"Rows without runs: {'; '.join(absent)}."
    if len(texts) > 1:
        names = ", ".join(text.name for text in texts)
        yield f"Test sets: {names}. Columns that name none of them are means over all of them."
    seeds = {len(row.runs) for row in full}
    if max(seeds, default=0) > 1:
        yield "Scores are means over the seeds ± their standard deviation (n - 1)."


def _text_notes(
    rows: Sequence[Row], texts: Sequence[ReferenceText], judge_form: bool
) -> Iterable[str]:
    """Name lines of a reference or source that fairseq did not print, and references of another form."""
    for text in texts:
        of = f" of {text.name}" if len(texts) > 1 else ""
        translations = [(row, run.generations[text.subset]) for row in rows for run in row.runs]
        targets = {tuple(translation.targets) for _, translation in translations}
        sources = {tuple(translation.sources) for _, translation in translations}
        files = [text.sources or translations[0][1].sources]
        kinds = ("reference", targets, text.references), ("source", sources, files)
        for kind, printed, expected in kinds:
            lines = sorted({line for output in printed for line in other_lines(output, expected)})
            if lines:
                yield (
                    f"{len(lines):,} of {len(text.lines):,} lines of the {kind}{of} are not what fairseq "
                    f"printed, the first of them line {lines[0] + 1}: their scores compare different "
                    "sentences."
                )
        titles_by_form: dict[str, dict[str, None]] = {}
        for row, translation in translations if judge_form else ():
            for form in form_differences(translation.hypotheses, text.lines):
                titles_by_form.setdefault(form, {})[row.title] = None
        for form, titles in titles_by_form.items():
            names = "; ".join(titles) if len(titles) < len(rows) else "all rows"
            are = "are" if form.startswith("not ") else "are not"
            yield (
                f"The reference{of} is {form} and these translations {are}, so that the scores count "
                f"this difference: {names}."
            )


def _same_output_notes(rows: Sequence[Row], texts: Sequence[ReferenceText]) -> Iterable[str]:
    """Name runs that may be one training: they have the same outputs, which are not all correct."""
    right = tuple(line for text in texts for line in text.lines)
    runs_by_output: dict[tuple[str, ...], list[tuple[Row, Run]]] = {}
    for row in rows:
        for run in row.runs:
            runs_by_output.setdefault(tuple(run.hypotheses), []).append((row, run))
    for output, runs in runs_by_output.items():
        if output != right and len({row.name for row, _ in runs}) > 1:
            names = (
                row.title + ("" if run.seed is None else f", seed {run.seed}") for row, run in runs
            )
            yield f"Runs of different rows have the same outputs: {'; '.join(names)}."
    if repeated := [row.title for row in rows if row.repeated]:
        yield (
            "Two runs of a row have the same outputs, so that they may be one training, and the row has "
            f"no p over seeds: {'; '.join(repeated)}."
        )


def _difference_notes(rows: Sequence[Row]) -> Iterable[str]:
    """Name what differs between a row's trainings, and between the trainings of the rows."""
    for row in rows:
        logs = [run.training for run in row.runs]
        updates = sorted({log.updates for log in logs if log.updates})
        if len(updates) > 1:
            counts = ", ".join(f"{count:,}" for count in updates)
            yield f"Runs of {row.title} have different numbers of updates: {counts}."
        trees = [log.identity.only("parser", "trees").labels() for log in logs if log.identity]
        differing = _differing([log.options for log in logs if log.options])
        differing |= _differing(_recorded_by_all([log.sentences for log in logs]))
        differing |= _differing(_recorded_by_all(trees))
        if differing:
            yield f"Runs of {row.title} differ in {_listed(differing)}."
    firsts = [row.runs[0].training for row in rows]
    parts = ("languages", "source", "target", "text")
    data = [log.identity.only(*parts).labels() for log in firsts if log.identity]
    differing = _differing(_recorded_by_all(data))
    differing |= _differing(_recorded_by_all([log.sentences for log in firsts]))
    if differing:
        yield f"Rows are trained on data that differ in {_listed(differing)}."
    titles_by_precision: dict[str, list[str]] = {}
    for row in rows:
        for precision in {_precision(run) for run in row.runs} - {""}:
            titles_by_precision.setdefault(precision, []).append(row.title)
    if len(titles_by_precision) > 1:
        precisions = "; ".join(
            f"{precision} ({', '.join(titles)})"
            for precision, titles in sorted(titles_by_precision.items())
        )
        yield f"Rows are trained in different precisions: {precisions}."
    for row in rows:
        records = [run.training.identity for run in row.runs]
        texts = [text for record in records if record for text in record.allowed]
        texts += [text for translation in _translations(row) for text in translation.differences]
        if texts:
            yield f"Differences that {row.title} let pass: {'; '.join(dict.fromkeys(texts))}."


def _translations(row: Row) -> list[Generation]:
    return [translation for run in row.runs for translation in run.generations.values()]


def _precision(run: Run) -> str:
    """Return ``bf16``, ``fp16`` or ``fp32``; an empty text without a training's configuration."""
    options = run.training.options
    if "fp16" not in options:
        return ""
    return next((name for name in ("fp16", "bf16") if options.get(name) == "True"), "fp32")


def _differing(facts: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the values of each setting that differs, by name; ``-`` where it is not recorded.

    A setting that is off does not differ from one that an earlier version did not have.
    """
    differing = {}
    for name in dict.fromkeys(name for mapping in facts for name in mapping):
        values = list(dict.fromkeys(mapping.get(name, "-") for mapping in facts))
        is_off = len(values) == 2 and "-" in values and _OFF & {*values}
        if len(values) > 1 and not is_off:
            differing[name] = values
    return differing


def _recorded_by_all(records: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the entries that all records have: an earlier version recorded fewer."""
    return [
        {name: value for name, value in record.items() if all(name in other for other in records)}
        for record in records
    ]


def _listed(differing: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())


def _seed_notes(rows: Sequence[Row], baseline: Row, metrics: Metrics, trials: int) -> Iterable[str]:
    """State what the test over seeds compares."""
    metric = metrics.main
    others = [row for row in rows if row is not baseline]
    if not others:
        return
    yield f"Δ{metric}: the row's mean less that of {baseline.title}."
    if metrics.people_agree(metric, 0.0) is not None:
        yield (
            f"People agree: how often people prefer the same one of two systems with this Δ{metric} "
            "(Kocmi et al., 2024); 50% is chance."
        )
    compared = [row for row in others if metric in row.by_seeds]
    if compared:
        count = len(compared)
        holm = f" It is corrected by Holm's method for {count} comparisons." if count > 1 else ""
        yield (
            "95% interval and p: for another training of both models, tested on other sentences; "
            "Student's t with Satterthwaite's degrees of freedom, from the variances over seeds and over "
            f"sentences ({trials:,} resamples).{holm}"
        )
        fewest = min(len(row.runs) for row in (*compared, baseline))
        if fewest < _ENOUGH_SEEDS:
            few = f"With fewer than {_ENOUGH_SEEDS} seeds of a row"
            yield f"{few}, the interval is wide and p says little."
        # The shares are measured by benchmarks/null_trials.py.
        rough = " With 2 or 3 seeds it is found in 58 to 78%." if fewest < _CLAIM else ""
        yield (
            f"Smallest gain found in 80%: the smallest Δ{metric} that this test finds in 80% of the "
            f"cases (p < {LEVEL}, before Holm's correction), if seeds vary as these do.{rough}"
        )
    if len(baseline.runs) == 1:
        yield (
            f"{baseline.title} has 1 seed: no p over seeds. Another training of it may differ from this "
            "one by as much as the rows do."
        )


def _sentence_notes(
    rows: Sequence[Row], baseline: Row, metric: str, test: str, trials: int
) -> Iterable[str]:
    """State what p over sentences is."""
    pairs = [row.by_sentences[metric].pairs for row in rows if metric in row.by_sentences]
    if pairs:
        median = f": the median over the seeds; how many are better (+) and worse (-), p < {LEVEL}"
        count = "" if test == "mcnemar" else f" ({trials:,} trials)"
        corrected = f"; not corrected for {len(pairs)} comparisons" if len(pairs) > 1 else ""
        yield (
            f"p, sentences: {TESTS[test]}{count} of {metric}, each run against that of {baseline.title} "
            f"with the same seed{median if max(pairs) > 1 else ''}{corrected}. It is for these very "
            "trainings on other sentences."
        )


def _choice_notes(rows: Sequence[Row]) -> Iterable[str]:
    """Name the metric that chose checkpoints, and searches that differ between translations."""
    chosen_by = {run.training.best_metric or "loss" for row in rows for run in row.runs}
    for metric in sorted(chosen_by - {"loss"}):
        yield f"Training chose its best checkpoint by {metric} on the validation set."
    translations = [translation for row in rows for translation in _translations(row)]
    searches = {translation.search for translation in translations} - {None}
    for what, values, comma in (
        ("Beams differ", {str(t.beam) for t in translations if t.beam}, ", "),
        ("Options of the search differ", {s or "fairseq's defaults" for s in searches}, "; "),
        ("Translations are of checkpoints of different names",
         {str(t.models) for t in translations if t.models}, "; "),
    ):  # fmt: skip
        if len(values) > 1:
            yield f"{what}: {comma.join(sorted(values))}."


def _cost_notes(rows: Sequence[Row], counted: str) -> Iterable[str]:
    """State what the columns of speed and time are."""
    if hardware := sorted({row.hardware for row in rows if row.hardware is not None}):
        yield (
            f"Trained on {'; '.join(hardware)}. Words/s: {counted} per second of training, the median. "
            "Hours: of all processes, times the devices, with resumptions and validations."
        )
    if any(row.speed(parsed=False) for row in rows):
        batches = {
            f"beam {run.generation.beam or '?'}, batches of {run.generation.batch or 'unknown size'}"
            for row in rows
            for run in row.runs
        }
        yield f"Sentences/s: fairseq-generate's own ({'; '.join(sorted(batches))}), of parsed data."
    if any(row.speed(parsed=True) for row in rows):
        yield "With parsing: fairseq-interactive's, from raw text; loading model and parser counts."
