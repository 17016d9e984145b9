"""Vectors of sentences, classifiers of them, and their tables."""

from __future__ import annotations

import json
import random
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from fairseq_phrase.data.batches.source_batches import SourceBatcher
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.probing.classifier import Probe, ProbeOptions, probe
from fairseq_phrase.lab.probing.probe_checkpoints import (
    EncodedLines,
    SentenceVectors,
    probe_checkpoints,
)
from fairseq_phrase.lab.probing.results import Results, plot_results, short_names
from fairseq_phrase.lab.probing.task_files import Example, ProbingTask
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.testing import build_model, make_dictionary, random_sentence

FEW = ProbeOptions(hidden=(8,), l2=(1e-4,), epochs=60, patience=60)


# Vectors


class Encoder:
    """Makes lines that are seeds and lengths of random sentences, such as ``3 5``."""

    def __init__(self, dictionary):
        self.dictionary, self.encoded = dictionary, []

    def segment_lines(self, lines):
        self.encoded += lines
        return [self._sentence(line) for line in lines]

    def encode_lines(self, lines, *, constituents):
        return self.segment_lines(lines)

    def _sentence(self, line):
        seed, length = map(int, line.split())
        values = random_sentence(self.dictionary, length, seed)
        subwords = [self.dictionary[index] for index in values["src_tokens"][:-1].tolist()]
        words, spans = values["src_words"][:-1].numpy(), values["src_spans"].numpy()
        labels = [str(label) for label in spans[:, 2]]
        heads = values["src_heads"].numpy()
        return EncodedSentence(subwords, words, heads, [], [], spans[:, :2], labels)


class Labels:
    """Labels that are their numbers."""

    def index(self, label):
        return int(label)


def raw_task(dictionary, fields=()):
    encoder = Encoder(dictionary)
    source = SourceBatcher(dictionary, lambda field: Labels(), lambda: encoder)
    source.fields.update(fields)
    return Namespace(
        cfg=Namespace(data="data", source_lang="de"), source_dictionary=dictionary, source_text=source,
        target_dictionary=dictionary, label_dictionary=lambda field: Labels(),
        encoded=encoder.encoded,
    )  # fmt: skip


LINES = ["1 6", "2 1", "3 9", "4 4", "5 2"]
MODELS = {"transformer": [], "tree_transformer": ["words", "spans"]}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
def test_a_vector_is_the_mean_of_a_sentences_tokens(name, pre_norm):
    dictionary = make_dictionary()
    options = {"encoder_normalize_before": pre_norm, "max_source_positions": 1024}
    if name == "transformer":
        name, options = "structural_transformer", options  # without any option it is fairseq's
        fields = []
    else:
        fields = MODELS[name]
    model, task = build_model(name, dictionary, **options), raw_task(dictionary, fields)
    sentences = EncodedLines().encode(task, LINES)
    vectors = SentenceVectors(model, task, layers="all", max_tokens=12)(sentences)
    assert list(vectors) == [0, 1, 2]
    for row, sentence in enumerate(sentences):
        tokens = [*map(dictionary.index, sentence.subwords), dictionary.eos()]
        inputs = {"src_tokens": torch.tensor([tokens])}
        for field in fields:
            values = torch.from_numpy(np.asarray(getattr(sentence, field)))
            if field == "spans":
                labels = torch.tensor([*map(int, sentence.span_labels)], dtype=torch.int64)
                values = torch.cat([values, labels[:, None]], 1)
            end = torch.tensor([-1])
            inputs[f"src_{field}"] = (torch.cat([values, end]) if field == "words" else values)[
                None
            ]
        encoded = model.encoder(**inputs, return_all_hiddens=True)
        layers = [*encoded["encoder_states"][:-1], encoded["encoder_out"][0]]
        for layer, states in enumerate(layers):
            expected = sum(states[token, 0] for token in range(len(tokens))) / len(tokens)
            np.testing.assert_allclose(vectors[layer][row], expected.detach(), rtol=1e-5, atol=1e-6)


def test_lines_are_encoded_once_for_models_of_the_same_data():
    task, lines = raw_task(make_dictionary()), EncodedLines()
    lines.encode(task, LINES)
    again = lines.encode(task, [LINES[2], LINES[0], "6 3"])
    assert task.encoded == [*LINES, "6 3"]
    assert [len(sentence.subwords) for sentence in again] == [9, 6, 3]
    for name in ("data", "source_lang"):
        task.encoded.clear()
        setattr(task.cfg, name, "another")
        lines.encode(task, LINES[:1])
        assert task.encoded == LINES[:1]


