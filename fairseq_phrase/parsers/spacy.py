"""Dependency parses by a spaCy pipeline."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence, Unparsed, join_white_space

_COLUMNS = ["ORTH", "SPACY", "HEAD", "DEP", "POS"]
#: Number of lines in one of spaCy's batches.
BATCH_LINES = 256
# Number of words that are kept in memory. spaCy needs 700 bytes for each new word, so it forgets later
# words (memory zones). In a zone it does not remember how a word was tokenized, which takes time.
KEPT_WORDS = 20_000
# Components that are not needed for parses.
_UNUSED = {
    "entity_linker", "entity_ruler", "lemmatizer", "ner", "span_ruler", "spancat", "textcat",
    "textcat_multilabel", "trainable_lemmatizer",
}  # fmt: skip


class SpacyParser(LineParser):
    """A spaCy pipeline, by its package's name or its folder.

    It is loaded when it is first used: the whole pipeline to parse, only the tokenizer to tokenize.

    Raises:
        UserError: spaCy or the pipeline is not installed, or the pipeline has no parser.
    """

    sorts_by_length = True  # spaCy's parser sorts each batch by length
    fields: tuple[str, ...] = ("words", "heads", "deprels", "tags")

    def __init__(self, model: str):
        folder = Path(model)
        if find_spec("spacy") and not folder.is_dir():  # before spaCy's import, which takes seconds
            _require_package(model)
        with optional_packages("spaCy is not installed", "spacy"):
            import spacy
        if not folder.is_dir():
            # A package's folder contains the pipeline in a folder NAME-VERSION.
            package = spacy.util.get_package_path(model)
            folder = next((path.parent for path in package.glob("*/meta.json")), package)
        try:
            meta = spacy.util.load_meta(folder / "meta.json")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} is not a spaCy pipeline: {error}") from None
        self._components = meta.get("pipeline", [])
        if "parser" not in self._components:
            raise UserError(
                f"the spaCy pipeline '{model}' has no dependency parser, only "
                f"{', '.join(self._components) or 'a tokenizer'}: choose another"
            )
        self._load, self._folder = spacy.load, folder
        self.files = sorted(path for path in folder.rglob("*") if path.is_file())
        self.version = f"{meta['lang']}_{meta['name']} {meta['version']}, spaCy {version('spacy')}"
        self._whole: Any = None
        self._strings: tuple[_Texts, _Labels, _Labels] | None = None
        self._tokenizer: Any = None
        self._lock = RLock()  # only one thread at a time may load or use memory zones

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the folder only, from which another process loads the pipeline."""
        return type(self), (str(self._folder),)

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence | Unparsed]:
        """Parse lines; if spaCy finds several sentences in a line, later roots depend on the first.

        A line that is longer than spaCy's limit (a million characters by default) is returned unparsed.

        Raises:
            UserError: the pipeline cannot be loaded.
            Exception: spaCy failed on one of the lines.
        """
        limit = self.pipeline.max_length
        short = (line if len(line) <= limit else "" for line in lines)
        return _unless_too_long(lines, limit, self._parsed(short))

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[ParsedSentence | Unparsed]:
        """Parse sentences that are already split into words, with a space between the words.

        Raises:
            UserError: the pipeline cannot be loaded.
            Exception: spaCy failed on one of the sentences.
        """
        from spacy.tokens import Doc

        limit, vocabulary = self.pipeline.max_length, self.pipeline.vocab
        lines = [" ".join(words) for words in sentences]
        documents = (
            Doc(vocabulary, list(words) if len(line) <= limit else [])
            for line, words in zip(lines, sentences, strict=True)
        )
        return _unless_too_long(lines, limit, self._parsed(documents))

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Split lines into the same words as :meth:`parse`, with spaCy's tokenizer only."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._loaded(exclude=self._components)
        with self._memory_of(self._tokenizer):
            return [
                _tokens(self._tokenizer.make_doc(line))
                if len(line) <= self._tokenizer.max_length
                else split_at_white_space(line)
                for line in lines
            ]

    @property
    def pipeline(self) -> Any:
        """The pipeline of spaCy, without the components that no parse needs; loaded once."""
        with self._lock:
            if self._whole is None:
                self._whole = self._loaded(exclude=unused_components(self._components))
            return self._whole

    def _loaded(self, exclude: Collection[str]) -> Any:
        try:
            return self._load(self._folder, exclude=list(exclude))
        except (OSError, ValueError, ImportError) as error:
            raise UserError(f"spaCy cannot load {self._folder}: {error}") from error

    def _parsed(self, texts: Iterable[Any]) -> list[ParsedSentence]:
        """Parse lines, or documents of words."""
        pipeline = self.pipeline
        if self._strings is None:
            self._strings = _Texts(pipeline), _Labels(pipeline, "dep"), _Labels(pipeline, "X")
        with self._memory_of(pipeline):
            documents = pipeline.pipe(texts, batch_size=BATCH_LINES)
            return [_sentence(document, *self._strings) for document in documents]

    @contextmanager
    def _memory_of(self, pipeline: Any) -> Iterator[None]:
        """Make a pipeline forget new words at the end, if it already has enough words."""
        is_full = len(pipeline.vocab) >= KEPT_WORDS  # of all words that it has seen
        with self._lock, pipeline.memory_zone() if is_full else nullcontext():
            yield


