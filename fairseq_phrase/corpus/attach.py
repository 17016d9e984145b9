"""Parses for a data directory that fairseq binarized, from the text of subwords that it came from.

Nothing of the binarized text is touched: the parses come to lie beside it. Which word a subword is
of is found by characters (:mod:`fairseq_phrase.corpus.segmented_text`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fairseq.data import Dictionary
from tqdm import tqdm

from fairseq_phrase.corpus.binarized import check_binarized, splits_of_data, subwords_of_lines
from fairseq_phrase.corpus.dictionaries import load_dictionary
from fairseq_phrase.corpus.encoding import encode_line
from fairseq_phrase.corpus.engines import EngineOptions
from fairseq_phrase.corpus.existing_parses import EarlierParses
from fairseq_phrase.corpus.parsing import Corpus, parse_corpus, parses_of, unparsed_error
from fairseq_phrase.corpus.segmented_text import CutLine
from fairseq_phrase.corpus.segmenters import load_segmenter
from fairseq_phrase.corpus.staging import Workplace, workplace
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import FileParser, resolve
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.store.fields import with_labels
from fairseq_phrase.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.store.remedy import ATTACH
from fairseq_phrase.store.writer import LabelTable, ParseWriter
from fairseq_phrase.text import find_text


@dataclass
class AttachOptions:
    """What ``fairseq-phrase-attach`` was asked for; its ``--help`` explains each.

    Attributes:
        directory: the data directory.
        language: the language to parse, source or target.
        splits: prefix of the text of subwords by the split's name (``train``, ``valid``, ``test1``).
        bpe: what cut the text, one of :data:`fairseq_phrase.corpus.segmenters.SEGMENTERS`.
        bpe_model: the subword model, or the file of BPE codes, for new text; None if there is none.
        on_error: ``stop`` or ``flat``. No line can be left out: the text is binarized already.
        labeldict: the data directory whose label dictionaries are reused; None takes those that are in
            use in ``directory``.
        strict: refuse another version of the parser than that of the splits that stay.
    """

    directory: Path
    source_lang: str
    target_lang: str
    language: str
    splits: dict[str, str]
    bpe: str
    bpe_model: Path | None = None
    parser: str = "none"
    constituents: str = "parser"
    on_error: str = "stop"
    labeldict: Path | None = None
    strict: bool = False
    engine: EngineOptions = field(default_factory=EngineOptions)

    @property
    def pair(self) -> str:
        """The language pair as fairseq writes it, ``de-en``."""
        return f"{self.source_lang}-{self.target_lang}"

    @property
    def dictionary(self) -> Path:
        """The dictionary of the language's text."""
        return self.directory / f"dict.{self.language}.txt"


@dataclass
class AttachedSplit:
    """A split on its way, and what was counted in it.

    Attributes:
        name: ``train``, ``valid``, ``test``, ``test1``….
        corpus: the text of its subwords.
        checksums: fingerprints of its files, by file name: first the binarized text's.
        words: words in all.
        subwords: subwords in all.
        flat: lines that were given flat trees because they have no parse.
        swallowed: words that are not in the trees because no subword is theirs (one that straddles
            words is of the first).
    """

    name: str
    corpus: Corpus
    checksums: dict[str, str]
    words: int = 0
    subwords: int = 0
    flat: int = 0
    swallowed: int = 0

    @property
    def record(self) -> SplitRecord:
        """What the manifest says of it."""
        return SplitRecord(
            self.corpus.lines, self.words, self.subwords, self.checksums, unparsed_flat=self.flat
        )


@dataclass
class Attached:
    """What a run did.

    Attributes:
        splits: the splits that were given parses.
        without_parses: the splits of the data directory that have none.
        unknown_labels: labels that the data directory's label dictionaries lack, by field.
    """

    splits: list[AttachedSplit]
    without_parses: list[str]
    unknown_labels: dict[str, list[str]]


def attach(options: AttachOptions) -> Attached:
    """Add parses to a data directory.

    A run that fails or is stopped leaves what was there before, and the parses that it finished; the
    next run goes on from them.

    Raises:
        UserError: the input is not usable; the message says where and what to do.
    """
    others = _find_splits(options)
    dictionary = load_dictionary(options.dictionary)
    texts = {name: find_text(prefix, options.language) for name, prefix in options.splits.items()}
    pipeline = _pipeline(options)
    if isinstance(pipeline.parser, FileParser):
        for text in texts.values():
            parses_of(text, pipeline.parser)
    if options.bpe_model is not None:
        load_segmenter(options.bpe, options.bpe_model)
    with workplace(options.directory) as place:
        made = {f"{name}.{options.pair}" for name in options.splits}
        earlier = EarlierParses(options.directory, options.language, made)
        manifest = _manifest(options, pipeline)
        earlier.check(manifest, strict=options.strict)
        manifest.bpe_model = earlier.model_name(options.bpe, options.bpe_model)
        labels = earlier.label_tables(pipeline.fields, options.labeldict)
        splits = [_check_split(options, name, text, dictionary) for name, text in texts.items()]
        _make(options, pipeline, splits, labels, place)
        if options.bpe_model is not None:
            shutil.copyfile(options.bpe_model, place.files / manifest.bpe_model)
        manifest.labels = {name: table.fingerprint() for name, table in labels.items()}
        manifest.splits.update(earlier.staying)
        version = pipeline.parser.version
        for split in splits:
            record = split.record
            record.parser_version = "" if version == manifest.parser_version else version
            manifest.splits[f"{split.name}.{options.pair}"] = record
        manifest.save(place.files)
        place.publish()
    unknown = {name: table.unknown() for name, table in labels.items()}
    return Attached(
        splits,
        [name for name in others if f"{name}.{options.pair}" not in earlier.staying],
        {name: some for name, some in unknown.items() if some},
    )


