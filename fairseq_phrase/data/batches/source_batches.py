"""Raw lines to encoded sentences, and encoded sentences to a batch. All commands use this module.

Parses of data directories become tensors by the same :func:`collate_parses`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from fairseq.data import data_utils

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.data.batches.tree_sources import Trees
from fairseq_phrase.data.store.copied_words import number_of_slots, number_unknown
from fairseq_phrase.data.store.dictionaries import as_entry
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.methods.common.parse_batch import MADE, ROWS, MakeStructure, ParseBatch
from fairseq_phrase.syntax.fields import FIELDS, PREFIX
from fairseq_phrase.syntax.sentence import EncodedSentence, ParsedSentence, Unparsed


@runtime_checkable
class SourceTask(Protocol):
    """A task that reads raw text (``source_text``)."""

    cfg: Any
    source_dictionary: Dictionary
    target_dictionary: Dictionary
    source_text: SourceBatcher

    def label_dictionary(self, field: str) -> Dictionary:
        """Return the numbered labels of a parse field."""


ParseArrays = dict[str, np.ndarray]
#: Parses of several sentences by field: their items, and the number of items of each sentence.
ReadTogether = Mapping[str, tuple[np.ndarray, np.ndarray]]

# This number of pairs of a tree's nodes (tokens and constituents) takes the memory of one token. Measured
# in a training step of tree_transformer of base size: 1.0 MiB per token in sentences of 100 words,
# 1.4 MiB in a sentence of 800 words with a random tree, 1.6 MiB in a chain of 800 words.
PAIRS_PER_TOKEN = 2048


class SourceBatcher:
    """Makes batches of raw text for a task's models.

    Args:
        labels: returns the dictionary of a parse field's labels.
        encoder: returns the text encoder; it is called at the first line.
        trees: the source of heads; by default the parser's heads are used.

    Attributes:
        fields: the fields of parses that the models require. Batches contain them.
        structures: the structures that models require from parses, by key.
    """

    def __init__(
        self,
        dictionary: Dictionary,
        labels: Callable[[str], Dictionary],
        encoder: Callable[[], TextEncoder],
        trees: Trees | None = None,
        *,
        left_pad: bool = False,
    ) -> None:
        self._dictionary, self._labels, self._load = dictionary, labels, encoder
        self._trees, self._left_pad = trees or Trees(), left_pad
        self._num_slots = number_of_slots(dictionary.indices)
        self.fields: set[str] = set()
        self.structures: dict[str, MakeStructure] = {}

    @cached_property
    def encoder(self) -> TextEncoder:
        """The encoder that splits and parses lines."""
        return self._load()

    @property
    def fields_to_parse(self) -> set[str]:
        """The fields that a parser must make: heads of trees without syntax need no parser."""
        return self._trees.fields_to_read(self.fields)

    @property
    def needs_trees(self) -> bool:
        """Whether the models read more of a parse than the word of each subword."""
        return not self.fields_to_parse <= {"words"}

    def encode(
        self, lines: Sequence[str], parses: Sequence[ParsedSentence | Unparsed] = ()
    ) -> list[EncodedSentence]:
        """Split lines into subwords as in preprocessing, and parse them if the models read trees.

        Args:
            parses: the parse of each line, instead of the parser's.
        """
        if parses:
            return self.encoder.encode_parses(lines, parses)
        read = self.fields_to_parse
        if read <= {"words"}:
            return self.encoder.segment_lines(lines)
        return self.encoder.encode_lines(lines, constituents="spans" in read)

    def numbered(
        self, sentence: EncodedSentence, limit: int | None = None
    ) -> tuple[list[int], list[str]]:
        """Return a sentence's token indices with its end, and its words that have slots.

        Args:
            limit: the number of subwords to keep; None for all.
        """
        subwords = sentence.subwords[:limit]
        words: list[str] = []
        if self._num_slots:
            subwords, words = number_unknown(subwords, self._dictionary.indices, self._num_slots)
        return [*map(self._dictionary.index, subwords), *ends_of(self._dictionary)], words

    def batch(
        self, sentences: Sequence[EncodedSentence], limit: int | None = None
    ) -> dict[str, Any]:
        """Make fairseq's batch of sentences, in their order.

        Args:
            limit: truncate sentences to this number of subwords, as ``--truncate-source`` does.

        Returns:
            ``net_input`` with ``src_tokens`` (batch, tokens), ``src_lengths`` (batch,) and, if the models
            require fields, the tensors of :func:`collate_parses`; and ``copied``, the words of each
            sentence that have slots in the dictionary.
        """
        rows, words = zip(*(self.numbered(sentence, limit) for sentence in sentences), strict=True)
        dictionary = self._dictionary
        tokens = data_utils.collate_tokens(
            [torch.tensor(row) for row in rows], dictionary.pad(), dictionary.eos(), self._left_pad
        )
        net_input = {"src_tokens": tokens, "src_lengths": torch.tensor(list(map(len, rows)))}
        return {"net_input": net_input | self.parses(tokens, sentences, limit), "copied": words}

    def parses(
        self, tokens: torch.Tensor, sentences: Sequence[EncodedSentence], limit: int | None = None
    ) -> dict[str, torch.Tensor]:
        """Collate the parses of sentences whose tokens are already batched.

        Args:
            tokens: Shape: ``(batch, tokens)``.
        """
        if not self.fields:
            return {}
        parses = [self._parse_of(sentence, limit) for sentence in sentences]
        collated = collate_parses(tokens, parses, self._dictionary)
        return collated | make_structures(self.structures, tokens, collated)

    def _parse_of(self, sentence: EncodedSentence, limit: int | None) -> ParseArrays:
        parse = numbered_parse(sentence, self.fields_to_parse, self._labels)
        parse = truncated(parse, limit)
        if "heads" not in self.fields:
            return parse
        return self._trees(parse, self.numbered(sentence, limit)[0])

    def batches(
        self,
        sentences: Sequence[EncodedSentence],
        max_tokens: int,
        max_sentences: int | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[list[int], dict[str, Any]]]:
        """Yield batches of sentences of similar length, with little padding.

        Args:
            max_tokens: the largest number of tokens in a batch, with padding; a longer sentence is alone.
            max_sentences: the largest number of sentences in a batch.

        Yields:
            The sentences' indices, the longest first, and their batch.
        """
        lengths = [len(sentence.subwords[:limit]) + 1 for sentence in sentences]
        batches: list[list[int]] = []
        largest = 0
        for index in sorted(range(len(sentences)), key=lengths.__getitem__):
            size = self._size(sentences[index], lengths[index])
            largest = max(largest, size)
            count = len(batches[-1]) + 1 if batches else 1
            is_full = count * largest > max_tokens or bool(max_sentences and count > max_sentences)
            if not batches or is_full:
                batches.append([])
                largest = size
            batches[-1].append(index)
        for batch in batches:
            batch.reverse()
            yield batch, self.batch([sentences[index] for index in batch], limit)

    def _size(self, sentence: EncodedSentence, length: int) -> int:
        """Count the tokens that a sentence counts as, see :data:`PAIRS_PER_TOKEN`."""
        if "spans" not in self.fields or sentence.spans is None:
            return length
        return max(length, (length + len(sentence.spans)) ** 2 // PAIRS_PER_TOKEN)


def numbered_parse(
    sentence: EncodedSentence, fields: Collection[str], dictionary_of: Callable[[str], Dictionary]
) -> ParseArrays:
    """Replace the labels of a sentence's parse by numbers, as in a data directory.

    Args:
        fields: the fields that the parse must have, names in :data:`fairseq_phrase.syntax.fields.FIELDS`.
        dictionary_of: a function that returns the data's dictionary of a field's labels.

    Returns:
        The parse, as :class:`fairseq_phrase.data.store.reader.ParseStore` returns it.

    Raises:
        UserError: the parser did not make one of the fields.
    """
    parse = {}
    for name, field in FIELDS.items():
        if name not in fields:
            continue
        number = None if field.label_file is None else partial(_numbers, dictionary_of(name))
        values = field.values(sentence, number)
        if values is None:
            raise UserError(
                f"this model needs {field.meaning} and the data's parser makes none of raw text: name "
                f"one, {as_given('source-parser', 'spacy:MODEL')} or stanza:LANG"
            )
        parse[name] = values
    return parse


def _numbers(dictionary: Dictionary, labels: Sequence[str]) -> np.ndarray:
    """Number labels; labels that the dictionary lacks are unknown. Shape: ``(labels,)``, int64."""
    return np.array([dictionary.index(as_entry(label)) for label in labels], dtype=np.int64)


def collate_parses(
    src_tokens: torch.Tensor, parses: Sequence[ParseArrays] | ReadTogether, dictionary: Dictionary
) -> dict[str, torch.Tensor]:
    """Batch the parses of a batch's source tokens.

    Args:
        src_tokens: the batch's source, padded on either side. Shape: ``(batch, tokens)``.
        parses: each sentence's parse, in the batch's order, or all of them together.
        dictionary: the source dictionary, which distinguishes words from special tokens.

    Returns:
        A tensor for each field of the parses, named ``src_`` and the field's name, int64, -1 at padding:
        ``src_words``, the word of each subword (shape ``(batch, tokens)``, word indices from 0; -1
        also at the tokens that mark a sentence's start and end); ``src_heads`` (shape ``(batch,
        words)``, word indices from 0; the root is its own head); ``src_deprels`` and ``src_tags`` (shape
        ``(batch, words)``, numbers in their dictionaries); ``src_spans`` (shape ``(batch,
        constituents, 3)``: first word, one past the last, number of the label; children before
        parents).

    Raises:
        ValueError: a sentence has more or fewer subwords than its parse.
    """
    if not isinstance(parses, Mapping):
        parses = {name: _joined([parse[name] for parse in parses]) for name in parses[0]}
    tokens = src_tokens.cpu().numpy()
    is_subword = tokens != dictionary.pad()
    is_subword &= tokens != dictionary.bos()
    for end in ends_of(dictionary):
        is_subword &= tokens != end
    subwords, parsed = is_subword.sum(1), parses["words"][1]
    for row in np.flatnonzero(subwords != parsed):
        raise ValueError(
            f"a source of {subwords[row]} subwords has a parse of {parsed[row]}: the text "
            "was changed after it was parsed; run fairseq-phrase-preprocess, or -attach, again"
        )
    batch = {}
    for name, (values, sizes) in parses.items():
        mask, per = is_subword, FIELDS[name].per
        if per != "subword":
            # A batch of empty lines has one padding word, because tokens outside words need an index.
            mask = np.arange(sizes.max(initial=int(per == "word"))) < sizes[:, None]
        padded = np.full((*mask.shape, *values.shape[1:]), -1, dtype=np.int64)
        if values.ndim > 1:  # NumPy assigns scalars faster than rows
            mask, values = np.repeat(mask[..., None], values.shape[1], 2), values.ravel()
        padded[mask] = values
        batch[f"{PREFIX}{name}"] = torch.from_numpy(padded)
    return batch


def _joined(rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows))


def add_structure(
    structures: MutableMapping[str, MakeStructure], key: str, make: MakeStructure
) -> None:
    """Add a structure that an encoder requires.

    Raises:
        UserError: another encoder, of the same ensemble, computes another structure under the same key.
    """
    if _parts(structures.setdefault(key, make)) != _parts(make):
        raise UserError(
            f"two models of the ensemble compute different structures under the key '{key}' "
            "(batch_structure of their encoders): a key must name all options of its function, which is "
            "defined in a module"
        )


def _parts(make: MakeStructure) -> Any:
    """Return what two equal functions share: partials of the same arguments are not equal."""
    return (make.func, make.args, make.keywords) if isinstance(make, partial) else make


def make_structures(
    structures: Mapping[str, MakeStructure],
    src_tokens: torch.Tensor,
    collated: Mapping[str, torch.Tensor],
) -> dict[str, Any]:
    """Make the structures that encoders require from a batch's parses, named as in ``net_input``."""
    if not structures:
        return {}
    made: dict[str, Any] = {ROWS: len(src_tokens)}
    parse = ParseBatch.from_net_input(collated)
    for key, make in structures.items():
        for number, value in enumerate(make(src_tokens, parse)):
            made[f"{MADE}{key}.{number}"] = value
    return made


def truncated(parse: ParseArrays, subwords: int | None) -> ParseArrays:
    """Truncate a parse to its first subwords; None keeps all.

    A word whose head is removed becomes a dependent of the head's nearest kept ancestor. Constituents
    keep their remaining words.

    Returns:
        The parse of the words that keep a subword.
    """
    if subwords is None or len(parse["words"]) <= subwords:
        return parse
    words = parse["words"][:subwords]
    count = int(words.max(initial=-1)) + 1
    return {name: FIELDS[name].truncated(values, subwords, count) for name, values in parse.items()}
