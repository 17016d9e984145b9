"""Notes below a report's table: how to read its numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from fairseq_phrase.evaluation.metrics.interface import Metrics
from fairseq_phrase.evaluation.metrics.over_seeds import same_seed_p_value
from fairseq_phrase.evaluation.metrics.over_sentences import LEVEL, TESTS
from fairseq_phrase.evaluation.report.generation import Generation, other_lines
from fairseq_phrase.evaluation.report.references import ReferenceText
from fairseq_phrase.evaluation.report.rows import Row
from fairseq_phrase.evaluation.report.runs import Run

_ENOUGH_SEEDS, _CLAIM = 3, 5  # seeds of a comparison, and of a claim
#: Measured by benchmarks/null_trials.py.
_ROUGH = (
    " Few seeds tell little of that: in simulations with 2 or 3, the difference that a report names was "
    "found in 58 to 78% of the cases."
)
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
    """Explain the numbers of a table, and the limits of comparing them, in paragraphs.

    Args:
        baseline: the row that the others are compared with; None without one.
        sentence_test: ``ar``, ``bs`` or ``mcnemar``; None without a test over sentences.
    """
    full = [row for row in rows if row.runs]
    metric, notes = metrics.main, []
    absent = [row.title for row in rows if row.absent]
    if absent:
        notes.append(f"Rows without runs: {'; '.join(absent)}.")
    if len(texts) > 1:
        notes.append(
            f"Test sets: {', '.join(text.name for text in texts)}. Where a column does not name one of "
            "them, its scores and differences are means over all of them."
        )
    if any(len(row.runs) > 1 for row in full):
        notes.append("Scores are means over the seeds ± their standard deviation (n - 1).")
    seeds = {len(row.runs) for row in full}
    if len(seeds) > 1:
        notes.append(f"Rows have different numbers of seeds, {min(seeds)} to {max(seeds)}.")
    notes += _text_notes(full, texts)
    if metrics.outputs == "translations":
        notes += _form_notes(full, texts)
    notes += _same_output_notes(full, texts) + _replicate_notes(full) + _difference_notes(full)
    notes += _allowed_notes(full)
    if baseline is not None:
        notes += _seed_notes(full, baseline, metrics, trials)
        if sentence_test is not None:
            notes += _sentence_notes(full, baseline, metric, sentence_test, trials)
    notes += _checkpoint_notes(full)
    notes += _cost_notes(full, metrics.counted)
    return notes + _search_notes(full)


def _search_notes(rows: Sequence[Row]) -> list[str]:
    """Name beams, options of the search and models' files that differ between translations."""
    notes = []
    translated = [translation for row in rows for translation in _translations(row)]
    beams = {translation.beam for translation in translated if translation.beam}
    if len(beams) > 1:
        notes.append(f"Beams differ: {', '.join(map(str, sorted(beams)))}.")
    options = {translation.search for translation in translated}
    searches = sorted(search or "fairseq's defaults" for search in options - {None})
    if len(searches) > 1:
        notes.append(f"Options of the search differ: {'; '.join(searches)}.")
    files = sorted({translation.models for translation in translated if translation.models})
    if len(files) > 1:
        notes.append(f"Translations are of checkpoints of different names: {'; '.join(files)}.")
    return notes


def _text_notes(rows: Sequence[Row], texts: Sequence[ReferenceText]) -> list[str]:
    """Count the lines of references and sources that are not what fairseq printed."""
    notes = []
    for text in texts:
        runs = [run.generations[text.subset] for row in rows for run in row.runs]
        sources = text.sources or runs[0].sources
        for kind, texts_of_runs, files in (
            ("reference", {tuple(translation.targets) for translation in runs}, text.references),
            ("source", {tuple(translation.sources) for translation in runs}, [sources]),
        ):
            lines = sorted(
                {line for printed in texts_of_runs for line in other_lines(printed, files)}
            )
            if lines:
                of = f" of {text.name}" if len(texts) > 1 else ""
                notes.append(
                    f"{len(lines):,} of {len(text.lines):,} lines of the {kind}{of} are not what fairseq "
                    f"printed, the first of them line {lines[0] + 1}: their scores compare different "
                    "sentences."
                )
    return notes


def _form_notes(rows: Sequence[Row], texts: Sequence[ReferenceText]) -> list[str]:
    """Name references whose form differs from the translations' form."""
    notes = []
    for text in texts:
        by_form: dict[str, dict[str, None]] = {}
        for row in rows:
            for run in row.runs:
                outputs = run.generations[text.subset].hypotheses
                for form in form_differences(outputs, text.lines):
                    by_form.setdefault(form, {})[row.title] = None
        of = f" of {text.name}" if len(texts) > 1 else ""
        for form, titles in by_form.items():
            titles_of_form = "; ".join(titles) if len(titles) < len(rows) else "all rows"
            are = "are" if form.startswith("not ") else "are not"
            notes.append(
                f"The reference{of} is {form} and these translations {are}, so that the scores count "
                f"this difference: {titles_of_form}."
            )
    return notes


