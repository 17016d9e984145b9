"""Write the texts of two parallel treebanks beside their trees.

    python scripts/parallel_trees.py DIR en tr OUT [--pairs N]

DIR/train.en.conllu and DIR/train.tr.conllu, also compressed (.gz), have the same sentences in one order;
likewise valid and test. OUT/train.en and OUT/train.tr get a sentence's text (``# text``) per line,
OUT/train.en.conllu and OUT/train.tr.conllu its tree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import find_text, read_lines


def read_sentences(path: Path) -> list[tuple[str, str]]:
    """Read the text and the lines of each tree.

    Raises:
        UserError: a tree lacks its text.
    """
    sentences: list[tuple[str, str]] = []
    lines: list[str] = []
    for number, line in enumerate([*read_lines(path), ""], start=1):
        if line.strip():
            lines.append(line)
        elif lines:
            text = [line.partition("=")[2].strip() for line in lines if line.startswith("# text =")]
            if len(text) != 1:
                raise UserError(
                    f"{location(path, number - len(lines))}: a tree without a line '# text = …'"
                )
            sentences.append((text[0], "\n".join(lines)))
            lines = []
    return sentences


def write(sentences: Sequence[tuple[str, str]], out: Path) -> None:
    """Write texts and trees; a file exists only if it is complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for path, blocks in (
        (Path(f"{out}.conllu"), [f"{tree}\n\n" for _, tree in sentences]),
        (out, [f"{text}\n" for text, _ in sentences]),
    ):
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text("".join(blocks), encoding="utf-8")
        partial.rename(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, and write both sides."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="of the trees, train.LANGUAGE.conllu and so on")
    parser.add_argument("languages", nargs=2, metavar="LANGUAGE")
    parser.add_argument("out", type=Path, help="the folder to write to")
    parser.add_argument("--pairs", type=int, help="the first N training pairs only")
    args = parser.parse_args(arguments)
    for split in ("train", "valid", "test"):
        files = [
            find_text(args.folder / split, f"{language}.conllu") for language in args.languages
        ]
        sides = [read_sentences(path) for path in files]
        if len(sides[0]) != len(sides[1]):
            raise UserError(
                f"{files[0]} has {len(sides[0])} trees, and {files[1]} has {len(sides[1])}: expected the "
                "same sentences in the same order"
            )
        for language, sentences in zip(args.languages, sides, strict=True):
            pairs = islice(sentences, args.pairs if split == "train" else None)
            write([*pairs], args.out / f"{split}.{language}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
