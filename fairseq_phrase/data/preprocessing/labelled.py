"""Labels as the second side of a corpus: one label for each word, or one for each line.

Text and labels are parallel files, like source and target of a translation. fairseq binarizes the
labels with a separate dictionary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.store.dictionaries import warn_of_unknown_labels
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.subwords.segmenters import is_mistakable
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import read_lines


def check_labels(text: Path, labels: Path, per: str) -> None:
    """Check that every word, or every line, has one label.

    Args:
        text: the text; words are separated by white space.
        per: one of :data:`fairseq_phrase.option_values.LABELLED`.

    Raises:
        UserError: a line has no words, has more or fewer labels than needed, or has a label that fairseq
            would misread.
    """
    # Files with different numbers of lines have a separate message.
    for number, (line, label_line) in enumerate(
        zip(read_lines(text), read_lines(labels), strict=False), start=1
    ):
        words, line_labels = line.split(), label_line.split()
        if not words:
            raise UserError(
                f"{location(text, number)} is empty, and a label needs text: remove this line here and "
                f"in {labels}"
            )
        if per == "word" and len(line_labels) != len(words):
            raise UserError(
                f"{location(text, number)} has {len(words)} words, and {location(labels, number)} has "
                f"{len(line_labels)} labels: --labels word needs one label for each word, with white "
                "space between words and between labels"
            )
        if per == "sentence" and len(line_labels) != 1:
            raise UserError(
                f"{location(labels, number)} has {len(line_labels)} labels: --labels sentence needs one "
                "label without white space on each line"
            )
        for label in line_labels:
            if is_mistakable(label):
                raise UserError(
                    f"{location(labels, number)}: the label {label} is a special symbol of fairseq: "
                    "rename it"
                )


def leave_out_tags(pipeline: ParsingPipeline, language: str) -> None:
    """Leave tags out of the parses if their dictionary has the same name as the label side's.

    Args:
        pipeline: the source's parser; its ``fields`` are changed.
        language: the label side's suffix: its dictionary is ``dict.LANGUAGE.txt``.
    """
    if with_labels(["tags"])["tags"] == f"dict.{language}.txt":
        pipeline.fields = tuple(field for field in pipeline.fields if field != "tags")


def refuse_names_of_labels(fields: Collection[str], languages: Iterable[str]) -> None:
    """Check that the dictionaries of text and of the parses' labels have different names.

    Args:
        fields: the fields of the parses.
        languages: the suffixes of the text: its dictionaries are ``dict.LANGUAGE.txt``.

    Raises:
        UserError: the dictionary of a field has the name of a text's dictionary.
    """
    for language in languages:
        for name, file in with_labels(fields).items():
            if file == f"dict.{language}.txt":
                raise UserError(
                    f"the language {language}: {file} is the dictionary of the parses' {name}: give the "
                    "files of this language another suffix"
                )


def warn_of_unknown(split: Split, dictionary: Dictionary) -> None:
    """Warn about a split's labels that the training data lack."""
    labels = split.subwords[split.sides[1].language]
    unknown = Counter({label: n for label, n in labels.items() if label not in dictionary})
    if unknown:
        warn_of_unknown_labels(split.name, unknown.total(), labels.total(), unknown)
