"""Dependency and constituency parses by Stanza."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.syntax.alignment import merged_into_tokens, words_of_token
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Expansion, ParsedSentence, Unparsed, join_white_space
from fairseq_phrase.text import read_json

#: The processors that split a line into words, and the processors that make trees.
TOKENIZERS = ("tokenize", "mwt")
ANALYSES = ("depparse", "constituency")
# Stanza's name for the lemmatizer that has no model: every word is its own lemma.
_IDENTITY = "identity"


def _default_packages(language: str, folder: Path) -> tuple[str, dict[str, str]]:
    """Find a language's default package in Stanza's download folder.

    Only parsers whose model file exists are used. The list in ``resources.json`` also has
    models that were not downloaded.

    Args:
        language: Stanza's code of the language or an alias.
        folder: the folder that holds ``resources.json`` and ``LANGUAGE/PROCESSOR/PACKAGE.pt``.

    Returns:
        The language's code in the folders' names, and the package of each processor, in the order of
        their use. All their files exist.

    Raises:
        UserError: models are missing or ``resources.json`` cannot be read. The message has the command
            to run.
    """
    resources = _resources(language, folder)
    aliases = {language}
    while isinstance(resources.get(language), dict) and "alias" in resources[language]:
        language = resources[language]["alias"]
        if language in aliases:
            break
        aliases.add(language)
    entry = resources.get(language)
    if not isinstance(entry, dict) or "default" not in entry.get("packages", {}):
        raise UserError(
            f"{folder / 'resources.json'} has no default package for the language '{language}': "
            f"{_command(language, folder)}"
        )
    # Some languages' constituency parsers are downloaded with the default package only on request.
    default = entry["packages"]["default"]
    default = {**default.get("optional", {}), **default}

    def file(processor: str) -> Path:
        return folder / language / processor / f"{default[processor]}.pt"

    analyses = [name for name in ANALYSES if name in default and file(name).is_file()]
    if not analyses:
        raise UserError(
            f"{folder} has no Stanza parser for the language '{language}', neither depparse nor "
            f"constituency: {_command(language, folder)}"
        )
    names = [name for name in (*TOKENIZERS, "pos") if name in default]
    if "depparse" in analyses:
        # Stanza requires lemmas before it parses, even if the language has no lemmatizer.
        default = {"lemma": _IDENTITY, **default}
        names.append("lemma")
    packages = {name: default[name] for name in (*names, *analyses)}
    for processor, package in packages.items():
        if (processor, package) != ("lemma", _IDENTITY):
            _require(entry, language, folder, processor, package)
    return language, packages


def _resources(language: str, folder: Path) -> dict[str, Any]:
    path = folder / "resources.json"
    try:
        resources = read_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{folder} has no Stanza models (resources.json is missing): "
            f"{_command(language, folder)}"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(resources, dict):
        raise UserError(f"{path} is not Stanza's list of models: expected a JSON object")
    return resources


def _require(
    entry: dict[str, Any], language: str, folder: Path, processor: str, package: str
) -> None:
    """Check that a model exists, and the files that it depends on, such as word vectors."""
    needed = entry.get(processor, {}).get(package, {}).get("dependencies", [])
    files = [(processor, package), *((item["model"], item["package"]) for item in needed)]
    for kind, name in files:
        path = folder / language / kind / f"{name}.pt"
        if not path.is_file():
            raise UserError(
                f"the Stanza model {path} is missing, which {processor} needs: "
                f"{_command(language, folder)}"
            )


def _command(language: str, folder: Path) -> str:
    # Quoted for a shell: a stranger's data may name the language.
    name, model_dir = (json.dumps(text, ensure_ascii=False) for text in (language, str(folder)))
    return (
        f"python -c {shlex.quote(f'import stanza; stanza.download({name}, model_dir={model_dir})')}"
    )


# The dependency parser scores every pair of words with every relation: a thousand words take some
# hundred megabytes, ten thousand words a hundred times as much.
MAX_WORDS = 1000
# Stanza's limit: longer words are tagged as unknown to save memory.
_MAX_CHARACTERS = 1000
_UNKNOWN = "<UNK>"
# Stanza treats these control characters as white space and drops them. Python and this project treat
# them as text (except U+0085, a line break). They are replaced by any other character.
KEEP_CONTROLS = {code: "\ufffd" for code in range(0x80, 0xA0) if code != 0x85}


class StanzaParser(LineParser):
    """A language's default Stanza package, from a folder of models.

    The words are Stanza's syntactic words (German ``zum`` is ``zu dem``), over which its trees are
    defined; or the surface tokens, as in the text
    (:func:`fairseq_phrase.syntax.alignment.merged_into_tokens`). The parser makes dependency trees,
    constituency trees or both, depending on the models in the folder. Models are loaded when they are
    first used, the tokenizer separately from the rest. They are loaded onto a GPU if torch finds one.
    Nothing is downloaded.

    Args:
        model: ``LANG``, ``LANG@DIR``, ``LANG,surface`` or ``LANG,surface@DIR``: Stanza's code of the
            language, whether words are surface tokens, and the folder that has ``resources.json``;
            without one, the folder that ``stanza.download`` writes to.

    Raises:
        UserError: Stanza is not installed, models are missing, or an option is unknown.
    """

    words_spell_line = (
        False  # the words of zum are zu and dem; sentence_of_line() checks their tokens
    )

    def __init__(self, model: str) -> None:
        with optional_packages("Stanza is not installed", "stanza"):
            import stanza
            from stanza.resources.common import DEFAULT_MODEL_DIR
        names, _, folder = model.partition("@")
        language, *options = names.split(",")
        if options not in ([], ["surface"]):
            raise UserError(f"--parser stanza:{model}: expected stanza:{language},surface")
        self._surface = bool(options)
        self._folder = Path(folder or DEFAULT_MODEL_DIR)
        self._language, self._packages = _default_packages(language, self._folder)
        packages = self._packages
        self.fields: tuple[str, ...] = (
            "words",
            *(("heads", "deprels") if "depparse" in packages else ()),
            "tags",
            *(("spans",) if "constituency" in packages else ()),
        )
        root = self._folder / self._language
        files = (root / name / f"{package}.pt" for name, package in packages.items())
        self.files = [path for path in files if path.is_file()]
        listed = ", ".join(f"{name} {package}" for name, package in packages.items())
        surface = ", surface tokens" if self._surface else ""
        self.version = f"{self._language} ({listed}){surface}, Stanza {stanza.__version__}"
        self._tokenizer: Any = None
        self._analyzer: Any = None
        self._model = model

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the name only, with which another process loads the models."""
        return type(self), (self._model,)

    def parse(self, lines: Sequence[str]) -> list[ParsedSentence | Unparsed]:
        """Parse lines; if Stanza finds several sentences in a line, their trees are joined.

        A line in which Stanza finds a sentence of more than a thousand words is returned unparsed,
        because Stanza's memory grows with the square of the length.

        Raises:
            UserError: the models cannot be loaded.
            Exception: Stanza failed on one of the lines.
        """
        documents = self._documents(lines)
        return self._parsed(list(map(self._sentence, lines, documents)), documents)

    def tokenize(self, lines: Sequence[str]) -> list[ParsedSentence]:
        """Split lines into the same words as :meth:`parse`, with Stanza's tokenizer only.

        Raises:
            UserError: the models cannot be loaded.
        """
        tokenized = map(self._sentence, lines, self._documents(lines))
        return [line.sentence if isinstance(line, Unparsed) else line for line in tokenized]

    def parse_words(self, sentences: Sequence[Sequence[str]]) -> list[ParsedSentence | Unparsed]:
        """Parse sentences that are already split into words; Stanza does not split the sentences.

        Raises:
            UserError: the models cannot be loaded.
            Exception: Stanza failed on one of the sentences.
        """
        from stanza.models.common.doc import ID, TEXT, Document

        sentences_of_words = [
            ParsedSentence(list(words), [True] * len(words)) for words in sentences
        ]
        documents = []
        for words in sentences:
            short = (word if 0 < len(word) <= _MAX_CHARACTERS else _UNKNOWN for word in words)
            numbered = [{ID: (index,), TEXT: word} for index, word in enumerate(short, start=1)]
            documents.append(Document([numbered]) if numbered else None)
        return self._parsed(sentences_of_words, documents)

    def _sentence(self, line: str, document: Any) -> ParsedSentence | Unparsed:
        return sentence_of_line(line, document, self._surface)

    def _documents(self, lines: Sequence[str]) -> list[Any]:
        """Split each line into Stanza's sentences and words; None for a line without text."""
        from stanza.models.common.doc import Document

        if self._tokenizer is None:
            self._tokenizer = self._loaded(self._packages_of(*TOKENIZERS))
        documents = [
            Document([], text=line.translate(KEEP_CONTROLS)) if line.strip() else None
            for line in lines
        ]
        # The lines are tokenized in batches, but no sentence spans two lines.
        filled = [document for document in documents if document is not None]
        if filled:
            self._tokenizer.bulk_process(filled)
        return documents

    def _parsed(
        self, sentences: Sequence[ParsedSentence | Unparsed], documents: list[Any]
    ) -> list[ParsedSentence | Unparsed]:
        """Parse the sentences' documents, and add the trees to the sentences."""
        sentences = list(map(_checked_for_length, sentences, documents))
        processors = self._packages_of("pos", "lemma", *ANALYSES)
        if self._analyzer is None:
            # The option "pretokenized" tells Stanza not to load a tokenizer.
            self._analyzer = self._loaded(
                {**self._packages_of("tokenize"), **processors}, tokenize_pretokenized=True
            )
        good = [
            document
            for sentence, document in zip(sentences, documents, strict=True)
            if document is not None and not isinstance(sentence, Unparsed)
        ]
        if good:
            self._analyzer.bulk_process(good, processors=list(processors))
        return [
            sentence
            if isinstance(sentence, Unparsed)
            else self._with_trees(sentence, document.sentences if document else [])
            for sentence, document in zip(sentences, documents, strict=True)
        ]

    def _with_trees(self, sentence: ParsedSentence, parts: list[Any]) -> ParsedSentence | Unparsed:
        """Add to a line's words the trees of its Stanza sentences."""
        constituents = None
        try:
            parsed = _over_words(parts, with_heads="heads" in self.fields)
            if "spans" in self.fields:
                constituents = ConstituencyTree.joined(
                    [constituents_of(part.constituency, len(part.words)) for part in parts]
                )
        except ValueError as error:
            return Unparsed(f"Stanza's parse is not a tree: {error}", sentence)
        sizes = [len(token.words) for part in parts for token in part.tokens]
        if self._surface and len(sizes) < len(parsed.words):
            parsed = replace(parsed, constituents=constituents)
            return merged_into_tokens(parsed, sizes, sentence.words, sentence.space_before)
        return replace(
            sentence, tree=parsed.tree, deprels=parsed.deprels, tags=parsed.tags,
            constituents=constituents,
        )  # fmt: skip

    def _packages_of(self, *processors: str) -> dict[str, str]:
        """Return the packages of these processors; a processor may lack one."""
        return {name: package for name, package in self._packages.items() if name in processors}

    def _loaded(self, processors: dict[str, str], **options: Any) -> Any:
        import stanza

        try:
            return stanza.Pipeline(
                self._language, dir=str(self._folder), package=None,
                processors=processors, download_method=None, verbose=False, **options,
            )  # fmt: skip
        except Exception as error:  # unpickling and torch raise many types for a damaged file
            raise UserError(
                f"Stanza cannot load {', '.join(processors)} from {self._folder}: {error}"
            ) from error


