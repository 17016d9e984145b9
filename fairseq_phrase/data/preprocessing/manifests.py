"""The manifests of a run: what the files were made with, and the key of what they depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path

from fairseq_phrase.data.preprocessing import texts
from fairseq_phrase.data.preprocessing.dictionaries import LabelTable
from fairseq_phrase.data.preprocessing.options import Options
from fairseq_phrase.data.preprocessing.splits import Output, Split
from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.store.layout import ATTACH, PREPROCESS, with_labels
from fairseq_phrase.data.store.manifest import Manifest, SplitRecord, fingerprint
from fairseq_phrase.data.store.outputs import Key, as_bytes
from fairseq_phrase.parsers import resolve
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.text import digest_of

#: Options that a later run may change, with the reasons. All others are part of the key.
FREE = {
    "directory": "where the data are",
    "splits": "the key has the content of the texts",
    "engine": "the parses do not depend on it",
    "max_flat": "only decides whether a run stops",
    "allow_difference": "only decides whether a run stops",
    "allowed": "follows from allow_difference",
    "labeldict": "the key has the content of the dictionaries",
}
# Parts of the key on which blocks do not depend: dictionaries are made after them.
_OF_DICTIONARIES = {
    "min_count", "copy_words", "joined_dictionary", "srcdict", "tgtdict", "label dictionaries",
    "list_left_out",
}  # fmt: skip


def begin_manifest(
    options: Options,
    language: str,
    pipeline: ParsingPipeline,
    dictionary: Path,
    bpe_model: Path | None,
    target_model: Path | None = None,
) -> Manifest:
    """Make a manifest with the settings that all splits share.

    Args:
        bpe_model: the subword model; None if it is not known.
        target_model: the subword model of the other language, if it differs.
    """
    parsing = options.parsing[language]
    target_language = next(
        (candidate for candidate in options.languages if candidate != language), None
    )
    return Manifest(
        language=language,
        parser=resolve(parsing.parser),
        parser_version=pipeline.parser.version,
        fields=list(pipeline.fields),
        constituents=pipeline.constituents,
        tokenized=parsing.tokenized,
        labelling=options.labels or "",
        bpe=options.bpe_of(language),
        bpe_model=bpe_model.name if bpe_model else "",
        bpe_digest=digest_of(bpe_model) if bpe_model else "",
        target_bpe=options.bpe_of(target_language) if target_language else "",
        target_model=target_model.name if target_model else "",
        target_digest=digest_of(target_model) if target_model else "",
        characters=asdict(options.characters) if options.trains_sentencepiece else {},
        parser_digest=pipeline.parser.digest,
        parser_stamp=pipeline.parser.stamp,
        allowed=options.allowed,
        dictionary=fingerprint(dictionary),
        whole_lines=options.is_segmented and options.bpe in ("sentencepiece", "gpt2"),
        protected=list(options.protected),
        made_by=ATTACH if options.is_segmented else PREPROCESS,
    )


def finish_manifest(
    manifest: Manifest,
    pipeline: ParsingPipeline,
    outputs: Iterable[tuple[Split, Output]],
    labels: Mapping[str, LabelTable],
) -> None:
    """Add the splits that were written and the fingerprints of their labels."""
    manifest.labels = {name: labels[name].fingerprint() for name in with_labels(manifest.fields)}
    version, language = pipeline.parser.version, manifest.language
    for split, output in outputs:
        counts = output.counts
        manifest.splits[split.file_name] = SplitRecord(
            counts.kept,
            counts.words[language],
            counts.subwords[language],
            output.checksums[language],
            unparsed_skipped=counts.skipped,
            unparsed_flat=counts.flat[language],
            unknown_labels=counts.unknown_labels,
            changed=dict(counts.changed),
            left_out={kind: str(lines) for kind, lines in output.left_out.items()},
            lines_before=split.sides[0].corpus.lines_before(output.blocks.start),
            parser_version="" if version == manifest.parser_version else version,
        )


def key_of(
    options: Options, corpora: Iterable[Corpus], pipelines: Mapping[str, ParsingPipeline]
) -> Key:
    """Return the key of a run: all that its files depend on."""
    key = {field.name: str(vars(options)[field.name]) for field in fields(Options)}
    for name, value in vars(options).items():
        if isinstance(value, Path) and value.is_file():
            key[name] = digest_of(value)[:16]
    key |= {f"text of {corpus.name}": corpus.fingerprint[:16] for corpus in corpora}
    for language, pipeline in pipelines.items():
        key[f"parser of {language}"] = f"{pipeline.parser.version} {pipeline.parser.digest[:16]}"
    if options.label_folder is not None:
        files = (options.label_folder / file for file in with_labels(FIELDS).values())
        existing = [path for path in files if path.is_file()]
        key["label dictionaries"] = digest_of(*existing)[:16] if existing else "none"
    key["list_left_out"] = str(options.list_left_out is not None)
    if options.target_lang is not None:  # --joined-dictionary may decide it
        key["bpe of the target"] = options.bpe_of(options.target_lang)
    key["lines of a block"] = str(texts.BLOCK_LINES)
    return {name: value for name, value in key.items() if name not in FREE}


def key_of_blocks(key: Key, files: Mapping[Path, str]) -> Key:
    """Return the part of a run's key on which its blocks depend.

    Args:
        files: the digests of texts and of files of parses.
    """
    # Texts of two splits may have the same name, in two folders.
    numbered = enumerate(files.items())
    digests = {f"file {n} {path.name}": digest[:16] for n, (path, digest) in numbered}
    return digests | {name: value for name, value in key.items() if name not in _OF_DICTIONARIES}


def part_record(key: Key, files: Mapping[Path, str], number: int, parts: int) -> dict[str, str]:
    """Return what a manifest records of a part (``--parts``).

    Args:
        files: as in :func:`key_of_blocks`.
        number: the part's, from 1.
    """
    texts_of_key = {name: value for name, value in key.items() if name.startswith("text of train")}
    return {
        "number": str(number),
        "of": str(parts),
        "text": hashlib.sha256(as_bytes(texts_of_key)).hexdigest()[:16],
        "run": hashlib.sha256(as_bytes({**key_of_blocks(key, files), **key})).hexdigest()[:16],
    }
