"""Make parallel text of error corrections in M2: sentences in PREF.src, the corrected ones in PREF.tgt.

A sentence without edits of the annotator stays as it is. Of alternative corrections (a||b) the first is
used.

python scripts/m2.py FILE.m2 PREF [--annotator N]
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import read_lines

Edit = tuple[int, int, list[str]]  # first token, one past the last, their correction


def sentences(path: Path, annotator: int) -> Iterator[tuple[list[str], list[Edit]]]:
    """Yield the tokens of each sentence, and an annotator's edits.

    Raises:
        UserError: a line is neither a sentence (S), an edit (A) of it, nor empty.
    """
    tokens: list[str] | None = None
    edits: list[Edit] = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.startswith("S ") or line == "S":
            if tokens is not None:
                yield tokens, edits
            tokens, edits = line.split()[1:], []
        elif line.startswith("A "):
            fields = line.removeprefix("A ").split("|||")
            try:
                start, end = map(int, fields[0].split())
                edit_annotator, words = int(fields[-1]), fields[2].split("||")[0].split()
            except (IndexError, ValueError):
                raise UserError(
                    f"{location(path, number)}: expected A START END|||TYPE|||CORRECTION|||…"
                ) from None
            if tokens is None or end > len(tokens):
                raise UserError(f"{location(path, number)}: the edit is not within a sentence")
            if edit_annotator == annotator and start >= 0:  # noop has -1
                edits.append((start, end, [word for word in words if word != "-NONE-"]))
        elif line.strip():
            raise UserError(f"{location(path, number)}: expected a line that begins with S or A")
    if tokens is not None:
        yield tokens, edits


def corrected(tokens: list[str], edits: list[Edit]) -> list[str]:
    """Apply the edits from the last to the first, which keeps the indices of earlier edits valid."""
    words = list(tokens)
    ordered = sorted(edits, key=lambda edit: edit[:2])
    for start, end, correction in reversed(ordered):
        words[start:end] = correction
    return words


def main(argv: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="M2, .gz too")
    parser.add_argument("prefix", type=Path)
    parser.add_argument("--annotator", type=int, default=0, metavar="N", help="whose edits (0)")
    args = parser.parse_args(argv)
    try:
        annotated = list(sentences(args.file, args.annotator))
    except UserError as error:
        sys.exit(f"error: {error}")
    pairs = [(tokens, corrected(tokens, edits)) for tokens, edits in annotated]
    args.prefix.parent.mkdir(parents=True, exist_ok=True)
    for suffix, side in (("src", 0), ("tgt", 1)):
        text = "".join(" ".join(pair[side]) + "\n" for pair in pairs)
        Path(f"{args.prefix}.{suffix}").write_text(text, encoding="utf-8")
    changed = sum(source != target for source, target in pairs)
    print(f"{args.prefix}.src, .tgt: {len(pairs):,} sentences, {changed:,} of them corrected")


if __name__ == "__main__":
    main()