def sentence_of_line(line: str, document: Any, surface: bool = False) -> ParsedSentence | Unparsed:
    """Take a line's words from the line itself, at Stanza's offsets."""
    words: list[str] = []
    space_before: list[bool] = []
    expansions: list[Expansion] = []
    end = 0
    parts = document.sentences if document else []
    for token in (token for part in parts for token in part.tokens):
        between, end = line[end : token.start_char], token.end_char
        if between.strip():
            return _incomplete(line, between)
        form = line[token.start_char : end]
        several = [form] if surface else [word.text for word in token.words]
        texts, expanded = words_of_token(several, form, form)
        # The words of one surface token have no space between them, but they are separate words.
        space_before += [bool(between) or not words, *[True] * (len(texts) - 1)]
        words += texts
        expansions += expanded
    if line[end:].strip():
        return _incomplete(line, line[end:])
    return ParsedSentence(words, space_before, expansions=expansions)


def sentence_of(document: Any) -> ParsedSentence:
    """Convert a Stanza ``Document`` or ``Sentence`` with a dependency parse, over its surface tokens.

    Raises:
        UserError: it has no parse.
    """
    sentences = []
    end = None  # of the last token in the text
    for part in getattr(document, "sentences", [document]):
        if any(word.head is None for word in part.words):
            raise UserError("a Stanza document has no dependency parse: add the processor depparse")
        spaces = []
        for token in part.tokens:
            has_offsets = end is not None and token.start_char is not None
            spaces.append(not has_offsets or token.start_char > end)
            end = token.end_char
        parsed = _over_words([part], with_heads=True)
        sizes = [len(token.words) for token in part.tokens]
        forms = [join_white_space(token.text) or "_" for token in part.tokens]
        sentences.append(merged_into_tokens(parsed, sizes, forms, spaces))
    return ParsedSentence.joined(sentences) if sentences else ParsedSentence([], [])


