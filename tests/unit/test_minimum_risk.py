"""Minimum Bayes risk: the sample with the most expected utility, compared with a plain loop."""

from __future__ import annotations

import random

import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

import fairseq_phrase
from fairseq_phrase.cli.translate import main as translate
from fairseq_phrase.errors import UserError
from fairseq_phrase.evaluation.metrics import functions
from fairseq_phrase.inference import search
from fairseq_phrase.inference.minimum_risk import MinimumRisk
from fairseq_phrase.parsers import registry
from tests.support.small_checkpoints import ChainParser, make_checkpoint, make_data

UTILITIES = {
    "bleu": lambda one, other: BLEU(effective_order=True).sentence_score(one, [other]).score,
    "chrf": lambda one, other: CHRF().sentence_score(one, [other]).score,
    "ter": lambda one, other: -TER().sentence_score(one, [other]).score,
    "overlap": lambda one, other: len(set(one.split()) & set(other.split())),
    "distance": lambda one, other: -abs(len(one) - len(other)),
    "statistics": lambda one, other: len(set(one) & set(other)) / max(1, len(set(one))),
}


def overlap(sources, outputs, references):
    pairs = zip(outputs, references[0], strict=True)
    return [
        len(set(hypothesis.split()) & set(reference.split())) for hypothesis, reference in pairs
    ]


def distance(sources, outputs, references):
    assert set(sources) == {"the source"}
    return [
        abs(len(hypothesis) - len(reference))
        for hypothesis, reference in zip(outputs, references[0], strict=True)
    ]


def statistics(sources, outputs, references):
    pairs = zip(outputs, references[0], strict=True)
    return [
        [len(set(hypothesis) & set(reference)), max(1, len(set(hypothesis)))]
        for hypothesis, reference in pairs
    ]


distance.lower_is_better = True
statistics.score = lambda sums: sums[..., 0] / sums[..., 1]


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for function in (overlap, distance, statistics):
        monkeypatch.setitem(functions.BUILT_IN, function.__name__, lambda: None)
    monkeypatch.setattr(functions, "_load", lambda spec: globals()[spec])


def drawn_texts(rng, count):
    """Samples, some of which are equal or empty."""
    words = ("the", "dog", "sleeps", "in", "a", "garden")
    texts = [" ".join(rng.choices(words, k=rng.randrange(8))) for _ in range(max(1, count // 2))]
    return rng.choices(texts, k=count)


@pytest.mark.parametrize("name", UTILITIES)
def test_the_choice_is_that_of_a_plain_loop(name):
    rng, risk = random.Random(1), MinimumRisk(name)
    for count in (1, 2, 3, 5, 12, 20):
        samples = drawn_texts(rng, count)
        best, most = None, -float("inf")
        for index, candidate in enumerate(samples):
            expected = 0.0
            for reference in samples:
                expected += UTILITIES[name](candidate, reference) / count
            if expected > most + 1e-6:
                best, most = index, expected
        assert risk.choose("the source", samples) == best


def test_a_text_counts_as_often_as_it_was_drawn():
    samples = ["a cat", "the dog sleeps", "the dog sleeps", "the dog sleeps", "a cat", "a cat"]
    assert MinimumRisk("chrf").choose("", samples[:4]) == 1
    assert MinimumRisk("chrf").choose("", ["x", *samples, "the dog sleep"]) == 2


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter"])
def test_the_first_of_equal_samples_is_chosen(name):
    assert MinimumRisk(name).choose("", ["b c d e", "f g h i"]) == 0
    assert MinimumRisk(name).choose("", ["f g h i", "b c d e"]) == 0


@pytest.mark.parametrize(
    ("returned", "problem"),
    [(0.5, "one of a whole test set"), ([1.0], "one of"), (float("nan"), "a finite number")],
)
def test_a_metric_without_a_number_for_each_sentence_is_refused(monkeypatch, returned, problem):
    monkeypatch.setattr(functions, "_load", lambda spec: lambda *texts: returned)
    with pytest.raises(UserError, match=f"mbr=.overlap.: expected a metric .*{problem}"):
        MinimumRisk("overlap").choose("", ["a", "b"])


@pytest.mark.parametrize("name", ["errant:x", "file:scores", "nothing", "BLEU", ""])
def test_other_metrics_are_refused(name):
    names = "bleu, chrf, comet, distance, gleu, overlap, statistics, ter"
    with pytest.raises(UserError, match=f"expected one of {names}"):
        MinimumRisk(name)


@pytest.mark.parametrize(
    ("name", "similar"), [("chfr", "chrf"), ("BLEU", "bleu"), ("overlapp:x", "overlap")]
)
def test_a_similar_metric_is_suggested(name, similar):
    with pytest.raises(UserError, match=rf", ter; did you mean {similar}\?$"):
        MinimumRisk(name)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_checkpoint(
        folder / "a.pt",
        make_data(folder / "data"),
        "--arch",
        "transformer",
        "--encoder-layers",
        "1",
    )


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setitem(registry._BUILT_IN, "chain", registry._BuiltIn("chain", ChainParser))
    monkeypatch.setattr(search, "longest_target", lambda source: 5)


def test_the_command_writes_the_chosen_sample_of_each_line(checkpoint, tmp_path):
    data, text = str(checkpoint.with_name("data")), tmp_path / "text.de"
    lines = ["der Hund schläft", "", "Hund", "der der Hund Hund"]
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    model = fairseq_phrase.load(checkpoint, data, device="cpu")
    samples = list(model.hypotheses(lines, sampling=True, nbest=12))
    assert len({sample.text for sample in samples[0]}) > 2
    expected = [
        samples_of_line[
            MinimumRisk("chrf").choose(line, [sample.text for sample in samples_of_line])
        ]
        for line, samples_of_line in zip(lines, samples, strict=True)
    ]
    assert [sample.text for sample in expected] != [
        samples_of_line[0].text for samples_of_line in samples
    ]
    assert list(model.hypotheses(lines, sampling=True, nbest=12, mbr="chrf")) == [
        [sample] for sample in expected
    ]
    options = ["--sampling", "--nbest", "12", "--mbr", "chrf", "--scores"]
    out = tmp_path / "out"
    translate([data, "--path", str(checkpoint), str(text), *options, "--out", str(out)])
    written = [
        f"{'' if hypothesis.score is None else f'{hypothesis.score:.4f}'}\t{hypothesis.text}\n"
        for hypothesis in expected
    ]
    assert out.read_text(encoding="utf-8") == "".join(written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--nbest", "2"],
            "--mbr chrf chooses among samples: give --sampling and 2 or more of --nbest",
        ),
        (
            ["--sampling"],
            "--mbr chrf chooses among samples: give --sampling and 2 or more of --nbest",
        ),
        (
            ["--score", "x"],
            "--score scores the translations of a file: remove the options of a search",
        ),
    ],
)
def test_mistakes_are_one_message(checkpoint, monkeypatch, capsys, options, message):
    monkeypatch.setattr("sys.argv", ["fairseq-phrase-translate"])
    path = [str(checkpoint.with_name("data")), "--path", str(checkpoint), __file__]
    with pytest.raises(SystemExit):
        translate([*path, "--mbr", "chrf", *options])
    assert capsys.readouterr().err == f"fairseq-phrase-translate: error: {message}\n"
