"""``scripts/documents.py``: reviews and a treebank's text as documents of sentences."""

from __future__ import annotations

import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from documents import main


@pytest.fixture
def corpora(tmp_path):
    treebank, imdb = tmp_path / "treebank", tmp_path / "imdb"
    treebank.mkdir()
    imdb.mkdir()
    sentence = "# text = {}\n1\tGo\tgo\tVERB\tVB\t_\t0\troot\t_\t_\n\n"
    for part in ("train", "dev", "test"):
        text = "".join(
            f"# newdoc id = {number}\n"
            + sentence.format(f"{part} {number}")
            + sentence.format("Go.")
            for number in range(2)
        )
        (treebank / f"xx-ud-{part}.conllu").write_text(text)
    for part, count in (("train", 6), ("test", 4)):
        rows = [f"pos\t9\t{n}\tIt is {part} {n}.<br />Good, is it not? Yes!" for n in range(count)]
        (imdb / f"{part}.tsv").write_text("\n".join(rows))
    return ["--imdb", str(imdb), "--treebank", str(treebank)]


def documents_of(path):
    return [document.splitlines() for document in path.read_text().split("\n\n")]


def test_documents_are_sentences_between_blank_lines(corpora, tmp_path):
    main([str(tmp_path / "out"), *corpora, "--reviews", "3"])
    assert documents_of(tmp_path / "out" / "train.en") == [
        ["train 0", "Go."],
        ["train 1", "Go."],
        *([f"It is train {n}.", "Good, is it not?", "Yes!"] for n in (0, 2, 4)),
    ]
    reviews = []
    for split, part in (("valid", "dev"), ("test", "test")):
        first, second, *further_reviews = documents_of(tmp_path / "out" / f"{split}.en")
        assert [first, second] == [[f"{part} 0", "Go."], [f"{part} 1", "Go."]]
        reviews += further_reviews
    # Held-out reviews are of the test file, and each is in one split.
    assert [review[0] for review in reviews] == ["It is test 0.", "It is test 2."]


def test_a_slice_has_so_many_documents(corpora, tmp_path):
    main([str(tmp_path), *corpora, "--slice", "1"])
    for part in ("train", "dev", "test"):
        split = part.replace("dev", "valid")
        assert documents_of(tmp_path / f"{split}.en") == [[f"{part} 0", "Go."]]


def test_other_corpora_are_refused(corpora, tmp_path, refused):
    assert "name --imdb FOLDER, --treebank FOLDER or both" in refused(main, [str(tmp_path)])
    (tmp_path / "imdb" / "train.tsv").write_text("good\n")
    with pytest.raises(SystemExit, match=r"train\.tsv.*expected label, rating, number and text"):
        main([str(tmp_path / "out"), *corpora])
    assert not (tmp_path / "out").exists()
