"""Accuracy of tags by whether a word has its most frequent tag of training: what needs context.

    python scripts/by_frequent_tag.py RUNS/rows --train RUNS/raw/text/train --test RUNS/raw/text/test

The first line of the table tags each word with its most frequent tag, and an unseen word with the most
frequent tag of all. The other lines have each row's mean and standard deviation over its seeds, from the
labels-test.txt that keep_results.py keeps.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import markdown_table, read_lines

GROUPS = ("all words", "most frequent tag", "another tag", "unseen")


def words_of(lines: Sequence[str]) -> list[str]:
    """Return the words of all lines."""
    return [word for line in lines for word in line.split()]


def frequent_tags(
    words: Sequence[str], tags: Sequence[str], test: Sequence[str]
) -> tuple[list[str], NDArray[np.bool_]]:
    """Return the most frequent tag of each test word, and whether training has the word.

    >>> frequent_tags("a b a b b".split(), "X Y X X Y".split(), ["a", "b", "c"])[0]
    ['X', 'Y', 'X']
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for word, tag in zip(words, tags, strict=True):
        counts[word][tag] += 1
    (most, _), *_ = Counter(tags).most_common(1)
    best = {word: of_word.most_common(1)[0][0] for word, of_word in counts.items()}
    return [best.get(word, most) for word in test], np.array([word in best for word in test])


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="the folder of rows with runs")
    parser.add_argument("--train", required=True, help="training text, without .en and .tag")
    parser.add_argument("--test", required=True, help="test text, without .en and .tag")
    args = parser.parse_args(arguments)
    try:
        train, train_tags, test, tags = (
            words_of(list(read_lines(Path(f"{prefix}.{ending}"))))
            for prefix in (args.train, args.test)
            for ending in ("en", "tag")
        )
        best, is_seen = frequent_tags(train, train_tags, test)
        right = np.array(tags)
        is_best = np.array(best) == right
        groups = (np.ones_like(is_seen), is_seen & is_best, is_seen & ~is_best, ~is_seen)
        lines = [
            ["most frequent tag", "-", *(f"{100 * is_best[group].mean():.1f}" for group in groups)]
        ]
        for row in sorted(path for path in args.runs.iterdir() if path.is_dir()):
            scores = []
            for path in sorted(row.glob("seed*/labels-test.txt")):
                output = np.array(words_of(list(read_lines(path))))
                if len(output) != len(right):
                    raise UserError(
                        f"{path} has {len(output)} labels, {args.test}.tag {len(right)}"
                    )
                scores.append([100 * (output == right)[group].mean() for group in groups])
            if scores:
                lines.append([row.name, str(len(scores)), *map(_mean, zip(*scores, strict=True))])
    except UserError as error:
        sys.exit(f"error: {error}")
    headings = [f"{name} ({group.sum():,})" for name, group in zip(GROUPS, groups, strict=True)]
    print(markdown_table(["row", "seeds", *headings], lines))


def _mean(values: Sequence[float]) -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
