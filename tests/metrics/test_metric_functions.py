"""Metrics of one's own beside the usual ones: the same tests, table and page."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from math import exp, log

import numpy as np
import pytest
import sacrebleu

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.references import ReferenceText
from fairseq_phrase.metrics.corrections import Gleu
from fairseq_phrase.metrics.functions import METRIC_GROUP, load_metrics
from tests.support.packages import install_package
from tests.support.report_table import (
    REFERENCES,
    SOURCES,
    TRANSLATIONS,
    records,
    report,
    write_table,
)

MODULE = """
import numpy as np
import sacrebleu

def words(sources, hypotheses, references):
    pairs = zip(hypotheses, references[0], strict=True)
    return [100 * (len(one.split()) == len(right.split())) for one, right in pairs]

def bleu(sources, hypotheses, references):
    return sacrebleu.corpus_bleu(hypotheses, references).score

class Ends:
    title, signature, lower_is_better = "wrong ends", "ends:1", True
    def __init__(self, count="1"):
        self.count = int(count)
    def __call__(self, sources, hypotheses, references):
        pairs = [(a.split(), b.split()) for a, b in zip(hypotheses, references[0], strict=True)]
        wrong = [a[-self.count:] != b[-self.count:] for a, b in pairs]
        return np.array([wrong, [1] * len(pairs), [5] * len(pairs)]).T
    def score(self, sums):
        return 100 * sums[..., 0] / sums[..., 1]

def short(sources, hypotheses, references):
    return [1.0]

def endless(sources, hypotheses, references):
    return [float("nan")] * len(sources)

def scoreless(sources, hypotheses, references):
    return [[1, 2]] * len(sources)
"""


def install(folder, monkeypatch, name: str, entries: str = "", **modules: str) -> None:
    """Install a package, and forget the modules of another test."""
    install_package(folder, name, entries, **modules)
    for module in modules:
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Two rows of two seeds, their source and reference, and a package with metrics."""
    names = ("words", "bleu", "short", "endless", "scoreless")
    entries = [f"{name} = own_metrics:{name}" for name in names]
    lines = [f"[{METRIC_GROUP}]", *entries, "ends = own_metrics:Ends", "broken = nowhere:nothing"]
    install(tmp_path, monkeypatch, "own", "\n".join(lines), own_metrics=MODULE)
    (tmp_path / "test.de").write_text("\n".join(SOURCES) + "\n")
    return write_table(tmp_path)


def measured(table, *metrics: str, baseline: str = "baseline", trials: int = 2000) -> str:
    options = [option for metric in metrics for option in ("--metric", metric)]
    source = ["--source", str(table / "test.de")]
    return report(table, *options, *source, "--baseline", baseline, "--trials", str(trials))


def test_functions_have_scores_intervals_p_and_a_place_on_the_page(table):
    text = measured(table, "words", "ends:2")
    for part in ("| words ", "Δwords", "| wrong ends ", "- words: `own_metrics.words`"):
        assert part in text
    assert "- wrong ends: `ends:1`" in text
    baseline, k2 = records(table / "out" / "report.csv")
    runs = [TRANSLATIONS["k2", seed] for seed in (1, 2)]
    wrong = [
        100
        * np.mean([a.split()[-2:] != b.split()[-2:] for a, b in zip(run, REFERENCES, strict=True)])
        for run in runs
    ]
    assert float(k2["wrong ends_mean"]) == pytest.approx(np.mean(wrong))
    assert float(baseline["words_mean"]) == 100
    # Lower is better, so the row with fewer errors is the better one.
    assert (k2["wrong ends_better"], k2["wrong ends_worse"]) == ("2", "0")
    for number in ("low", "high", "p", "p_holm", "sentence_p", "smallest"):
        assert k2[f"wrong ends_{number}"]
    page = (table / "out" / "report.html").read_text()
    assert "words by length of the source" in page
    assert "by sentence words" in page


