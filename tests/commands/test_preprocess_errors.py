"""Bad input to preprocessing: one message, a non-zero status, and nothing good overwritten."""

import errno
import gzip
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import preprocess as preprocess_module
from fairseq_phrase.data.preprocessing.blocks import BlockFolder
from fairseq_phrase.data.store.indexed import IndexedWriter
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.text import read_lines
from tests.support.data_tasks import make_task
from tests.support.warm_start import python

DOG = "1\tHund\t_\tNOUN\t_\t_\t{}\troot\t_\t_\n2\tbellt\t_\tVERB\t_\t_\t{}\tdep\t_\t_\n\n"


class Workplace:
    """Raw text, and a good data directory that no failure may touch."""

    def __init__(self, folder: Path, corpus: Path, good: Path):
        self.raw, self.destination = folder / "raw", folder / "out"
        self.raw.mkdir()
        for suffix in ("de", "en", "de.conllu"):
            shutil.copyfile(corpus / f"valid.{suffix}", self.raw / f"train.{suffix}")
        shutil.copytree(good, self.destination)
        manifest = Manifest.load(good, "de")
        manifest.splits = {"train.de-en": manifest.splits["train.de-en"]}
        manifest.save(self.destination)
        for path in self.destination.glob("*.de-en.*"):
            if not path.name.startswith("train."):
                path.unlink()
        self.before = self.contents()

    def contents(self) -> dict[str, bytes]:
        files = (path for path in self.destination.rglob("*") if path.is_file())
        return {str(path.relative_to(self.destination)): path.read_bytes() for path in files}

    def arguments(self, *options: str) -> list[str]:
        arguments = ["-s", "de", "-t", "en", "--trainpref", str(self.raw / "train")]
        arguments += ["--destdir", str(self.destination)]
        return [
            *arguments,
            *(() if "--vocab-size" in options else ("--vocab-size", "200")),
            *options,
        ]

    def lines(self, suffix: str) -> list[str]:
        return list(read_lines(self.raw / f"train.{suffix}"))

    def write(self, suffix: str, content: str | bytes | list[str]) -> None:
        if isinstance(content, list):
            content = "".join(line + "\n" for line in content)
        content = content.encode() if isinstance(content, str) else content
        (self.raw / f"train.{suffix}").write_bytes(content)


@pytest.fixture
def workplace(tmp_path, synthetic_corpus, data_directory):
    return Workplace(tmp_path, synthetic_corpus, data_directory)


@pytest.fixture
def fails(workplace, capsys):
    """Run and return the one message; check that it is one, and that nothing was touched."""

    def run(*options):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main(workplace.arguments(*options))
        captured = capsys.readouterr()
        assert caught.value.code == 2
        assert captured.out == ""
        messages = [line for line in captured.err.splitlines() if "error" in line.lower()]
        assert len(messages) == 1
        assert "Traceback" not in captured.err
        assert workplace.contents() == workplace.before
        return messages[0].split("error: ", 1)[1]

    return run


@pytest.mark.parametrize(
    ("german", "english", "message"),
    [
        (["a"] * 100, ["a"] * 99, "train.en has 99"),
        (["a"] * 100, [], "train.de has 100 lines"),
        ([], [], "train.en are empty"),
        (["", " "], ["", " "], "on this text (it has no words)"),
    ],
)
def test_sides_without_pairs_are_named(workplace, fails, german, english, message):
    workplace.write("de", german)
    workplace.write("en", english)
    assert message in fails()


def test_the_list_of_left_out_lines_is_not_written_over_what_the_run_reads(workplace, fails):
    folder, text, parses = workplace.raw, workplace.raw / "train.de", "train.de.conllu"
    link, before = folder / "link", text.read_bytes()
    link.symlink_to(text)
    for path in (text, link, folder / parses):
        message = fails("--parser", "conllu", "--list-left-out", str(path))
        assert "is a file that this run reads" in message
    assert "is a folder" in fails("--list-left-out", str(folder))
    dictionary = workplace.destination / "dict.de.txt"
    assert "reads" in fails("--srcdict", str(dictionary), "--list-left-out", str(dictionary))
    assert text.read_bytes() == before


