"""Trees as SVG and HTML: constituents above a sentence's words, dependencies below them, then graphs.

spaCy's displaCy draws only dependencies, spaces all words by the longest one, and gives its pictures
random names. Here the same data always make the same file.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise, starmap
from pathlib import Path
from xml.sax.saxutils import escape

from fairseq_phrase.data.inspection.parsed_text import ParsedText, printable
from fairseq_phrase.data.store.outputs import write_atomically
from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.fields import FIELDS
from fairseq_phrase.syntax.sentence import Edge
from fairseq_phrase.visualization.terminal_trees import MAX_WORDS

_WORD_SIZE, _LABEL_SIZE = 15, 11
_MARGIN, _GAP, _NARROWEST = 16, 16, 44  # pixels, as all lengths here
_LEVEL, _ARC_LEVEL, _BEND, _TRUNK = 34, 22, 6, 5
_STYLE = f"""\
text {{ font-family: system-ui, sans-serif; text-anchor: middle; fill: #1c1e21 }}
.word {{ font-size: {_WORD_SIZE}px }}
.tag {{ font-size: {_LABEL_SIZE}px; fill: #667 }}
.subwords {{ font-size: {_LABEL_SIZE}px; fill: #99a }}
.constituent {{ font-size: {_LABEL_SIZE + 1}px; font-weight: 600; fill: #1a5e63 }}
.relation {{ font-size: {_LABEL_SIZE}px; fill: #8a3b12; stroke: #fff; stroke-width: 4px; \
paint-order: stroke }}
.title {{ font-size: {_LABEL_SIZE + 1}px; fill: #667; text-anchor: start }}
.branch {{ stroke: #7fb0b3; fill: none }}
.arc {{ stroke: #c98a66; fill: none; stroke-width: 1.2 }}
.arrow {{ fill: #c98a66 }}"""


@dataclass(frozen=True)
class Picture:
    """A drawing: its size in pixels, and SVG elements without the root element and the style."""

    width: int
    height: int
    body: str


def write_pictures(sentences: Sequence[ParsedText], path: Path) -> None:
    """Draw sentences into one self-contained file.

    Args:
        path: the file to write; its suffix, ``.svg`` or ``.html``, is the format.

    Raises:
        UserError: the file has another suffix.
    """
    formats = {".svg": svg_page, ".html": html_page, ".htm": html_page}
    if path.suffix.lower() not in formats:
        raise UserError(f"cannot draw '{path.name}': its suffix must be .svg or .html")
    page = formats[path.suffix.lower()](sentences)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())


def svg_page(sentences: Sequence[ParsedText]) -> str:
    """Draw sentences one below the other, each under a line with its file and line number."""
    top, width, parts = 0, 0, []
    for sentence in sentences:
        picture = picture_of(sentence)
        title = _text(_MARGIN, 18, sentence.summary, "title")
        parts.append(f'<g transform="translate(0 {top})">\n{title}\n{picture.body}</g>\n')
        top += picture.height
        width = max(width, picture.width, 2 * _MARGIN + _width(sentence.summary, _LABEL_SIZE + 1))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + _svg(width, top, "".join(parts))


def html_page(sentences: Sequence[ParsedText]) -> str:
    """Draw sentences on one page, each below its text."""
    parts = []
    for sentence in sentences:
        picture = picture_of(sentence)
        parts.append(
            f"<section>\n<h2>{_escaped(sentence.summary)}</h2>\n"
            f'<p dir="auto">{_escaped(sentence.text)}</p>\n<div class="picture">\n'
            f"{_svg(picture.width, picture.height, picture.body)}</div>\n</section>\n"
        )
    return f"""\
<!DOCTYPE html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fairseq-phrase-inspect</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem; color: #1c1e21; background: #fff }}
h2 {{ font-size: 0.9rem; font-weight: 600; color: #667; margin: 2.5rem 0 0 }}
p {{ font-size: 1.15rem; max-width: 60rem; margin: 0.4rem 0 }}
.picture {{ overflow-x: auto }}
</style>
</head>
<body>
{"".join(parts)}</body>
</html>
"""


def _svg(width: int, height: int, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">\n<style>\n{_STYLE}\n</style>\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{body}</svg>\n'
    )


def picture_of(sentence: ParsedText) -> Picture:
    """Draw one sentence; right to left if most of its letters are."""
    if len(sentence.words) > MAX_WORDS:
        note = f"(trees of more than {MAX_WORDS} words are not drawn)"
        return Picture(420, 70, _text(_MARGIN, 50, note, "title") + "\n")
    centres, width = _word_centres(sentence)
    elements: list[str] = []
    top = 44
    if sentence.constituents is not None:
        levels, branches = _constituents(sentence.constituents, centres, top)
        elements += branches
        top += levels * _LEVEL
    for centre, word in zip(centres, sentence.words, strict=True):
        elements.append(_text(centre, top, word, "word"))
    top += 15
    for centre, tag in zip(centres, sentence.tags, strict=False):
        elements.append(_text(centre, top, tag, "tag"))
    # The tag of a word of several subwords is a constituent over them, and is drawn above them.
    segmented = list(map(sentence.segmented, range(len(centres))))
    if sentence.tags and any(segmented):
        top += 13
    for centre, subwords in zip(centres, segmented, strict=True):
        if subwords:
            elements.append(_text(centre, top, subwords, "subwords"))
    top += 7
    if sentence.heads is not None:
        depth, arcs = _arcs(_tree_edges(sentence), centres, top)
        elements += arcs
        top += depth
    for name, edges in sentence.graphs.items():
        elements.append(_text(_MARGIN, top + 24, FIELDS[name].meaning, "title"))
        top += 48
        for centre, word in zip(centres, sentence.words, strict=True):
            elements.append(_text(centre, top, word, "word"))
        depth, arcs = _arcs(edges, centres, top + 9)
        elements += arcs
        top += depth + 9
    return Picture(width, top + _MARGIN, "".join(f"{element}\n" for element in elements))


def _tree_edges(sentence: ParsedText) -> list[Edge]:
    """Return the edges of a dependency tree; none without one."""
    if sentence.heads is None:
        return []
    relations = sentence.deprels or [""] * len(sentence.words)
    tree = zip(sentence.heads.tolist(), range(len(sentence.words)), relations, strict=True)
    return [*starmap(Edge, tree)]


def _word_centres(sentence: ParsedText) -> tuple[list[int], int]:
    """Find the middle of each word, and the width of the whole.

    The label of an arc between two neighbors fits between its ends.
    """
    edges = [*_tree_edges(sentence), *chain.from_iterable(sentence.graphs.values())]
    widths = []
    for index, word in enumerate(sentence.words):
        below = [sentence.segmented(index), *sentence.tags[index : index + 1]]
        below += [edge.label for edge in edges if edge.head == edge.dependent == index]
        needed = [_width(word, _WORD_SIZE), *(_width(label, _LABEL_SIZE) for label in below)]
        widths.append(max(_NARROWEST, *needed) + _GAP)
    gaps = [(left + right) // 2 for left, right in pairwise(widths)]
    for edge in edges:
        if abs(edge.head - edge.dependent) == 1:
            before = min(edge.head, edge.dependent)
            gaps[before] = max(gaps[before], _width(edge.label, _LABEL_SIZE) + _TRUNK + 2 * _BEND)
    if not widths:
        return [], 2 * _MARGIN
    centres = [*accumulate(gaps, initial=_MARGIN + widths[0] // 2)]
    width = centres[-1] + widths[-1] // 2 + _MARGIN
    kinds = Counter(map(unicodedata.bidirectional, sentence.text))
    if kinds["R"] + kinds["AL"] > kinds["L"]:  # right to left
        centres = [width - centre for centre in centres]
    return centres, width


def _width(text: str, size: int) -> int:
    """Estimate a text's width, with a tendency to overestimate."""
    ems = 0.0
    for character in printable(text):
        if unicodedata.east_asian_width(character) in "WF":
            ems += 1.1
        elif unicodedata.category(character) != "Mn":
            ems += 0.75 if character.isupper() or character in "mwMW%@" else 0.6
    return round(ems * size)


def _constituents(tree: ConstituencyTree, centres: list[int], top: int) -> tuple[int, list[str]]:
    """Draw the branches and labels of a tree; return the number of levels, and the elements."""
    children = tree.children[:-1]
    heights: list[int] = []
    middles: list[float] = []

    def centre(child: int) -> tuple[float, int]:
        return (centres[-1 - child], 0) if child < 0 else (middles[child], heights[child])

    for below in children:  # children come before their parents
        xs, levels = zip(*map(centre, below), strict=True)
        middles.append((xs[0] + xs[-1]) / 2)
        heights.append(1 + max(levels))
    highest = max(heights, default=0)

    def baseline(height: int) -> int:
        return top + (highest - height) * _LEVEL

    elements = []
    for node, below in enumerate(children):
        # At right angles: slanted branches of long constituents would cross short ones.
        bar = baseline(heights[node]) + 6
        xs, levels = zip(*map(centre, below), strict=True)
        drops = "".join(
            f"M{x:g} {bar} V{baseline(height) - _WORD_SIZE + 1} "
            for x, height in zip(xs, levels, strict=True)
        )
        elements.append(f'<path class="branch" d="{drops}M{xs[0]:g} {bar} H{xs[-1]:g}"/>')
    for node, label in enumerate(tree.labels):
        elements.append(_text(middles[node], baseline(heights[node]), label, "constituent"))
    return highest, elements


def arc_levels(edges: Sequence[Edge]) -> list[int]:
    """Compute the distance of each arc from the words, without overlaps of arcs.

    Returns:
        For each edge a level from 1; a root's level is below all others.
    """
    ends = [sorted(edge[:2]) for edge in edges]
    used = [0] * (
        1 + max((high for _, high in ends), default=0)
    )  # the outermost arc after each word
    levels = [0] * len(edges)
    for index in sorted(range(len(edges)), key=lambda index: ends[index][1] - ends[index][0]):
        low, high = ends[index]
        if low < high:  # shorter arcs are inside
            levels[index] = 1 + max(used[low:high])
            used[low:high] = [levels[index]] * (high - low)
    deepest = max(levels, default=0) + 1
    return [level or deepest for level in levels]


def _arcs(edges: Sequence[Edge], centres: list[int], top: int) -> tuple[int, list[str]]:
    """Draw arcs from each head to its dependents below the words; return their height and elements."""
    levels = arc_levels(edges)
    lines, labels = [], []
    for (head, word, relation), level in zip(edges, levels, strict=True):
        x, depth = centres[word], top + _ARC_LEVEL * level + 4
        if word == head:
            lines.append(f'<path class="arc" d="M{x} {depth} V{top + 6}"/>')
            labels.append(_text(x, depth + 4, relation, "relation"))
        else:
            towards = 1 if centres[head] < x else -1
            start, bend = centres[head] + towards * _TRUNK, towards * _BEND
            lines.append(
                f'<path class="arc" d="M{start} {top} V{depth - _BEND} Q{start} {depth} '
                f'{start + bend} {depth} H{x - bend} Q{x} {depth} {x} {depth - _BEND} V{top + 6}"/>'
            )
            labels.append(_text((start + x) / 2, depth + 4, relation, "relation"))
        lines.append(f'<path class="arrow" d="M{x} {top} l-3.5 8 h7 z"/>')
    return _ARC_LEVEL * max(levels) + 12 if edges else 0, lines + labels


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    return escape(printable(text), {'"': "&quot;"})
