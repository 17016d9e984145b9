r"""Derive dependency trees of SLOG's sentences from their logical forms, to adapt a parser to them.

    python scripts/slog_trees.py PREFIX OUT.conllu [--sentences N]

PREFIX.en and PREFIX.lf are the output of scripts/logical_forms.py. The forms lack variables: a call is
a clause, or a noun with its modifiers; ``agent``, ``theme`` and ``recipient`` are nouns, ``ccomp`` and
``xcomp`` clauses, ``nmod`` a relative clause, ``nmod . on`` a noun behind a preposition. They name
nouns in the order of the sentence. Relations in the tree are named as in spaCy's English pipelines.
Sentences that are not a clause are left out, and so are sentences whose words do not fit their form. Both
are counted.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import conllu

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines

ARTICLES, QUESTIONS, ENDS = {"a", "the"}, {"who", "what"}, {".", "?"}
#: The relation of a preposition in front of a noun.
PREPOSITIONS = {"on": "prep", "in": "prep", "beside": "prep", "to": "dative", "by": "agent"}
_GRAMMAR = {*ARTICLES, *ENDS, *PREPOSITIONS, "that", "was", "did"}
_ARGUMENTS = ("agent", "theme", "recipient")


class NoTreeError(Exception):
    """A sentence and its form do not determine a tree."""


@dataclass
class Item:
    """A clause or a noun of a form.

    Attributes:
        name: the verb's lemma, the noun, or ``?``.
        role: its relation in the form, ``root`` if it has none.
        parent: the clause or noun that it belongs to.
        is_clause: whether it is a clause.
        gap: of a clause: the argument without a word in the clause, because it is the noun that the
            clause modifies, or the subject of the clause above.
        place: index of its word in the sentence, from 0.
    """

    name: str
    role: str
    parent: Item | None
    is_clause: bool
    gap: str = ""
    place: int = -1


@dataclass
class Call:
    """A name and its arguments, each with its relation."""

    name: str
    arguments: list[tuple[str, Call]] = field(default_factory=list)


def parse_form(form: str) -> Call:
    """Parse a form.

    Raises:
        NoTreeError: the form is malformed.
    """
    tokens = [token for token in form.split() if token != "*"]  # of definite nouns
    tokens.reverse()

    def call() -> Call:
        parsed = Call(tokens.pop())
        if tokens and tokens[-1] == "(":
            while tokens.pop() in "(,":
                relation = tokens.pop()
                if tokens[-1] == ".":
                    relation += tokens.pop() + tokens.pop()
                if tokens.pop() != "=":
                    raise NoTreeError("malformed form")
                parsed.arguments.append((relation, call()))
        return parsed

    try:
        return call()
    except IndexError:
        raise NoTreeError("malformed form") from None


def items_of(call: Call) -> list[Item]:
    """List the clauses and nouns of a form that have a word, from left to right."""
    items: list[Item] = []

    def walk(call: Call, role: str, parent: Item | None, missing: str) -> None:
        item = Item(call.name, role, parent, role in ("root", "ccomp", "xcomp", "nmod"))
        items.append(item)
        for relation, below in call.arguments:
            if relation in _ARGUMENTS and below.name == missing:
                item.gap, missing = relation, ""
            elif relation == "nmod":
                walk(below, relation, item, call.name)
            elif relation == "xcomp":
                agents = [argument.name for role, argument in call.arguments if role == "agent"]
                walk(below, relation, item, *agents[:1] or [""])
            else:
                walk(below, relation, item, "")

    walk(call, "root", None, "")
    return items


def is_clause(call: Call) -> bool:
    """Return whether a form is a clause, not a single noun or verb."""
    return any(relation in (*_ARGUMENTS, "ccomp", "xcomp") for relation, _ in call.arguments)


def _common_letters(one: str, other: str) -> int:
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def verb_lemmas(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Find the lemma of each form of a verb: of the lemmas that occur with it, the most similar one."""
    together: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence, form in pairs:
        call = parse_form(form)
        if not is_clause(call):
            continue
        items = items_of(call)
        clauses = {item.name for item in items if item.is_clause}
        nouns = {item.name.lower() for item in items if not item.is_clause}
        for word in sentence.split():
            if word.lower() not in _GRAMMAR | QUESTIONS | nouns:
                together[word].update(clauses)
    lemmas = {}
    for word, counts in together.items():
        always = [lemma for lemma, count in counts.items() if count == max(counts.values())]
        lemmas[word] = max(always, key=lambda lemma: _common_letters(lemma, word))
    return lemmas


