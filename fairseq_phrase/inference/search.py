"""The search for translations of segments: fairseq's generators, and their hypotheses as text."""

from __future__ import annotations

import math
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import utils
from fairseq.data import data_utils
from torch import Tensor

from fairseq_phrase.data.batches.raw_tokens import SourceDictionary
from fairseq_phrase.data.subwords.protected_tokens import words_by_marks
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.inference.raw_lines import TargetForm
from fairseq_phrase.inference.search_options import SearchOptions
from fairseq_phrase.metrics.tokenizers import has_space_between
from fairseq_phrase.syntax.sentence import EncodedSentence
from fairseq_phrase.text import read_lines

if TYPE_CHECKING:
    from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationTask


#: fairseq-generate's default of ``--max-tokens``.
_MAX_TOKENS = 12000
#: Subwords of a translation, at most, for each 100 subwords of the source.
LONGEST = 200


@dataclass(frozen=True)
class Hypothesis:
    """A translation of one line.

    Attributes:
        score: the mean log probability (base 2) of its subwords and its end, as ``fairseq-generate``
            prints it; for a long line in segments, the mean over all subwords; None for an empty line.
        tokens: the number of its subwords, with the end of each sentence.
        alignment: pairs of aligned words of the line and of the translation, from 0, in ascending order;
            empty unless it was requested. Words are separated by spaces; in tokenized data they are
            tokens.
        words: the numbers of words of the line and of the translation, with an alignment.
    """

    text: str
    score: float | None = None
    tokens: int = 0
    alignment: Sequence[tuple[int, int]] = ()
    words: tuple[int, int] = (0, 0)


class LinePart(NamedTuple):
    """A segment of a line, translated as one sentence.

    Attributes:
        target: its translation with its end, if it is given. Shape: ``(tokens,)``
    """

    sentence: EncodedSentence
    target: Tensor | None = None


class SegmentSearch:
    """fairseq's generators of an ensemble: translations of segments of lines, with their scores.

    Args:
        task: the models' task.
        models: the models, on the device.
        target: writes the translations.
    """

    def __init__(
        self,
        task: SyntaxTranslationTask,
        models: Sequence[Any],
        device: torch.device,
        target: TargetForm,
        options: SearchOptions,
    ) -> None:
        self._task, self._models, self._options = task, models, options
        self._device, self._target = device, target
        self._generator = cache(self._build_generator)
        #: Translations of words that replace unknown ones; None to replace none.
        self._unknown: Mapping[str, str] | None = None
        if (terms := options.replace_unk) is not False:
            self._unknown = {} if terms is True else word_translations(terms)

    def _build_generator(self, is_given: bool) -> Any:
        """Build the generator of translations, or the scorer of given ones."""
        options = Namespace(
            beam=self._options.beam, lenpen=self._options.lenpen, score_reference=is_given
        )
        generator = self._task.build_generator(self._models, options)
        generator.needs_attention = self._options.alignments or self._unknown is not None
        return generator

    @torch.inference_mode()
    def hypotheses(self, segments: Sequence[LinePart]) -> list[list[Hypothesis]]:
        """Translate segments, or score their targets; returns the hypotheses of each, the best first.

        The segments of a batch have one largest length: otherwise the search for some of them would
        differ.
        """
        by_index: dict[int, list[Hypothesis]] = {}
        kinds: dict[tuple[bool, int], list[int]] = defaultdict(list)
        for index, segment in enumerate(segments):
            most = longest_target(len(segment.sentence.subwords) + 1)
            kinds[segment.target is not None, most].append(index)
        source, size = self._task.source_text, self._options.batch_size
        for (is_given, most), indices in kinds.items():
            sentences = [segments[index].sentence for index in indices]
            self._generator(is_given).max_len_b = most
            for batch, sample in source.batches(sentences, _MAX_TOKENS, size):
                batch_segments = [segments[indices[index]] for index in batch]
                sample, generated = self._generate(is_given, batch_segments, sample)
                is_token = sample["net_input"]["src_tokens"].ne(self._task.source_dictionary.pad())
                rows = zip(
                    batch, batch_segments, generated, sample["copied"], is_token, strict=True
                )
                for index, segment, hypotheses, words, columns in rows:
                    by_index[indices[index]] = [
                        self._hypothesis(hypothesis, segment.sentence, words, columns)
                        for hypothesis in hypotheses
                    ]
        return [by_index[index] for index in range(len(segments))]

    def _generate(
        self, is_given: bool, segments: Sequence[LinePart], sample: dict[str, Any]
    ) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
        """Return a batch of segments, on the device, and fairseq's hypotheses of each segment."""
        if is_given:
            targets = [segment.target for segment in segments]
            add_targets(sample, targets, self._task.target_dictionary)
        sample = dict(utils.apply_to_sample(lambda value: value.to(self._device), sample))
        generated = self._generator(is_given).generate(self._models, sample)
        for (hypothesis,) in generated if is_given else ():
            # fairseq's scorer returns the mean, whatever the power of the length.
            hypothesis["score"] *= len(hypothesis["tokens"]) ** (1 - self._options.lenpen)
            if hypothesis["attention"] is not None:
                hypothesis["attention"] = hypothesis["attention"].t()
        return sample, generated

    def _hypothesis(
        self,
        generated: dict[str, Any],
        sentence: EncodedSentence,
        words: Sequence[str],
        is_token: torch.Tensor,
    ) -> Hypothesis:
        """Make the hypothesis from fairseq's output for a sentence.

        Args:
            words: the sentence's words that have slots.
            is_token: which of the batch's columns are tokens of the sentence. Shape: ``(columns,)``
        """
        tokens = generated["tokens"].int().cpu()
        subwords = written_tokens(self._task.target_dictionary, tokens, words)
        score = float(generated["score"]) / math.log(2)  # to base 2, as fairseq prints it
        if self._unknown is None and not self._options.alignments:
            return Hypothesis(self._target.text(subwords), score, len(tokens))
        attention = generated["attention"]  # (source, target)
        if attention is None or not attention.numel():
            raise UserError(
                "alignments and replaced unknown words need a decoder with attention, and "
                f"{type(self._models[0].decoder).__name__} returns no weights"
            )
        # Without the ends of sentence.
        target = self._task.target_dictionary
        count = len(tokens) - 1 - len(target.tags)
        weights = attention[: len(is_token)][is_token][: len(sentence.subwords), :count]
        attended, parts = weights.argmax(0).tolist(), subwords.split(" ") if subwords else []
        if self._unknown is not None:
            for index, source in enumerate(attended):
                if tokens[index] == self._task.target_dictionary.unk():
                    replacement = self._replacement(sentence, source, self._unknown)
                    has_space = index and parts[index - 1] == "▁"
                    parts[index] = replacement.removeprefix("▁") if has_space else replacement
        text, aligned, counts = self._target.text(" ".join(parts)), set[tuple[int, int]](), (0, 0)
        if self._options.alignments:
            sources, targets = (
                words_by_marks(side, (), self._target.protected).tolist()
                for side in (sentence.subwords, parts)
            )
            aligned = {(sources[source], targets[n]) for n, source in enumerate(attended)}
            counts = max(sources) + 1, max(targets, default=-1) + 1
        return Hypothesis(text, score, len(tokens), sorted(aligned), counts)

    def _replacement(
        self, sentence: EncodedSentence, subword: int, terms: Mapping[str, str]
    ) -> str:
        """Return the replacement of an unknown word: a word of the segment, or its translation."""
        words = sentence.words.tolist()
        subwords_of_word = [
            part
            for part, word in zip(sentence.subwords, words, strict=True)
            if word == words[subword]
        ]
        text = self._target.join(" ".join(subwords_of_word))
        return ("▁" if subwords_of_word[0].startswith("▁") else "") + terms.get(text, text)


