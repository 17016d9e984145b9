"""Scores read from fairseq's outputs and logs: fairseq-phrase-score."""

from __future__ import annotations

import pytest
import sacrebleu

from fairseq_phrase.cli.score import main
from fairseq_phrase.errors import UserError
from fairseq_phrase.report.generation import read_generation
from tests.support.report_table import table_lines

REFERENCES = ["the dog sleeps in the garden .", "a cat sees two birds .", "we sing a song ."]
HYPOTHESES = ["the dog sleeps in a garden .", "a cat sees the birds .", "we sing a song ."]


def write_output(path, translations, finished=True):
    lines = []
    for index, text in reversed(list(enumerate(translations))):  # fairseq sorts by length
        lines += [f"S-{index}\tx", f"H-{index}\t-0.5\t▁y", f"D-{index}\t-0.5\t{text}",
                  f"D-{index}\t-0.9\tthe second best"]  # fmt: skip
    if finished:
        lines.append("Generate test with beam=5: BLEU4 = 1.0")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def run(tmp_path):
    """A run without a training log, and the reference beside it."""
    (tmp_path / "reference.en").write_text("\n".join(REFERENCES) + "\n")
    folder = tmp_path / "run"
    folder.mkdir()
    write_output(folder / "generate.txt", HYPOTHESES)
    return folder


def score(run, *runs, out=()):
    main([*(runs or [str(run)]), "--reference", str(run.parent / "reference.en"), *out])


def test_hypotheses_come_in_the_test_sets_order_the_best_of_each(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES)
    assert read_generation(path).hypotheses == HYPOTHESES


def test_an_output_that_was_cut_short_is_refused(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES, finished=False)
    with pytest.raises(UserError, match=r"not a whole output .*3 translations"):
        read_generation(path)


def test_an_output_with_a_sentence_missing_is_refused(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES)
    path.write_text("".join(line for line in path.open() if not line.startswith("D-1\t")))
    with pytest.raises(UserError, match="not a whole output"):
        read_generation(path)


@pytest.mark.parametrize("name", ["generate.txt", "generate-test.txt"])
def test_scores_are_sacrebleus_own_whatever_the_outputs_name(run, capsys, name):
    (run / "generate.txt").rename(run / name)
    score(run)
    text = capsys.readouterr().out
    heading, row = table_lines(text)
    assert dict(zip(heading, row, strict=True)) == {
        "model": "run",
        "BLEU": f"{sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score:.2f}",
        "chrF": f"{sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score:.2f}",
        "TER": f"{sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES]).score:.2f}",
        "seeds": "1 seed",
    }
    assert "tok:13a" in text


def test_an_output_of_another_test_set_is_refused(run, capsys):
    write_output(run / "generate.txt", HYPOTHESES[:2])
    with pytest.raises(SystemExit):
        score(run)
    assert "2 translations and the reference 3 lines" in capsys.readouterr().err


def test_the_table_has_a_row_for_each_run_and_each_signature_once(run, capsys):
    score(run, f"mine={run}", f"yours={run}")
    text = capsys.readouterr().out
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert [line.split()[1] for line in lines[2:4]] == ["mine", "yours"]
    assert text.count("- BLEU: `") == text.count("- chrF: `") == 1
    assert len({len(line) for line in lines[:4]}) == 1


def test_the_command_writes_the_table_and_refuses_two_runs_of_one_name(run, tmp_path, capsys):
    score(run, out=("--out", str(tmp_path / "table.md")))
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()
    with pytest.raises(SystemExit) as caught:
        score(run, f"a={run}", f"a={run}")
    assert caught.value.code == 2
    assert "two rows are named 'a'" in capsys.readouterr().err


def test_what_fairseqs_results_path_wrote_is_found_and_a_file_can_be_named(run, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    output = write_output(tmp_path / "a" / "generate-test.txt", HYPOTHESES)
    other = write_output(tmp_path / "a" / "other.txt", REFERENCES)
    score(run, str(tmp_path / "a"), f"b={output}", f"c={other}")
    _, *rows = table_lines(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[0][1] == rows[1][1] != rows[2][1]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        score(run, str(tmp_path / "empty"))
    assert "expected train.log and generate*.txt" in capsys.readouterr().err
