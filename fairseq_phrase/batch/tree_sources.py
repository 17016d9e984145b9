"""Sources of a batch's dependency trees: the parse, or a control without syntactic information."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fairseq_phrase.errors import UserError
from fairseq_phrase.store.fields import FIELDS
from fairseq_phrase.store.reader import ParseStore
from fairseq_phrase.syntax.control_trees import chain, fitted, random_tree

__all__ = ["TREE_SOURCES", "TreeOptions", "TreeSource"]

logger = logging.getLogger(__name__)

TREE_SOURCES = ("parse", "linear", "random", "shuffled")
# A shuffled tree is chosen from at least this number of sentences of the same or nearly the same length.
_CANDIDATES = 10
#: Fields that would still reveal the parse if only the heads were replaced.
_OF_THE_TREE = ("deprels", "spans")


class TreeOptions:
    """The source of trees: that of the options, else the one that a checkpoint was trained with.

    Args:
        source: ``--tree-source``; None if it is not given.
        seed: ``--tree-seed``; None if it is not given.

    Raises:
        UserError: the source is unknown.
    """

    def __init__(self, source: str | None = None, seed: int | None = None):
        if source is not None:
            TreeSource(source)
        self._given: dict[str, Any] = {"tree_source": source, "tree_seed": seed}
        self._trained: dict[str, Any] = {}

    @property
    def source(self) -> str:
        """One of :data:`TREE_SOURCES`."""
        return self._given["tree_source"] or self._trained.get("tree_source", "parse")

    @property
    def seed(self) -> int:
        """The seed of random choices."""
        given = self._given["tree_seed"]
        return self._trained.get("tree_seed", 1) if given is None else given

    @property
    def state(self) -> dict[str, Any]:
        """The state to save in a checkpoint."""
        return {"tree_source": self.source, "tree_seed": self.seed}

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Use a checkpoint's state for each option that is not given.

        Raises:
            UserError: another checkpoint of an ensemble has another state.
        """
        trained = {name: state[name] for name in self._given if name in state}
        if not trained:
            return
        other = self._trained.get("tree_source")
        if self._given["tree_source"] is None and other not in (None, trained["tree_source"]):
            raise UserError(
                f"these models were trained with --tree-source {other} and {trained['tree_source']}, "
                "but a batch has one tree a sentence: name one with --tree-source"
            )
        self._trained = trained
        if self.source != trained["tree_source"]:
            logger.warning(
                "--tree-source %s: this model was trained with %s",
                self.source,
                trained["tree_source"],
            )


class TreeSource:
    """Gives sentences their dependency trees.

    A random tree depends on a seed and the sentence's text, so it is the same in every epoch and in
    translation.

    Args:
        name: ``parse``; ``linear``, each word's head is the next; ``random``, a uniformly random tree;
            ``shuffled``, the parse of another sentence of about the same length.
        seed: for random choices.
        dictionary: the source dictionary.
        pool: with ``shuffled``, the parsed heads of the training sentences.

    Raises:
        UserError: the name is unknown.
    """

    def __init__(
        self, name: str, seed: int = 1, dictionary: Any = None, pool: ParseStore | None = None
    ):
        if name not in TREE_SOURCES:
            raise UserError(f"--tree-source {name}: expected one of {', '.join(TREE_SOURCES)}")
        self.name, self.seed, self.pool = name, seed, pool
        self._dictionary = dictionary
        if pool is not None:
            sizes = pool.sizes("heads")
            self._by_length = np.argsort(sizes, kind="stable")
            self._lengths = sizes[self._by_length]

    def fields_to_read(self, fields: Collection[str]) -> set[str]:
        """Return the fields to read for these fields; the parse's heads are read only if they are used.

        Raises:
            UserError: this is a control, and a field would reveal the parse.
        """
        read = set(fields)
        if self.name == "parse":
            return read
        telling = [name for name in _OF_THE_TREE if name in read]
        if telling:
            what = FIELDS[telling[0]].meaning
            raise UserError(
                f"--tree-source {self.name} makes only dependency heads, but this model also reads the "
                f"parse's {what}: leave out the option that asks for them, or use --tree-source parse"
            )
        return read - {"heads"}

    def __call__(
        self, parse: dict[str, np.ndarray], tokens: Any, place: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return a sentence's parse with the heads of this source.

        Args:
            parse: its parse.
            tokens: its token indices; special tokens may be among them.
            place: its index in the pool; None if it is not in the pool.
        """
        if self.name == "parse":
            return parse
        count = int(parse["words"][-1]) + 1 if len(parse["words"]) else 0
        return {**parse, "heads": self._heads(count, tokens, place)}

    def _heads(self, words: int, tokens: Any, place: int | None) -> np.ndarray:
        if self.name == "linear":
            return chain(words)
        drawn = self._draw(tokens)
        if self.name == "random":
            return random_tree(words, np.random.default_rng(drawn))
        assert self.pool is not None
        return fitted(self.pool[self._other(words, drawn, place)]["heads"], words)

    def _draw(self, tokens: Any) -> int:
        """Draw a number from the seed and the sentence's characters; it does not depend on subwords."""
        dictionary = self._dictionary
        special = (dictionary.pad(), dictionary.eos(), dictionary.bos())
        pieces = (dictionary[index] for index in map(int, tokens) if index not in special)
        text = "".join(piece.removesuffix("@@") for piece in pieces)
        digest = hashlib.blake2b(f"{self.seed} {text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _other(self, words: int, drawn: int, place: int | None) -> int:
        """Choose another sentence of this number of words, or of nearly this number if few have it."""
        furthest = max(self._lengths[-1] - words, words, 1)
        for difference in range(int(furthest) + 1):
            first = np.searchsorted(self._lengths, words - difference, "left")
            last = np.searchsorted(self._lengths, words + difference, "right")
            if last - first >= min(_CANDIDATES, len(self._lengths)):
                break
        candidates = self._by_length[first:last]
        chosen = candidates[drawn % len(candidates)]
        if chosen == place:
            chosen = candidates[(drawn + 1) % len(candidates)]
        return int(chosen)
