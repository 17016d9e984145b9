"""English: forms, noun phrases and clauses."""

from __future__ import annotations

from fairseq_phrase.lab.synthetic.lexicon import PERSON, Verb
from fairseq_phrase.lab.synthetic.meaning import (
    Entity,
    Event,
    Name,
    Oblique,
    Pair,
    Pronoun,
    Thing,
    Utterance,
)
from fairseq_phrase.lab.synthetic.rules import (
    ENGLISH,
    RULES,
    agreeing,
    arrange,
    coordinated,
    inner_clauses,
    modified,
    whole_sentence,
)
from fairseq_phrase.lab.synthetic.tree import (
    DETERMINER_RELATIONS,
    HEAD,
    Child,
    Leaf,
    Phrase,
    phrase,
)

# First person singular, third person singular, plural.
BE = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}
DO = {"present": ("do", "does", "do"), "past": ("did", "did", "did")}
# The preposition of a prepositional phrase that belongs to a noun, by kind. A place has its own
# preposition, and a source becomes a possessive.
NOUN_PREPOSITIONS = {"tool": "with", "company": "with"}


def sentence(utterance: Utterance) -> Phrase:
    """Return the tree of a whole English sentence."""
    return whole_sentence(utterance, clause, ENGLISH, "CC", ".")


def clause(event: Event) -> Phrase:
    """Return the tree of an English clause."""
    rule = RULES[event.rule]
    slots = _verb_slots(event, inverted=rule.needs == "question")
    slots |= _participants(event) | _modifiers(event)
    slots |= inner_clauses(event, clause, ENGLISH, "IN")
    return arrange(rule.label, rule.english, slots, ",")


def _participants(event: Event) -> dict[str, Child]:
    slots: dict[str, Child] = {}
    subject_relation = "nsubj:pass" if event.passive else "nsubj"
    if event.antecedent is not None:
        relation = subject_relation if event.gap == "subject" else "obj"
        slots["pronoun"] = Child(relation, phrase("NP", (HEAD, _relative_pronoun(event))))
    if event.subject is not None:
        slots["subject"] = Child(subject_relation, noun_phrase(event.subject))
    if event.recipient is not None:
        slots["recipient"] = Child("obl", _prepositional_phrase("to", event.recipient))
    if event.object is not None:
        slots["object"] = Child("obj", noun_phrase(event.object))
    if event.agent is not None:
        slots["agent"] = Child("obl:agent", _prepositional_phrase("by", event.agent))
    if event.verb is not None and event.verb.english_particle:
        # A heavy object follows the particle: "calls the man up", "calls up the man who sleeps".
        slot = "prt" if event.object is None or _is_heavy(event.object) else "late_prt"
        particle = Leaf(event.verb.english_particle, "RP")
        slots[slot] = Child("compound:prt", phrase("PRT", (HEAD, particle)))
    return slots


def _relative_pronoun(event: Event) -> Leaf:
    assert event.antecedent is not None
    if event.antecedent.noun.noun_class != PERSON:
        return Leaf("that", "WDT")
    return Leaf("who", "WP") if event.gap == "subject" else Leaf("whom", "WP", "who")


def _is_heavy(entity: Entity) -> bool:
    if isinstance(entity, Thing):
        return entity.relative is not None or entity.attribute is not None
    return isinstance(entity, Pair)


def _modifiers(event: Event) -> dict[str, Child]:
    slots: dict[str, Child] = {}
    if event.goal is not None:
        slots["goal"] = Child("obl", _prepositional_phrase("to", event.goal.entity))
    if event.oblique is not None:
        slot, relation, node = _adverbial(event.oblique, has_object=event.object is not None)
        slots[slot] = Child(relation, node)
    if event.adverb is not None:
        word = Leaf(event.adverb.english, "RB")
        slots[event.adverb.kind] = Child("advmod", phrase("ADVP", (HEAD, word)))
    if event.predicate is not None:
        word = Leaf(event.predicate.english, "JJ")
        slots["predicate"] = Child(HEAD, phrase("ADJP", (HEAD, word)))
    if event.negated:
        slots["not"] = Child("advmod", Leaf("not", "RB", upos="PART", clings_to="can"))
    if event.question_word is not None:
        word = Leaf(event.question_word[1], "WRB")
        slots["wh"] = Child("advmod", phrase("WHADVP", (HEAD, word)))
    return slots


def _adverbial(oblique: Oblique, has_object: bool) -> tuple[str, str, Phrase]:
    """Return slot, relation and words of a prepositional phrase that belongs to the verb."""
    if oblique.kind == "place":
        # In front, where it cannot be read as a part of the object.
        slot = "setting" if oblique.late and has_object else "place"
        return slot, "obl", _prepositional_phrase(_place_preposition(oblique), oblique.entity)
    if oblique.kind == "source":
        return "phrase", "obl", _prepositional_phrase("from", oblique.entity)
    if oblique.kind == "company":
        inner = _prepositional_phrase("with", oblique.entity)
        together = phrase("ADVP", (HEAD, Leaf("together", "RB")))
        return "phrase", "obl", phrase("PP", ("advmod", together), (HEAD, inner))
    using = Leaf("using", "VBG", "use")
    group = phrase("VP", (HEAD, using), ("obj", noun_phrase(oblique.entity)))
    return "phrase", "advcl", phrase("S", (HEAD, group))


