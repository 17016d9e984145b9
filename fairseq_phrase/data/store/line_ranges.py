"""Numbers of lines as text, as manifests record lines that are left out."""

from __future__ import annotations

from collections.abc import Iterable


class LineRanges:
    """Ascending numbers of lines, from 1, as text: ``3,17,553-560``.

    Args:
        text: the numbers.

    Raises:
        ValueError: the text is malformed.
    """

    def __init__(self, text: str = ""):
        self._ranges: list[tuple[int, int]] = []
        for part in filter(None, text.split(",")):
            first, _, last = part.partition("-")
            self._ranges.append((int(first), int(last or first)))

    def __str__(self) -> str:
        return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in self._ranges)

    @classmethod
    def united(cls, texts: Iterable[str]) -> LineRanges:
        """Join disjoint sets of numbers."""
        union = cls()
        union._ranges = sorted(line_range for text in texts for line_range in cls(text)._ranges)
        return union

    def append(self, line: int) -> None:
        """Add a line after the last one."""
        if self._ranges and self._ranges[-1][1] == line - 1:
            self._ranges[-1] = self._ranges[-1][0], line
        else:
            self._ranges.append((line, line))

    def number_outside(self, index: int) -> int:
        """Return the number of a line by its index, from 0, among the lines outside the ranges."""
        line = index + 1
        for first, last in self._ranges:
            if first > line:
                break
            line += last - first + 1
        return line

    def index_outside(self, line: int) -> int | None:
        """Return the index of a line among the lines outside the ranges; None if it is in a range."""
        index = line - 1
        for first, last in self._ranges:
            if first > line:
                break
            if line <= last:
                return None
            index -= last - first + 1
        return index
