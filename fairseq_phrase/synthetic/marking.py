"""Whether German case and agreement show which noun phrase is the subject and which the object.

If they do not, the grammar puts the subject before the object and draws no relative clause, because
neither a reader nor a tree without relation labels could distinguish the readings.
"""

from __future__ import annotations

from collections.abc import Callable

from fairseq_phrase.synthetic.meaning import Entity, Event, Pair, Pronoun, Thing


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
    other = event.subject if event.gap == "object" else event.object
    antecedent = event.antecedent
    assert antecedent is not None
    assert event.verb is not None
    if other is None or other.plural != antecedent.plural or shows_case(other):
        return True
    if antecedent.noun.gender == "m" and not antecedent.plural:
        return True
    own_class, other_class = antecedent.noun.noun_class, _noun_class(other)
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


# When a word order rule may be used by a main clause; ``Rule.needs`` holds the key.
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
