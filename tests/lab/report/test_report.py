"""Reports over run folders: their numbers are sacrebleu's, their files whole."""

from __future__ import annotations

import json
import re
import shutil
import statistics
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from matplotlib.figure import Figure
from sacrebleu.metrics import BLEU

from fairseq_phrase.data.store.identity import LOGGED, Entry, Identity
from fairseq_phrase.lab.report import files
from fairseq_phrase.lab.report.files import marked_phrases, row_differences
from fairseq_phrase.lab.report.make_report import ReportOptions, make_report
from fairseq_phrase.lab.report.plots import length_buckets, plot_lengths
from fairseq_phrase.lab.report.references import read_references
from fairseq_phrase.lab.report.rows import Report
from fairseq_phrase.lab.report.runs import find_runs
from fairseq_phrase.lab.report.text_form import form_differences
from fairseq_phrase.metrics.translation import TranslationMetrics
from fairseq_phrase.text import markdown_code
from tests.support.report_table import (
    FILES,
    REFERENCES,
    SOURCES,
    TRANSLATIONS,
    add_run,
    change_log,
    named_rows,
    records,
    refusal,
    report,
    run_of,
    table_lines,
    translate,
    translations,
    write_lines,
)
from tests.support.run_folders import LogWriter, write_generation, write_interactive


def read_report(table: Path, *sources: Path, **options) -> Report:
    texts = read_references([str(table / "test.en")], "test", [*map(str, sources)], ())
    return make_report(find_runs([str(table / "runs")]), texts, ReportOptions(**options))


def exchange_p_value(ours, theirs, trials):
    """Exchange whole sentences as sacrebleu draws them, and score the texts."""
    metric = BLEU(references=[REFERENCES])

    def distance(pair):
        first, second = (metric.corpus_score(text, None).score for text in pair)
        return abs(first - second)

    measured, extreme = distance((ours, theirs)), 0
    for exchanged in np.random.default_rng(12345).integers(2, size=(trials, len(ours)), dtype=bool):
        pairs = [
            (b, a) if keep else (a, b) for a, b, keep in zip(ours, theirs, exchanged, strict=True)
        ]
        extreme += distance([list(text) for text in zip(*pairs, strict=True)]) >= measured - 1e-9
    return (extreme + 1) / (trials + 1)


def bleu_scores():
    return {
        key: sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score
        for key, hypotheses in TRANSLATIONS.items()
    }


def test_scores_spread_and_significance_are_sacrebleus(table):
    report(table, "--baseline", "baseline", "--trials", "100")
    rows = named_rows(table)
    scores = bleu_scores()
    for name, row in rows.items():
        mine = [scores[name, seed] for seed in (1, 2)]
        assert float(row["BLEU_mean"]) == pytest.approx(statistics.mean(mine))
        assert float(row["BLEU_sd"]) == pytest.approx(statistics.stdev(mine))
    p_values = [
        exchange_p_value(TRANSLATIONS["k2", seed], TRANSLATIONS["baseline", seed], 100)
        for seed in (1, 2)
    ]
    assert float(rows["k2"]["BLEU_sentence_p"]) == pytest.approx(statistics.median(p_values))
    assert rows["baseline"]["BLEU_sentence_p"] == ""
    assert int(rows["k2"]["BLEU_better"]) == sum(p < 0.05 for p in p_values) == 2
    # Less is better in TER.
    assert float(rows["k2"]["TER_mean"]) < float(rows["baseline"]["TER_mean"])
    assert (rows["k2"]["TER_better"], rows["k2"]["TER_worse"]) == ("2", "0")
    for run in records(table / "out" / "runs.csv"):
        key = (run["row"], int(run["seed"]))
        expected = {
            "BLEU": scores[key],
            "chrF": sacrebleu.corpus_chrf(TRANSLATIONS[key], [REFERENCES]).score,
            "TER": sacrebleu.corpus_ter(TRANSLATIONS[key], [REFERENCES]).score,
        }
        assert {name: float(run[name]) for name in expected} == pytest.approx(expected, rel=1e-12)


