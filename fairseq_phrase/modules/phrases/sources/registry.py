"""Sources of phrases by name: functions from a batch's tokens and parse to phrases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import PhraseBatch

#: The group of entry points in which installed packages offer sources of phrases.
GROUP = "fairseq_phrase.phrase_sources"


@dataclass(frozen=True)
class SourceTokens:
    """The source tokens of a padded batch.

    Attributes:
        padding_mask: True at padding. Shape: (batch, tokens).
        is_unit: True at subwords, False at padding and at the tokens that mark a sentence's start
            and end. Shape: (batch, tokens).
    """

    padding_mask: Tensor
    is_unit: Tensor


class PhraseOptions(Protocol):
    """The options that a source may read, ``--phrase-*``; see :mod:`fairseq_phrase.models`."""

    phrase_max_length: int
    phrase_unit: str


@dataclass(frozen=True)
class PhraseSource:
    """A source of phrases.

    Attributes:
        name: its name for ``--phrase-source``.
        find: ``find(tokens, parse, options)`` returns a :class:`PhraseBatch`, or a boolean tensor of
            members, of shape (batch, phrases, tokens).
        fields: a function that returns the parse fields that it needs, given the options.
    """

    name: str
    find: Callable[[SourceTokens, ParseBatch, Any], PhraseBatch | Tensor]
    fields: Callable[[Any], Sequence[str]]


#: What finds the phrases of a batch.
Find = TypeVar("Find", bound=Callable[[SourceTokens, ParseBatch, Any], PhraseBatch | Tensor])

registered_sources: dict[str, PhraseSource] = {}


def phrase_source(
    name: str, fields: Sequence[str] | Callable[[Any], Sequence[str]] = ()
) -> Callable[[Find], Find]:
    """Register a function as a source of phrases.

    Args:
        name: its name for ``--phrase-source``.
        fields: the parse fields that it needs, or a function of the options that returns them.

    Example:
        A source in which every sentence is one phrase::

            @phrase_source("sentence")
            def sentence(tokens, parse, options):
                return tokens.is_unit[:, None]
    """

    def register(find: Find) -> Find:
        needed = fields if callable(fields) else lambda options: fields
        registered_sources[name] = PhraseSource(name, find, needed)
        return find

    return register


def check_max_length(max_length: int) -> None:
    """Raise ``ValueError`` if the maximum length is less than two units."""
    if max_length < 2:
        raise ValueError(
            f"phrases have at least 2 units, so the maximum phrase length must be 2 or more, "
            f"got {max_length}"
        )
