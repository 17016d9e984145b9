"""Blocks on disk: nothing is lost in them, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing.blocks import TEXT, Block, BlockFolder, FieldBlock
from fairseq_phrase.data.preprocessing.options import SplitCounts

words = st.text(st.characters(exclude_categories=()), min_size=1, max_size=5)  # and lone surrogates
hostile = st.lists(st.lists(words, max_size=4), max_size=6)


def block_of(lines):
    return Block([{TEXT: FieldBlock.of_text(lines)}], SplitCounts(kept=len(lines)))


@given(hostile, st.lists(st.integers(-1, 70_000), max_size=9), st.text())
def test_a_block_gives_back_what_went_in(lines, numbers, reason):
    block = block_of(lines)
    block.sides[0]["heads"] = FieldBlock(np.array(numbers), np.array([len(numbers)]), [])
    block.counts.unspelled["de"] += 2
    block.problems, block.left_out = [(3, "de", reason)], [(4, "empty", reason)]
    read = Block.unpacked(block.packed())
    assert list(read.sides[0][TEXT].sentences()) == lines
    assert read.sides[0]["heads"].values.tolist() == numbers
    assert read.counts == block.counts
    assert (read.problems, read.left_out) == ([[3, "de", reason]], [[4, "empty", reason]])


DAMAGE = {
    "truncated": lambda content: content[:-9],
    "another byte": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "empty": lambda content: b"",
    "another file": lambda content: bytes(range(256)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_block_is_not_taken_for_whole(tmp_path, caplog, damage):
    BlockFolder(tmp_path).write(7, block_of([["a", "b"], []]).packed())
    assert BlockFolder(tmp_path).holds(7)
    (file,) = tmp_path.iterdir()
    file.write_bytes(DAMAGE[damage](file.read_bytes()))
    assert not BlockFolder(tmp_path).holds(7)
    assert f"{file} is damaged: its lines are parsed again" in caplog.text
