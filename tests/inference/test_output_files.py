"""Files of translations: what an interrupted run goes on with, and parts that are joined."""

from __future__ import annotations

import re
import resource
import sys
from itertools import islice
from pathlib import Path

import pytest

from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.data.store.outputs import only_writer
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.output_files import (
    FREE_ARGUMENTS,
    OutputFile,
    Shard,
    output_key,
    write_outputs,
)
from fairseq_phrase.inference.raw_lines import Line
from fairseq_phrase.parsers.whitespace import WhitespaceParser
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.small_checkpoints import make_checkpoint, make_data

CHUNKS = [(1, [Line("one")]), (2, [Line("two"), Line("three")]), (4, [Line("four")])]


def translated(chunks):
    for _, lines in chunks:
        yield len(lines), "".join(f"{line.text.upper()}\n" for line in lines).encode()


def stopped_after(count):
    def translate(chunks):
        chunks_of_text = translated(chunks)
        yield from islice(chunks_of_text, count)
        raise KeyboardInterrupt

    return translate


@pytest.fixture
def begun(tmp_path):
    """Write an output file of which two chunks are translated, and return it."""
    path = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        OutputFile(path, {"beam": "5"}).write(iter(CHUNKS), stopped_after(2), print)
    assert (tmp_path / "out.partial").read_bytes() == b"ONE\nTWO\nTHREE\n"
    return path


def truncate(path, size):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "kept"),
    [
        (lambda path: None, 3),
        (lambda path: truncate(path.with_name("out.partial"), 13), 1),
        (lambda path: truncate(path.with_name("out.partial"), 3), 0),
        (lambda path: truncate(path.with_name("out.key"), -3), 1),
        (lambda path: path.with_name("out.partial").write_bytes(b"ONE\nTWO\nTHREX\n"), 1),
        (lambda path: path.with_name("out.partial").unlink(), 0),
    ],
)
def test_whole_chunks_are_kept(begun, damage, kept):
    damage(begun)
    skipped = []
    count = OutputFile(begun, {"beam": "5"}).write(iter(CHUNKS), translated, skipped.append)
    assert begun.read_bytes() == b"ONE\nTWO\nTHREE\nFOUR\n"
    assert (sum(skipped), count) == (kept, 4 - kept)


def test_lines_with_other_parses_are_other_lines(tmp_path):
    def chunks(heads):
        parse = ParsedSentence(["two", "words"], [True, True], tree=DependencyTree(heads))
        return [(1, [Line("two words", parse=parse)]), *CHUNKS[2:]]

    with pytest.raises(KeyboardInterrupt):
        OutputFile(tmp_path / "out", {}).write(iter(chunks([1, 1])), stopped_after(1), print)
    with pytest.raises(UserError, match="other lines than 1 to 1 of this text"):
        OutputFile(tmp_path / "out", {}).write(iter(chunks([0, 0])), translated, print)
    OutputFile(tmp_path / "out", {}).write(iter(chunks([1, 1])), translated, print)
    assert (tmp_path / "out").read_bytes() == b"TWO WORDS\nFOUR\n"


@pytest.mark.parametrize(
    ("key", "chunks", "message"),
    [
        (
            {"beam": "4"},
            CHUNKS,
            "out.partial was made with beam 5; this run has beam 4: give the same",
        ),
        ({}, CHUNKS, "out.partial was made with beam 5; this run has beam (none)"),
        (
            {"beam": "5"},
            [CHUNKS[0], (2, [Line("two"), Line("other")])],
            "out.partial has the output for other lines than 2 to 3 of this text",
        ),
        (
            {"beam": "5"},
            [CHUNKS[0], (2, [Line("two", target="a"), Line("three")])],
            "out.partial has the output for other lines than 2 to 3",
        ),
        ({"beam": "5"}, CHUNKS[:1], "the output for more lines than this text, which has 1"),
    ],
)
def test_what_something_else_made_is_refused_and_kept(begun, key, chunks, message):
    before = {path.name: path.read_bytes() for path in begun.parent.iterdir()}
    with pytest.raises(UserError, match=re.escape(message)):
        OutputFile(begun, key).write(iter(chunks), translated, print)
    assert {path.name: path.read_bytes() for path in begun.parent.iterdir()} == before


