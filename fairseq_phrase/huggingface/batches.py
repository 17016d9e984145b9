"""Parses of a tokenizer's batch, for models with relation biases."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import conllu, spacy, stanza

if TYPE_CHECKING:
    from fairseq_phrase.syntax.sentence import ParsedSentence


def parsed(document: Any) -> Any:
    """Convert the parse of a text by another library to a :class:`ParsedSentence`.

    Words are the text's tokens: of a token of several words (``zum``, ``zu dem``), the highest in the
    tree stands for it.

    Args:
        document: a spaCy ``Doc`` or ``Span``, a Stanza ``Document`` or ``Sentence``, or CoNLL-U text; its
            sentences become trees of one text. Parsed sentences are returned.

    Raises:
        UserError: it has no dependency parse.
    """
    if isinstance(document, str):
        return conllu.sentence_of(document)
    if hasattr(document, "to_array"):
        return spacy.sentence_of(document)
    if hasattr(document, "sentences") or hasattr(document, "tokens"):
        return stanza.sentence_of(document)
    return document


def text_of(document: Any) -> str:
    """Return the text of a parsed sentence, for a tokenizer; :func:`collate` finds its words in it.

    Args:
        document: as in :func:`parsed`.
    """
    return "".join(_spaced_words(parsed(document)))


def _spaced_words(sentence: ParsedSentence) -> list[str]:
    """Return the words with the spaces before them."""
    pairs = zip(sentence.words, sentence.space_before, strict=True)
    words = [f"{' ' * space}{word.replace('▁', ' ')}" for word, space in pairs]
    return [words[0].lstrip(), *words[1:]] if words else []


def _words_in_text(tokenized: Any, row: int, sentence: ParsedSentence) -> list[int | None]:
    """Return the word of each token: the word in which the token ends."""
    ends = list(accumulate(map(len, _spaced_words(sentence))))
    of_text = tokenized.sequence_ids(row)
    spans = (tokenized.token_to_chars(row, i) if n == 0 else None for i, n in enumerate(of_text))
    words = [None if span is None else bisect_left(ends, span.end) for span in spans]
    if any(word is not None and word >= len(ends) for word in words):
        raise UserError(
            f"sentence {row}: the tokens go on after its last word: give text_of(sentence)"
        )
    return words


def collate(
    tokenized: Any,
    parses: Sequence[Any],
    labels: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Make a batch's words, heads and labels for a model with relation biases.

    Args:
        tokenized: the output of a fast tokenizer: for the texts of parsed sentences (:func:`text_of`), or
            for lists of words (``is_split_into_words=True``).
        parses: the parsed sentences, or what :func:`parsed` converts; or for each list of words, the
            0-based head of each word (a root is its own head) and the words' dependency labels, which
            may be empty without ``labels``.
        labels: the labels given to :func:`add_relation_bias`, in the same order:
            ``model.config.relation_bias["labels"]``.

    Returns:
        ``src_words`` (shape (batch, tokens), -1 at tokens of no word), ``src_heads`` (shape (batch,
        words), -1 at padding) and, with labels, ``src_deprels`` (shape (batch, words), 0 at padding),
        int64.

    Raises:
        UserError: the tokenizer does not return the tokens' words, a sentence has another number of
            words than its parse or no tree, or a label is unknown.
    """
    parses = [p if isinstance(p, tuple | list) else parsed(p) for p in parses]
    trees = [_heads_and_labels(row, parse) for row, parse in enumerate(parses)]
    try:
        words = [
            tokenized.word_ids(row) if isinstance(parse, Sequence)
            else _words_in_text(tokenized, row, parse)
            for row, parse in enumerate(parses)
        ]  # fmt: skip
    except (AttributeError, ValueError, IndexError):
        raise UserError(
            "the tokenizer does not know which word each token belongs to (word_ids), or there are "
            "more parses than sentences: use a fast tokenizer, for all sentences"
        ) from None
    numbers = {label: number for number, label in enumerate(labels)}
    width = max((len(heads) for heads, _ in trees), default=0)
    all_heads, all_labels = [], []
    for row, (heads, names) in enumerate(trees):
        last = max((word for word in words[row] if word is not None), default=-1)
        if last >= len(heads) or (labels and len(names) != len(heads)):
            raise UserError(
                f"sentence {row}: {last + 1} words have tokens, and the parse has {len(heads)} heads "
                f"and {len(names)} labels"
            )
        if unknown := set(names) - set(numbers) if labels else set():
            raise UserError(f"sentence {row}: unknown labels {', '.join(sorted(unknown))}")
        fill = width - len(heads)
        all_heads.append([*heads, *[-1] * fill])
        all_labels.append([*(numbers[name] for name in names), *[0] * fill] if labels else [])
    rows_of_fields = {
        "src_words": [[-1 if word is None else word for word in row] for row in words],
        "src_heads": all_heads,
    }
    rows_of_fields |= {"src_deprels": all_labels} if labels else {}
    # Rows without words would be floats.
    return {name: torch.tensor(rows, dtype=torch.long) for name, rows in rows_of_fields.items()}


def _heads_and_labels(
    row: int, parse: ParsedSentence | tuple[Sequence[int], Sequence[str]]
) -> tuple[Sequence[int], Sequence[str]]:
    if isinstance(parse, Sequence):
        return parse
    tree = getattr(parse, "tree", None)  # a parser may leave a line unparsed
    if tree is None:
        raise UserError(f"sentence {row} has no dependency tree")
    return tree.heads.tolist(), parse.deprels


def parsing_tokenizer(tokenizer: Any, parser: Any, labels: Sequence[str] = ()) -> Any:
    """Return a tokenizer whose batches have the parses of their texts, for transformers' pipelines.

        pipeline("text-classification", model, tokenizer=parsing_tokenizer(tokenizer, parser))

    Args:
        tokenizer: a fast tokenizer. It is not changed.
        parser: a parser of lines, such as ``fairseq_phrase.parsers.load_parser("spacy:MODEL")``.
        labels: as in :func:`collate`.
    """

    class Parsing(type(tokenizer)):  # type: ignore[misc]
        def __call__(self, text: Any, *args: Any, **options: Any) -> Any:
            lines = [text] if isinstance(text, str) else list(text)
            if args or options.get("text_pair") or not all(isinstance(x, str) for x in lines):
                raise UserError(
                    "parsing_tokenizer: expected texts; pairs and words have no parse here"
                )
            parses = list(parser.parse(lines))
            texts = [text_of(getattr(parse, "sentence", parse)) for parse in parses]
            encoded = super().__call__(texts[0] if isinstance(text, str) else texts, **options)
            fields: dict[str, Any] = collate(encoded, parses, labels)
            kind = options.get("return_tensors")
            if kind is None:
                fields = {name: rows.tolist() for name, rows in fields.items()}
                if isinstance(text, str):
                    fields = {name: rows[0] for name, rows in fields.items()}
            encoded.update(
                fields if kind in (None, "pt") else {n: r.numpy() for n, r in fields.items()}
            )
            return encoded

    for name in ("__name__", "__qualname__", "__module__"):
        setattr(Parsing, name, getattr(type(tokenizer), name))
    parsing = copy.copy(tokenizer)
    parsing.__class__ = Parsing
    return parsing
