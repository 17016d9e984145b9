"""The second pass: read the blocks, and write text and parses with their final numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import best_fitting_int_dtype
from tqdm import tqdm

from fairseq_phrase.data.preprocessing.blocks import TEXT, Block, BlockFolder, FieldBlock
from fairseq_phrase.data.preprocessing.dictionaries import LabelTable
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.preprocessing.segmentation import RawText
from fairseq_phrase.data.preprocessing.splits import Output, Split
from fairseq_phrase.data.store.copied_words import copied_path, number_unknown, stored
from fairseq_phrase.data.store.dictionaries import SPECIAL
from fairseq_phrase.data.store.indexed import IndexedWriter
from fairseq_phrase.data.store.layout import shared_index
from fairseq_phrase.data.store.manifest import fingerprint
from fairseq_phrase.syntax.fields import FIELDS

#: The name of a source's words to copy among its files.
_COPIED = "copied"
_EOS, _UNKNOWN = map(SPECIAL.index, ("</s>", "<unk>"))


def write_split(
    options: Options,
    split: Split,
    blocks: BlockFolder,
    dictionaries: Mapping[str, Dictionary],
    labels: Mapping[str, LabelTable],
) -> None:
    """Write a split's text, unless fairseq has, and its parses; record their fingerprints.

    Args:
        dictionaries: by language, the dictionary of the text.
        labels: by field, the labels of all splits.
    """
    with tqdm(
        desc=f"writing {split.name}", total=split.counts.kept, unit="line", smoothing=0.05
    ) as progress:
        for output in split.outputs:
            files = OutputFiles(options, split, output, dictionaries, labels)
            for block in map(blocks.read, output.blocks):
                files.write(block)
                progress.update(block.counts.kept)
            files.close()


class OutputFiles:
    """The files of an output, whose number of sentences and types are known.

    Args:
        dictionaries, labels: as in :func:`write_split`.
    """

    def __init__(
        self,
        options: Options,
        split: Split,
        output: Output,
        dictionaries: Mapping[str, Dictionary],
        labels: Mapping[str, LabelTable],
    ) -> None:
        self._options, self._sides, self._output = options, split.sides, output
        self._dictionaries, self._labels = dictionaries, labels
        #: By language and field.
        self._writers: dict[tuple[str, str], IndexedWriter] = {}
        sentences = output.counts.kept
        for side in split.sides:
            language, prefix = side.language, output.folder / f"{split.file_name}.{side.language}"
            if options.copy_words and side is split.sides[0]:
                writer = IndexedWriter(copied_path(prefix), np.dtype(np.uint8), sentences)
                self._writers[language, _COPIED] = writer
            if isinstance(side, RawText):
                dtype = np.dtype(best_fitting_int_dtype(len(dictionaries[language])))
                self._writers[language, TEXT] = IndexedWriter(prefix, dtype, sentences)
            for name in side.fields:
                tally = output.tallies[language, name]
                numbers = labels[name].indices(tally.labels) if name in labels else np.zeros(0)
                has_index = shared_index(name, side.fields) is None
                self._writers[language, name] = IndexedWriter(
                    f"{prefix}.{name}", tally.dtype(numbers), sentences if has_index else None
                )

    def write(self, block: Block) -> None:
        """Write a block, with the final numbers of subwords and labels."""
        if self._options.copy_words:
            self._copy_words(block)
        for side, fields in zip(self._sides, block.sides, strict=True):
            if isinstance(side, RawText):
                self._write_text(side.language, fields[TEXT])
            for name in side.fields:
                values = fields[name].values
                if name in self._labels:
                    # Labels are in the last column.
                    columns, values = FIELDS[name].columns, values.astype(np.int32)
                    uses = values[columns - 1 :: columns]
                    uses[:] = self._labels[name].indices(fields[name].entries)[uses]
                self._writers[side.language, name].append(values, fields[name].sizes)

    def close(self) -> None:
        """Close the files, and record their fingerprints."""
        for (language, _), writer in self._writers.items():
            writer.close()
            checksums = {path.name: fingerprint(path) for path in writer.paths}
            self._output.checksums[language].update(checksums)

    def _write_text(self, language: str, field: FieldBlock) -> None:
        """Number subwords as fairseq's binarizer does, with the ends of sentences; count the unknown."""
        indices = self._dictionaries[language].indices
        entries = [indices.get(entry, _UNKNOWN) for entry in field.entries]
        numbers = np.array(entries, np.int64)[field.values]
        ends = field.sizes.cumsum(dtype=np.int64)
        unknown = np.append(0, (numbers == _UNKNOWN).cumsum())
        has_unknown = unknown[ends] > unknown[ends - field.sizes]
        self._output.counts.unknown[language] += int(np.count_nonzero(has_unknown))
        if self._options.labels is not None and language == self._options.target_lang:
            self._output.counts.unknown_labels += int(unknown[-1])
        self._writers[language, TEXT].append(np.insert(numbers, ends, _EOS), field.sizes + 1)

    def _copy_words(self, block: Block) -> None:
        """Replace unknown words in a block's texts by slots, and write the words next to the source."""
        source, target = (fields[TEXT].sentences() for fields in block.sides)
        language = self._sides[0].language
        indices = self._dictionaries[language].indices  # both languages have it
        texts: tuple[list[list[str]], ...] = ([], [])
        for source_line, target_line in zip(source, target, strict=True):
            subwords, words = number_unknown(source_line, indices, self._options.copy_words)
            texts[0].append(subwords)
            # A pair without unknown source words has no slots.
            texts[1].append(number_unknown(target_line, indices, 0, words)[0])
            bytes_of_words = stored(words)
            self._writers[language, _COPIED].append(bytes_of_words, np.array([len(bytes_of_words)]))
        for fields, text in zip(block.sides, texts, strict=True):
            fields[TEXT] = FieldBlock.of_text(text)