@pytest.fixture
def parts(tmp_path):
    """Write one of two parts; returns what writes a part with a key."""

    def write(number, key, chunks=CHUNKS, whole=tmp_path / "out"):
        return write_outputs(whole, Shard(number, 2), key, iter(chunks), translated, print)

    assert write(1, {"text": "a"}) == (4, ["out.2-of-2"])
    return write


@pytest.mark.parametrize("number", [1, 2])
def test_parts_of_another_text_are_neither_kept_nor_joined(parts, number, tmp_path):
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    message = (
        "out.1-of-2 was made with text a; this run has text b: give the same options and files"
    )
    with pytest.raises(UserError, match=message):
        parts(number, {"text": "b"})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert parts(2, {"text": "a"}) == (4, [])
    assert (tmp_path / "out").read_bytes() == (tmp_path / "out.1-of-2").read_bytes() * 2


def test_parts_that_were_changed_or_have_no_key_are_refused(parts, tmp_path):
    (tmp_path / "out.2-of-2").write_text("of something else\n")
    with pytest.raises(UserError, match=r"without out\.2-of-2\.key, which records what made it"):
        parts(1, {"text": "a"})
    (tmp_path / "out.2-of-2").unlink()
    with open(tmp_path / "out.1-of-2", "ab") as stream:
        stream.write(b"more\n")
    with pytest.raises(UserError, match=r"out\.1-of-2 is not as it was written"):
        parts(2, {"text": "a"})
    assert not (tmp_path / "out").exists()


def test_a_whole_file_is_not_overwritten_by_parts(parts, tmp_path):
    (tmp_path / "out").write_text("of something else\n")
    with pytest.raises(UserError, match="out is there already"):
        parts(2, {"text": "a"})
    (tmp_path / "out").unlink()
    parts(2, {"text": "a"})
    parts(1, {"text": "a"})  # all is there
    (tmp_path / "out").write_text("of something else\n")
    with pytest.raises(UserError, match="is there already, and its parts have other text"):
        parts(1, {"text": "a"})
    assert (tmp_path / "out").read_text() == "of something else\n"
    assert not [*tmp_path.glob("*.partial")]


def test_one_process_writes_a_file(tmp_path):
    out = tmp_path / "out"
    with only_writer(out), pytest.raises(UserError, match=r"another run \(process .* at work in"):
        write_outputs(out, None, {}, iter(CHUNKS), translated, print)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("limit", [5, 40])
def test_a_disk_that_is_full_is_named_and_what_is_whole_is_kept(tmp_path, limit):
    out, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as failed:
            write_outputs(out, None, {}, iter(CHUNKS), translated, print)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Path(failed.value.filename).parent == tmp_path
    write_outputs(out, None, {}, iter(CHUNKS), translated, print)
    assert out.read_bytes() == b"ONE\nTWO\nTHREE\nFOUR\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_all_options_are_in_the_key_unless_they_are_declared_free():
    """An option that is renamed, or added, is compared."""
    options = {action.dest for action in translate_command.make_parser()._actions} | {"data"}
    assert FREE_ARGUMENTS.keys() <= options
    assert {"beam", "nbest", "lenpen", "batch_size"}.isdisjoint(FREE_ARGUMENTS)


