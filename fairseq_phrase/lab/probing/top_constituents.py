"""The probing task top constituents, made from constituency trees.

Source: Conneau et al. (2018), section 2: the label of a sentence is the sequence of constituents directly
below its sentence node. Rare sequences have the label ``OTHER``.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_phrase.errors import UserError, location, named_in_errors
from fairseq_phrase.lab.probing.task_files import Example
from fairseq_phrase.parsers import LineParser, Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.brackets import NO_TAG, parse_brackets, tree_blocks, unescaped
from fairseq_phrase.syntax.constituency import ROOT_LABEL, ConstituencyTree
from fairseq_phrase.text import read_lines

OTHER = "OTHER"
#: The number of most frequent sequences that are labels.
FREQUENT = 20
_WRAPPERS = {ROOT_LABEL, "TOP"}
_BATCH = 1000
#: The label of sentences' nodes; ``any`` for any.
ANY = "any"


def top_sequence(tree: ConstituencyTree, tags: Sequence[str], sentence_label: str) -> str | None:
    """Join the labels of the constituents and words directly below the sentence's node.

    Args:
        tree: a sentence's tree, with unary chains.
        tags: the parts of speech of its words.
        sentence_label: the label that the sentence's node must have, or :data:`ANY`.

    Returns:
        The labels, such as ``NP_VP_.``; None if the tree lacks such a node over the whole sentence.

    Examples:
        >>> tree = ConstituencyTree([(0, 1), (1, 2), (0, 3)], ["NP", "VP", "S"], 3)
        >>> top_sequence(tree, ["PRP", "VBZ", "."], "S")
        'NP_VP_.'
    """
    covers_sentence = (tree.spans == [0, tree.num_words]).all(1)
    below = (
        node
        for node in reversed(range(len(tree)))
        if covers_sentence[node] and tree.labels[node] not in _WRAPPERS
    )
    top = next(below, None)
    if top is None or sentence_label not in (ANY, tree.labels[top]):
        return None
    return "_".join(
        tree.labels[node] if node >= 0 else tags[-1 - node] if tags else NO_TAG
        for node in tree.children[top]
    )


def from_bracket_files(paths: Iterable[Path], sentence_label: str) -> Iterator[Example]:
    """Read bracketed trees, and yield their sentences with their sequences as labels.

    A tree may have several lines, as in the Penn Treebank's files.

    Raises:
        UserError: a tree is not well-formed.
    """
    for path in paths:
        for number, text in tree_blocks(read_lines(path)):
            try:
                sentence = parse_brackets(text)
            except ValueError as error:
                raise UserError(f"{location(path, number)}: {error}") from None
            label = top_sequence(sentence.tree, sentence.tags, sentence_label)
            if label is not None:
                yield Example(" ".join(map(unescaped, sentence.words)), label)


def from_parsed_files(
    paths: Iterable[Path], options: ParsingOptions, sentence_label: str
) -> Iterator[Example]:
    """Parse text, one sentence per line, and yield its sentences with their sequences as labels.

    Raises:
        UserError: the parser does not make constituents from raw text.
    """
    pipeline = ParsingPipeline(options)
    if not isinstance(pipeline.parser, LineParser) or "spans" not in pipeline.fields:
        raise UserError(
            f"--parser {options.parser} makes no constituents of raw text: use stanza:LANG, or a "
            "dependency parser with --constituents from-dependencies"
        )
    for path in paths:
        lines = list(dict.fromkeys(line.strip() for line in read_lines(path)))
        for start in range(0, len(lines), _BATCH):
            batch = lines[start : start + _BATCH]
            for line, parse in zip(batch, pipeline.parse(batch), strict=True):
                if isinstance(parse, Unparsed) or parse.constituents is None:
                    continue
                label = top_sequence(parse.constituents, parse.tags, sentence_label)
                if label is not None:
                    yield Example(line, label)


def write_task(examples: Iterable[Example], path: Path, *, seed: int = 1) -> Counter[str]:
    """Write the task in SentEval's format: eight tenths training, a tenth validation, a tenth test.

    Args:
        examples: sentences with their sequences as labels. A repeated sentence is used once.

    Returns:
        How often each label is in the file.

    Raises:
        UserError: there are fewer than ten sentences.
    """
    unique = list({example.text: example for example in examples}.values())
    if len(unique) < 10:
        raise UserError(
            f"only {len(unique)} sentences have a node with the right label above all words: expected "
            "10 or more; --sentence-label any takes every label"
        )
    counts = Counter(example.label for example in unique)
    frequent = {label for label, _ in counts.most_common(FREQUENT)}
    random.Random(seed).shuffle(unique)
    tenth = len(unique) // 10
    splits = ["va"] * tenth + ["te"] * tenth + ["tr"] * (len(unique) - 2 * tenth)
    path.parent.mkdir(parents=True, exist_ok=True)
    written: Counter[str] = Counter()
    with named_in_errors(path), path.open("w", encoding="utf-8") as stream:
        for split, example in zip(splits, unique, strict=True):
            label = example.label if example.label in frequent else OTHER
            written[label] += 1
            print(split, label, example.text, sep="\t", file=stream)
    return written
