"""The subword models of a run, given or trained on its texts, and their segmenters."""

from __future__ import annotations

import io
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

import sentencepiece
from tqdm import tqdm

from fairseq_phrase.data.preprocessing.options import CharacterOptions, Options, is_training
from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.data.subwords.protected_tokens import ProtectedTokens
from fairseq_phrase.data.subwords.segmenters import (
    SharedSegmenter,
    WholeWords,
    model_name,
    without_position,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import WHOLE_WORDS
from fairseq_phrase.parsers import LineParser
from fairseq_phrase.parsers.pipeline import ParsingPipeline
from fairseq_phrase.text import plain_spaces, read_lines

#: Number of subwords to train without ``--vocab-size``.
VOCABULARY_SIZE = 8000
# SentencePiece's greatest limit. It does not train on longer lines, of more than 4,192 bytes by default.
_LINE_BYTES = 1 << 30
# Part of SentencePiece's error message.
_LARGEST = re.compile(r"set it to a value <= (\d+)")


def find_models(
    options: Options,
    corpora: Mapping[str, Sequence[Corpus]],
    pipelines: Mapping[str, ParsingPipeline],
    folder: Path,
) -> dict[str, Path]:
    """Find the subword model of each kind, or train one; whole words have none.

    Args:
        corpora: the texts of each language, by split.
        folder: where a trained model is kept, so that a later run does not train it again.
    """
    models = {}
    for language in options.languages:
        bpe = options.bpe_of(language)
        if bpe == WHOLE_WORDS or bpe in models:
            continue
        models[bpe] = options.model_of(language) or folder / model_name(bpe)
        if not models[bpe].is_file():
            train_segmenter(_texts_of(options, bpe, corpora, pipelines), models[bpe], options)
    return models


def make_segmenters(options: Options, models: Mapping[str, Path]) -> dict[str, SharedSegmenter]:
    """Make the segmenter of each language; labels stay whole."""
    segmenters = {}
    for language in options.languages:
        bpe = options.bpe_of(language)
        segmenters[language] = SharedSegmenter(
            bpe, models.get(bpe), options.protected, every_word=options.labels == "word"
        )
    if options.labels is not None:
        segmenters[options.languages[1]] = SharedSegmenter(WHOLE_WORDS, None)
    return segmenters


def _texts_of(
    options: Options,
    bpe: str,
    corpora: Mapping[str, Sequence[Corpus]],
    pipelines: Mapping[str, ParsingPipeline],
) -> Iterator[tuple[Corpus, Callable[[str], str]]]:
    """Yield the training texts of a kind of model, each with a function from a line to its text."""
    for name, texts in corpora.items():
        for language, text in zip(options.languages, texts, strict=False):
            are_labels = options.labels is not None and language == options.target_lang
            if not is_training(name) or are_labels or options.bpe_of(language) != bpe:
                continue
            parser = pipelines[language].parser if language in pipelines else None
            clean = parser.text_of if isinstance(parser, LineParser) else str
            if options.protected:
                protected = ProtectedTokens(WholeWords(), options.protected)
                clean = partial(_cleaned, clean, protected)
            yield text, clean


def _cleaned(clean: Callable[[str], str], protected: ProtectedTokens, line: str) -> str:
    return clean(protected.separate(line)[0])


def train_segmenter(
    texts: Iterable[tuple[Corpus, Callable[[str], str]]], model: Path, options: Options
) -> None:
    """Train a SentencePiece model on the lines of all texts, or on a sample of them.

    Args:
        texts: the texts, such as the two sides of a corpus, each with a function from a line to its text.

    Raises:
        UserError: the texts do not allow ``--vocab-size`` subwords.
    """
    texts = list(texts)

    def train(size: int) -> None:
        total = sum(text.lines for text, _ in texts)
        lines = chain.from_iterable(map(clean, read_lines(text.path)) for text, clean in texts)
        progress = tqdm(lines, "training SentencePiece", total, unit="line")
        sample = sampled(progress, total, options.sentencepiece_lines, options.seed)
        train_sentencepiece(sample, model, size, options.seed, options.characters)

    try:
        train(options.vocab_size or VOCABULARY_SIZE)
    except UserError as error:
        largest = _LARGEST.search(str(error))
        if options.vocab_size is not None or largest is None:
            raise
        print(
            f"the training text gives {largest[1]} subwords at most, not {VOCABULARY_SIZE}: "
            f"training {largest[1]} (--vocab-size sets another number)",
            file=sys.stderr,
        )
        train(int(largest[1]))


def sampled(lines: Iterable[str], total: int, count: int, seed: int) -> Iterator[str]:
    """Draw lines without replacement, in one pass, in order, and in constant memory.

    This is selection sampling (Knuth, The Art of Computer Programming 2, algorithm 3.4.2 S). A line is
    taken with probability (number of lines still to draw) / (number of lines left).
    Every set of ``count`` lines then has the same probability.

    Args:
        count: number of lines to draw; all lines if there are fewer.
    """
    if count >= total:
        yield from lines
        return
    draw = random.Random(seed).random
    remaining = count
    for left, line in zip(range(total, 0, -1), lines, strict=True):
        if draw() * left < remaining:
            remaining -= 1
            yield line


def train_sentencepiece(
    lines: Iterable[str],
    model: Path,
    vocabulary_size: int,
    seed: int,
    characters: CharacterOptions = CharacterOptions(),  # noqa: B008 - frozen
) -> None:
    """Train a unigram model.

    Args:
        lines: raw text, of both languages for a joint model. White space of any kind is a space, as
            in :class:`~fairseq_phrase.data.subwords.segmenters.SentencePieceSegmenter`.
        seed: the seed for drawing sentences from more than ten million.

    Raises:
        UserError: SentencePiece cannot train; with its reason, such as the largest number of subwords.
    """
    sentencepiece.set_random_generator_seed(seed)
    trained = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=map(plain_spaces, lines),
            model_writer=trained,  # the path of a file would become part of the model
            vocab_size=vocabulary_size,
            normalization_rule_name=characters.normal_form,
            character_coverage=characters.coverage,
            byte_fallback=characters.byte_fallback,
            input_sentence_size=10_000_000,
            shuffle_input_sentence=True,
            train_extremely_large_corpus=False,
            max_sentence_length=_LINE_BYTES,
            minloglevel=2,
        )
    except RuntimeError as error:
        reason = without_position(error) or "it has no words"
        raise UserError(
            f"SentencePiece cannot train {vocabulary_size} subwords on this text ({reason}): give "
            "another --vocab-size, or a model with --sentencepiece-model"
        ) from None
    write_atomically(model, trained.getvalue())
