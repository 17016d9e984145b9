"""The parse of a raw sentence in the format of stored parses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np
from fairseq.data import Dictionary

from fairseq_phrase.batch.syntax_dataset import Parse
from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import FIELDS
from fairseq_phrase.store.labels import as_entry
from fairseq_phrase.syntax.encoding import EncodedSentence


def numbered_parse(
    sentence: EncodedSentence, fields: Collection[str], dictionary_of: Callable[[str], Dictionary]
) -> Parse:
    """Replace the labels of a sentence's parse by numbers, as in a data directory.

    Args:
        sentence: the sentence.
        fields: the fields that the parse must have, names in :data:`fairseq_phrase.store.fields.FIELDS`.
        dictionary_of: a function that returns the data's dictionary of a field's labels.

    Returns:
        The parse, as :class:`fairseq_phrase.store.reader.ParseStore` returns it.

    Raises:
        UserError: the parser did not make one of the fields.
    """
    parse = {}
    for name, row in FIELDS.items():
        if name not in fields:
            continue
        number = None if row.label_file is None else partial(_numbers, dictionary_of(name))
        values = row.values(sentence, number)
        if values is None:
            raise UserError(
                f"this model needs {row.meaning} and the data's parser makes none of raw text: name "
                "one with --source-parser spacy:MODEL or stanza:LANG"
            )
        parse[name] = values
    return parse


def _numbers(dictionary: Dictionary, labels: Sequence[str]) -> np.ndarray:
    """Number labels; those that the dictionary lacks are unknown. Shape: ``(labels,)``, int64."""
    return np.array([dictionary.index(as_entry(label)) for label in labels], dtype=np.int64)
