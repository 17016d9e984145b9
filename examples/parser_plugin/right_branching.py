"""A user-defined parser: each word depends on the word before it (the right-branching baseline)."""

from fairseq_phrase.parsers import LineParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence


class RightBranching(LineParser):
    version = "right branching 1.0"
    fields = ("words", "heads", "deprels")

    def parse(self, lines):
        return [self.parsed(line.split()) for line in lines]

    def parsed(self, words):
        tree = DependencyTree([max(word - 1, 0) for word in range(len(words))])
        relations = ["dep"] * len(words)
        return ParsedSentence(words, [True] * len(words), tree=tree, deprels=relations)
