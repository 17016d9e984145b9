"""M2 files of error corrections to parallel text (scripts/m2.py)."""

from __future__ import annotations

import runpy

import pytest

from tests.support.repository import REPOSITORY

main = runpy.run_path(str(REPOSITORY / "scripts" / "m2.py"))["main"]
M2 = """S This are a a test
A 1 2|||R:VERB|||is||was|||REQUIRED|||-NONE-|||0
A 3 4|||U:DET||||||REQUIRED|||-NONE-|||0
A 5 5|||M:PUNCT|||.|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

S Two insertions
A 1 1|||M|||good|||REQUIRED|||-NONE-|||0
A 1 1|||M|||small|||REQUIRED|||-NONE-|||0

S Right .
"""


def made(folder, text: str, *options: str) -> list[str]:
    (folder / "x.m2").write_text(text)
    main([str(folder / "x.m2"), str(folder / "made" / "x"), *options])
    assert (folder / "made" / "x.src").read_text().splitlines()[-1:] in ([], ["Right ."])
    return (folder / "made" / "x.tgt").read_text().splitlines()


def test_the_edits_of_an_annotator_are_applied(tmp_path):
    assert made(tmp_path, M2) == ["This is a test .", "Two good small insertions", "Right ."]
    unchanged = ["This are a a test", "Two insertions", "Right ."]
    assert made(tmp_path, M2, "--annotator", "1") == unchanged


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "S a b\nA 0 3|||R|||x|||REQUIRED|||-NONE-|||0\n",
            "line 2: the edit is not within a sentence",
        ),
        ("A 0 0|||R|||x|||REQUIRED|||-NONE-|||0\n", "line 1: the edit is not within a sentence"),
        ("S a\nA 0|||R\n", "line 2: expected A START END"),
        ("S a\nplain text\n", "line 2: expected a line that begins with S or A"),
    ],
)
def test_a_malformed_line_is_named(text, message, tmp_path):
    with pytest.raises(SystemExit, match=rf"error: .*x\.m2, {message}"):
        made(tmp_path, text)
