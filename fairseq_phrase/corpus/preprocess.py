"""Raw parallel text to a fairseq data directory with parses beside it."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.corpus.dictionaries import binarize, load_dictionary, make_dictionaries
from fairseq_phrase.corpus.label_tables import given_labels, manifests_of, warn_of_unknown
from fairseq_phrase.corpus.language_side import Side, SideLine
from fairseq_phrase.corpus.options import Options, SplitCounts
from fairseq_phrase.corpus.parsing import Corpus, parses_of, unparsed_error
from fairseq_phrase.corpus.segmenters import MODEL_NAMES, Segmenter, load_segmenter
from fairseq_phrase.corpus.sentencepiece_training import train_segmenter
from fairseq_phrase.corpus.staging import Workplace, workplace
from fairseq_phrase.errors import UserError, at
from fairseq_phrase.parsers import FileParser, resolve
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.store.fields import with_labels
from fairseq_phrase.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.store.writer import LabelTable, ParseWriter
from fairseq_phrase.text import find_text, read_lines


@dataclass
class _Split:
    """A split on its way.

    Attributes:
        name: ``train``, ``valid``, ``test``, ``test1``….
        sides: source and target.
        counts: what was kept and left out.
        parses: the parses that were written, by language.
        subwords: how often each subword was written, by language.
    """

    name: str
    sides: tuple[Side, Side]
    counts: SplitCounts = field(default_factory=SplitCounts)
    parses: dict[str, ParseWriter] = field(default_factory=dict)
    subwords: dict[str, Counter[str]] = field(default_factory=dict)


def preprocess(options: Options) -> dict[str, SplitCounts]:
    """Write a data directory.

    A run that fails or is stopped leaves what was there before, and the parses that it finished; the
    next run goes on from them.

    Returns:
        The counts of each split.

    Raises:
        UserError: the input is not usable; the message says where and what to do.
    """
    if options.source_lang == options.target_lang:
        raise UserError(f"source and target language are both '{options.source_lang}'")
    if options.destdir.exists() and not options.destdir.is_dir():
        raise UserError(f"--destdir {options.destdir} is a file: name a folder")
    # Fails early where a parser is not installed.
    pipelines = {name: ParsingPipeline(parsing) for name, parsing in options.parsing.items()}
    corpora = {
        name: _find_split(options, pipelines, name, prefix)
        for name, prefix in options.splits.items()
    }
    _refuse_to_forget(options)
    _check_early(options)
    labels = _label_tables(options, pipelines)
    with workplace(options.destdir) as place:
        splits = []
        for name, pair in corpora.items():
            source, target = (
                Side(
                    language,
                    corpus,
                    pipelines.get(language),
                    place.files / f"{name}.{options.pair}.{language}",
                )
                for language, corpus in zip(options.languages, pair, strict=True)
            )
            splits.append(_Split(name, (source, target)))
        _make(options, splits, place, pipelines, labels)
        place.publish()
    return {split.name: split.counts for split in splits}


def _refuse_to_forget(options: Options) -> None:
    """Stop where DESTDIR holds splits that this run would not make again.

    Their parses would be left without their manifest, dictionaries and label numbers.
    """
    for language in options.languages:
        if Manifest.path(options.destdir, language).is_file():
            there = Manifest.load(options.destdir, language).splits
            lost = sorted(set(there) - {f"{name}.{options.pair}" for name in options.splits})
            if lost or language not in options.parsing:
                raise UserError(
                    f"{options.destdir} also holds {', '.join(lost or [f'parses of {language}'])}, "
                    "which this run does not make: name all splits and languages in one run, or "
                    "another --destdir"
                )


def _check_early(options: Options) -> None:
    """Find out before hours of parsing what will be missing after them."""
    if options.bpe_model is not None:
        load_segmenter(options.bpe, options.bpe_model)
    elif options.bpe != "sentencepiece":
        raise UserError(f"--bpe {options.bpe} needs the codes that it learned: --bpe-codes FILE")
    elif "train" not in options.splits:
        raise UserError(
            "without --trainpref there is no text to train SentencePiece on: give the training "
            "data's model with --sentencepiece-model, and its --srcdict and --tgtdict"
        )
    given = [path for path in (options.srcdict, options.tgtdict) if path is not None]
    for path in given:
        load_dictionary(path)
    if "train" not in options.splits and len(given) < (1 if options.joined_dictionary else 2):
        raise UserError("without --trainpref, give the training data's --srcdict and --tgtdict")


def _label_tables(options: Options, pipelines: dict[str, ParsingPipeline]) -> dict[str, LabelTable]:
    """Open the tables of labels, by field: those of given dictionaries, and new ones.

    Raises:
        UserError: a dictionary is missing; or, with ``--strict``, another parser made its labels.
    """
    fields = {name for pipeline in pipelines.values() for name in pipeline.fields}
    folder = options.label_folder
    manifests = manifests_of(folder, pipelines)
    given = given_labels(
        folder, fields, manifests.values(), all_of_them=options.labeldict is not None
    )
    for language, manifest in manifests.items():
        if folder is not None and given:
            version = pipelines[language].parser.version
            manifest.check_parser(version, folder, strict=options.strict, option="--strict")
    return {
        name: LabelTable(given.get(name), may_grow=name not in given)
        for name in with_labels(fields)
    }


def _find_split(
    options: Options, pipelines: dict[str, ParsingPipeline], name: str, prefix: str
) -> tuple[Corpus, Corpus]:
    """Find a split's two texts and count their lines, which also checks their encoding."""
    corpora = []
    for language in options.languages:
        path = find_text(prefix, language)
        lines = sum(1 for _ in read_lines(path))
        corpora.append(Corpus(f"{name}.{language}", path, lines, fingerprint(path)))
        parser = pipelines[language].parser if language in pipelines else None
        if isinstance(parser, FileParser):
            parses_of(path, parser)
    source, target = corpora
    if source.lines != target.lines:
        raise UserError(
            f"{source.path} has {source.lines} lines and {target.path} has {target.lines}: the two "
            "sides must be parallel, line by line"
        )
    if not source.lines:
        raise UserError(f"{source.path} and {target.path} are empty")
    return source, target


