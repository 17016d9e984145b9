"""Parses of text files in files next to them, for data whose parser reads files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq.utils import split_paths

from fairseq_phrase.checkpoints.trust import load_checkpoint, plain_options
from fairseq_phrase.data.preprocessing.texts import parses_of
from fairseq_phrase.data.store.data_directory import languages_in_names
from fairseq_phrase.data.store.manifest import Manifest, languages_in
from fairseq_phrase.data.subwords.text_encoder import texts_of
from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.inference.bundle import is_bundle
from fairseq_phrase.parsers import FileParser, load_parser, names_path
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.text import read_lines


def find_parses(
    texts: Sequence[Path], path: str, data: str | None = None, source_parser: str | None = None
) -> tuple[list[Path], Iterator[Parse]] | None:
    """Find the parses of text files, ``FILE.conllu`` for ``FILE``.

    Args:
        path: checkpoints or bundles, separated by ``:``.
        data: the data directory, if it is given.
        source_parser: the parser that the user chose; by default the data's parser.

    Returns:
        The file of each text's parses, and the parse of each line, which is read as it is needed; None
        if a parser of raw lines must parse them.

    Raises:
        UserError: a text or its parses are missing.
    """
    for text in texts:
        if not text.exists():
            raise UserError(f"{text} is not there")
    if not texts or (source_parser and _reads_lines(source_parser)):
        return None
    directory = data or _recorded_directory(Path(split_paths(path)[0]))
    first = Path(split_paths(directory)[0])
    if not first.is_dir():
        return None  # which loading the model reports
    manifest = _manifest(first)
    spec = source_parser or manifest.parser
    if _reads_lines(spec) or (source_parser is None and names_path(spec)):
        return None
    parser = load_parser(spec)
    if not isinstance(parser, FileParser):
        return None
    files = [_parses_of(text, parser, spec) for text in texts]
    parses = (
        parser.read(file, texts_of(first, manifest, read_lines(text)))
        for text, file in zip(texts, files, strict=True)
    )
    return files, itertools.chain.from_iterable(parses)


def _parses_of(text: Path, parser: FileParser, spec: str) -> Path:
    """Find the file of a text's parses."""
    try:
        return parses_of(text, parser)
    except UserError as error:
        if not str(error).startswith("neither"):  # two files differ
            raise
        raise UserError(
            f"the parser {spec} reads the parses of {text} from a file, and {error}: write it, or name a "
            f"parser of raw text, {as_given('source-parser', 'spacy:MODEL')} (or none, where the model "
            "needs no tree)"
        ) from None


def _reads_lines(parser: str) -> bool:
    """Return whether a parser is one of this project's parsers of raw lines, which take time to load."""
    return parser.partition(":")[0] in ("spacy", "stanza", "factored", "none")


def _recorded_directory(model: Path) -> str:
    """Return the data directory of a bundle or a checkpoint, whose parameters are not read."""
    if is_bundle(model):
        return str(model)
    state = load_checkpoint(model)
    options = plain_options(plain_options(state.get("cfg")).get("task") or state.get("args"))
    return str(options.get("data"))


def _manifest(directory: Path) -> Manifest:
    languages = languages_in(directory)
    language = languages[0] if len(languages) == 1 else languages_in_names(directory)[0]
    return Manifest.load(directory, language)
