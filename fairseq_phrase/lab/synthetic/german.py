"""German: forms, noun phrases and clauses."""

from __future__ import annotations

from fairseq_phrase.lab.synthetic.lexicon import DEFINITE, Determiner, Verb
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
    GERMAN,
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
    lexical_head,
    phrase,
)

CASES = ("nom", "acc", "dat", "gen")

# Endings by gender (pl: any gender), in the order of CASES.
ARTICLE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "pl": ("die", "die", "den", "der"),
}
STRONG_ENDINGS = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "pl": ("e", "e", "en", "er"),
}
WEAK_ENDINGS = {
    "m": ("e", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("e", "e", "en", "en"),
    "pl": ("en", "en", "en", "en"),
}
CONTRACTIONS = {
    ("in", "dem"): "im",
    ("an", "dem"): "am",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}
# A place has its own preposition. All of these prepositions govern the dative.
PREPOSITIONS = {"tool": "mit", "company": "mit", "source": "von", "goal": "zu"}

# First person singular, third person singular, plural.
PRESENT = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "werden": ("werde", "wird", "werden"),
    "können": ("kann", "kann", "können"),
    "müssen": ("muss", "muss", "müssen"),
    "sollen": ("soll", "soll", "sollen"),
    "dürfen": ("darf", "darf", "dürfen"),
}
WAS = ("war", "war", "waren")


def sentence(utterance: Utterance) -> Phrase:
    """Return the tree of a whole German sentence."""
    return whole_sentence(utterance, clause, GERMAN, "KON", "$.")


def clause(event: Event) -> Phrase:
    """Return the tree of a German clause."""
    rule = RULES[event.rule]
    slots = _verb_slots(event, rule.german) | _participants(event) | _modifiers(event)
    slots |= inner_clauses(event, clause, GERMAN, "KOUS")
    return arrange(rule.label, rule.german, slots, "$,")


def _participants(event: Event) -> dict[str, Child]:
    slots: dict[str, Child] = {}
    subject_relation = "nsubj:pass" if event.passive else "nsubj"
    if event.antecedent is not None:
        case, relation = ("nom", subject_relation) if event.gap == "subject" else ("acc", "obj")
        word = ARTICLE[_agreement(event.antecedent)][CASES.index(case)]
        slots["pronoun"] = Child(relation, phrase("NP", (HEAD, Leaf(word, "PRELS", "der"))))
    if event.subject is not None:
        slots["subject"] = Child(subject_relation, noun_phrase(event.subject, "nom"))
    if event.recipient is not None:
        slots["recipient"] = Child("iobj", noun_phrase(event.recipient, "dat"))
    if event.object is not None:
        patient = noun_phrase(event.object, "acc", with_relative=not event.extraposed)
        slots["object"] = Child("obj", patient)
        relative = event.object.relative if isinstance(event.object, Thing) else None
        if event.extraposed and relative is not None:
            slots["extraposed"] = Child("acl:relcl", clause(relative), lexical_head(patient))
    if event.agent is not None:
        slots["agent"] = Child("obl:agent", _prepositional_phrase("von", event.agent))
    return slots


def _modifiers(event: Event) -> dict[str, Child]:
    slots: dict[str, Child] = {}
    if event.goal is not None:
        slots["goal"] = Child("obl", oblique_phrase(event.goal))
    if event.oblique is not None:
        slots[_oblique_slot(event)] = Child("obl", oblique_phrase(event.oblique))
    if event.adverb is not None:
        slot = "manner" if event.adverb.kind == "manner" else "adverb"
        slots[slot] = Child("advmod", phrase("ADVP", (HEAD, Leaf(event.adverb.german, "ADV"))))
    if event.predicate is not None:
        word = Leaf(event.predicate.german, "ADJD")
        slots["predicate"] = Child(HEAD, phrase("ADJP", (HEAD, word)))
    if event.negated:
        slots["not"] = Child("advmod", Leaf("nicht", "PTKNEG"))
    if event.question_word is not None:
        word = Leaf(event.question_word[0], "PWAV")
        slots["wh"] = Child("advmod", phrase("ADVP", (HEAD, word)))
    return slots


def _oblique_slot(event: Event) -> str:
    assert event.oblique is not None
    if event.oblique.late:
        return "late"
    # Without an object, a place is new information and follows "nicht".
    is_last = event.object is None and event.goal is None and not event.passive
    return "goal" if is_last and event.rule != "fronted place" else "early"


def _verb_slots(event: Event, template: str) -> dict[str, Child]:
    """Return the verb's parts: finite form, right bracket, particle."""
    if event.verb is None:
        forms = WAS if event.tense == "past" else PRESENT["sein"]
        return {"finite": Child("cop", Leaf(agreeing(forms, event), "VAFIN", "sein"))}
    verb = event.verb
    infinitive = verb.particle + verb.stem
    if event.rule == "infinitive":
        return _zu_infinitive(verb)
    helper, participle = _helper(event)
    if helper:
        tag = "VMFIN" if event.modal else "VAFIN"
        relation = "aux:pass" if event.passive and helper == "werden" else "aux"
        if event.passive and event.tense == "future":
            relation = "aux"
        finite = Leaf(agreeing(PRESENT[helper], event), tag, helper)
        word = verb.german_participle if participle else infinitive
        lexical = Leaf(word, "VVPP" if participle else "VVINF", infinitive)
        slots = {"finite": Child(relation, finite), "verb": Child(HEAD, lexical)}
        if event.passive and (event.modal or event.tense != "present"):
            is_past = event.tense == "past" and not event.modal
            last = Leaf("worden", "VAPP", "werden") if is_past else Leaf("werden", "VAINF")
            slots["passive"] = Child("aux:pass", last)
        return slots
    first = verb.stem[:-1] + "e" if verb.stem.endswith("ern") else verb.stem[:-2] + "e"
    word = agreeing((first, verb.german_third, verb.stem), event)
    if template.split().index("finite") < template.split().index("(VP"):
        slots = {"finite": Child(HEAD, Leaf(word, "VVFIN", infinitive))}
        if verb.particle:
            slots["prt"] = Child("compound:prt", Leaf(verb.particle, "PTKVZ"))
        return slots
    return {"verb": Child(HEAD, Leaf(verb.particle + word, "VVFIN", infinitive))}


