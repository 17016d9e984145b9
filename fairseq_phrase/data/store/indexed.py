"""fairseq's memory-mapped ``.bin``/``.idx`` arrays, read and written with NumPy only.

fairseq's reader (``MMapIndexedDataset``) reads both files completely when it opens them. This module
opens them in constant time and memory, and does not need torch. The format is the same, and fairseq can
read the files written here.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

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
_PART = struct.Struct("<BQ")  # dtype code, number of values
_CHUNK = 1 << 20  # number of values converted at a time


def smallest_dtype(maximum: int) -> np.dtype:
    """Return the smallest integer type of the format that holds 0 to ``maximum``."""
    return next(np.dtype(dtype) for dtype in _WIDTHS.values() if maximum <= np.iinfo(dtype).max)


def _dtype_of(values: np.ndarray) -> np.dtype:
    return smallest_dtype(int(values.max(initial=0)))


class Spill:
    """Arrays of integers in one file, until the type of the final file is known.

    Each block of arrays has the smallest type that holds its values, so the file is about as large as the
    final one. Memory does not grow with the arrays.

    Args:
        is_complete: whether an earlier run has written the file. Nothing can be added then.
        is_kept: whether the file stays when its arrays are written, so that they can be written again.
    """

    def __init__(self, path: Path, *, is_complete: bool = False, is_kept: bool = False):
        self.path, self._is_kept = path, is_kept
        self._stream = open(path, "rb" if is_complete else "wb")  # noqa: SIM115 - open until close()
        self._values: list[np.ndarray] = []
        self._sizes: list[np.ndarray] = []
        self._pending = 0

    def append(self, values: np.ndarray, sizes: np.ndarray) -> None:
        """Add arrays.

        Args:
            values: the values of all arrays, one array after the other. Shape: ``(values,)``, integers.
            sizes: the arrays' sizes. Shape: ``(arrays,)``.
        """
        self._values.append(values)
        self._sizes.append(sizes)
        self._pending += len(values) + len(sizes)
        if self._pending >= _CHUNK:
            self._write()

    def _write(self) -> None:
        if not self._sizes:
            return
        parts = [np.concatenate(parts) for parts in (self._values, self._sizes)]
        for part in parts:
            part = part.astype(np.int32 if part.min(initial=0) < 0 else _dtype_of(part))
            self._stream.write(_PART.pack(_CODES[part.dtype], len(part)))
            self._stream.write(part.tobytes())
        self._values, self._sizes, self._pending = [], [], 0

    def close(self) -> None:
        """Write everything that was added."""
        self._write()
        self._stream.close()

    def discard(self) -> None:
        """Delete the file, unless it is kept."""
        self._stream.close()
        if not self._is_kept:
            self.path.unlink()

    def blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read the arrays, after :meth:`close`.

        Yields:
            The values of consecutive arrays, in any integer type, and the arrays' sizes, int32.
        """
        with open(self.path, "rb") as stream:
            while header := stream.read(_PART.size):
                values = self._part(stream, header)
                yield values, self._part(stream, stream.read(_PART.size)).astype(np.int32)

    def _part(self, stream: BinaryIO, header: bytes) -> np.ndarray:
        code, count = _PART.unpack(header)
        part: np.ndarray = np.fromfile(stream, _DTYPES[code], count)
        return part


class Spills(NamedTuple):
    """Where writers have their temporary files, and in which state.

    Attributes:
        folder: the folder; None for that of the final files.
        are_complete, are_kept: as in :class:`Spill`.
    """

    folder: Path | None = None
    are_complete: bool = False
    are_kept: bool = False

    def open(self, prefix: Path) -> Spill:
        """Open the temporary file of arrays whose final files have this path without suffix."""
        path = (self.folder or prefix.parent) / f"{prefix.name}.spill"
        return Spill(path, is_complete=self.are_complete, is_kept=self.are_kept)


#: Temporary files in the folder of the final files.
NEXT_TO_FILES = Spills()


