"""Raw parallel text to a fairseq data directory with parses beside the source side."""

from __future__ import annotations

import logging
import os
import shutil
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from tqdm import tqdm

from fairseq_phrase.data.corpus import encode_corpus, parses_of
from fairseq_phrase.data.parse_writer import LabelTable, ParseWriter
from fairseq_phrase.data.segmenter import SentencePieceSegmenter, train_sentencepiece
from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers import FileParser, resolve
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.store import LABEL_FILES, Manifest, SplitRecord, fingerprint
from fairseq_phrase.text import find_text, read_lines

logger = logging.getLogger(__name__)
SUBWORD_MODEL = "spm.model"
LINES_PER_WORKER = 2000


@dataclass
class Options:
    """What ``fairseq-phrase-preprocess`` was asked for; its ``--help`` explains each.

    Attributes:
        splits: prefix of the raw text by the split's name (``train``, ``valid``, ``test``,
            ``test1``).
    """

    source_lang: str
    target_lang: str
    destdir: Path
    splits: dict[str, str]
    parser: str = "none"
    constituents: str = "parser"
    sentencepiece_model: Path | None = None
    vocab_size: int = 8000
    joined_dictionary: bool = False
    srcdict: Path | None = None
    tgtdict: Path | None = None
    max_length: int = 1023
    strict: bool = False
    workers: int = 1
    seed: int = 1

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target language."""
        return self.source_lang, self.target_lang

    @property
    def parsing(self) -> ParsingOptions:
        """How the source is parsed."""
        return ParsingOptions(self.parser, self.constituents)

    @property
    def pair(self) -> str:
        """The language pair as fairseq writes it, ``de-en``."""
        return f"{self.source_lang}-{self.target_lang}"


@dataclass
class SplitCounts:
    """How many sentence pairs of a split were kept, and why others were not."""

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    words: int = 0
    subwords: int = 0


@dataclass
class _Split:
    """A split on its way: raw text in, subwords as text and parses as files out."""

    name: str
    source: Path
    target: Path
    lines: int
    counts: SplitCounts = field(default_factory=SplitCounts)


def preprocess(options: Options) -> dict[str, SplitCounts]:
    """Write a data directory.

    Everything is made in ``DESTDIR/.partial`` and moved to its place at the end, so that a run
    which fails or is stopped leaves what was there before.

    Returns:
        The counts of each split.

    Raises:
        UserError: the input is not usable; the message says where and what to do.
    """
    if options.source_lang == options.target_lang:
        raise UserError(f"source and target language are both '{options.source_lang}'")
    # Fails early where it is not installed.
    pipeline = ParsingPipeline(options.parsing)
    splits = [_find_split(options, name, prefix) for name, prefix in options.splits.items()]
    if isinstance(pipeline.parser, FileParser):
        for split in splits:
            parses_of(split.source, pipeline.parser)
    if options.destdir.exists() and not options.destdir.is_dir():
        raise UserError(f"--destdir {options.destdir} is a file: name a folder")
    _refuse_to_forget(options)
    is_new = not options.destdir.exists()
    # Within DESTDIR, so that moving needs no other file system even where DESTDIR is a mount point.
    partial = options.destdir / ".partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _make(options, splits, partial, pipeline)
        _move_into_place(partial, options.destdir)
    except OSError as error:
        place = error.filename or f"cannot write to {options.destdir}"
        raise UserError(f"{place}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new and options.destdir.is_dir() and not any(options.destdir.iterdir()):
            options.destdir.rmdir()
    return {split.name: split.counts for split in splits}


def _refuse_to_forget(options: Options) -> None:
    """Stop where DESTDIR holds splits that this run would not make again.

    Their parses would be left without their manifest, dictionaries and label numbers.
    """
    if Manifest.path(options.destdir, options.source_lang).is_file():
        there = Manifest.load(options.destdir, options.source_lang).splits
        lost = sorted(set(there) - {f"{name}.{options.pair}" for name in options.splits})
        if lost:
            raise UserError(
                f"{options.destdir} also holds {', '.join(lost)}, which this run does not make: name "
                "all splits in one run, or another --destdir"
            )


def _find_split(options: Options, name: str, prefix: str) -> _Split:
    """Find a split's two texts and count their lines, which also checks their encoding."""
    source, target = (find_text(prefix, language) for language in options.languages)
    source_lines, target_lines = (sum(1 for _ in read_lines(path)) for path in (source, target))
    if source_lines != target_lines:
        raise UserError(
            f"{source} has {source_lines} lines and {target} has {target_lines}: the two sides "
            "must be parallel, line by line"
        )
    if not source_lines:
        raise UserError(f"{source} and {target} are empty")
    return _Split(name, source, target, source_lines)