def _helper(event: Event) -> tuple[str, bool]:
    """Return the finite auxiliary (empty in the simple present), and whether it takes a participle."""
    assert event.verb is not None
    if event.modal is not None:
        return event.modal[0], event.passive
    if event.tense == "future":
        return "werden", event.passive
    if event.tense == "past":
        return ("sein" if event.passive else event.verb.auxiliary), True
    return ("werden", True) if event.passive else ("", False)


def _zu_infinitive(verb: Verb) -> dict[str, Child]:
    infinitive = verb.particle + verb.stem
    if verb.particle:
        word = Leaf(f"{verb.particle}zu{verb.stem}", "VVIZU", infinitive)
        return {"verb": Child(HEAD, word)}
    word = Leaf(infinitive, "VVINF")
    return {"to": Child("mark", Leaf("zu", "PTKZU")), "verb": Child(HEAD, word)}


def _agreement(thing: Thing) -> str:
    return "pl" if thing.plural else thing.noun.gender


def noun_phrase(
    entity: Entity, case: str, *, with_relative: bool = True, with_determiner: bool = True
) -> Phrase:
    """Return the tree of a noun phrase in one of CASES."""
    if isinstance(entity, Pronoun):
        return phrase("NP", (HEAD, Leaf(entity.german, "PPER")))
    if isinstance(entity, Name):
        return phrase("NP", (HEAD, Leaf(entity.name, "NE")))
    if isinstance(entity, Pair):
        first, second = (noun_phrase(member, case) for member in (entity.first, entity.second))
        return coordinated(first, Leaf("und", "KON"), second)
    core: list[Child] = []
    if entity.determiner is not None and with_determiner:
        word = _determiner_form(entity.determiner, _agreement(entity), case)
        tag = entity.determiner.german_tag
        leaf = Leaf(word, tag, entity.determiner.german)
        core.append(Child(DETERMINER_RELATIONS.get(tag, "det"), leaf))
    if entity.adjective is not None:
        word = entity.adjective.german_stem + _adjective_ending(entity, case)
        core.append(Child("amod", Leaf(word, "ADJA", entity.adjective.german)))
    core.append(Child(HEAD, Leaf(_noun_form(entity, case), "NN", entity.noun.german)))
    return _with_postmodifiers(phrase("NP", *core), entity, with_relative)


def _with_postmodifiers(core: Phrase, thing: Thing, with_relative: bool) -> Phrase:
    after = []
    if thing.owner is not None:
        after.append(Child("nmod", noun_phrase(thing.owner, "gen")))
    if thing.attribute is not None:
        after.append(Child("nmod", oblique_phrase(thing.attribute)))
    if thing.relative is not None and with_relative:
        after.append(Child("acl:relcl", clause(thing.relative)))
    return modified(core, after)


def oblique_phrase(oblique: Oblique) -> Phrase:
    """Return a prepositional phrase; its words do not show its attachment."""
    preposition = PREPOSITIONS.get(oblique.kind)
    if preposition is None:
        assert isinstance(oblique.entity, Thing)
        assert oblique.entity.noun.place is not None
        preposition = oblique.entity.noun.place[0]
    return _prepositional_phrase(preposition, oblique.entity)


def _prepositional_phrase(preposition: str, entity: Entity) -> Phrase:
    contracted = None
    if isinstance(entity, Thing) and entity.determiner == DEFINITE:
        article = ARTICLE[_agreement(entity)][CASES.index("dat")]
        contracted = CONTRACTIONS.get((preposition, article))
    word = Leaf(contracted or preposition, "APPRART" if contracted else "APPR", preposition)
    inner = noun_phrase(entity, "dat", with_determiner=not contracted)
    return phrase("PP", ("case", word), (HEAD, inner))


def _determiner_form(determiner: Determiner, agreement: str, case: str) -> str:
    index = CASES.index(case)
    word = determiner.german
    if word == "der":
        return ARTICLE[agreement][index]
    if word in ("dieser", "jeder"):
        return word[:-2] + STRONG_ENDINGS[agreement][index]
    if word == "viele":
        return word[:-1] + STRONG_ENDINGS[agreement][index]
    if determiner.declension == "mixed":
        is_bare = agreement in "mn" and (case == "nom" or (agreement == "n" and case == "acc"))
        return word if is_bare else word + STRONG_ENDINGS[agreement][index]
    return word


def _adjective_ending(thing: Thing, case: str) -> str:
    agreement, index = _agreement(thing), CASES.index(case)
    declension = thing.determiner.declension if thing.determiner else "strong"
    shows_gender = agreement in "mn" and (case == "nom" or (agreement == "n" and case == "acc"))
    if declension == "strong" or (declension == "mixed" and shows_gender):
        return STRONG_ENDINGS[agreement][index]
    return WEAK_ENDINGS[agreement][index]


def _noun_form(thing: Thing, case: str) -> str:
    noun = thing.noun
    if thing.plural:
        needs_n = case == "dat" and noun.german_plural[-1] not in "ns"
        return f"{noun.german_plural}n" if needs_n else noun.german_plural
    if case == "gen" or (noun.is_weak and case != "nom"):
        return noun.genitive
    return noun.german
