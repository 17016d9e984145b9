"""What is read from the outputs of fairseq-generate and fairseq-interactive."""

from __future__ import annotations

import logging

import pytest
from fairseq.dataclass.configs import FairseqConfig
from omegaconf import OmegaConf

from fairseq_phrase.data.store.identity import Entry, Identity, Tolerance, check_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.generation import read_generation, read_interactive_speed
from fairseq_phrase.repairs.commands import shorten_configuration
from tests.support.run_folders import write_generation, write_interactive

SOURCES = ["Ein Hund schläft.", "Zwei Katzen.", "Wir singen ein Lied\u2028zu Hause."]
TARGETS = ["A dog sleeps.", "Two cats.", "We sing a song\u2028at home."]
HYPOTHESES = ["A dog is asleep.", "", "We sing\ta song."]


def output(path, **options):
    return write_generation(path / "generate.txt", HYPOTHESES, SOURCES, TARGETS, **options)


def test_sentences_come_in_the_test_sets_order_whatever_is_in_them(tmp_path):
    generation = read_generation(output(tmp_path, subset="test1", beam=4))
    assert (generation.hypotheses, generation.sources, generation.targets) == (
        HYPOTHESES,
        SOURCES,
        TARGETS,
    )
    assert (generation.subset, generation.beam, generation.speed) == ("test1", 4, None)


def test_the_speed_is_in_the_log_beside_the_output_or_in_the_output_itself(tmp_path):
    path = output(tmp_path, speed=15.38)
    assert read_generation(path).batch == "100 sentences"
    assert read_generation(path).speed == 15.38
    log = path.with_suffix(".log")
    path.write_text(path.read_text() + log.read_text())
    log.unlink()
    assert read_generation(path).speed == 15.38


@pytest.mark.parametrize(
    ("options", "search"),
    [({}, ""), ({"lenpen": 0.6, "beam": 4, "max_len_a": 1.2}, "'max_len_a': 1.2, 'lenpen': 0.6")],
)
def test_the_log_names_batches_models_and_search(tmp_path, options, search):
    config = OmegaConf.structured(FairseqConfig())
    config.dataset.max_tokens = 4000
    config.common_eval.path = "runs/a/checkpoint_best.pt:runs/b/average.pt"
    config.generation.update(options)
    record = logging.makeLogRecord({"msg": config, "name": "fairseq_cli.generate"})
    assert shorten_configuration(record)
    path = output(tmp_path, speed=15.38)
    log = path.with_suffix(".log")
    log.write_text(
        f"INFO:{record.name}:{record.getMessage()}\n" + log.read_text().partition("\n")[2]
    )
    generation = read_generation(path)
    assert (generation.batch, generation.search, generation.speed) == ("4000 tokens", search, 15.38)
    assert generation.models == "'checkpoint_best.pt', 'average.pt'"


@pytest.mark.parametrize("options", [Tolerance(), Tolerance("tree-source", strict=True)])
def test_the_log_names_differences_that_passed(tmp_path, caplog, options, monkeypatch):
    monkeypatch.setattr("sys.argv", ["fairseq-generate"])  # else options are named as in Python
    trained, current = (
        Identity({"tree-source": Entry(source, source, "trees")}, where=f"{source} of {options}")
        for source in ("parse", "linear")
    )
    check_identity(trained, current, "use", options)
    path = output(tmp_path, speed=15.38)
    (record,) = caplog.records
    with open(path.with_suffix(".log"), "a", encoding="utf-8") as log:
        log.write(f"WARNING:{record.name}:{record.getMessage()}\n")
    assert read_generation(path).differences == ["tree-source parse and linear"]


def test_a_log_in_the_middle_of_a_sentence_is_noticed(tmp_path):
    path = output(tmp_path)
    logged = "D-0\t-0.5\tA dogINFO:fairseq_cli.generate:Translated 3 sentences (9 tokens) in 1s\n"
    path.write_text(
        path.read_text().replace("D-0\t-0.5\tA dog is asleep.\n", logged + " is asleep.\n")
    )
    with pytest.raises(UserError, match=r"generate.txt, line \d+: .*in the middle .*2>FILE.log"):
        read_generation(path)


def test_two_outputs_in_one_file_are_refused(tmp_path):
    path = output(tmp_path)
    path.write_text(path.read_text() * 2)
    with pytest.raises(UserError, match="2 outputs of fairseq-generate in a row"):
        read_generation(path)


def test_subwords_are_refused(tmp_path):
    for marked in ("▁A ▁do g", "a do@@ g"):
        path = write_generation(tmp_path / "generate.txt", [marked] * 3, SOURCES, TARGETS)
        with pytest.raises(UserError, match="subwords, not text: translate with --bpe"):
            read_generation(path)


def test_the_speed_with_parsing_is_that_of_raw_sentences_to_translations(tmp_path):
    write_interactive(tmp_path / "interactive.txt", sentences=40, seconds=0.5)
    assert read_interactive_speed(tmp_path / "interactive.txt") == 80
    (tmp_path / "interactive.log").unlink()
    assert read_interactive_speed(tmp_path / "interactive.txt") is None
