"""The options of preprocessing and attaching, and the counts of a split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_phrase.data.preprocessing.engines import EngineOptions
from fairseq_phrase.data.store.identity import Identity, Tolerance, check_identity
from fairseq_phrase.data.store.parts import part_name
from fairseq_phrase.parsers.pipeline import ParsingOptions

#: Number of lines to train on, of both sides together; SentencePiece holds all of them in memory.
SAMPLE_LINES = 2_000_000


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


@dataclass
class Options:
    """The options of ``fairseq-phrase-preprocess`` and ``fairseq-phrase-attach``.

    Their ``--help`` explains each option. Only additions to it are listed here.

    Attributes:
        target_lang: the target language; None for text of one language (``--only-source``).
        splits: prefix of the text by the split's name (``train``, ``valid``, ``test``, ``test1``).
        parsing: how to parse each language; other languages are not parsed.
        is_segmented: whether the text is already segmented into subwords and binarized in ``directory``
            (``fairseq-phrase-attach``); otherwise it is raw.
        labels: the units that the target side labels, in :data:`fairseq_phrase.option_values.LABELLED`;
            None for a translation.
        bpe: the segmenter, one of :data:`fairseq_phrase.data.subwords.segmenters.SEGMENTERS`, or
            ``none``: words stay whole.
        bpe_model: the subword model, or the file of BPE codes. None trains a SentencePiece model on raw
            text. For text that is already segmented, None means an unknown model.
        target_model: the target's SentencePiece model, if :meth:`bpe_of` differs; None trains one.
        protected: tokens that are not segmented and not parsed.
        on_error: one of :data:`fairseq_phrase.option_values.ON_ERROR`.
        copy_words: the number of slots for unknown source words of a sentence
            (:mod:`fairseq_phrase.data.store.copied_words`).
        vocab_size: number of subwords to train; None for the default number, or the largest number
            that the text allows.
        characters: the characters of the trained SentencePiece model.
        list_left_out: the file that lists left-out lines and lines with flat trees.
        labeldict: the data directory whose label dictionaries are reused. With None, the dictionaries
            next to ``srcdict`` are used, if there are any, or the dictionaries in use in ``directory``.
        parts: the number of data directories among which the training text is divided.
        allowed: the differences that ``allow_difference`` allowed, for the manifest.
    """

    source_lang: str
    target_lang: str | None
    directory: Path
    splits: dict[str, str]
    parsing: dict[str, ParsingOptions]
    is_segmented: bool = False
    labels: str | None = None
    bpe: str = "sentencepiece"
    bpe_model: Path | None = None
    target_model: Path | None = None
    protected: Sequence[str] = ()
    min_count: int = 1
    copy_words: int = 0
    vocab_size: int | None = None
    sentencepiece_lines: int = SAMPLE_LINES
    characters: CharacterOptions = field(default_factory=CharacterOptions)
    joined_dictionary: bool = False
    srcdict: Path | None = None
    tgtdict: Path | None = None
    labeldict: Path | None = None
    max_length: int = 1023
    strict: bool = False
    allow_difference: str | None = None
    allowed: list[str] = field(default_factory=list)
    on_error: str = "stop"
    max_flat: float = 0.05
    list_left_out: Path | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    seed: int = 1
    parts: int = 1

    @property
    def languages(self) -> tuple[str, ...]:
        """Source and target language, or only the source language."""
        if self.target_lang is None:
            return (self.source_lang,)
        return self.source_lang, self.target_lang

    @property
    def folders(self) -> tuple[str, ...]:
        """The data directories' names within ``directory``; one empty name without parts."""
        numbers = range(1, self.parts + 1) if self.parts > 1 else ()
        return tuple(map(part_name, numbers)) or ("",)

    def bpe_of(self, language: str | None) -> str:
        """Return a language's segmentation. A Hugging Face tokenizer segments the source or both."""
        is_other = language == self.target_lang and self.labels is None
        is_other &= self.bpe == "huggingface" and not self.joined_dictionary
        return "sentencepiece" if is_other else self.bpe

    def model_of(self, language: str) -> Path | None:
        """Return the subword model that is given for a language."""
        return self.bpe_model if self.bpe_of(language) == self.bpe else self.target_model

    def check(self, reused: Identity, here: Identity) -> None:
        """Compare the reused record with this run, and store the allowed differences."""
        tolerance = Tolerance(self.allow_difference, self.strict, "strict")
        passed = check_identity(reused, here, "use", tolerance)
        self.allowed[:] = dict.fromkeys([*self.allowed, *passed])

    @property
    def trains_sentencepiece(self) -> bool:
        """Whether a SentencePiece model is trained."""
        if self.is_segmented:
            return False
        trained = {"sentencepiece": self.bpe_model, "huggingface": self.target_model}
        kinds = map(self.bpe_of, self.languages)
        return "sentencepiece" in kinds and self.bpe in trained and trained[self.bpe] is None

    @property
    def label_folder(self) -> Path | None:
        """The data directory whose label dictionaries are reused, if there is one."""
        return self.labeldict or (self.srcdict.parent if self.srcdict is not None else None)

    @property
    def pair(self) -> str:
        """The language pair as fairseq writes it, ``de-en``; empty for text of one language."""
        return "-".join(self.languages) if self.target_lang is not None else ""

    def split_name(self, split: str) -> str:
        """Return a split's name with its language pair, ``train.de-en``, or ``train`` without a pair."""
        return f"{split}.{self.pair}" if self.pair else split


