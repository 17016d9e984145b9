"""``scripts/by_frequent_tag.py``: accuracy by whether a word has its most frequent tag."""

from __future__ import annotations

import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from by_frequent_tag import main


def test_words_are_grouped_by_their_tags_of_training(tmp_path, capsys):
    texts = {
        "train.en": "a b\na b b\n", "train.tag": "X Y\nX X Y\n",
        "test.en": "a b b c\n", "test.tag": "X Y X Y\n",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    labels = tmp_path / "rows" / "k2" / "seed1" / "labels-test.txt"
    labels.parent.mkdir(parents=True)
    labels.write_text("X X X Y\n")
    arguments = [str(tmp_path / "rows"), "--train", str(tmp_path / "train")]
    arguments += ["--test", str(tmp_path / "test")]
    main(arguments)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = [[word for word in line if word != "|"] for line in lines if "%" not in line]
    # Unseen words get the most frequent tag of all, X.
    assert cells[2] == ["most", "frequent", "tag", "-", "50.0", "100.0", "0.0", "0.0"]
    assert cells[3] == ["k2", "1", "75.0", "50.0", "100.0", "100.0"]
    labels.write_text("X X X\n")
    with pytest.raises(SystemExit, match=r"has 3 labels, .*test\.tag 4"):
        main(arguments)
