"""The second pass writes the bytes of fairseq's binarizer."""

from __future__ import annotations

from pathlib import Path

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

subwords = st.sampled_from(["▁a", "b", "c@@", "</s>", "<unk>", "<pad>", "new", "ü"])
lines_of_subwords = st.lists(st.lists(subwords, max_size=4), min_size=1, max_size=9)


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
            block = Block([{TEXT: FieldBlock.of_text(chunk)}], SplitCounts(kept=len(chunk)))
            blocks.write(number, block.packed())
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
