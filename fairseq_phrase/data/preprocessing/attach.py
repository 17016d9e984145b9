"""Add parses to a data directory that fairseq binarized, from its original text of subwords.

The binarized text is not changed; the parses are written next to it. The word of each subword is found by
characters (:mod:`fairseq_phrase.data.subwords.encoded_sentences`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.data.preprocessing.dictionaries import count_labels
from fairseq_phrase.data.preprocessing.existing_parses import EarlierParses
from fairseq_phrase.data.preprocessing.first_pass import parse_and_count
from fairseq_phrase.data.preprocessing.input_checks import check_fields, check_list
from fairseq_phrase.data.preprocessing.manifests import (
    begin_manifest,
    finish_manifest,
    key_of,
    key_of_blocks,
)
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.second_pass import write_split
from fairseq_phrase.data.preprocessing.segmentation import SegmentedText
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.staging import staging_area
from fairseq_phrase.data.preprocessing.texts import Corpus, files_of, unchanged
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import fingerprint
from fairseq_phrase.data.subwords.protected_tokens import JOINER, Segmenter
from fairseq_phrase.data.subwords.segmenters import Gpt2Segmenter, SharedSegmenter, innermost
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import FileParser
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import find_text, read_lines

# Lines of each text that are compared with a given subword model.
_CHECKED_LINES = 1000


@dataclass
class Attached:
    """The results of a run.

    Attributes:
        splits: the counts of the splits that got parses, by name.
        without_parses: the data directory's splits that have no parses.
        unknown_labels: labels that the data directory's label dictionaries lack, by field.
        bpe_model: the file of the subword model in the data directory; empty without one.
    """

    splits: dict[str, SplitCounts]
    without_parses: list[str]
    unknown_labels: dict[str, list[str]]
    bpe_model: str


def attach(options: Options) -> Attached:
    """Add parses of one language to a data directory.

    If a run fails or is stopped, the earlier files are unchanged and finished parses are kept. The next
    run continues from them.

    Args:
        options: the options of the run. ``parsing`` has one language. The text is already segmented
            and binarized, so all lines are kept.

    Raises:
        UserError: the input is not usable; the message has the location and advice.
    """
    (language,) = options.parsing
    unprocessed = _find_splits(options, language)
    dictionary_path = options.directory / f"dict.{language}.txt"
    dictionary = load_dictionary(dictionary_path)
    texts = {name: find_text(prefix, language) for name, prefix in options.splits.items()}
    pipeline = _pipeline(options, language)
    check_fields(options, {language: pipeline})
    files: dict[Path, str] = {}
    for text in texts.values():
        files |= files_of(text, pipeline)
    check_list(options, files)
    if missing := [token for token in options.protected if token not in dictionary]:
        raise UserError(
            f"--protected-tokens: {dictionary_path} lacks {', '.join(missing)}: run fairseq-preprocess "
            "with text that has them"
        )
    if options.protected and JOINER in dictionary:
        options = replace(options, protected=[*options.protected, JOINER])
    segmenter = None
    if options.bpe_model is None:
        _check_marks(options.bpe, texts.values())
    else:
        segmenter = SharedSegmenter(
            options.bpe, options.bpe_model, options.protected, whole_lines=True
        )
        if isinstance(gpt2 := innermost(segmenter.loaded), Gpt2Segmenter):
            gpt2.check(dictionary_path, dictionary.symbols, of_text=True)
        _check_model(options, segmenter.loaded, texts.values())
    unescape = isinstance(pipeline.parser, FileParser)  # whose files hold unescaped words
    with staging_area(options.directory) as area:
        split_names = {f"{name}.{options.pair}" for name in options.splits}
        earlier = EarlierParses(options.directory, language, split_names)
        manifest = begin_manifest(options, language, pipeline, dictionary_path, options.bpe_model)
        earlier.check(manifest, options)
        earlier.check_tokens(options.protected, dictionary)
        earlier.name_model(manifest, options.bpe_model)
        labels = earlier.label_tables(pipeline.fields, options.labeldict)
        with unchanged(files) as check:
            splits = []
            for name, path in texts.items():
                corpus = Corpus(f"{name}.{language}", path, 0, files[path])
                side = SegmentedText(
                    language, corpus, pipeline, pipeline.fields, options.bpe, segmenter,
                    options.protected, unescape,
                )  # fmt: skip
                splits.append(_checked_split(options, name, side, dictionary, area.files))
            key = key_of(options, (split.sides[0].corpus for split in splits), {language: pipeline})
            blocks = area.open_blocks(key_of_blocks(key, files), are_kept=pipeline.is_slow)
            folders_of_blocks = parse_and_count(options, splits, blocks, check)
            count_labels(splits, labels)
            for split in splits:
                write_split(options, split, folders_of_blocks[split.name], {}, labels)
        for name, file in with_labels(labels).items():
            if labels[name].may_grow or options.labeldict is not None:
                labels[name].save(area.files / file)
        if options.bpe_model is not None:
            shutil.copyfile(options.bpe_model, area.files / manifest.bpe_model)
        manifest.splits.update(earlier.staying)
        outputs = [(split, output) for split in splits for output in split.outputs]
        finish_manifest(manifest, pipeline, outputs, labels)
        manifest.save(area.files)
        area.publish()
    unknown = {name: table.unknown() for name, table in labels.items()}
    return Attached(
        {split.name: split.counts for split in splits},
        [name for name in unprocessed if f"{name}.{options.pair}" not in earlier.staying],
        {name: some for name, some in unknown.items() if some},
        manifest.bpe_model,
    )


def _find_splits(options: Options, language: str) -> list[str]:
    """Return the splits of the data directory that this run does not process."""
    end = f".{options.pair}.{language}.idx"
    splits = {path.name.removesuffix(end) for path in options.directory.glob(f"*{end}")}
    missing = [name for name in options.splits if name not in splits]
    if missing:
        there = sorted(path.name for path in options.directory.glob("*.*-*.*.idx"))
        text = [name for name in there if name.count(".") == 3]  # parses have one more dot
        raise UserError(
            f"{options.directory} has no {missing[0]}.{options.pair}.{language}.idx: "
            + (f"it has {', '.join(text)}" if text else "it is not a data directory of fairseq")
        )
    return sorted(splits - set(options.splits))


def _check_marks(bpe: str, texts: Iterable[Path]) -> None:
    """Check that the texts' first lines have the marks of subwords of this kind, and not another's."""
    other_kinds = {"sentencepiece": "subword_nmt", "subword_nmt": "sentencepiece"}
    if bpe not in (*other_kinds, WHOLE_WORDS):
        return
    for path in texts:
        lines = list(islice(subwords_of_lines(path), _CHECKED_LINES))
        begin = sum(line[0].startswith("▁") for line in lines if line)
        end = sum(subword.endswith("@@") for line in lines for subword in line)
        if bpe == WHOLE_WORDS:
            if max(begin, end) > len(lines) / 2:
                raise UserError(
                    f"{path} has no whole words: in its first {len(lines)} lines, {end} subwords end in "
                    f"@@, and {begin} lines begin with ▁; give --bpe subword_nmt or sentencepiece"
                )
            continue
        present, absent = (end, begin) if bpe == "sentencepiece" else (begin, end)
        if present and not absent:
            signs = "end in @@, and none begins with ▁"
            if bpe == "subword_nmt":
                signs = "begin with ▁, and none ends in @@"
            raise UserError(
                f"{path} has no subwords of --bpe {bpe}: in its first {len(lines)} lines some {signs}; "
                f"give --bpe {other_kinds[bpe]}"
            )


def _check_model(options: Options, segmenter: Segmenter, texts: Iterable[Path]) -> None:
    """Check that the subword model yields the subwords in the texts' first lines.

    A few lines may differ, for example those that SentencePiece would normalize a second time.
    """
    total, differing = 0, []
    for path in texts:
        for number, subwords in enumerate(islice(subwords_of_lines(path), _CHECKED_LINES), start=1):
            written = " ".join(subwords)
            again = " ".join(segmenter.segment_line(segmenter.join(written)))
            total += 1
            if again != written:
                differing.append(f"{location(path, number)}: '{written}' and '{again}'")
    if len(differing) <= total / 20:
        return
    difference = (
        f"{options.bpe_model} makes other subwords than the text has in {len(differing)} of its first "
        f"{total} lines ({differing[0]})"
    )
    if "subword-model" not in (options.allow_difference or "").split(","):
        raise UserError(
            f"{difference}: give the model that split the text, or let this pass with --allow-difference "
            "subword-model"
        )
    options.allowed.append(difference)


def _pipeline(options: Options, language: str) -> ParsingPipeline:
    """Load the parser. Files of parses define the words, even if the text is tokenized."""
    parsing = options.parsing[language]
    pipeline = ParsingPipeline(parsing)
    if parsing.tokenized and isinstance(pipeline.parser, FileParser):
        return ParsingPipeline(replace(parsing, tokenized=False))
    return pipeline


def _checked_split(
    options: Options, name: str, text: SegmentedText, dictionary: Dictionary, folder: Path
) -> Split:
    """Check that a text is the binarized one; return its split, which is written to a folder."""
    file = f"{name}.{options.pair}.{text.language}"
    binarized = options.directory / file
    # The manifest records these checksums, so they are computed before the text is checked.
    files = [Path(f"{binarized}.{end}") for end in ("bin", "idx")]
    checksums = {path.name: fingerprint(path) for path in files}
    lines = check_binarized(text.corpus.path, binarized, dictionary)
    side = replace(text, corpus=replace(text.corpus, lines=lines))
    split = Split(name, options.split_name(name), [side], is_whole=True)
    split.write_to([folder])
    split.outputs[0].checksums[text.language] |= checksums
    return split


def subwords_of_lines(text: Path) -> Iterator[list[str]]:
    """Read the subwords of each line, as fairseq does: separated by white space of any kind."""
    return map(str.split, read_lines(text))


def check_binarized(text: Path, prefix: Path, dictionary: Dictionary) -> int:
    """Check that a text is the binarized one; return the number of its lines.

    Args:
        prefix: the binarized text, without ``.bin`` and ``.idx``.

    Raises:
        UserError: they differ (the message names the first line that differs, the expected subword and
            the one found), a subword is one of fairseq's special tokens, or a file is missing or
            damaged.
    """
    binarized = IndexedReader(prefix)
    number_of, unknown, end = dictionary.indices.get, dictionary.unk(), dictionary.eos()
    special = {dictionary.bos(), dictionary.pad(), end}
    lines = 0
    for subwords in tqdm(
        subwords_of_lines(text), f"checking {prefix.name}", len(binarized), unit="line"
    ):
        if lines == len(binarized):
            where = location(text, lines + 1)
            raise _misfit(f"{where}: {prefix}.bin ends before this line, after {lines}")
        expected = binarized[lines].tolist()
        lines += 1
        numbers = [number_of(subword, unknown) for subword in subwords]
        numbers.append(end)
        if numbers != expected:
            difference = _first_difference(subwords, numbers, expected, dictionary)
            raise _misfit(f"{location(text, lines)}: {difference} in {prefix}.bin")
        if not special.isdisjoint(numbers[:-1]):
            index = next(index for index, number in enumerate(numbers) if number in special)
            raise UserError(
                f"{location(text, lines)}: subword {index + 1} is '{subwords[index]}', which fairseq "
                "reads as the start, the end or the padding of a sentence, so it cannot have a word: "
                "expected text without <s>, </s> and <pad>. Write it differently, binarize the text "
                "again, then attach"
            )
    if lines < len(binarized):
        counts = f"{text} has {lines} lines, and {prefix}.bin has {len(binarized)}"
        raise _misfit(counts)
    return lines


def _misfit(difference: str) -> UserError:
    return UserError(f"{difference}; expected the very text that was binarized, and its dictionary")


def _first_difference(
    subwords: list[str], numbers: list[int], expected: list[int], dictionary: Dictionary
) -> str:
    """Describe the first difference between a line and its binarized text."""
    pairs = enumerate(zip_longest(numbers, expected))
    index = next(index for index, (number, there) in pairs if number != there)
    actual, binarized = (
        names[index] if index < len(names) else "nothing"
        for names in (
            [*subwords, dictionary[dictionary.eos()]],
            [dictionary[number] for number in expected],
        )
    )
    return f"subword {index + 1} is '{actual}' here and '{binarized}'"