def test_a_layer_that_is_not_there_is_named():
    dictionary = make_dictionary()
    model, task = build_model("structural_transformer", dictionary), raw_task(dictionary)
    with pytest.raises(UserError, match="--layer 3: this encoder has the layers 0 to 2"):
        SentenceVectors(model, task, layers=3)
    with pytest.raises(UserError, match="has no encoder"):
        SentenceVectors(Namespace(), task)
    with pytest.raises(UserError, match="encoder does not state its number of layers"):
        SentenceVectors(Namespace(encoder=torch.nn.Identity()), task)
    with pytest.raises(UserError, match="does not read raw text"):
        EncodedLines().encode(Namespace(), LINES)


def test_long_sentences_are_truncated(caplog):
    dictionary = make_dictionary()
    model = build_model("structural_transformer", dictionary, max_source_positions=6)
    task = raw_task(dictionary, ["words", "heads"])
    sentences = EncodedLines().encode(task, ["1 9", "2 3"])
    vectors = SentenceVectors(model, task)(sentences)
    assert vectors[2].shape == (2, 16)
    assert "1 sentences are truncated to the model's 5 subwords" in caplog.text


# Classifiers


def separable(count, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, count)
    vectors = 100 * np.eye(3)[labels] + generator.normal(0, 10, (count, 3))
    return vectors.astype(np.float32), [f"label{label}" for label in labels]


def test_separable_vectors_are_told_apart():
    vectors, labels = zip(*(separable(count, count) for count in (300, 100, 99)), strict=True)
    result = probe(vectors, labels, FEW)
    assert result.accuracy > 0.95
    assert result.valid_accuracy > 0.95
    assert (result.hidden, result.l2) == (8, 1e-4)


def test_settings_are_chosen_on_the_validation_split():
    vectors, labels = zip(*(separable(count, count) for count in (300, 100, 99)), strict=True)
    # With such a penalty all weights vanish.
    options = ProbeOptions(hidden=(4,), l2=(1e4, 1e-4), epochs=60, patience=60)
    assert probe(vectors, labels, options).l2 == 1e-4


@pytest.mark.parametrize(
    ("accuracies", "patience", "best", "passes"),
    [
        ([3, 3, 3, 3, 3], 1, 1, 2),
        ([3, 2, 4, 4, 4, 9], 2, 3, 5),
        ([3, 2, 4, 4, 9, 9, 9], 2, 5, 7),  # better in the last pass that patience allows
        ([1, 2, 3, 4], 1, 4, 4),  # all passes
    ],
)
def test_training_ends_after_so_many_passes_without_a_better_accuracy(
    monkeypatch, accuracies, patience, best, passes
):
    classifiers = []

    class Scheduled:
        """A classifier whose accuracy is given for each pass."""

        def __init__(self, *_, **__):
            self.trained, self.coefs_, self.intercepts_ = 0, [np.zeros(1)], [np.zeros(1)]
            classifiers.append(self)

        def partial_fit(self, *_, **__):
            self.trained += 1
            self.coefs_ = [np.full(1, self.trained)]

        def predict(self, vectors):
            return (np.arange(len(vectors)) >= accuracies[self.trained - 1]).astype(int)

    monkeypatch.setattr("sklearn.neural_network.MLPClassifier", Scheduled)
    vectors = [np.eye(10, dtype=np.float32)] * 3
    labels = [["a"] * 9 + ["b"], ["a"] * 10, ["a"] * 10]
    options = ProbeOptions(hidden=(4,), l2=(1.0,), epochs=len(accuracies), patience=patience)
    result = probe(vectors, labels, options)
    assert (result.epochs, classifiers[0].trained) == (best, passes)
    assert result.valid_accuracy == max(accuracies[:passes]) / 10
    assert classifiers[0].coefs_[0].tolist() == [best]  # the weights of the best pass


def test_labels_that_training_lacks_are_wrong():
    vectors, labels = zip(*(separable(count, count) for count in (300, 100, 99)), strict=True)
    unknown = [*labels[:2], ["new"] * 99]
    assert probe(vectors, unknown, FEW).accuracy == 0.0


def test_the_same_seed_gives_the_same_classifier():
    vectors, labels = zip(*(separable(count, count) for count in (100, 50, 50)), strict=True)
    assert probe(vectors, labels, FEW) == probe(vectors, labels, FEW)


def test_every_pass_has_the_sentences_in_another_order(monkeypatch):
    drawn = []

    def shuffled(places, random_state):
        drawn.append(tuple(random_state.permutation(places)))
        return np.array(drawn[-1])

    monkeypatch.setattr("sklearn.neural_network._multilayer_perceptron.shuffle", shuffled)
    vectors, labels = zip(*(separable(count, count) for count in (100, 50, 50)), strict=True)
    probe(vectors, labels, ProbeOptions(hidden=(4,), l2=(1e-4,), epochs=5))
    assert len(drawn) == len(set(drawn)) == 5


