"""BLEU, chrF and TER computed by sacrebleu, BLEU of many resamples at once, and rates of repetition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.interface import Metrics, Statistics, percentages
from fairseq_phrase.metrics.tokenizers import DEFAULT, is_han_or_kana, is_unspaced, tokenizer_of

#: Parameters of the sigmoids that Kocmi et al. (2024), "Navigating the Metrics Maze", fitted.
_AGREEMENT = {"BLEU": (88.333, 0.96639), "chrF": (93.0, 1.11427)}
_ORDER = 4  # BLEU's longest n-grams
_LONGEST_REPEATED = 4  # words of the longest n-gram
_IMMEDIATE = "rep-now"
#: The rates of repetition that a report can have.
REPETITIONS = (*(f"rep-{size}" for size in range(1, _LONGEST_REPEATED + 1)), _IMMEDIATE)
_REPETITION_NOTE = (
    "rep-n: share of n-grams, in percent, that the same sentence has before (Welleck et al., 2020). "
    f"{_IMMEDIATE}: share of words that end an immediate repetition, which is one to "
    f"{_LONGEST_REPEATED} words that equal those right before them."
)


def bleu_metric(
    *references: Sequence[str], tokenizer: str = DEFAULT, lowercase: bool = False
) -> BLEU:  # fmt: skip
    """Return sacrebleu's BLEU.

    Args:
        references: the reference translations; several are several translations of each sentence.
        tokenizer: sacrebleu's name of the tokenizer; ``none`` for text that is already tokenized.

    Raises:
        UserError: sacrebleu lacks a package or a file that the tokenizer needs.
    """
    try:
        # Without force, sacrebleu warns if references look tokenized.
        return BLEU(
            references=[list(lines) for lines in references], lowercase=lowercase, tokenize=tokenizer,
            force=tokenizer == "none",
        )  # fmt: skip
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(f"sacrebleu's tokenizer {tokenizer} cannot be used: {error}") from error


def sentence_statistics(metric: Any, hypotheses: Sequence[str]) -> Statistics:
    """Compute each sentence's statistics. Shape: (sentences, statistics).

    Args:
        metric: sacrebleu's, made with its references.
    """
    counts = metric._extract_corpus_statistics(list(hypotheses), None)
    return np.asarray(counts, dtype=np.float64)


class TranslationMetrics(Metrics):
    """BLEU, chrF and TER.

    Args:
        lowercase: add ``BLEU lc``, on lower-cased text. Papers call it tokenized lower-cased BLEU, but
            their tokenizer may differ from 13a.
        tokenizer: BLEU's tokenizer; see :func:`bleu_metric`. None for the language's tokenizer.
        repetition: add the rates of repeated n-grams
            (:mod:`fairseq_phrase.metrics.translation`) in the same tokens.
        other_references: more references.
        language: the code of the target language; None if it is unknown.

    Raises:
        UserError: sacrebleu lacks a package or a file that the tokenizer needs.
    """

    tested = ("BLEU", "chrF", "TER")
    lower_is_better = frozenset({"TER", *REPETITIONS})
    sentence_metric = "chrF"

    def __init__(
        self,
        references: Sequence[str],
        lowercase: bool = False,
        tokenizer: str | None = None,
        repetition: bool = False,
        other_references: Sequence[Sequence[str]] = (),
        language: str | None = None,
    ) -> None:
        self._references = references
        self._repetition = repetition
        self._notes = []
        if tokenizer is None:
            tokenizer, note = tokenizer_of(language)
            self._notes += [note] if note else []
        # Text that is tokenized already has its words; TER does not split them.
        has_characters = tokenizer != "none" and is_han_or_kana(references)
        if is_unspaced(references):
            self._notes += _unspaced_notes(tokenizer, has_characters)
        texts = [list(lines) for lines in (references, *other_references)]
        self._metrics: dict[str, Any] = {
            "BLEU": bleu_metric(*texts, tokenizer=tokenizer),
            "chrF": CHRF(references=texts),
            "TER": TER(references=texts, normalized=has_characters, asian_support=has_characters),
        }
        if lowercase:
            self._metrics["BLEU lc"] = bleu_metric(*texts, tokenizer=tokenizer, lowercase=True)

    @property
    def names(self) -> list[str]:
        """The metrics' names, BLEU first."""
        return [*self._metrics, *(REPETITIONS if self._repetition else ())]

    def statistics(self, hypotheses: Sequence[str]) -> dict[str, Statistics]:
        """Compute sacrebleu's sufficient statistics of each sentence for each metric."""
        statistics = {
            name: sentence_statistics(metric, hypotheses) for name, metric in self._metrics.items()
        }
        return statistics | (self._repetitions(hypotheses) if self._repetition else {})

    def _repetitions(self, sentences: Sequence[str]) -> dict[str, Statistics]:
        return repetitions(sentences, self._metrics["BLEU"].tokenizer)

    @property
    def notes(self) -> list[str]:
        """Notes on the tokens, if they are not the words, and on the rates of repetition."""
        if not self._repetition:
            return self._notes
        rates = (
            f"{name} {self.score(name, counts.sum(0)):.2f}"
            for name, counts in self._repetitions(self._references).items()
        )
        return [*self._notes, _REPETITION_NOTE, f"The references have {', '.join(rates)}."]

    def scores(self, name: str, sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a metric's score of many test sets; (resamples, statistics) -> (resamples,)."""
        formulas = {
            "chrF": _chrf_scores,
            "TER": _ter_scores,
            **dict.fromkeys(REPETITIONS, percentages),
        }
        return formulas.get(name, bleu_scores)(sums)

    def people_agree(self, name: str, difference: float) -> float | None:
        """Return the estimate of Kocmi et al. (2024) for pairs of systems, at least the chance level."""
        if name not in _AGREEMENT:
            return None
        most, slope = _AGREEMENT[name]
        return max(50.0, most / (1 + math.exp(-slope * abs(difference))))

    def signatures(self, **settings: object) -> dict[str, str]:
        """Return sacrebleu's signature of each metric."""
        signatures = {}
        for name, metric in self._metrics.items():
            signature = metric.get_signature()
            for key, value in settings.items() if name in self.tested else ():
                signature.update(key, value)
            signatures[name] = str(signature)
        return signatures


def _unspaced_notes(tokenizer: str, has_characters: bool) -> list[str]:
    """Name the metrics that count phrases as words."""
    counted = ["BLEU"] if tokenizer in (DEFAULT, "intl", "none") else []
    counted += [] if has_characters else ["TER"]
    if not counted:
        return []
    advice = "; --tokenize zh, char or flores200 splits them" if "BLEU" in counted else ""
    return [
        f"The reference has no spaces between words, so that for {' and '.join(counted)} a whole phrase "
        f"is one word{advice}."
    ]


def bleu_scores(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute sacrebleu's corpus BLEU (exponential smoothing) of many test sets at once.

    Args:
        sums: for each test set, words of the translation, words of the reference, then the n-grams that
            both have and the n-grams of the translation, for n from 1 to 4. Shape: (..., 10).

    Returns:
        BLEU, 0 to 100. Shape: (...).
    """
    length, reference = sums[..., 0], sums[..., 1]
    # (..., 10) -> correct and total of n = 1 to 4, each (..., 4)
    correct, total = sums[..., 2 : 2 + _ORDER], sums[..., 2 + _ORDER :]
    with np.errstate(divide="ignore", invalid="ignore"):
        # The k-th order without a match counts 1 / 2^k of a match.
        missing = (correct == 0) & (total > 0)
        smoothed = np.where(missing, 0.5 ** np.cumsum(missing, axis=-1), correct)
        precision = np.where(total > 0, smoothed / total, 0.0)
        brevity = np.where(length < reference, np.exp(1 - reference / length), 1.0)
        # sacrebleu's logarithm of zero is a large negative number: the score becomes zero.
        mean_logarithm = np.log(precision).mean(axis=-1)
        scores = 100 * brevity * np.exp(mean_logarithm)
    return np.where(correct.any(axis=-1), scores, 0.0)


def _chrf_scores(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute sacrebleu's chrF2; (..., 18), of the translation, reference, both, a n-gram -> (...)."""
    translation, reference, matches = (sums[..., start::3] for start in range(3))
    counted = (translation > 0) & (reference > 0)
    orders = np.maximum(counted.sum(axis=-1), 1)
    precision, recall = (
        np.divide(matches, total, out=np.zeros_like(matches), where=counted).sum(axis=-1) / orders
        for total in (translation, reference)
    )
    weighted = 4 * precision + recall  # beta is 2
    scores: NDArray[np.float64] = np.zeros_like(weighted)
    np.divide(500 * precision * recall, weighted, out=scores, where=weighted > 0)
    return scores


def _ter_scores(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute sacrebleu's TER; (..., 2), edits and words of the reference -> (...)."""
    edits, words = sums[..., 0], sums[..., 1]
    rate = np.divide(edits, words, out=np.where(edits > 0, 1.0, 0.0), where=words > 0)
    return 100 * rate


def repeated_ngrams(words: Sequence[str], size: int) -> tuple[int, int]:
    """Count a sentence's n-grams that occur earlier in it, and all of its n-grams.

    Examples:
        >>> repeated_ngrams("a man and a man".split(), 2)
        (1, 4)
    """
    ngrams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    return len(ngrams) - len(set(ngrams)), len(ngrams)


def immediate_repetitions(words: Sequence[str]) -> tuple[int, int]:
    """Count the words that end a directly repeated sequence of one to four words, and all words.

    Examples:
        >>> immediate_repetitions("a dog a dog runs runs".split())  # the second dog, and the second runs
        (2, 6)
    """
    repetitions = sum(
        any(
            words[end - size : end] == words[end - 2 * size : end - size]
            for size in range(1, min(_LONGEST_REPEATED, end // 2) + 1)
        )
        for end in range(2, len(words) + 1)
    )
    return repetitions, len(words)


def repetitions(
    sentences: Sequence[str], tokenize: Callable[[str], str]
) -> dict[str, Statistics]:  # fmt: skip
    """Count repetitions.

    Args:
        tokenize: puts white space between words.

    Returns:
        By name of the rate, repeated and all items of each sentence. Shape of each: (sentences, 2).
    """
    lines = [tokenize(sentence).split() for sentence in sentences]
    counts = {
        f"rep-{size}": [repeated_ngrams(words, size) for words in lines]
        for size in range(1, _LONGEST_REPEATED + 1)
    }
    counts[_IMMEDIATE] = [immediate_repetitions(words) for words in lines]
    return {
        name: np.array(pairs, dtype=np.float64).reshape(-1, 2) for name, pairs in counts.items()
    }
