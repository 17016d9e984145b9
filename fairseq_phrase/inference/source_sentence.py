"""A source sentence as an encoder's input, and the text of its tokens, phrases and constituents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from fairseq.utils import split_paths

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.data.batches.source_batches import SourceTask
from fairseq_phrase.data.store.copied_words import slot
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.protected_tokens import words_by_marks
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import to_device
from fairseq_phrase.models.syntax_task import SyntaxTask
from fairseq_phrase.syntax.fields import FIELDS, PREFIX
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary, Task


@dataclass(frozen=True)
class SourceSentence:
    """One sentence.

    Attributes:
        net_input: the encoder's input, a batch of this sentence without padding.
        tokens: the text of each token, with the marks of subwords. Unknown tokens have their original
            text in raw text and, if they have slots in the dictionary, in data.
        words: the word of each token, from 0; -1 at tokens outside words. Shape: ``(tokens,)``.
        constituents: first word, one past the last, and label of each constituent, children first.
        copied: its unknown words that have slots in the dictionary, in the order of the slots.
    """

    net_input: dict[str, torch.Tensor]
    tokens: list[str]
    words: np.ndarray
    constituents: list[tuple[int, int, str]]
    copied: Sequence[str] = ()

    @classmethod
    def from_raw(cls, sentence: EncodedSentence, task: SourceTask) -> SourceSentence:
        """Take an encoded raw sentence, from ``task.source_text``."""
        batch = task.source_text.batch([sentence])
        net_input = batch["net_input"]
        del net_input["src_lengths"]
        dictionary = task.source_dictionary
        ends = ends_of(dictionary)
        typed = [*sentence.subwords, *map(dictionary.__getitem__, ends)]
        (copied,) = batch["copied"]
        return cls._of(net_input, typed, task, copied, np.append(sentence.words, [-1] * len(ends)))

    @classmethod
    def from_batch(
        cls,
        net_input: dict[str, torch.Tensor],
        task: Task,
        copied: Sequence[str] = (),
        words: torch.Tensor | None = None,
    ) -> SourceSentence:
        """Take a collated batch of one sentence; padding is dropped.

        Args:
            net_input: the batch's tokens (``src_tokens``), parse (``src_words``, …), and fairseq's other
                inputs.
            copied: the sentence's unknown words that have slots, if the data have them.
            words: the word of each token, for an encoder that does not read it. Shape: ``(1, tokens)``.
        """
        is_token = net_input["src_tokens"][0].ne(task.source_dictionary.pad())
        inputs = {}
        for name, values in net_input.items():
            field = FIELDS.get(name.removeprefix(PREFIX))
            if name == "src_tokens" or (field and field.per == "subword"):
                inputs[name] = values[:, is_token]
            elif field:
                # As in a batch, one word is left, because tokens outside words need an index.
                filled = _is_filled(values[0])
                filled[:1] |= not filled.any() and field.per == "word"
                inputs[name] = values[:, filled]
        tokens = written(inputs["src_tokens"][0], task.source_dictionary, copied)
        word_of_token = None if words is None else words[:, is_token][0].numpy()
        return cls._of(inputs, tokens, task, copied, word_of_token)

    @classmethod
    def _of(
        cls,
        net_input: dict[str, torch.Tensor],
        tokens: list[str],
        task: Task | SourceTask,
        copied: Sequence[str],
        words: np.ndarray | None = None,
    ) -> SourceSentence:
        if "src_words" in net_input:
            words = net_input["src_words"][0].numpy()
        elif words is None:
            dictionary = task.source_dictionary
            special = {dictionary[index] for index in (dictionary.bos(), *ends_of(dictionary))}
            words = words_by_marks(tokens, special)
        constituents = []
        if "src_spans" in net_input:
            spans = net_input["src_spans"][0].tolist()
            # A task that makes spans has their labels.
            labels = cast(SourceTask, task).label_dictionary("spans")
            constituents = [(start, end, labels[label]) for start, end, label in spans]
        return cls(net_input, tokens, words, constituents, copied)

    def to(self, device: torch.device) -> SourceSentence:
        """Return the sentence with its input on a device."""
        moved = to_device(self.net_input, device)
        return replace(self, net_input=moved)

    @cached_property
    def text(self) -> str:
        """The sentence, without subword marks and end of sentence."""
        return self.label(np.flatnonzero(self.words >= 0))

    @cached_property
    def labels(self) -> list[str]:
        """The text of each token (:meth:`label`)."""
        return [self.label([token]) for token in range(len(self.tokens))]

    def label(self, members: Iterable[int]) -> str:
        """Return the text of a node.

        Args:
            members: its tokens, from 0.

        Returns:
            Its words; ``…`` between words that are not adjacent. If the node has only a part of a word,
            this part is in brackets: ``Repar[ieren] das``.
        """
        held = {int(token) for token in members}
        text, last = "", None
        for tokens in self._tokens_of_words:
            if held.isdisjoint(tokens):
                continue
            if last is not None:
                follows, space = tokens[0] == last + 1, " " if self._spelled[tokens[0]][1] else ""
                text += space if follows else " … "
            text += self._word(tokens, held)
            last = tokens[-1]
        return text

    def _word(self, tokens: Sequence[int], held: set[int]) -> str:
        """Return the text of a word, with brackets around the tokens of the node."""
        texts = [self._spelled[token][0] for token in tokens]
        if held.issuperset(tokens):
            return "".join(texts).removeprefix("▁") or "▁"
        runs = groupby(zip(tokens, texts, strict=True), key=lambda pair: pair[0] in held)
        spelled = [(inside, "".join(text for _, text in run)) for inside, run in runs]
        return "".join(f"[{text}]" if inside else text for inside, text in spelled)

    @cached_property
    def _tokens_of_words(self) -> list[list[int]]:
        """The tokens of each word; a token outside words is listed separately."""
        keys = [word if word >= 0 else -1 - token for token, word in enumerate(self.words.tolist())]
        pairs = groupby(range(len(keys)), key=keys.__getitem__)
        return [list(tokens) for _, tokens in pairs]

    @cached_property
    def _spelled(self) -> list[tuple[str, bool]]:
        """The text of each token without marks, and whether white space precedes it."""
        if any("▁" in token for token in self.tokens):
            return [
                (token.removeprefix("▁").replace("▁", " ") or "▁", token.startswith("▁"))
                for token in self.tokens
            ]
        # subword_nmt and plain words do not keep white space.
        begins = np.diff(self.words, prepend=-1) != 0
        return [
            (token.removesuffix("@@"), bool(first))
            for token, first in zip(self.tokens, begins, strict=True)
        ]


def raw_sentence(
    task: Task | SourceTask, line: str, parse: ParsedSentence | None = None
) -> SourceSentence:
    """Parse and segment a raw line, in the same way as the data.

    Args:
        parse: its parse, instead of the parser's.

    Raises:
        UserError: the task or the data's parser cannot parse raw text.
    """
    if not isinstance(task, SourceTask):
        raise UserError("this model's task does not parse raw text: name a sentence by its --line")
    parses = () if parse is None else [parse]
    return SourceSentence.from_raw(task.source_text.encode([line], parses)[0], task)


def dataset_sentence(task: Task, subset: str, index: int) -> SourceSentence:
    """Read one sentence of a data directory.

    Args:
        index: the sentence, from 0.

    Raises:
        UserError: the subset or the sentence does not exist.
    """
    language, directory = task.cfg.source_lang, split_paths(task.cfg.data)[0]
    if isinstance(task, SyntaxTask) and Manifest.path(directory, language).is_file():
        # For the labels of nodes. The encoder may not accept them.
        task.require_parses(["words"], for_model=False)
    dataset = _loaded(task, subset)
    if not 0 <= index < len(dataset):
        raise UserError(f"{subset} has lines 1 to {len(dataset)}, not {index + 1}")
    batch = dataset.collater([dataset[index]])
    (copied,) = batch.get("copied", [()])
    words = batch.get("parse", {}).get("words")
    return SourceSentence.from_batch(batch["net_input"], task, copied, words)


def dataset_batches(task: Task, subset: str) -> Iterator[dict[str, Any]]:
    """Yield fairseq's batches of a data set, of 4,000 tokens at most.

    Raises:
        UserError: the subset does not exist, or has no targets.
    """
    dataset = _loaded(task, subset)
    if dataset.tgt is None:
        raise UserError(f"{subset} has no targets")
    batches = task.get_batch_iterator(
        dataset,
        max_tokens=4000,
        max_positions=(task.cfg.max_source_positions, task.cfg.max_target_positions),
        ignore_invalid_inputs=True,
    )
    samples: Iterator[dict[str, Any]] = batches.next_epoch_itr(shuffle=False)
    return samples


def _loaded(task: Task, subset: str) -> Any:
    try:
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UserError(str(error)) from None
    return task.dataset(subset)


def written(tokens: torch.Tensor, dictionary: Dictionary, copied: Sequence[str]) -> list[str]:
    """Return the text of each token, where words replace their slots.

    Args:
        tokens: of a source, or of its translation. Shape: ``(tokens,)``.
        copied: the source's words that have slots. Other slots stay as they are.
    """
    words = {slot(number): word for number, word in enumerate(copied, start=1)}
    subwords = [dictionary[index] for index in tokens.tolist()]
    return [words.get(subword, subword) for subword in subwords]


def _is_filled(values: torch.Tensor) -> torch.Tensor:
    """Return which of a sentence's words or constituents are not padding. Shape: ``(items,)``."""
    return values.ge(0).flatten(1).any(1) if values.dim() > 1 else values.ge(0)


def require_length(count: int, limit: int, unit: str) -> None:
    """Check that a picture is not too large to read, and does not need gigabytes.

    Raises:
        UserError: the number is larger than the limit.
    """
    if count > limit:
        raise UserError(
            f"the sentence has {count} {unit}, and a picture shows at most {limit}: choose a shorter "
            "sentence"
        )