def test_one_label_is_nothing_to_learn():
    vectors, labels = zip(*(separable(10, seed) for seed in range(3)), strict=True)
    with pytest.raises(UserError, match="all 10 training sentences have the label 'x'"):
        probe(vectors, [["x"] * 10, *labels[1:]], FEW)


# Results


def results(
    names=("sentence_length", "word_content", "tree_depth", "bigram_shift", "zebra"), seeds=(1, 1)
):
    """Accuracies of two models by chance, with so many checkpoints each."""
    chance = random.Random(1)
    example = [Example("a", "1")]
    tasks = [ProbingTask(name, example, example, example) for name in names]
    probes = {
        model: {
            f"{model}{seed}.pt": {
                layer: {name: Probe(chance.random(), 0.5, 50, 1e-3, 7) for name in names}
                for layer in (0, 1)
            }
            for seed in range(count)
        }
        for model, count in zip(("one", "two"), seeds, strict=True)
    }
    return Results(tasks, probes)


def cells(table):
    """The cells of a table's lines."""
    rows = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_table_has_averages_of_the_groups_that_are_there():
    table_results = results()
    lines = cells(table_results.table())
    assert lines[0] == [
        "model", "layer", "seeds", "SeLen", "WC", "surface avg", "TrDep", "BShif",
        "syntactic avg of 2/3", "zebra",
    ]  # fmt: skip
    assert lines[2][:4] == ["majority", "", "", "100.00"]
    assert [line[:3] for line in lines[3:]] == [
        [model, layer, "1 seed"] for model in ("one", "two") for layer in "01"
    ]
    row = table_results.probes["two"]["two0.pt"][1]
    surface = 50 * (row["sentence_length"].accuracy + row["word_content"].accuracy)
    assert lines[-1][5] == f"{surface:.2f}"
    assert "±" not in table_results.table()


def test_checkpoints_of_one_name_are_seeds_of_a_row():
    table_results = results(seeds=(3, 1))
    lines = cells(table_results.table())[3:]
    assert [line[:3] for line in lines] == [
        ["one", "0", "3"], ["one", "1", "3"], ["two", "0", "1 seed"], ["two", "1", "1 seed"],
    ]  # fmt: skip
    of_seeds = [layers[1] for layers in table_results.probes["one"].values()]
    surface = [
        50 * (probes["sentence_length"].accuracy + probes["word_content"].accuracy)
        for probes in of_seeds
    ]
    assert lines[1][5] == f"{np.mean(surface):.2f} ± {np.std(surface, ddof=1):.2f}"
    assert "±" not in "".join(lines[2])
    assert table_results.table().endswith(
        "means over the seeds ± their standard deviation (n - 1)."
    )


def test_json_has_every_checkpoint_with_the_settings_of_each_classifier():
    content = json.loads(results(seeds=(3, 1)).as_json())
    assert content["tasks"]["zebra"] == {"sentences": [1, 1, 1], "majority": 1.0}
    assert len(content["results"]) == 40
    assert [result["checkpoint"] for result in content["results"]][::10] == [
        "one0.pt", "one1.pt", "one2.pt", "two0.pt",
    ]  # fmt: skip
    assert content["results"][0].keys() == {
        "model", "checkpoint", "layer", "task", "accuracy", "valid_accuracy", "hidden", "l2", "epochs",
    }  # fmt: skip


def test_accuracy_by_layer_is_drawn(tmp_path):
    plot_results(results(), tmp_path / "probing.svg")
    drawn = (tmp_path / "probing.svg").read_text()
    assert drawn.lstrip().startswith("<?xml")
    with pytest.raises(UserError, match="its suffix must be one of"):
        plot_results(results(), tmp_path / "probing.txt")