@dataclass
class SplitCounts:
    """Counts of a split's sentence pairs that were kept, and of the others by reason.

    Attributes:
        kept: sentence pairs that were written.
        empty: pairs left out because a side is empty; in text of one language the blank lines, which
            are kept.
        too_long: pairs left out because a side has too many subwords.
        skipped: pairs left out because a line has no parse.
        unknown_labels: labels that the training data lack.
        flat: lines with flat trees because they have no parse, by language.
        words: words that were written, by parsed language.
        subwords: subwords that were written, by language.
        swallowed: words that are missing from the trees because they have no subword (a subword across
            words belongs to the first of them), by language. Only in text that is already segmented.
        changed: kept lines whose subwords have another text, by language.
        unknown: kept lines with a subword that the dictionary lacks, by language.
        lost_edges: edges of graphs that were removed with their words, by language.
        unspelled: words that the text does not spell, by language.
    """

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    skipped: int = 0
    unknown_labels: int = 0
    flat: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    subwords: Counter[str] = field(default_factory=Counter)
    swallowed: Counter[str] = field(default_factory=Counter)
    lost_edges: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    unknown: Counter[str] = field(default_factory=Counter)
    unspelled: Counter[str] = field(default_factory=Counter)

    def described(self, language: str) -> list[str]:
        """Describe the words and the trees of a language."""
        words, unspelled = self.words[language], self.unspelled[language]
        parts = [f"{words} words and {self.subwords[language]} subwords of {language}"]
        for count, description in (
            (self.swallowed[language], "words left out, whose subwords are another word's too"),
            (self.flat[language], f"flat trees of {language} for lines without a parse"),
            (self.lost_edges[language], f"edges of {language} lost with words that have no subword, "
             "within surface tokens or in empty nodes"),
            (unspelled, f"words ({unspelled / max(1, words):.1%}) of {language} that the text does not "
             "spell"),
        ):  # fmt: skip
            if count:
                parts.append(f"{count} {description}")
        return parts

    def as_dict(self) -> dict[str, Any]:
        """Return the counts in types that JSON supports."""
        return {n: dict(c) if isinstance(c, Counter) else c for n, c in vars(self).items()}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SplitCounts:
        """Read the result of :meth:`as_dict`."""
        counts = cls()
        for name in vars(counts):
            value = content[name]
            setattr(counts, name, Counter(value) if isinstance(value, dict) else value)
        return counts

    def add(self, others: SplitCounts) -> None:
        """Add the counts of other sentence pairs."""
        for name, count in vars(others).items():
            if isinstance(count, Counter):
                vars(self)[name].update(count)
            else:
                vars(self)[name] += count


def splits_of(
    trainpref: str | None, validpref: str | None, testpref: str | None
) -> Iterator[tuple[str, str]]:
    """Name splits as fairseq does: additional prefixes, after commas, are ``train1``, ``test1``, …."""
    for name, prefixes in (("train", trainpref), ("valid", validpref), ("test", testpref)):
        if prefixes:
            for number, prefix in enumerate(prefixes.split(",")):
                yield (f"{name}{number or ''}", prefix)


def is_training(split: str) -> bool:
    """Return whether fairseq trains on a split: ``train``, or a part of the training text, ``train1``."""
    return split.startswith("train")