def test_tests_over_sentences_alone_and_no_test_are_options(table):
    text = report(table, "--baseline", "baseline", "--test", "ar", "--trials", "100")
    assert "approximate randomization" in text
    assert "ar:100|seed:12345|" in text
    assert "| p " not in text
    assert "another training" not in text
    text = report(table, "--baseline", "baseline", "--test", "bs", "--trials", "100")
    assert "two-sided paired bootstrap" in text
    assert "bs:100|seed:12345|" in text
    text = report(table, "--baseline", "k2", "--test", "none")
    assert [cells[0] for cells in table_lines(text)] == ["model", "k2", "baseline"]
    assert "| p " not in text
    assert "ΔBLEU" in text


def test_words_are_those_of_the_tokenizer_that_is_named(table):
    apart = [text.replace(".", " .").replace("<b>", "< b >") for text in REFERENCES]
    write_lines(table / "test.en", apart)
    text = report(table, "--tokenize", "none", "--lowercase", "--baseline", "k2")
    assert re.search(r"- BLEU: `nrefs:1\S*\|eff:no\|tok:none\|", text)
    assert re.search(r"- BLEU lc: `nrefs:1\S*\|case:lc\|eff:no\|tok:none\|", text)
    for run in records(table / "out" / "runs.csv"):
        hypotheses = TRANSLATIONS[run["row"], int(run["seed"])]
        expected = sacrebleu.corpus_bleu(hypotheses, [apart], tokenize="none", force=True).score
        assert float(run["BLEU"]) == pytest.approx(expected, rel=1e-12)
        assert expected != sacrebleu.corpus_bleu(hypotheses, [apart]).score


HOSTILE = "a|b `c` [d](e) <b>f</b> *g* _h_ i_j &lt; k\\l\nm p<0.05"
ESCAPED = r"a\|b \`c\` \[d\](e) \<b>f\</b> \*g\* \_h\_ i_j \&lt; k\\l m p<0.05"


def test_titles_are_shown_in_markdown_as_they_are(table):
    rows = table / "rows.yaml"
    rows.write_text(
        json.dumps({"k2": HOSTILE, "baseline": "Transformer", "absent": f"no {HOSTILE}"})
    )
    text = report(table, "--rows", str(rows), "--baseline", "k2", "--caption", HOSTILE)
    assert f"**{ESCAPED} (2 of 3 rows)**" in text
    assert f"| {ESCAPED} " in text
    assert f"Rows without runs: no {ESCAPED}." in text
    assert f"less that of {ESCAPED}." in text
    assert "<b>" not in text.replace("\\<b>", "")
    assert markdown_code("a`b|c\nd") == "`` a`b|c d ``"


def test_brackets_of_titles_are_no_arguments_of_latex(table):
    rows = table / "rows.yaml"
    rows.write_text(json.dumps({"k2": "plain", "baseline": "[1] Transformer"}))
    report(table, "--rows", str(rows), "--caption", "Test [of 2016]")
    latex = (table / "out" / "report.tex").read_text()
    assert "\n{[}1{]} Transformer & " in latex
    assert r"\caption[Test {[}of 2016{]}]{Test {[}of 2016{]}. " in latex


def test_a_tokenizer_that_sacrebleu_lacks_is_named(table, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "MeCab", None)
    for module in [name for name in sys.modules if name.startswith("sacrebleu.tokenizers")]:
        monkeypatch.delitem(sys.modules, module)
    message = "sacrebleu's tokenizer ja-mecab cannot be used"
    assert message in refusal(table, capsys, "--tokenize", "ja-mecab")


def test_without_a_row_to_compare_nothing_is_said_of_a_test(table):
    text = report(table, "--baseline", "baseline", runs=("baseline=runs/baseline",))
    assert "randomization" not in text
    assert "bootstrap" not in text


