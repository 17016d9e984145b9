"""Dependency parses by a spaCy pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.base import LineParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, join_white_space

BATCH_LINES = 256


class SpacyParser(LineParser):
    """A spaCy pipeline, by its package's name or its folder.

    It is loaded when first used: whole to parse, its tokenizer alone to tokenize.

    Args:
        model: an installed package (``de_core_news_sm``) or a folder.

    Raises:
        UserError: spaCy or the pipeline is not installed, or the pipeline has no parser.
    """

    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags")

    def __init__(self, model: str):
        try:
            import spacy
        except ImportError:
            raise UserError("spaCy is not installed: pip install spacy") from None
        folder = Path(model)
        if not folder.is_dir():
            if not spacy.util.is_package(model):
                raise UserError(
                    f"there is no spaCy pipeline '{model}', neither installed nor a folder: "
                    f"python -m spacy download {model}"
                )
            # A package's own folder holds the pipeline's in a folder NAME-VERSION.
            package = spacy.util.get_package_path(model)
            folder = next((path.parent for path in package.glob("*/meta.json")), package)
        try:
            meta = spacy.util.load_meta(folder / "meta.json")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} is no spaCy pipeline: {error}") from None
        self._components = meta.get("pipeline", [])
        if "parser" not in self._components:
            raise UserError(
                f"the spaCy pipeline '{model}' has no dependency parser, only "
                f"{', '.join(self._components) or 'a tokenizer'}: choose another"
            )
        self._load, self._folder = spacy.load, folder
        self.version = f"{meta['lang']}_{meta['name']} {meta['version']}, spaCy {spacy.__version__}"
        self._pipeline: Any = None
        self._tokenizer: Any = None

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Parse lines; where spaCy sees several sentences in one, the first root takes the rest.

        A line with more characters than spaCy parses (a million, by default) comes back without a
        tree, cut at white space.

        Raises:
            UserError: the pipeline cannot be loaded, or spaCy cannot parse a line.
        """
        if self._pipeline is None:
            self._pipeline = self._loaded(exclude=["ner", "lemmatizer", "textcat"])
        limit = self._pipeline.max_length
        short = (line if len(line) <= limit else "" for line in lines)
        parsed = self._sentences(self._pipeline.pipe(short, batch_size=BATCH_LINES), tree=True)
        for index, line in enumerate(lines):
            if len(line) > limit:
                words = line.split()
                parsed[index] = ParsedSentence(words, [True] * len(words))
        return parsed

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Cut lines into the words that :meth:`parse` makes, with spaCy's tokenizer alone."""
        if self._tokenizer is None:
            self._tokenizer = self._loaded(exclude=self._components)
        return self._sentences(self._tokenizer.pipe(lines), tree=False)

    def _loaded(self, exclude: Sequence[str]) -> Any:
        try:
            return self._load(self._folder, exclude=exclude)
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"spaCy cannot load {self._folder}: {error}") from error

    def _sentences(self, documents: Iterable[Any], *, tree: bool) -> list[ParsedSentence]:
        try:
            return [_sentence(document, tree=tree) for document in documents]
        except ValueError as error:
            raise UserError(f"spaCy cannot parse a line: {error}") from error


def _sentence(document: Any, *, tree: bool) -> ParsedSentence:
    """Convert a spaCy document; its white-space tokens are left out of the words and the tree."""
    words = [join_white_space(token.text) for token in document]
    space_before = [True] * len(words)
    for index, token in enumerate(document[:-1] if len(document) else []):
        space_before[index + 1] = bool(token.whitespace_) or not words[index]
    if tree:
        sentence = ParsedSentence(
            words,
            space_before,
            DependencyTree([token.head.i for token in document]),
            [token.dep_ or "dep" for token in document],
            [token.pos_ or "X" for token in document],
        )
    else:
        sentence = ParsedSentence(words, space_before)
    if all(words):
        return sentence
    return sentence.restricted_to(np.array([bool(word) for word in words], dtype=bool))