@pytest.mark.fast(2)
@pytest.mark.parametrize("side", ["de", "en"])
@pytest.mark.parametrize("line", ["", "\t\u3000"])
def test_a_side_of_empty_lines_or_spaces_alone_leaves_no_pair(workplace, fails, side, line):
    workplace.write(side, [line] * 100)
    assert "train.de is left: 100 have an empty side" in fails()


@pytest.mark.parametrize(
    ("line", "problem"), [("  ", "one side is empty"), ("Haus " * 100, "over")]
)
def test_strict_stops_at_an_empty_or_too_long_pair(workplace, fails, line, problem):
    lines = workplace.lines("de")
    lines[6] = line
    workplace.write("de", lines)
    for suffix in ("de", "en"):
        workplace.write(suffix, [text[:30] if i != 6 else text
                                 for i, text in enumerate(workplace.lines(suffix))])  # fmt: skip
    message = fails("--strict", "--max-length", "60")
    assert "train.de, line 7 (and " in message
    assert ("--max-length is 60" if problem == "over" else problem) in message


# Every fault of a file is in the tests of its parser.
@pytest.mark.parametrize(
    ("content", "place", "problem"),
    [
        (DOG.format(0, 9), "line 2", "word 2 has head 9"),
        (DOG.format(0, 1), "conllu", "missing at the end: line 2 of the text has none (1 trees"),
        (DOG.format(0, 1) * 3, "line 7", "more trees here than lines"),
        (b"", "conllu", "2 trees are missing at the end: lines 1 to 2 of the text have none (0"),
    ],
)
def test_faulty_parses_are_named_with_file_and_line(
    workplace, fails, content, place, problem, data_directory
):
    for side in ("de", "en"):
        workplace.write(side, ["Hund bellt"] * 2)
    workplace.write("de.conllu", content)
    model = str(data_directory / "spm.model")
    message = fails("--parser", "conllu", "--sentencepiece-model", model)
    assert "train.de.conllu" in message
    assert place in message
    assert problem in message


@pytest.mark.parametrize("option", ["--sentencepiece-model", "--srcdict", "--tgtdict"])
def test_a_missing_model_or_dictionary_is_named(fails, option, tmp_path):
    assert f"{tmp_path / 'gone'} is not there" in fails(option, str(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"Haus drei\n", "is not a fairseq dictionary"),
        (b"Haus\n", "is not a fairseq dictionary"),
        (b"Haus 3\nHaus 4\n", "is not a fairseq dictionary"),
        (b"Haus 3\nH\xe4user 4\n", "line 2: not UTF-8"),
    ],
)
def test_a_dictionary_that_is_none_is_named(fails, tmp_path, content, problem):
    (tmp_path / "dict.txt").write_bytes(content)
    message = fails("--srcdict", str(tmp_path / "dict.txt"))
    assert "dict.txt" in message
    assert problem in message


def test_a_destination_with_other_splits_is_refused_not_forgotten(workplace, fails):
    manifest = Manifest.load(workplace.destination, "de")
    manifest.splits["test.de-en"] = manifest.splits["train.de-en"]
    manifest.save(workplace.destination)
    workplace.before = workplace.contents()
    message = fails()
    assert "also holds test.de-en" in message
    assert "another --destdir" in message


@pytest.mark.parametrize("text", ["test.de-en.de", "train.fr-en.en"])
def test_a_destination_with_other_text_of_its_dictionaries_is_refused(workplace, fails, text):
    for end in ("bin", "idx"):
        train = workplace.destination / f"train.de-en.{text[-2:]}.{end}"
        shutil.copyfile(train, workplace.destination / f"{text}.{end}")
    workplace.before = workplace.contents()
    assert f"also holds {text}, which" in fails()