def _make(options: Options, splits: list[_Split], partial: Path, pipeline: ParsingPipeline) -> None:
    model = partial / SUBWORD_MODEL
    _subword_model(options, splits, model)
    labels = {name: LabelTable() for name in LABEL_FILES if name in pipeline.fields}
    writers = {}
    for split in splits:
        writers[split.name] = _encode_split(options, split, partial, model, pipeline.fields, labels)
    dictionaries = _dictionaries(options, splits, partial)
    for name, table in labels.items():
        table.save(partial / LABEL_FILES[name])
    manifest = Manifest(
        language=options.source_lang,
        parser=resolve(options.parser),
        parser_version=pipeline.parser.version,
        fields=list(pipeline.fields),
        constituents=pipeline.constituents,
        tokenized=False,
        bpe="sentencepiece",
        bpe_model=SUBWORD_MODEL,
        dictionary=fingerprint(partial / f"dict.{options.source_lang}.txt"),
    )
    for split in splits:
        for language in options.languages:
            _binarize(options, split, partial, language, dictionaries[language])
        files = writers[split.name].finish()
        files += [
            partial / f"{split.name}.{options.pair}.{options.source_lang}.{end}"
            for end in ("bin", "idx")
        ]
        manifest.splits[f"{split.name}.{options.pair}"] = SplitRecord(
            split.counts.kept,
            split.counts.words,
            split.counts.subwords,
            {path.name: fingerprint(path) for path in files},
        )
    manifest.save(partial)


def _subword_model(options: Options, splits: list[_Split], model: Path) -> None:
    if options.sentencepiece_model is not None:
        SentencePieceSegmenter(options.sentencepiece_model)  # checks it
        shutil.copyfile(options.sentencepiece_model, model)
        return
    if splits[0].name != "train":
        raise UserError(
            "without --trainpref there is no text to train SentencePiece on: give the training "
            "data's model with --sentencepiece-model, and its --srcdict and --tgtdict"
        )
    lines = chain(read_lines(splits[0].source), read_lines(splits[0].target))
    progress = tqdm(lines, "training SentencePiece", 2 * splits[0].lines, unit="line")
    train_sentencepiece(iter(progress), model, options.vocab_size, options.seed)