def _verb_slots(event: Event, inverted: bool) -> dict[str, Child]:
    """Return the verb's parts: auxiliary, main verb, and the second auxiliary of a passive."""
    if event.verb is None:
        word = agreeing(BE[event.tense], event)
        return {"finite": Child("cop", _auxiliary(word, event.tense, "be", event))}
    verb = event.verb
    base = Leaf(verb.english, "VB")
    participle = Leaf(verb.english_participle, "VBN", verb.english)
    if event.rule == "infinitive":
        return {"to": Child("mark", Leaf("to", "TO")), "verb": Child(HEAD, base)}
    modal = event.modal[1] if event.modal else "will" if event.tense == "future" else ""
    if modal:
        slots = {"finite": Child("aux", Leaf(modal, "MD"))}
        if event.passive:
            slots["passive"] = Child("aux:pass", Leaf("be", "VB", upos="AUX"))
        return slots | {"verb": Child(HEAD, participle if event.passive else base)}
    if event.passive:
        finite = _auxiliary(agreeing(BE[event.tense], event), event.tense, "be", event)
        return {"finite": Child("aux:pass", finite), "verb": Child(HEAD, participle)}
    if event.negated or inverted:
        finite = _auxiliary(agreeing(DO[event.tense], event), event.tense, "do", event)
        return {"finite": Child("aux", finite), "verb": Child(HEAD, base)}
    return {"verb": Child(HEAD, _simple_form(verb, event))}


def _simple_form(verb: Verb, event: Event) -> Leaf:
    if event.tense == "past":
        return Leaf(verb.english_past, "VBD", verb.english)
    word = agreeing((verb.english, verb.english_third, verb.english), event)
    return Leaf(word, _finite_tag(event), verb.english)


def _auxiliary(word: str, tense: str, lemma: str, event: Event) -> Leaf:
    return Leaf(word, "VBD" if tense == "past" else _finite_tag(event), lemma, upos="AUX")


def _finite_tag(event: Event) -> str:
    entity = event.nominative
    return "VBP" if entity.plural or entity.person == 1 else "VBZ"


def noun_phrase(entity: Entity) -> Phrase:
    """Return the tree of a noun phrase."""
    if isinstance(entity, Pronoun):
        return phrase("NP", (HEAD, Leaf(entity.english, "PRP")))
    if isinstance(entity, Name):
        return phrase("NP", (HEAD, Leaf(entity.name, "NNP")))
    if isinstance(entity, Pair):
        first, second = (noun_phrase(member) for member in (entity.first, entity.second))
        return coordinated(first, Leaf("and", "CC"), second)
    noun = entity.noun
    word = noun.english_plural if entity.plural else noun.english
    core = _determiner(entity)
    if entity.adjective is not None:
        core.append(Child("amod", Leaf(entity.adjective.english, "JJ")))
    core.append(Child(HEAD, Leaf(word, "NNS" if entity.plural else "NN", noun.english)))
    return _with_postmodifiers(phrase("NP", *core), entity)


def _determiner(thing: Thing) -> list[Child]:
    owner = thing.owner
    if owner is None and thing.attribute is not None and thing.attribute.kind == "source":
        owner = thing.attribute.entity
    if owner is not None:
        possessor = noun_phrase(owner)
        ends_in_s = (
            isinstance(owner, Thing) and owner.plural and owner.noun.english_plural[-1] == "s"
        )
        mark = Leaf("'" if ends_in_s else "'s", "POS", "'s")
        return [Child("nmod:poss", phrase("NP", (HEAD, possessor), ("case", mark)))]
    determiner = thing.determiner
    if determiner is None:
        return []
    word = determiner.english_plural if thing.plural else determiner.english
    lemma = word
    if word == "a":
        following = thing.adjective.english if thing.adjective else thing.noun.english
        word = "an" if following[0] in "aeiou" else "a"
    relation = DETERMINER_RELATIONS.get(determiner.english_tag, "det")
    return [Child(relation, Leaf(word, determiner.english_tag, lemma))]


def _with_postmodifiers(core: Phrase, thing: Thing) -> Phrase:
    after = []
    attribute = thing.attribute
    if attribute is not None and attribute.kind != "source":
        preposition = NOUN_PREPOSITIONS.get(attribute.kind) or _place_preposition(attribute)
        after.append(Child("nmod", _prepositional_phrase(preposition, attribute.entity)))
    if thing.relative is not None:
        after.append(Child("acl:relcl", clause(thing.relative)))
    return modified(core, after)


def _place_preposition(oblique: Oblique) -> str:
    assert isinstance(oblique.entity, Thing)
    assert oblique.entity.noun.place is not None
    return oblique.entity.noun.place[1]


def _prepositional_phrase(preposition: str, entity: Entity) -> Phrase:
    return phrase("PP", ("case", Leaf(preposition, "IN")), (HEAD, noun_phrase(entity)))
