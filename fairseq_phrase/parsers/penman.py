"""Graphs from files in Penman notation next to the text, such as aligned AMRs."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.parsers.tree_files import MisfitError, Tree, TreeFiles, form_in_text
from fairseq_phrase.syntax.alignment import TextReader
from fairseq_phrase.syntax.sentence import Edge, ParsedSentence, join_white_space
from fairseq_phrase.text import read_json, read_lines

_STRING = re.compile(r'"(?:\\.|[^"\\])*"')
# A word and a node, numbered from 1 among all children; the last letter stands for the node's role.
_ISI = re.compile(r"([0-9]+)-(1(?:\.[0-9]+)*)(?:\.r)?")
# Words from one to before another, and nodes, numbered from 0; repeated variables have no number.
_JAMR = re.compile(r"\*?([0-9]+)-[0-9]+\|(0(?:\.[0-9]+)*(?:\+0(?:\.[0-9]+)*)*)")


class PenmanFiles(TreeFiles):
    """``PREF.LANG.penman`` next to the text ``PREF.LANG``: a graph for each line, over its words.

    The words are in the comment ``# ::tok``, or ``# ::tokens`` as a JSON list. A concept belongs to
    the first word that it is aligned with (``want-01~e.4``), and a concept without an alignment to
    none. The alignments may also be in the comment ``# ::alignments``, as ISI (``4-1.2``) or JAMR
    (``4-5|0.1``) write them. An edge between two aligned concepts becomes an edge between their
    words, in the field ``enhanced``; inverted roles are turned round. An aligned constant
    (``:polarity -~e.3``) is a node, too. The other edges, and edges within a word, are lost and
    counted.

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
        """Yield the graphs of a file: each ends at a blank line, or before the next one's comments."""
        first = depth = 0
        block: list[str] = []
        is_graph = False  # a comment about the file has a paragraph without a graph
        for number, line in enumerate(itertools.chain(read_lines(path), [""]), start=1):
            begins = is_graph and depth <= 0 and line[:1] in ("#", "(")
            if begins or not line.strip():
                if is_graph:
                    yield _Graph(first, "\n".join(block))
                block, depth, is_graph = [], 0, False
            if line.strip():
                first = first if block else number
                block.append(line)
                if not line.startswith("#"):
                    is_graph, code = True, _STRING.sub("", line)
                    depth += code.count("(") - code.count(")")


class _Content(NamedTuple):
    """What a graph says of its words.

    Attributes:
        edges: between words, from 0.
        lost: the number of lost edges.
    """

    words: list[str]
    edges: list[Edge]
    lost: int


class _Graph:
    """A graph of a file.

    Attributes:
        line: its first line.
    """

    def __init__(self, line: int, text: str) -> None:
        self.line, self._text = line, text

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Return the edges between the text's words."""
        content = self._content
        if isinstance(content, MisfitError):
            raise content.with_traceback(None)
        words, space_before = [], []
        for number, word in enumerate(content.words, start=1):
            words.append(join_white_space(form_in_text(reader, number, word, self.line)) or "_")
            space_before.append(reader.space_before)
        return ParsedSentence(
            words, space_before, edges={"enhanced": content.edges}, lost_edges=content.lost
        )

    @cached_property
    def _content(self) -> _Content | MisfitError:
        from penman import PenmanError, interpret, parse, surface

        try:
            tree = parse(self._text)
            words = self._words(tree.metadata)
            graph = interpret(tree)
            if not surface.alignments(graph):
                tree.node = self._aligned(tree)
                graph = interpret(tree)
            return _Content(words, *self._edges(graph, len(words)))
        except (PenmanError, RecursionError) as error:
            message = " ".join(str(error).split())
            return MisfitError(self.line, f"not Penman notation: {message}")
        except MisfitError as error:
            return error

    def _words(self, metadata: Mapping[str, str]) -> list[str]:
        words = metadata.get("tok", "").split()
        if not words and "tokens" in metadata:
            try:
                words = [str(word) for word in read_json(metadata["tokens"])]
            except (ValueError, TypeError):
                words = metadata["tokens"].split()
        if not words:
            raise MisfitError(
                self.line, "the graph has no words in a comment # ::tok or # ::tokens"
            )
        return words

    def _aligned(self, tree: Any) -> Any:
        """Return the tree's top with the alignments of its comments, written as in ``want-01~e.4``."""
        words = self._alignments(tree.metadata)
        variables = {variable for variable, _ in tree.nodes()}
        missing = set(words)

        def write(target: Any, address: str) -> Any:
            if not isinstance(target, tuple):
                missing.discard(address)
                return f"{target}~e.{words[address]}" if address in words else target
            branches, number = [], int(address[0])
            for role, child in target[1]:
                if role == "/":
                    branches.append((role, write(child, address)))
                elif address[0] == "0" and isinstance(child, str) and child in variables:
                    # JAMR does not number a repeated variable.
                    branches.append((role, child))
                else:
                    branches.append((role, write(child, f"{address}.{number}")))
                    number += 1
            return target[0], branches

        top = write(tree.node, min(words)[0])
        if missing:
            raise MisfitError(
                self.line, f"# ::alignments has {min(missing)}, which is not in the graph"
            )
        return top

    def _alignments(self, metadata: Mapping[str, str]) -> dict[str, int]:
        """Return the first word, from 0, of each address in ``# ::alignments``."""
        words: dict[str, int] = {}
        for part in metadata.get("alignments", "").split():
            if (match := _ISI.fullmatch(part) or _JAMR.fullmatch(part)) is None:
                raise MisfitError(
                    self.line,
                    f"# ::alignments has '{part}', expected ISI's 4-1.2 or JAMR's 4-5|0.1",
                )
            # A role or a coreference aligns no concept.
            for address in match[2].split("+") if part[-1] != "r" and part[0] != "*" else ():
                words[address] = min(int(match[1]), words.get(address, sys.maxsize))
        if words and len({address[0] for address in words}) == 1:
            return words
        advice = "align the file with amrlib's FAA_Aligner"
        if any(key.startswith("node") for key in metadata):
            advice = "# ::node is not read: let transition-amr-parser write it without --no-isi"
        raise MisfitError(
            self.line,
            f"no concept is aligned with a word, as in want-01~e.4 or # ::alignments: {advice}",
        )

    def _edges(self, graph: Any, count: int) -> tuple[list[Edge], int]:
        """Return the edges between words, and how many are lost."""
        from penman import surface

        aligned = {triple: at.indices[0] for triple, at in surface.alignments(graph).items()}
        if (last := max(aligned.values())) >= count:
            raise MisfitError(
                self.line,
                f"a concept is aligned with word {last + 1}, and the graph has {count} words",
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
