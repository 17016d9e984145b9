"""Graphs from files in Penman notation next to the text, such as aligned AMRs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.parsers.tree_files import MisfitError, Tree, TreeFiles, form_in_text
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines


class PenmanFiles(TreeFiles):
    """``PREF.LANG.penman`` next to the text ``PREF.LANG``: a graph for each line, over its words.

    The words are in the comment ``# ::tok``. A concept belongs to the first word that it is aligned
    with (``want-01~e.4``), and a concept without an alignment to none. An edge between two aligned
    concepts becomes an edge between their words, in the field ``enhanced``; inverted roles are
    turned round. An aligned constant (``:polarity -~e.3``) is a node, too. The other edges, and edges
    within a word, are lost and counted.

    Raises:
        UserError: the library that reads the notation is missing.
    """

    suffix = "penman"
    version = "Penman"
    fields: tuple[str, ...] = ("words", "enhanced")

    def __init__(self) -> None:
        with optional_packages("--parser penman needs Penman", "penman"):
            import penman  # noqa: F401

    def trees(self, path: Path) -> Iterator[Tree]:
        """Yield the graphs of a file, which blank lines separate."""
        first = 0
        block: list[str] = []
        for number, line in enumerate(itertools.chain(read_lines(path), [""]), start=1):
            if line.strip():
                first = first if block else number
                block.append(line)
            elif block:
                # A comment about the file has a paragraph of its own.
                if not all(part.startswith("#") for part in block):
                    yield _Graph(first, "\n".join(block))
                block = []


class _Graph:
    """A graph of a file.

    Attributes:
        line: its first line.
    """

    def __init__(self, line: int, text: str) -> None:
        self.line, self._text = line, text

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Return the edges between the text's words."""
        from penman import decode
        from penman.exceptions import PenmanError

        try:
            graph = decode(self._text)
        except PenmanError as error:
            message = " ".join(str(error).split())
            raise MisfitError(self.line, f"not Penman notation: {message}") from None
        words, space_before = [], []
        for number, word in enumerate(self._tokens(graph), start=1):
            words.append(join_white_space(form_in_text(reader, number, word, self.line)) or "_")
            space_before.append(reader.space_before)
        edges, lost = self._edges(graph, len(words))
        return ParsedSentence(words, space_before, edges={"enhanced": edges}, lost_edges=lost)

    def _tokens(self, graph: Any) -> list[str]:
        words: list[str] = graph.metadata.get("tok", "").split()
        if not words:
            raise MisfitError(self.line, "the graph has no words in a comment # ::tok")
        return words

    def _edges(self, graph: Any, count: int) -> tuple[list[Edge], int]:
        """Return the edges between words, and how many are lost."""
        from penman import surface

        aligned = {triple: at.indices[0] for triple, at in surface.alignments(graph).items()}
        if not aligned:
            raise MisfitError(self.line, "no concept is aligned with a word, as in want-01~e.4")
        if (last := max(aligned.values())) >= count:
            raise MisfitError(
                self.line,
                f"a concept is aligned with word {last + 1}, and # ::tok has {count} words",
            )
        words = {triple[0]: aligned.get(triple) for triple in graph.instances()}
        ends = [(words[edge.source], words[edge.target], edge.role) for edge in graph.edges()]
        ends += [
            (words.get(triple.source), word, triple.role)
            for triple in graph.attributes()
            if (word := aligned.get(triple)) is not None
        ]
        edges = [
            Edge(head, dependent, role.removeprefix(":"))
            for head, dependent, role in ends
            if head is not None and dependent is not None and head != dependent
        ]
        lost = len(ends) - len(edges)
        if (root := words[graph.top]) is not None:
            edges.append(Edge(root, root, "root"))
        return sorted(set(edges)), lost