def _encode_split(
    options: Options,
    split: _Split,
    partial: Path,
    model: Path,
    fields: tuple[str, ...],
    labels: dict[str, LabelTable],
) -> ParseWriter:
    """Write a split's subwords as text and its parses as spilled arrays."""
    segmenter = SentencePieceSegmenter(model)
    # A process takes seconds to start its parser, so few lines are not worth another.
    workers = min(options.workers, max(1, split.lines // LINES_PER_WORKER))
    sentences = encode_corpus(split.source, options.parsing, model, workers)
    has_trees = "heads" in fields
    prefix = partial / f"{split.name}.{options.pair}.{options.source_lang}"
    writer = ParseWriter(prefix, fields, labels)
    counts = split.counts
    with (
        open(_pieces(partial, split, options.source_lang), "w", encoding="utf-8") as source_file,
        open(_pieces(partial, split, options.target_lang), "w", encoding="utf-8") as target_file,
    ):
        pairs = zip(sentences, read_lines(split.target), strict=True)
        progress = tqdm(pairs, f"parsing {split.name}", split.lines, unit="line", smoothing=0.05)
        for number, (sentence, target_line) in enumerate(progress, start=1):
            target = segmenter.line_pieces(target_line)
            if not _wanted(options, split, number, len(sentence.pieces), len(target)):
                continue
            if has_trees and sentence.heads is None:
                raise UserError(f"{at(split.source, number)}: too long to be parsed")
            counts.kept += 1
            counts.subwords += len(sentence.pieces)
            counts.words += int(sentence.words[-1]) + 1 if len(sentence.words) else 0
            source_file.write(" ".join(sentence.pieces) + "\n")
            target_file.write(" ".join(target) + "\n")
            writer.append(sentence)
    if not counts.kept:
        raise UserError(
            f"no sentence pair of {split.source} is left: {counts.empty} have an empty side, "
            f"{counts.too_long} are longer than --max-length {options.max_length}"
        )
    return writer


def _wanted(options: Options, split: _Split, number: int, source: int, target: int) -> bool:
    """Decide on a sentence pair; lengths are in subwords. Test sets stay whole, line by line."""
    longest = max(source, target)
    if split.name.startswith("test") or (min(source, target) and longest <= options.max_length):
        return True
    place = f"{at(split.source, number)} (and {split.target})"
    if longest > options.max_length:
        split.counts.too_long += 1
        problem = f"{longest} subwords, --max-length is {options.max_length}"
    else:
        split.counts.empty += 1
        problem = "one side is empty"
    if options.strict:
        raise UserError(f"{place}: {problem}; without --strict such pairs are left out and counted")
    return False


def _pieces(partial: Path, split: _Split, language: str) -> Path:
    return partial / f"{split.name}.pieces.{language}"


def _dictionaries(options: Options, splits: list[_Split], partial: Path) -> dict[str, Dictionary]:
    """Load or build both languages' dictionaries and save them."""
    given = dict(zip(options.languages, (options.srcdict, options.tgtdict), strict=True))
    built: dict[str, Dictionary] = {}
    for language, path in given.items():
        if path is not None:
            if not path.is_file():
                raise UserError(f"the dictionary {path} is not there")
            deque(read_lines(path), maxlen=0)  # names the line that is not UTF-8, if one is not
            try:
                built[language] = Dictionary.load(str(path))
            except (ValueError, RuntimeError) as error:
                raise UserError(f"{path} is not a fairseq dictionary: {error}") from None
    missing = [language for language in options.languages if language not in built]
    if options.joined_dictionary and built:
        shared = next(iter(built.values()))
        built.update(dict.fromkeys(missing, shared))
        missing = []
    if missing and splits[0].name != "train":
        raise UserError("without --trainpref, give the training data's --srcdict and --tgtdict")
    groups = [missing] if options.joined_dictionary and missing else [[name] for name in missing]
    for group in groups:
        dictionary = Dictionary()
        for language in group:
            Dictionary.add_file_to_dictionary(
                str(_pieces(partial, splits[0], language)), dictionary, str.split, options.workers
            )
        dictionary.finalize(padding_factor=8)
        built.update(dict.fromkeys(group, dictionary))
    for language, dictionary in built.items():
        dictionary.save(str(partial / f"dict.{language}.txt"))
    return built


def _binarize(
    options: Options, split: _Split, partial: Path, language: str, dictionary: Dictionary
) -> None:
    """Let fairseq binarize a split's subwords, then drop their text."""
    pieces = _pieces(partial, split, language)
    summary = FileBinarizer.multiprocess_dataset(
        str(pieces),
        "mmap",
        VocabularyDatasetBinarizer(dictionary, str.split),
        str(partial / f"{split.name}.{options.pair}.{language}"),
        vocab_size=len(dictionary),
        num_workers=min(options.workers, max(1, split.counts.kept // LINES_PER_WORKER)),
    )
    logger.info("[%s] %s: %s by %s", language, split.name, summary, dictionary.unk_word)
    pieces.unlink()


def _move_into_place(partial: Path, destination: Path) -> None:
    """Put finished files where they belong, the manifest last: it vouches for the others."""
    for path in sorted(partial.iterdir(), key=lambda path: path.name.startswith("syntax.")):
        os.replace(path, destination / path.name)


def splits_of(
    trainpref: str | None, validpref: str | None, testpref: str | None
) -> Iterator[tuple[str, str]]:
    """Name splits as fairseq does: further valid and test sets are ``valid1``, ``test1``, ….

    Args:
        trainpref: prefix of the training text.
        validpref: prefixes of validation texts, commas between them.
        testpref: prefixes of test texts, commas between them.

    Yields:
        The split's name and its prefix.
    """
    for name, prefixes in (("train", trainpref), ("valid", validpref), ("test", testpref)):
        if prefixes:
            for number, prefix in enumerate(prefixes.split(",")):
                yield (f"{name}{number or ''}", prefix)