def _same_output_notes(rows: Sequence[Row], texts: Sequence[ReferenceText]) -> list[str]:
    """Name runs of different rows that have the same outputs, unless all outputs are correct."""
    right = tuple(line for text in texts for line in text.lines)
    by_output: dict[tuple[str, ...], list[Run]] = {}
    for row in rows:
        for run in row.runs:
            by_output.setdefault(tuple(run.hypotheses), []).append(run)
    titles = {row.name: row.title for row in rows}
    notes = []
    for output, runs in by_output.items():
        if output != right and len({run.row for run in runs}) > 1:
            seeds = ("" if run.seed is None else f", seed {run.seed}" for run in runs)
            names = (f"{titles[run.row]}{seed}" for run, seed in zip(runs, seeds, strict=True))
            notes.append(f"Runs of different rows have the same outputs: {'; '.join(names)}.")
    return notes


def _replicate_notes(rows: Sequence[Row]) -> list[str]:
    """Name the rows whose runs may be one training, or have different numbers of updates."""
    notes = []
    repeated = [row.title for row in rows if row.repeated]
    if repeated:
        notes.append(
            "Two runs of a row have the same outputs, so that they may be one training, and the row has "
            f"no p over seeds: {'; '.join(repeated)}."
        )
    for row in rows:
        updates = sorted({run.training.updates for run in row.runs if run.training.updates})
        if len(updates) > 1:
            notes.append(
                f"Runs of {row.title} have different numbers of updates: "
                f"{', '.join(f'{count:,}' for count in updates)}."
            )
    return notes


def _difference_notes(rows: Sequence[Row]) -> list[str]:
    """Name differences between the trainings of one row, and between the data of the rows."""
    notes = []
    for row in rows:
        logs = [run.training for run in row.runs]
        differing_data = _differing_options([log.options for log in logs if log.options])
        differing_data |= _differing(_recorded_by_all([log.sentences for log in logs]))
        records = [log.identity for log in logs]
        trees = [record.only("parser", "trees").labels() for record in records if record]
        differing_data |= _differing(_recorded_by_all(trees))
        if differing_data:
            notes.append(f"Runs of {row.title} differ in {_listed(differing_data)}.")
    records = [row.runs[0].training.identity for row in rows]
    parts = ("languages", "source", "target", "text")
    data = [record.only(*parts).labels() for record in records if record]
    differing_data = _differing(_recorded_by_all(data))
    differing_data |= _differing(_recorded_by_all([row.runs[0].training.sentences for row in rows]))
    if differing_data:
        notes.append(f"Rows are trained on data that differ in {_listed(differing_data)}.")
    by_precision: dict[str, list[str]] = {}
    for row in rows:
        for precision in sorted({_precision(run) for run in row.runs} - {""}):
            by_precision.setdefault(precision, []).append(row.title)
    if len(by_precision) > 1:
        precisions = (
            f"{precision} ({', '.join(titles)})"
            for precision, titles in sorted(by_precision.items())
        )
        notes.append(f"Rows are trained in different precisions: {'; '.join(precisions)}.")
    return notes


def _allowed_notes(rows: Sequence[Row]) -> list[str]:
    """Name the differences of records that a training or a translation let pass."""
    notes = []
    for row in rows:
        records = [run.training.identity for run in row.runs]
        differences = [text for record in records if record for text in record.allowed]
        differences += [
            text for translation in _translations(row) for text in translation.differences
        ]
        if differences:
            notes.append(
                f"Differences that {row.title} let pass: {'; '.join(dict.fromkeys(differences))}."
            )
    return notes


def _translations(row: Row) -> list[Generation]:
    """Return the translations of all test sets by all runs of a row."""
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
    names = dict.fromkeys(name for mapping in facts for name in mapping)
    values = {
        name: list(dict.fromkeys(mapping.get(name, "-") for mapping in facts)) for name in names
    }
    return {
        name: values_of_setting
        for name, values_of_setting in values.items()
        if len(values_of_setting) > 1
        and not (
            "-" in values_of_setting and len(values_of_setting) == 2 and _OFF & {*values_of_setting}
        )
    }


