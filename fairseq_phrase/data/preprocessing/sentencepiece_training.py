"""Train a SentencePiece model on a corpus, in memory that does not grow with the corpus."""

from __future__ import annotations

import io
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import sentencepiece
from tqdm import tqdm

from fairseq_phrase.data.preprocessing.parsing import Corpus
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.data.subwords.segmenters import without_position
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import plain_spaces, read_lines

#: Number of subwords to train without ``--vocab-size``.
VOCABULARY_SIZE = 8000
#: Number of lines to train on, of both sides together; SentencePiece holds all of them in memory.
SAMPLE_LINES = 2_000_000
# SentencePiece's greatest limit. It does not train on longer lines, of more than 4,192 bytes by default.
_LINE_BYTES = 1 << 30
# Part of SentencePiece's error message.
_LARGEST = re.compile(r"set it to a value <= (\d+)")


@dataclass(frozen=True)
class CharacterOptions:
    """The characters of a model and their form.

    Attributes:
        normal_form: one of :data:`fairseq_phrase.option_values.NORMAL_FORMS`. A model can only write text
            in its normal form; ``identity`` keeps every character.
        coverage: the fraction of the text's characters that have subwords; the rarest lack one.
        byte_fallback: whether characters without a subword are written as bytes.
    """

    normal_form: str = "identity"
    coverage: float = 1.0
    byte_fallback: bool = False


def train_segmenter(
    texts: Sequence[tuple[Corpus, Callable[[str], str]]],
    model: Path,
    vocabulary_size: int | None,
    sample: int,
    seed: int,
    characters: CharacterOptions,
) -> None:
    """Train a model on the lines of all texts, or on a sample of them.

    Args:
        texts: the texts, such as the two sides of a corpus, each with a function from a line to its text.
        vocabulary_size: number of subwords; None for :data:`VOCABULARY_SIZE`, or the largest number that
            the texts allow.

    Raises:
        UserError: the texts do not allow ``vocabulary_size`` subwords.
    """

    def train(size: int) -> None:
        total = sum(text.lines for text, _ in texts)
        lines = chain.from_iterable(map(clean, read_lines(text.path)) for text, clean in texts)
        progress = tqdm(lines, "training SentencePiece", total, unit="line")
        train_sentencepiece(sampled(progress, total, sample, seed), model, size, seed, characters)

    try:
        train(vocabulary_size or VOCABULARY_SIZE)
    except UserError as error:
        largest = _LARGEST.search(str(error))
        if vocabulary_size is not None or largest is None:
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
    characters: CharacterOptions = CharacterOptions(),
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
        reason = without_position(error)
        raise UserError(
            f"SentencePiece cannot train {vocabulary_size} subwords on this text ({reason}): give "
            "another --vocab-size, or a model with --sentencepiece-model"
        ) from None
    write_atomically(model, trained.getvalue())