def _make(
    options: Options,
    splits: list[_Split],
    place: Workplace,
    pipelines: dict[str, ParsingPipeline],
    labels: dict[str, LabelTable],
) -> None:
    # Before parsing, because it is the sooner to fail.
    segmenter = _segmenter(options, splits, place.files)
    for split in splits:
        for side in split.sides:
            side.parse(place.parses, options.engine, options.on_error)
    for split in splits:
        _encode(options, split, segmenter, labels)
    is_training = splits[0].name == "train"
    dictionaries = make_dictionaries(options, splits[0].subwords if is_training else {})
    for language, dictionary in dictionaries.items():
        dictionary.save(str(place.files / f"dict.{language}.txt"))
    for split in splits:
        for side in split.sides:
            dictionary = dictionaries[side.language]
            workers = options.engine.workers
            binarize(side.pieces_path, side.prefix, dictionary, split.counts.kept, workers)
    for language, pipeline in pipelines.items():
        manifest = _manifest(options, language, pipeline, splits, place.files)
        own = with_labels(pipeline.fields)
        manifest.labels = {name: labels[name].fingerprint() for name in own}
        manifest.save(place.files)
    for name, file in with_labels(labels).items():
        labels[name].save(place.files / file)
    warn_of_unknown({name: table for name, table in labels.items() if table.is_given})


def _segmenter(options: Options, splits: list[_Split], files: Path) -> Segmenter:
    """Take the given subword model, or train one."""
    model = files / MODEL_NAMES[options.bpe]
    if options.bpe_model is not None:
        shutil.copyfile(options.bpe_model, model)
    else:
        texts = [side.corpus for side in splits[0].sides]
        train_segmenter(texts, model, options.vocab_size, options.sentencepiece_lines, options.seed)
    return load_segmenter(options.bpe, model)


