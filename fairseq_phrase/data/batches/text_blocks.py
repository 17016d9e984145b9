"""Samples of text of one language: sentences, blocks of sentences, and pairs of segments.

A sample has one parse, like a line with several sentences. *Decision*: the separator
``</s>`` between two sentences is a word of the joined parse. It depends on the root of the sentence
before it and has an unknown label. The words of a sample are therefore contiguous, as encoders of
trees expect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fairseq.data import TokenBlockDataset

from fairseq_phrase.data.batches.source_batches import ParseArrays
from fairseq_phrase.data.batches.syntax_dataset import Parses
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.fields import FIELDS

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

#: ``<unk>`` in every dictionary of fairseq.
_UNKNOWN = 3


def joined_parses(
    parses: Sequence[Mapping[str, np.ndarray]], root_label: int = 0
) -> dict[str, np.ndarray]:
    """Join the parses of sentences that become one source, with a separator after each but the last.

    The roots of later sentences depend on the first root and keep the root's relation. Constituency
    trees are joined under one constituent. If a line already has such a constituent, it is removed, and
    all sentences become children of one node
    (:mod:`fairseq_phrase.syntax.sentence_boundaries` finds them again). Separators have no edges in
    graphs.

    Args:
        parses: the sentences' parses, with the same fields; each has at least one word.
        root_label: the label of the joining constituent.

    Returns:
        One parse, as :class:`fairseq_phrase.data.store.reader.ParseStore` returns it.

    Examples:
        >>> parse = {"words": np.array([0, 1]), "heads": np.array([1, 1])}
        >>> joined_parses([parse, parse])["heads"].tolist()
        [1, 1, 1, 4, 1]
    """
    if len(parses) == 1:
        return dict(parses[0])
    counts = [int(parse["words"][-1]) + 2 for parse in parses]
    ends = np.cumsum(counts)
    starts = ends - counts
    separators = ends[:-1] - 1
    parse = {}
    for name in parses[0]:
        values = [parse[name] for parse in parses]
        if name == "spans":
            values = [
                _without_root(spans, count - 1, root_label)
                for spans, count in zip(values, counts, strict=True)
            ]
        if name == "spans" or FIELDS[name].per == "edge":
            # The last column is the label.
            shifts = [np.array([start, start, 0]) for start in starts]
            parse[name] = np.concatenate(list(map(np.add, values, shifts)))
            continue
        if name in ("words", "heads"):
            values = [numbers + start for numbers, start in zip(values, starts, strict=True)]
            between = separators
        elif FIELDS[name].per == "word":
            between = np.full(len(separators), _UNKNOWN)
        else:
            raise ValueError(f"parses of several sentences have no joined {name}")
        before = np.cumsum([len(items) for items in values[:-1]])
        parse[name] = np.insert(np.concatenate(values), before, between)
    if "spans" in parse:
        parse["spans"] = np.append(parse["spans"], [[0, ends[-1] - 1, root_label]], axis=0)
    if "heads" in parse:
        is_root = parse["heads"] == np.arange(len(parse["heads"]))
        is_root[separators] = False
        # The first root of each sentence, for its separator.
        roots = np.flatnonzero(is_root)
        parse["heads"][separators] = roots[np.searchsorted(roots, starts[:-1])]
        parse["heads"][roots] = roots[0]
    return parse


def _without_root(spans: np.ndarray, words: int, root_label: int) -> np.ndarray:
    """Remove the joining constituent of a line. ``spans`` has shape ``(constituents, 3)``."""
    has_root = len(spans) and spans[-1].tolist() == [0, words, root_label]
    return spans[:-1] if has_root else spans


def parsed_tokens(tokens: np.ndarray, dictionary: Dictionary) -> np.ndarray:
    """Return whether tokens belong to words of the parse. Shape: ``(…, tokens)``, bool.

    Args:
        tokens: token indices, padded on the right. Shape: ``(…, tokens)``
    """
    pad, eos = tokens == dictionary.pad(), tokens == dictionary.eos()
    separates = eos.copy()
    separates[..., :1] = False
    separates[..., -1:] = False
    separates[..., :-1] &= ~pad[..., 1:]
    return np.asarray(separates | ~(pad | eos | (tokens == dictionary.bos())))


class BlockSample(NamedTuple):
    """A sample, before an objective derives source and target from it.

    Attributes:
        tokens: token indices, with ``</s>`` after each sentence. Shape: ``(tokens,)``, int64
        parse: the parse; empty if no field is read.
        segments: 0 in the first segment and 1 in the second; None without segments.
            Shape: ``(tokens,)``, int64
        is_next: whether the second segment follows the first one in the text; None without segments.
        before: the tokens before the sample, as a memory; None without memory. Shape: ``(memory,)``
    """

    tokens: np.ndarray
    parse: ParseArrays
    segments: np.ndarray | None = None
    is_next: int | None = None
    before: np.ndarray | None = None


class TextBlocks:
    """Consecutive sentences, split into blocks by fairseq's ``TokenBlockDataset``.

    Args:
        text: the sentences, each with ``</s>``; a blank line is only ``</s>``.
        tokens_per_sample: the largest number of tokens.
        break_mode: ``eos``, ``complete``, ``complete_doc`` or ``none``, as in fairseq.
        parses: the sentences' parses; None if parses are not needed.
        memory: the number of preceding tokens that a sample remembers.

    Raises:
        UserError: the text has fewer tokens than the memory.

    Attributes:
        sizes: number of tokens of each sample. Shape: ``(samples,)``
    """

    def __init__(
        self,
        text: Any,
        dictionary: Dictionary,
        tokens_per_sample: int,
        break_mode: str,
        parses: Parses | None = None,
        root_label: int = 0,
        memory: int = 0,
    ):
        if memory > sum(text.sizes):
            raise UserError(
                f"--memory {memory}: longer than the text, which has {sum(text.sizes)} tokens"
            )
        self._memory = memory
        self._text, self._parses, self._root_label = text, parses, root_label
        if break_mode == "eos":
            # Equal to complete sentences of at most one token, because each is longer. fairseq's own code
            # for eos needs NumPy 1.
            break_mode, tokens_per_sample = "complete", 1
        self._blocks = TokenBlockDataset(
            text, text.sizes, tokens_per_sample, pad=dictionary.pad(), eos=dictionary.eos(),
            break_mode=break_mode,
        )  # fmt: skip
        sizes = self._blocks.sizes.astype(np.int64)
        # Blank lines are left out.
        self._indices = np.flatnonzero(sizes > 1)
        self.sizes = sizes[self._indices]

    def __len__(self) -> int:
        return len(self._indices)

    def draw(self, seed: int, epoch: int) -> None:
        """Do nothing: blocks are not random."""

    def first_sentence(self, index: int) -> int:
        """Return the first sentence of a sample."""
        return int(self._blocks.block_to_dataset_index[self._indices[index]][0])

    def __getitem__(self, index: int) -> BlockSample:
        """Return a sample."""
        before = self.before(index, self._memory) if self._memory else None
        return BlockSample(self.tokens(index), self.parse([index]), before=before)

    def tokens(self, index: int) -> np.ndarray:
        """Return the tokens of a sample. Shape: ``(tokens,)``, int64."""
        return np.asarray(self._blocks[self._indices[index]], dtype=np.int64)

    def parse(self, indices: Sequence[int]) -> ParseArrays:
        """Join the parses of all sentences of the samples into one; empty if no field is read."""
        if self._parses is None:
            return {}
        parses: list[ParseArrays] = []
        for index in indices:
            index = self._indices[index]
            first, _, last = map(int, self._blocks.block_to_dataset_index[index])
            parses += [self._parses[number] for number in range(first, last + 1)]
        return joined_parses(parses, self._root_label)

    def before(self, index: int, count: int) -> np.ndarray:
        """Return the tokens before a sample.

        Args:
            index: the sample, from 0.
            count: number of tokens; fewer at the start of the text.
        """
        sentence, offset, _ = map(int, self._blocks.block_to_dataset_index[self._indices[index]])
        sentences = [self._text[sentence].numpy()[:offset]]
        while sum(map(len, sentences)) < count and sentence:
            sentence -= 1
            sentences.insert(0, self._text[sentence].numpy())
        tokens = np.concatenate(sentences).astype(np.int64)
        return tokens[max(len(tokens) - count, 0) :]


class SegmentPairs:
    """Pairs of segments, half of the second segments from another document.

    A pair is ``<s>``, the first segment and the second one, each with ``</s>`` at its end. The second one
    follows the first one in its document, or is any segment of another document. Random choices depend
    on the seed and the epoch.

    Args:
        blocks: the segments; segments do not cross document boundaries.
        bos: index of ``<s>``, the first token of a pair.
        where: the name of the text in messages.

    Raises:
        UserError: there are fewer than two documents, or no document has two segments.
    """

    def __init__(self, blocks: TextBlocks, text: Any, bos: int, where: str):
        self._blocks, self._bos = blocks, bos
        # A blank line, only </s>, ends a document.
        number = np.cumsum(np.asarray(text.sizes) == 1)
        self._documents = number[[blocks.first_sentence(i) for i in range(len(blocks))]]
        if len(np.unique(self._documents)) < 2:
            raise UserError(
                f"--next-sentence: {where} is one document, so no sentence of another one can be drawn: "
                "put a blank line between documents and run fairseq-phrase-preprocess --only-source again"
            )
        self._firsts = np.flatnonzero(self._documents[:-1] == self._documents[1:])
        if not len(self._firsts):
            raise UserError(
                f"--next-sentence: no document of {where} has two segments: a blank line separates "
                "documents, not sentences; or give a smaller --tokens-per-sample, or "
                "--sample-break-mode eos"
            )
        self.draw(1, 1)

    def __len__(self) -> int:
        return len(self._firsts)

    def draw(self, seed: int, epoch: int) -> None:
        """Draw the second segments of an epoch."""
        rng = np.random.default_rng([seed, epoch])
        count, total = len(self._firsts), len(self._blocks)
        self.is_next = rng.random(count) < 0.5
        document = self._documents[self._firsts]
        # A segment of another document: it is before or after the segments of this document.
        start = np.searchsorted(self._documents, document, "left")
        end = np.searchsorted(self._documents, document, "right")
        second = (rng.random(count) * (total - (end - start))).astype(np.int64)
        second = np.where(second < start, second, second + end - start)
        self._seconds = np.where(self.is_next, self._firsts + 1, second)
        sizes = self._blocks.sizes
        self.sizes = 1 + sizes[self._firsts] + sizes[self._seconds]

    def __getitem__(self, index: int) -> BlockSample:
        """Return a pair."""
        blocks = [int(numbers[index]) for numbers in (self._firsts, self._seconds)]
        first, second = map(self._blocks.tokens, blocks)
        tokens = np.concatenate([[self._bos], first, second])
        segments = (np.arange(len(tokens)) > len(first)).astype(np.int64)
        # Joined segments are not sentences: their roots and constituents cannot be joined again.
        parse = self._blocks.parse(blocks)
        return BlockSample(tokens, parse, segments, int(self.is_next[index]))
