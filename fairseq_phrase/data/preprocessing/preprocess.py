"""Raw text to a fairseq data directory with parses next to the text."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fairseq_phrase.data.preprocessing.dictionaries import (
    LabelTable,
    count_labels,
    given_labels,
    make_dictionaries,
    manifests_of,
    warn_of_new_labels,
    warn_of_unknown,
)
from fairseq_phrase.data.preprocessing.first_pass import parse_and_count
from fairseq_phrase.data.preprocessing.input_checks import (
    check_destination,
    check_fields,
    check_list,
    check_models,
    check_texts,
)
from fairseq_phrase.data.preprocessing.manifests import (
    begin_manifest,
    finish_manifest,
    key_of,
    key_of_blocks,
    part_record,
)
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts, is_training
from fairseq_phrase.data.preprocessing.second_pass import write_split
from fairseq_phrase.data.preprocessing.segmentation import RawText
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.staging import staging_area
from fairseq_phrase.data.preprocessing.subword_models import find_models, make_segmenters
from fairseq_phrase.data.preprocessing.texts import Corpus, find_corpora, unchanged
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.identity import Identity
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import pipeline_entries
from fairseq_phrase.data.subwords.protected_tokens import JOINER, vocabulary_of
from fairseq_phrase.data.subwords.segmenters import SharedSegmenter, model_name
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers.pipeline import ParsingPipeline

logger = logging.getLogger(__name__)


def preprocess(options: Options) -> dict[str, SplitCounts]:
    """Write a data directory; return the counts of each split.

    If a run fails or is stopped, the earlier files are unchanged and finished parses are kept. The next
    run continues from them.

    Raises:
        UserError: the input is not usable; the message has the location and advice.
    """
    # Check what is given.
    if options.source_lang == options.target_lang:
        raise UserError(f"source and target language are both '{options.source_lang}'")
    if options.directory.exists() and not options.directory.is_dir():
        raise UserError(f"--destdir {options.directory} is a file: name a folder")
    # Fails early if a parser is not installed.
    pipelines = {name: ParsingPipeline(parsing) for name, parsing in options.parsing.items()}
    check_fields(options, pipelines)
    corpora, files = find_corpora(options, pipelines)
    check_list(options, files)
    check_texts(options, corpora, pipelines)
    check_models(options)
    options = _with_joiner(options)
    labels = _label_tables(options, pipelines)
    with staging_area(options.directory) as area:
        # Also splits that a stopped run has not yet moved there.
        check_destination(options)
        key = key_of(options, chain.from_iterable(corpora.values()), pipelines)
        is_slow = any(pipeline.is_slow for pipeline in pipelines.values())
        blocks = area.open_blocks(key_of_blocks(key, files), are_kept=is_slow)
        folders = [area.files / folder for folder in options.folders]
        with unchanged(files) as check:
            models = find_models(options, corpora, pipelines, blocks)
            segmenters = make_segmenters(options, models)
            # This loads the segmenters, which also fails before parsing.
            vocabularies = {
                language: vocabulary_of(segmenter.loaded)
                for language, segmenter in segmenters.items()
            }
            splits = _make_splits(options, corpora, pipelines, segmenters, folders)
            # First pass. Dictionaries and labels are then final.
            folders_of_blocks = parse_and_count(options, splits, blocks, check)
            dictionaries = make_dictionaries(options, splits, vocabularies)
            count_labels(splits, labels)
            # Second pass.
            for split in splits:
                write_split(options, split, folders_of_blocks[split.name], dictionaries, labels)
        for bpe, model in models.items():
            shutil.copyfile(model, folders[0] / model_name(bpe))
        for language, dictionary in dictionaries.items():
            dictionary.save(str(folders[0] / f"dict.{language}.txt"))
        for name, file in with_labels(labels).items():
            labels[name].save(folders[0] / file)
        for number, folder in enumerate(folders, start=1):
            _share(splits, folders[0], folder)
            part = part_record(key, files, number, options.parts) if options.parts > 1 else {}
            _write_manifests(options, splits, pipelines, labels, folder, part)
            if options.target_lang is None:
                _link_as_fairseq_names_them(splits, options.source_lang, folder)
        area.publish()
    warn_of_new_labels(labels)
    for split in splits:
        if options.labels is not None:
            warn_of_unknown(split, dictionaries[split.sides[1].language])
        _warn_of_changes(options, split)
    return {split.name: split.counts for split in splits}


def _with_joiner(options: Options) -> Options:
    """Let protected tokens be joined to words, unless a given dictionary lacks the joiner."""
    target = options.tgtdict if options.labels is None else None
    dictionaries = [load_dictionary(path) for path in (options.srcdict, target) if path is not None]
    if not options.protected or not all(JOINER in dictionary for dictionary in dictionaries):
        return options
    return replace(options, protected=[*options.protected, JOINER])


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


def _make_splits(
    options: Options,
    corpora: Mapping[str, Sequence[Corpus]],
    pipelines: Mapping[str, ParsingPipeline],
    segmenters: Mapping[str, SharedSegmenter],
    folders: Sequence[Path],
) -> list[Split]:
    """Describe the splits to be made of texts; each training text is divided among all folders."""
    splits = []
    for name, texts in corpora.items():
        sides = []
        for language, corpus in zip(options.languages, texts, strict=False):
            pipeline = pipelines.get(language)
            fields = () if pipeline is None else pipeline.fields
            sides.append(RawText(language, corpus, pipeline, fields, segmenters[language]))
        # Test sets keep every line to match their references. Text of one language has no references.
        is_whole = name.startswith("test") and options.target_lang is not None
        split = Split(name, options.split_name(name), sides, is_whole)
        split.write_to(folders if is_training(name) else folders[:1])
        splits.append(split)
    return splits


def _write_manifests(
    options: Options,
    splits: Sequence[Split],
    pipelines: Mapping[str, ParsingPipeline],
    labels: Mapping[str, LabelTable],
    folder: Path,
    part: dict[str, str],
) -> None:
    outputs = [
        (split, output)
        for split in splits
        for output in split.outputs
        if output.folder == folder or not is_training(split.name)
    ]
    for language, pipeline in pipelines.items():
        kinds = dict.fromkeys(map(options.bpe_of, (language, *options.languages)))
        manifest = begin_manifest(
            options, language, pipeline, folder / f"dict.{language}.txt",
            *(None if bpe == WHOLE_WORDS else folder / model_name(bpe) for bpe in kinds),
        )  # fmt: skip
        finish_manifest(manifest, pipeline, outputs, labels)
        manifest.part = part
        manifest.save(folder)


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


def _warn_of_changes(options: Options, split: Split) -> None:
    """Warn about lines that segmentation changes, with options that keep the text, if there are any."""
    advice = ""
    if options.bpe == "sentencepiece" and options.bpe_model is not None:
        advice = " (a model that is trained here keeps its text)"
    elif options.trains_sentencepiece and options.characters.normal_form != "identity":
        advice = f" (--normal-form {options.characters.normal_form}; identity keeps the text)"
    counts = split.counts
    warnings = [
        f"{count} of the {counts.kept} lines of {split.name}.{language} change when they are split into "
        f"subwords and joined again, so a model cannot read or write them as they are{advice}:\n  "
        + "\n  ".join(split.changed[language])
        for language, count in counts.changed.items()
    ]
    if warnings:
        logger.warning("\n".join(warnings))
