"""``scripts/adapt_parser.py``: a pipeline that learns trees of one's own."""

from __future__ import annotations

import re
import sys

import pytest
import spacy

from fairseq_phrase.parsers.spacy import SpacyParser
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from adapt_parser import main

# All words depend on the last one, by a relation that no pipeline has.
WORDS = ["ein", "mann", "sieht", "hier", "hunde"]


def conllu_text(count: int) -> str:
    rows = [
        f"{number}\t{word}\t_\t_\t_\t_\t{0 if number == 5 else 5}\t"
        f"{'root' if number == 5 else 'to-the-last'}\t_\t_"
        for number, word in enumerate(WORDS, start=1)
    ]
    return ("# text\n" + "\n".join(rows) + "\n\n") * count


@pytest.mark.slow
def test_an_adapted_parser_makes_the_trees_that_it_was_shown(trained_pipeline, tmp_path, capsys):
    (tmp_path / "own.conllu").write_text(conllu_text(300))
    out = tmp_path / "adapted"
    (tmp_path / "other.conllu").write_text(conllu_text(1).replace("to-the-last", "other"))
    options = ["--held-out", "50", "--passes", "4", "--learn-rate", "0.005"]
    options += ["--measure", str(tmp_path / "other.conllu")]
    main([str(trained_pipeline), str(tmp_path / "own.conllu"), str(out), *options])
    printed = capsys.readouterr().out
    assert "does not know: to-the-last" in printed
    before, after, *further_scores = re.findall(
        r"UAS ([\d.]+), LAS ([\d.]+), whole trees ([\d.]+)", printed
    )
    assert float(before[0]) < float(after[0])
    assert after == ("100.0", "100.0", "100.0")
    # One word of five has the relation that the parser has learned: the root.
    assert further_scores[1] == ("100.0", "20.0", "100.0")
    parser = SpacyParser(str(out))
    assert "_adapted" in parser.version
    (sentence,) = parser.parse_words([WORDS])
    assert sentence.tree.heads.tolist() == [4] * 5
    assert sentence.deprels == ["to-the-last"] * 4 + ["ROOT"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", [], "no tree in it"),
        ("1\tein\n\n", [], "no head|no CoNLL-U|without a head"),
        (conllu_text(5), ["--held-out", "5"], "5 trees, and --held-out 5 leaves none"),
        (conllu_text(1).replace("\t5\t", "\tx\t"), [], "no CoNLL-U"),
        (conllu_text(1).replace("\t5\t", "\t9\t"), [], "no CoNLL-U"),
    ],
)
def test_bad_trees_are_refused(trained_pipeline, tmp_path, text, options, message):
    (tmp_path / "own.conllu").write_text(text)
    arguments = [trained_pipeline, tmp_path / "own.conllu", tmp_path / "out", *options]
    with pytest.raises(SystemExit, match=f"error: .*({message})"):
        main([str(word) for word in arguments])
    assert not (tmp_path / "out").exists()


def test_pipelines_that_cannot_be_adapted_are_refused(trained_pipeline, tmp_path):
    (tmp_path / "own.conllu").write_text(conllu_text(5))
    spacy.blank("de").to_disk(tmp_path / "blank")
    (tmp_path / "there").mkdir()
    for model, out, message in (
        (tmp_path / "nowhere", "out", "nowhere"),
        (tmp_path / "blank", "out", "has no parser"),
        (trained_pipeline, "there", "is there already"),
    ):
        with pytest.raises(SystemExit, match=message):
            main([str(model), str(tmp_path / "own.conllu"), str(tmp_path / out)])
    assert not list((tmp_path / "there").iterdir())
