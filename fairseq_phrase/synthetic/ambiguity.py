"""Second readings: the same words, with a prepositional phrase attached elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fairseq_phrase.synthetic.meaning import Event, Oblique, Thing, Utterance
from fairseq_phrase.synthetic.rules import RULES


def other_readings(utterance: Utterance) -> Iterator[Utterance]:
    """Meanings that differ in the attachment of one prepositional phrase.

    The caller must check whether a meaning really has the same words. It does only if the phrase directly
    follows the noun.
    """
    for event in _reattached(utterance.first):
        yield replace(utterance, first=event)
    adjunct = utterance.first.adjunct
    if adjunct is not None:
        for event in _reattached(adjunct.event):
            first = replace(utterance.first, adjunct=replace(adjunct, event=event))
            yield replace(utterance, first=first)
    if utterance.first.complement is not None:
        for event in _reattached(utterance.first.complement):
            yield replace(utterance, first=replace(utterance.first, complement=event))


def _reattached(event: Event) -> Iterator[Event]:
    if event.passive:
        yield from _doer_or_owner(event)
    if event.oblique is not None:
        yield from _to_noun(event, event.oblique)
    elif event.verb is not None and event.question_word is None:
        yield from _to_verb(event)


def _doer_or_owner(event: Event) -> Iterator[Event]:
    """Read "von" in a passive clause as naming the doer or the owner: the girl's, by the girl."""
    subject = event.subject
    if not isinstance(subject, Thing) or subject.noun.noun_class in "pal":
        return
    if event.agent is not None and _may_carry(subject, "source"):
        attribute = Oblique("source", event.agent)
        yield replace(event, agent=None, subject=replace(subject, attribute=attribute))
    elif event.agent is None and subject.attribute and subject.attribute.kind == "source":
        agent = subject.attribute.entity
        yield replace(event, agent=agent, subject=replace(subject, attribute=None))


def _to_noun(event: Event, oblique: Oblique) -> Iterator[Event]:
    """Attach the verb's prepositional phrase to the object or to the subject."""
    attribute = replace(oblique, late=False)
    if _may_carry(event.object, oblique.kind) and oblique.late:
        assert isinstance(event.object, Thing)
        yield replace(event, oblique=None, object=replace(event.object, attribute=attribute))
    if _may_carry(event.subject, oblique.kind) and not oblique.late:
        assert isinstance(event.subject, Thing)
        yield replace(event, oblique=None, subject=replace(event.subject, attribute=attribute))


def _may_carry(entity: object, kind: str) -> bool:
    if not isinstance(entity, Thing) or entity.attribute or entity.owner or entity.relative:
        return False
    is_animate = entity.noun.noun_class in "pa"
    if kind == "source":
        return entity.determiner is not None and entity.determiner.german == "der"
    return is_animate or kind == "place"


def _to_verb(event: Event) -> Iterator[Event]:
    """Attach a noun's prepositional phrase to the verb, as far as that makes sense."""
    assert event.verb is not None
    patient, subject = event.object, event.subject
    if isinstance(patient, Thing) and patient.attribute and not event.goal:
        kind = patient.attribute.kind
        needed = {"tool": "t", "source": "v"}.get(kind, "")
        has_room = kind != "place" or "setting" in RULES[event.rule].english
        if needed in event.verb.traits and has_room and not patient.relative:
            oblique = replace(patient.attribute, late=True)
            yield replace(event, oblique=oblique, object=replace(patient, attribute=None))
    if not isinstance(subject, Thing) or subject.relative or event.goal:
        return
    if subject.attribute and subject.attribute.kind == "place":
        oblique = replace(subject.attribute, late=False)
        yield replace(event, oblique=oblique, subject=replace(subject, attribute=None))
