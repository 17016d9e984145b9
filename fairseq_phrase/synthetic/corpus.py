"""Draw distinct parallel sentences with gold trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairseq_phrase.errors import MAX_WORDS, UserError
from fairseq_phrase.synthetic import english, german
from fairseq_phrase.synthetic.grammar import MAX_DEPTH, Grammar
from fairseq_phrase.synthetic.lexicon import Lexicon, default_lexicon
from fairseq_phrase.synthetic.meaning import Event, Oblique, Thing, Utterance
from fairseq_phrase.synthetic.rules import RULES
from fairseq_phrase.synthetic.tree import Sentence, read_off

LANGUAGES = {"de": german.sentence, "en": english.sentence}
# The grammar counts as exhausted after this number of consecutive draws that repeat a text (among
# sentences that are short enough), or that are too long.
MAX_REPEATS = 200
MAX_TOO_LONG = 5000
# Fraction of the ambiguous sentences whose second reading is also yielded.
BOTH_READINGS = 0.7


class GrammarExhaustedError(UserError):
    """The grammar yields fewer distinct sentences than requested."""


@dataclass(frozen=True)
class ParallelSentence:
    """A sentence in two languages, with a tree in each."""

    source: Sentence
    target: Sentence

    @property
    def longest(self) -> int:
        """Number of words of the longer side."""
        return max(len(self.source.words), len(self.target.words))


def generate(
    size: int,
    seed: int,
    *,
    source_lang: str = "de",
    target_lang: str = "en",
    max_words: int = MAX_WORDS,
    lexicon: Lexicon | None = None,
) -> Iterator[ParallelSentence]:
    """Generate parallel sentences.

    A source text occurs only once, except that an ambiguous text may have two readings (same words, other
    tree, other translation). The two readings are consecutive.

    Args:
        seed: the same seed gives the same sentences on every machine.
        max_words: sentences with more words than this, in either language, are left out.
        lexicon: words to use instead of the default lexicon; it needs a person, a place and a tool,
            and for each verb a noun of its classes.
    """
    groups = distinct_groups(seed, source_lang, target_lang, max_words, lexicon)
    yield from take(groups, size)


def take(groups: Iterator[list[ParallelSentence]], size: int) -> Iterator[ParallelSentence]:
    """Return the next ``size`` sentences; sentences of the last group beyond ``size`` are dropped.

    A source text is therefore never in two splits taken from the same groups.

    Raises:
        GrammarExhaustedError: there are fewer than ``size`` sentences.
    """
    count = 0
    while count < size:
        group = next(groups, None)
        if group is None:
            raise GrammarExhaustedError(
                f"no more distinct sentences after {count} of the {size} asked for: "
                "ask for fewer sentences, or allow more words in one"
            )
        for pair in group[: size - count]:
            count += 1
            yield pair


def distinct_groups(
    seed: int,
    source_lang: str,
    target_lang: str,
    max_words: int = MAX_WORDS,
    lexicon: Lexicon | None = None,
) -> Iterator[list[ParallelSentence]]:
    """Yield distinct source texts, each with one or two readings.

    The arguments are as in :func:`generate`. The iterator ends when draws yield only known texts.

    Raises:
        UserError: a language is unknown, or both languages are the same.
    """
    if {source_lang, target_lang} != set(LANGUAGES):
        known = ", ".join(LANGUAGES)
        raise UserError(
            f"cannot translate from {source_lang!r} to {target_lang!r}: two different languages of "
            f"{known} are needed"
        )
    # Two clauses take at least seven words: Er lacht, weil Anna weint.
    depth = MAX_DEPTH if max_words >= 7 else 0
    grammar = Grammar(lexicon or default_lexicon(), seed, depth)
    seen: set[str] = set()
    repeats = too_long = 0
    while repeats < MAX_REPEATS and too_long < MAX_TOO_LONG:
        utterance = grammar.utterance()
        # Drawn for every sentence, because left-out sentences must not change the fraction of others.
        both = grammar.rng.chance(BOTH_READINGS)
        pair = ParallelSentence(
            read_off(LANGUAGES[source_lang](utterance)), read_off(LANGUAGES[target_lang](utterance))
        )
        if pair.longest > max_words:
            too_long += 1
            continue
        too_long = 0
        if pair.source.text in seen:
            repeats += 1
            continue
        repeats = 0
        seen.add(pair.source.text)
        twin = _twin(utterance, pair, source_lang, target_lang) if both else None
        yield [pair] if twin is None or twin.longest > max_words else [pair, twin]


def _twin(
    utterance: Utterance, pair: ParallelSentence, source_lang: str, target_lang: str
) -> ParallelSentence | None:
    """Return another reading of the same source words with a different translation, if any."""
    for reading in other_readings(utterance):
        source = read_off(LANGUAGES[source_lang](reading))
        if source.words == pair.source.words and source.heads != pair.source.heads:
            target = read_off(LANGUAGES[target_lang](reading))
            if target.words != pair.target.words:
                return ParallelSentence(source, target)
    return None


def other_readings(utterance: Utterance) -> Iterator[Utterance]:
    """Yield meanings that differ in the attachment of one prepositional phrase.

    The caller must check whether a meaning has the same words. This is only the case if the phrase
    directly follows the noun.
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
    """Read "von" in a passive clause as the doer or the owner: by the girl, the girl's."""
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
    """Attach a noun's prepositional phrase to the verb, if that makes sense."""
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