class SentenceTree:
    """The tree of a sentence while it is built.

    Args:
        words: the words.

    Attributes:
        heads: the head of each word, from 1; 0 is the root, -1 not known yet.
        relations: the relation of each word to its head.
    """

    def __init__(self, words: list[str]):
        self.words = words
        self.lower = [word.lower() for word in self.words]
        self.heads = [-1] * len(self.words)
        self.relations = [""] * len(self.words)

    def attach(self, word: int, head: int, relation: str) -> None:
        """Attach a word to a head (indices from 0; -1 for the root)."""
        self.heads[word], self.relations[word] = head + 1, relation

    def build(self, form: str, lemmas: dict[str, str]) -> None:
        """Find all heads.

        Raises:
            NoTreeError: the form does not determine them.
        """
        call = parse_form(form)
        if not is_clause(call):
            raise NoTreeError("no clause")
        items = items_of(call)
        self._place(items, lemmas)
        clauses = [item for item in items if item.is_clause]
        for item in items:
            self._attach_clause(item) if item.is_clause else self._attach_noun(item)
        for word, head in enumerate(self.heads):
            if head < 0:
                self._attach_grammar(word, clauses)

    def _place(self, items: list[Item], lemmas: dict[str, str]) -> None:
        """Find the word of each item."""
        content = [place for place, word in enumerate(self.lower) if word not in _GRAMMAR]
        clauses = [item for item in items if item.is_clause]
        nouns = [item for item in items if not item.is_clause]
        names = {item.name for item in clauses}
        # A verb may occur in a form that is absent from the training text: its lemma.
        lemma_of = {
            place: lemmas.get(word, word)
            for place in content
            if (word := self.words[place]) in lemmas or word in names
        }
        free = [place for place in content if place not in lemma_of]
        for item in nouns:
            words_of_name = QUESTIONS if item.name == "?" else {item.name.lower()}
            item.place = next((place for place in free if self.lower[place] in words_of_name), -1)
            if item.place < 0:
                raise NoTreeError("a noun is not in the sentence")
            free.remove(item.place)
        in_order = [item.place for item in nouns if item.name != "?"]
        if free or in_order != sorted(in_order):
            raise NoTreeError("other nouns, or in another order")
        for item in clauses:
            candidates = [place for place, lemma in lemma_of.items() if lemma == item.name]
            # Complements are nested to the right, so the outermost has the first word. Two verbs of one
            # lemma, one of them in a relative clause, could be in either order.
            roles = [clause.role for clause in clauses if clause.name == item.name]
            if not candidates or (len(candidates) > 1 and "nmod" in roles):
                raise NoTreeError("a verb is not in the sentence, or twice")
            item.place = candidates[0]
            del lemma_of[item.place]
        if lemma_of:
            raise NoTreeError("other verbs")

    def _attach_clause(self, item: Item) -> None:
        if item.parent is None:
            self.attach(item.place, -1, "ROOT")
            return
        self.attach(item.place, item.parent.place, {"nmod": "relcl"}.get(item.role, item.role))
        if item.role == "xcomp" and self.lower[item.place - 1] == "to":
            self.attach(item.place - 1, item.place, "aux")

    def _attach_noun(self, item: Item) -> None:
        assert item.parent is not None
        place, verb = item.place, item.parent.place
        before = place - 1
        if before >= 0 and self.lower[before] in ARTICLES:
            self.attach(before, place, "det")
            before -= 1
        if place > verb and before > verb and self.lower[before] in PREPOSITIONS:
            self.attach(place, before, "pobj")
            self.attach(before, verb, PREPOSITIONS[self.lower[before]])
        elif item.role not in _ARGUMENTS:
            raise NoTreeError("a modifier without a preposition")
        elif item.name == "?" and item.role == "recipient" and self.lower[-2] == "to":
            self.attach(place, len(self.words) - 2, "pobj")  # Who did … give … to ?
        else:
            # Nouns before the verb are its subject, and question words if they ask for it.
            asks_for_object = (
                item.name == "?" and item.role != "agent" and not self._is_passive(verb)
            )
            is_subject = place < verb and not asks_for_object
            self.attach(place, verb, self._role(item.role, verb, is_subject))

    def _attach_grammar(self, word: int, clauses: Sequence[Item]) -> None:
        """Attach a word that the form does not name."""
        text = self.lower[word]
        places = sorted(item.place for item in clauses)
        if text in ENDS:
            self.attach(word, clauses[0].place, "punct")
        elif text in ("was", "did"):
            verb = next((place for place in places if place > word), -1)
            if verb < 0:
                raise NoTreeError(f"{text} without a verb")
            self.attach(word, verb, "auxpass" if text == "was" else "aux")
        elif text == "to":  # its noun is farther left, or in the clause above
            verb = max((place for place in places if place < word), default=-1)
            if verb < 0:
                raise NoTreeError("to without a verb")
            self.attach(word, verb, "dative")
        elif text == "that":
            around = [
                item for item in clauses if item.parent and item.parent.place < word < item.place
            ]
            if not around:
                raise NoTreeError("that without a clause")
            clause = max(around, key=lambda item: item.parent.place if item.parent else -1)
            relation = "mark"
            if clause.role == "nmod":
                subject = word + 1 == clause.place or self.lower[word + 1] == "was"
                relation = self._role(clause.gap, clause.place, subject)
            self.attach(word, clause.place, relation)
        else:
            raise NoTreeError(f"{text} belongs to nothing")

    def _role(self, role: str, verb: int, is_subject: bool) -> str:
        """Name the relation of an argument without a preposition."""
        if is_subject:
            return "nsubjpass" if self._is_passive(verb) else "nsubj"
        return "dative" if role == "recipient" else "dobj"

    def _is_passive(self, verb: int) -> bool:
        return verb > 0 and self.lower[verb - 1] == "was"


