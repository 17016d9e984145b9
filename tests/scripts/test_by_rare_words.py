"""``scripts/by_rare_words.py``: exact match by the rare words of forms."""

from __future__ import annotations

import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from by_rare_words import groups, main

TRAIN = ["f ( a )"] * 3 + ["f ( b )"] * 2 + ["g ( a )"]
QUESTIONS = ["what of a", "what of b", "which of a", "what of c", "what of c and b"]
FORMS = ["f ( a )", "f ( b )", "g ( a )", "f ( c )", "g ( c )"]


@pytest.fixture
def corpus(tmp_path):
    """Write text and the outputs of a row with two seeds, which have 2 and 4 of 5 forms right."""
    texts = {"train.lf": TRAIN, "test.en": QUESTIONS, "test.lf": FORMS}
    for name, lines in texts.items():
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    for seed, right in ((1, {0, 1}), (2, {0, 1, 2, 3})):
        outputs = [form if place in right else "f ( x )" for place, form in enumerate(FORMS)]
        folder = tmp_path / "rows" / "copying" / f"seed{seed}"
        folder.mkdir(parents=True)
        lines = [f"T-{place}\t{form}\n" for place, form in enumerate(FORMS)]
        lines += [f"D-{place}\t-0.5\t{output}\n" for place, output in enumerate(outputs)]
        lines.append("Generate test with beam=5: exact match\n")
        (folder / "generate-test.txt").write_text("".join(lines))
    return tmp_path


def arguments(corpus, *more):
    return [
        str(corpus / "rows"),
        "--train",
        str(corpus / "train"),
        "--test",
        str(corpus / "test"),
        *more,
    ]


@pytest.mark.parametrize(
    ("at_most", "expected"),
    [(1, [2, 2, 1, 0, 1]), (2, [2, 0, 1, 0, 1]), (6, [1, 1, 1, 1, 1])],
)
def test_a_form_belongs_to_the_group_of_its_rare_words(at_most, expected):
    assert groups(TRAIN, QUESTIONS, FORMS, at_most).tolist() == expected


def test_each_group_has_its_own_mean_over_the_seeds(corpus, capsys):
    main(arguments(corpus, "--rows", "copying", "--at-most", "1"))
    heading, _, line = capsys.readouterr().out.strip().split("\n")
    names = [cell.strip() for cell in heading.strip("|").split("|")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert dict(zip(names, cells, strict=True)) == {
        "rare words of the form:": "copying",
        "seeds": "2",
        "all in the question (1)": "50.00 ± 70.71",
        "some not in the question (2)": "25.00 ± 35.36",
        "none (2)": "100.00 ± 0.00",
    }


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rows", "copying,other"], "no runs of other in"),
        (["--target", "xx"], "test.xx"),
        (["--subset", "valid"], "generate-valid.txt"),
    ],
)
def test_what_is_missing_is_named(corpus, more, message):
    with pytest.raises(SystemExit, match=message):
        main(arguments(corpus, *more))


def test_outputs_of_another_test_set_are_refused(corpus):
    for name in ("test.en", "test.lf"):
        with open(corpus / name, "a") as stream:
            stream.write("one more\n")
    with pytest.raises(SystemExit, match="has 5 translations and the reference 6 lines"):
        main(arguments(corpus))
    (corpus / "test.en").write_text("which of them\n" * 5)
    (corpus / "test.lf").write_text("answer ( them )\n" * 5)
    with pytest.raises(SystemExit, match="is the translation of another test set"):
        main(arguments(corpus))


def test_questions_and_forms_are_of_one_number(corpus):
    (corpus / "test.en").write_text("one\n")
    with pytest.raises(SystemExit, match="1 questions and 5 forms"):
        main(arguments(corpus))
