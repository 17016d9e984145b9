"""Copying and subsampling letters: the toy tasks."""

from __future__ import annotations

import pytest

from fairseq_phrase.cli.synthetic import main
from fairseq_phrase.synthetic.toy_tasks import KEPT, toy_pairs

SIZES = ["--train", "40", "--valid", "5", "--test", "20"]


def lines(path):
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", ["copy", "subsample"])
def test_targets_are_the_letters_that_stay(tmp_path, kind, capsys):
    main(["--kind", kind, "--out", str(tmp_path), "--max-words", "6", *SIZES])
    for split, size in (("train", 40), ("valid", 5), ("test", 20)):
        sources, targets = lines(tmp_path / f"{split}.de"), lines(tmp_path / f"{split}.en")
        assert len(sources) == len(targets) == size
        for source, target in zip(sources, targets, strict=True):
            assert target == [x for x in source if kind == "copy" or x in KEPT] != []
            assert len(set(source)) == len(source)
            is_longer = kind == "copy" and split == "test"
            assert len(source) in ((7, 8) if is_longer else range(1, 7))
    assert "train: 40 sentence pairs" in capsys.readouterr().out


def test_sentences_are_put_in_the_order_of_their_hours(tmp_path):
    main(["--kind", "order", "--out", str(tmp_path), "--max-words", "6", *SIZES])
    for split, size in (("train", 40), ("test", 20)):
        sources, targets = lines(tmp_path / f"{split}.de"), lines(tmp_path / f"{split}.en")
        assert len(sources) == len(targets) == size
        for source, target in zip(sources, targets, strict=True):
            hours = dict(zip(source[::4], map(int, source[2::4]), strict=True))
            assert len(source) == 4 * len(target) == 4 * len(set(hours.values()))
            assert [hours[letter] for letter in target] == sorted(hours.values())


def test_the_same_seed_draws_the_same_pairs():
    assert list(toy_pairs("copy", 9, 1, 1, 9)) == list(toy_pairs("copy", 9, 1, 1, 9))
    assert list(toy_pairs("copy", 9, 1, 1, 9)) != list(toy_pairs("copy", 9, 2, 1, 9))


def test_sequences_longer_than_the_alphabet_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--kind", "copy", "--out", str(tmp_path), "--max-words", "25"])
    assert "--max-words 25: sequences of distinct letters have 1 to 24" in capsys.readouterr().err


def test_a_corpus_is_not_overwritten(tmp_path, capsys):
    main(["--kind", "copy", "--out", str(tmp_path), *SIZES])
    with pytest.raises(SystemExit):
        main(["--kind", "copy", "--out", str(tmp_path), *SIZES])
    assert "holds a corpus already" in capsys.readouterr().err
