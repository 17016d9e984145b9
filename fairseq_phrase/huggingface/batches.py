"""Parses of a tokenizer's batch, for models with relation biases."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface.training import take_name
from fairseq_phrase.parsers import conllu, spacy, stanza
from fairseq_phrase.syntax.sentence import ParsedSentence

if TYPE_CHECKING:
    from fairseq_phrase.syntax.sentence import Edge


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
    words = [f"{' ' if space else ''}{word.replace('▁', ' ')}" for word, space in pairs]
    return [words[0].lstrip(), *words[1:]] if words else []


def _of_prompt(words: list[int | None], length: int) -> list[int | None]:
    """Mark the tokens after a prompt by -2.

    Args:
        words: the word of each token; None at tokens of no word.
        length: number of words of the prompt.
    """
    after = (i for i, word in enumerate(words) if word is not None and word >= length)
    first = next(after, len(words))
    return [*words[:first], *[-2] * (len(words) - first)]


def _words_of_tokens(
    tokenized: Any,
    row: int,
    sentence: ParsedSentence,
    text: str | None,
    may_go_on: bool,
    may_end: bool,
) -> list[int | None]:
    """Return the word of each token: the word in which the token ends.

    Args:
        text: the text in which the sentence is; None for :func:`text_of`.
        may_go_on: whether the text may go on after the sentence.
        may_end: whether the row may be a part of the text that ends before the sentence.

    Raises:
        UserError: the sentence is not in the text, or the text goes on or ends early.
    """
    tokens = [i for i, of in enumerate(tokenized.sequence_ids(row)) if of == 0]
    spans = [tokenized.token_to_chars(row, i) for i in tokens]
    numbers = tokenized.word_ids(row)
    pairs = [(s, t) for s, t, i in zip(spans, spans[1:], tokens[1:], strict=False)
             if s and t and numbers[i] != numbers[i - 1]]  # fmt: skip
    # Offsets of a list of words count from the start of each word.
    if pairs and (any(t.start < s.start for s, t in pairs) or all(t.start == 0 for _, t in pairs)):
        words: list[int | None] = numbers
    else:
        text, (start, *ends) = _located(row, sentence, text)
        words = [None] * len(numbers)
        for i, span in zip(tokens, spans, strict=True):
            if span and ends and span.end > start:
                # Blanks after a sentence are of no word; without texts, what is there is unknown.
                after = text[ends[-1] : span.end]
                if span.end <= ends[-1] or span.end > len(text) or _is_visible(after):
                    words[i] = bisect_left(ends, span.end)
    count, last = len(sentence.words), max((w for w in words if w is not None), default=-1)
    if last >= count and not may_go_on:
        raise UserError(
            f"sentence {row}: the tokens go on after its last word: give text_of(sentence), or for a "
            "decoder whose prompt goes on, only_prompts=True"
        )
    may_end = may_end or tokenized.encodings[row].overflowing
    if not may_end and _is_visible("".join(sentence.words[last + 1 :])):
        raise UserError(
            f"sentence {row}: the tokens end before its word {sentence.words[last + 1]!r}: give "
            "text_of(sentence)"
        )
    return words


def _is_visible(text: str) -> bool:
    """Return whether tokenizers make tokens of a text: not of spaces and control characters only."""
    return any(character.isprintable() and character != " " for character in text)


def _located(row: int, sentence: ParsedSentence, text: str | None) -> tuple[str, list[int]]:
    """Find a sentence in a text.

    Returns:
        The text; the start of the sentence, and the end of each of its words.

    Raises:
        UserError: the sentence is not in the text, or several times.
    """
    if text is None:
        words = _spaced_words(sentence)
        return "".join(words), list(accumulate(map(len, words), initial=0))
    words = [word.replace("▁", " ") for word in sentence.words]
    if not words:
        return text, [0]
    starts = (match.start() for match in re.finditer(re.escape(words[0]), text))
    found = [slots for start in starts if (slots := _slots_of(words, text, start))]
    # Not in another word, unless the script has no spaces; and at the end rather than elsewhere.
    apart = [s for s in found if not any(map(str.isalnum, text[: s[0]][-1:] + text[s[-1] :][:1]))]
    found = apart or found
    if found and not text[found[-1][-1] :].strip():
        found = found[-1:]
    if len(found) != 1:
        raise UserError(
            f"sentence {row}: its text contains it {len(found)} times, and not once: expected the words "
            f"of {text_of(sentence)!r:.200}; or give the text up to the end of the sentence"
        )
    return text, found[0]


def _slots_of(words: Sequence[str], text: str, start: int) -> list[int]:
    """Return the start of words in a text and the end of each; empty if other words are between them."""
    slots = [start]
    for word in words:
        first = text.find(word, slots[-1])
        if first < 0 or any(map(str.isalnum, text[slots[-1] : first])):
            return []
        slots.append(first + len(word))
    return slots


def label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """Return the number of each label.

    Raises:
        UserError: the labels are a string, or one stands twice.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    if isinstance(labels, str) or len(numbers) < len(labels):
        raise UserError(
            f"labels={labels!r:.200}: expected a list in which each label stands once, such as "
            "['nsubj', 'obj']"
        )
    return numbers


