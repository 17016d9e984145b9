"""The table of a parse's fields, used by writer, reader, checks, collater, task and messages.

A new field is a new entry of :data:`FIELDS`, here or in an installed package. It then has files, a label
dictionary, checks and a tensor in the batch. A parser that makes it lists it in its ``fields``. Labels of
words for which ``ParsedSentence`` has no attribute are in its ``features``, by the field's name.
"""

from __future__ import annotations

import logging
from collections import UserDict
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from fairseq_phrase.syntax.sentence import EncodedSentence

logger = logging.getLogger(__name__)

#: The prefix of a field's name in a batch: ``src_heads``.
PREFIX = "src_"


def _first_words(values: np.ndarray, words: int) -> np.ndarray:
    return values[:words]


def _heads_of_first_words(heads: np.ndarray, words: int) -> np.ndarray:
    """Truncate heads. If a word loses its head, its new head is the head's nearest kept ancestor."""
    # Encoders read this table, too, and only the collater truncates sentences.
    from fairseq_phrase.syntax.dependency import DependencyTree

    return DependencyTree(heads).restricted_to(np.arange(len(heads)) < words).heads


def _spans_of_first_words(spans: np.ndarray, words: int) -> np.ndarray:
    """Truncate constituents to the first words; children stay before parents."""
    spans = spans[spans[:, 0] < words]
    spans[:, 1] = np.minimum(spans[:, 1], words)
    return spans[np.lexsort((-spans[:, 0], spans[:, 1]))]


def _edges_of_first_words(edges: np.ndarray, words: int) -> np.ndarray:
    """Keep the edges between the first words."""
    return edges[(edges[:, :2] < words).all(1)]


@dataclass(frozen=True, kw_only=True)
class ParseField:
    """A field: an entry of the table.

    Attributes:
        name: the field's name, in files (``train.de-en.de.heads.bin``) and batches (``src_heads``).
        per: the unit that has one item: subword, word, constituent or edge. An edge of a graph over words
            has three columns: head, dependent, label; a root is its own head.
        meaning: a description of the field, in the plural, for messages.
        made_by: the parser or option that makes it, for messages.
        numbers: a function that reads the items' numbers, without labels, from a sentence (shape
            ``(items,)`` or ``(items, columns)``). It returns None if the sentence lacks them. None
            for a field that has only labels.
        labels: a function that reads the labels, one for each item. They become numbers in the last
            column. If the field has a ``label_file``, the default is the sentence's ``features``, or its
            ``edges``.
        label_file: the dictionary of these labels.
        label_meaning: a description of the labels, in the plural, for messages.
        columns: how many numbers an item has, including its label.
        truncate: a function that keeps the first words of a sentence, for ``--truncate-source``.
            Required if items are constituents.
    """

    name: str
    per: Literal["subword", "word", "constituent", "edge"]
    meaning: str
    made_by: str
    numbers: Callable[[EncodedSentence], np.ndarray | None] | None = None
    labels: Callable[[EncodedSentence], Sequence[str]] | None = None
    label_file: str | None = None
    label_meaning: str = ""
    columns: int = 1
    truncate: Callable[[np.ndarray, int], np.ndarray] = _first_words

    def __post_init__(self) -> None:
        if self.per == "edge":
            if self.numbers or self.labels or self.columns != 3 or self.label_file is None:
                raise ValueError(f"{self.name}: expected 3 columns and a label_file of edges")
            if self.truncate is _first_words:
                object.__setattr__(self, "truncate", _edges_of_first_words)
            return
        if self.label_file is None and (self.labels is not None or self.numbers is None):
            raise ValueError(f"{self.name}: expected numbers, or labels and their label_file")
        if self.is_feature and self.per != "word":
            raise ValueError(f"{self.name}: features are labels of words, not of {self.per}s")
        if self.per == "constituent" and self.truncate is _first_words:
            raise ValueError(f"{self.name}: truncate must define how constituents are truncated")

    @property
    def is_feature(self) -> bool:
        """Whether its labels are among the ``features`` of a sentence."""
        return self.label_file is not None and self.labels is None and self.per != "edge"

    def values(
        self,
        sentence: EncodedSentence,
        number_labels: Callable[[Sequence[str]], np.ndarray] | None = None,
    ) -> np.ndarray | None:
        """Read the field from a sentence.

        Args:
            number_labels: a function that numbers labels; not needed for a field without labels.

        Returns:
            Its items; None if the sentence does not have the field.
            Shape: ``(items,)``, or ``(items, columns)`` with several columns.
        """
        columns = []
        if self.per == "edge":
            edges = sentence.edges.get(self.name)
            if edges is None:
                return None
            assert number_labels is not None
            ends = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2)
            return np.column_stack([ends, number_labels([edge.label for edge in edges])])
        if self.numbers is not None:
            numbers = self.numbers(sentence)
            if numbers is None:
                return None
            columns.append(numbers)
        if self.label_file is not None:
            if self.labels is None:
                labels: Sequence[str] = sentence.features.get(self.name, ())
            else:
                labels = self.labels(sentence)
            if self.per == "word" and len(labels) != sentence.num_words:
                return None
            assert number_labels is not None
            columns.append(number_labels(labels))
        return columns[0] if self.columns == 1 else np.column_stack(columns)

    def shaped(self, values: np.ndarray) -> np.ndarray:
        """Give the stored values of a sentence the shape of :meth:`values`."""
        return values if self.columns == 1 else values.reshape(-1, self.columns)

    def truncated(self, values: np.ndarray, subwords: int, words: int) -> np.ndarray:
        """Keep the values of a sentence's first subwords and words."""
        return values[:subwords] if self.per == "subword" else self.truncate(values, words)


