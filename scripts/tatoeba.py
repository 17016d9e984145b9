"""Split Tatoeba's German-English pairs into train, valid and test.

    python scripts/tatoeba.py PAIRS.tsv.gz OUT [--train N] [--held-out N] [--valid N]

PAIRS has one pair per line: English, tab, German. English sentences have many translations, and German
ones too. A hash of the English sentence determines the split: all its translations are in one split. A
held-out German sentence is not in another split either: its pairs are left out of training, and of
validation if it is in the test set. Sentences are compared without case, punctuation at the ends and
extra spaces. The hash also determines the order of the pairs.

Writes OUT/{train,valid,test}.{en,de}. Held-out splits have each English sentence once.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import unicodedata
from pathlib import Path

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import read_lines

Pair = tuple[str, str]
_PARTS = 1000  # splits are fractions of this number


def normal(sentence: str) -> str:
    """Return the form of a sentence that is compared with others."""
    return " ".join(unicodedata.normalize("NFKC", sentence).casefold().split()).strip(" .!?…\"'„“”")


def drawn(sentence: str) -> int:
    """Return the hash of a sentence as a number."""
    digest = hashlib.blake2b(normal(sentence).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def read_pairs(path: Path) -> list[Pair]:
    """Read pairs of English and German.

    Raises:
        UserError: a line is not a pair.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) < 2 or not all(column.strip() for column in columns[:2]):
            raise UserError(f"{location(path, number)}: expected English, tab, German")
        pairs.append((columns[0].strip(), columns[1].strip()))
    return pairs


def split(
    pairs: list[Pair], train: int | None, held_out: int, valid: int | None = None
) -> dict[str, list[Pair]]:
    """Split pairs into splits that share no sentence.

    Args:
        pairs: English and German.
        train: the number of pairs to train on, at most; None for all.
        held_out: the number of pairs to validate and to test on, at most; each at most a tenth of the
            pairs.
        valid: the number of pairs to validate on, if it is another.
    """
    ordered = sorted(pairs, key=lambda pair: (drawn(pair[0]), drawn(pair[1])))
    share = min(_PARTS // 10, max(1, 2 * _PARTS * held_out // max(1, len(pairs))))
    parts: dict[str, list[Pair]] = {"test": [], "valid": [], "train": []}
    for pair in ordered:
        # The lowest digits, because the highest determine the order.
        part = drawn(pair[0]) % _PARTS
        name = "test" if part < share else "valid" if part < 2 * share else "train"
        parts[name].append(pair)
    splits, used = {}, set()
    for name, limit in (("test", held_out), ("valid", valid or held_out), ("train", train)):
        free = [pair for pair in parts[name] if normal(pair[1]) not in used]
        if name != "train":
            free = list({normal(pair[0]): pair for pair in reversed(free)}.values())[::-1]
        splits[name] = free[:limit]
        used |= {normal(pair[1]) for pair in splits[name]}
    return splits


def main() -> None:
    """Split the pairs named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, metavar="N", help="pairs to train on (all)")
    parser.add_argument("--held-out", type=int, default=1000, metavar="N", help="of each (1000)")
    parser.add_argument(
        "--valid", type=int, metavar="N", help="pairs to validate on (as --held-out)"
    )
    args = parser.parse_args()
    try:
        splits = split(read_pairs(args.pairs), args.train, args.held_out, args.valid)
    except UserError as error:
        sys.exit(str(error))
    args.out.mkdir(parents=True, exist_ok=True)
    for name, pairs in splits.items():
        for side, language in enumerate(("en", "de")):
            text = "".join(f"{pair[side]}\n" for pair in pairs)
            (args.out / f"{name}.{language}").write_text(text, encoding="utf-8")
        print(f"{name}: {len(pairs)} pairs")


if __name__ == "__main__":
    main()