def test_the_table_shows_costs_speeds_signatures_and_the_papers_numbers(table):
    for name, seed in TRANSLATIONS:
        write_interactive(run_of(table, name, seed) / "interactive-test.txt", 60, 6.0)
    rows = table / "rows.yaml"
    rows.write_text("k2: {title: Phrase | k=2, paper: 34.60}\nbaseline: Transformer\n")
    text = report(table, "--rows", str(rows), "--lowercase", "--caption", "Multi30k")
    heading, first, second = table_lines(text)
    cells = dict(zip(heading, first, strict=True))
    assert cells["model"] == "Phrase ¦ k=2"
    assert cells["paper"] == "34.60"
    assert cells["seeds"] == "2"
    assert cells["parameters"] == "1,705,216"
    assert (cells["updates"], cells["words/s"]) == ("20", "3,500")
    assert cells["training"] == "0.0028 CPU h"
    assert (cells["sentences/s"], cells["with parsing"]) == ("20.0", "10.0")
    assert second[:2] == ["Transformer", "-"]
    assert "target subwords per second" in text
    assert "best checkpoint" not in text  # fairseq's default, the loss, is not told from no choice
    assert text.startswith("**Multi30k**\n")
    for metric in (
        "BLEU: `nrefs:1|",
        "chrF: `nrefs:1|",
        "TER: `nrefs:1|",
        "BLEU lc: `nrefs:1|case:lc|",
    ):
        assert metric in text


def test_gpus_are_named_and_their_hours_told_from_those_of_cpus(table):
    add_run(table, "gpu", 1, translations(5), gpus=2)
    text = report(table)
    assert "0.0056 GPU h" in text
    assert "Trained on 2 x NVIDIA H200; CPU." in text