def collate(
    tokenized: Any,
    parses: Sequence[Any],
    labels: Sequence[str] = (),
    source: str = "heads",
    only_prompts: bool = False,
    texts: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """Make a batch's words, heads and labels, or edges, for a model with relation biases.

    Args:
        tokenized: the output of a fast tokenizer: for the texts of parsed sentences (:func:`text_of`),
            for ``texts``, or for lists of words (``is_split_into_words=True``).
        parses: the parsed sentences, or what :func:`parsed` converts; or for each list of words, the
            0-based head of each word (a root is its own head) and the words' dependency labels, which
            may be empty without ``labels``; or with a graph, the edges of each list of words: 0-based
            head, dependent and label (:class:`~fairseq_phrase.syntax.sentence.Edge`).
        labels: the labels given to :func:`add_relation_bias`, in the same order:
            ``model.config.relation_bias["labels"]``.
        source: the source given to :func:`add_relation_bias`: ``"heads"``, or the name of a graph, which
            is in ``ParsedSentence.edges``.
        only_prompts: whether texts go on after their parse: a decoder's prompts with their ends, and with
            responses to train it.
        texts: the texts that were tokenized, if they have more than the sentences: instructions, or other
            spaces. A sentence must be in its text once, or at its end.

    Returns:
        ``src_words`` (shape (batch, tokens), -1 at tokens of no word, -2 after a prompt); and of trees
        ``src_heads`` (shape (batch, words), -1 at padding) and, with labels, ``src_deprels`` (shape
        (batch, words), 0 at padding); or of graphs ``src_edges`` (shape (batch, edges, 3): head,
        dependent and the label's number, -1 at padding), without edges of words that have no token. All
        are int64.

    Raises:
        UserError: the tokenizer does not return the tokens' words, a sentence has another number of
            words than its parse or is not in its text, it has no tree or graph, an edge has a wrong end,
            a label is unknown, labels are a string or stand twice, or there is another number of texts.
    """
    rows = _rows(tokenized, parses, labels, source, only_prompts, texts)
    try:
        # Rows without words would be floats.
        batch = {name: torch.tensor(values, dtype=torch.long) for name, values in rows.items()}
    except ValueError:
        raise UserError("collate: the rows have different lengths: tokenize with padding") from None
    if source != "heads":
        batch["src_edges"] = batch["src_edges"].view(len(rows["src_words"]), -1, 3)
    return batch


def _rows(
    tokenized: Any,
    parses: Sequence[Any],
    labels: Sequence[str],
    source: str,
    only_prompts: bool,
    texts: Sequence[str] | None,
) -> dict[str, list[Any]]:
    """Return the lists of :func:`collate`; ``src_words`` has no padding of its own."""
    sentences = _sentences_of_rows(tokenized, len(parses))
    if texts is not None and (isinstance(texts, str) or len(texts) != len(parses)):
        raise UserError(f"texts={texts!r:.200}: expected a list of {len(parses)} texts")
    parts = Counter(sentences)
    parses = [p if isinstance(p, tuple | list) else parsed(p) for p in parses]
    parses = [parses[sentence] for sentence in sentences]
    read: Callable[..., Any] = _heads_and_labels if source == "heads" else partial(_edges, source)
    structures: list[Any] = [read(row, parse) for row, parse in enumerate(parses)]
    try:
        words = [
            tokenized.word_ids(row) if isinstance(parse, Sequence)
            else _words_of_tokens(
                tokenized, row, parse, texts[sentence] if texts else None, only_prompts,
                may_end=parts[sentence] > 1,
            )
            for row, (sentence, parse) in enumerate(zip(sentences, parses, strict=True))
        ]  # fmt: skip
    except (AttributeError, ValueError):
        raise UserError(
            "the tokenizer does not know which word each token belongs to (word_ids): use a fast "
            "tokenizer"
        ) from None
    if only_prompts:
        pairs = zip(parses, structures, strict=True)
        lengths = [len(s[0] if isinstance(parse, Sequence) else parse.words) for parse, s in pairs]
        words = [_of_prompt(row, length) for row, length in zip(words, lengths, strict=True)]
    counts = [max((w for w in row if w is not None), default=-1) + 1 for row in words]
    numbers = label_numbers(labels)
    rows = {"src_words": [[-1 if word is None else word for word in row] for row in words]}
    rows |= (_tree_rows if source == "heads" else _edge_rows)(structures, counts, numbers)
    return rows


def _sentences_of_rows(tokenized: Any, count: int) -> list[int]:
    """Return the sentence of each row: a long one has several (``return_overflowing_tokens``).

    Args:
        count: number of parses.

    Raises:
        UserError: there are more or fewer parses than sentences.
    """
    rows = getattr(tokenized, "encodings", None) or range(count)
    parts = getattr(tokenized, "data", {}).get("overflow_to_sample_mapping", range(len(rows)))
    sentences = [int(sentence) for sentence in parts]
    if (length := max(sentences, default=-1) + 1) != count:
        raise UserError(f"expected one parse per sentence: {count} for {length} sentences")
    return sentences


def _heads_and_labels(
    row: int, parse: ParsedSentence | tuple[Sequence[int], Sequence[str]]
) -> tuple[Sequence[int], Sequence[str]]:
    if isinstance(parse, Sequence):
        if len(parse) == 2 and all(isinstance(part, Iterable) for part in parse):
            return parse
        raise UserError(
            f"sentence {row}: expected a parsed sentence, or a pair of lists, its words' heads and "
            f"labels, such as ([1, 1], ['nsubj', 'root']) or ([1, 1], []), got {parse!r:.80}"
        )
    tree = parse.tree if isinstance(parse, ParsedSentence) else None  # Unparsed, from a parser
    if tree is None:
        raise UserError(f"sentence {row} has no dependency tree")
    return tree.heads.tolist(), parse.deprels


def _edges(source: str, row: int, parse: ParsedSentence | Sequence[Edge]) -> Sequence[Edge]:
    if isinstance(parse, Sequence):
        return parse
    edges = parse.edges if isinstance(parse, ParsedSentence) else {}
    if source not in edges:
        raise UserError(
            f"sentence {row} has no graph {source!r}, but {', '.join(edges) or 'none'}: parse with a "
            "parser that makes it, or give lists of words and their edges"
        )
    return edges[source]


def _tree_rows(
    trees: Sequence[tuple[Sequence[int], Sequence[str]]],
    counts: Sequence[int],
    labels: dict[str, int],
) -> dict[str, list[Any]]:
    """Pad heads and labels.

    Args:
        counts: the number of each sentence's words that have tokens.
        labels: the number of each label.
    """
    width = max((len(heads) for heads, _ in trees), default=0)
    rows: dict[str, list[Any]] = {"src_heads": []} | ({"src_deprels": []} if labels else {})
    for row, (heads, names) in enumerate(trees):
        if counts[row] > len(heads) or (labels and len(names) != len(heads)):
            raise UserError(
                f"sentence {row}: {counts[row]} words have tokens, and the parse has {len(heads)} "
                f"heads and {len(names)} labels; if the text goes on after its parse, only_prompts=True"
            )
        fill = width - len(heads)
        rows["src_heads"].append([*heads, *[-1] * fill])
        if labels:
            rows["src_deprels"].append([*_numbers_of(row, names, labels), *[0] * fill])
    return rows


def _edge_rows(
    graphs: Sequence[Sequence[Edge]], counts: Sequence[int], labels: dict[str, int]
) -> dict[str, list[Any]]:
    """Pad edges; arguments as in :func:`_tree_rows`."""
    rows = []
    for row, (edges, count) in enumerate(zip(graphs, counts, strict=True)):
        try:
            edges_left = [edge for edge in edges if max(edge[:2]) < count]
            if any(min(edge[:2]) < 0 for edge in edges_left):
                raise UserError(f"sentence {row}: the words of edges are numbered from 0")
            names = [label for _, _, label in edges_left]
        except (TypeError, ValueError):
            raise UserError(
                f"sentence {row}: expected the head, the dependent and the label of each edge"
            ) from None
        numbers = _numbers_of(row, names, labels) if labels else [0] * len(edges_left)
        rows.append([[*edge[:2], number] for edge, number in zip(edges_left, numbers, strict=True)])
    width = max(map(len, rows), default=0)
    return {"src_edges": [[*edges, *[[-1] * 3] * (width - len(edges))] for edges in rows]}


def _numbers_of(row: int, names: Sequence[str], labels: dict[str, int]) -> list[int]:
    if unknown := set(names) - set(labels):
        raise UserError(f"sentence {row}: unknown labels {', '.join(sorted(unknown))}")
    return [labels[name] for name in names]


def parsing_tokenizer(
    tokenizer: Any, parser: Any, labels: Sequence[str] = (), source: str = "heads"
) -> Any:
    """Return a tokenizer whose batches have the parses of their texts, for transformers' pipelines.

        pipeline("text-classification", model, tokenizer=parsing_tokenizer(tokenizer, parser))

    Args:
        tokenizer: a fast tokenizer, which is copied.
        parser: a parser of lines, such as ``fairseq_phrase.parsers.load_parser("spacy:MODEL")``.
        labels, source: as in :func:`collate`.
    """
    label_numbers(labels)  # wrong labels are refused here, not at the first text

    class Parsing(type(tokenizer)):  # type: ignore[misc]
        def __call__(self, text: Any, *args: Any, **options: Any) -> Any:
            lines = [text] if isinstance(text, str) else list(text)
            if args or options.get("text_pair") or not all(isinstance(x, str) for x in lines):
                raise UserError(
                    "parsing_tokenizer: expected texts; pairs and words have no parse here"
                )
            parses = list(parser.parse(lines))
            encoded = super().__call__(text if isinstance(text, str) else lines, **options)
            if (kind := options.get("return_tensors")) is None:
                fields: dict[str, Any] = _rows(encoded, parses, labels, source, False, lines)
                if isinstance(text, str) and not options.get("return_overflowing_tokens"):
                    fields = {name: rows[0] for name, rows in fields.items()}
            else:
                fields = collate(encoded, parses, labels, source, texts=lines)
                if kind != "pt":
                    fields = {name: rows.numpy() for name, rows in fields.items()}
            encoded.update(fields)
            return encoded

        def __reduce__(self) -> tuple[Any, ...]:
            stock = _with_state_of(self, type(tokenizer))
            return parsing_tokenizer, (stock, parser, labels, source)

    take_name(Parsing, type(tokenizer))
    return _with_state_of(deepcopy(tokenizer), Parsing)


def _with_state_of(tokenizer: Any, kind: Any) -> Any:
    """Return a tokenizer of another class that shares the state of one."""
    other = kind.__new__(kind)
    vars(other).update(vars(tokenizer))
    return other
