"""Sources of phrases by name: functions from a batch's tokens and parse to phrases or sets of tokens.

``--phrase-source NAME`` chooses a source of :mod:`~fairseq_phrase.methods.phrases.builtin_sources` or of
an installed package. The package's entry point, in the group :data:`PHRASE_SOURCE_GROUP`, names a module,
which registers the source when it is imported (:func:`phrase_source`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from torch import Tensor

from fairseq_phrase.methods.common.parse_batch import ParseBatch
from fairseq_phrase.methods.phrases.phrase_batch import PhraseBatch

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary


#: The group of entry points in which installed packages offer sources of phrases.
PHRASE_SOURCE_GROUP = "fairseq_phrase.phrase_sources"
#: The module that registers this package's sources. It is loaded by name, as modules of other packages.
BUILT_IN = "fairseq_phrase.methods.phrases.builtin_sources"


@dataclass(frozen=True)
class SourceTokens:
    """The source tokens of a padded batch.

    Attributes:
        padding_mask: True at padding. Shape: (batch, tokens).
        is_unit: True at subwords, not at padding, starts and ends of sentences. Shape: (batch, tokens).
        indices: the tokens' numbers in the dictionary. Shape: (batch, tokens), int64.
        dictionary: the source dictionary.
    """

    padding_mask: Tensor
    is_unit: Tensor
    indices: Tensor | None = None
    dictionary: Any = None

    @classmethod
    def of(cls, src_tokens: Tensor, padding_mask: Tensor, dictionary: Dictionary) -> SourceTokens:
        """Make the tokens of a batch. Shape of both: (batch, tokens)."""
        is_unit = ~padding_mask
        for special in (dictionary.eos(), dictionary.bos()):
            is_unit &= src_tokens.ne(special)
        return cls(padding_mask, is_unit, src_tokens, dictionary)


class SourceOptions(Protocol):
    """The options that a source may read, ``--phrase-*``; see :mod:`fairseq_phrase.models`."""

    phrase_max_length: int
    phrase_unit: str


@dataclass(frozen=True)
class PhraseSource:
    """A source of phrases.

    Attributes:
        name: its name for ``--phrase-source``.
        find: ``find(tokens, parse, options)`` returns a :class:`PhraseBatch` or members, boolean, (batch,
            phrases, tokens). For ``--phrase-source NAME:ARGUMENT`` it also gets ``argument="ARGUMENT"``.
        fields: a function that returns the parse fields that it needs, given the options.
    """

    name: str
    find: Callable[..., PhraseBatch | Tensor]
    fields: Callable[[Any], Sequence[str]]


#: A function that finds the phrases of a batch.
Find = TypeVar("Find", bound=Callable[..., PhraseBatch | Tensor])

registered_sources: dict[str, PhraseSource] = {}


def phrase_source(
    name: str, fields: Sequence[str] | Callable[[Any], Sequence[str]] = ()
) -> Callable[[Find], Find]:
    """Register a function as a source of phrases.

    Args:
        name: its name for ``--phrase-source``.
        fields: the parse fields that it needs, or a function of the options that returns them.

    Raises:
        ValueError: a source of this name is registered already.
    """

    def register(find: Find) -> Find:
        if name in registered_sources:
            raise ValueError(f"a phrase source '{name}' is registered already")
        needed = fields if callable(fields) else lambda options: fields
        registered_sources[name] = PhraseSource(name, find, needed)
        return find

    return register


def load_source(spec: str) -> PhraseSource:
    """Return a source, from this package or from an installed one.

    Args:
        spec: ``NAME``, or ``NAME:ARGUMENT`` for a source that takes an argument.

    Raises:
        ValueError: a source of this name does not exist, or does not take an argument.
    """
    import_module(BUILT_IN)
    name, colon, argument = spec.partition(":")
    if name not in registered_sources:
        for entry in entry_points(group=PHRASE_SOURCE_GROUP, name=name):
            entry.load()
    if name not in registered_sources:
        offered = sorted({*registered_sources, *entry_points(group=PHRASE_SOURCE_GROUP).names})
        raise ValueError(f"unknown phrase source '{name}': expected one of {', '.join(offered)}")
    source = registered_sources[name]
    if not colon:
        return source
    if "argument" not in inspect.signature(source.find).parameters:
        raise ValueError(f"the phrase source '{name}' takes no argument, and '{argument}' is given")
    return replace(source, find=partial(source.find, argument=argument))


def find_phrases(
    source: PhraseSource, tokens: SourceTokens, parse: ParseBatch, options: Any
) -> PhraseBatch:
    """Find the phrases of a batch."""
    phrases = source.find(tokens, parse, options)
    if isinstance(phrases, Tensor):
        make = import_module(BUILT_IN).phrases_of_members
        return cast(PhraseBatch, make(phrases, tokens.padding_mask))
    return phrases


def find_members(
    spec: str, options: Any, dictionary: Dictionary, src_tokens: Tensor, parse: ParseBatch
) -> list[Tensor]:
    """Find the phrases of a batch in the collater.

    Args:
        spec: the source, as for :func:`load_source`.
        src_tokens: Shape: (batch, tokens)

    Returns:
        :attr:`PhraseBatch.is_member` alone.
    """
    tokens = SourceTokens.of(src_tokens, src_tokens.eq(dictionary.pad()), dictionary)
    return [find_phrases(load_source(spec), tokens, parse, options).is_member]
