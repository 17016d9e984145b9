"""Raw text to a fairseq data directory with parses next to the text."""

from __future__ import annotations

import filecmp
import logging
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path

from fairseq.data import Dictionary

from fairseq_phrase.data.preprocessing.dictionaries import (
    check_copy_words,
    check_slots,
    make_dictionaries,
    number_split,
)
from fairseq_phrase.data.preprocessing.encoded_blocks import SHOWN, RawBlock, warning_of
from fairseq_phrase.data.preprocessing.existing_parses import (
    given_labels,
    manifests_of,
    warn_of_new_labels,
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
    WrittenParts,
    blocks_of_parts,
    key_of,
    part_record,
    write_parts,
)
from fairseq_phrase.data.preprocessing.sentencepiece_training import (
    CharacterOptions,
    train_segmenter,
)
from fairseq_phrase.data.preprocessing.split_writer import (
    InputText,
    Side,
    Split,
    Totals,
    begin_manifest,
    finish_manifest,
    parse_and_write,
)
from fairseq_phrase.data.preprocessing.staging import StagingArea, staging_area
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest, languages_in, model_entry, pipeline_entries
from fairseq_phrase.data.store.outputs import Key
from fairseq_phrase.data.store.writer import LabelTable
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens
from fairseq_phrase.data.subwords.segmenters import (
    Gpt2Segmenter,
    SharedSegmenter,
    WholeWords,
    find_segmenter,
    load_segmenter,
    model_name,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import digest_of, find_text, read_lines

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
        for language in _languages_of(options, name, prefix):
            files |= files_of(find_text(prefix, language), pipelines.get(language))
    corpora = {
        name: _find_split(options, files, name, prefix) for name, prefix in options.splits.items()
    }
    for name, texts in corpora.items():
        if is_training(name):
            blocks_of_parts(texts[0], options.parts)
    _check_early(options)
    options = _with_joiner(options)
    labels = _label_tables(options, pipelines)
    with staging_area(options.directory, in_parts=options.parts > 1) as area:
        # Also splits that a stopped run has not yet moved there.
        for folder in options.folders:
            _refuse_to_forget(options, options.directory / folder)
        _refuse_other_parts(options)
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


def _refuse_other_parts(options: Options) -> None:
    """Stop if DESTDIR holds parts of an earlier run that this run would not replace."""
    if options.parts > 1:
        there = {path.name for path in options.directory.glob("data*") if path.name[4:].isdigit()}
        if other_folders := sorted(there - set(options.folders)):
            raise UserError(
                f"{options.directory} also holds {', '.join(other_folders)}, which are not among the "
                f"{options.parts} parts that this run makes: remove them, or name another --destdir"
            )


def _refuse_to_forget(options: Options, directory: Path) -> None:
    """Stop if a data directory holds text or parses that this run would not make again.

    They would lose their manifest, dictionaries and label numbers. Text of another language pair can
    stay if its dictionary is given.
    """
    names = {options.split_name(name) for name in options.splits}
    names_of_texts = {
        f"{options.split_name(name)}.{language}"
        for name, prefix in options.splits.items()
        for language in _languages_of(options, name, prefix)
    }
    dictionary_paths = dict(
        zip(options.languages, (options.srcdict, options.tgtdict), strict=False)
    )
    for language in options.languages:
        texts = {path.stem for path in directory.glob(f"*.{language}.idx")} - names_of_texts
        lost = {
            text
            for text in texts
            if not any(text.startswith(f"{name}.") for name in names_of_texts)
        }
        dictionary, path = directory / f"dict.{language}.txt", dictionary_paths[language]
        if (
            path is not None
            and dictionary.is_file()
            and filecmp.cmp(path, dictionary, shallow=False)
        ):
            lost &= {f"{name}.{language}" for name in names}
        if Manifest.path(directory, language).is_file():
            manifest = Manifest.load(directory, language)
            if options.parts == 1 and (part := manifest.part):
                raise UserError(
                    f"{directory} is part {part['number']} of {part['of']} of a text, and this run would "
                    "make the whole: name another --destdir"
                )
            lost |= set(manifest.splits) - names
            if language not in options.parsing:
                lost.add(f"parses of {language}")
        if lost:
            raise UserError(
                f"{directory} also holds {', '.join(sorted(lost))}, which this run does not "
                "make: name all splits and languages in one run, or another --destdir"
            )


def _check_reused(options: Options) -> None:
    """Compare each side's segmentation with the segmentation behind its given dictionary."""
    for language, path in zip(options.languages, (options.srcdict, options.tgtdict), strict=False):
        # The target's dictionary may contain labels, which are not segmented.
        if path is None or (options.labels is not None and language == options.target_lang):
            continue
        manifests = {name: Manifest.load(path.parent, name) for name in languages_in(path.parent)}
        side = path.name.removeprefix("dict.").removesuffix(".txt")
        manifest = manifests.get(side) or next(iter(manifests.values()), None)
        model = _subword_entry(options, language)
        reused_model = manifest.subword_model_of(side) if manifest is not None else None
        if reused_model is None and not model.value:
            reused_model = Entry("unknown", f"the one that made {path}", model.part)
        name = "subword-model" if model.part == "text" else "target-subword-model"
        reused, current = (
            ({name: reused_model}, {name: model}) if reused_model is not None else ({}, {})
        )
        protected = manifests[side].protected if side in manifests else []
        protected = [token for token in protected if token != JOINER]  # the joiner is added later
        # Labels of words and text of one language cannot have protected tokens.
        can_have = options.target_lang is not None and options.labels != "word"
        if can_have and not set(protected) <= set(options.protected):
            for entries, tokens in ((reused, protected), (current, options.protected)):
                value = ",".join(tokens)
                entries["protected-tokens"] = Entry(value, value or "none", "data")
        options.check(Identity(reused), Identity(current), "reuse", path)


def _subword_entry(options: Options, language: str) -> Entry:
    """Return the entry of a language's segmentation in this run, with an empty value for a new model."""
    bpe, model = options.bpe_of(language), options.model_of(language)
    part = "text" if bpe == options.bpe else "target-text"
    if bpe == WHOLE_WORDS:
        return Entry(bpe, f"--bpe {bpe}", part)
    return model_entry(model, digest_of(model), part) if model else Entry("", "a new one", part)


def _check_early(options: Options) -> None:
    """Check before hours of parsing that nothing will be missing afterwards."""
    check_copy_words(options)
    if options.target_model is not None:
        load_segmenter("sentencepiece", options.target_model)
    if options.characters != CharacterOptions() and not options.trains_sentencepiece:
        raise UserError(
            "--normal-form, --character-coverage and --byte-fallback are for a SentencePiece model that "
            "is trained here; a given model has its own"
        )
    if options.bpe != WHOLE_WORDS:
        find_segmenter(options.bpe)
    if options.bpe == WHOLE_WORDS:
        pass
    elif options.bpe_model is not None:
        load_segmenter(options.bpe, options.bpe_model)
    elif options.bpe != "sentencepiece":
        raise UserError(f"--bpe {options.bpe} needs the model that it learned: --bpe-codes FILE")
    elif "train" not in options.splits:
        raise UserError(
            "without --trainpref there is no text to train SentencePiece on: give the training "
            "data's model with --sentencepiece-model, and its --srcdict and --tgtdict"
        )
    dictionary_paths = [path for path in (options.srcdict, options.tgtdict) if path is not None]
    for path in dictionary_paths:
        entries = load_dictionary(path).indices
        check_slots(path, entries, options)
        if options.bpe == "gpt2" and options.bpe_model is not None:
            Gpt2Segmenter(options.bpe_model).check(path, entries)
    _check_reused(options)
    needed = 1 if options.joined_dictionary else len(options.languages)
    if "train" not in options.splits and len(dictionary_paths) < needed:
        names = " and ".join(("--srcdict", "--tgtdict")[: len(options.languages)])
        raise UserError(f"without --trainpref, give the training data's {names}")


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
            options.check(manifest.identity().only("parser"), current, "reuse", folder)
    return {
        name: LabelTable(dictionaries.get(name), may_grow=name not in dictionaries)
        for name in with_labels(fields)
    }


def _languages_of(options: Options, name: str, prefix: str) -> tuple[str, ...]:
    """Return a split's languages; a test set of new text may lack the target."""
    languages = options.languages
    needed = options.labels or options.copy_words or languages[-1] in options.parsing
    target = Path(f"{prefix}.{languages[-1]}")
    is_there = target.exists() or Path(f"{target}.gz").exists()
    if needed or is_there or not name.startswith("test"):
        return languages
    return languages[:1]


def _find_split(
    options: Options, files: dict[Path, str], name: str, prefix: str
) -> tuple[Corpus, ...]:
    """Find a split's texts and count their lines. This also checks their encoding."""
    corpora = []
    for language in _languages_of(options, name, prefix):
        path = find_text(prefix, language)
        lines = sum(1 for _ in read_lines(path))
        corpora.append(Corpus(f"{name}.{language}", path, lines, files[path]))
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
    written: WrittenParts | None = None
    key: Key = {}
    if options.parts > 1:
        key = key_of(options, (text for texts in corpora.values() for text in texts), pipelines)
        written = WrittenParts(area, key)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    # This is done before parsing, because it fails sooner.
    segmenters = _segmenters(options, corpora, first, pipelines)
    # This loads the segmenters, which also fails before parsing.
    vocabularies = {
        language: getattr(segmenter.loaded, "vocabulary", ())
        for language, segmenter in segmenters.items()
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
    if written is None:
        parse_and_write(options, splits, totals, area.parses)
    else:
        write_parts(options, splits, totals, area.parses, written)
    dictionaries = make_dictionaries(options, totals.subwords, vocabularies)
    for language, dictionary in dictionaries.items():
        dictionary.save(str(first / f"dict.{language}.txt"))
    for split in splits:
        if written is None or not written.load(split):
            _finish(options, split, labels, dictionaries)
            if written is not None:
                written.finish(split)
        split.close()
    for name, file in with_labels(labels).items():
        labels[name].save(first / file)
    warn_of_new_labels(labels)
    for number, folder in enumerate(folders, start=1):
        splits_of_folder = splits
        if written is not None:
            splits_of_folder = [
                split for split in splits if not is_training(split.name) or split.part == number
            ]
            _share(options, splits, first, folder)
        for language, pipeline in pipelines.items():
            manifest = begin_manifest(
                options, language, pipeline, folder / f"dict.{language}.txt",
                *_models_of(options, language, folder),
            )  # fmt: skip
            finish_manifest(manifest, options, pipeline, splits_of_folder, labels)
            if written is not None:
                manifest.part = part_record(key, number, options.parts)
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
        blocks = blocks_of_parts(texts[0].corpus, options.parts)
    for number, (folder, part) in enumerate(zip(folders, blocks, strict=False), start=1):
        prefix = folder / options.split_name(name)
        sides = tuple(Side(text, Path(f"{prefix}.{text.language}")) for text in texts)
        yield Split(name, sides, is_whole, number if options.parts > 1 else 0, part)


def _models_of(options: Options, language: str, folder: Path) -> list[Path | None]:
    """Return the subword model of a language and, if it differs, that of the other language."""
    kinds = dict.fromkeys(map(options.bpe_of, (language, *options.languages)))
    return [None if bpe == WHOLE_WORDS else folder / model_name(bpe) for bpe in kinds]


def _share(options: Options, splits: Sequence[Split], first: Path, folder: Path) -> None:
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