def write_indexed(
    prefix: str | os.PathLike[str],
    blocks: Iterable[tuple[np.ndarray, np.ndarray]],
    dtype: np.dtype,
    arrays: int | None,
) -> list[Path]:
    """Write arrays in fairseq's format, in memory that does not grow with their number.

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        blocks: values and sizes of consecutive arrays.
        dtype: the type of the values on disk.
        arrays: the number of all arrays; None to write no ``.idx`` file.

    Returns:
        The ``.bin`` file and, with ``arrays``, the ``.idx`` file.
    """
    paths = [Path(f"{prefix}.bin")]
    with ExitStack() as stack:
        stream = stack.enter_context(open(paths[0], "wb"))
        if arrays is not None:
            paths.append(Path(f"{prefix}.idx"))
            all_sizes = stack.enter_context(open(paths[1], "wb"))
            all_sizes.write(_HEADER.pack(_MAGIC, 1, _CODES[dtype], arrays))
            all_sizes.flush()
            starts = stack.enter_context(open(paths[1], "r+b"))
            starts.seek(_HEADER.size + 4 * arrays)
        end = 0
        for values, sizes in blocks:
            stream.write(values.astype(dtype, copy=False).tobytes())
            if arrays is not None:
                ends = end + np.cumsum(sizes, dtype=np.int64) * dtype.itemsize
                all_sizes.write(sizes.astype(np.int32, copy=False).tobytes())
                starts.write(
                    np.concatenate([[end], ends[:-1]])[: len(sizes)].astype(np.int64).tobytes()
                )
                end = int(ends[-1]) if len(ends) else end
    return paths


class IndexedWriter:
    """Write arrays of integers one after the other.

    The integer type is the smallest that can represent all values (int32 if some are negative). It is
    known only at the end, so values are first written to a temporary file (:class:`Spill`).

    Args:
        prefix: path without ``.bin`` and ``.idx``.
        own_index: write an ``.idx`` file. Without one, the arrays are read with the index of other
            arrays of the same lengths.
        spills: where the temporary file is.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        *,
        own_index: bool = True,
        spills: Spills = NEXT_TO_FILES,
    ):
        self.prefix = Path(prefix)
        self._own_index = own_index
        self._spill = spills.open(self.prefix)

    def append(self, values: np.ndarray, sizes: np.ndarray | None = None) -> None:
        """Add one array, or several.

        Args:
            values: the values of all arrays, one array after the other. Shape: ``(values,)``, integers.
            sizes: the arrays' sizes; one array by default. Shape: ``(arrays,)``.
        """
        self._spill.append(values, np.array([len(values)]) if sizes is None else sizes)

    def close(self) -> None:
        """Write everything that was added to the temporary file."""
        self._spill.close()

    def finish(self, mapping: np.ndarray | None = None, *, every: int = 1) -> list[Path]:
        """Write the ``.bin`` file and, with ``own_index``, the ``.idx`` file; return them.

        Args:
            mapping: if given, a value ``v`` is written as ``mapping[v]``.
            every: map only the last value of each group of this size; arrays then consist of groups.
        """
        self.close()
        arrays, largest, smallest = 0, 0, 0
        for values, sizes in self._spill.blocks():
            arrays += len(sizes)
            plain = values if mapping is None else values.reshape(-1, every)[:, :-1]
            largest = max(largest, int(plain.max(initial=0)))
            smallest = min(smallest, int(plain.min(initial=0)))
        if mapping is not None:
            largest = max(largest, int(mapping.max(initial=0)))
        dtype = np.dtype(np.int32) if smallest < 0 else smallest_dtype(largest)

        def mapped() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for values, sizes in self._spill.blocks():
                if mapping is not None:
                    renamed = mapping[values[every - 1 :: every]]
                    values = values.astype(dtype)  # too small, perhaps, for numbers to be renamed
                    values[every - 1 :: every] = renamed
                yield values, sizes

        paths = write_indexed(self.prefix, mapped(), dtype, arrays if self._own_index else None)
        self._spill.discard()
        return paths


def digest_of_joined_index(prefixes: Sequence[Path]) -> str:
    """Return the SHA-256 of the ``.idx`` file that the arrays of several files would have in one file.

    Args:
        prefixes: paths without ``.bin`` and ``.idx``, in order.
    """
    readers = [IndexedReader(prefix) for prefix in prefixes]
    code = _CODES[readers[0]._dtype]
    digest = hashlib.sha256(_HEADER.pack(_MAGIC, 1, code, sum(map(len, readers))))
    for reader in readers:
        digest.update(reader.sizes.tobytes())
    end = 0
    for reader in readers:
        for first in range(0, len(reader), _CHUNK):
            digest.update((reader._starts[first : first + _CHUNK] + end).tobytes())
        end += reader._values.nbytes
    return digest.hexdigest()


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
