"""Draw distinct parallel sentences with gold trees, and write them: text, CoNLL-U and bracketed trees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.synthetic import english, german
from fairseq_phrase.lab.synthetic.grammar import Grammar
from fairseq_phrase.lab.synthetic.lexicon import default_lexicon
from fairseq_phrase.lab.synthetic.meaning import Event, Oblique, Thing, Utterance
from fairseq_phrase.lab.synthetic.rules import RULES
from fairseq_phrase.lab.synthetic.tree import Sentence, read_off
from fairseq_phrase.option_values import SYNTHETIC_LANGUAGES
from fairseq_phrase.text import written_together

#: Sentences with more words than this, in either language, are left out.
MAX_WORDS = 30
# The grammar counts as exhausted after so many consecutive sentences that are too long, or after so many
# known texts in a row, sentences that are too long left aside.
_MAX_REPEATS = 200
MAX_TOO_LONG = 5000
_ENDS = ("", ".conllu", ".ptb")  # of the files' names
# Fraction of the ambiguous sentences whose second reading is also yielded.
BOTH_READINGS = 0.7


class GrammarExhaustedError(UserError):
    """The grammar yields fewer distinct sentences than requested."""


@dataclass(frozen=True)
class ParallelSentence:
    """A sentence in two languages, with a tree in each."""

    source: Sentence
    target: Sentence

    @classmethod
    def of(cls, utterance: Utterance) -> ParallelSentence:
        """Write a meaning in German and English."""
        return cls(read_off(german.sentence(utterance)), read_off(english.sentence(utterance)))

    @property
    def longest(self) -> int:
        """Number of words of the longer side."""
        return max(len(self.source.words), len(self.target.words))


def generate(size: int, seed: int) -> Iterator[ParallelSentence]:
    """Generate parallel sentences, German and English.

    A source text occurs only once, except that an ambiguous text may have two readings (same words, other
    tree, other translation). The two readings are consecutive.

    Args:
        seed: the same seed gives the same sentences on every machine.
    """
    yield from take(distinct_groups(seed), size)


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
                f"no more distinct sentences after {count} of the {size} asked for: ask for fewer"
            )
        for pair in group[: size - count]:
            count += 1
            yield pair


def distinct_groups(seed: int) -> Iterator[list[ParallelSentence]]:
    """Yield distinct source texts of at most :data:`MAX_WORDS` words, each with one or two readings.

    The iterator ends when draws yield only known texts.
    """
    grammar = Grammar(default_lexicon(), seed)
    texts: set[str] = set()
    repeats = too_long = 0
    while repeats < _MAX_REPEATS and too_long < MAX_TOO_LONG:
        utterance = grammar.utterance()
        # Drawn before sentences are left out, which must not change the fraction of the others.
        wants_twin = grammar.rng.chance(BOTH_READINGS)
        pair = ParallelSentence.of(utterance)
        if pair.longest > MAX_WORDS:
            too_long += 1
            continue
        too_long = 0
        if pair.source.text in texts:
            repeats += 1
            continue
        repeats = 0
        texts.add(pair.source.text)
        twin = _twin(utterance, pair) if wants_twin else None
        yield [pair] if twin is None or twin.longest > MAX_WORDS else [pair, twin]


def _twin(utterance: Utterance, pair: ParallelSentence) -> ParallelSentence | None:
    """Return another reading of the same source words with a different translation, if any."""
    for twin in map(ParallelSentence.of, other_readings(utterance)):
        has_same_words = twin.source.words == pair.source.words
        is_other_reading = twin.source.heads != pair.source.heads
        if has_same_words and is_other_reading and twin.target.words != pair.target.words:
            return twin
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


def write_corpus(
    out: str | Path,
    sizes: Mapping[str, int],
    seed: int,
) -> None:
    """Write ``{split}.{lang}``, ``{split}.{lang}.conllu`` and ``{split}.{lang}.ptb``.

    The first line, the first CoNLL-U sentence and the first tree belong together, and so on. The splits
    have no source text in common. Files appear under their names only when all of them are complete.

    Args:
        out: the directory; made if missing.
        sizes: number of sentence pairs by split; nothing is written for 0. Splits are drawn in this
            order: a split does not change with the sizes of later splits.
        seed: the same seed gives the same bytes.

    Raises:
        UserError: no sentence is requested, or the directory holds a corpus.
    """
    directory = Path(out)
    check_corpus_directory(directory, sizes)
    source_lang, target_lang = SYNTHETIC_LANGUAGES
    groups = distinct_groups(seed)
    with written_together(directory) as folder, ExitStack() as files:
        for split, size in ((split, size) for split, size in sizes.items() if size):
            texts, trees, brackets = (
                {
                    language: files.enter_context(
                        open(
                            folder / f"{split}.{language}{end}", "w", encoding="utf-8", newline="\n"
                        )
                    )
                    for language in SYNTHETIC_LANGUAGES
                }
                for end in _ENDS
            )
            pairs = take(groups, size)
            for number, pair in enumerate(tqdm(pairs, split, size, unit=" sentences"), start=1):
                for language, sentence in ((source_lang, pair.source), (target_lang, pair.target)):
                    texts[language].write(sentence.text + "\n")
                    trees[language].write(conllu(sentence, f"{split}-{number}"))
                    brackets[language].write(sentence.brackets + "\n")


def check_corpus_directory(directory: Path, sizes: Mapping[str, int]) -> None:
    """Check that there is something to write and that two corpora are not mixed.

    Raises:
        UserError: no sentence is requested, or the directory has files of a corpus.
    """
    if not any(sizes.values()):
        raise UserError(f"nothing to write: 0 sentences in {', '.join(sizes)}")
    names = (
        f"{split}.{language}{end}"
        for split in sizes
        for language in SYNTHETIC_LANGUAGES
        for end in _ENDS
    )
    existing = [name for name in names if (directory / name).exists()]
    if existing:
        raise UserError(
            f"{directory} holds a corpus already ({', '.join(existing[:3])}, ...): remove it, or name "
            "another folder"
        )


def conllu(sentence: Sentence, sent_id: str) -> str:
    """Write one sentence in CoNLL-U, with the empty line that ends it."""
    lines = [f"# sent_id = {sent_id}", f"# text = {sentence.text}"]
    last = len(sentence.words) - 1
    for index, word in enumerate(sentence.words):
        head = 0 if sentence.heads[index] == index else sentence.heads[index] + 1
        is_joined = not sentence.space_after[index] and index != last
        columns = (
            *(str(index + 1), word, sentence.lemmas[index], sentence.tags[index]),
            *(sentence.xpos[index], "_", str(head), sentence.deprels[index], "_"),
            "SpaceAfter=No" if is_joined else "_",
        )
        lines.append("\t".join(columns))
    return "\n".join(lines) + "\n\n"