def _differing_options(logged: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """Return the values of each option that differs, by name, also between versions."""
    if not _differing(logged):
        return {}
    # The options of all models are only imported if that is necessary.
    from fairseq_phrase.evaluation.report.logged_options import comparable_options

    return _differing(comparable_options(logged))


def _recorded_by_all(records: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the entries that all records have: an earlier version recorded fewer."""
    return [
        {k: v for k, v in record.items() if all(k in other_record for other_record in records)}
        for record in records
    ]


def _listed(differing: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(values)})" for name, values in differing.items())


def _seed_notes(rows: Sequence[Row], baseline: Row, metrics: Metrics, trials: int) -> list[str]:
    """Explain the test over seeds, the rows without it, and its power."""
    metric = metrics.main
    compared_rows = [row for row in rows if row is not baseline]
    if not compared_rows:
        return []
    notes = [f"Δ{metric}: the row's mean less that of {baseline.title}."]
    if metrics.people_agree(metric, 0.0) is not None:
        notes.append(
            f"People agree: in how many pairs of systems with this Δ{metric} people prefer the same one, "
            "as Kocmi et al. (2024) estimated on other systems and languages; 50% is chance."
        )
    compared = [row for row in compared_rows if metric in row.by_seeds]
    if compared:
        count = len(compared)
        holm = f" It is corrected by Holm's method for {count} comparisons." if count > 1 else ""
        notes.append(
            f"95% interval of Δ{metric} and two-sided p: Student's t with Satterthwaite's degrees of "
            "freedom. The squared standard error is the variance of the seeds, each row's own, plus that "
            f"of the sentences ({trials:,} resamples, the same for all rows), less their "
            "interaction, which both contain. p is for another training of both models, tested on other "
            f"sentences.{holm}"
        )
        fewest = min(len(row.runs) for row in (*compared, baseline))
        if fewest < _ENOUGH_SEEDS:
            notes.append(
                f"With fewer than {_ENOUGH_SEEDS} seeds of a row, the interval is wide and p says little."
            )
        notes.append(
            f"Smallest gain found in 80%: the smallest Δ{metric} that this test finds in 80% of the "
            f"cases (p < {LEVEL}, before Holm's correction), if seeds vary as these do."
            f"{_ROUGH if fewest < _CLAIM else ''}"
        )
        notes += _same_seed_notes([baseline, *compared], metric)
    single = [row.title for row in compared_rows if len(row.runs) == 1]
    if len(baseline.runs) == 1:
        notes.append(
            f"{baseline.title} has 1 seed: no p over seeds. Another training of it may differ from this "
            "one by as much as the rows do."
        )
    elif single:
        notes.append(f"1 seed, so no p over seeds: {'; '.join(single)}.")
    return notes


def _same_seed_notes(rows: Sequence[Row], metric: str) -> list[str]:
    """Note that runs of the same seed are alike, which the test over seeds does not use.

    Args:
        rows: the baseline first.
    """
    seeds = len(rows[0].runs)
    alike = [row for row in rows if len(row.same_seeds(rows[0])) == seeds]
    if len(alike) < 2 or seeds < 2:
        return []
    scores = np.empty((len(alike), seeds))
    for number, row in enumerate(alike):
        scores_of_row = row.run_scores(metric)
        for ours, theirs in row.same_seeds(rows[0]):
            scores[number, theirs] = scores_of_row[ours]
    p = same_seed_p_value(scores)
    if p >= LEVEL:
        return []
    p_text = "< 0.001" if p < 0.001 else f"= {p:.3f}"
    return [
        f"Runs of the same seed go together (p {p_text}, analysis of variance of {len(alike)} rows with "
        f"{seeds} seeds): a seed is good or bad for all rows. The intervals and p count them as "
        "independent, which makes them too large."
    ]


def _sentence_notes(
    rows: Sequence[Row], baseline: Row, metric: str, test: str, trials: int
) -> list[str]:  # fmt: skip
    """Explain p over sentences: the number of rows that have it, their baselines, and its limits."""
    notes = []
    pairs = [row.by_sentences[metric].pairs for row in rows if metric in row.by_sentences]
    tested = len(pairs)
    if tested:
        several = max(pairs) > 1
        by_seed = (
            ": the median over the seeds, and how many are better (+) and worse (-) with "
            f"p < {LEVEL}"
        )
        count = "" if test == "mcnemar" else f" ({trials:,} trials)"
        notes.append(
            f"p, sentences: {TESTS[test]}{count} of {metric}, each run against that "
            f"of {baseline.title} with the same seed"
            + (by_seed if several else "")
            + (f"; not corrected for {tested} comparisons" if tested > 1 else "")
            + ". It is for these very trainings on other sentences, and says nothing of other trainings."
        )
    compared_rows = [row for row in rows if row is not baseline]
    unpaired = [row for row in compared_rows if not row.same_seeds(baseline)]
    if unpaired:
        notes.append(
            f"No test over sentences, because no seed is one of {baseline.title}: "
            f"{'; '.join(row.title for row in unpaired)}."
        )
    equal = [
        row.title for row in compared_rows if row not in unpaired and metric not in row.by_sentences
    ]
    if equal:
        notes.append(
            f"No test over sentences, because {metric} is the same as that of {baseline.title} with the "
            f"same seed: {'; '.join(equal)}."
        )
    return notes


def _checkpoint_notes(rows: Sequence[Row]) -> list[str]:
    """Name the metrics by which best checkpoints were chosen, except fairseq's default, the loss."""
    metrics = {run.training.best_metric or "loss" for row in rows for run in row.runs}
    return [
        f"Training chose its best checkpoint by {metric} on the validation set. The scripts of tables "
        "use this checkpoint."
        for metric in sorted(metrics - {"loss"})
    ]


def _cost_notes(rows: Sequence[Row], counted: str) -> list[str]:
    notes = []
    hardware = sorted({row.hardware for row in rows if row.hardware is not None})
    if hardware:
        notes.append(
            f"Trained on {'; '.join(hardware)}. Words/s are fairseq's wps in training: {counted} per "
            "second, the median. Hours are the time its processes ran times the devices (shared ones "
            "count whole), with all resumptions and validations."
        )
    if any(row.speed(parsed=False) for row in rows):
        settings = {
            f"beam {run.generation.beam or '?'}, batches of {run.generation.batch or 'unknown size'}"
            for row in rows
            for run in row.runs
        }
        notes.append(
            f"Sentences/s: fairseq-generate's own ({'; '.join(sorted(settings))}), of data that were "
            "parsed before."
        )
    if any(row.speed(parsed=True) for row in rows):
        notes.append(
            "With parsing: fairseq-interactive's, from raw text; loading the model and the parser counts."
        )
    return notes


# A mark after a word, with the space between them. French has spaces before other marks.
_MARK = re.compile(r"[^\W\d_](\s?)[.,。，、](?=\s|$)")
_FEW = 10  # marks or lines; fewer are not reliable
_MOST, _ALMOST_NONE = 0.9, 0.1  # shares of a text's marks that are separate from words
_OFTEN, _NEVER = 0.5, 0.01  # shares of a text's lines with capital letters
_COMMON = 0.3  # share of the reference's pairs of letters that outputs must have to be judged


def form_differences(outputs: Sequence[str], references: Sequence[str]) -> list[str]:
    """Name the differences between the form of a reference and the form of outputs.

    One text must have the form nearly everywhere, and the other nearly nowhere. After few updates, a
    model writes so few words that their form is unknown.

    Args:
        outputs: a system's outputs.
        references: the lines of the reference.

    Returns:
        ``tokenized``, ``lower-cased``, ``not tokenized``, ``not lower-cased``: each holds of the
        reference, and not of the outputs.
    """
    reference_pairs, output_pairs = _letter_pairs(references), _letter_pairs(outputs)
    if len(reference_pairs & output_pairs) < _COMMON * len(reference_pairs):
        return []
    forms = []
    for form, measure in (("tokenized", _is_tokenized), ("lower-cased", _is_lower_cased)):
        pair = measure(references), measure(outputs)
        if pair == (True, False):
            forms.append(form)
        elif pair == (False, True):
            forms.append(f"not {form}")
    return forms


def _letter_pairs(lines: Sequence[str]) -> set[str]:
    """Return the pairs of neighbouring letters, without case, spaces and marks."""
    texts = (re.sub(r"[\W\d_]+", "", line).casefold() for line in lines)
    return {text[at : at + 2] for text in texts for at in range(len(text) - 1)}


def _is_tokenized(lines: Sequence[str]) -> bool | None:
    """Return whether marks are separate from words; None if the text does not decide it."""
    apart = [bool(between) for line in lines for between in _MARK.findall(line)]
    share = sum(apart) / max(1, len(apart))
    if len(apart) < _FEW or _ALMOST_NONE < share < _MOST:
        return None
    return share >= _MOST


def _is_lower_cased(lines: Sequence[str]) -> bool | None:
    """Return whether no line has a capital letter; None if the text does not decide it."""
    cased = [line for line in lines if line.lower() != line.upper()]
    share = sum(line != line.lower() for line in cased) / max(1, len(cased))
    if len(cased) < _FEW or _NEVER < share < _OFTEN:
        return None
    return share <= _NEVER