def test_text_of_another_pair_stays_with_its_dictionary(workplace):
    other_index = workplace.destination / "train.fr-en.en.idx"
    shutil.copyfile(workplace.destination / "train.de-en.en.idx", other_index)
    model, dictionaries = workplace.destination / "spm.model", workplace.destination
    main(workplace.arguments(
        "--sentencepiece-model", str(model), "--srcdict", str(dictionaries / "dict.de.txt"),
        "--tgtdict", str(dictionaries / "dict.en.txt"),
    ))  # fmt: skip
    assert other_index.is_file()


def test_the_target_of_an_earlier_test_set_is_not_left_beside_a_text_without_one(
    workplace, tmp_path, refused
):
    for suffix in ("de", "en"):
        shutil.copyfile(workplace.raw / f"train.{suffix}", workplace.raw / f"test.{suffix}")
    tests = ("--testpref", str(workplace.raw / "test"), "--destdir", str(tmp_path / "new"))
    main(workplace.arguments(*tests))
    (workplace.raw / "test.en").unlink()
    assert "also holds test.de-en.en, which" in refused(main, workplace.arguments(*tests))


def test_splits_that_a_stopped_run_had_finished_are_not_forgotten(workplace, refused):
    ready = workplace.destination / ".partial" / "ready"
    ready.mkdir(parents=True)
    manifest = Manifest.load(workplace.destination, "de")
    Manifest.path(workplace.destination, "de").unlink()
    manifest.splits["test.de-en"] = manifest.splits["train.de-en"]
    manifest.save(ready)
    assert "also holds test.de-en" in refused(main, workplace.arguments())
    assert Manifest.load(workplace.destination, "de") == manifest


def test_one_language_on_both_sides_is_refused(fails):
    assert "are both 'de'" in fails("-t", "de")


@pytest.mark.parametrize(
    ("bpe", "message"),
    [("sentencepiece", "model with --sentencepiece-model"), ("none", "--srcdict and --tgtdict")],
)
def test_a_test_set_alone_asks_for_what_the_training_data_have(workplace, capsys, bpe, message):
    with pytest.raises(SystemExit):
        main(["-s", "de", "-t", "en", "--testpref", str(workplace.raw / "train"), "--destdir",
              str(workplace.destination.with_name("new")), "--bpe", bpe, "--parser", "none"])  # fmt: skip
    assert f"give the training data's {message}" in capsys.readouterr().err
    assert workplace.contents() == workplace.before


