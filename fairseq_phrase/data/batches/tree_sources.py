"""Sources of a batch's dependency trees: the parse, or a control without syntactic information."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_phrase.data.batches.raw_tokens import ends_of
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

TREE_SOURCES = ("parse", "linear", "random", "shuffled")
# A shuffled tree is chosen from at least this number of sentences of the same or nearly the same length.
_CANDIDATES = 10
#: Fields that would still reveal the parse if only the heads were replaced.
_OF_THE_TREE = ("deprels", "spans")


class Trees:
    """The dependency trees of a task's sentences, from its options or as its models were trained.

    A random tree depends on a seed and the sentence's text, so it is the same in every epoch and in
    translation.

    Args:
        source: ``--tree-source``; None if not given. ``parse``; ``linear``, each word's head is the next;
            ``random``, a uniformly random tree; ``shuffled``, the parse of another sentence of about the
            same length.
        seed: ``--tree-seed``; None if not given.
        open_pool: reads the parses of the training sentences, for ``shuffled``.

    Attributes:
        are_read: whether the most recent model reads trees.

    Raises:
        UserError: the source is unknown.
    """

    def __init__(
        self,
        source: str | None = None,
        seed: int | None = None,
        dictionary: Dictionary | None = None,
        open_pool: Callable[[], ParseStore] | None = None,
    ) -> None:
        if source not in (None, *TREE_SOURCES):
            names = ", ".join(TREE_SOURCES)
            raise UserError(f"--tree-source {source}: expected one of {names}")
        self._given, self._dictionary, self._open_pool = (source, seed), dictionary, open_pool
        self._recorded: tuple[str, int] | None = None
        self.are_read = False

    @property
    def setting(self) -> tuple[str, int]:
        """The name of the source, and its seed."""
        (source, seed), recorded = self._given, self._recorded or ("parse", 1)
        return source or recorded[0], recorded[1] if seed is None else seed

    def restore(self, trained: Identity, *, in_ensemble: bool) -> None:
        """Use the trees that a model was trained with, for each option that is not given.

        Args:
            in_ensemble: whether the model is added to an ensemble. Otherwise it replaces the others.

        Raises:
            UserError: the record's seed is not a number, or the models of an ensemble have different
                trees.
        """
        source, seed = trained.value("tree-source"), trained.value("tree-seed") or "1"
        self.are_read &= not in_ensemble
        if source is None:
            return
        if source not in TREE_SOURCES or not seed.isdigit():
            raise UserError(
                f"an identity record has the tree source {source} {seed}: it is damaged"
            )
        is_first, before = self._recorded is None, self.setting
        self._recorded = source, int(seed)
        if in_ensemble and not is_first and self.setting != before:
            raise UserError(
                "the models of an ensemble were trained on different trees: --tree-source "
                f"{before[0]} --tree-seed {before[1]}, and {source} {seed}"
            )

    def entries(self) -> dict[str, Entry]:
        """Return the entries for a model's record."""
        source, seed = self.setting
        entries = {"tree-source": Entry(source, source, "trees", default="parse")}
        if source in ("random", "shuffled"):
            entries["tree-seed"] = Entry(str(seed), str(seed), "trees")
        if source == "shuffled" and self._open_pool:
            digest = self._pool.checksum("heads")
            entries["tree-pool"] = Entry(digest, f"{self._pool.split} ({digest[:6]})", "trees")
        return entries

    @property
    def need_parses(self) -> bool:
        """Whether heads of parses are read, including heads of other sentences."""
        return self.setting[0] in ("parse", "shuffled")

    def fields_to_read(self, fields: Collection[str]) -> set[str]:
        """Return the fields of each sentence's own parse that are read; its heads only if they are used.

        Args:
            fields: the fields that all models and the loss read.

        Raises:
            UserError: the source is a control, and a field would reveal the parse.
        """
        source, _ = self.setting
        if source == "parse" or "heads" not in fields:
            return set(fields)
        for name, field in FIELDS.items():
            if name in fields and (name in _OF_THE_TREE or field.per == "edge"):
                raise UserError(
                    f"--tree-source {source} makes only dependency heads, but this model also reads the "
                    f"parse's {field.meaning}: leave out the option that asks for them, or use "
                    "--tree-source parse"
                )
        return set(fields) - {"heads"}

    def __call__(
        self, parse: dict[str, np.ndarray], tokens: Any, index: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return a sentence's parse with its heads.

        Args:
            tokens: its token indices; special tokens may be among them.
            index: its index in the pool; None if it is not in the pool.
        """
        source, _ = self.setting
        if source == "parse":
            return parse
        words = int(parse["words"].max(initial=-1)) + 1
        if source == "linear":
            heads = chain(words)
        elif source == "random":
            heads = random_tree(words, np.random.default_rng(self.draw(tokens)))
        else:
            other = self.other_sentence(words, self.draw(tokens), index)
            heads = fitted(self._pool[other]["heads"], words)
        return {**parse, "heads": heads}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the source for a worker; the reader of the pool stays in the task."""
        if self.setting[0] == "shuffled":
            self._by_length  # noqa: B018 - it opens the pool
        return {**self.__dict__, "_open_pool": None}

    @cached_property
    def _pool(self) -> ParseStore:
        assert self._open_pool is not None
        return self._open_pool()

    @cached_property
    def _by_length(self) -> tuple[np.ndarray, np.ndarray]:
        """The sentences of the pool by their numbers of words, and these numbers."""
        sizes = self._pool.sizes("heads")
        order = np.argsort(sizes, kind="stable")
        return order, sizes[order]

    def draw(self, tokens: Any) -> int:
        """Draw a number from the seed and the sentence's characters, independent of its subwords."""
        dictionary, (_, seed) = self._dictionary, self.setting
        assert dictionary is not None
        special = {dictionary.pad(), dictionary.bos(), *ends_of(dictionary)}
        subwords = (dictionary[index] for index in map(int, tokens) if index not in special)
        text = "".join(subword.removesuffix("@@") for subword in subwords)
        digest = hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def other_sentence(self, words: int, drawn: int, index: int | None) -> int:
        """Choose another sentence with this number of words, or nearly this number if few have it."""
        order, lengths = self._by_length
        furthest = max(lengths[-1] - words, words, 1)
        for difference in range(int(furthest) + 1):
            first = np.searchsorted(lengths, words - difference, "left")
            last = np.searchsorted(lengths, words + difference, "right")
            if last - first >= min(_CANDIDATES, len(lengths)):
                break
        candidates = order[first:last]
        sentence = candidates[drawn % len(candidates)]
        if sentence == index:
            sentence = candidates[(drawn + 1) % len(candidates)]
        return int(sentence)


def chain(words: int) -> np.ndarray:
    """Make each word depend on the next; the last one is the root. Shape: ``(words,)``, int64.

    Examples:
        >>> chain(4).tolist()
        [1, 2, 3, 3]
    """
    return np.minimum(np.arange(1, words + 1), max(words - 1, 0))


def random_tree(words: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a random tree; all trees with all roots are equally probable. Shape: ``(words,)``, int64.

    Source: Aldous, *The Random Walk Construction of Uniform Spanning Trees* (1990), algorithm 2.
    """
    if not words:
        return np.zeros(0, dtype=np.int64)
    # The i-th node becomes a dependent of an earlier node, chosen by a number drawn from all nodes. At
    # the end the nodes are assigned to words at random.
    before = np.arange(words - 1)
    parents = np.r_[0, np.minimum(rng.integers(0, words, words - 1), before)]
    names = rng.permutation(words)
    heads = np.empty(words, dtype=np.int64)
    heads[names] = names[parents]
    return heads


def fitted(heads: np.ndarray, words: int) -> np.ndarray:
    """Truncate a tree to its first words, or extend it by a chain. Shape: ``(words,)``, int64.

    A word whose head is removed becomes a dependent of the head's nearest remaining ancestor. An added
    word depends on the next word; the last added word depends on the tree's root.

    Args:
        heads: a tree. Shape: ``(any number of words,)``, word indices from 0; a root is its own head.
    """
    if not len(heads):
        return chain(words)
    tree = DependencyTree(heads)
    if words <= len(heads):
        return tree.restricted_to(np.arange(len(heads)) < words).heads
    added = np.arange(len(heads) + 1, words + 1)
    added[-1] = tree.root
    return np.concatenate([tree.heads, added])