def written_tokens(dictionary: SourceDictionary, tokens: torch.Tensor, words: Sequence[str]) -> str:
    """Write a translation's subwords, without special tokens; slots are filled with copied words."""
    subwords: str = dictionary.string(
        tokens, extra_symbols_to_ignore={dictionary.pad(), *dictionary.tags}
    )
    return dictionary.written(subwords, words) if words else subwords


def longest_target(source: int) -> int:
    """Return the largest number of subwords of a translation.

    ``fairseq-generate`` ends every translation after 200 subwords, in the middle of a long one. The
    number is rounded up: only sentences with the same number share a batch.
    """
    return LONGEST * -(-source // 100)


def joined_hypotheses(
    segments: list[list[Hypothesis]], nbest: int, lenpen: float = 1.0
) -> list[Hypothesis]:  # fmt: skip
    """Join the hypotheses of a line's segments: the best of each, then the second best, and so on.

    The score is the whole translation's: the sum of its log probabilities, divided by its length to the
    power of ``lenpen``.

    A search may find fewer hypotheses than beams; the last one is then repeated.
    """
    if not segments:
        return [Hypothesis("")] * nbest
    if len(segments) == 1 and len(segments[0]) >= nbest:
        return segments[0][:nbest]
    hypotheses = []
    for rank in range(nbest):
        parts = [
            hypotheses_of_segment[min(rank, len(hypotheses_of_segment) - 1)]
            for hypotheses_of_segment in segments
        ]
        tokens = sum(part.tokens for part in parts)
        total = sum((part.score or 0.0) * part.tokens**lenpen for part in parts)
        score = total / tokens**lenpen
        text, alignment, words = "", [], (0, 0)
        for part in parts:
            goes_on = bool(text and part.text) and not has_space_between(text, part.text)
            is_apart = text and part.text and not goes_on
            text += f" {part.text}" if is_apart else part.text
            # Without a space the last word goes on.
            words = words[0], words[1] - goes_on
            alignment += [
                (words[0] + source, words[1] + target) for source, target in part.alignment
            ]
            words = words[0] + part.words[0], words[1] + part.words[1]
        hypotheses.append(Hypothesis(text, score, tokens, alignment, words))
    return hypotheses


def add_targets(
    sample: dict[str, Any], targets: Sequence[Any], dictionary: SourceDictionary
) -> None:
    """Add the translations to score to a batch."""
    collate = partial(data_utils.collate_tokens, targets, dictionary.pad(), dictionary.end)
    sample["target"] = collate()
    sample["net_input"]["prev_output_tokens"] = collate(move_eos_to_beginning=True)


def word_translations(translations: str | Path | Mapping[str, str]) -> Mapping[str, str]:
    """Read translations of words from a file with a word and its translation in each line.

    Raises:
        UserError: a line does not have exactly two words.
    """
    if isinstance(translations, Mapping):
        return translations
    translation_of = {}
    for number, line in enumerate(read_lines(Path(translations)), start=1):
        if len(words := line.split()) != 2:
            raise UserError(
                f"{location(translations, number)}: expected a word and its translation"
            )
        translation_of[words[0]] = words[1]
    return translation_of