def conllu_sentence(tree: SentenceTree) -> str:
    """Write a tree as CoNLL-U."""
    columns = zip(tree.words, tree.heads, tree.relations, strict=True)
    values = [
        {"id": number, "form": word, "head": head, "deprel": relation}
        for number, (word, head, relation) in enumerate(columns, start=1)
    ]
    fields = conllu.parser.DEFAULT_FIELDS
    tokens = [
        conllu.Token((name, values_of_token.get(name)) for name in fields)
        for values_of_token in values
    ]
    return conllu.TokenList(tokens).serialize()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the trees."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prefix", help="sentences and forms: PREFIX.en and PREFIX.lf")
    parser.add_argument("out", type=Path, help="the trees, CoNLL-U")
    parser.add_argument("--sentences", type=int, help="how many trees, drawn with seed 1 (all)")
    args = parser.parse_args(arguments)
    try:
        sides = [list(read_lines(Path(f"{args.prefix}.{side}"))) for side in ("en", "lf")]
        pairs = list(zip(*sides, strict=True))
        lemmas = verb_lemmas(pairs)
    except (UserError, OSError, ValueError, NoTreeError) as error:
        sys.exit(f"error: {args.prefix}.en and {args.prefix}.lf: {error}")
    random.Random(1).shuffle(pairs)
    trees: list[SentenceTree] = []
    problems: Counter[str] = Counter()
    for sentence, form in pairs:
        if len(trees) == args.sentences:
            break
        tree = SentenceTree(sentence.split())
        try:
            tree.build(form, lemmas)
        except NoTreeError as error:
            problems[str(error)] += 1
        else:
            trees.append(tree)
    if not trees:
        sys.exit(f"error: no form of {args.prefix}.lf tells a tree: is it SLOG, variable-free?")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text("".join(map(conllu_sentence, trees)), encoding="utf-8")
    left_out = ", ".join(f"{count} {problem}" for problem, count in problems.most_common())
    print(f"{args.out}: {len(trees)} trees; left out: {left_out or 'none'}")


if __name__ == "__main__":
    main()
