"""The meaning of a sentence, independent of language.

:mod:`~fairseq_phrase.lab.synthetic.grammar` draws meanings at random. Both languages express the same
object, which makes the grammar synchronous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from fairseq_phrase.lab.synthetic.lexicon import Adjective, Adverb, Determiner, Noun, Verb

Entity = Union["Thing", "Name", "Pronoun", "Pair"]


@dataclass(frozen=True)
class Oblique:
    """A prepositional phrase: of a noun (``Thing.attribute``) or of a clause (``Event.oblique``).

    The two attachments often have the same German words and different English words.

    Attributes:
        kind: a key of ``german.PREPOSITIONS``: place, tool, company, source, goal.
        entity: the noun phrase in it.
        late: in a clause with an object, whether it follows the object in German.
    """

    kind: str
    entity: Entity
    late: bool = False


@dataclass(frozen=True)
class Thing:
    """A noun phrase around a common noun; without a determiner it is a bare plural."""

    noun: Noun
    determiner: Determiner | None
    plural: bool = False
    adjective: Adjective | None = None
    owner: Entity | None = None
    attribute: Oblique | None = None
    relative: Event | None = None
    person: int = 3


@dataclass(frozen=True)
class Name:
    """A person's name."""

    name: str
    plural: bool = False
    person: int = 3


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun, only as subject."""

    german: str
    english: str
    person: int
    plural: bool


@dataclass(frozen=True)
class Pair:
    """Two coordinated noun phrases."""

    first: Entity
    second: Entity
    plural: bool = True
    person: int = 3


PRONOUNS = (
    Pronoun("ich", "I", 1, False),
    Pronoun("er", "he", 3, False),
    Pronoun("wir", "we", 1, True),
    Pronoun("sie", "they", 3, True),
)


@dataclass(frozen=True)
class Adjunct:
    """An adverbial clause of another event."""

    conjunction: tuple[str, str]
    event: Event
    fronted: bool


@dataclass(frozen=True)
class Event:
    """A clause.

    Attributes:
        verb: the verb, or None for "subject is predicate" sentences.
        tense: present, past or future.
        subject: None if a relative pronoun or an infinitive replaces it.
        modal: German and English modal verb (kann, can) or None.
        object, recipient, goal, oblique, adverb, predicate, question_word: other parts of the clause.
        gap: the role of the relative pronoun: ``subject`` or ``object``.
        antecedent: the noun that it refers to.
        passive: whether the object is made the subject; the doer is the ``agent``.
        extraposed: whether German puts the object's relative clause behind the verb.
        complement: a clause as object.
        adjunct: an adverbial clause.
        rule: name of the word order rule in :mod:`~fairseq_phrase.lab.synthetic.rules`.
    """

    verb: Verb | None
    tense: str
    subject: Entity | None = None
    modal: tuple[str, str] | None = None
    object: Entity | None = None
    recipient: Entity | None = None
    agent: Entity | None = None
    goal: Oblique | None = None
    oblique: Oblique | None = None
    adverb: Adverb | None = None
    predicate: Adjective | None = None
    question_word: tuple[str, str] | None = None
    gap: str = ""
    antecedent: Thing | None = None
    negated: bool = False
    passive: bool = False
    extraposed: bool = False
    complement: Event | None = None
    adjunct: Adjunct | None = None
    rule: str = "plain"

    @property
    def nominative(self) -> Entity:
        """The entity with which the finite verb agrees."""
        entity = self.antecedent if self.gap == "subject" else self.subject
        assert entity is not None, "an infinitive agrees with nothing"
        return entity


@dataclass(frozen=True)
class Utterance:
    """A whole sentence: one clause, or two joined by a conjunction (German, English)."""

    first: Event
    second: Event | None = None
    conjunction: tuple[str, str] | None = None
