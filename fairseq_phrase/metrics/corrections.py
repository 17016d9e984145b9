"""Scores of grammatical error correction: ERRANT's F0.5, and GLEU."""

from __future__ import annotations

from argparse import Namespace
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics.interface import Statistics
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.text import read_lines

_BETA = 0.5
# As errant_compare does without options: whole edits, without their types.
_SETTINGS = Namespace(
    beta=_BETA, verbose=False, dt=False, ds=False, cse=False, single=False, multi=False, filt=[]
)
_ORDER = 4  # GLEU's longest n-grams


class Errant:
    """F0.5 of a text's edits by ERRANT (Bryant et al., 2017), as ``errant_compare`` computes it.

    With several annotators, each sentence uses the annotator with the best F0.5 of all sentences so far.

    Args:
        argument: ``FILE.m2[,FILE.m2…][@PIPELINE]``: the annotators' edits of the test sets' sentences,
            and a spaCy pipeline, ``en_core_web_sm`` by default.

    Raises:
        UserError: ERRANT or the pipeline is not installed, or a file is missing.
    """

    title = "F0.5"

    def __init__(self, argument: str) -> None:
        with optional_packages("ERRANT is not installed", "errant"):
            import errant
            from errant.commands import compare_m2
        import spacy

        files, _, pipeline = argument.partition("@")
        pipeline = pipeline or "en_core_web_sm"
        try:
            self._annotator = errant.load("en", spacy.load(pipeline))
        except OSError as error:
            raise UserError(f"--metric errant: no pipeline {pipeline}: {error}") from None
        self._compare = compare_m2
        self._blocks: list[tuple[str, str]] = []
        for file in files.split(","):
            text = "\n".join(read_lines(Path(file))).strip()
            blocks = [block for block in text.split("\n\n") if block.strip()]
            self._blocks += [(_words(block.split("\n")[0][2:]), block) for block in blocks]
        self._parses: dict[str, Any] = {}
        self.signature = f"errant:{errant.__version__}|pipeline:{Path(pipeline).name}|beta:{_BETA}"

    def __call__(
        self, sources: list[str], hypotheses: list[str], references: list[list[str]]
    ) -> Statistics:
        """Count each sentence's correct, wrong and missing edits; the references are not used.

        Returns:
            Shape: (sentences, 3).

        Raises:
            UserError: the M2 files lack a sentence.
        """
        annotated: dict[str, deque[str]] = {}
        for text, block in self._blocks:
            annotated.setdefault(text, deque()).append(block)
        totals: Counter[str] = Counter()
        counts = np.zeros((len(sources), 3))
        for number, (source, hypothesis) in enumerate(zip(sources, hypotheses, strict=True)):
            if not annotated.get(_words(source)):
                raise UserError(
                    f"--metric errant: no M2 file has sentence {number + 1}, '{source}'"
                )
            block = annotated[_words(source)].popleft()
            edits = [self._compare.simplify_edits(block), self._edits(source, hypothesis)]
            theirs, ours = (self._compare.process_edits(some, _SETTINGS) for some in edits)
            best, _ = self._compare.evaluate_edits(ours, theirs, totals, number, source, _SETTINGS)
            totals += Counter(best)
            counts[number] = best["tp"], best["fp"], best["fn"]
        return counts

    def _edits(self, source: str, hypothesis: str) -> list[list[Any]]:
        """Return a correction's edits: first token, one past the last, type, correction, annotator."""
        if source.split() == hypothesis.split():
            return []
        if source not in self._parses:
            self._parses[source] = self._annotator.parse(source)
        edits = self._annotator.annotate(self._parses[source], self._annotator.parse(hypothesis))
        return [[edit.o_start, edit.o_end, edit.type, edit.c_str, 0] for edit in edits]

    @staticmethod
    def score(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return F0.5 in percent; precision is 1 without wrong edits, recall 1 without missing edits."""
        right, wrong, missing = np.moveaxis(sums, -1, 0)
        precision, recall = (
            np.divide(right, right + errors, out=np.ones_like(right), where=errors > 0)
            for errors in (wrong, missing)
        )
        part = 100 * (1 + _BETA**2) * precision * recall
        denominator = _BETA**2 * precision + recall
        score: NDArray[np.float64] = np.divide(
            part, denominator, out=np.zeros_like(part), where=denominator > 0
        )
        return score


class Gleu:
    """GLEU of Napoles et al. (2015, 2016): BLEU with a penalty for n-grams of uncorrected errors.

    Their script draws one of several references for each sentence, 500 times, and takes the mean score.
    Here each sentence has the mean of its counts, without draws.
    """

    title = "GLEU"
    signature = f"Napoles et al. (2016)|order:{_ORDER}|references:mean of counts"

    def __call__(
        self, sources: list[str], hypotheses: list[str], references: list[list[str]]
    ) -> Statistics:
        """Count n-grams.

        Returns:
            For each sentence, words of the output, words of the reference, then for n from 1 to 4 the
            n-grams that count and the n-grams of the output. Shape: (sentences, 10).
        """
        means = [
            np.mean(
                [_gleu_counts(source, output, reference) for reference in references_of_sentence],
                axis=0,
            )
            for source, output, *references_of_sentence in zip(
                sources, hypotheses, *references, strict=True
            )
        ]
        return np.array(means, np.float64)

    @staticmethod
    def score(sums: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return GLEU, 0 to 100; it is 0 if no n-gram of some order counts."""
        words, reference = sums[..., 0], sums[..., 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(sums[..., 2::2] / sums[..., 3::2]).mean(axis=-1)
            scores = 100 * np.exp(np.minimum(0.0, 1 - reference / words) + logarithm)
        return np.where((sums > 0).all(axis=-1), scores, 0.0)


def _gleu_counts(source: str, output: str, reference: str) -> list[int]:
    texts = [text.split() for text in (source, output, reference)]
    counts = [len(texts[1]), len(texts[2])]
    for size in range(1, _ORDER + 1):
        before, ours, right = (_ngrams(words, size) for words in texts)
        errors = Counter({ngram: n for ngram, n in before.items() if ngram not in right})
        counts.append(max(0, (ours & right).total() - (ours & errors).total()))
        counts.append(max(0, len(texts[1]) + 1 - size))
    return counts


def _ngrams(words: list[str], size: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(size)), strict=False))


def _words(text: str) -> str:
    return " ".join(text.split())