def _incomplete(line: str, missing: str) -> Unparsed:
    reason = f"Stanza's tokenizer left out '{missing.strip()[:60]}'"
    return Unparsed(reason, split_at_white_space(line))


def _checked_for_length(
    sentence: ParsedSentence | Unparsed, document: Any
) -> ParsedSentence | Unparsed:
    length = max((len(part.words) for part in document.sentences), default=0) if document else 0
    if isinstance(sentence, Unparsed) or length <= MAX_WORDS:
        return sentence
    return Unparsed(
        f"Stanza finds a sentence of {length} words here, more than the limit of {MAX_WORDS}",
        sentence,
    )


def _over_words(parts: list[Any], *, with_heads: bool) -> ParsedSentence:
    """Return Stanza's sentences as one, over their syntactic words, with tags and dependencies."""
    words = [word for part in parts for word in part.words]
    return ParsedSentence(
        [word.text for word in words],
        [True] * len(words),
        tree=DependencyTree(_heads(parts)) if with_heads else None,
        deprels=[join_white_space(w.deprel or "") or "dep" for w in words] if with_heads else [],
        tags=[join_white_space(word.upos or "") or "X" for word in words],
    )


def _heads(parts: list[Any]) -> list[int]:
    """Return the heads of all words, numbered from 0 over the whole line; a root is its own head."""
    heads: list[int] = []
    for part in parts:
        start = len(heads)
        for index, word in enumerate(part.words):
            heads.append(start + (word.head - 1 if word.head else index))
    return heads


def constituents_of(root: Any, num_words: int) -> ConstituencyTree:
    """Convert Stanza's tree of one sentence, without recursion: trees may be deep."""
    spans: list[tuple[int, int]] = []
    labels: list[str] = []
    words = 0
    # Nodes to visit, and the (first word, label) of those whose children all come before.
    agenda: list[Any] = [root]
    while agenda:
        node = agenda.pop()
        if isinstance(node, tuple):
            start, label = node
            spans.append((start, words))
            labels.append(label)
        elif node.is_leaf() or node.is_preterminal():
            words += 1
        else:
            agenda.append((words, join_white_space(node.label or "") or "X"))
            agenda.extend(reversed(node.children))
    if words != num_words:
        raise ValueError(f"it has {words} leaves for {num_words} words")
    return ConstituencyTree(spans, labels, num_words)
