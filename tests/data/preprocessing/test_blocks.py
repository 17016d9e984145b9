"""Blocks on disk: nothing is lost in them, damage is noticed, and they become fairseq's files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.preprocessing import texts
from fairseq_phrase.data.preprocessing.blocks import TEXT, Block, BlockFolder, FieldBlock
from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
from fairseq_phrase.data.preprocessing.second_pass import write_split
from fairseq_phrase.data.preprocessing.segmentation import RawText
from fairseq_phrase.data.preprocessing.splits import Split
from fairseq_phrase.data.preprocessing.texts import Corpus
from fairseq_phrase.data.subwords.segmenters import SharedSegmenter
from fairseq_phrase.option_values import WHOLE_WORDS

words = st.text(st.characters(exclude_categories=()), min_size=1, max_size=5)  # and lone surrogates
hostile = st.lists(st.lists(words, max_size=4), max_size=6)
subwords = st.sampled_from(["▁a", "b", "c@@", "</s>", "<unk>", "<pad>", "new", "ü"])
lines_of_subwords = st.lists(st.lists(subwords, max_size=4), min_size=1, max_size=9)


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


# The second pass


def dictionary_of(entries, filler=0) -> Dictionary:
    dictionary = Dictionary()
    for entry in [*entries, *(f"w{number}" for number in range(filler))]:
        dictionary.add_symbol(entry)
    return dictionary


def written(folder, lines, size, dictionary) -> Split:
    """Write lines in blocks of a size, as the first pass makes them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "BLOCK_LINES", size)
        corpus = Corpus("train.de", Path("train.de"), len(lines), "")
        side = RawText("de", corpus, None, (), SharedSegmenter(WHOLE_WORDS, None))
        split = Split("train", "train", [side], is_whole=True)
        split.write_to([folder])
        blocks = BlockFolder(folder / "blocks")
        for number, chunk in enumerate(corpus.chunks(lines)):
            blocks.write(number, block_of(chunk).packed())
            split.count(number, blocks.read(number))
        options = Options("de", None, folder, {}, {})
        write_split(options, split, blocks, {"de": dictionary}, {})
    return split


def by_fairseq(folder, lines, dictionary) -> dict[str, bytes]:
    text = folder / "text"
    text.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    FileBinarizer.multiprocess_dataset(
        str(text), "mmap", VocabularyDatasetBinarizer(dictionary, str.split), str(folder / "stock"),
        vocab_size=len(dictionary), num_workers=1,
    )  # fmt: skip
    return {end: (folder / f"stock.{end}").read_bytes() for end in ("bin", "idx")}


@given(lines_of_subwords, st.integers(1, 9))
def test_the_files_are_those_of_fairseqs_binarizer(tmp_path_factory, lines, size):
    folder, dictionary = tmp_path_factory.mktemp("text"), dictionary_of(["▁a", "b", "c@@"])
    split = written(folder, lines, size, dictionary)
    for end, content in by_fairseq(folder, lines, dictionary).items():
        assert (folder / f"train.de.{end}").read_bytes() == content
    entries = {"▁a", "b", "c@@", "</s>", "<pad>"}
    unknown = sum(1 for line in lines if not entries.issuperset(line))
    assert split.counts.unknown["de"] == unknown
    assert split.subwords["de"].total() == sum(map(len, lines))


@pytest.mark.parametrize("filler", [65_495, 65_496, 70_000])
def test_large_dictionaries_have_the_type_that_fairseq_gives_them(tmp_path, filler):
    dictionary, lines = dictionary_of(["a"], filler), [["a", f"w{filler - 1}"], ["a"] * 300]
    written(tmp_path, lines, 9, dictionary)
    for end, content in by_fairseq(tmp_path, lines, dictionary).items():
        assert (tmp_path / f"train.de.{end}").read_bytes() == content
