"""Scores read from fairseq's outputs and logs: fairseq-phrase-score."""

from __future__ import annotations

import json

import pytest
import sacrebleu

from fairseq_phrase.cli.score import main
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.report.generation import read_generation
from fairseq_phrase.metrics import tokenizers
from tests.support.report_table import table_lines
from tests.support.run_folders import LogWriter

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


def test_an_output_that_was_truncated_is_refused(tmp_path):
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


def test_an_output_of_another_test_set_is_refused(run, refused):
    write_output(run / "generate.txt", HYPOTHESES[:2])
    assert "2 translations and the reference 3 lines" in refused(score, run)


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


def test_what_fairseqs_results_path_wrote_is_found_and_a_file_can_be_named(
    run, tmp_path, capsys, refused
):
    (tmp_path / "a").mkdir()
    output = write_output(tmp_path / "a" / "generate-test.txt", HYPOTHESES)
    other_output = write_output(tmp_path / "a" / "other.txt", REFERENCES)
    score(run, str(tmp_path / "a"), f"b={output}", f"c={other_output}")
    _, *rows = table_lines(capsys.readouterr().out)
    assert [row[0] for row in rows] == ["a", "b", "c"]
    assert rows[0][1] == rows[1][1] != rows[2][1]
    (tmp_path / "empty").mkdir()
    assert "expected train.log and generate*.txt" in refused(score, run, str(tmp_path / "empty"))


CHINESE = [
    "我昨天在公园里看见一只黑色的狗。",
    "这座城市的冬天非常寒冷。",
    "请把窗户关上,外面很吵。",
]
NEARLY = [line.replace("黑", "白").replace("关", "打") for line in CHINESE]
THAI = ["ฉันเห็นสุนัขสีดำในสวนสาธารณะ", "ฤดูหนาวของเมืองนี้หนาวมาก", "กรุณาปิดหน้าต่างข้างนอกเสียงดัง"]


def scored(folder, name, references, hypotheses, *options, capsys) -> tuple[dict[str, str], str]:
    """Score translations against a reference file of this name: the table's row, and all of it."""
    (folder / name).write_text("\n".join(references) + "\n")
    (folder / "run").mkdir(exist_ok=True)
    write_output(folder / "run" / "generate.txt", hypotheses)
    main([str(folder / "run"), "--reference", str(folder / name), *options])
    text = capsys.readouterr().out
    heading, row = table_lines(text)
    return dict(zip(heading, row, strict=True)), text


@pytest.mark.parametrize("name", ["ref.zh", "ref.zh_CN", "test.zho0"])
def test_chinese_has_sacrebleus_chinese_words_in_bleu_and_ter(tmp_path, capsys, name):
    row, text = scored(tmp_path, name, CHINESE, NEARLY, capsys=capsys)
    bleu = sacrebleu.corpus_bleu(NEARLY, [CHINESE], tokenize="zh").score
    ter = sacrebleu.corpus_ter(NEARLY, [CHINESE], normalized=True, asian_support=True).score
    assert (row["BLEU"], row["TER"]) == (f"{bleu:.2f}", f"{ter:.2f}")
    assert "|tok:zh|" in text
    assert "|asian:yes|" in text
    assert "no spaces" not in text


def test_the_trainings_log_has_the_language_where_the_references_name_has_none(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    log = LogWriter()
    log.head()
    config = next(i for i, line in enumerate(log.lines) if "'_name': None" in line)
    log.lines[config] = log.lines[config].replace("'criterion'", "'target_lang': 'zh', 'criterion'")
    log.write(tmp_path / "run" / "train.log")
    _, text = scored(tmp_path, "reference.txt", CHINESE, NEARLY, capsys=capsys)
    assert "|tok:zh|" in text


def test_a_text_without_spaces_and_the_default_tokenizer_is_noted(tmp_path, capsys):
    for options in ((), ("--tokenize", "intl")):
        _, text = scored(tmp_path, "ref.txt", CHINESE, NEARLY, *options, capsys=capsys)
        assert "has no spaces between words, so that for BLEU a whole phrase is one word; " in text
    row, text = scored(tmp_path, "ref.txt", CHINESE, NEARLY, "--tokenize", "char", capsys=capsys)
    assert float(row["BLEU"]) > 50
    assert "no spaces" not in text
    segmented = [" ".join(line) for line in CHINESE]
    _, text = scored(tmp_path, "ref.txt", segmented, segmented, "--tokenize", "none", capsys=capsys)
    assert "no spaces" not in text
    assert "|asian:no|" in text


def test_a_language_that_sacrebleu_has_no_tokenizer_for_is_scored_in_characters(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tokenizers, "FLORES_FILE", tmp_path / "none")  # not downloaded
    tokenizers.tokenizer_of.cache_clear()
    row, text = scored(tmp_path, "ref.th", THAI, THAI[:2] + THAI[:1], capsys=capsys)
    assert float(row["BLEU"]) > 50
    assert "BLEU is of the tokenizer char: sacrebleu has no tokenizer for 'th'" in text
    assert "so that for TER a whole phrase is one word." in text


def test_a_tokenizer_that_is_not_installed_gives_way_and_is_noted(tmp_path, monkeypatch):
    def missing(tokenize):
        raise RuntimeError("no MeCab")

    monkeypatch.setattr(tokenizers.BLEU, "__init__", lambda self, tokenize: missing(tokenize))
    monkeypatch.setattr(tokenizers, "FLORES_FILE", tmp_path / "model")
    tokenizers.tokenizer_of.cache_clear()
    assert tokenizers.tokenizer_of("ja_XX") == (
        "char",
        "BLEU is of the tokenizer char: sacrebleu's tokenizer ja-mecab needs pip install "
        "'sacrebleu[ja]', or --tokenize flores200, which is downloaded.",
    )
    tokenizers.tokenizer_of.cache_clear()
    (tmp_path / "model").touch()
    assert tokenizers.tokenizer_of("kor_Hang")[0] == "flores200"
    tokenizers.tokenizer_of.cache_clear()
    assert tokenizers.tokenizer_of("de") == tokenizers.tokenizer_of(None) == ("13a", "")


def test_a_tokenizer_is_named_or_refused_by_name(run, capsys):
    score(run, out=("--tokenize", "char"))
    assert "|tok:char|" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        score(run, out=("--tokenize", "nothing"))
    assert "--tokenize nothing: expected one of 13a, char" in capsys.readouterr().err


def test_scores_in_json_are_in_the_form_of_sacrebleu(run, tmp_path):
    score(run, out=["--out", str(tmp_path / "scores.json")])
    scores = json.loads((tmp_path / "scores.json").read_text())
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    assert [score["name"] for score in scores] == ["BLEU", "chrF", "TER"]
    assert scores[0]["score"] == pytest.approx(expected.score)
    assert scores[0]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a")
    assert scores[0]["test_set"] == "test"
