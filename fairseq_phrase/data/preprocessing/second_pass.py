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
_Dictionaries = Mapping[str, Dictionary]
_Labels = Mapping[str, LabelTable]
#: By language and field.
_Writers = dict[tuple[str, str], IndexedWriter]


def write_split(
    options: Options,
    split: Split,
    blocks: BlockFolder,
    dictionaries: _Dictionaries,
    labels: _Labels,
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
            writers = _open_writers(options, split, output, dictionaries, labels)
            for block in map(blocks.read, output.blocks):
                if options.copy_words:
                    _copy_words(options, split, block, dictionaries, writers)
                for side, fields in zip(split.sides, block.sides, strict=True):
                    if isinstance(side, RawText):
                        _write_text(options, side, fields[TEXT], output, dictionaries, writers)
                    for name in side.fields:
                        values = fields[name].values
                        if name in labels:
                            values = _labelled(fields[name], FIELDS[name].columns, labels[name])
                        writers[side.language, name].append(values, fields[name].sizes)
                progress.update(block.counts.kept)
            for (language, _), writer in writers.items():
                writer.close()
                checksums = {path.name: fingerprint(path) for path in writer.paths}
                output.checksums[language].update(checksums)


def _open_writers(
    options: Options, split: Split, output: Output, dictionaries: _Dictionaries, labels: _Labels
) -> _Writers:
    """Open the files of an output, whose number of sentences and types are known."""
    writers: _Writers = {}
    sentences = output.counts.kept
    for side in split.sides:
        language, prefix = side.language, output.folder / f"{split.file_name}.{side.language}"
        if options.copy_words and side is split.sides[0]:
            path = copied_path(prefix)
            writers[language, _COPIED] = IndexedWriter(path, np.dtype(np.uint8), sentences)
        if isinstance(side, RawText):
            dtype = np.dtype(best_fitting_int_dtype(len(dictionaries[language])))
            writers[language, TEXT] = IndexedWriter(prefix, dtype, sentences)
        for name in side.fields:
            tally = output.tallies[language, name]
            numbers = labels[name].indices(tally.labels) if name in labels else np.zeros(0)
            has_index = shared_index(name, side.fields) is None
            writers[language, name] = IndexedWriter(
                f"{prefix}.{name}", tally.dtype(numbers), sentences if has_index else None
            )
    return writers


def _write_text(
    options: Options,
    side: RawText,
    field: FieldBlock,
    output: Output,
    dictionaries: _Dictionaries,
    writers: _Writers,
) -> None:
    """Number subwords as fairseq's binarizer does, with the end of each sentence; count the unknown."""
    indices = dictionaries[side.language].indices
    entries = [indices.get(entry, _UNKNOWN) for entry in field.entries]
    numbers, ends = np.array(entries, np.int64)[field.values], field.sizes.cumsum(dtype=np.int64)
    unknown = np.append(0, (numbers == _UNKNOWN).cumsum())
    has_unknown = unknown[ends] > unknown[ends - field.sizes]
    output.counts.unknown[side.language] += int(np.count_nonzero(has_unknown))
    if options.labels is not None and side.language == options.target_lang:
        output.counts.unknown_labels += int(unknown[-1])
    writers[side.language, TEXT].append(np.insert(numbers, ends, _EOS), field.sizes + 1)


def _labelled(block: FieldBlock, columns: int, labels: LabelTable) -> np.ndarray:
    """Return a field's values with the final numbers of its labels, which are in the last column."""
    values = block.values.astype(np.int32)
    uses = values[columns - 1 :: columns]
    uses[:] = labels.indices(block.entries)[uses]
    return values


def _copy_words(
    options: Options, split: Split, block: Block, dictionaries: _Dictionaries, writers: _Writers
) -> None:
    """Replace unknown words in a block's two texts by slots, and write the words next to the source."""
    source, target = (fields[TEXT].sentences() for fields in block.sides)
    language = split.sides[0].language
    indices = dictionaries[language].indices  # both languages have it
    texts: tuple[list[list[str]], ...] = ([], [])
    for source_line, target_line in zip(source, target, strict=True):
        subwords, words = number_unknown(source_line, indices, options.copy_words)
        texts[0].append(subwords)
        # A pair without unknown source words has no slots.
        texts[1].append(number_unknown(target_line, indices, 0, words)[0])
        bytes_of_words = stored(words)
        writers[language, _COPIED].append(bytes_of_words, np.array([len(bytes_of_words)]))
    for fields, text in zip(block.sides, texts, strict=True):
        fields[TEXT] = FieldBlock.of_text(text)
