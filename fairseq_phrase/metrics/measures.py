"""What a report can measure, by the name of ``--measure``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from fairseq_phrase.metrics.base import Metrics
from fairseq_phrase.metrics.exact_match import ExactMatch
from fairseq_phrase.metrics.forms import Brackets, Form
from fairseq_phrase.metrics.labels import LabelMetrics, SpanMetrics
from fairseq_phrase.metrics.queries import Queries
from fairseq_phrase.metrics.regexes import Regexes
from fairseq_phrase.metrics.translation import TranslationMetrics


@dataclass(frozen=True)
class Measure:
    """A set of metrics.

    Attributes:
        name: one of :data:`MEASURES`.
        lowercase: of ``translation``: add lower-cased BLEU.
        tokenizer: of ``translation``: sacrebleu's name of BLEU's tokenizer.
        repetition: of ``translation``: add the rates of repeated n-grams.
        known: of ``labels`` and ``spans``: the words of the training data; None if they are not known.
        form: of ``exact``: the outputs' formal language; None if it is not known.
    """

    name: str = "translation"
    lowercase: bool = False
    tokenizer: str = "13a"
    repetition: bool = False
    known: Collection[str] | None = None
    form: Form | None = None

    def metrics(self, lines: Sequence[str], sources: Sequence[str] | None = None) -> Metrics:
        """Make the metrics of a test set.

        Args:
            lines: its references.
            sources: its raw sentences, if they are known.

        Raises:
            UserError: a library is missing, or sources and references do not agree.
        """
        return MEASURES[self.name](self, lines, sources)


#: What makes metrics from references and sources.
MEASURES: dict[str, Callable[[Measure, Sequence[str], Sequence[str] | None], Metrics]] = {
    "translation": lambda options, lines, _: TranslationMetrics(
        lines, options.lowercase, options.tokenizer, options.repetition
    ),
    "labels": lambda options, lines, sources: LabelMetrics(lines, sources, options.known),
    "spans": lambda options, lines, sources: SpanMetrics(lines, sources, options.known),
    "exact": lambda options, lines, sources: ExactMatch(lines, options.form),
}

#: The measures of systems that label: their output is in ``labels-SUBSET.txt``.
LABELLING = frozenset({"labels", "spans"})

#: What makes the form of ``--form`` from forms with all known predicates, or None.
FORMS: dict[str, Callable[[Iterable[str] | None], Form]] = {
    "calls": lambda known: Brackets(known=known),
    "lambda": lambda known: Brackets(inside=True, known=known),
    "regex": lambda _: Regexes(),
    "sql": lambda _: Queries(),
}
