"""What is checked before anything is parsed or written: the options, and the files that they name.

:func:`check_models` and :func:`check_destination` are called once, in this order, by preprocessing.
"""

from __future__ import annotations

import filecmp
import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path

from fairseq_phrase.data.preprocessing.options import CharacterOptions, Options
from fairseq_phrase.data.preprocessing.texts import Corpus, languages_with_text
from fairseq_phrase.data.store.copied_words import number_of_slots, slot
from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest, languages_in, model_entry
from fairseq_phrase.data.subwords.protected_tokens import JOINER
from fairseq_phrase.data.subwords.segmenters import (
    Gpt2Segmenter,
    find_segmenter,
    is_mistakable,
    load_segmenter,
)
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.parsers.whitespace import SEPARATOR, FactoredText
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of, read_lines

logger = logging.getLogger(__name__)


def check_models(options: Options) -> None:
    """Check the given subword models and dictionaries before hours of parsing.

    Raises:
        UserError: one is missing or unusable, or they do not belong together.
    """
    _check_copy_words(options)
    if options.target_model is not None:
        load_segmenter("sentencepiece", options.target_model)
    if options.characters != CharacterOptions() and not options.trains_sentencepiece:
        raise UserError(
            "--normal-form, --character-coverage and --byte-fallback are for a SentencePiece model that "
            "is trained here; a given model has its own"
        )
    if options.bpe == WHOLE_WORDS or options.bpe_model is not None:
        load_segmenter(options.bpe, options.bpe_model)
    elif options.bpe != "sentencepiece":
        find_segmenter(options.bpe)
        raise UserError(f"--bpe {options.bpe} needs the model that it learned: --bpe-codes FILE")
    elif "train" not in options.splits:
        raise UserError(
            "without --trainpref there is no text to train SentencePiece on: give the training "
            "data's model with --sentencepiece-model, and its --srcdict and --tgtdict"
        )
    dictionary_paths = [path for path in (options.srcdict, options.tgtdict) if path is not None]
    for path in dictionary_paths:
        entries = load_dictionary(path).indices
        _check_slots(path, entries, options)
        if options.bpe == "gpt2" and options.bpe_model is not None:
            Gpt2Segmenter(options.bpe_model).check(path, entries)
    _check_reused(options)
    needed = 1 if options.joined_dictionary else len(options.languages)
    if "train" not in options.splits and len(dictionary_paths) < needed:
        names = " and ".join(("--srcdict", "--tgtdict")[: len(options.languages)])
        raise UserError(f"without --trainpref, give the training data's {names}")


def _check_copy_words(options: Options) -> None:
    """Check that the options are compatible with ``--copy-words``.

    Raises:
        UserError: the data are not parallel, or have two dictionaries.
    """
    if not options.copy_words:
        return
    if options.target_lang is None or options.labels is not None:
        raise UserError(
            "--copy-words is for parallel text: leave it out for labels and one language"
        )
    if not options.joined_dictionary:
        raise UserError(
            "--copy-words needs --joined-dictionary: a word that is copied has one entry for source and "
            "target"
        )


