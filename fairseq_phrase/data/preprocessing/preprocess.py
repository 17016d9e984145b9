"""Raw text to a fairseq data directory with parses next to the text."""

from __future__ import annotations

import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, cycle
from pathlib import Path

from fairseq_phrase.data.preprocessing.dictionaries import (
    make_dictionaries,
    number_split,
)
from fairseq_phrase.data.preprocessing.encoded_blocks import SHOWN, RawBlock, warning_of
from fairseq_phrase.data.preprocessing.existing_parses import (
    given_labels,
    manifests_of,
    warn_of_new_labels,
)
from fairseq_phrase.data.preprocessing.input_checks import (
    check_directory,
    check_models,
    languages_of,
    warn_of_labels,
)
from fairseq_phrase.data.preprocessing.labelled import (
    check_labels,
    count_unknown,
    leave_out_tags,
    refuse_names_of_labels,
)
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts, is_training
from fairseq_phrase.data.preprocessing.parsing import Corpus, files_of, unchanged
from fairseq_phrase.data.preprocessing.parts import (
    WholeRun,
    WrittenParts,
    blocks_of_parts,
    key_of,
)
from fairseq_phrase.data.preprocessing.sentencepiece_training import (
    train_segmenter,
)
from fairseq_phrase.data.preprocessing.split_writer import (
    InputText,
    Side,
    Split,
    Totals,
    begin_manifest,
    finish_manifest,
)
from fairseq_phrase.data.preprocessing.staging import StagingArea, staging_area
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.identity import Identity
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import pipeline_entries
from fairseq_phrase.data.store.writer import LabelTable
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens
from fairseq_phrase.data.subwords.segmenter import vocabulary_of
from fairseq_phrase.data.subwords.segmenters import (
    SharedSegmenter,
    WholeWords,
    model_name,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import find_text, read_lines

logger = logging.getLogger(__name__)
_Corpora = dict[str, tuple[Corpus, ...]]  # source and target, by the split's name


def preprocess(options: Options) -> dict[str, SplitCounts]:
    """Write a data directory; return the counts of each split.

    If a run fails or is stopped, the earlier files are unchanged and finished parses are kept. The next
    run continues from them.

    Raises:
        UserError: the input is not usable; the message has the location and advice.
    """
    if options.source_lang == options.target_lang:
        raise UserError(f"source and target language are both '{options.source_lang}'")
    if options.directory.exists() and not options.directory.is_dir():
        raise UserError(f"--destdir {options.directory} is a file: name a folder")
    # Fails early if a parser is not installed.
    pipelines = {name: ParsingPipeline(parsing) for name, parsing in options.parsing.items()}
    if options.labels is not None:
        leave_out_tags(pipelines[options.source_lang], options.languages[1])
    for pipeline in pipelines.values():
        refuse_names_of_labels(pipeline.fields, options.languages)
    files: dict[Path, str] = {}
    for name, prefix in options.splits.items():
        for language in languages_of(options, name, prefix):
            files |= files_of(find_text(prefix, language), pipelines.get(language))
    corpora = {
        name: _find_split(options, files, name, prefix) for name, prefix in options.splits.items()
    }
    for name, texts in corpora.items():
        if is_training(name):
            blocks_of_parts(texts[0])
    warn_of_labels(chain.from_iterable(corpora.values()), pipelines)
    check_models(options)
    options = _with_joiner(options)
    labels = _label_tables(options, pipelines)
    with staging_area(options.directory, in_parts=options.parts > 1) as area:
        # Also splits that a stopped run has not yet moved there.
        check_directory(options)
        with unchanged(files):
            splits = _make(options, corpora, area, pipelines, labels)
        area.publish()
    counts: dict[str, SplitCounts] = {}
    changed: dict[str, defaultdict[str, list[str]]] = {}
    for split in splits:
        counts.setdefault(split.name, SplitCounts()).add(split.counts)
        lines = changed.setdefault(split.name, defaultdict(list))
        for language, changed_lines in split.changed.items():
            lines[language] += changed_lines[: SHOWN - len(lines[language])]
    for name, lines in changed.items():
        if warning := warning_of(name, counts[name], lines, _advice(options)):
            logger.warning(warning)
    return counts


def _with_joiner(options: Options) -> Options:
    """Let protected tokens be joined to words, unless a given dictionary lacks the joiner."""
    target = options.tgtdict if options.labels is None else None
    dictionaries = [load_dictionary(path) for path in (options.srcdict, target) if path is not None]
    if not options.protected or not all(JOINER in dictionary for dictionary in dictionaries):
        return options
    return replace(options, protected=[*options.protected, JOINER])


def _advice(options: Options) -> str:
    """Return advice on keeping text that a subword model changes; empty if there is none."""
    if options.bpe == "sentencepiece" and options.bpe_model is not None:
        return " (a model that is trained here keeps its text)"
    if options.trains_sentencepiece and options.characters.normal_form != "identity":
        return f" (--normal-form {options.characters.normal_form}; identity keeps the text)"
    return ""


def _label_tables(options: Options, pipelines: dict[str, ParsingPipeline]) -> dict[str, LabelTable]:
    """Open the tables of labels, by field: tables of given dictionaries, and new tables."""
    fields = {name for pipeline in pipelines.values() for name in pipeline.fields}
    folder = options.label_folder
    dictionaries = given_labels(
        folder, fields, pipelines, all_of_them=options.labeldict is not None
    )
    if folder is not None and dictionaries:
        for language, manifest in manifests_of(folder, pipelines).items():
            current = Identity(pipeline_entries(pipelines[language]))
            options.check(manifest.identity(folder).only("parser"), current)
    return {
        name: LabelTable(dictionaries.get(name), may_grow=name not in dictionaries)
        for name in with_labels(fields)
    }


def _find_split(
    options: Options, files: dict[Path, str], name: str, prefix: str
) -> tuple[Corpus, ...]:
    """Find a split's texts and count their lines. This also checks their encoding."""
    corpora = []
    for language in languages_of(options, name, prefix):
        path = find_text(prefix, language)
        lines = sum(1 for _ in read_lines(path))
        parts = options.parts if is_training(name) else 1
        corpora.append(Corpus(f"{name}.{language}", path, lines, files[path], parts=parts))
    source, target = corpora[0], corpora[-1]
    if source.lines != target.lines:
        raise UserError(
            f"{source.path} has {source.lines} lines and {target.path} has {target.lines}: the two "
            "sides must be parallel, line by line"
        )
    if not source.lines:
        are = "is" if source is target else f"and {target.path} are"
        raise UserError(f"{source.path} {are} empty")
    if options.labels is not None:
        check_labels(source.path, target.path, options.labels)
    return tuple(corpora)


def _make(
    options: Options,
    corpora: _Corpora,
    area: StagingArea,
    pipelines: dict[str, ParsingPipeline],
    labels: dict[str, LabelTable],
) -> list[Split]:
    """Make all files of the data directory."""
    folders = [area.files / folder for folder in options.folders]
    first = folders[0]
    run: WholeRun | WrittenParts = WholeRun()
    if options.parts > 1:
        key = key_of(options, (text for texts in corpora.values() for text in texts), pipelines)
        run = WrittenParts(area, key)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    # This is done before parsing, because it fails sooner.
    segmenters = _segmenters(options, corpora, first, pipelines)
    # This loads the segmenters, which also fails before parsing.
    vocabularies = {
        language: vocabulary_of(segmenter.loaded) for language, segmenter in segmenters.items()
    }
    texts = {
        name: [
            InputText(
                RawBlock(language, _fields_of(pipelines, language), segmenters[language]),
                corpus,
                pipelines.get(language),
            )
            for language, corpus in zip(options.languages, pair, strict=False)
        ]
        for name, pair in corpora.items()
    }
    splits = [split for name in texts for split in _splits(options, name, texts[name], folders)]
    totals = Totals(labels)
    run.write(options, splits, totals, area.parses)
    dictionaries = make_dictionaries(options, totals.subwords, vocabularies)
    for language, dictionary in dictionaries.items():
        dictionary.save(str(first / f"dict.{language}.txt"))
    for split in splits:
        if not run.is_finished(split):
            _finish(options, split, labels, dictionaries)
            run.finish(split)
        split.close()
    for name, file in with_labels(labels).items():
        labels[name].save(first / file)
    warn_of_new_labels(labels)
    for number, folder in enumerate(folders, start=1):
        splits_of_folder = [
            split for split in splits if not is_training(split.name) or split.part in (0, number)
        ]
        _share(splits, first, folder)
        for language, pipeline in pipelines.items():
            manifest = begin_manifest(
                options, language, pipeline, folder / f"dict.{language}.txt",
                *_models_of(options, language, folder),
            )  # fmt: skip
            finish_manifest(manifest, options, pipeline, splits_of_folder, labels)
            manifest.part = run.record(number, options.parts)
            manifest.save(folder)
        if options.target_lang is None:
            _link_as_fairseq_names_them(splits_of_folder, options.source_lang, folder)
    return splits


def _fields_of(pipelines: dict[str, ParsingPipeline], language: str) -> Sequence[str]:
    return pipelines[language].fields if language in pipelines else ()


def _splits(
    options: Options, name: str, texts: Sequence[InputText], folders: Sequence[Path]
) -> Iterator[Split]:
    """Yield the splits to be made of texts: one for each part of a training text."""
    # Test sets keep every line to match their references. Text of one language has no references.
    is_whole = name.startswith("test") and options.target_lang is not None
    blocks: Sequence[range | None] = [None]
    if options.parts > 1 and is_training(name):
        blocks = blocks_of_parts(texts[0].corpus)
    for number, (folder, part) in enumerate(zip(folders, blocks, strict=False), start=1):
        prefix = folder / options.split_name(name)
        sides = tuple(Side(text, Path(f"{prefix}.{text.language}")) for text in texts)
        yield Split(name, sides, is_whole, number if options.parts > 1 else 0, part)


def _models_of(options: Options, language: str, folder: Path) -> list[Path | None]:
    """Return the subword model of a language and, if it differs, that of the other language."""
    kinds = dict.fromkeys(map(options.bpe_of, (language, *options.languages)))
    return [None if bpe == WHOLE_WORDS else folder / model_name(bpe) for bpe in kinds]


def _share(splits: Sequence[Split], first: Path, folder: Path) -> None:
    """Link all files of the first part that every part needs: dictionaries, models, test sets."""
    trained = {f"{split.name}." for split in splits if is_training(split.name)}
    for path in first.iterdir():
        is_shared = not path.name.startswith((*trained, "syntax."))
        if folder != first and is_shared:
            _link(path, folder / path.name)


def _link(path: Path, other: Path) -> None:
    other.unlink(missing_ok=True)
    try:
        other.hardlink_to(path)
    except OSError:  # the file system does not support links
        shutil.copyfile(path, other)


def _link_as_fairseq_names_them(splits: list[Split], language: str, files: Path) -> None:
    """Link text of one language also as ``train.bin`` and ``dict.txt``.

    fairseq's own ``masked_lm`` and ``language_modeling`` read these names. The parses need the names
    with the language.
    """
    names = {f"dict.{language}.txt": "dict.txt"}
    for split in splits:
        names |= {f"{split.name}.{language}.{end}": f"{split.name}.{end}" for end in ("bin", "idx")}
    for name, link in names.items():
        _link(files / name, files / link)


def _segmenters(
    options: Options, corpora: _Corpora, files: Path, pipelines: dict[str, ParsingPipeline]
) -> dict[str, SharedSegmenter]:
    """Make the segmenter of each language; labels stay whole."""
    segmenters = {}
    for bpe in dict.fromkeys(map(options.bpe_of, options.languages)):
        model = _subword_model(options, bpe, corpora, files, pipelines)
        every_word = options.labels == "word"
        segmenters[bpe] = SharedSegmenter(bpe, model, options.protected, every_word=every_word)
    if options.labels is None:
        return {language: segmenters[options.bpe_of(language)] for language in options.languages}
    labels = SharedSegmenter(WHOLE_WORDS, None)
    return {options.source_lang: segmenters[options.bpe], options.languages[1]: labels}


def _cleaned(clean: Callable[[str], str], protected: ProtectedTokens, line: str) -> str:
    return clean(protected.separate(line)[0])


def _subword_model(
    options: Options,
    bpe: str,
    corpora: _Corpora,
    files: Path,
    pipelines: dict[str, ParsingPipeline],
) -> Path | None:
    """Return the given subword model of a kind, or train one; None for whole words."""
    if bpe == WHOLE_WORDS:
        return None
    model = files / model_name(bpe)
    given_model = options.bpe_model if bpe == options.bpe else options.target_model
    if given_model is not None:
        shutil.copyfile(given_model, model)
    elif not model.is_file():  # with parts, an earlier run may have trained it
        sample, seed = options.sentencepiece_lines, options.seed
        cleaned = []
        training = (text for name, texts in corpora.items() if is_training(name) for text in texts)
        for language, text in zip(cycle(options.languages), training):
            parser = pipelines[language].parser if language in pipelines else None
            clean = parser.text_of if isinstance(parser, LineParser) else str
            if options.protected:
                protected = ProtectedTokens(WholeWords(), options.protected)
                clean = partial(_cleaned, clean, protected)
            are_labels = options.labels is not None and language == options.target_lang
            if options.bpe_of(language) == bpe and not are_labels:
                cleaned.append((text, clean))
        train_segmenter(cleaned, model, options.vocab_size, sample, seed, options.characters)
    return model


def _finish(
    options: Options,
    split: Split,
    labels: dict[str, LabelTable],
    dictionaries: Mapping[str, Dictionary],
) -> None:
    """Write text and parses of a split."""
    if options.labels is not None:
        written = split.sides[1].subwords
        labels_in_training = dictionaries[options.languages[1]]
        split.counts.unknown_labels = count_unknown(split.name, written, labels_in_training)
    if options.copy_words:
        entries = dictionaries[options.source_lang].indices
        texts = [side.text for side in split.sides if side.text is not None]
        source = split.sides[0]
        source.vouch_for(number_split(texts, source.prefix, entries, options))
    for side in split.sides:
        side.finish(labels, dictionaries[side.language])
        split.counts.unknown[side.language] = 0 if side.text is None else side.text.unknown
