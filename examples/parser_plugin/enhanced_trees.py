"""A parser of a graph: spaCy's trees with additional edges, as in enhanced Universal Dependencies."""

from dataclasses import replace

from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence


class EnhancedTrees(SpacyParser):
    """``--parser enhanced-trees:MODEL``, where MODEL is a pipeline's name or folder."""

    fields = (*SpacyParser.fields, "enhanced")

    def parse(self, lines):
        return [with_edges(parse) for parse in super().parse(lines)]

    def parse_words(self, sentences):
        return [with_edges(parse) for parse in super().parse_words(sentences)]


def with_edges(parse):
    """Add the graph: a conjunct also has its first conjunct's head, and prepositions are skipped."""
    if not isinstance(parse, ParsedSentence):
        return parse
    heads, labels = parse.tree.heads.tolist(), parse.deprels
    edges = set()
    for word, (head, label) in enumerate(zip(heads, labels, strict=True)):
        edges.add(Edge(head, word, label))
        above = heads[head]
        if above != head and label == "conj":
            edges.add(Edge(above, word, labels[head]))
        if above != head and labels[head] == "prep":
            edges.add(Edge(above, word, f"prep>{label}"))
    return replace(parse, edges={"enhanced": sorted(edges)})
