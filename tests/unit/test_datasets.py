"""fairseq's datasets: what is damaged has one message."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from pathlib import Path

import pytest
import torch
from fairseq.data import ListDataset, data_utils
from fairseq.data.indexed_dataset import make_builder
from fairseq.data.iterators import EpochBatchIterator, FrozenBatchSampler

from fairseq_phrase import register
from fairseq_phrase.errors import UserError

register()


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("damage", ["a pickle", "an index that is too short", "nothing"])
def test_a_damaged_text_is_named(damage, tmp_path):
    path = str(tmp_path / "train.de-en.de")
    builder = make_builder(f"{path}.bin", "mmap", vocab_size=9)
    builder.add_item(torch.arange(4))
    builder.finalize(f"{path}.idx")
    index = Path(f"{path}.idx")
    content = {
        "a pickle": pickle.dumps(Harmful(str(tmp_path / "run"))), "nothing": b"",
        "an index that is too short": index.read_bytes()[:20],
    }  # fmt: skip
    assert len(data_utils.load_indexed_dataset(path))
    index.write_bytes(content[damage])
    with pytest.raises(UserError, match=r"\.de\.idx and \.bin are damaged, .*make the data again"):
        data_utils.load_indexed_dataset(path)
    assert not (tmp_path / "run").exists()


def test_the_workers_of_an_iterator_end_with_its_last_reference():
    """A garbage collection would wait for each of them in vain."""
    before = {*multiprocessing.active_children()}
    batches = EpochBatchIterator(
        ListDataset([*"ab"]), list, [[0], [1]], num_workers=1, reuse_dataloader=True
    )
    gc.disable()
    try:
        for _ in range(2):
            assert sorted(batches.next_epoch_itr()) == [["a"], ["b"]]
        (worker,) = {*multiprocessing.active_children()} - before
        del batches
        assert worker.exitcode == 0
    finally:
        gc.enable()


def test_batches_may_come_from_a_function():
    sampler = FrozenBatchSampler(
        lambda epoch, fixed, shuffle: [[epoch], [fixed, shuffle]], 1, True, False, 1
    )
    assert list(sampler) == [[True, False]]