def test_one_number_is_tested_like_the_metric_that_has_statistics(table):
    measured(table, "bleu", trials=100)  # sacrebleu computes it for each
    rows = records(table / "out" / "report.csv")
    for row in rows:
        assert float(row["bleu_mean"]) == pytest.approx(float(row["BLEU_mean"]), abs=1e-9)
    assert float(rows[1]["bleu_error"]) == pytest.approx(float(rows[1]["BLEU_error"]), rel=0.1)
    assert float(rows[1]["bleu_sentence_p"]) == pytest.approx(
        float(rows[1]["BLEU_sentence_p"]), abs=0.02
    )


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (
            ["nothing"],
            "expected one of bleu, broken, endless, ends, errant, file, gleu, ",
        ),
        (["broken"], "--metric broken: nowhere:nothing cannot be used: No module named 'nowhere'"),
        (["words:2"], "--metric words:2: words is a function and takes no argument"),
        (["errant"], "--metric errant: errant missing a required argument: 'argument'"),
        (["words", "words"], "--metric words: there are two metrics 'words'"),
        (
            ["short"],
            "seed1, test set 'test': --metric short: expected a finite number for each of 60",
        ),
        (["endless"], "--metric endless: expected a finite number for each of 60 sentences"),
        (["scoreless"], "--metric scoreless returned statistics, but has no function 'score'"),
    ],
)
def test_a_metric_that_cannot_be_used_is_named(table, refused, metrics, message):
    assert message in refused(measured, table, *metrics)


def test_a_metric_without_sources_or_with_a_name_of_the_table_is_refused(table, capsys, refused):
    with pytest.raises(SystemExit):
        report(table, "--metric", "words")
    assert "--metric needs the raw sentences of each test set: --source" in capsys.readouterr().err
    (table / "own-1.0.dist-info" / "entry_points.txt").write_text(
        f"[{METRIC_GROUP}]\nBLEU = own_metrics:bleu\n"
    )
    assert "the table has a metric 'BLEU' already" in refused(measured, table, "BLEU")


def test_several_references_are_sacrebleus(table):
    second = [text.replace("The", "That") for text in REFERENCES]
    (table / "second.en").write_text("\n".join(second) + "\n")
    assert "nrefs:2" in report(table, "--reference", str(table / "second.en"))
    _, k2 = records(table / "out" / "report.csv")
    runs = [TRANSLATIONS["k2", seed] for seed in (1, 2)]
    for name, of in (("BLEU", sacrebleu.corpus_bleu), ("chrF", sacrebleu.corpus_chrf),
                     ("TER", sacrebleu.corpus_ter)):  # fmt: skip
        mean = np.mean([of(run, [REFERENCES, second]).score for run in runs])
        assert float(k2[f"{name}_mean"]) == pytest.approx(mean)
    assert ReferenceText("test", [REFERENCES, second], "test").lines == REFERENCES


def write_scores(table) -> dict[tuple[str, int], list[float]]:
    """Write a file of scores into the folder of each run."""
    scores = {run: [len(line) / 100 for line in lines] for run, lines in TRANSLATIONS.items()}
    for (row, seed), values in scores.items():
        path = table / "runs" / row / f"seed{seed}" / "scores-test.txt"
        path.write_text("".join(f"{value}\n" for value in values))
    return scores


def test_scores_of_another_program_are_read_from_each_runs_folder(table):
    scores = write_scores(table)
    text = report(table, "--metric", "file:MetricX=scores-SUBSET.txt", "--baseline", "baseline")
    assert "| MetricX " in text
    assert "ΔMetricX" in text
    assert "- MetricX: `file:scores-SUBSET.txt`" in text
    for row in records(table / "out" / "report.csv"):
        mean = np.mean([scores[row["row"], seed] for seed in (1, 2)])
        assert float(row["MetricX_mean"]) == pytest.approx(mean)


def test_a_file_may_state_that_lower_is_better(table):
    """The baseline's outputs have a higher number, and each row is better or worse by what it means."""
    for row in ("baseline", "k2"):
        for seed in (1, 2):
            path = table / "runs" / row / f"seed{seed}" / "wrong.txt"
            path.write_text("".join(f"{index % 3 + (row == 'k2')}\n" for index in range(60)))
    for suffix, better in (("", "2"), (":lower", "0")):
        metric = f"file:wrong=wrong.txt{suffix}"
        report(table, "--metric", metric, "--baseline", "baseline", "--trials", "100")
        (row,) = (
            record for record in records(table / "out" / "report.csv") if record["row"] == "k2"
        )
        assert (row["wrong_better"], row["wrong_worse"]) == (better, str(2 - int(better)))


def test_scores_that_are_older_than_the_translation_are_named(table):
    write_scores(table)
    old = table / "runs" / "k2" / "seed2" / "scores-test.txt"
    metric = ("--metric", "file:MetricX=scores-SUBSET.txt")
    assert "is older than" not in report(table, *metric)
    os.utime(old, (1, 1))
    text = report(table, *metric)
    assert text.count("is older than generate-test.txt: its scores may be of an earlier") == 1
    assert "seed2/scores-test.txt is older than" in text


