"""``--parser gold:TEXT``: the gold trees of a text of the synthetic corpus."""

from __future__ import annotations

from pathlib import Path

from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.text import read_lines


class GoldParser(LineParser):
    """Gold trees of the lines of a text, also of split lines; a chain of words for other lines."""

    version = "gold"
    fields = ("words", "heads", "deprels", "tags")

    def __init__(self, text: str | Path):
        lines = list(read_lines(Path(text)))
        gold = ConlluFiles().read(Path(f"{text}.conllu"), iter(lines))
        self._trees = dict(zip(lines, gold, strict=True))
        self._any = next(iter(self._trees.values()))

    def parse(self, lines):
        return [self._trees[line] if line in self._trees else self._chain(line) for line in lines]

    def tokenize(self, lines):
        return self.parse(lines)

    def parse_words(self, sentences):
        return self.parse([" ".join(words) for words in sentences])

    def _chain(self, line):
        sentence = split_at_white_space(line)
        count = len(sentence.words)
        tree = type(self._any.tree)([*range(1, count), count - 1])
        return type(self._any)(
            sentence.words, sentence.space_before, tree, ["dep"] * count, ["X"] * count
        )
