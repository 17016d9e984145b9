"""The lexicon: words with their forms and properties in both languages."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

PERSON, PLACE, TOOL = "p", "l", "o"


@dataclass(frozen=True)
class Noun:
    """A common noun in both languages; ``place`` has its prepositions of place."""

    german: str
    gender: str
    german_plural: str
    genitive: str
    english: str
    english_plural: str
    noun_class: str
    place: tuple[str, str] | None = None

    @property
    def is_weak(self) -> bool:
        """Whether it ends in -n in all cases except the nominative (der Junge, den Jungen)."""
        return (
            self.gender == "m" and self.genitive == self.german_plural and self.genitive[-1] == "n"
        )


@dataclass(frozen=True)
class Verb:
    """A verb in both languages.

    Attributes:
        stem: German infinitive without its separable particle.
        particle: the separable particle, or empty.
        german_third: German third person singular, without the particle.
        german_participle: participle with the particle.
        auxiliary: ``haben`` or ``sein``, which forms the perfect.
        english, english_third, english_past, english_participle: forms without the particle.
        english_particle: the particle, or empty.
        subjects, objects: letters of the noun classes that it takes; intransitive if no objects.
        traits: letters explained in ``words.txt``.
    """

    stem: str
    particle: str
    german_third: str
    german_participle: str
    auxiliary: str
    english: str
    english_particle: str
    english_third: str
    english_past: str
    english_participle: str
    subjects: str
    objects: str
    traits: str


@dataclass(frozen=True)
class Adjective:
    """An adjective; endings are added to ``german_stem``."""

    german: str
    german_stem: str
    english: str
    noun_classes: str


@dataclass(frozen=True)
class Adverb:
    """An adverb; ``kind`` decides its slot: date, frequency or manner."""

    german: str
    english: str
    kind: str
    tense: str


@dataclass(frozen=True)
class Determiner:
    """A determiner; ``declension`` decides the ending of a following adjective.

    An empty English form means that the determiner does not exist in that number.
    """

    german: str
    english: str
    english_plural: str
    declension: str
    german_tag: str
    english_tag: str


DETERMINERS = (
    Determiner("der", "the", "the", "weak", "ART", "DT"),
    Determiner("ein", "a", "", "mixed", "ART", "DT"),
    Determiner("dieser", "this", "these", "weak", "PDAT", "DT"),
    Determiner("jeder", "every", "", "weak", "PIAT", "DT"),
    Determiner("mein", "my", "my", "mixed", "PPOSAT", "PRP$"),
    Determiner("unser", "our", "our", "mixed", "PPOSAT", "PRP$"),
    Determiner("zwei", "", "two", "strong", "CARD", "CD"),
    Determiner("drei", "", "three", "strong", "CARD", "CD"),
    Determiner("viele", "", "many", "strong", "PIAT", "JJ"),
)
DEFINITE, INDEFINITE = DETERMINERS[0], DETERMINERS[1]


@dataclass(frozen=True)
class Lexicon:
    """All words of the grammar. A small lexicon makes a small language."""

    nouns: tuple[Noun, ...]
    names: tuple[str, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    adverbs: tuple[Adverb, ...]
    question_words: tuple[tuple[str, str], ...]
    conjunctions: tuple[tuple[str, str], ...]
    determiners: tuple[Determiner, ...] = DETERMINERS

    def nouns_of(self, classes: str) -> tuple[Noun, ...]:
        """Return all nouns of these classes, in the order of the lexicon."""
        return tuple(noun for noun in self.nouns if noun.noun_class in classes)


@cache
def default_lexicon() -> Lexicon:
    """Return the lexicon from ``words.txt``."""
    tables: dict[str, list[list[str]]] = {}
    text = Path(__file__).with_name("words.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("["):
            rows = tables[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            rows.append(line.split())
    return Lexicon(
        nouns=tuple(map(_noun, tables["nouns"])),
        names=tuple(name for (name,) in tables["names"]),
        verbs=tuple(map(_verb, tables["verbs"])),
        adjectives=tuple(Adjective(*row) for row in tables["adjectives"]),
        adverbs=tuple(Adverb(*row) for row in tables["adverbs"]),
        question_words=tuple((german, english) for german, english in tables["question_words"]),
        conjunctions=tuple((german, english) for german, english in tables["conjunctions"]),
    )


def _noun(row: list[str]) -> Noun:
    german, gender, plural, genitive, english, english_plural, noun_class, *place = row
    prepositions = (place[0], place[1]) if place else None
    return Noun(german, gender, plural, genitive, english, english_plural, noun_class, prepositions)


def _verb(row: list[str]) -> Verb:
    infinitive, is_doing, perfect, auxiliary, base, third, past, participle, *frame = row
    subjects, objects, traits = (letters.strip("-") for letters in frame)
    particle, _, stem = infinitive.rpartition("|")
    english, _, english_particle = base.partition("+")
    return Verb(
        stem, particle, is_doing, perfect, auxiliary, english, english_particle, third, past, participle,
        subjects, objects, traits,
    )  # fmt: skip
