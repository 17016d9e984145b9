"""Sources of phrases, one file each; ``--phrase-source NAME`` chooses one.

Another package offers a source by an entry point of the group
:data:`~fairseq_phrase.modules.phrases.sources.registry.GROUP`. The entry point names a module. The
module registers the source when it is imported
(:func:`~fairseq_phrase.modules.phrases.sources.registry.phrase_source`).
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from torch import Tensor

from fairseq_phrase.modules.parse_batch import ParseBatch
from fairseq_phrase.modules.phrases.phrase_batch import ListedPairs, PhraseBatch

# Importing these registers them.
from fairseq_phrase.modules.phrases.sources import chains, constituency, ngram  # noqa: F401
from fairseq_phrase.modules.phrases.sources.registry import (
    GROUP,
    PhraseSource,
    phrases_of_members,
    registered_sources,
)
from fairseq_phrase.modules.phrases.sources.registry import SourceTokens as SourceTokens
from fairseq_phrase.modules.phrases.sources.registry import listed_phrases as listed_phrases


def load_source(spec: str) -> PhraseSource:
    """Return a source, from this package or from an installed one.

    Args:
        spec: ``NAME``, or ``NAME:ARGUMENT`` for a source that takes an argument.

    Raises:
        ValueError: no source has this name, or it takes no argument.
    """
    name, colon, argument = spec.partition(":")
    if name not in registered_sources:
        for entry in entry_points(group=GROUP, name=name):
            entry.load()
    if name not in registered_sources:
        offered = sorted({*registered_sources, *entry_points(group=GROUP).names})
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
    """Find the phrases of a batch.

    Raises:
        ValueError: the batch does not carry a parse that the source needs, or the phrases are
            malformed.
    """
    phrases = source.find(tokens, parse, options)
    if isinstance(phrases, Tensor):
        return phrases_of_members(phrases, tokens.padding_mask)
    return phrases


def list_phrases(
    spec: str, options: Any, dictionary: Any, src_tokens: Tensor, parse: ParseBatch
) -> list[Tensor]:
    """Find the phrases of a batch on the host; :func:`listed_phrases` takes them on any device.

    Args:
        spec: the source, as for :func:`load_source`.
        src_tokens: Shape: (batch, tokens)

    Returns:
        What :func:`listed_phrases` takes; nothing if the phrases are not a list, but follow from tokens.
    """
    tokens = SourceTokens.of(src_tokens, src_tokens.eq(dictionary.pad()), dictionary)
    phrases = find_phrases(load_source(spec), tokens, parse, options)
    if not isinstance(phrases.pairs, ListedPairs):
        return []
    slots = phrases.padding_mask[:, phrases.num_tokens :]
    return [slots, *phrases.edges, *phrases.memberships]
