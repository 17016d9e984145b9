"""fairseq's dictionaries and binarized text, made by fairseq itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from fairseq.binarizer import BinarizeSummary, FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary

from fairseq_phrase.data.preprocessing.copied_words import add_slots
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.store.dictionaries import load_dictionary


def make_dictionaries(
    options: Options,
    subwords: dict[str, Counter[str]],
    vocabularies: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, Dictionary]:
    """Load or build both languages' dictionaries.

    Args:
        subwords: the number of each subword in the training text, by language; empty without a
            training set. All dictionaries must then be loaded.
        vocabularies: by language, the entries of a dictionary that are known without a text.
    """
    # Text of one language has one dictionary.
    given = dict(zip(options.languages, (options.srcdict, options.tgtdict), strict=False))
    made = {language: load_dictionary(path) for language, path in given.items() if path is not None}
    for dictionary in made.values():
        for token in options.protected:
            if token not in dictionary:
                dictionary.add_symbol(token)  # at the end, as fairseq's mBART adds language tags
    missing = [language for language in options.languages if language not in made]
    if options.joined_dictionary and made:
        made.update(dict.fromkeys(missing, next(iter(made.values()))))
        missing = []
    groups = [missing] if options.joined_dictionary and missing else [[name] for name in missing]
    for group in groups:
        dictionary = Dictionary()
        entries = (vocabularies or {}).get(group[0], ())
        are_labels = options.labels is not None and group == [options.target_lang]
        for entry in (*entries, *(() if are_labels else options.protected)):
            # fairseq sorts by frequency. An entry that the training text lacks also gets a count.
            dictionary.add_symbol(entry, max(1, options.min_count))
        for language in group:
            for subword, count in subwords[language].items():
                dictionary.add_symbol(subword, count)
        add_slots(dictionary, options)
        if are_labels:
            # fairseq pads dictionaries with made-up words, which would be labels here.
            dictionary.finalize(padding_factor=1)
        else:
            dictionary.finalize(threshold=options.min_count, padding_factor=8)
        made.update(dict.fromkeys(group, dictionary))
    return made


# fairseq's summary counts lines with unknown subwords here.
_LINES = "lines"


class _SubwordBinarizer(VocabularyDatasetBinarizer):
    """fairseq's binarizer, without a Python call and a tensor access for every subword."""

    def binarize_line(self, line: str, summary: BinarizeSummary) -> torch.Tensor:
        """Turn a line of subwords into their numbers. Shape: ``(subwords + 1,)``, int32."""
        known, unknown = self.dict.indices, self.dict.unk_index
        numbers = [known.get(subword, unknown) for subword in line.split()]
        numbers.append(self.dict.eos_index)
        summary.num_seq += 1
        summary.num_tok += len(numbers)
        if unknown in numbers:
            summary.replaced = Counter(summary.replaced)
            summary.replaced[_LINES] += 1
        return torch.from_numpy(np.array(numbers, dtype=np.int32))


def binarize(pieces: Path, prefix: Path, dictionary: Dictionary, workers: int) -> int:
    """Let fairseq binarize a file of subwords, then delete the file.

    Args:
        prefix: the path of the binarized text, without ``.bin`` and ``.idx``.

    Returns:
        The number of lines with subwords that the dictionary lacks.
    """
    summary = FileBinarizer.multiprocess_dataset(
        str(pieces), "mmap", _SubwordBinarizer(dictionary, str.split), str(prefix),
        vocab_size=len(dictionary), num_workers=workers,
    )  # fmt: skip
    pieces.unlink()
    return Counter(summary.replaced)[_LINES]
