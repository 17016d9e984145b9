"""Dependency trees, and enhanced dependencies, from CoNLL-U files next to the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.parsers.other_formats import refuse_other_columns
from fairseq_phrase.parsers.tree_files import (
    MisfitError,
    Tree,
    TreeFiles,
    form_in_text,
)
from fairseq_phrase.syntax.alignment import TextReader, merged_into_tokens, words_of_token
from fairseq_phrase.syntax.brackets import BYTE_ORDER_MARK
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Edge, Expansion, ParsedSentence, join_white_space
from fairseq_phrase.text import read_lines

_COLUMNS = 10
# Nine digits are more than any sentence has words; int() refuses thousands of them.
_RANGE = re.compile(r"([1-9][0-9]{0,8})-([1-9][0-9]{0,8})", re.ASCII)
_EMPTY_NODE = re.compile(r"[0-9]+\.[1-9][0-9]*", re.ASCII)
_HEAD = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
_MOST_PATHS = 100_000
#: The columns of labels for ``--source-factors``, from 0.
_LABELS = {"lemma": 2, "xpos": 4, "feats": 5}
_Row = tuple[int, list[str]]  # number of the line, and its columns


class ConlluFiles(TreeFiles):
    """``PREF.LANG.conllu`` next to the text ``PREF.LANG``: one CoNLL-U sentence for each line.

    The words are CoNLL-U's syntactic words (German ``zum`` is ``zu dem``), over which its trees are
    defined; or the surface tokens, as in the text. A surface token of several words replaces the highest
    of them in the tree (the first, if several are highest). It has that word's head, relation and tag,
    and the dependents of all its words.

    The ninth column has the edges of a graph, the field ``enhanced``. *Decision*: a path through empty
    nodes (``5.1``) becomes one edge with the labels of the path, ``conj>nsubj``, as in UD's own tools.
    Lost are edges between the words of one surface token, and paths that only form a cycle or end in an
    empty node without a head.

    A line has one sentence or several. A line without text has none.

    Args:
        options: ``words`` (syntactic words, the default) or ``surface``; ``enhanced`` to also read the
            ninth column; ``xpos``, ``lemma`` and ``feats``, label columns that become ``factor1``,
            ``factor2`` and ``factor3`` in the order given. Options are separated by commas.

    Raises:
        UserError: an option is unknown, or the library that reads the ninth column is missing.
    """

    suffix = "conllu"
    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags")

    def __init__(self, options: str = "words") -> None:
        names = options.split(",")
        parts = set(names)
        valid_parts = {"words", "surface", "enhanced", *_LABELS}
        if not parts <= valid_parts or {"words", "surface"} <= parts or len(names) > len(parts):
            raise UserError(
                f"--parser conllu:{options}: expected conllu:words or conllu:surface, and ,enhanced and "
                "columns of labels, ,xpos ,lemma ,feats. The files are those beside the text, as "
                "train.de.conllu of train.de"
            )
        labels = [name for name in names if name in _LABELS]
        self._labels = {
            f"factor{number}": _LABELS[name] for number, name in enumerate(labels, start=1)
        }
        self.fields = (*self.fields, *self._labels)
        self._surface = "surface" in parts
        self._read_heads: Any = None
        if "enhanced" in parts:
            with optional_packages(f"--parser conllu:{options} needs conllu", "conllu"):
                from conllu.parser import parse_paired_list_value
            self._read_heads = parse_paired_list_value
            self.fields = (*self.fields, "enhanced")
        # The names of the factors do not state which columns they are.
        words = ["surface tokens"] if self._surface else []
        self.version = ", ".join(["CoNLL-U", *words, *labels])
        self.words_spell_line = self._surface
        if not self._surface:
            self.word_advice = (
                "; if rows such as 3-4 make two words of one, give --parser conllu:surface; if the text "
                "is not tokenized, leave out --source-tokenized"
            )

    def trees(self, path: Path) -> Iterator[Tree]:
        """Yield the sentences of a file."""
        for rows in _blocks(path, read_lines(path)):
            yield _Sentence(rows, self._surface, self._read_heads, self._labels)


def sentence_of(text: str) -> ParsedSentence:
    """Read the CoNLL-U of one text, of one sentence or several, over its surface tokens.

    Raises:
        UserError: the text is not CoNLL-U.
    """
    sentences = []
    for rows in _blocks("CoNLL-U", text.splitlines()):
        try:
            sentence = _Sentence(rows, True, None, {})
            sentences.append(sentence.spelled(TextReader(_spelled_text(rows))))
        except (MisfitError, ValueError) as error:
            raise UserError(f"CoNLL-U of a text: {error}") from None
    if not sentences:
        raise UserError(f"{text[:60]!r} is not CoNLL-U: expected rows of {_COLUMNS} columns")
    return ParsedSentence.joined(sentences)


def _spelled_text(rows: list[_Row]) -> str:
    """Join the surface tokens of a sentence, by ``SpaceAfter=No``."""
    text, last = "", 0
    for _, columns in rows:
        several = _RANGE.fullmatch(columns[0])
        if several is None and (not columns[0].isdigit() or int(columns[0]) <= last):
            continue  # a word of the token before it, or an empty node
        last = int(several[2]) if several else int(columns[0])
        text += columns[1] + ("" if "SpaceAfter=No" in columns[-1].split("|") else " ")
    return text


def _blocks(path: Path | str, lines: Iterable[str]) -> Iterator[list[_Row]]:
    """Yield each sentence's lines, without comments: their numbers and columns."""
    block: list[_Row] = []
    for number, line in enumerate(lines, start=1):
        line = line.removeprefix(BYTE_ORDER_MARK)
        refuse_other_columns(Path(path), number, line)
        if not line.strip():
            if block:
                yield block
            block = []
        elif not line.startswith("#"):
            block.append((number, line.split("\t")))
    if block:
        yield block