def _find_splits(options: AttachOptions) -> list[str]:
    """Look for the splits in the data directory.

    Returns:
        Those that this run was not asked for.

    Raises:
        UserError: one that it was asked for is not there.
    """
    found = splits_of_data(options.directory, options.pair, options.language)
    missing = [name for name in options.splits if name not in found]
    if missing:
        there = sorted(path.name for path in options.directory.glob("*.*-*.*.idx"))
        text = [name for name in there if name.count(".") == 3]  # parses have a dot more
        raise UserError(
            f"{options.directory} has no {missing[0]}.{options.pair}.{options.language}.idx: "
            + (f"it has {', '.join(text)}" if text else "it is no data directory of fairseq")
        )
    return sorted(found - set(options.splits))


def _pipeline(options: AttachOptions) -> ParsingPipeline:
    """Load the parser. Text of subword-nmt is cut into words; files of parses have their own."""
    tokenized = options.bpe == "subword_nmt"
    parsing = ParsingOptions(options.parser, options.constituents, tokenized)
    pipeline = ParsingPipeline(parsing)
    if tokenized and isinstance(pipeline.parser, FileParser):
        return ParsingPipeline(ParsingOptions(options.parser, options.constituents))
    return pipeline


def _manifest(options: AttachOptions, pipeline: ParsingPipeline) -> Manifest:
    """Say what is alike in all splits."""
    return Manifest(
        language=options.language,
        parser=resolve(options.parser),
        parser_version=pipeline.parser.version,
        fields=list(pipeline.fields),
        constituents=pipeline.constituents,
        tokenized=options.bpe == "subword_nmt",
        bpe=options.bpe,
        bpe_model="",
        dictionary=fingerprint(options.dictionary),
        whole_lines=options.bpe == "sentencepiece",
        made_by=ATTACH,
    )


def _check_split(
    options: AttachOptions, name: str, text: Path, dictionary: Dictionary
) -> AttachedSplit:
    """Check that a text is the one that was binarized."""
    prefix = options.directory / f"{name}.{options.pair}.{options.language}"
    # Taken first: what is checked is what the manifest vouches for.
    files = [Path(f"{prefix}.{end}") for end in ("bin", "idx")]
    checksums = {path.name: fingerprint(path) for path in files}
    key = f"{fingerprint(text)} {options.bpe}"
    lines = check_binarized(text, prefix, dictionary)
    corpus = Corpus(f"{name}.{options.language}", text, lines, key, can_skip=False)
    return AttachedSplit(name, corpus, checksums)


def _make(
    options: AttachOptions,
    pipeline: ParsingPipeline,
    splits: list[AttachedSplit],
    labels: dict[str, LabelTable],
    place: Workplace,
) -> None:
    """Parse the splits and write their parses and the labels' dictionaries."""
    writers = []
    for split in splits:
        prefix = place.files / f"{split.name}.{options.pair}.{options.language}"
        writer = ParseWriter(prefix, pipeline.fields, labels)
        _write(options, pipeline, split, writer, place.parses)
        writers.append(writer)
    for split, writer in zip(splits, writers, strict=True):
        split.checksums |= {path.name: fingerprint(path) for path in writer.finish()}
    for name, file in with_labels(labels).items():
        if labels[name].has_grown or options.labeldict is not None:
            labels[name].save(place.files / file)


def _write(
    options: AttachOptions,
    pipeline: ParsingPipeline,
    split: AttachedSplit,
    writer: ParseWriter,
    folder: Path,
) -> None:
    """Parse a split and write its parses, as they are before labels have their numbers."""
    corpus = split.corpus
    spell = _spelling(options.bpe, pipeline)

    def lines() -> Iterator[CutLine]:
        return map(spell, subwords_of_lines(corpus.path))

    text = (line.text for line in lines())
    parses = parse_corpus(corpus, text, pipeline, folder, options.engine, options.on_error)
    pairs = tqdm(
        zip(parses, lines(), strict=True), f"writing {split.name}", corpus.lines, unit="line",
        smoothing=0.05,
    )  # fmt: skip
    for number, (parse, line) in enumerate(pairs, start=1):
        sentence, problem = encode_line(parse, line, pipeline)
        words = sentence.num_words
        if problem is None:
            split.swallowed += len(parse.words) - words
        elif options.on_error == "stop":
            raise unparsed_error(corpus, number, problem)
        else:
            split.flat += 1
        split.words += words
        split.subwords += len(sentence.words)
        writer.append(sentence)


def _spelling(bpe: str, pipeline: ParsingPipeline) -> Callable[[list[str]], CutLine]:
    """Choose how subwords are spelled for the parser."""
    if bpe == "sentencepiece":
        return CutLine.of_sentencepiece
    # The pipeline unescapes words for a parser itself; files hold unescaped words.
    unescape = isinstance(pipeline.parser, FileParser)
    return partial(CutLine.of_subword_nmt, unescape=unescape)