@pytest.mark.parametrize(
    "content", [b"ONE\nTWO\nTHREX\n", b"ONE\nTWO\nTHREE\n\n", b"ONE\nTWO\n", b""]
)
def test_a_finished_part_with_other_content_is_not_joined(tmp_path, content):
    """As many bytes as were written, more or fewer."""
    path, parts = tmp_path / "out", [Shard(1, 2), Shard(2, 2)]
    write_outputs(path, parts[0], {}, iter(CHUNKS[:2]), translated, print)
    changed = parts[0].path(path)
    changed.write_bytes(content)
    for part, chunks in zip(parts, (CHUNKS[:2], CHUNKS[2:]), strict=True):
        with pytest.raises(UserError, match=r"out.1-of-2 is not as it was written: remove it and"):
            write_outputs(path, part, {}, iter(chunks), translated, print)
    assert not path.exists()
    assert changed.read_bytes() == content
    changed.write_bytes(b"ONE\nTWO\nTHREE\n")
    write_outputs(path, parts[1], {}, iter(CHUNKS[2:]), translated, print)
    assert path.read_bytes() == b"ONE\nTWO\nTHREE\nFOUR\n"


@pytest.mark.parametrize("record", ["[", "{}", '["a", "b", "c"]', '["a", 1]', "3"])
def test_a_damaged_record_is_one_message(begun, record):
    note = begun.with_name("out.key")
    note.write_text(note.read_text() + record + "\n")
    with pytest.raises(UserError, match=r"out.key is damaged: .* Remove all of them"):
        OutputFile(begun, {"beam": "5"}).write(iter(CHUNKS), translated, print)
    assert begun.with_name("out.partial").read_bytes() == b"ONE\nTWO\nTHREE\n"


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def states_of(folder, run):
    """The files of a folder before each line of code that a run executes: what a kill there leaves."""
    states = []

    def trace(frame, event, argument):
        if Path(frame.f_code.co_filename).name not in ("output_files.py", "outputs.py"):
            return None
        if event == "line" and (files := files_of(folder)) not in states:
            states.append(files)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return states


@pytest.mark.parametrize("shards", [(None,), (Shard(1, 2), Shard(2, 2))], ids=["whole", "parts"])
def test_a_kill_at_any_line_leaves_nothing_half_written_and_the_next_run_gives_the_same_files(
    shards, tmp_path
):
    chunks_of = {None: CHUNKS, Shard(1, 2): CHUNKS[:2], Shard(2, 2): CHUNKS[2:]}

    def run(folder, shard):
        chunks = iter(chunks_of[shard])
        write_outputs(folder / "out", shard, {"beam": "5"}, chunks, translated, [].append)

    folder, killed = tmp_path / "whole", []
    folder.mkdir()
    for number, shard in enumerate(shards):
        states = states_of(folder, lambda shard=shard: run(folder, shard))
        killed += [(shards[number:], files) for files in states]
    expected = files_of(folder)
    assert expected["out"] == b"ONE\nTWO\nTHREE\nFOUR\n"
    assert len(killed) > 10
    for number, (remaining, files) in enumerate(killed):
        for name, text in files.items():
            assert text == expected.get(name, text) or name.endswith(".key")
        if shards == (None,) and "out" in files and "out.key" not in files:
            continue  # the run has ended
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_bytes(text)
        for shard in remaining:
            run(folder, shard)
        assert files_of(folder) == expected, files


class Numbered(WhitespaceParser):
    """A plugin's parser: its version is the same for all arguments."""

    version = "numbered 1"

    def __init__(self, argument=""):
        self.argument = argument


def test_the_argument_of_a_plugins_parser_is_in_the_key(tmp_path, install_parser):
    install_parser(Numbered)
    data, text = make_data(tmp_path / "data", "of-test:1"), tmp_path / "text"
    text.write_text("Hund\n")
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "transformer")
    options = dict.fromkeys(FREE_ARGUMENTS, None)
    options |= {"path": str(checkpoint), "data": str(data), "inputs": [text]}

    def key(parser):
        return dict(output_key({**options, "source_parser": parser}))

    assert key("of-test:1") == key(None)
    different = {name for name, value in key("of-test:2").items() if value != key(None)[name]}
    assert different == {"parser of the text"}
    assert len({key(name)["parser of the text"] for name in ("of-test", "of-test:2", "none")}) == 3
