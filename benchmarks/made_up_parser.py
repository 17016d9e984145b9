"""A parser that costs no time: random trees, which depend on the sentence alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fairseq_phrase.parsers import LineParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence


class MadeUpParser(LineParser):
    """Words at white space; each head is an earlier word, with one of 20 relations and 9 tags."""

    version = "made-up trees 1"
    fields = ("words", "heads", "deprels", "tags")

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Make a tree for each line."""
        return [self._parsed(line.split()) for line in lines]

    def _parsed(self, words: list[str]) -> ParsedSentence:
        rng = random.Random(" ".join(words))
        heads = [int(rng.random() * number) for number in range(len(words))]
        return ParsedSentence(
            words, [True] * len(words), tree=DependencyTree(heads),
            deprels=[f"r{head % 20}" for head in heads], tags=[f"T{head % 9}" for head in heads],
        )  # fmt: skip
