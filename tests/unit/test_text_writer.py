"""Text of subwords: written as fairseq's own binarizer writes it."""

import pytest
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store import indexed
from fairseq_phrase.data.store.indexed import Spills
from fairseq_phrase.data.store.writer import FieldBlock, TextWriter

subwords = st.sampled_from(["▁a", "b", "c@@", "</s>", "<unk>", "<pad>", "new", "ü"])
texts = st.lists(st.lists(subwords, max_size=4), min_size=1, max_size=9)


def dictionary_of(entries, filler=0) -> Dictionary:
    dictionary = Dictionary()
    for entry in [*entries, *(f"w{number}" for number in range(filler))]:
        dictionary.add_symbol(entry)
    return dictionary


def written(prefix, lines, sizes, dictionary) -> TextWriter:
    """Write lines in blocks of these sizes."""
    writer, start = TextWriter(prefix), 0
    for size in [*sizes, len(lines)]:
        writer.append(FieldBlock.of_text(lines[start : start + size]))
        start += size
    writer.finish(dictionary)
    return writer


def by_fairseq(folder, lines, dictionary) -> dict[str, bytes]:
    text = folder / "text"
    text.write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
    FileBinarizer.multiprocess_dataset(
        str(text), "mmap", VocabularyDatasetBinarizer(dictionary, str.split), str(folder / "stock"),
        vocab_size=len(dictionary), num_workers=1,
    )  # fmt: skip
    return {end: (folder / f"stock.{end}").read_bytes() for end in ("bin", "idx")}


@given(texts, st.lists(st.integers(0, 3), max_size=4), st.integers(1, 9))
def test_the_files_are_those_of_fairseqs_binarizer(tmp_path_factory, lines, sizes, chunk):
    folder, dictionary = tmp_path_factory.mktemp("text"), dictionary_of(["▁a", "b", "c@@"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed, "_CHUNK", chunk)
        writer = written(folder / "here", lines, sizes, dictionary)
    for end, content in by_fairseq(folder, lines, dictionary).items():
        assert (folder / f"here.{end}").read_bytes() == content
    entries = {"▁a", "b", "c@@", "</s>", "<pad>"}
    assert writer.unknown == sum(1 for line in lines if not entries.issuperset(line))
    assert writer.subwords.counts.total() == sum(map(len, lines))
    assert sorted(path.suffix for path in folder.glob("here*")) == [".bin", ".idx"]


def test_large_dictionaries_have_the_type_that_fairseq_gives_them(tmp_path):
    for filler in (65_495, 65_496, 70_000):
        dictionary = dictionary_of(["a"], filler)
        written(tmp_path / "here", [["a", f"w{filler - 1}"]], [], dictionary)
        stock = by_fairseq(tmp_path, [["a", f"w{filler - 1}"]], dictionary)
        assert (tmp_path / "here.bin").read_bytes() == stock["bin"]
        assert (tmp_path / "here.idx").read_bytes() == stock["idx"]


@given(texts)
def test_sentences_are_read_back_and_replaced(tmp_path_factory, lines):
    folder, dictionary = tmp_path_factory.mktemp("text"), dictionary_of(["▁a", "b", "c@@"])
    writer = TextWriter(folder / "here")
    writer.append(FieldBlock.of_text(lines))
    with writer.replaced() as write:
        for sentence in writer.sentences():
            write([*sentence[::-1], "b"])
    turned = [[*line[::-1], "b"] for line in lines]
    assert list(writer.sentences()) == turned
    writer.finish(dictionary)
    assert (folder / "here.bin").read_bytes() == by_fairseq(folder, turned, dictionary)["bin"]


def test_subwords_are_numbered_in_the_order_of_first_use(tmp_path):
    writer = TextWriter(tmp_path / "train")
    for line in (["b", "a"], ["a", "c", "a"]):
        writer.append(FieldBlock.of_text([line]))
    assert writer.subwords.entries() == ["b", "a", "c"]
    assert writer.subwords.counts == {"b": 1, "a": 3, "c": 1}


def test_a_later_run_finishes_the_temporary_file_of_an_earlier_one(tmp_path):
    dictionary, lines = dictionary_of(["a", "b"]), [["b", "a"], ["a", "c", "a"]]
    spills = Spills(tmp_path, are_kept=True)
    writer = TextWriter(tmp_path / "here", spills)
    writer.append(FieldBlock.of_text(lines))
    writer.close()
    for _ in range(2):  # once more after a kill
        again = TextWriter(
            tmp_path / "here", spills._replace(are_complete=True), writer.subwords.counts
        )
        again.finish(dictionary)
        assert again.unknown == 1
        for end, content in by_fairseq(tmp_path, lines, dictionary).items():
            assert (tmp_path / f"here.{end}").read_bytes() == content