def test_a_run_without_scores_does_not_get_a_file_from_elsewhere(table, refused, monkeypatch):
    write_scores(table)
    (table / "runs" / "k2" / "seed2" / "scores-test.txt").rename(table / "scores-test.txt")
    monkeypatch.chdir(table)
    stderr = refused(report, table, "--metric", "file:MetricX=scores-SUBSET.txt")
    assert "scores-test.txt has the scores of one translation, and this table has several" in stderr


def test_a_file_of_scores_that_does_not_fit_is_named(table, capsys):
    path = table / "runs" / "baseline" / "seed1" / "scores.txt"

    def refusal(metric="file:X=scores.txt") -> str:
        with pytest.raises(SystemExit):
            report(table, "--metric", metric)
        return capsys.readouterr().err

    assert "--metric file:X: expected file:NAME=SCORES" in refusal("file:X")
    assert "seed1/scores.txt is not there" in refusal()
    path.write_text("1\n2\n")
    assert "scores.txt has 2 scores of 60 sentences" in refusal()
    path.write_text("1\nx\n")
    assert "scores.txt, line 2: expected a number, not 'x'" in refusal()
    path.write_text("1\n" * 60)
    assert "has the scores of one translation, and this table has several" in refusal(
        f"file:X={path}"
    )


WORDS = ["a", "an", "the", "dog", "dogs", "see", "sees", "saw", "one", "good", ",", "."]


def gleu_twin(sources, hypotheses, references) -> float:
    """GLEU as the paper has it: one n-gram at a time; each sentence has the mean over its references."""
    words = reference_words = 0.0
    right, total = [0.0] * 4, [0.0] * 4
    for source, output, *references_of_sentence in zip(
        sources, hypotheses, *references, strict=True
    ):
        words += len(output.split())
        for reference in references_of_sentence:
            reference_words += len(reference.split()) / len(references_of_sentence)
            for size in range(1, 5):
                ngrams = []
                for text in (source, output, reference):
                    split = text.split()
                    ngrams.append(
                        [tuple(split[i : i + size]) for i in range(len(split) - size + 1)]
                    )
                theirs, ours, theirs_of_reference = map(Counter, ngrams)
                matches = sum(min(ours[ngram], theirs_of_reference[ngram]) for ngram in ours)
                errors = sum(
                    min(ours[ngram], theirs[ngram])
                    for ngram in ours
                    if ngram not in theirs_of_reference
                )
                right[size - 1] += max(matches - errors, 0) / len(references_of_sentence)
                total[size - 1] += len(ngrams[1]) / len(references_of_sentence)
    precision = sum(log(a / b) for a, b in zip(right, total, strict=True)) / 4
    return 100 * exp(min(0.0, 1 - reference_words / words) + precision)


def test_gleu_is_its_twins_and_punishes_errors_that_stay():
    rng = random.Random(3)

    def changed(lines, share):
        return [
            " ".join(word if rng.random() > share else rng.choice(WORDS) for word in line.split())
            for line in lines
        ]

    right = [" ".join(rng.choices(WORDS, k=rng.randint(5, 12))) for _ in range(40)]
    references = [changed(right, 0.1) for _ in range(3)]
    sources, hypotheses = changed(right, 0.2), changed(right, 0.15)
    metric = Gleu()
    for count in (1, 3):
        some = references[:count]
        sums = metric(sources, hypotheses, some).sum(0)
        assert metric.score(sums) == pytest.approx(gleu_twin(sources, hypotheses, some))
    assert metric.score(metric(sources, right, [right]).sum(0)) == pytest.approx(100)
    # A word that is neither right nor the source's costs less than the source's error.
    source, reference = ["a b c d e f g h"], [["a b c d x f g h"]]
    uncorrected, unrelated = (
        metric(source, [text], reference)[0] for text in (source[0], "a b c d z f g h")
    )
    assert metric.score(uncorrected) < metric.score(unrelated)
    assert metric.score(np.zeros(10)) == 0


def test_gleu_takes_all_references_of_the_report(table):
    second = [text.replace("The", "That") for text in REFERENCES]
    (table / "second.en").write_text("\n".join(second) + "\n")
    source = ["--source", str(table / "test.de"), "--reference", str(table / "second.en")]
    report(table, "--metric", "gleu", *source)
    _, k2 = records(table / "out" / "report.csv")
    twin = [gleu_twin(SOURCES, TRANSLATIONS["k2", seed], [REFERENCES, second]) for seed in (1, 2)]
    assert float(k2["GLEU_mean"]) == pytest.approx(np.mean(twin))


def test_an_unknown_metric_is_refused():
    with pytest.raises(UserError, match=r"--metric glue: expected one of .*gleu"):
        load_metrics(["glue"])
