"""Trees drawn with characters, for a terminal.

Each word has one row, and is last in it. So wide characters, emoji and right-to-left text, whose
width is unknown to programs, do not shift the rest of the row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_phrase.lab.inspection.parsed_text import ParsedText, printable
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import Edge

#: Sentences of more words than this are not drawn, because the trees would be unreadable.
MAX_WORDS = 1000
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES = {
    0: " ", _UP | _DOWN: "│", _LEFT | _RIGHT: "─",
    _DOWN | _RIGHT: "┌", _UP | _RIGHT: "└", _UP | _DOWN | _RIGHT: "├",
    _DOWN | _LEFT | _RIGHT: "┬", _UP | _LEFT | _RIGHT: "┴", _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip


def tree_text(sentence: ParsedText) -> str:
    """Draw a sentence's trees and graphs below its text.

    Returns:
        Several lines, the last without a line end.
    """
    blocks = [f"{sentence.summary}\n{printable(sentence.text)}"]
    if len(sentence.words) > MAX_WORDS:
        blocks.append(f"(trees of more than {MAX_WORDS} words are not drawn)")
    else:
        if sentence.heads is not None or sentence.constituents is None:
            blocks.append("\n".join(_word_rows(sentence)))
        if sentence.constituents is not None:
            blocks.append("\n".join(_constituent_rows(sentence, sentence.constituents)))
        for name, edges in sentence.graphs.items():
            blocks.append("\n".join([f"{FIELDS[name].meaning}:", *_graph_rows(sentence, edges)]))
    return "\n\n".join(block for block in blocks if block)


def _word_rows(sentence: ParsedText) -> list[str]:
    """Return a row for each word: its number, arcs, relation, tag, and the word."""
    count = len(sentence.words)
    columns = [[str(number) for number in range(count)]]
    if sentence.heads is not None:
        columns.append(arc_rows(sentence.heads))
    columns += [labels for labels in (sentence.deprels, sentence.tags) if labels]
    columns = [_aligned(column, right=not index) for index, column in enumerate(columns)]
    columns.append(_segmented_words(sentence))
    return ["  ".join(cells) for cells in zip(*columns, strict=True)]


def _graph_rows(sentence: ParsedText, edges: Sequence[Edge]) -> list[str]:
    """Return a row for each word: its number, the label and number of each of its heads, and the word."""
    heads: list[list[str]] = [[] for _ in sentence.words]
    for head, dependent, label in edges:
        heads[dependent].append(label if head == dependent else f"{label} ◂ {head}")
    numbers = _aligned([str(number) for number in range(len(heads))], right=True)
    columns = [
        numbers,
        _aligned([", ".join(heads_of_word) for heads_of_word in heads]),
        _segmented_words(sentence),
    ]
    return ["  ".join(cells) for cells in zip(*columns, strict=True)]


def _aligned(cells: Sequence[str], right: bool = False) -> list[str]:
    cells = [printable(cell) for cell in cells]
    width = max(map(len, cells), default=0)
    return [cell.rjust(width) if right else cell.ljust(width) for cell in cells]


def _segmented_words(sentence: ParsedText) -> list[str]:
    """Return each word, with its subwords if it has several."""
    segmented = map(sentence.segmented, range(len(sentence.words)))
    return [
        printable(word) + (f"  ({printable(subwords)})" if subwords else "")
        for word, subwords in zip(sentence.words, segmented, strict=True)
    ]


def arc_rows(heads: np.ndarray) -> list[str]:
    """Draw the arcs of a dependency tree, one row per word, all of the same length.

    Every head has a vertical bar that spans its dependents. A line goes from the bar to each dependent
    and ends in an arrow. The line to the head itself starts farther left and crosses the bar
    (``┬ ┼ ┴``). If a tree is not projective, a line may pass behind another head's bar (``─│─``).

    Args:
        heads: the head of each word; the root is its own head. Shape: ``(words,)``, word indices from 0.
    """
    count = len(heads)
    lowest, highest = list(range(count)), list(range(count))
    for word, head in enumerate(heads.tolist()):
        lowest[head], highest[head] = min(lowest[head], word), max(highest[head], word)
    bars = _bar_columns(heads.tolist(), lowest, highest)
    width = 2 * (max(bars.values(), default=-1) + 1)
    grid = np.zeros((count, width + 1), dtype=np.int64)
    for head, bar in bars.items():
        grid[lowest[head] : highest[head], 2 * bar] |= _DOWN
        grid[lowest[head] + 1 : highest[head] + 1, 2 * bar] |= _UP
    for word, head in enumerate(heads.tolist()):
        if head == word and word not in bars:
            continue  # a sentence of one word
        start = 2 * bars[head]
        grid[word, start] |= _RIGHT
        behind = grid[word, start + 1 :]
        own_bar = 2 * bars[word] - start - 1 if word in bars and word != head else None
        passed = behind == 0
        if own_bar is not None:
            passed[own_bar] = True
        behind[passed] |= _LEFT | _RIGHT
    rows = ["".join(_LINES[cell] for cell in row) for row in grid.tolist()]
    return [
        row + ("▸" if head != word else "─" if word in bars else " ")
        for word, (row, head) in enumerate(zip(rows, heads.tolist(), strict=True))
    ]


def _bar_columns(heads: list[int], lowest: list[int], highest: list[int]) -> dict[int, int]:
    """Find a column for the bar of each head: right of its own head's bar, without overlap."""
    dependents: list[list[int]] = [[] for _ in heads]
    order = []
    for word, head in enumerate(heads):
        if word == head:
            order.append(word)
        else:
            dependents[head].append(word)
    bars: dict[int, int] = {}
    columns: list[list[int]] = []  # by column, the heads whose bars are in it
    for word in order:  # grows during iteration: heads before their dependents
        order += dependents[word]
        if not dependents[word]:
            continue
        column = 0 if heads[word] == word else bars[heads[word]] + 1
        while column < len(columns) and any(
            lowest[word] <= highest[neighbor] and lowest[neighbor] <= highest[word]
            for neighbor in columns[column]
        ):
            column += 1
        columns += [[] for _ in range(column + 1 - len(columns))]
        columns[column].append(word)
        bars[word] = column
    return bars


def _constituent_rows(sentence: ParsedText, tree: ConstituencyTree) -> list[str]:
    """Draw the constituents as an indented tree; a word is next to its tag."""
    *children, tops = tree.children
    words = _segmented_words(sentence)
    rows = []
    # The nodes left to draw: each with the text before it and the text before its children.
    stack = [(node, "", "") for node in reversed(tops)]
    while stack:
        node, before, indent = stack.pop()
        labels = []
        while node >= 0:
            labels.append(printable(tree.labels[node]))
            if len(children[node]) > 1:
                break
            node = children[node][0]  # a constituent with one child shares a row with it
        if node < 0:
            word = -1 - node
            labels += [printable(sentence.tags[word])] if sentence.tags else []
            rows.append("  ".join([before + " ─ ".join(labels), words[word]]))
            continue
        rows.append(before + " ─ ".join(labels))
        last, *siblings = reversed(children[node])
        stack.append((last, f"{indent}└─ ", f"{indent}   "))
        stack += [(child, f"{indent}├─ ", f"{indent}│  ") for child in siblings]
    return rows