def _encode(
    options: Options, split: _Split, segmenter: Segmenter, labels: dict[str, LabelTable]
) -> None:
    """Write a split's subwords as text and its parses as spilled arrays."""
    counts = split.counts
    with ExitStack() as stack:
        writers = [stack.enter_context(side.writer(labels)) for side in split.sides]
        pairs = zip(*(side.lines(segmenter) for side in split.sides), strict=True)
        total = split.sides[0].corpus.lines
        progress = tqdm(pairs, f"writing {split.name}", total, unit="line", smoothing=0.05)
        for number, pair in enumerate(progress, start=1):
            if not _wanted(options, split, number, pair):
                continue
            counts.kept += 1
            for side, writer, line in zip(split.sides, writers, pair, strict=True):
                writer.append(line)
                _count(counts, side.language, line)
    for side, writer in zip(split.sides, writers, strict=True):
        split.subwords[side.language] = writer.subwords
        if writer.parses is not None:
            split.parses[side.language] = writer.parses
    if not counts.kept:
        raise UserError(
            f"no sentence pair of {split.sides[0].corpus.path} is left: {counts.empty} have an empty "
            f"side, {counts.too_long} are longer than --max-length {options.max_length}, "
            f"{counts.skipped} have no parse"
        )


def _count(counts: SplitCounts, language: str, line: SideLine) -> None:
    counts.subwords[language] = counts.subwords.get(language, 0) + len(line.pieces)
    if line.encoded is not None:
        words = line.encoded.num_words
        counts.words[language] = counts.words.get(language, 0) + words
    if line.problem is not None:
        counts.flat[language] = counts.flat.get(language, 0) + 1


def _wanted(options: Options, split: _Split, number: int, pair: tuple[SideLine, ...]) -> bool:
    """Decide on a sentence pair. Test sets stay whole, line by line, so that references fit."""
    is_test = split.name.startswith("test")
    for side, line in zip(split.sides, pair, strict=True):
        if line.problem is not None and options.on_error == "stop":
            raise unparsed_error(side.corpus, number, line.problem)
    lengths = [len(line.pieces) for line in pair]
    if is_test:
        return True
    source, target = split.sides
    place = f"{at(source.corpus.path, number)} (and {target.corpus.path})"
    if max(lengths) > options.max_length:
        split.counts.too_long += 1
        problem = f"{max(lengths)} subwords, --max-length is {options.max_length}"
    elif not min(lengths):
        split.counts.empty += 1
        problem = "one side is empty"
    elif options.on_error == "skip" and any(line.problem is not None for line in pair):
        split.counts.skipped += 1
        return False
    else:
        return True
    if options.strict:
        raise UserError(f"{place}: {problem}; without --strict such pairs are left out and counted")
    return False


def _manifest(
    options: Options, language: str, pipeline: ParsingPipeline, splits: list[_Split], files: Path
) -> Manifest:
    manifest = Manifest(
        language=language,
        parser=resolve(pipeline.options.parser),
        parser_version=pipeline.parser.version,
        fields=list(pipeline.fields),
        constituents=pipeline.constituents,
        tokenized=pipeline.options.tokenized,
        bpe=options.bpe,
        bpe_model=MODEL_NAMES[options.bpe],
        dictionary=fingerprint(files / f"dict.{language}.txt"),
    )
    for split in splits:
        name, counts = f"{split.name}.{options.pair}", split.counts
        paths = split.parses[language].finish()
        paths += [files / f"{name}.{language}.{end}" for end in ("bin", "idx")]
        manifest.splits[name] = SplitRecord(
            counts.kept,
            counts.words.get(language, 0),
            counts.subwords.get(language, 0),
            {path.name: fingerprint(path) for path in paths},
            unparsed_skipped=counts.skipped,
            unparsed_flat=counts.flat.get(language, 0),
        )
    return manifest
