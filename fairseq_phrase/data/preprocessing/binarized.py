"""Compare text that fairseq binarized with its expected original text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fairseq.data import Dictionary
from tqdm import tqdm

from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.errors import UserError, at
from fairseq_phrase.text import read_lines


def splits_of_data(directory: Path, pair: str, language: str) -> set[str]:
    """Return the splits of a data directory, ``train``, ``valid``, ``test``, ``test1``….

    Args:
        pair: the language pair as fairseq writes it, ``de-en``.
        language: the language whose text must exist.
    """
    end = f".{pair}.{language}.idx"
    return {path.name.removesuffix(end) for path in directory.glob(f"*{end}")}


def subwords_of_lines(text: Path) -> Iterator[list[str]]:
    """Read the subwords of each line, as fairseq does: separated by white space of any kind."""
    return map(str.split, read_lines(text))


def check_binarized(text: Path, prefix: Path, dictionary: Dictionary) -> int:
    """Check that a text is the binarized one; return the number of its lines.

    Args:
        prefix: the binarized text, without ``.bin`` and ``.idx``.

    Raises:
        UserError: they differ (the message names the first line that differs, the expected subword and
            the one found), a subword is one of fairseq's special tokens, or a file is missing or
            damaged.
    """
    binarized = IndexedReader(prefix)
    number_of, unknown, end = dictionary.indices.get, dictionary.unk(), dictionary.eos()
    special = {dictionary.bos(), dictionary.pad(), end}
    lines = 0
    for pieces in tqdm(
        subwords_of_lines(text), f"checking {prefix.name}", len(binarized), unit="line"
    ):
        if lines == len(binarized):
            where = at(text, lines + 1)
            raise _misfit(
                text, prefix, f"{where}: {prefix}.bin ends before this line, after {lines}"
            )
        expected = binarized[lines].tolist()
        lines += 1
        found = [number_of(piece, unknown) for piece in pieces]
        found.append(end)
        if found != expected:
            difference = _first_difference(pieces, found, expected, dictionary)
            raise _misfit(text, prefix, f"{at(text, lines)}: {difference} in {prefix}.bin")
        if not special.isdisjoint(found[:-1]):
            index = next(index for index, number in enumerate(found) if number in special)
            raise UserError(
                f"{at(text, lines)}: subword {index + 1} is '{pieces[index]}', which fairseq reads as "
                "the start, the end or the padding of a sentence, so it cannot have a word: expected "
                "text without <s>, </s> and <pad>. Write it otherwise, binarize the text again, then "
                "attach"
            )
    if lines < len(binarized):
        counts = f"{text} has {lines} lines, and {prefix}.bin has {len(binarized)}"
        raise _misfit(text, prefix, counts)
    return lines


def _misfit(text: Path, prefix: Path, difference: str) -> UserError:
    """Make the error for a difference or a carriage return, which ends a sentence in fairseq."""
    for number, line in enumerate(read_lines(text), start=1):
        if "\r" in line:
            paths = sorted(prefix.parent.glob(f"{prefix.stem}.*.idx"))
            names = [path.stem for path in paths if path.name.count(".") == 3]  # without parses
            counts = (
                f"{name}.bin has {len(IndexedReader(prefix.parent / name))}" for name in names
            )
            return UserError(
                f"{at(text, number)}: a carriage return within the line, which ends a sentence in "
                f"fairseq ({', '.join(counts)} sentences): remove it, binarize the text again, then "
                "attach"
            )
    return UserError(f"{difference}; expected the very text that was binarized, and its dictionary")


def _first_difference(
    pieces: list[str], found: list[int], expected: list[int], dictionary: Dictionary
) -> str:
    """Describe the first difference between a line and its binarized text."""
    pairs = enumerate(zip(found, expected, strict=False))
    differing = (index for index, (here, there) in pairs if here != there)
    index = next(differing, min(len(found), len(expected)))
    if index < len(pieces):
        here = f"subword {index + 1} is '{pieces[index]}'"
        if found[index] == dictionary.unk():
            here += ", which the dictionary lacks,"
    elif index == len(pieces):
        here = f"the line ends after {index} subwords"
    else:
        here = "there is nothing more"
    if index == len(expected):
        there = "nothing"
    elif expected[index] == dictionary.eos():
        there = "the end of the line"
    elif expected[index] >= len(dictionary):
        there = f"number {expected[index]}, which no entry of the dictionary has"
    else:
        there = f"'{dictionary[expected[index]]}'"
    return f"{here} here and {there}"
