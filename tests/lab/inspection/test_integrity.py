"""A data directory is verified file by file and line by line."""

from __future__ import annotations

import json

import pytest

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.inspection import sentence_blocks
from fairseq_phrase.lab.inspection.integrity import load_dictionaries, verify_split
from tests.support.data_directories import SPLIT, copied, rewrite, sign
from tests.support.stores import write_arrays


def verify(directory):
    manifest = Manifest.load(directory, "de")
    advanced = []
    dictionaries = load_dictionaries(directory, manifest)
    verify_split(directory, manifest, SPLIT, dictionaries, advanced.append)
    assert sum(advanced) == manifest.splits[SPLIT].sentences == 100


@pytest.fixture
def directory(data_directory, tmp_path):
    return copied(data_directory, tmp_path / "data")


@pytest.mark.parametrize("block_values", [1, 500, 1 << 20])
def test_what_preprocess_writes_is_whole(directory, monkeypatch, block_values):
    monkeypatch.setattr(sentence_blocks, "BLOCK_VALUES", block_values)
    verify(directory)


@pytest.mark.parametrize("block_values", [1, 500, 1 << 20])
def test_a_broken_record_is_found_even_where_the_manifest_vouches_for_it(
    directory, monkeypatch, block_values
):
    monkeypatch.setattr(sentence_blocks, "BLOCK_VALUES", block_values)

    def two_roots(rows):
        for line in (77, 42):
            rows[line - 1] = list(range(len(rows[line - 1])))

    rewrite(directory, "heads", two_roots)
    sign(directory)
    with pytest.raises(UserError, match=rf"{SPLIT}\.de\.heads\.bin, line 42: .* own heads"):
        verify(directory)


def test_a_word_moved_to_the_next_line_is_found_at_the_first_of_both(directory):
    def moved(rows):
        rows[11].append(rows[10].pop())

    rewrite(directory, "words", moved)
    with pytest.raises(UserError, match=r"words\.bin, line 11: expected \d+ subwords"):
        verify(directory)


def test_text_binarized_anew_without_its_last_lines_is_named_where_it_ends(directory):
    rewrite(directory, "text", lambda rows: rows.__delitem__(slice(97, None)))
    with pytest.raises(UserError, match=r"de\.idx, line 98: expected 100 lines .* found 97"):
        verify(directory)


def test_the_other_languages_text_must_have_as_many_lines(directory):
    write_arrays(directory / f"{SPLIT}.en", [[4, 2]])
    with pytest.raises(UserError, match=r"en\.idx, line 2: expected 100 lines .* found 1"):
        verify(directory)


def test_records_that_fit_another_text_as_well_are_found_by_their_fingerprints(directory):
    def other_token(rows):
        rows[3][0] = 5 if rows[3][0] == 4 else 4

    rewrite(directory, "text", other_token)
    with pytest.raises(UserError, match=r"de\.bin has changed since the parses were made"):
        verify(directory)


@pytest.mark.parametrize("block_values", [1, 500, 1 << 20])
@pytest.mark.parametrize("line", [1, 42, 100])
@pytest.mark.parametrize("what", ["size", "start"])
@pytest.mark.parametrize("change", [-9, 1, 1 << 30])
def test_an_index_with_a_wrong_number_is_named_with_its_line(
    directory, monkeypatch, block_values, line, what, change
):
    monkeypatch.setattr(sentence_blocks, "BLOCK_VALUES", block_values)
    path = directory / f"{SPLIT}.de.words.idx"
    content = bytearray(path.read_bytes())
    starts = len(content) - 8 * 100
    place = starts - 4 * 100 + 4 * (line - 1) if what == "size" else starts + 8 * (line - 1)
    width = 4 if what == "size" else 8
    number = int.from_bytes(content[place : place + width], "little", signed=True) + change
    content[place : place + width] = number.to_bytes(width, "little", signed=True)
    path.write_bytes(content)
    sign(directory)
    # A wrong start is the end of the line before, and the last line's end is that of the file.
    named_line = line - 1 if what == "start" and line > 1 else line
    with pytest.raises(UserError, match=r"words\.(idx, line|bin has)") as caught:
        verify(directory)
    if line < 100:
        assert f"words.idx, line {named_line}: expected its values right between" in str(
            caught.value
        )


@pytest.mark.parametrize("count", ["sentences", "words", "subwords"])
def test_counts_that_the_manifest_gets_wrong_are_named(directory, count):
    path = directory / "syntax.de.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["splits"][SPLIT][count] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=rf"expect(s|ed) \d+ ({count}|lines).* found"):
        verify(directory)


@pytest.mark.parametrize("name", ["dict.de.txt", "dict.tag.txt"])
@pytest.mark.parametrize("content", [None, b"\xff\n", b"no count\n"])
def test_a_dictionary_that_is_missing_or_damaged_is_named(directory, name, content):
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} is (missing|damaged)"):
        verify(directory)