def test_seeds_share_a_line_with_bars_of_their_spread(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    plotted = results(seeds=(3, 1))
    plot_results(plotted, tmp_path / "probing.png")
    panel = drawn[0].axes[0]
    assert panel.get_legend_handles_labels()[1] == ["majority", "one", "two"]
    first, two = panel.containers
    accuracies = [
        100 * layers[1]["sentence_length"].accuracy for layers in plotted.probes["one"].values()
    ]
    assert first.lines[0].get_ydata()[1] == pytest.approx(np.mean(accuracies))
    (bars,) = first.lines[2]
    low, high = bars.get_segments()[1][:, 1]
    assert (high - low) / 2 == pytest.approx(np.std(accuracies, ddof=1))
    assert not two.has_yerr


def test_seeds_are_different_checkpoints_of_the_same_layers():
    dictionary = make_dictionary()
    task = raw_task(dictionary)
    models = {
        Path(f"{layers}.pt"): build_model(
            "structural_transformer", dictionary, encoder_layers=layers
        )
        for layers in (1, 2)
    }
    first, second = (("a", checkpoint) for checkpoint in models)

    def load(checkpoint):
        return models[checkpoint], task

    with pytest.raises(
        UserError, match=r"2.pt does not have the layers of 1.pt: they cannot both be 'a'"
    ):
        probe_checkpoints([first, second], load, [], layers="all")
    with pytest.raises(UserError, match=r"1.pt is probed twice as 'a'"):
        probe_checkpoints([first, first], load, [])
    probed = probe_checkpoints([first, ("b", second[1])], load, [], layers="all")
    assert [probed.layers(name) for name in "ab"] == [[0, 1], [0, 1, 2]]


@pytest.mark.slow
def test_a_call_that_was_stopped_goes_on_with_the_classifiers_that_are_left(monkeypatch, tmp_path):
    dictionary = make_dictionary()
    task = raw_task(dictionary)
    model = build_model("structural_transformer", dictionary, encoder_layers=2)
    checkpoint = [("a", Path("a.pt"))], lambda _: (model, task)
    tasks = []
    for divisor in (2, 3):
        examples = [Example(f"{n} {3 + n % 4}", str(n % divisor)) for n in range(30)]
        splits = (examples[:20], examples[20:25], examples[25:])
        tasks.append(ProbingTask(f"modulo {divisor}", *splits))
    trained = []

    def stop_after(count):
        """Count classifiers, and stop after so many."""

        def counted(*arguments):
            if len(trained) == count:
                raise KeyboardInterrupt
            trained.append(1)
            return probe(*arguments)

        trained.clear()
        monkeypatch.setattr("fairseq_phrase.lab.probing.probe_checkpoints.probe", counted)

    options = {"layers": "all", "options": FEW, "finished": tmp_path / "finished"}
    stop_after(4)  # of six: two tasks with three layers each
    with pytest.raises(KeyboardInterrupt):
        probe_checkpoints(*checkpoint, tasks, **options)
    assert len(trained) == 4
    stop_after(100)
    probed = probe_checkpoints(*checkpoint, tasks, **options)
    assert len(trained) == 2
    stop_after(100)
    assert probed == probe_checkpoints(*checkpoint, tasks, **{**options, "finished": None})
    assert len(trained) == 6
    stop_after(100)
    changed_options = {**options, "options": replace(FEW, l2=(1e-2,))}
    probe_checkpoints(*checkpoint, tasks, **changed_options)
    assert len(trained) == 6
    stop_after(100)
    monkeypatch.setattr("sklearn.__version__", "0.1")  # its classifiers are not those that are kept
    probe_checkpoints(*checkpoint, tasks, **changed_options)
    assert len(trained) == 6


@pytest.mark.parametrize("before", [1, 2])
def test_what_one_number_of_workers_found_is_not_trained_again_by_another(
    monkeypatch, tmp_path, before
):
    task = Namespace(cfg=Namespace(data="data", source_lang="de"))

    class Vectors:
        """Vectors that are large enough for joblib to give them to workers as files."""

        layers = (0, 1)

        def __init__(self, *_, **__):
            self.task = task

        def __call__(self, _):
            values = np.random.default_rng(1).normal(size=(2, 340, 1000)).astype(np.float32)
            return dict(enumerate(values))

    # Two layers of 1,000 units over 340 sentences, without a model of that size.
    monkeypatch.setattr("fairseq_phrase.lab.probing.probe_checkpoints.SentenceVectors", Vectors)
    monkeypatch.setattr(
        "fairseq_phrase.lab.probing.probe_checkpoints.EncodedLines.encode", lambda *_: None
    )
    examples = [Example(str(n), str(n % 2)) for n in range(340)]
    tasks = [ProbingTask("parity", examples[:300], examples[300:320], examples[320:])]
    finished = tmp_path / "finished"

    def call(workers):
        probed = probe_checkpoints(
            [("a", Path("a.pt"))], lambda _: (None, task), tasks, layers="all",
            options=ProbeOptions((4,), (1e-4,), epochs=1), workers=workers, finished=finished,
        )  # fmt: skip
        return probed, {path: path.stat().st_mtime_ns for path in finished.rglob("output.pkl")}

    first, written = call(before)
    assert len(written) == 2
    again, after = call(3 - before)
    assert after == written
    assert again == first


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["r/a/seed1/last.pt", "r/b/seed2/last.pt"], ["a/seed1", "b/seed2"]),
        (["r/a.pt", "r/b.pt"], ["a.pt", "b.pt"]),
        (["r/last.pt", "r/r/last.pt"], ["r/last.pt", "r/r/last.pt"]),
        (["some/where/last.pt"], ["where/last.pt"]),
    ],
)
def test_checkpoints_are_named_by_what_differs(paths, names):
    assert short_names(list(map(Path, paths))) == names


def test_a_checkpoint_is_named_once():
    with pytest.raises(UserError, match="named twice"):
        short_names([Path("a.pt"), Path("a.pt")])
