"""fairseq's memory-mapped format, written and read without fairseq, held against fairseq's own."""

import pickle
import struct

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store.indexed import IndexedReader, IndexedWriter, smallest_dtype
from fairseq_phrase.errors import UserError
from tests.support.stores import write_arrays

some_arrays = st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=5), min_size=1, max_size=8)
FAIRSEQ_DTYPES = (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32)


def dtype_on_disk(prefix):
    return MMapIndexedDataset.Index(f"{prefix}.idx").dtype


@given(arrays=some_arrays)
def test_what_is_written_is_read_back(tmp_path_factory, arrays):
    prefix = tmp_path_factory.mktemp("indexed") / "x"
    write_arrays(prefix, arrays)
    reader = IndexedReader(prefix)
    assert [values.tolist() for values in reader] == arrays
    assert reader.sizes.tolist() == [len(values) for values in arrays]
    assert len(reader) == len(arrays)


@given(arrays=some_arrays.filter(any))
def test_fairseq_reads_what_is_written_here(tmp_path_factory, arrays):
    prefix = tmp_path_factory.mktemp("indexed") / "x"
    write_arrays(prefix, arrays)
    dataset = MMapIndexedDataset(str(prefix))
    assert [dataset[i].tolist() for i in range(len(dataset))] == arrays


@pytest.mark.parametrize("dtype", FAIRSEQ_DTYPES)
def test_what_fairseq_wrote_is_read_here(tmp_path, dtype):
    arrays = [[0, int(np.iinfo(dtype).max)], [], [1, 2, 3]]
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=dtype)
    for values in arrays:
        builder.add_item(torch.tensor(values, dtype=torch.int64))
    builder.finalize(str(tmp_path / "x.idx"))
    reader = IndexedReader(tmp_path / "x")
    assert [values.tolist() for values in reader] == arrays
    assert reader[0].dtype == np.int64


@pytest.mark.parametrize(
    ("maximum", "dtype"),
    [
        (0, np.uint8),
        (2**8 - 1, np.uint8),
        (2**8, np.uint16),
        (2**16 - 1, np.uint16),
        (2**16, np.int32),
        (2**31 - 1, np.int32),
        (2**31, np.int64),
        (2**63 - 1, np.int64),
    ],
)
def test_the_smallest_integer_type_loses_nothing(tmp_path, maximum, dtype):
    assert smallest_dtype(maximum) == dtype
    write_arrays(tmp_path / "x", [[0, maximum], [maximum]])
    assert dtype_on_disk(tmp_path / "x") is dtype
    assert [values.tolist() for values in IndexedReader(tmp_path / "x")] == [
        [0, maximum],
        [maximum],
    ]


@given(
    arrays=st.lists(st.lists(st.integers(0, 70_000), max_size=5), min_size=1, max_size=9),
    size=st.integers(1, 9),
)
def test_blocks_of_any_size_make_the_files_of_fairseqs_builder(tmp_path_factory, arrays, size):
    folder, dtype = tmp_path_factory.mktemp("blocks"), np.dtype(np.int32)
    builder = MMapIndexedDatasetBuilder(str(folder / "stock.bin"), dtype=np.int32)
    for values in arrays:
        builder.add_item(torch.tensor(values, dtype=torch.int32))
    builder.finalize(str(folder / "stock.idx"))
    writer = IndexedWriter(folder / "here", dtype, len(arrays))
    for start in range(0, len(arrays), size):
        block = arrays[start : start + size]
        values = np.array([value for array in block for value in array], dtype=np.int64)
        writer.append(values, np.array([len(array) for array in block]))
    writer.close()
    for end in ("bin", "idx"):
        assert (folder / f"here.{end}").read_bytes() == (folder / f"stock.{end}").read_bytes()


@pytest.mark.parametrize("arrays", [[], [[]], [[], [], []]])
def test_files_without_values_are_read_back(tmp_path, arrays):
    write_arrays(tmp_path / "x", arrays)
    assert [values.tolist() for values in IndexedReader(tmp_path / "x")] == arrays


def test_only_the_two_files_of_the_format_remain(tmp_path):
    write_arrays(tmp_path / "x", [[1]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.bin", "x.idx"]


def test_an_array_can_be_had_from_the_end_and_none_beyond_it(tmp_path):
    write_arrays(tmp_path / "x", [[1], [2, 3]])
    reader = IndexedReader(tmp_path / "x")
    assert reader[-1].tolist() == [2, 3]
    with pytest.raises(IndexError):
        reader[2]


def test_another_process_reopens_the_files(tmp_path):
    write_arrays(tmp_path / "x", [[1], [2, 3]])
    pickled = pickle.dumps(IndexedReader(tmp_path / "x"))
    assert [values.tolist() for values in pickle.loads(pickled)] == [[1], [2, 3]]
    assert len(pickled) < 500


def truncated(path):
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path):
    path.write_bytes(path.read_bytes() + b"\0")


def overwrite(start, content):
    def damage(path):
        content_before = path.read_bytes()
        path.write_bytes(content_before[:start] + content + content_before[start + len(content) :])

    return damage


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        ("idx", lambda path: path.unlink()),
        ("bin", lambda path: path.unlink()),
        ("idx", lambda path: path.write_bytes(b"")),
        ("idx", truncated),
        ("bin", truncated),
        ("bin", lengthen),
        ("idx", lengthen),
        ("idx", overwrite(0, b"TNTIDX\0\0")),
        ("idx", overwrite(9, struct.pack("<Q", 2))),
        ("idx", overwrite(17, b"\x06")),  # floating point
        ("idx", overwrite(17, b"\xff")),
        ("idx", overwrite(18, struct.pack("<Q", 2**63))),
    ],
)
def test_a_missing_or_damaged_file_is_named(tmp_path, suffix, damage):
    write_arrays(tmp_path / "x", [[1], [2, 3], [300]])
    damage(tmp_path / f"x.{suffix}")
    with pytest.raises(UserError, match=f"x.{suffix}"):
        IndexedReader(tmp_path / "x")


@given(st.lists(st.lists(st.integers(0, 70_000), max_size=6), min_size=1, max_size=8), st.data())
def test_many_arrays_at_once_are_those_read_one_by_one(tmp_path_factory, arrays, data):
    prefix = tmp_path_factory.mktemp("many") / "x"
    write_arrays(prefix, [np.array(array, dtype=np.int64) for array in arrays])
    indices = data.draw(st.lists(st.integers(0, len(arrays) - 1), max_size=10))
    reader = IndexedReader(prefix)
    positions, sizes = reader.positions(np.array(indices, dtype=np.int64))
    values = reader.at(positions)
    assert values.tolist() == [value for index in indices for value in reader[index].tolist()]
    assert sizes.tolist() == [len(reader[index]) for index in indices]
    assert values.dtype == np.int64


@given(arrays=st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=6), data=st.data())
def test_consecutive_arrays_are_read_as_one(tmp_path_factory, arrays, data):
    prefix = tmp_path_factory.mktemp("between") / "x"
    write_arrays(prefix, arrays)
    reader = IndexedReader(prefix)
    first = data.draw(st.integers(0, len(arrays)))
    last = data.draw(st.integers(first, len(arrays)))
    joined = [value for values in arrays[first:last] for value in values]
    assert reader.between(first, last).tolist() == joined
