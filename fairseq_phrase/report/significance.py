"""Scores, and tests of their differences, all by sacrebleu itself."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

from fairseq_phrase.errors import UserError

TESTS = {"bs": "paired bootstrap resampling", "ar": "paired approximate randomization"}
LEVEL = 0.05  # p-values below it are called significant
_LOWER_IS_BETTER = {"TER"}


def bleu_metric(
    references: Sequence[str], tokenizer: str = "13a", *, lowercase: bool = False
) -> BLEU:
    """Return sacrebleu's BLEU against one reference.

    Args:
        references: the reference translations.
        tokenizer: sacrebleu's name of what finds the words; ``none`` for text that is in tokens.
        lowercase: lower-case translations and references first.

    Raises:
        UserError: sacrebleu lacks what the tokenizer needs.
    """
    try:
        # Without force sacrebleu warns of references that look tokenized.
        return BLEU(
            references=[list(references)], lowercase=lowercase, tokenize=tokenizer,
            force=tokenizer == "none",
        )  # fmt: skip
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(f"sacrebleu's tokenizer {tokenizer} cannot be had: {error}") from error


class Metrics:
    """BLEU, chrF and TER against one reference.

    Args:
        references: the reference translations, raw.
        lowercase: add ``BLEU lc``, on lower-cased text; 13a tokenizes, so this is what papers call
            tokenized lower-cased BLEU, but for their tokenizer.
        tokenizer: BLEU's; see :func:`bleu_metric`.

    Raises:
        UserError: sacrebleu lacks what the tokenizer needs.
    """

    def __init__(self, references: Sequence[str], lowercase: bool = False, tokenizer: str = "13a"):
        texts = [list(references)]
        self._metrics: dict[str, Any] = {
            "BLEU": bleu_metric(references, tokenizer),
            "chrF": CHRF(references=texts),
            "TER": TER(references=texts),
        }
        if lowercase:
            self._metrics["BLEU lc"] = bleu_metric(references, tokenizer, lowercase=True)
        self._test_signatures: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """The metrics' names, BLEU first."""
        return list(self._metrics)

    def score(self, hypotheses: Sequence[str]) -> dict[str, float]:
        """Score a translation of the whole test set.

        Args:
            hypotheses: as many as references.

        Returns:
            The score by metric; TER in percent, too.
        """
        return {
            name: metric.corpus_score(list(hypotheses), None).score
            for name, metric in self._metrics.items()
        }

    def signatures(self) -> dict[str, str]:
        """Return sacrebleu's signature of each metric, with the test's settings if one was made."""
        plain = {name: str(metric.get_signature()) for name, metric in self._metrics.items()}
        return {**plain, **self._test_signatures}

    def compare(
        self, baseline: Sequence[str], systems: Mapping[str, Sequence[str]], test: str, trials: int
    ) -> dict[str, dict[str, float]]:
        """Test systems against a baseline.

        Args:
            baseline: its translation.
            systems: translations by system.
            test: ``bs`` or ``ar``, as sacrebleu calls them.
            trials: resamples or shufflings; 0 for sacrebleu's default (1,000 or 10,000).

        Returns:
            The p-values of BLEU, chrF and TER by system and metric. That of a translation equal to the
            baseline's is 1: sacrebleu would count no trial as extreme as no difference, and call it
            significant.
        """
        tested = {name: self._metrics[name] for name in ("BLEU", "chrF", "TER")}
        named: list[tuple[str, Sequence[str]]] = [
            ("baseline", list(baseline)),
            *((name, list(text)) for name, text in systems.items()),
        ]
        paired = PairedTest(named, tested, None, test_type=test, n_samples=trials)
        signatures, results = paired()
        # sacrebleu calls them by names of its own (chrF2), in the same order.
        self._test_signatures = dict(zip(tested, map(str, signatures.values()), strict=True))
        columns: list[Any] = [values for name, values in results.items() if name != "System"]
        found: dict[str, dict[str, float]] = {system: {} for system in systems}
        for metric, (_, *tests) in zip(tested, columns, strict=True):
            for system, result in zip(systems, tests, strict=True):
                same = list(systems[system]) == list(baseline)
                found[system][metric] = 1.0 if same else result.p_value
        return found


@dataclass(frozen=True)
class Comparison:
    """How a row differs from the baseline in one metric, over the seeds that both have.

    The test is made once for each seed, between the two trainings of that seed, and asks whether the
    difference of *these two* would show on other sentences. Its p-values are not pooled: the sentences of
    several seeds put into one test set would count each sentence several times, as if they were
    independent, and make any difference significant. What remains is the seeds' own spread, which the
    table shows beside it.

    Attributes:
        p: the median of the p-values.
        better: seeds where the row is better with p < 0.05.
        worse: seeds where it is worse with p < 0.05.
        pairs: seeds that were tested.
    """

    p: float
    better: int
    worse: int
    pairs: int


def summarize(metric: str, pairs: Sequence[tuple[float, float]]) -> Comparison | None:
    """Put the tests of a row's seeds together.

    Args:
        metric: its name, which says whether more is better.
        pairs: p-value and difference, row minus baseline, of each seed.

    Returns:
        The comparison; None if there are no pairs.
    """
    if not pairs:
        return None
    sign = -1 if metric in _LOWER_IS_BETTER else 1
    significant = [sign * difference for p, difference in pairs if p < LEVEL]
    return Comparison(
        p=statistics.median(p for p, _ in pairs),
        better=sum(1 for difference in significant if difference > 0),
        worse=sum(1 for difference in significant if difference < 0),
        pairs=len(pairs),
    )
