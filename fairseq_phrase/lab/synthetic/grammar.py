"""Draw random meanings: the clauses, entities and modifiers of a sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from fairseq_phrase.lab.synthetic.lexicon import (
    DEFINITE,
    INDEFINITE,
    PERSON,
    PLACE,
    TOOL,
    Adjective,
    Adverb,
    Determiner,
    Lexicon,
    Noun,
    Verb,
)
from fairseq_phrase.lab.synthetic.meaning import (
    PRONOUNS,
    Adjunct,
    Entity,
    Event,
    Name,
    Oblique,
    Pair,
    Pronoun,
    Thing,
    Utterance,
)
from fairseq_phrase.lab.synthetic.rules import MAIN_RULES

TENSES = {"present": 4.0, "past": 3.0, "future": 1.0, "modal": 2.0}
MODALS = {
    ("können", "can"): 3.0,
    ("müssen", "must"): 2.0,
    ("sollen", "should"): 2.0,
    ("dürfen", "may"): 1.0,
}
MAX_DEPTH = 2

T = TypeVar("T")


class Choices:
    """Random choices that are the same on every machine and Python version.

    They use only ``random.Random.random``, whose sequence Python guarantees.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._random() < probability

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options, all equally likely."""
        return options[int(self._random() * len(options))]

    def weighted(self, options: Mapping[T, float]) -> T:
        """Return one of the keys, as likely as its weight."""
        point = self._random() * sum(options.values())
        for option, weight in options.items():
            point -= weight
            if point < 0:
                return option
        return option


class Grammar:
    """A random source of meanings.

    Args:
        depth: how many levels of clauses a main clause may contain.
    """

    def __init__(self, lexicon: Lexicon, seed: int, depth: int = MAX_DEPTH) -> None:
        self.lexicon = lexicon
        self.nouns_of = cache(lexicon.nouns_of)
        self.depth = depth
        self.rng = Choices(seed)

    def utterance(self) -> Utterance:
        """Draw a whole sentence."""
        first = self.main_clause(self.depth)
        is_statement = first.adjunct is None and "question" not in first.rule
        if is_statement and self.rng.chance(0.08):
            joint = self.rng.pick((("und", "and"), ("aber", "but")))
            return Utterance(first, self.main_clause(0, may_ask=False), joint)
        return Utterance(first)

    def main_clause(self, depth: int, may_ask: bool = True) -> Event:
        """Draw a main clause in a random word order, possibly with an adverbial clause."""
        event = self.event(depth, pronouns=True)
        if depth and event.complement is None and self.rng.chance(0.25):
            # English lacks a future in these clauses, and "before", "until" and "if" need one tense.
            tense = "past" if event.tense == "past" else "present"
            inner = self.event(depth - 1, pronouns=True, tense=tense)
            inner = replace(inner, rule="subordinate")
            fronted = self.rng.chance(0.4)
            if fronted:
                inner = replace(inner, rule="subordinate in front")
            conjunction = self.rng.pick(self.lexicon.conjunctions)
            event = replace(event, adjunct=Adjunct(conjunction, inner, fronted))
        options = {
            rule.name: rule.weight
            for rule in MAIN_RULES
            if CONDITIONS[rule.needs](event) and (may_ask or rule.needs != "question")
        }
        event = replace(event, rule=self.rng.weighted(options))
        asks_more = event.rule == "question" and event.oblique is None and event.adverb is None
        if asks_more and self.rng.chance(0.4):
            word = self.rng.pick(self.lexicon.question_words)
            event = replace(event, rule="wh question", question_word=word)
        return event

    def event(self, depth: int, pronouns: bool = False, tense: str = "") -> Event:
        """Draw an event, without a word order.

        Args:
            tense: the tense; if empty, it is drawn and may be replaced by a modal verb.
        """
        tense, modal = (tense, None) if tense else self._tense()
        if modal is None and tense != "future" and self.rng.chance(0.05):
            return self._description(tense, depth)
        verb = self._verb(clausal=bool(depth) and self.rng.chance(0.15))
        event = Event(verb, tense, self.entity(verb.subjects, depth, pronouns=pronouns), modal)
        if verb.objects:
            # Only clauses inside the object can be extraposed, so they are more frequent.
            patient = self.entity(verb.objects, depth, relative_chance=0.3)
            event = replace(event, object=patient, extraposed=self.rng.chance(0.5))
        event = self._with_others(event, verb)
        if "c" in verb.traits:
            inner = replace(self.event(depth - 1, pronouns=True), rule="subordinate")
            return replace(event, complement=inner)
        if "x" in verb.traits:
            return replace(event, complement=self._infinitive(depth - 1))
        return self._with_modifiers(self._maybe_passive(event))

    def _tense(self) -> tuple[str, tuple[str, str] | None]:
        tense = self.rng.weighted(TENSES)
        return ("present", self.rng.weighted(MODALS)) if tense == "modal" else (tense, None)

    def _verb(self, clausal: bool) -> Verb:
        verbs = [v for v in self.lexicon.verbs if clausal == ("c" in v.traits or "x" in v.traits)]
        return self.rng.pick(verbs or self.lexicon.verbs)

    def _description(self, tense: str, depth: int) -> Event:
        subject = self.entity(PERSON + "a", depth)
        predicate = self.rng.pick(self._adjectives(PERSON))
        return Event(None, tense, subject, predicate=predicate, negated=self.rng.chance(0.1))

    def _infinitive(self, depth: int) -> Event:
        verb = self._verb(clausal=False)
        while PERSON not in verb.subjects:
            verb = self._verb(clausal=False)
        event = Event(verb, "present", rule="infinitive")
        if verb.objects:
            event = replace(event, object=self.entity(verb.objects, depth))
        return self._with_others(event, verb)

    def _with_others(self, event: Event, verb: Verb) -> Event:
        """Add the recipient and the goal that a verb needs."""
        if "d" in verb.traits:
            event = replace(event, recipient=self.entity(PERSON, 0))
        if "g" in verb.traits:
            event = replace(event, goal=Oblique("goal", self._place()))
        return event

    def _maybe_passive(self, event: Event) -> Event:
        assert event.verb is not None
        if "p" not in event.verb.traits or not self.rng.chance(0.1):
            return event
        agent = event.subject if isinstance(event.subject, Thing) else None
        if agent is not None and (agent.relative or self.rng.chance(0.5)):
            agent = None
        return replace(
            event, subject=event.object, object=None, agent=agent, passive=True, extraposed=False
        )

    def _with_modifiers(self, event: Event) -> Event:
        things = [thing for thing in (event.object, event.subject) if isinstance(thing, Thing)]
        if all(thing.attribute is None for thing in things) and self.rng.chance(0.55):
            event = replace(event, oblique=self._oblique(event))
        if self.rng.chance(0.3):
            event = replace(event, adverb=self._adverb(event))
        if self.rng.chance(0.1) and self._may_negate(event):
            event = replace(event, negated=True)
        return event

    def _oblique(self, event: Event) -> Oblique | None:
        """Draw a prepositional phrase of the verb."""
        assert event.verb is not None
        has_object = event.object is not None
        kinds = {"place": 4.0}
        if event.goal is not None:
            kinds = {"company": 1.0}
        elif has_object:
            kinds |= {"company": 1.0}
            kinds |= {"tool": 3.0} if "t" in event.verb.traits else {}
            kinds |= {"source": 4.0} if "v" in event.verb.traits else {}
        kind = self.rng.weighted(kinds)
        late = has_object and (kind != "place" or self.rng.chance(0.5))
        return Oblique(kind, self._oblique_entity(kind), late)

    def _oblique_entity(self, kind: str) -> Entity:
        if kind == "place":
            return self._place()
        return self.entity(TOOL if kind == "tool" else PERSON, 0)

    def _place(self) -> Thing:
        noun = self.rng.pick(self.nouns_of(PLACE))
        determiner = self.rng.weighted({DEFINITE: 5.0, INDEFINITE: 1.0})
        return Thing(noun, determiner, adjective=self._adjective(noun, 0.15))

    def _adverb(self, event: Event) -> Adverb | None:
        tense = "future" if event.modal else event.tense
        options = [a for a in self.lexicon.adverbs if a.tense in ("*", tense)]
        return self.rng.pick(options) if options else None

    def _may_negate(self, event: Event) -> bool:
        """Return whether "not" may be used. An indefinite object needs another word (kein, no)."""
        denied = event.subject if event.passive else event.object
        is_definite = not isinstance(denied, Thing) or denied.determiner == DEFINITE
        may_modal = event.modal is None or event.modal[0] != "müssen"
        return is_definite and may_modal and event.adverb is None

    def entity(
        self, classes: str, depth: int, *, pronouns: bool = False, relative_chance: float = 0.15
    ) -> Entity:
        """Draw a noun phrase.

        Args:
            classes: letters of the noun classes to choose from.
            relative_chance: probability of a relative clause.
        """
        if PERSON in classes:
            if pronouns and self.rng.chance(0.15):
                return self.rng.pick(PRONOUNS)
            if self.rng.chance(0.12):
                return Name(self.rng.pick(self.lexicon.names))
            if self.rng.chance(0.06):
                first, second = self._thing(PERSON), self._thing(PERSON)
                return first if first.noun == second.noun else Pair(first, second)
        thing = self._thing(classes)
        if thing.determiner == DEFINITE and self.rng.chance(0.06):
            thing = replace(thing, owner=self._owner())
        elif self.rng.chance(0.2):
            thing = replace(thing, attribute=self._attribute(thing))
        if depth and thing.attribute is None and self.rng.chance(relative_chance):
            thing = replace(thing, relative=self._relative(thing, depth - 1))
        return thing

    def _thing(self, classes: str) -> Thing:
        noun = self.rng.pick(self.nouns_of(classes))
        plural = self.rng.chance(0.2)
        drawn = self.rng.weighted({DEFINITE: 12.0, INDEFINITE: 3.0} | self._rare(plural))
        determiner = None if plural and drawn == INDEFINITE else drawn
        return Thing(noun, determiner, plural, self._adjective(noun, 0.3))

    def _rare(self, plural: bool) -> dict[Determiner, float]:
        forms = [d for d in self.lexicon.determiners if d not in (DEFINITE, INDEFINITE)]
        return {d: 0.7 for d in forms if (d.english_plural if plural else d.english)}

    def _adjectives(self, noun_class: str) -> list[Adjective]:
        return [a for a in self.lexicon.adjectives if noun_class in a.noun_classes]

    def _adjective(self, noun: Noun, probability: float) -> Adjective | None:
        options = self._adjectives(noun.noun_class)
        return self.rng.pick(options) if options and self.rng.chance(probability) else None

    def _owner(self) -> Thing:
        noun = self.rng.pick(self.nouns_of(PERSON))
        return Thing(noun, DEFINITE, adjective=self._adjective(noun, 0.2))

    def _attribute(self, thing: Thing) -> Oblique:
        kinds = {"place": 3.0}
        if thing.noun.noun_class in "pa":
            kinds |= {"tool": 2.0, "company": 1.0}
        elif thing.determiner == DEFINITE:
            kinds |= {"source": 2.0}
        kind = self.rng.weighted(kinds)
        return Oblique(kind, self._owner() if kind == "source" else self._oblique_entity(kind))

    def _relative(self, antecedent: Thing, depth: int) -> Event | None:
        """Draw a relative clause whose gap the antecedent fills; None if no clear one is found soon."""
        for _ in range(4):
            event = self._any_relative(antecedent, depth)
            if is_clear_relative(event):
                return event
        return None

    def _any_relative(self, antecedent: Thing, depth: int) -> Event:
        noun_class = antecedent.noun.noun_class
        objects = [v for v in self.lexicon.verbs if noun_class in v.objects]
        if noun_class not in "pa" or (objects and self.rng.chance(0.4)):
            gap, verb = "object", self.rng.pick(objects)
        else:
            plain = [v for v in self.lexicon.verbs if "c" not in v.traits and "x" not in v.traits]
            gap, verb = "subject", self.rng.pick([v for v in plain if noun_class in v.subjects])
        tense, modal = self._tense()
        bare = replace(antecedent, relative=None)
        event = Event(verb, tense, modal=modal, gap=gap, antecedent=bare, rule="relative")
        if gap == "object":
            event = replace(event, subject=self.entity(verb.subjects, 0, pronouns=True))
        elif verb.objects:
            event = replace(event, object=self.entity(verb.objects, depth))
        event = self._with_others(event, verb)
        if event.goal is None and self.rng.chance(0.15):
            event = replace(event, oblique=Oblique("place", self._place()))
        return event


# Whether German case and agreement show which noun phrase is the subject and which the object. If they do
# not, the subject is before the object and there is no relative clause, because neither a reader nor a
# tree without relation labels could distinguish the readings.


def shows_case(entity: Entity | None) -> bool:
    """Whether the nominative of a noun phrase differs from its accusative."""
    if isinstance(entity, Pronoun):
        return entity.german in ("ich", "er", "wir")
    if not isinstance(entity, Thing) or entity.determiner is None:
        return False
    return entity.noun.gender == "m" and not entity.plural


def has_marked_object(event: Event) -> bool:
    """Whether the object is recognizable as the object if it comes first."""
    if event.object is None or event.extraposed:
        return False
    return shows_case(event.object) or shows_case(event.subject)


def is_clear_relative(event: Event) -> bool:
    """Whether the relative pronoun is known to be the subject, or the object, of its clause."""
    counterpart = event.subject if event.gap == "object" else event.object
    antecedent = event.antecedent
    assert antecedent is not None
    assert event.verb is not None
    if counterpart is None or counterpart.plural != antecedent.plural or shows_case(counterpart):
        return True
    if antecedent.noun.gender == "m" and not antecedent.plural:
        return True
    own_class, other_class = antecedent.noun.noun_class, _noun_class(counterpart)
    could_swap = (
        own_class in event.verb.subjects and other_class in event.verb.objects
        if event.gap == "object"
        else own_class in event.verb.objects and other_class in event.verb.subjects
    )
    return not could_swap


def _noun_class(entity: Entity) -> str:
    if isinstance(entity, Pair):
        return _noun_class(entity.first)
    return entity.noun.noun_class if isinstance(entity, Thing) else "p"


# Conditions for word order rules of main clauses; ``Rule.needs`` is the key.
CONDITIONS: dict[str, Callable[[Event], bool]] = {
    "": lambda event: event.adjunct is None or not event.adjunct.fronted,
    "adverb": lambda event: (
        event.adverb is not None and event.adverb.kind == "date" and event.adjunct is None
    ),
    "early place": lambda event: (
        event.oblique is not None
        and event.oblique.kind == "place"
        and not event.oblique.late
        and event.adjunct is None
    ),
    "marked object": lambda event: has_marked_object(event) and event.adjunct is None,
    "fronted clause": lambda event: event.adjunct is not None and event.adjunct.fronted,
    "question": lambda event: (
        event.adjunct is None
        and (event.oblique is None or not event.oblique.late or event.oblique.kind != "place")
    ),
}
