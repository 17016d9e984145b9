"""The measures of a report, by the name of ``--measure``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.forms import BracketForm, ExactMatch, Form, Queries
from fairseq_phrase.metrics.functions import FunctionMetrics, MetricFunction
from fairseq_phrase.metrics.interface import Metrics
from fairseq_phrase.metrics.labels import LabelMetrics, SpanMetrics
from fairseq_phrase.metrics.regexes import Regexes
from fairseq_phrase.metrics.translation import TranslationMetrics


@dataclass(frozen=True)
class Measure:
    """A set of metrics.

    Attributes:
        name: ``translation``, or one of :data:`MEASURES`.
        lowercase: of ``translation``: add lower-cased BLEU.
        tokenizer: of ``translation``: sacrebleu's tokenizer for BLEU; None for the language's tokenizer.
        repetition: of ``translation``: add the rates of repeated n-grams.
        known_words: of ``labels`` and ``spans``: the words of the training data; None if unknown.
        form: of ``exact``: the outputs' formal language; None if it is not known.
        functions: additional metrics by name; the first is then the main one.
    """

    name: str = "translation"
    lowercase: bool = False
    tokenizer: str | None = None
    repetition: bool = False
    known_words: Collection[str] | None = None
    form: Form | None = None
    functions: Mapping[str, MetricFunction] = field(default_factory=dict)

    @property
    def right_or_wrong(self) -> bool:
        """Whether the main metric counts single correct decisions."""
        return self.name in ("labels", "exact") and not self.functions

    def metrics(
        self,
        references: Sequence[Sequence[str]],
        sources: Sequence[str] | None = None,
        language: str | None = None,
    ) -> Metrics:
        """Make the metrics of a test set.

        Args:
            references: its references, a list for each file.
            sources: its raw sentences.
            language: the code of the references' language; None if it is unknown.

        Raises:
            UserError: a library is missing, sources and references do not agree, there are several
                references but the measure takes one, or a function lacks sources.
        """
        if len(references) > 1 and self.name != "translation":
            raise UserError(f"--measure {self.name} has one --reference for each test set")
        if self.name == "translation":
            metrics: Metrics = TranslationMetrics(
                references[0],
                self.lowercase,
                self.tokenizer,
                self.repetition,
                references[1:],
                language,
            )
        else:
            metrics = MEASURES[self.name](self, references[0], sources)
        return (
            FunctionMetrics(metrics, self.functions, references, sources)
            if self.functions
            else metrics
        )


def _labelled(
    references: Sequence[str], sources: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str] | None]:
    """Check that references have labels."""
    if not any(line.split() for line in references):
        raise UserError(
            "the reference has no labels, so nothing can be scored: name the file of the test set's "
            "labels (--reference)"
        )
    return references, sources


#: Functions from a reference and sources to the metrics of all measures except ``translation``.
MEASURES: dict[str, Callable[[Measure, Sequence[str], Sequence[str] | None], Metrics]] = {
    "labels": lambda options, *texts: LabelMetrics(*_labelled(*texts), options.known_words),
    "spans": lambda options, *texts: SpanMetrics(*_labelled(*texts), options.known_words),
    "exact": lambda options, lines, sources: ExactMatch(lines, options.form),
}

#: The measures of systems that label: their output is in ``labels-SUBSET.txt``.
LABELLING = frozenset({"labels", "spans"})

#: Functions that make the form of ``--form`` from forms with all valid predicates, or None.
FORMS: dict[str, Callable[[Iterable[str] | None], Form]] = {
    "calls": lambda training: BracketForm(training=training),
    "lambda": lambda training: BracketForm(inside=True, training=training),
    "regex": lambda _: Regexes(),
    "sql": lambda _: Queries(),
}
