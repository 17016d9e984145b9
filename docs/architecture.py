"""Draw docs/architecture.png: a sentence's way from a raw line to the decoder.

python docs/architecture.py
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch

WIDTH, HEIGHT = 3.7, 0.92  # of a box
LINE = "#444444"
COLUMNS = {"corpus": 0.0, "batch": 4.7, "line": 9.4}
# One colour per package; fairseq's own parts are grey.
COLOURS = {
    "parsers/": "#cfe8cf",
    "syntax/": "#f7e3b5",
    "data/subwords/": "#f3cdb8",
    "data/store/": "#d9d2ec",
    "data/batches/": "#c9def2",
    "tasks/": "#bfe3e0",
    "methods/": "#f2c9d6",
    "fairseq": "#e4e4e4",
}
#: Column, row, package, what it is, the example in it.
BOXES = {
    "text": ("corpus", 0, "", "a line of the corpus", "Ein Hund läuft"),
    "parser": ("corpus", 1, "parsers/", "parser", "text → ParsedSentence"),
    "words": ("corpus", 2, "syntax/", "words and tree", "Ein Hund läuft    heads 1 2 2"),
    "subwords": ("corpus", 3, "data/subwords/", "to subwords", "▁Ein ▁Hund ▁lä uft    words 0 1 2 2"),
    "bin": ("corpus", 4, "fairseq", "binarized text", "train.de-en.de.bin   dict.de.txt"),
    "store": ("corpus", 5, "data/store/", "parse on disk", "*.words  *.heads  …  syntax.de.json"),
    "dataset": ("batch", 0, "data/batches/", "SyntaxDataset", "a sample of fairseq and its parse"),
    "collater": ("batch", 1, "data/batches/", "collater", "net_input: src_tokens  src_words …"),
    "parse": ("batch", 2, "methods/", "ParseBatch", "checked: parse['words'], parse['heads']"),
    "structure": ("batch", 3, "methods/", "encoder.structure", "once a batch: phrases, a tree, …"),
    "layers": ("batch", 4, "methods/", "first states, layers", "attention over the structure"),
    "decoder": ("batch", 5, "fairseq", "decoder", "translation"),
    "raw": ("line", 0, "", "a raw line at inference", "Ein Hund bellt"),
    "source": ("line", 1, "data/subwords/", "TextEncoder", "parser and subwords of the manifest"),
    "tokens": ("line", 2, "syntax/", "EncodedSentence", "subwords, their words, a tree"),
    "step": ("line", 3, "data/batches/", "SourceBatcher", "net_input: src_tokens  src_words …"),
}  # fmt: skip
TITLES = {
    "corpus": "once: fairseq-phrase-preprocess",
    "batch": "each batch: fairseq-train, -generate",
    "line": "new text: fairseq-phrase-translate",
}
_STEP = 1.35  # from one row to the next


def corner(name: str) -> tuple[float, float]:
    """The lower left corner of a box."""
    column, row, *_ = BOXES[name]
    return COLUMNS[column], -row * _STEP


def draw_box(axes: plt.Axes, name: str) -> None:
    """Draw a box: its room, what it is and an example."""
    _, _, room, title, example = BOXES[name]
    left, bottom = corner(name)
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom),
            WIDTH,
            HEIGHT,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=COLOURS.get(room, "white"),
            edgecolor=LINE,
            linewidth=1.0,
        )
    )
    axes.text(left + 0.15, bottom + 0.6, title, fontsize=11, weight="bold", va="center")
    axes.text(
        left + WIDTH - 0.15, bottom + 0.6, room, fontsize=9, style="italic", ha="right", va="center"
    )
    axes.text(left + 0.15, bottom + 0.25, example, fontsize=8.5, va="center", color="#333333")


def arrow(axes: plt.Axes, *points: tuple[float, float]) -> None:
    """Draw an arrow through points."""
    across, up = zip(*points[:-1], strict=True)
    axes.plot(across, up, color=LINE, linewidth=1.2, solid_joinstyle="miter")
    style = {"arrowstyle": "-|>", "color": LINE, "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", points[-1], points[-2], arrowprops=style)


def edge(name: str, side: str) -> tuple[float, float]:
    """The middle of a box's edge: top, bottom, left or right."""
    left, bottom = corner(name)
    along, up = {"top": (0.5, 1), "bottom": (0.5, 0), "left": (0, 0.5), "right": (1, 0.5)}[side]
    return left + along * WIDTH, bottom + up * HEIGHT


def arrow_around(
    axes: plt.Axes, start: tuple[float, float], end: tuple[float, float], at: float
) -> None:
    """Draw an arrow that goes across to a place, then up or down, then across."""
    arrow(axes, start, (at, start[1]), (at, end[1]), end)


def main() -> None:
    """Write the picture beside this script."""
    figure, axes = plt.subplots(figsize=(13.4, 8.4))
    for name in BOXES:
        draw_box(axes, name)
    for column in COLUMNS:
        names = [name for name in BOXES if BOXES[name][0] == column]
        for upper, lower in pairwise(names):
            # The text and its parse are both made of the subwords.
            if (upper, lower) != ("bin", "store"):
                arrow(axes, edge(upper, "bottom"), edge(lower, "top"))
        axes.text(COLUMNS[column], 1.35, TITLES[column], fontsize=12, va="center")
    beside = COLUMNS["corpus"] - 0.3
    arrow_around(axes, edge("subwords", "left"), edge("store", "left"), beside)
    for origin in ("bin", "store"):
        arrow_around(axes, edge(origin, "right"), edge("dataset", "left"), COLUMNS["batch"] - 0.5)
    # Raw lines join the way of a batch where parses become tensors.
    between = COLUMNS["line"] - 0.5
    arrow_around(axes, edge("step", "left"), edge("collater", "right"), between)
    axes.set_xlim(-0.6, COLUMNS["line"] + WIDTH + 0.1)
    axes.set_ylim(-5 * _STEP - 0.2, 1.7)
    axes.axis("off")
    # No date and no version of matplotlib in the file: the same drawing is the same bytes.
    figure.savefig(
        Path(__file__).with_suffix(".png"),
        dpi=110,
        bbox_inches="tight",
        metadata={"Software": None},
    )


if __name__ == "__main__":
    main()
