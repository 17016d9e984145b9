"""The converter of CoNLL-2012 that a message names."""

import re
import subprocess

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.ptb import BracketFiles

SENTENCE = [
    "a/b_0000   0   0   On      IN   (TOP(PP*   -   -   -   A   *   -",
    "a/b_0000   0   1   -LRB-   -LRB-   (NP*    -   -   -   A   *   -",
    "a/b_0000   0   2   R&D     NN        *)))  -   -   -   A   *   -",
    "",
]


def test_the_command_for_conll_2012_makes_brackets_that_are_read(tmp_path):
    source = tmp_path / "train.en.ptb"
    lines = ["#begin document (a/b_0000); part 000", *SENTENCE, *SENTENCE]
    source.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError) as error:
        list(BracketFiles().read(source, iter(["Ja"])))
    command = re.search(r"awk '.*' .* >OUT", str(error.value))[0]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    source.write_text((tmp_path / "OUT").read_text())
    first, second = BracketFiles().read(source, iter(["On (R&D", "on ( R&D"]))
    assert (first.words, first.tags) == (["On", "(", "R&D"], ["IN", "-LRB-", "NN"])
    assert first.constituents.labels == second.constituents.labels == ["NP", "PP", "TOP"]