class _Page(HTMLParser):
    """Checks that every element is closed and that nothing is fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.sources = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img"):
            self.open.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_holds_everything_and_text_is_no_markup(table):
    report(table, "--baseline", "baseline", "--trials", "50", drawn=True)
    assert {path.name for path in (table / "out").iterdir()} == FILES
    page = _Page()
    text = (table / "out" / "report.html").read_text()
    page.feed(text)
    assert page.open == []
    assert len(page.sources) == 2
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in page.sources)
    assert "<b>" not in text
    assert any("<b>old</b> & new" in data for data in page.text)
    (k2,) = row_differences(read_report(table, baseline="baseline"))
    assert text.count("<dl>") == len([*k2.best, *k2.worst])
    assert not any("Rohtext" in data for data in page.text)
    for name in ("curves.png", "lengths.png"):
        assert (table / "out" / name).stat().st_size > 10_000
    latex = (table / "out" / "report.tex").read_text()
    assert latex.count(r"\\") == 3
    assert r"$\pm$" in latex


def test_sentences_that_are_better_worse_and_the_same_are_all_sentences(table):
    """The first translations differ, and both score 0."""
    for row, wrong in (("baseline", "# # # #"), ("k2", "% % % %")):
        hypotheses = [wrong, *TRANSLATIONS[row, 1][1:]]
        shutil.rmtree(table / "runs" / row)
        add_run(table, row, 1, hypotheses)
    report(table, "--baseline", "baseline", "--trials", "50")
    text = (table / "out" / "report.html").read_text()
    counts = re.search(r"(\d+) sentences better, (\d+) worse, (\d+) with the same score", text)
    assert sum(map(int, counts.groups())) == len(REFERENCES)


def test_examples_show_the_raw_source_where_it_is_named(table):
    write_lines(table / "test.de", (line.upper() for line in SOURCES))
    report(table, "--baseline", "baseline", "--trials", "50", "--source", str(table / "test.de"))
    text = (table / "out" / "report.html").read_text()
    assert "QUELLE" in text
    assert "Quelle" not in text


def test_a_report_is_replaced_as_a_whole_and_other_files_stay(table, monkeypatch, capsys):
    report(table)
    (table / "out" / "mine.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in (table / "out").iterdir()}

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(files, "latex", full)  # in the midst of the files
        with pytest.raises(SystemExit):
            report(table, "--caption", "Another")
    assert "No space left on device" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (table / "out").iterdir()} == before
    report(table, "--caption", "Another")
    assert {path.name for path in (table / "out").iterdir()} == {*FILES, "mine.txt"}
    assert "Another" in (table / "out" / "report.md").read_text()


def test_a_training_without_validation_has_no_curves(table):
    for path in (table / "runs").rglob("train.log"):
        path.write_text("".join(line for line in path.open() if "| valid |" not in line))
    report(table)
    assert {path.name for path in (table / "out").iterdir()} == FILES - {"curves.png"}


def test_length_buckets_hold_every_sentence_once_and_are_not_small():
    buckets = length_buckets(["a " * (i % 13 + 1) for i in range(500)])
    assert 3 <= len(buckets) <= 6
    assert sorted(index for bucket in buckets for index in bucket.indices) == list(range(500))
    assert min(len(bucket.indices) for bucket in buckets) >= 40
    edges = [edge for bucket in buckets for edge in (bucket.shortest, bucket.longest)]
    assert edges == sorted(edges)
    assert len(length_buckets(["one", "two", "three words here"])) == 1


@pytest.mark.parametrize("given", ["source", "reference"])
def test_the_picture_by_length_is_of_the_sources_where_they_are_named(table, monkeypatch, given):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    letters = (line.replace(" ", "") for line in SOURCES)
    lines = (
        " ".join([*characters[: 7 * (i % 2) + 1], characters[7 * (i % 2) + 1 :]])
        for i, characters in enumerate(letters)
    )
    write_lines(table / "test.de", lines)
    plot_lengths(read_report(table, *[table / "test.de"] * (given == "source")), table / "a.png")
    (axes,) = drawn[0].axes
    assert axes.get_xlabel() == f"words of the {given}; sentences"
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert (labels == ["2-2\nn=30", "9-9\nn=30"]) == (given == "source")
    if given == "source":
        curves = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
        runs = [TRANSLATIONS["k2", seed] for seed in (1, 2)]
        expected = [
            statistics.mean(
                sacrebleu.corpus_bleu(run[i::2], [REFERENCES[i::2]]).score for run in runs
            )
            for i in (0, 1)
        ]
        assert list(curves["k2"]) == pytest.approx(expected)


def test_examples_are_the_largest_differences_of_sentence_chrf(table):
    (k2,) = row_differences(read_report(table, baseline="baseline"))
    scores = {
        row: [sacrebleu.sentence_chrf(hypothesis, [right]).score
              for hypothesis, right in zip(TRANSLATIONS[row, 1], REFERENCES, strict=True)]
        for row in ("baseline", "k2")
    }  # fmt: skip
    gains = np.array(scores["k2"]) - scores["baseline"]
    assert (k2.better, k2.worse, k2.equal) == (sum(gains > 0), sum(gains < 0), sum(gains == 0))
    for examples, count, largest_gains in (
        (k2.best, k2.better, -np.sort(-gains)), (k2.worst, k2.worse, np.sort(gains))
    ):  # fmt: skip
        assert [
            example.other_score - example.baseline_score for example in examples
        ] == pytest.approx(list(largest_gains[: min(files.SHOWN, count)]))
        for example in examples:
            assert (example.baseline, example.other, example.reference) == (
                TRANSLATIONS["baseline", 1][example.index],
                TRANSLATIONS["k2", 1][example.index],
                REFERENCES[example.index],
            )


def test_words_that_the_other_text_lacks_are_marked():
    phrases = list(marked_phrases("the old brown cat", "the cat"))
    assert phrases == [(False, "the"), (True, "old brown"), (False, "cat")]


def test_a_hydra_log_and_one_run_per_row_will_do(tmp_path):
    log = LogWriter("hydra")
    log.head(seed=4)
    log.train_inner(10, 3000)
    log.done()
    for name in ("a", "b"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        log.write(folder / "hydra_train.log")
        write_generation(folder / "generate.txt", translations(3), SOURCES, REFERENCES)
    write_lines(tmp_path / "test.en")
    heading, first, second = table_lines(report(tmp_path, "--baseline", "a", "--trials", "50"))
    assert first[:3] == ["a", first[1], "-"]
    # Equal translations are not tested: sacrebleu's own p-value would be 1/51.
    assert second[:3] == ["b", first[1], "+0.00"]
    assert "p, sentences" not in heading


def test_the_difference_is_that_of_the_means_whatever_the_seeds(table):
    shutil.rmtree(run_of(table, "k2", 1))
    _, _, row = table_lines(report(table, "--baseline", "baseline", "--trials", "50"))
    bleu = bleu_scores()
    baseline = statistics.mean(bleu["baseline", seed] for seed in (1, 2))
    assert row[2] == f"{bleu['k2', 2] - baseline:+.2f}"


def add_row(table, name, seeds, wrong):
    for seed in seeds:
        add_run(table, name, seed, translations(wrong, seed))


def test_rows_of_one_seed_say_so_and_have_no_p_over_seeds(table):
    add_row(table, "k3", [1], 5)
    text = report(table, "--baseline", "baseline", "--trials", "200")
    heading, _, two_seeds, one_seed = table_lines(text)
    cells = dict(zip(heading, one_seed, strict=True))
    assert (cells["seeds"], cells["p"], cells["95%"]) == ("1 seed", "-", "-")
    assert cells["p, sentences"] != "-"
    assert float(dict(zip(heading, two_seeds, strict=True))["p"].removeprefix("<")) < 0.05
    assert "the ΔBLEU that this test finds in 80% of the cases" in text
    assert float(dict(zip(heading, two_seeds, strict=True))["smallest gain found in 80%"]) > 0
    record = named_rows(table)["k3"]
    assert (record["BLEU_p"], record["BLEU_p_holm"], record["BLEU_low"]) == ("", "", "")


def test_holms_correction_is_named_in_the_caption_and_made_over_the_rows(table):
    assert report(table, "--baseline", "baseline").startswith("**Results**")
    add_row(table, "k3", [1, 2, 3], 5)
    text = report(table, "--baseline", "baseline")
    assert text.startswith("**Results; p corrected by Holm's method for 2 comparisons**")
    rows = named_rows(table)
    p = sorted((float(rows[name]["BLEU_p"]), name) for name in ("k2", "k3"))
    assert float(rows[p[0][1]]["BLEU_p_holm"]) == pytest.approx(2 * p[0][0])
    assert float(rows[p[1][1]]["BLEU_p_holm"]) == pytest.approx(max(2 * p[0][0], p[1][0]))
    assert "p corrected by Holm's method" in (table / "out" / "report.tex").read_text()


def test_power_that_few_seeds_estimate_is_called_rough(tmp_path):
    for row, first in (("baseline", 2), ("k2", 8)):
        for seed in range(1, 6):
            add_row(tmp_path, row, [seed], first + seed)
    write_lines(tmp_path / "test.en")
    text = report(tmp_path, "--baseline", "baseline", "--trials", "50")
    assert (
        "in 80% of the cases (p < 0.05, before Holm's correction), if seeds vary as these" in text
    )
    assert "58 to 78%" not in text


def test_every_metric_is_tested_over_seeds(table):
    report(table, "--baseline", "baseline", "--trials", "300")
    rows = named_rows(table)
    row = rows["k2"]
    for metric in ("BLEU", "chrF", "TER"):
        means = [float(rows[name][f"{metric}_mean"]) for name in ("k2", "baseline")]
        assert float(row[f"{metric}_difference"]) == pytest.approx(means[0] - means[1])
        low, high = float(row[f"{metric}_low"]), float(row[f"{metric}_high"])
        assert low < high
        assert float(row[f"{metric}_smallest"]) > float(row[f"{metric}_error"])
        assert 0 < float(row[f"{metric}_seed_error"]) <= float(row[f"{metric}_error"])
    assert float(row["TER_low"]) < 0 < float(row["BLEU_high"])


def test_runs_with_the_same_outputs_are_named_and_have_no_p(table):
    translate(table, "k2", 2, TRANSLATIONS["k2", 1])
    text = report(table, "--baseline", "baseline", "--trials", "50")
    assert "have the same outputs, so that they may be one training, and the row has no p" in text
    assert "over seeds: k2." in text
    assert "95%" not in table_lines(text)[0]


def add_to_log(table: Path, row: str, seed: int, logger: str, text: str) -> None:
    with open(run_of(table, row, seed) / "train.log", "a", encoding="utf-8") as log:
        log.write(f"2026-01-01 00:00:00 | INFO | fairseq_phrase.{logger} | {text}\n")


def record(table: Path, row: str, seed: int, **values: str) -> None:
    """Add an identity record to the log of a training, as a training writes it."""
    parts = {
        "source_dictionary": "source",
        "parser": "parser",
        "constituents": "trees",
        "phrase_mask": "encoder",
    }
    entries = {
        name.replace("_", "-"): Entry(value, value, parts[name]) for name, value in values.items()
    }
    text = LOGGED + json.dumps(Identity(entries).as_dict())
    add_to_log(table, row, seed, "tasks.identity_task", text)


def test_runs_of_a_row_with_different_records_are_refused(table, capsys):
    for seed, mask in ((1, "subset"), (2, "children")):
        record(table, "k2", seed, phrase_mask=mask)
    message = "seed2 differ in phrase-mask subset and children: name them as different rows, NAME="
    assert message in refusal(table, capsys)


def test_searches_and_checkpoints_that_differ_are_named(table):
    line = "INFO:fairseq_cli.generate:{'max_tokens': 4000, 'batch_size': None}, %ssearch {'beam': 5%s}\n"
    average = "models ['average.pt'], "
    for row, options in (
        ("baseline", ("models ['last.pt'], ", "")),
        ("k2", (average, ", 'lenpen': 0.6")),
    ):
        for seed in (1, 2):
            log = run_of(table, row, seed) / "generate-test.log"
            log.write_text(line % options + (log.read_text() if log.exists() else ""))
    text = report(table)
    assert "Options of the search differ: 'lenpen': 0.6; fairseq's defaults." in text
    assert "are of checkpoints of different names: 'average.pt'; 'last.pt'." in text
    for row, seed in TRANSLATIONS:
        (run_of(table, row, seed) / "generate-test.log").write_text(line % (average, ""))
    text = report(table)
    assert "Options of the search" not in text
    assert "checkpoints of different" not in text


def test_a_row_may_be_a_file_of_translations(table):
    path = run_of(table, "k2", 1) / "generate-test.txt"
    runs = (f"best={path.relative_to(table)}", "baseline=runs/baseline")
    names = [row[0] for row in table_lines(report(table, runs=runs))]
    assert names[1:] == ["best", "baseline"]


def test_beams_of_every_test_set_are_compared(table):
    for (row, seed), hypotheses in TRANSLATIONS.items():
        translate(table, row, seed, hypotheses, subset="test1", beam=1 if row == "k2" else 5)
    assert "Beams differ: 1, 5." in report(table, "--reference", f"test1={table / 'test.en'}")


def test_what_differs_between_runs_of_a_row_and_between_rows_data_is_named(table):
    for row, seed, dictionary, parser in (
        ("baseline", 1, "old", "x 1"), ("k2", 1, "new", "x 1"), ("k2", 2, "new", "x 2"),
    ):  # fmt: skip
        record(table, row, seed, source_dictionary=dictionary, parser=parser)
    change_log(table, "k2", 2, "'cpu': False", "'cpu': False, 'dropout': 0.3, 'new': 0.0")
    for row, seed in TRANSLATIONS:
        precision = f"'fp16': False, 'bf16': {row == 'baseline'}, 'cpu'"
        change_log(table, row, seed, "'cpu'", precision)
    text = report(table)
    assert "Runs of k2 differ in dropout (-, 0.3); parser (x 1, x 2)." in text
    assert "data or precision: source-dictionary (old, new); bf16 (True, False)." in text


def test_an_option_that_is_off_does_not_differ_from_one_that_a_log_lacks(table):
    for seed, more in ((1, ""), (2, "'fast': False, 'coverage': 0.5, ")):
        change_log(table, "k2", seed, "'cpu'", f"'encoder': 'transformer', {more}'cpu'")
    assert "Runs of k2 differ in coverage (-, 0.5)." in report(table)


def test_differences_that_a_training_or_a_translation_let_pass_are_named(table):
    identity = json.dumps(Identity({}, ("heads 2 and 4 (a.pt)",)).as_dict())
    add_to_log(table, "k2", 1, "tasks.identity_task", f"{LOGGED}{identity}")
    with open(run_of(table, "k2", 1) / "generate-test.log", "a", encoding="utf-8") as log:
        log.write(
            "WARNING:fairseq_phrase.data.store.identity:a.pt and b differ in parser x 1 and x 2 "
            "(--strict-identity refuses this)\n"
        )
    text = report(table)
    assert "Differences that k2 let pass: heads 2 and 4 (a.pt); parser x 1 and x 2." in text
    assert "that baseline let pass" not in text


def test_numbers_of_training_sentences_that_differ_are_named(table):
    for row, seed in (("baseline", 1), ("baseline", 2), ("k2", 2)):
        change_log(table, row, seed, "29,000", "14,500")
    text = report(table)
    assert "Runs of k2 differ in sentences of train (29,000, 14,500)." in text
    assert "data or precision: sentences of train (14,500, 29,000)." in text


def test_training_sentences_of_other_lengths_are_named(table):
    for row, seed, digest in (("baseline", 1, "aaaa"), ("k2", 1, "bbbb"), ("k2", 2, "aaaa")):
        add_to_log(table, row, seed, "x", f"lengths of train: {digest}")
    text = report(table)
    assert "Runs of k2 differ in lengths of train (bbbb, aaaa)." in text
    assert "data or precision: lengths of train (aaaa, bbbb)." in text


def test_what_an_earlier_version_did_not_record_is_not_a_difference(table):
    for seed, more in ((1, {}), (2, {"constituents": "parser"})):
        record(table, "k2", seed, parser="x 1", **more)
    assert "differ in" not in report(table)


def tokenized(text: str) -> str:
    return re.sub(r"([.,])", r" \1", text)


@pytest.mark.parametrize(
    ("changed", "form"),
    [(tokenized, "tokenized"), (str.lower, "lower-cased")],
)
def test_a_reference_in_another_form_than_the_translations_is_noted(table, changed, form):
    end = ", so that the scores count this difference: "
    assert end not in report(table)
    write_lines(table / "test.en", (changed(line) for line in REFERENCES))
    assert f"The reference is {form} and these translations are not{end}all rows." in report(table)
    # One row has the form of the reference.
    for seed in (1, 2):
        translate(table, "k2", seed, [changed(t) for t in TRANSLATIONS["k2", seed]])
    assert f"The reference is {form} and these translations are not{end}baseline." in report(table)
    write_lines(table / "test.en")
    assert f"The reference is not {form} and these translations are{end}k2." in report(table)


def test_what_little_or_mixed_text_shows_is_not_noted():
    text = ["The dog sleeps, the cat sees it.", "A bird sings."] * 30
    lower = list(map(str.lower, text))
    rarely, more = ((text[:count] + lower * 2)[:100] for count in (1, 2))
    assert form_differences(text, rarely) == ["lower-cased"]  # a hundredth has capitals
    assert form_differences(text, more) == []
    assert form_differences(text[:8], lower[:8]) == []
    assert form_differences(["la la la"] * 60, text) == []  # a model that knows no words yet
    half = [line if i % 2 else line.lower() for i, line in enumerate(text)]
    assert form_differences(half, half[1:] + half[:1]) == []
    assert form_differences(["Il dort ! Et toi ?"] * 60, ["Il dort! Et toi?"] * 60) == []
    assert form_differences(["他睡觉，她看。"] * 60, ["他 睡觉 ， 她 看 。"] * 60) == ["tokenized"]


def test_rows_with_the_same_outputs_are_noted(table):
    note = "Runs of different rows have the same outputs: "
    assert note not in report(table)
    run = run_of(table, "k2", 1)
    shutil.copy(run_of(table, "baseline", 2) / "generate-test.txt", run)
    assert f"{note}baseline, seed 2; k2, seed 1." in report(table)


def test_runs_of_a_row_with_other_numbers_of_updates_are_named(table):
    log = run_of(table, "k2", 2) / "train.log"
    log.write_text("".join(line for line in log.open() if "num_updates=20" not in line).replace(
        "num_updates 20", "num_updates 15"))  # fmt: skip
    assert "Runs of k2 differ in updates (20, 15)." in report(table)


def test_the_share_of_people_who_agree_is_that_of_kocmi_et_al():
    metrics = TranslationMetrics(["a reference"])
    # From their table of thresholds: the difference at which this many percent agree.
    for name, difference, share in (
        ("BLEU", 1.06, 65), ("BLEU", -2.34, 80), ("chrF", 1.00, 70), ("chrF", 2.12, 85),
    ):  # fmt: skip
        assert metrics.people_agree(name, difference) == pytest.approx(share, abs=0.2)
    assert metrics.people_agree("BLEU", 0.1) == 50
    assert metrics.people_agree("TER", 1.0) is None


def test_zero_against_zero_has_no_p(table):
    for name, seed in TRANSLATIONS:
        translate(table, name, seed, [f"{name} {seed}"] * 60)
    heading, first, second = table_lines(report(table, "--baseline", "baseline"))
    assert [first[1], second[1]] == ["0.00 ± 0.00"] * 2
    assert not {"p", "p, sentences", "95%"} & set(heading)


def test_several_test_sets_have_a_column_each_and_the_mean_difference(table):
    second_references = [f"{text} Again." for text in REFERENCES[:40]]
    write_lines(table / "test1.en", second_references)
    bleu = {}
    for (name, seed), lines in TRANSLATIONS.items():
        second = [f"{line} Again." for line in lines[:40]]
        translate(
            table, name, seed, second, SOURCES[:40], second_references, subset="test1",
        )  # fmt: skip
        bleu[name, seed] = [
            sacrebleu.corpus_bleu(lines, [REFERENCES]).score,
            sacrebleu.corpus_bleu(second, [second_references]).score,
        ]
    text = report(
        table, "--baseline", "baseline", "--trials", "100", "--reference",
        f"test1={table / 'test1.en'}",
    )  # fmt: skip
    heading, _, k2 = table_lines(text)
    cells = dict(zip(heading, k2, strict=True))
    means = {
        name: np.mean([bleu[name, seed] for seed in (1, 2)], axis=0) for name in ("k2", "baseline")
    }
    assert cells["BLEU test"].split(" ± ")[0] == f"{means['k2'][0]:.2f}"
    assert cells["BLEU test1"].split(" ± ")[0] == f"{means['k2'][1]:.2f}"
    assert cells["BLEU"].split(" ± ")[0] == f"{means['k2'].mean():.2f}"
    assert cells["ΔBLEU"] == f"{(means['k2'] - means['baseline']).mean():+.2f}"
    assert "Test sets: test, test1." in text
    assert cells["p"] != "-"
    for run in records(table / "out" / "runs.csv"):
        assert float(run["BLEU test1"]) == pytest.approx(bleu[run["row"], int(run["seed"])][1])