_A_DEPENDENCY_PARSER = "a dependency parser (--parser spacy:MODEL, stanza:LANG or conllu)"
_BUILT_IN = (
    ParseField(
        name="words", per="subword", meaning="words", made_by="any --parser",
        numbers=attrgetter("words")),
    ParseField(
        name="heads", per="word", meaning="dependency trees", made_by=_A_DEPENDENCY_PARSER,
        numbers=attrgetter("heads"), truncate=_heads_of_first_words),
    ParseField(
        name="deprels", per="word", meaning="relations", made_by=_A_DEPENDENCY_PARSER,
        labels=attrgetter("deprels"), label_file="dict.deprel.txt", label_meaning="relations"),
    ParseField(
        name="tags", per="word", meaning="tags",
        made_by="a parser that tags (--parser spacy:MODEL, stanza:LANG, conllu or ptb)",
        labels=attrgetter("tags"), label_file="dict.tag.txt", label_meaning="tags"),
    ParseField(
        name="spans", per="constituent", meaning="constituency trees",
        made_by="a constituency parser (--parser stanza:LANG or ptb), or a dependency parser and "
        "--constituents from-dependencies",
        numbers=attrgetter("spans"), columns=3, truncate=_spans_of_first_words,
        labels=attrgetter("span_labels"), label_file="dict.constituent.txt",
        label_meaning="constituent labels"),
    ParseField(
        name="enhanced", per="edge", meaning="enhanced dependencies", columns=3,
        made_by="--parser conllu:enhanced or penman, or an installed package's parser",
        label_file="dict.enhanced.txt", label_meaning="labels of enhanced dependencies"),
    *(ParseField(
        name=f"factor{number}", per="word", meaning=f"labels factor{number}",
        made_by=f"--parser factored:…,factor{number}, or conllu with xpos, lemma or feats",
        label_file=f"dict.factor{number}.txt", label_meaning="labels") for number in range(1, 4)),
)  # fmt: skip
#: The group of entry points in which installed packages offer parse fields, as :class:`ParseField`.
FIELD_GROUP = "fairseq_phrase.parse_fields"


class _Fields(UserDict[str, ParseField]):
    """The table, with the fields of installed packages, whose modules may import this one first."""

    def __init__(self) -> None:
        pass

    @cached_property
    def data(self) -> dict[str, ParseField]:  # type: ignore[override]
        """The fields, by name."""
        fields = {field.name: field for field in _BUILT_IN}
        for entry in entry_points(group=FIELD_GROUP):
            try:
                field = entry.load()
                if not isinstance(field, ParseField) or field.name in fields:
                    raise TypeError("expected a ParseField with a name of its own")
                fields[field.name] = field
            except Exception as error:
                logger.warning(
                    "the parse field '%s' (%s) of an installed package cannot be used: %s",
                    *(entry.name, entry.value, error),
                )
        return fields


#: The fields of a parse, by name, in the order of the files. ``words``: for each subword the index of its
#: word. ``heads``, ``deprels``, ``tags``: for each word the index of its head (the root is its own head),
#: its relation and its part of speech. ``spans``: for each constituent its first word, one past its last
#: word and its label. ``enhanced``: for each edge its head, its dependent and its label. ``factor1``…:
#: labels of words that are part of the text. Labels are numbers in their dictionaries.
FIELDS: MutableMapping[str, ParseField] = _Fields()
