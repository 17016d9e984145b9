"""Requirements of translations: constraints and a prefix for each line, and a glossary."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.inference.constrained_search import RequiredText
from fairseq_phrase.metrics.tokenizers import loose_words
from fairseq_phrase.parsers.pipeline import Parse
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.text import read_lines

#: Texts for the lines, one for each: a file, or the texts.
TextPerLine = str | Path | Iterable[str]
#: Returns the target's indices of a text. Its arguments are the text, the source's words that have slots,
#: and the text's location; it raises an error if the dictionary lacks words of the text. Shape:
#: ``(tokens,)``.
TokensOf = Callable[[str, Sequence[str], str], Tensor]
#: Returns a text of constraints; the arguments and errors are those of :data:`TokensOf`.
RequiredTextOf = Callable[[str, Sequence[str], str], RequiredText]


class Line(NamedTuple):
    """A raw line, and the requirements of its translation.

    Attributes:
        constraints: texts in the translation, in any order, separated by tabs.
        prefix: the beginning of the translation.
        target: the translation, if it is given.
        parse: the line's parse, if it is given.
    """

    text: str
    constraints: str = ""
    prefix: str = ""
    target: str = ""
    parse: Parse | None = None


class LinePart(NamedTuple):
    """A segment of a line, translated as one sentence, and what its translation must have.

    Attributes:
        prefix: Shape: ``(tokens,)``; no tokens without a prefix.
        target: the translation with its end, if it is given. Shape: ``(tokens,)``
        seed: the seed of sampling.
    """

    sentence: EncodedSentence
    constraints: Sequence[RequiredText] = ()
    prefix: Tensor = torch.empty(0, dtype=torch.long)
    target: Tensor | None = None
    seed: int = 0


class ParallelTexts:
    """The texts for source lines, one for each (see :class:`Line`), or None."""

    def __init__(
        self,
        constraints: TextPerLine | None = None,
        prefix: TextPerLine | None = None,
        target: TextPerLine | None = None,
    ) -> None:
        self._files = {"constraints": constraints, "prefix": prefix, "target": target}
        self.has_constraints, self.has_target = constraints is not None, target is not None

    def lines(self, texts: Iterable[str], parses: Iterable[Parse] | None = None) -> Iterator[Line]:
        """Join raw lines and their texts.

        Args:
            parses: the parse of each line, if they are given.

        Raises:
            UserError: there are more or fewer texts than lines.
        """
        files = {
            name: read_lines(Path(source)) if isinstance(source, str | Path) else iter(source)
            for name, source in self._files.items()
            if source is not None
        }
        parsed = itertools.repeat(None) if parses is None else iter(parses)
        number, end = 0, object()
        for number, text in enumerate(texts, start=1):
            line_texts = {name: next(values, end) for name, values in files.items()}
            for name, value in line_texts.items():
                if value is end:
                    raise UserError(
                        f"{self.location(name, None)} has {number - 1} lines, and the source has more: "
                        "expected a line for each line of the source, empty for nothing"
                    )
            parse = next(parsed, end)
            if parse is end:
                raise UserError(f"there are {number - 1} parses, and the source has more lines")
            yield Line(text, **line_texts, parse=parse)  # type: ignore[arg-type]
        if next(parsed, None) is not None:
            raise UserError(f"there are more parses than the {number} lines of the source")
        for name, values in files.items():
            if next(values, end) is not end:
                raise UserError(
                    f"{self.location(name, number + 1)}: the source has {number} lines: expected a line "
                    "for each of them"
                )

    def location(self, name: str, number: int | None) -> str:
        """Return the location of a line's text; None for all texts."""
        source = self._files[name]
        return location(source if isinstance(source, str | Path) else name, number)