def unused_components(components: Collection[str]) -> set[str]:
    """Choose the components of a pipeline that are not needed for parses."""
    # Only the attribute ruler needs fine-grained tags: it computes parts of speech from them. Other
    # pipelines have a morphologizer for parts of speech.
    fine_tags = "morphologizer" in components and "attribute_ruler" not in components
    return _UNUSED | ({"tagger"} if fine_tags else set())


def _require_package(model: str) -> None:
    try:
        distribution(model)
    except (PackageNotFoundError, ValueError):
        if Path(model).name != model:
            raise UserError(
                f"there is no folder '{model}': name the folder of the spaCy pipeline, or an installed "
                f"pipeline (spacy:{Path(model).name})"
            ) from None
        # A stranger's data may name the pipeline, and a name with more in it would be a command.
        is_name = re.fullmatch(r"\w[\w.-]*", model)
        advice = f"python -m spacy download {model}" if is_name else "expected a name or a folder"
        raise UserError(
            f"no spaCy pipeline '{model}' is installed, and it is not a folder: {advice}"
        ) from None


def sentence_of(document: Any) -> ParsedSentence:
    """Convert a spaCy ``Doc`` or ``Span`` with a dependency parse.

    Raises:
        UserError: it has no parse.
    """
    document = document.as_doc() if hasattr(document, "as_doc") else document
    if not document.has_annotation("DEP"):
        raise UserError("a spaCy document has no dependency parse: use a pipeline with a parser")
    return _sentence(document, _Texts(document), _Labels(document, "dep"), _Labels(document, "X"))


class _Texts(dict[int, str]):
    """The strings of a pipeline by spaCy's numbers (as signed integers); the first are looked up once."""

    def __init__(self, pipeline: Any):
        super().__init__()
        self._strings = pipeline.vocab.strings

    def __missing__(self, number: int) -> str:
        text: str = self._strings[number % (1 << 64)]
        if len(self) < KEPT_WORDS:
            self[number] = text
        return text


class _Labels(_Texts):
    def __init__(self, pipeline: Any, default: str):
        super().__init__(pipeline)
        self._default = default

    def __missing__(self, number: int) -> str:
        self[number] = join_white_space(super().__missing__(number)) or self._default
        return self[number]


def _unless_too_long(
    lines: Sequence[str], limit: int, parsed: list[ParsedSentence]
) -> list[ParsedSentence | Unparsed]:
    """Insert lines above spaCy's length limit at their indices, as unparsed."""
    reason = "the line has {} characters, and this spaCy pipeline parses at most {}"
    return [
        sentence
        if len(line) <= limit
        else Unparsed(reason.format(len(line), limit), split_at_white_space(line))
        for line, sentence in zip(lines, parsed, strict=True)
    ]


def _words(texts: list[str], spaces: Iterable[bool]) -> tuple[list[str], list[bool]]:
    """Return the words of tokens, empty for white space, and whether a space precedes each."""
    space_before = [True, *spaces][: len(texts)]
    if " ".join(texts).split() == texts:
        return texts, space_before
    words = [join_white_space(text) for text in texts]
    for index, word in enumerate(words[:-1], start=1):
        space_before[index] = space_before[index] or not word
    return words, space_before


def _tokens(document: Any) -> ParsedSentence:
    texts = [token.text for token in document]
    spaces = (bool(token.whitespace_) for token in document)
    return _without_white_space(ParsedSentence(*_words(texts, spaces)))


def _sentence(document: Any, texts: _Texts, deprels: _Labels, tags: _Labels) -> ParsedSentence:
    """Convert a parsed document at once, because conversion by token takes longer."""
    table = document.to_array(_COLUMNS).view(np.int64)
    # spaCy stores the distance to each head. Its parse is one tree or several.
    heads = table[:, 2] + np.arange(len(table))
    orths, spaces, _, deps, parts = table.T.tolist()
    words, space_before = _words(list(map(texts.__getitem__, orths)), map(bool, spaces))
    if not all(words):
        _replace_blank_roots(heads, deps, np.array([not word for word in words]))
    relations, parts = list(map(deprels.__getitem__, deps)), list(map(tags.__getitem__, parts))
    tree = DependencyTree.from_valid(heads)
    sentence = ParsedSentence(words, space_before, tree=tree, deprels=relations, tags=parts)
    return _without_white_space(sentence)


def _replace_blank_roots(heads: np.ndarray, deps: list[int], blank: np.ndarray) -> None:
    """Replace each root that is white space by its first dependent, in place.

    ``heads`` and ``blank`` (whether a token is white space) have the shape ``(tokens,)``.
    """
    tokens = np.arange(len(heads))
    for root in np.flatnonzero(blank & (heads == tokens)):
        while blank[root] and len(below := np.flatnonzero((heads == root) & (tokens != root))):
            first = below[blank[below].argmin()]  # white space only if nothing else is below
            heads[heads == root] = first
            heads[first], deps[first] = first, deps[root]
            root = first


def _without_white_space(sentence: ParsedSentence) -> ParsedSentence:
    if all(sentence.words):
        return sentence
    return sentence.restricted_to(np.array([bool(word) for word in sentence.words], dtype=bool))
