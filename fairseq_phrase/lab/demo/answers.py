"""The page's answer for a sentence: one model's translation, the trees, and the attention."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.utils import split_paths

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.translator import Translator
from fairseq_phrase.lab.inspection.parsed_text import ParsedTextReader, load_dictionaries
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import ParsedSentence

#: The largest number of nodes whose attention is sent to the page, which cannot show more.
MAX_NODES = 150


def answer(
    translator: Translator, text: str, heads: Sequence[int] | None, max_words: int
) -> dict[str, Any]:
    """Translate a sentence and describe its trees and its attention, in JSON's types.

    Args:
        heads: the edited head of each word, from 0; the root is its own head. The words are the earlier
            answer's. None for the parser's own tree.

    Returns:
        ``translation``; ``words``, ``tags``, ``heads``, ``deprels`` and ``constituents`` (first word, one
        past the last, label) of the sentence; ``graphs``, by their meaning the edges (head, dependent,
        label); ``reads_trees``, whether the model reads more than words; ``attention``
        (:func:`attention_of`) or None, and then ``no_attention``, the reason; and ``seconds``.

    Raises:
        UserError: the text is empty or too long, or the heads are not a tree over its words.
    """
    start = time.perf_counter()
    (sentence,) = translator.parse([text])
    if not sentence.words:
        raise UserError("the sentence is empty")
    if len(sentence.words) > max_words:
        raise UserError(f"the sentence has {len(sentence.words)} words, at most {max_words} fit")
    if heads is not None:
        config = translator.task.cfg
        made_by = Manifest.load(split_paths(config.data)[0], config.source_lang).constituents
        sentence = with_heads(sentence, heads, made_by == "from-dependencies")
    attention = attention_of(translator, text, sentence)
    return {
        "translation": translator.translate([text], parses=[sentence])[0],
        "words": [word.replace("▁", " ") for word in sentence.words],
        "tags": list(sentence.tags),
        "heads": [] if sentence.tree is None else sentence.tree.heads.tolist(),
        "deprels": list(sentence.deprels),
        "constituents": _constituents(sentence),
        "graphs": {FIELDS[name].meaning: edges for name, edges in sentence.edges.items()},
        "reads_trees": translator.task.source_text.needs_trees,
        "attention": None if isinstance(attention, str) else attention,
        "no_attention": attention if isinstance(attention, str) else "",
        "seconds": round(time.perf_counter() - start, 2),
    }


def example_of(translator: Translator) -> str:
    """Return a short sentence of the model's own data; an empty text without data (a bundle)."""
    config = translator.task.cfg
    directory = Path(split_paths(config.data)[0])
    try:
        manifest = Manifest.load(directory, config.source_lang)
        dictionaries = load_dictionaries(directory, manifest)
        for split in reversed(manifest.splits):  # test and validation come last
            reader = ParsedTextReader(directory, manifest, split, dictionaries)
            for index in range(min(len(reader), 100)):
                if 5 <= len((sentence := reader.read(index)).words) <= 12:
                    return sentence.text
    except (OSError, UserError):
        pass
    return ""


def with_heads(
    sentence: ParsedSentence, heads: Sequence[int], makes_constituents: bool
) -> ParsedSentence:
    """Replace a sentence's dependency tree.

    Args:
        heads: the head of each word, from 0.

    Raises:
        UserError: the heads are not a tree over the words.
    """
    if len(heads) != len(sentence.words):
        raise UserError(
            f"{len(heads)} heads were given, and the sentence has {len(sentence.words)} words"
        )
    try:
        tree = DependencyTree(heads)
    except (ValueError, OverflowError) as error:
        raise UserError(f"the heads are not a tree: {error}") from None
    constituents = sentence.constituents
    if makes_constituents and constituents is not None:
        constituents = ConstituencyTree.from_dependencies(tree, sentence.tags, sentence.deprels)
    return replace(sentence, tree=tree, constituents=constituents)


def _constituents(sentence: ParsedSentence) -> list[tuple[int, int, str]]:
    tree = sentence.constituents
    if tree is None:
        return []
    pairs = zip(tree.spans.tolist(), tree.labels, strict=True)
    return [(start, end, label) for (start, end), label in pairs]


def attention_of(
    translator: Translator, text: str, sentence: ParsedSentence
) -> dict[str, Any] | str:
    """Describe the encoder's attention in a text with this parse.

    Returns:
        ``nodes``, the text of each node, tokens first; ``tokens``, how many of them are tokens; and
        ``blocks``, by name the weights, ``[layer][head][query][key]``, rounded. A reason if the encoder
        gives no attention maps, or the sentence has too many nodes.
    """
    if not hasattr(translator.models[0].encoder, "attention_maps"):
        return "its attention cannot be shown"
    try:
        attention = translator.attention(text, sentence)
    except UserError as error:
        return str(error)
    if (count := len(attention.labels)) > MAX_NODES:
        return f"the sentence has {count} nodes, and attention is drawn for {MAX_NODES} at most"
    return {
        "nodes": attention.labels,
        "tokens": attention.num_tokens,
        "blocks": {
            name: np.round(map_.astype(float), 3).tolist()
            for name, map_ in attention.weights.items()
        },
    }
