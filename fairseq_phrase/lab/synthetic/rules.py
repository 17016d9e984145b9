"""Word order: the synchronous rules, one per kind of clause. To add a rule, add a ``Rule``.

A rule gives the order of a clause's slots in German and in English. A slot that the clause does not
fill is skipped. A slot that is named twice is used at its first mention: ``early finite subject
MIDDLE`` fronts a slot that is otherwise in MIDDLE. ``(VP …)`` is a nested constituent. If it does not
contain the verb (German main clauses without an auxiliary), its parts belong to the clause itself.

German slots
    subject, finite (the verb in second place: lexical or auxiliary), verb (in the right bracket),
    prt (separable particle), passive (worden, werden), adverb, early and late (a prepositional
    phrase before or after the object), recipient, object, manner, not, agent, goal, predicate,
    extraposed (relative clause), complement, clause (adverbial), pronoun (relative), wh,
    to (zu).
English slots
    subject, finite (auxiliary only), not, frequency, passive (be), verb, prt and late_prt (after a
    light object), object, recipient, agent, place, phrase (other prepositional phrases), setting
    (place in front), goal, manner, date, predicate, complement, clause, pronoun, wh, to.

``,`` is a comma that is removed if it is not needed (see ``tree.read_off``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from fairseq_phrase.lab.synthetic.meaning import Event, Utterance
from fairseq_phrase.lab.synthetic.tree import HEAD, Child, Leaf, Phrase, lexical_head, phrase

GERMAN, ENGLISH = 0, 1
Template = list[str | tuple[str, "Template"]]

MIDDLE = "adverb early recipient object late manner not agent goal"
AFTER = "extraposed complement clause"
SECOND = f"(VP {MIDDLE} verb passive prt) predicate {AFTER}"
FINAL = f"(VP {MIDDLE} verb passive) predicate finite {AFTER} ,"
PREDICATE = (
    "predicate (VP passive verb prt object late_prt recipient agent goal phrase place manner date"
    " complement)"
)
REST = f"not frequency {PREDICATE} clause"
SUBJECT_FIRST = f"setting subject finite {REST}"


@dataclass(frozen=True)
class Rule:
    """The order of one kind of clause in both languages.

    Attributes:
        name: the value of ``Event.rule``.
        german, english: templates.
        weight: relative frequency among the rules that a main clause could use; 0 for rules that the
            grammar uses only by name.
        needs: name of a condition in ``grammar.CONDITIONS``, or empty.
        label: the label of the clause's constituent.
    """

    name: str
    german: str
    english: str
    weight: float = 0.0
    needs: str = ""
    label: str = "S"


_ALL = (
    Rule("plain", f"subject finite {SECOND}", SUBJECT_FIRST, 6),
    Rule("fronted adverb", f"adverb finite subject {SECOND}", f"date {SUBJECT_FIRST}", 2, "adverb"),
    Rule("fronted place", f"early finite subject {SECOND}", f"place {SUBJECT_FIRST}", 2, "early place"),
    Rule("fronted object", f"object finite subject {SECOND}", SUBJECT_FIRST, 2, "marked object"),
    Rule("fronted clause", f"clause finite subject {SECOND}", f"clause {SUBJECT_FIRST}", 30,
         "fronted clause"),
    Rule("question", f"finite subject {SECOND}", f"finite subject {REST}", 1.5, "question", "SQ"),
    Rule("wh question", f"wh finite subject {SECOND}", f"wh finite subject {REST}", 0, "question",
         "SBARQ"),
    Rule("subordinate", f", subject {FINAL}", SUBJECT_FIRST, label="SBAR"),
    Rule("subordinate in front", f", subject {FINAL}", f"{SUBJECT_FIRST} ,", label="SBAR"),
    Rule("relative", f", pronoun subject {FINAL}", f"pronoun subject finite {REST}", label="SBAR"),
    Rule("infinitive", f", (VP {MIDDLE} to verb) {AFTER} ,", f"to {PREDICATE} clause"),
)  # fmt: skip
RULES = {rule.name: rule for rule in _ALL}
MAIN_RULES = tuple(rule for rule in _ALL if rule.weight)


def arrange(label: str, template: str, slots: dict[str, Child], comma_tag: str) -> Phrase:
    """Put the filled slots of a clause into the order of a template.

    Args:
        template: as explained at the top of this module.
        slots: the content of each slot; one has the relation ``head``.
    """
    remaining = dict(slots)
    children = _fill(_parsed(template), remaining, comma_tag)
    if remaining:
        raise ValueError(f"no place for {sorted(remaining)} in the word order {template!r}")
    return phrase(label, *children)


def whole_sentence(
    utterance: Utterance, clause: Callable[[Event], Phrase], language: int, cc: str, stop: str
) -> Phrase:
    """Make the tree of a whole sentence: one clause, or two and the conjunction between them.

    Args:
        language: :data:`GERMAN` or :data:`ENGLISH`, which is the index of its word in a pair.
    """
    first, joint = clause(utterance.first), utterance.conjunction
    children = list(first.children)
    if utterance.second is not None and joint is not None:
        second = clause(utterance.second)
        start = lexical_head(second)
        children = [Child(HEAD, first)]
        if joint[1] == "but":
            children.append(Child("punct", Leaf(",", "$," if language == GERMAN else ","), start))
        children += [Child("cc", Leaf(joint[language], cc), start), Child("conj", second)]
    is_question = RULES[utterance.first.rule].needs == "question"
    mark = Leaf("?" if is_question else ".", stop)
    top = phrase(first.label, *children, ("punct", mark))
    return phrase("ROOT", (HEAD, top))


def inner_clauses(
    event: Event, clause: Callable[[Event], Phrase], language: int, tag: str
) -> dict[str, Child]:
    """Make the clauses that a clause contains, with conjunctions that have this tag."""
    slots: dict[str, Child] = {}
    if event.complement is not None:
        inner = clause(event.complement)
        if event.complement.rule == "infinitive":
            slots["complement"] = Child("xcomp", inner)
        else:
            that = Leaf(("dass", "that")[language], tag, upos="SCONJ")
            slots["complement"] = Child("ccomp", _joined(inner, that))
    if event.adjunct is not None:
        conjunction = Leaf(event.adjunct.conjunction[language], tag, upos="SCONJ")
        slots["clause"] = Child("advcl", _joined(clause(event.adjunct.event), conjunction))
    return slots


def _joined(inner: Phrase, conjunction: Leaf) -> Phrase:
    """Put a conjunction before a clause, after the comma that opens it in German."""
    children = list(inner.children)
    children.insert(children[0].relation == "punct", Child("mark", conjunction))
    return Phrase(inner.label, children)


def coordinated(first: Phrase, conjunction: Leaf, second: Phrase) -> Phrase:
    """Join two noun phrases by a conjunction."""
    cc = Child("cc", conjunction, lexical_head(second))
    return phrase("NP", (HEAD, first), cc, ("conj", second))


def modified(core: Phrase, after: Sequence[Child]) -> Phrase:
    """Add phrases and clauses after a noun phrase, which becomes the head of a larger one."""
    return phrase("NP", (HEAD, core), *after) if after else core


def agreeing(forms: tuple[str, str, str], event: Event) -> str:
    """Choose the first person singular, the third person singular or the plural."""
    entity = event.nominative
    if entity.plural:
        return forms[2]
    return forms[0] if entity.person == 1 else forms[1]


def _fill(template: Template, remaining: dict[str, Child], comma_tag: str) -> list[Child]:
    children: list[Child] = []
    for item in template:
        if item == ",":
            children.append(Child("punct", Leaf(",", comma_tag)))
        elif isinstance(item, str):
            if item in remaining:
                children.append(remaining.pop(item))
        else:
            label, inside = item
            parts = _fill(inside, remaining, comma_tag)
            if any(part.relation == HEAD for part in parts):
                children.append(Child(HEAD, phrase(label, *parts)))
            else:
                children.extend(parts)
    return children


@cache
def _parsed(template: str) -> Template:
    """Read ``a (VP b c)`` as ``["a", ("VP", ["b", "c"])]``."""
    levels: list[Template] = [[]]
    labels: list[str] = []
    for token in template.replace(")", " )").split():
        if token.startswith("("):
            labels.append(token[1:])
            levels.append([])
        elif token == ")":
            inside = levels.pop()
            levels[-1].append((labels.pop(), inside))
        else:
            levels[-1].append(token)
    return levels[0]
