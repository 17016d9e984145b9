"""Scores read from fairseq's outputs and logs."""

from __future__ import annotations

import pytest
import sacrebleu

from fairseq_phrase.cli.score import main
from fairseq_phrase.errors import UserError
from fairseq_phrase.report.scores import (
    markdown_table,
    read_hypotheses,
    score_run,
)

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


def test_hypotheses_come_in_the_test_sets_order_the_best_of_each(tmp_path):
    assert read_hypotheses(write_output(tmp_path / "generate.txt", HYPOTHESES)) == HYPOTHESES


def test_an_output_that_was_cut_short_is_refused(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES, finished=False)
    with pytest.raises(UserError, match=r"not a whole output .*3 translations"):
        read_hypotheses(path)


def test_an_output_with_a_sentence_missing_is_refused(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES)
    path.write_text("".join(line for line in path.open() if not line.startswith("D-1\t")))
    with pytest.raises(UserError, match="not a whole output"):
        read_hypotheses(path)


def test_scores_are_sacrebleus_own(tmp_path):
    row = score_run("x", write_output(tmp_path / "g", HYPOTHESES), REFERENCES, None)
    assert row.bleu == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    assert row.chrf == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert "tok:13a" in row.signatures[0]


def test_an_output_of_another_test_set_is_refused(tmp_path):
    path = write_output(tmp_path / "generate.txt", HYPOTHESES[:2])
    with pytest.raises(UserError, match="2 translations and the reference 3 lines"):
        score_run("x", path, REFERENCES, None)


def test_the_table_has_a_row_for_each_run_and_each_signature_once(tmp_path):
    row = score_run("mine", write_output(tmp_path / "g", HYPOTHESES), REFERENCES, None)
    lines = markdown_table([row, row]).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:4]] == ["| mine ", "| mine "]
    assert len([line for line in lines if line.startswith("sacrebleu: ")]) == 2
    assert len({len(line) for line in lines[:4]}) == 1


def test_the_command_writes_the_table_and_refuses_two_runs_of_one_name(tmp_path, capsys):
    reference = tmp_path / "reference.en"
    reference.write_text("\n".join(REFERENCES) + "\n")
    run = tmp_path / "run"
    run.mkdir()
    write_output(run / "generate.txt", HYPOTHESES)
    main([str(run), "--reference", str(reference), "--out", str(tmp_path / "table.md")])
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text()
    with pytest.raises(SystemExit) as caught:
        main([f"a={run}", f"a={run}", "--reference", str(reference)])
    assert caught.value.code == 2
    assert "two runs are named 'a'" in capsys.readouterr().err


def test_what_fairseqs_results_path_wrote_is_found_and_a_file_can_be_named(tmp_path, capsys):
    reference = tmp_path / "reference.en"
    reference.write_text("\n".join(REFERENCES) + "\n")
    (tmp_path / "a").mkdir()
    output = write_output(tmp_path / "a" / "generate-test.txt", HYPOTHESES)
    other = write_output(tmp_path / "a" / "other.txt", REFERENCES)
    main([str(tmp_path / "a"), f"b={output}", f"c={other}", "--reference", str(reference)])
    rows = capsys.readouterr().out.splitlines()[2:5]
    scores = [row.split(" | ")[1] for row in rows]
    assert [row.split()[1] for row in rows] == ["a", "b", "c"]
    assert scores[0] == scores[1] != scores[2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit):
        main([str(tmp_path / "empty"), "--reference", str(reference)])
    assert "expected generate-test.txt or generate.txt" in capsys.readouterr().err