class Requirements:
    """The requirements of the translations of some lines.

    Args:
        tokens_of: returns the target's indices of a prefix.
        required_text_of: returns a text of constraints.
        targets_of: returns the indices of a given translation, with its end.
    """

    def __init__(
        self,
        texts: ParallelTexts,
        tokens_of: TokensOf,
        required_text_of: RequiredTextOf,
        targets_of: TokensOf,
        glossary: Glossary | None = None,
    ) -> None:
        self._texts, self._tokens_of, self._targets_of = texts, tokens_of, targets_of
        self._required_text_of, self._glossary = required_text_of, glossary

    def segments(
        self,
        line: Line,
        number: int,
        sentences: Sequence[EncodedSentence],
        slots_of: Callable[[EncodedSentence], Sequence[str]],
        longest: Callable[[EncodedSentence], int],
    ) -> list[LinePart]:
        """Return the segments of a line with the indices that their translations must have.

        Args:
            number: its number, from 1.
            slots_of: returns the words of a segment that have slots.
            longest: returns the largest number of subwords of a segment's translation.

        Raises:
            UserError: a text is longer than a translation, has words that the target's dictionary lacks,
                or belongs to a line of several segments.
        """
        constraints = [part for part in line.constraints.split("\t") if part.strip()]
        name = "target" if self._texts.has_target else "constraints"
        if (constraints or self._texts.has_target) and len(sentences) > 1:
            raise UserError(
                f"{self._texts.location(name, number)}: the source line is longer than the model reads, "
                "and its segments are translated one by one: divide it into lines, each with its "
                f"{name}"
            )
        if self._texts.has_target:
            where = self._texts.location("target", number)
            return [
                LinePart(sentence, target=self._targets_of(line.target, slots_of(sentence), where))
                for sentence in sentences
            ]
        segments = []
        for index, sentence in enumerate(sentences):
            required_texts = [
                (text, self._texts.location("constraints", number)) for text in constraints
            ]
            if self._glossary is not None:
                required_texts += self._glossary.of(sentence)
            prefix = line.prefix if index == 0 else ""
            if not required_texts and not prefix.strip():
                segments.append(LinePart(sentence))
                continue
            slots, where = slots_of(sentence), self._texts.location("prefix", number)
            required = [
                self._required_text_of(text, slots, place) for text, place in required_texts
            ]
            segment = LinePart(
                sentence,
                [text for text in required if text.after_space],  # others are invisible
                self._tokens_of(prefix, slots, where),
            )
            most = longest(sentence)
            if (count := len(segment.prefix)) > most:
                raise UserError(
                    f"{where}: the prefix has {count} subwords, and the translation may have {most}"
                )
            count += sum(len(text.after_space) for text in segment.constraints)
            if count > most:
                raise UserError(
                    f"{required_texts[0][1]}: the constraints of line {number} and its prefix have "
                    f"{count} subwords, and the translation may have {most}"
                )
            segments.append(segment)
        return segments


class Glossary:
    """Terms, and their required translations.

    A term matches where a sentence has its words. Of terms that begin with the same word, the longest
    matches.

    Args:
        terms: a file of lines ``source<tab>target``, or the targets by their sources.
        segment: segments texts into words and subwords.
        required_text_of: see :class:`Requirements`.
        loose: whether the words are those between spaces, which have punctuation, and in scripts without
            spaces several words (:func:`fairseq_phrase.metrics.tokenizers.loose_words`).
    """

    def __init__(
        self,
        terms: str | Path | Mapping[str, str],
        segment: Callable[[Sequence[str]], Sequence[EncodedSentence]],
        join: Callable[[str], str],
        required_text_of: RequiredTextOf,
        *,
        loose: bool = False,
    ) -> None:
        self._join, self._loose = join, loose
        pairs = list(terms.items() if isinstance(terms, Mapping) else _read(Path(terms)))
        name = "glossary" if isinstance(terms, Mapping) else terms
        self._terms: dict[str, list[tuple[list[str], str, str]]] = defaultdict(list)
        encoded = segment([source for source, _ in pairs])
        for number, ((_, target), sentence) in enumerate(zip(pairs, encoded, strict=True), 1):
            where, words = location(name, number), self._words(sentence)
            if not words or not required_text_of(target, (), where).after_space:
                raise UserError(f"{where}: expected a term, a tab and its translation")
            self._terms[words[0]].append((words, target, where))
        for terms_of_word in self._terms.values():
            terms_of_word.sort(key=lambda term: -len(term[0]))

    def of(self, sentence: EncodedSentence) -> list[tuple[str, str]]:
        """Return the translation of each term in a sentence, and the term's location in the glossary."""
        words, translations, start = self._words(sentence), [], 0
        while start < len(words):
            for term, target, where in self._terms.get(words[start], ()):
                if words[start : start + len(term)] == term:
                    translations.append((target, where))
                    start += len(term) - 1
                    break
            start += 1
        return translations

    def _words(self, sentence: EncodedSentence) -> list[str]:
        subwords: list[list[str]] = [[] for _ in range(sentence.num_words)]
        for subword, word in zip(sentence.subwords, sentence.words.tolist(), strict=True):
            subwords[word].append(subword)
        words = [self._join(" ".join(parts)) for parts in subwords]
        return [part for word in words for part in loose_words(word)] if self._loose else words


def _read(path: Path) -> Iterator[tuple[str, str]]:
    sources: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        source, tab, target = line.partition("\t")
        if not tab or "\t" in target:
            raise UserError(f"{location(path, number)}: expected a term, a tab and its translation")
        if sources.setdefault(source, target) != target:
            raise UserError(
                f"{location(path, number)}: '{source}' is translated by '{sources[source]}' in another "
                "line"
            )
        yield source, target


def word_translations(translations: str | Path | Mapping[str, str]) -> Mapping[str, str]:
    """Read translations of words from a file with a word and its translation in each line.

    Raises:
        UserError: a line does not have exactly two words.
    """
    if isinstance(translations, Mapping):
        return translations
    translation_of = {}
    for number, line in enumerate(read_lines(Path(translations)), start=1):
        if len(words := line.split()) != 2:
            raise UserError(
                f"{location(translations, number)}: expected a word and its translation"
            )
        translation_of[words[0]] = words[1]
    return translation_of