def test_a_file_where_the_destination_should_be_is_left_alone(workplace, fails, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "file is a file: name a folder" in fails("--destdir", str(tmp_path / "file"))
    assert str(tmp_path / "file") in fails("--destdir", str(tmp_path / "file" / "out"))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.fast(3)
@pytest.mark.parametrize("at", ["blocks", "manifest", "text"])
@pytest.mark.parametrize("new", [False, True], ids=["over good data", "in a new folder"])
def test_a_full_disk_is_reported_and_leaves_what_was_there(
    workplace, fails, monkeypatch, tmp_path, at, new
):
    def no_space(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    where = {
        "blocks": (BlockFolder, "write"),
        "manifest": (Manifest, "save"),
        "text": (IndexedWriter, "append"),
    }
    monkeypatch.setattr(*where[at], no_space)
    destination = tmp_path / "new" if new else workplace.destination
    message = fails("--destdir", str(destination))
    assert message == f"cannot write to {destination}: No space left on device"
    assert destination.exists() == (not new)


def test_ctrl_c_ends_with_130_and_leaves_what_was_there(workplace, capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    # Ctrl-C after the second pass.
    monkeypatch.setattr(Manifest, "save", interrupt)
    with pytest.raises(SystemExit) as caught:
        main(workplace.arguments())
    assert caught.value.code == 130
    *_, message, again = capsys.readouterr().err.splitlines()
    assert "interrupted; what is parsed so far is kept" in message
    assert again.strip() == shlex.join(["fairseq-phrase-preprocess", *workplace.arguments()])
    assert workplace.contents() == workplace.before


def test_what_a_killed_run_left_does_not_hinder_the_next(workplace):
    leftover = workplace.destination / ".partial"
    leftover.mkdir()
    (leftover / "files").mkdir()
    (leftover / "files" / "train.de-en.de.words.bin").write_bytes(b"half")
    main(workplace.arguments())
    assert not leftover.exists()
    assert workplace.contents().keys() >= {"syntax.de.json", "train.de-en.de.words.bin"}


def test_a_process_prints_one_message_and_no_traceback(workplace):
    workplace.write("en", workplace.lines("en")[:-1])
    command = [python(), "-m", "fairseq_phrase", "preprocess", *workplace.arguments()]
    process = subprocess.run(command, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("fairseq-phrase-preprocess: error: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.fast(3)
@pytest.mark.parametrize("suffix", ["de", "en", "de.conllu"])
@pytest.mark.parametrize("longer", [True, False])
def test_a_file_that_is_replaced_while_it_is_read_is_named(
    workplace, suffix, longer, monkeypatch, capsys
):
    parse_and_count = preprocess_module.parse_and_count

    def replaced(*args):
        workplace.write(suffix, [*workplace.lines(suffix), "one more"][:: 1 if longer else -1])
        return parse_and_count(*args)

    # The text changes after it was found, and before it is read.
    monkeypatch.setattr(preprocess_module, "parse_and_count", replaced)
    with pytest.raises(SystemExit) as stopped:
        main(workplace.arguments("--parser", "conllu"))
    assert stopped.value.code == 2
    assert f"train.{suffix} has changed while it was read: run again" in capsys.readouterr().err
    assert workplace.contents() == workplace.before


@pytest.mark.fast(1)
@pytest.mark.parametrize("suffix", ["en", "de.conllu"])
def test_a_text_and_a_packed_text_of_other_content_are_refused(workplace, suffix, refused):
    lines = workplace.lines(suffix)
    packed = workplace.raw / f"train.{suffix}.gz"
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    main([*workplace.arguments("--parser", "conllu"), "--destdir", str(workplace.raw / "out")])
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines[:-1]).encode()))
    message = refused(main, workplace.arguments("--parser", "conllu"))
    assert f"train.{suffix}, line {len(lines)}: {packed} has another line here" in message


def test_new_text_needs_no_target(workplace, capsys, data_directory):
    for name in ("train.de", "train.de.conllu"):
        shutil.copyfile(workplace.raw / name, workplace.raw / name.replace("train", "new"))
    main([
        "-s", "de", "-t", "en", "--testpref", str(workplace.raw / "new"), "--parser", "conllu",
        "--srcdict", str(data_directory / "dict.de.txt"), "--destdir", str(workplace.raw / "out"),
        "--tgtdict", str(data_directory / "dict.en.txt"),
        "--sentencepiece-model", str(data_directory / "spm.model"),
    ])  # fmt: skip
    count = len(workplace.lines("de"))
    assert f"test: {count} sentences without a target; " in capsys.readouterr().out
    files = {path.name for path in (workplace.raw / "out").iterdir()}
    assert "test.de-en.de.heads.bin" in files
    assert "test.de-en.en.bin" not in files
    task = make_task(workplace.raw / "out", source_lang="de", target_lang="en")
    task.load_dataset("test")
    batch = task.dataset("test").collater([task.dataset("test")[0], task.dataset("test")[1]])
    assert batch.get("target") is None
    with pytest.raises(SystemExit):
        main(["-s", "de", "-t", "en", "--trainpref", str(workplace.raw / "new")])
    assert "new.en.gz is there" in capsys.readouterr().err