@dataclass
class _Token:
    """A surface token: a word, or several of them (German ``zum`` is ``zu dem``).

    Attributes:
        first: its first word, from 1.
    """

    form: str
    first: int
    last: int
    line: int


class _Sentence:
    """The content of a sentence's rows."""

    def __init__(
        self, rows: list[_Row], surface: bool, read_heads: Any, labels: Mapping[str, int]
    ) -> None:
        self._labels = labels
        self._features: dict[str, list[str]] = {name: [] for name in labels}
        self.line = rows[0][0]
        self._surface, self._read_heads = surface, read_heads
        # The line and the ninth column of each word and empty node.
        self._graph: dict[str, tuple[int, str]] = {}
        self._flaw: MisfitError | None = None
        self._tokens: list[_Token] = []
        self._lines: list[int] = []
        self._forms: list[str] = []
        self._heads: list[str] = []
        self._deprels: list[str] = []
        self._tags: list[str] = []
        try:
            self._read(rows)
        except MisfitError as error:
            self._flaw = error

    def _read(self, rows: list[_Row]) -> None:
        for line, columns in rows:
            if len(columns) != _COLUMNS:
                raise MisfitError(
                    line,
                    f"expected {_COLUMNS} columns with tabs between them, found {len(columns)}",
                )
            self._add(line, columns)
        if self._tokens and (token := self._tokens[-1]).last > len(self._forms):
            raise MisfitError(
                rows[-1][0], f"word {len(self._forms) + 1} of {token.first}-{token.last} is missing"
            )

    def _add(self, line: int, columns: list[str]) -> None:
        identifier, form, _, upos, _, _, head, deprel, heads, _ = columns
        is_repeated = identifier in self._graph
        self._graph[identifier] = (line, heads)
        if _EMPTY_NODE.fullmatch(identifier):
            if is_repeated:
                raise MisfitError(line, f"the empty node {identifier} is there a second time")
            return  # an empty node, which only the enhanced graph has
        if not form:
            raise MisfitError(line, f"{identifier[:20]} has no word in its second column")
        word = len(self._forms) + 1
        covered = self._tokens[-1].last if self._tokens else 0  # number of words in tokens
        if (several := _RANGE.fullmatch(identifier)) is not None:
            first, last = int(several[1]), int(several[2])
            if first != word or word <= covered or last < first:
                raise MisfitError(line, f"{identifier} is not where its words are")
            self._tokens.append(_Token(form, first, last, line))
            return
        if identifier != str(word):
            raise MisfitError(line, f"expected word {word} next, found '{identifier}'")
        if word > covered:
            self._tokens.append(_Token(form, word, word, line))
        self._lines.append(line)
        self._forms.append(join_white_space(form) or "_")
        self._heads.append(head)
        self._deprels.append(join_white_space(deprel) or "dep")
        self._tags.append(join_white_space(upos) or "X")
        for name, column in self._labels.items():
            self._features[name].append(join_white_space(columns[column]) or "_")

    def spelled(self, reader: TextReader) -> ParsedSentence:
        """Return the sentence with the text's forms of its words."""
        if self._flaw is not None:
            raise self._flaw.with_traceback(None)
        forms, spaces = [], []
        for token in self._tokens:
            form = form_in_text(reader, token.first, token.form.strip(), token.line)
            forms.append(join_white_space(form) or "_")
            spaces.append(reader.space_before)
        sentence = self._over_words(forms, spaces)
        if not self._surface:
            return sentence
        sizes = [token.last - token.first + 1 for token in self._tokens]
        return merged_into_tokens(sentence, sizes, forms, spaces)

    def _over_words(self, forms: list[str], spaces: list[bool]) -> ParsedSentence:
        words: list[str] = []
        space_before: list[bool] = []
        expansions: list[Expansion] = []
        for token, form, space in zip(self._tokens, forms, spaces, strict=True):
            several = self._forms[token.first - 1 : token.last]
            words_of_row, expanded = words_of_token(several, token.form.strip(), form)
            words += words_of_row
            expansions += expanded
            # The words of one surface token have no space between them, but they are separate words.
            space_before += [space, *[True] * (len(several) - 1)]
        edges, lost = self._edges()
        return ParsedSentence(
            words, space_before, tree=self._tree(), deprels=self._deprels, tags=self._tags,
            features=self._features, edges=edges, lost_edges=lost, expansions=expansions,
        )  # fmt: skip

    def _edges(self) -> tuple[dict[str, list[Edge]], int]:
        """Read the ninth column, without empty nodes, if the option asks for it.

        Returns:
            The graph, and the number of lost paths: they form a cycle or end in an empty node without
            a head.
        """
        if self._read_heads is None:
            return {}, 0
        above = {node: self._heads_of(node) for node in self._graph if "-" not in node}
        edges, lost, steps = set(), 0, 0
        for word in range(len(self._forms)):
            # The node at the upper end of each path, its labels, and the empty nodes on it.
            agenda: list[tuple[str, str, tuple[str, ...]]] = [(str(word + 1), "", ())]
            while agenda:
                node, labels, passed = agenda.pop()
                steps += 1
                lost += bool(passed) and not above[node]
                for head, label in above[node]:
                    path = f"{label}>{labels}" if labels else label
                    if "." not in head:
                        edges.add(Edge(int(head) - 1 if head != "0" else word, word, path))
                    elif head in passed:
                        lost += 1
                    else:
                        agenda.append((head, path, (*passed, head)))
                if steps > _MOST_PATHS:
                    raise MisfitError(
                        self.line, f"the empty nodes make more than {_MOST_PATHS} paths"
                    )
        if not edges:
            raise MisfitError(self.line, "the ninth column has no enhanced dependencies")
        return {"enhanced": sorted(edges)}, lost

    def _heads_of(self, node: str) -> list[tuple[str, str]]:
        """Read the heads and labels of a word or an empty node."""
        line, column = self._graph[node]
        pairs = self._read_heads(column)
        if isinstance(pairs, str):
            raise MisfitError(
                line, f"expected HEAD:LABEL|… in the ninth column of {node}, found '{column[:60]}'"
            )
        heads = []
        for label, head in pairs or ():
            name = str(head) if isinstance(head, int) else "".join(map(str, head))
            if name != "0" and (name not in self._graph or "-" in name):
                count = len(self._forms)
                raise MisfitError(
                    line,
                    f"the ninth column of {node} has an edge from {name}, which is not there: the "
                    f"sentence has {count} words",
                )
            heads.append((name, join_white_space(label)))
        return heads

    def _tree(self) -> DependencyTree:
        indices = []
        for word, (line, head) in enumerate(zip(self._lines, self._heads, strict=True), start=1):
            if not _HEAD.fullmatch(head):
                raise MisfitError(line, f"word {word} has no head but '{head[:60]}'")
            if int(head) > len(self._heads):
                raise MisfitError(
                    line,
                    f"word {word} has head {head}, and the sentence has {len(self._heads)} words",
                )
            if int(head) == word:
                raise MisfitError(line, f"word {word} is its own head; a root has head 0")
            indices.append((int(head) or word) - 1)
        try:
            return DependencyTree(indices)
        except ValueError as error:
            raise MisfitError(self._lines[0], str(error)) from None
