"""Minimum Bayes risk: the sampled translation with the most expected utility.

Source: Eikema and Aziz (2020), *Is MAP Decoding All You Need?*, section 5. The samples are both the
candidates and, with uniform weights, the references.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.evaluation.metrics.functions import (
    BUILT_IN,
    METRIC_GROUP,
    formula_of,
    is_lower_better,
    load_metrics,
)
from fairseq_phrase.evaluation.metrics.tokenizers import DEFAULT, tokenizer_of
from fairseq_phrase.text import did_you_mean

#: Utilities of pairs of a candidate and a reference, of a raw source line. Shape of the result: (pairs,).
Utility = Callable[[str, list[str], list[str]], NDArray[np.float64]]
#: sacrebleu's metrics, and the sign with which a higher value is better.
_SACREBLEU: dict[str, tuple[Callable[[str], Any], int]] = {
    "bleu": (lambda tokenizer: BLEU(tokenize=tokenizer, effective_order=True), 1),
    "chrf": (lambda _: CHRF(), 1),
    "ter": (lambda _: TER(), -1),
}
#: Metrics that do not compare a translation with another one.
_WITHOUT_REFERENCE = frozenset({"errant", "file"})
#: Expected utilities that are equal to so many digits are equal: sums in another order round differently.
_DIGITS = 9


class MinimumRisk:
    """The choice of a sample by a metric of sentences.

    Args:
        spec: ``bleu``, ``chrf`` or ``ter`` of sacrebleu, or ``NAME[:ARGUMENT]``, a registered metric
            (:mod:`fairseq_phrase.evaluation.metrics.functions`).
        language: the code of the target language, by which BLEU's tokenizer is chosen.

    Raises:
        UserError: the metric is unknown, cannot be loaded, or does not compare two translations.
    """

    def __init__(self, spec: str, language: str | None = None) -> None:
        self._option = as_given("mbr", spec)
        registered = {*BUILT_IN, *entry_points(group=METRIC_GROUP).names} - _WITHOUT_REFERENCE
        if spec in _SACREBLEU:
            tokenizer = tokenizer_of(language)[0] if spec == "bleu" else DEFAULT
            self._utility = _sentence_scores(*_SACREBLEU[spec], tokenizer)
        elif spec.partition(":")[0] in registered:
            self._utility = self._registered(spec)
        else:
            names = sorted({*_SACREBLEU, *registered})
            similar = did_you_mean(spec.partition(":")[0], names)
            raise UserError(f"{self._option}: expected one of {', '.join(names)}{similar}")

    def choose(self, source: str, samples: Sequence[str]) -> int:
        """Return the index of the sample with the most expected utility, the first of equal ones.

        Args:
            source: the raw line.
            samples: its translations; equal ones count as often as they were drawn.

        Raises:
            UserError: the metric does not return a number for each sentence.
        """
        counts = Counter(samples)
        texts = [*counts]
        if len(texts) == 1:
            return 0
        pairs = [(candidate, reference) for candidate in texts for reference in texts]
        candidates, references = map(list, zip(*pairs, strict=True))
        utilities = self._utility(source, candidates, references).reshape(len(texts), len(texts))
        expected = utilities @ np.array([*counts.values()]) / len(samples)
        return samples.index(texts[int(expected.round(_DIGITS).argmax())])

    def _registered(self, spec: str) -> Utility:
        ((_, function),) = load_metrics([spec]).items()
        sign = -1 if is_lower_better(function) else 1

        def utility(
            source: str, candidates: list[str], references: list[str]
        ) -> NDArray[np.float64]:
            scores = function([source] * len(candidates), candidates, [references])
            values = np.asarray(scores, np.float64)
            if values.ndim == 2 and (formula := formula_of(function)):
                values = np.asarray(formula(values), np.float64)
            if values.shape != (len(candidates),) or not np.isfinite(values).all():
                raise UserError(
                    f"{self._option}: expected a metric with a finite number for each sentence, not one "
                    "of a whole test set"
                )
            return sign * values

        return utility


def _sentence_scores(make: Callable[[str], Any], sign: int, tokenizer: str) -> Utility:
    """Return the utility by one of sacrebleu's metrics."""
    metric = make(tokenizer)

    def utility(source: str, candidates: list[str], references: list[str]) -> NDArray[np.float64]:
        pairs = zip(candidates, references, strict=True)
        return sign * np.array(
            [metric.sentence_score(candidate, [reference]).score for candidate, reference in pairs]
        )

    return utility
