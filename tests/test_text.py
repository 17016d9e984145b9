"""Reading text line by line, whatever is in it."""

import gzip
import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store.dictionaries import load_dictionary
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import find_text, read_json, read_lines
from tests.support.hostile import lines
from tests.support.repository import REPOSITORY


def write(path, content):
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.fixture(params=["a.de", "a.de.gz"])
def path(request, tmp_path):
    return tmp_path / request.param


@given(texts=st.lists(lines(4), max_size=4))
def test_lines_end_at_line_feeds_alone_whatever_they_hold(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("text") / "a.de"
    write(path, "".join(text + "\n" for text in texts).encode())
    # A carriage return before the line feed belongs to the line's end, a mark to the file's start.
    expected = [text.removesuffix("\r") for text in texts]
    expected[:1] = [text.removeprefix("\ufeff") for text in expected[:1]]
    assert list(read_lines(path)) == expected


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 51 + "1" + "}" * 51, "[" * 51 + "]" * 51]
)
def test_json_that_is_nested_deeply_is_refused(text):
    with pytest.raises(ValueError, match="nested more than 50 times"):
        read_json(text)
    assert read_json('{"a": [1, {}], "b": null}') == {"a": [1, {}], "b": None}


def test_only_one_function_reads_json():
    reasons = {
        "text.py": "the function",
        "checkpoints/trust.py": "whatever is nested deeply is refused",
        "parsers/other_formats.py": "a command in a message",
    }
    package = REPOSITORY / "fairseq_phrase"
    readers = {file for file in package.rglob("*.py") if "json.load" in file.read_text("utf-8")}
    assert {file.relative_to(package).as_posix() for file in readers} == reasons.keys()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\nb\n", ["a", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ],
)
def test_line_ends_and_the_byte_order_mark_are_dropped(path, content, expected):
    assert list(read_lines(write(path, content))) == expected


def test_a_line_that_is_not_utf8_is_named(path):
    write(path, "gut\nauch gut\nschön\n".encode("latin-1"))
    with pytest.raises(UserError, match=rf"{path}, line 3: not UTF-8"):
        list(read_lines(path))


def test_lines_before_the_one_that_is_not_utf8_are_read(path):
    stream = read_lines(write(path, b"a\n\xff\n"))
    assert next(stream) == "a"
    with pytest.raises(UserError, match="line 2"):
        next(stream)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match="gone is not there"):
        list(read_lines(tmp_path / "gone"))


COMPRESSED = gzip.compress(b"Das ist ein Haus.\n" * 50)


@pytest.mark.parametrize(
    "content",
    [
        b"plain text\n",
        COMPRESSED[:-4],
        COMPRESSED[: len(COMPRESSED) // 2],
        COMPRESSED[:20] + b"\xff\xff\xff\xff" + COMPRESSED[24:],
        COMPRESSED[:-8] + b"\0\0\0\0" + COMPRESSED[-4:],
    ],
    ids=["not gzip", "without its end", "half", "garbled", "wrong checksum"],
)
def test_a_damaged_gzip_file_is_named(tmp_path, content):
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path} is not a whole gzip file"):
        list(read_lines(path))


def test_plain_text_is_found_before_compressed_text(tmp_path):
    prefix = str(tmp_path / "train")
    write(tmp_path / "train.de.gz", b"")
    assert find_text(prefix, "de") == tmp_path / "train.de.gz"
    write(tmp_path / "train.de", b"")
    assert find_text(prefix, "de") == tmp_path / "train.de"


def test_text_that_is_nowhere_is_named_with_both_names(tmp_path):
    (tmp_path / "train.de").mkdir()
    with pytest.raises(UserError, match=r"train\.de nor .*train\.de\.gz is there"):
        find_text(str(tmp_path / "train"), "de")


def test_a_place_is_a_file_and_perhaps_a_line():
    assert location("a.de") == "a.de"
    assert location("a.de", 1) == "a.de, line 1"


def test_a_pipe_whose_text_is_read_twice_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.de")
    with pytest.raises(
        UserError, match=r"the text .*a.de is a pipe, and it is read more than once"
    ):
        find_text(str(tmp_path / "a"), "de")


def test_a_dictionary_comes_through_a_pipe(tmp_path):
    pipe = tmp_path / "dict"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("Hund 5\nläuft 3\n", encoding="utf-8"))
    writer.start()
    dictionary = load_dictionary(pipe)
    assert dictionary.symbols[dictionary.nspecial :] == ["Hund", "läuft"]
    writer.join(10)
