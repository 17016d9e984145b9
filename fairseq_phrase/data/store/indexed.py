"""fairseq's memory-mapped ``.bin``/``.idx`` arrays, read and written with NumPy only.

fairseq's reader (``MMapIndexedDataset``) reads both files completely when it opens them. This module
opens them in constant time and memory, and does not need torch. The format is the same, and fairseq can
read the files written here.
"""

from __future__ import annotations

import os
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

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
_CHUNK = 1 << 20  # number of values hashed at a time


def smallest_dtype(maximum: int, minimum: int = 0) -> np.dtype:
    """Return the smallest integer type of the format that holds 0 to ``maximum``; int32 for negatives."""
    if minimum < 0:
        return np.dtype(np.int32)
    return next(np.dtype(dtype) for dtype in _WIDTHS.values() if maximum <= np.iinfo(dtype).max)


class IndexedWriter:
    """Write arrays of integers in fairseq's format, in memory that does not grow with their number.

    fairseq's own builder appends one tensor after the other and holds the size and the offset of each.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        dtype: the type of the values on disk.
        arrays: the number of all arrays; None to write no ``.idx`` file: the arrays are then read with
            the index of other arrays of the same lengths.

    Attributes:
        paths: the files.
    """

    def __init__(self, prefix: str | os.PathLike[str], dtype: np.dtype, arrays: int | None):
        self.paths = [Path(f"{prefix}.bin")]
        self._dtype, self._end, self._left = dtype, 0, arrays
        self._files = ExitStack()
        self._values = self._open(self.paths[0], "wb")
        if arrays is None:
            return
        self.paths.append(Path(f"{prefix}.idx"))
        self._sizes = self._open(self.paths[1], "wb")
        self._sizes.write(_HEADER.pack(_MAGIC, 1, _CODES[dtype], arrays))
        self._sizes.flush()
        self._starts = self._open(self.paths[1], "r+b")
        self._starts.seek(_HEADER.size + 4 * arrays)

    def _open(self, path: Path, mode: str) -> IO[bytes]:
        stream: IO[bytes] = open(path, mode)  # noqa: SIM115 - open until close()
        return self._files.enter_context(stream)

    def append(self, values: np.ndarray, sizes: np.ndarray) -> None:
        """Add arrays.

        Args:
            values: the values of all arrays, one array after the other. Shape: ``(values,)``, integers.
            sizes: the arrays' sizes. Shape: ``(arrays,)``.
        """
        self._values.write(values.astype(self._dtype, copy=False).tobytes())
        if self._left is not None:
            ends = self._end + sizes.cumsum(dtype=np.int64) * self._dtype.itemsize
            self._sizes.write(sizes.astype(np.int32, copy=False).tobytes())
            self._starts.write(np.append(self._end, ends)[:-1].astype(np.int64).tobytes())
            self._end = int(ends[-1]) if len(ends) else self._end
            self._left -= len(sizes)

    def close(self) -> None:
        """Close the files, after all arrays are added."""
        self._files.close()
        assert not self._left, f"{self._left} arrays of {self.paths[0]} are missing"


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
        size_of_data = data_path.stat().st_size
        if index is not None and expected:
            values = expected // self._index_width
            if size_of_data % values == 0 and size_of_data // values in _WIDTHS:
                self._dtype = np.dtype(_WIDTHS[size_of_data // values])
            expected = values * self._dtype.itemsize
        if size_of_data != expected or expected % self._dtype.itemsize:
            raise UserError(
                f"{data_path} has {size_of_data} bytes where its index expects "
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Reopen the files in another process instead of copying them there."""
        return IndexedReader, (self.prefix, self._index)
