"""fairseq's memory-mapped ``.bin``/``.idx`` arrays, read and written with NumPy only.

fairseq's reader (``MMapIndexedDataset``) reads both files completely when it opens them. This module
opens them in constant time and memory, and does not need torch. The format is the same, and fairseq can
read the files written here.
"""

from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_phrase.data.store.layout import rerun
from fairseq_phrase.errors import UserError

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQ")  # magic, version, dtype code, number of arrays
# The integer types of fairseq.data.indexed_dataset, by their codes there.
_DTYPES = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    8: np.uint16,
    9: np.uint32,  # fairseq's text if the dictionary has over 65,500 entries
}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
_INT64 = np.dtype(np.int64)
# The types that smallest_dtype chooses, by width: used for arrays without their own index.
_WIDTHS: dict[int, type[np.integer[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.int32, 8: np.int64}
_CHUNK = 1 << 22  # number of values converted at a time when a file is finished


def smallest_dtype(maximum: int) -> np.dtype:
    """Return the smallest integer type of the format that holds 0 to ``maximum``."""
    return next(np.dtype(each) for each in _WIDTHS.values() if maximum <= np.iinfo(each).max)


class IndexedWriter:
    """Write arrays of integers one after the other.

    The integer type is the smallest that can represent all values (int32 if some are negative). It is
    known only at the end, so values are first written to a temporary file as int32, and converted in
    :meth:`finish`. Memory grows by 4 bytes per array.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        own_index: write an ``.idx`` file. Without one, the arrays are read with the index of other
            arrays of the same lengths.
    """

    def __init__(self, prefix: str | os.PathLike[str], *, own_index: bool = True):
        self.prefix = Path(prefix)
        self._own_index = own_index
        self._spill_path = self.prefix.with_name(self.prefix.name + ".spill")
        self._spill = open(self._spill_path, "wb")  # noqa: SIM115 - open until finish()
        self._sizes = array("i")
        self._is_signed = False

    def append(self, values: np.ndarray, sizes: np.ndarray | None = None) -> None:
        """Add one array, or several.

        Args:
            values: the values of all arrays, one array after the other. Shape: ``(values,)``, integers.
            sizes: the arrays' sizes; one array by default. Shape: ``(arrays,)``.
        """
        self._is_signed |= bool(values.min(initial=0) < 0)
        self._spill.write(np.asarray(values, dtype=np.int32).tobytes())
        self._sizes.extend([len(values)] if sizes is None else sizes.tolist())

    def finish(self, mapping: np.ndarray | None = None, *, every: int = 1) -> list[Path]:
        """Write the ``.bin`` file and, with ``own_index``, the ``.idx`` file; return them.

        Args:
            mapping: if given, a value ``v`` is written as ``mapping[v]``.
            every: map only the last value of each group of this size; arrays then consist of groups.
        """
        self._spill.close()
        spilled: np.ndarray = np.zeros(0, dtype=np.int32)
        if self._spill_path.stat().st_size:
            spilled = np.memmap(self._spill_path, dtype=np.int32, mode="r")
        spilled = spilled.reshape(-1, every)
        plain = spilled if mapping is None else spilled[:, :-1]
        largest = max(
            (int(plain[start : start + _CHUNK].max(initial=0)) for start in _starts(plain)),
            default=0,
        )
        if mapping is not None:
            largest = max(largest, int(mapping.max(initial=0)))
        dtype = np.dtype(np.int32) if self._is_signed else smallest_dtype(largest)
        paths = [Path(f"{self.prefix}.bin")]
        with open(paths[0], "wb") as stream:
            for start in _starts(spilled):
                values = spilled[start : start + _CHUNK].astype(dtype)
                if mapping is not None:
                    values[:, -1] = mapping[spilled[start : start + _CHUNK, -1]]
                stream.write(values.tobytes())
        if self._own_index:
            paths.append(Path(f"{self.prefix}.idx"))
            self._write_index(paths[1], dtype)
        del spilled, plain
        self._spill_path.unlink()
        return paths

    def _write_index(self, path: Path, dtype: np.dtype) -> None:
        sizes = np.frombuffer(self._sizes, dtype=np.int32)
        ends = np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
        with open(path, "wb") as stream:
            stream.write(_HEADER.pack(_MAGIC, 1, _CODES[dtype], len(sizes)))
            stream.write(sizes.tobytes())
            stream.write(np.concatenate([[0], ends[:-1]]).astype(np.int64)[: len(sizes)].tobytes())


def _starts(rows: np.ndarray) -> range:
    """Return the starts of chunks of rows, which are converted one at a time."""
    return range(0, len(rows), _CHUNK)


def _mapped(path: Path) -> np.ndarray:
    """Map a file's bytes as a plain array, because indexing NumPy's ``memmap`` class is slow."""
    return np.asarray(np.memmap(path, mode="r", dtype=np.uint8))


class IndexedReader:
    """Arrays of integers, memory-mapped.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        index: the path of other arrays of the same lengths, to use their ``.idx`` file.

    Attributes:
        sizes: the arrays' sizes. Shape: ``(arrays,)``, int32.
        index_path: the ``.idx`` file.

    Raises:
        UserError: a file is missing, truncated, or not in fairseq's format.
    """

    def __init__(self, prefix: str | os.PathLike[str], index: str | os.PathLike[str] | None = None):
        self.prefix = Path(prefix)
        self._index = None if index is None else Path(index)
        index_path, data_path = Path(f"{index or prefix}.idx"), Path(f"{prefix}.bin")
        self.index_path = index_path
        for path in (index_path, data_path):
            if not path.is_file():
                raise UserError(f"{path} is missing: {rerun(path.parent)}")
        with open(index_path, "rb") as stream:
            header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size or header[:9] != _MAGIC:
            raise UserError(f"{index_path} is not an index of fairseq's mmap format")
        _, version, code, count = _HEADER.unpack(header)
        size = index_path.stat().st_size
        if version != 1 or code not in _DTYPES or size != _HEADER.size + 12 * count:
            raise UserError(f"{index_path} is damaged: {rerun(index_path.parent)}")
        self._dtype = np.dtype(_DTYPES[code])
        self._index_width = self._dtype.itemsize  # the index may be of other arrays
        mapped = _mapped(index_path)
        sizes_end = _HEADER.size + 4 * count
        self.sizes = mapped[_HEADER.size : sizes_end].view(np.int32)
        self._starts = mapped[sizes_end:].view(np.int64)
        # A memoryview returns Python integers, several times as fast as NumPy returns NumPy integers.
        self._size_of = mapped.data[_HEADER.size : sizes_end].cast("i")
        self._start_of = mapped.data[sizes_end:].cast("q")
        expected = 0
        if count:
            expected = self._start_of[-1] + self._size_of[-1] * self._dtype.itemsize
        found = data_path.stat().st_size
        if index is not None and expected:
            values = expected // self._index_width
            if found % values == 0 and found // values in _WIDTHS:
                self._dtype = np.dtype(_WIDTHS[found // values])
            expected = values * self._dtype.itemsize
        if found != expected or expected % self._dtype.itemsize:
            raise UserError(
                f"{data_path} has {found} bytes where its index expects "
                f"{expected}: {rerun(data_path.parent)}"
            )
        # An empty file cannot be mapped.
        data = _mapped(data_path) if expected else np.zeros(0, dtype=np.uint8)
        self._values = data.view(self._dtype)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return one array. Shape: ``(sizes[index],)``, int64."""
        start = self._start_of[index] // self._index_width
        return self._values[start : start + self._size_of[index]].astype(_INT64)

    def positions(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find several arrays, to read them at once with :meth:`at`.

        Args:
            indices: which arrays, in any order.
                Shape: ``(arrays,)``

        Returns:
            The position of each value (shape ``(values,)``), and the arrays' sizes (shape
            ``(arrays,)``).
        """
        sizes = self.sizes[indices]
        starts = self._starts[indices]
        if self._index_width > 1:
            starts //= self._index_width
        starts += sizes
        starts -= sizes.cumsum()
        positions = starts.repeat(sizes)
        positions += np.arange(len(positions))
        return positions, sizes

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Read values. Shape: as ``positions``, int64."""
        values: np.ndarray = self._values[positions].astype(_INT64)
        return values

    def between(self, first: int, last: int) -> np.ndarray:
        """Read the values of consecutive arrays as one array.

        They are read and not mapped: a pass over the file then does not fill the memory.

        Args:
            first: the first array, from 0.
            last: one past the last.

        Returns:
            Their values, in the stored type. Shape: ``(sizes[first:last].sum(),)``
        """
        if first >= last:
            return np.zeros(0, dtype=self._dtype)
        start = self._start_of[first] // self._index_width
        end = self._start_of[last - 1] // self._index_width + self._size_of[last - 1]
        return np.fromfile(
            f"{self.prefix}.bin", self._dtype, end - start, offset=start * self._dtype.itemsize
        )

    def first_gap(self, first: int, last: int) -> int | None:
        """Find an array that does not end where the next one starts, or has a negative size.

        Writers put arrays one after the other, so such an index is damaged.

        Args:
            first: the first array to check, from 0.
            last: one past the last.

        Returns:
            The first such array, or None.
        """
        sizes = self.sizes[first:last].astype(_INT64)
        starts = self._starts[first : last + 1]
        if last == len(self):
            starts = np.append(starts, len(self._values) * self._index_width)
        broken = (starts[:-1] + sizes * self._index_width != starts[1:]) | (sizes < 0)
        if first == 0 and last > 0:
            broken[0] |= starts[0] != 0
        return first + int(broken.argmax()) if broken.any() else None

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopen the files in another process instead of copying them there."""
        return IndexedReader, (self.prefix, self._index)