def _check_slots(path: Path, indices: Mapping[str, int], options: Options) -> None:
    """Check that a given dictionary has as many slots as ``--copy-words`` asks for.

    Raw text uses all slots of a dictionary, so data that use fewer slots differ from it.

    Raises:
        UserError: the dictionary has fewer or more slots.
    """
    slots = number_of_slots(indices)
    if options.copy_words and slots != options.copy_words:
        advice = f"give --copy-words {slots}, or another dictionary"
        if not slots:
            advice = "give the dictionary of data that were made with --copy-words, or none"
        raise UserError(
            f"--copy-words {options.copy_words}: {path} has {slots} slots ({slot(1)}, …): {advice}"
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
        options.check(Identity(reused, where=path), Identity(current))


def _subword_entry(options: Options, language: str) -> Entry:
    """Return the entry of a language's segmentation in this run, with an empty value for a new model."""
    bpe, model = options.bpe_of(language), options.model_of(language)
    part = "text" if bpe == options.bpe else "target-text"
    if bpe == WHOLE_WORDS:
        return Entry(bpe, f"--bpe {bpe}", part)
    return model_entry(model, digest_of(model), part) if model else Entry("", "a new one", part)


def check_fields(options: Options, pipelines: Mapping[str, ParsingPipeline]) -> None:
    """Check that the dictionaries of text and of the parses' labels have different names.

    Tags are left out of the parses if their dictionary has the name of the label side's.

    Raises:
        UserError: the dictionary of a field has the name of a text's dictionary, ``dict.LANGUAGE.txt``.
    """
    has_labels, dictionary = options.labels is not None, f"dict.{options.target_lang}.txt"
    if has_labels and dictionary == FIELDS["tags"].label_file:
        pipeline = pipelines[options.source_lang]
        pipeline.fields = tuple(field for field in pipeline.fields if field != "tags")
    for pipeline in pipelines.values():
        files = {file: name for name, file in with_labels(pipeline.fields).items()}
        for language in options.languages:
            if name := files.get(f"dict.{language}.txt"):
                raise UserError(
                    f"the language {language}: dict.{language}.txt is the dictionary of the parses' "
                    f"{name}: give the files of this language another suffix"
                )


def check_texts(
    options: Options,
    corpora: Mapping[str, Sequence[Corpus]],
    pipelines: Mapping[str, ParsingPipeline],
) -> None:
    """Check that every word or line has its label (``--labels``), and that no text is of other labels.

    A text of words with labels (``Haus￨NOUN``) that is read as plain text is a warning.
    """
    if options.labels is not None:
        for source, target in corpora.values():
            check_labels(source.path, target.path, options.labels)
    for text in chain.from_iterable(corpora.values()):
        language = text.name.rpartition(".")[2]
        if language in pipelines and isinstance(pipelines[language].parser, FactoredText):
            continue
        words = [word for line in islice(read_lines(text.path), 100) for word in line.split()]
        labelled = [word for word in words if SEPARATOR in word.strip(SEPARATOR)]
        if len(labelled) > len(words) / 2:
            logger.warning(
                "%s has labels in its text, such as %s, which stay there: remove them, or give "
                "--parser factored (for the target, --parse both --target-parser factored)",
                text.path, labelled[0],
            )  # fmt: skip


def check_labels(text: Path, labels: Path, per: str) -> None:
    """Check that every word, or every line, has one label.

    Args:
        text: the text; words are separated by white space.
        per: one of :data:`fairseq_phrase.option_values.LABELLED`.

    Raises:
        UserError: a line has no words, has more or fewer labels than needed, or has a label that fairseq
            would misread.
    """
    # Files with different numbers of lines have a separate message.
    for number, (line, label_line) in enumerate(
        zip(read_lines(text), read_lines(labels), strict=False), start=1
    ):
        words, line_labels = line.split(), label_line.split()
        if not words:
            raise UserError(
                f"{location(text, number)} is empty, and a label needs text: remove this line here and "
                f"in {labels}"
            )
        if per == "word" and len(line_labels) != len(words):
            raise UserError(
                f"{location(text, number)} has {len(words)} words, and {location(labels, number)} has "
                f"{len(line_labels)} labels: --labels word needs one label for each word, with white "
                "space between words and between labels"
            )
        if per == "sentence" and len(line_labels) != 1:
            raise UserError(
                f"{location(labels, number)} has {len(line_labels)} labels: --labels sentence needs one "
                "label without white space on each line"
            )
        for label in line_labels:
            if is_mistakable(label):
                raise UserError(
                    f"{location(labels, number)}: the label {label} is a special symbol of fairseq: "
                    "rename it"
                )


def check_list(options: Options, files: Iterable[Path]) -> None:
    """Check the file of ``--list-left-out``, which is written over.

    Args:
        files: the texts, and the files of parses.

    Raises:
        UserError: it is a folder, or a file that the run reads.
    """
    path = options.list_left_out
    if path is None or not path.exists():
        return
    if path.is_dir():
        raise UserError(f"--list-left-out {path} is a folder: name a file")
    given = (options.srcdict, options.tgtdict, options.bpe_model, options.target_model)
    read = [*files, *(file for file in given if file is not None and file.exists())]
    if any(map(path.samefile, read)):
        raise UserError(
            f"--list-left-out {path} is a file that this run reads, and would be written over: name "
            "another one"
        )


def check_destination(options: Options) -> None:
    """Check what the data directory already holds.

    Raises:
        UserError: it has text, parses or parts that this run would not make again.
    """
    for folder in options.folders:
        _refuse_to_forget(options, options.directory / folder)
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
        for language in languages_with_text(options, name, prefix)
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
