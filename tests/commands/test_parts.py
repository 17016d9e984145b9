"""A training text in parts: what one data directory has, divided among several, also after a kill."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from itertools import chain

import pytest
from fairseq_cli import train as fairseq_train

from fairseq_phrase.cli.inspect_data import main as inspect
from fairseq_phrase.cli.preprocess import main
from fairseq_phrase.data.preprocessing import texts
from fairseq_phrase.data.store.indexed import IndexedReader
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.parts import log_text
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_lines
from tests.support.commands import PHRASE, SIZES, TRAINING, run, train_with_stops
from tests.support.warm_start import python

LINES = 400
PAIR = ("data1", "data2")


@pytest.fixture(scope="module")
def text(synthetic_corpus, tmp_path_factory):
    """400 sentence pairs with trees, two of which are left out; and short valid and test sets."""
    folder = tmp_path_factory.mktemp("text")
    for split, source, count in (
        ("train", "train", LINES),
        ("valid", "valid", 20),
        ("test", "test", 20),
    ):
        for language in ("de", "en"):
            lines = list(read_lines(synthetic_corpus / f"{source}.{language}"))[:count]
            if split == "train" and language == "en":
                lines[30] = lines[260] = ""
            (folder / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
        trees = (synthetic_corpus / f"{source}.de.conllu").read_text().split("\n\n")[:count]
        (folder / f"{split}.de.conllu").write_text("\n\n".join(trees) + "\n\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def short_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "BLOCK_LINES", 50)
        yield


def options(text, out, *more, splits=("train", "valid", "test")):
    prefixes = [f"--{split}pref={text / split}" for split in splits]
    return ["-s", "de", "-t", "en", *prefixes, "--destdir", str(out), "--vocab-size", "200",
            "--parser", "conllu", *more]  # fmt: skip


def preprocess(text, out, *more, **others):
    main(options(text, out, *more, **others))
    return out


def files(directory):
    names = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in names}


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    return preprocess(text, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def parts(text, tmp_path_factory):
    out = preprocess(text, tmp_path_factory.mktemp("parts"), "--parts", "3")
    return [out / name for name in ("data1", "data2", "data3")]


def sentences(directory, name):
    reader = IndexedReader(directory / name)
    return [reader[index].tolist() for index in range(len(reader))]


def test_the_parts_together_have_the_sentences_of_one_data_directory(whole, parts):
    assert sorted(path.name for path in parts[0].parent.iterdir()) == ["data1", "data2", "data3"]
    for language in ("de", "en"):
        name = f"train.de-en.{language}"
        assert [*chain.from_iterable(sentences(part, name) for part in parts)] == sentences(
            whole, name
        )
    fields = {"words", "heads", "deprels", "tags"}
    stores = [ParseStore(folder, "train.de-en", "de", fields) for folder in (*parts, whole)]
    assert [len(store) for store in stores] == [132, 132, 134, 398]
    *divided, expected = ([store[index] for index in range(len(store))] for store in stores)
    for parse, expected_parse in zip(chain.from_iterable(divided), expected, strict=True):
        assert {name: values.tolist() for name, values in parse.items()} == {
            name: values.tolist() for name, values in expected_parse.items()
        }


def test_all_else_is_the_same_in_each_part(whole, parts):
    for part in parts:
        names = [name for name in files(whole) if not name.startswith(("train.", "syntax."))]
        assert {"dict.deprel.txt", "test.de-en.de.heads.bin", "valid.de-en.en.idx"} < {*names}
        assert all((part / name).read_bytes() == (whole / name).read_bytes() for name in names)
        assert sorted(files(part)) == sorted(files(whole))
        assert Manifest.load(part, "de").identity() == Manifest.load(whole, "de").identity()


def test_the_log_has_a_digest_of_the_text_that_is_trained_on(whole, parts, caplog):
    with caplog.at_level("INFO"):
        for directories in (parts, parts[::-1], parts[:1], [whole]):
            log_text(list(map(str, directories)), "train")
    digests = [record.getMessage() for record in caplog.records]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    inspect([str(parts[2])])


def test_messages_have_the_lines_of_the_whole_text(text, parts, capsys):
    record = Manifest.load(parts[1], "de").splits["train.de-en"]
    assert (record.line_of(0), record.line_of(126), record.line_of(127)) == (134, 260, 262)
    assert record.left_out == {"empty": "261"}
    inspect([str(parts[1]), "--subset", "train", "--line", "262"])
    words = next(
        line for number, line in enumerate(read_lines(text / "train.de"), 1) if number == 262
    )
    assert words.split()[0] in capsys.readouterr().out
    for line, message in (
        (133, "lines 134 to 266, not 133"),
        (261, "line 261 of the text was left out"),
    ):
        with pytest.raises(SystemExit):
            inspect([str(parts[1]), "--subset", "train", "--line", str(line)])
        assert message in capsys.readouterr().err


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    "more",
    [
        ["--workers", "2"],
        ["--joined-dictionary", "--copy-words", "3", "--bpe", "none", "--min-count", "2"],
        ["--protected-tokens", "<g>", "--on-error", "flat"],
    ],
    ids=["workers", "copied words", "tokens"],
)
def test_parts_have_what_one_directory_has_with_other_options(text, tmp_path, monkeypatch, more):
    if "none" in more:
        more = [*more, "--vocab-size", "8000"]
    # So few that a second process is worth its start.
    monkeypatch.setattr("fairseq_phrase.data.preprocessing.engines.LINES_PER_PROCESS", 20)
    preprocess(text, tmp_path / "whole", *more)
    preprocess(text, tmp_path / "parts", *more, "--parts", "2")
    first, second = tmp_path / "parts" / "data1", tmp_path / "parts" / "data2"
    names = {path.stem for path in (tmp_path / "whole").glob("train.*.idx")}
    assert len(names) > 3
    for name in names:
        divided = sentences(first, name) + sentences(second, name)
        assert divided == sentences(tmp_path / "whole", name)
    for path in (tmp_path / "whole").glob("dict.*"):
        assert (second / path.name).read_bytes() == path.read_bytes()


def test_text_of_one_language_and_labels_are_divided_too(text, tmp_path):
    only = ["-s", "de", "--only-source", "--trainpref", str(text / "train"), "--vocab-size", "200"]
    main([*only, "--parser", "conllu", "--parts", "2", "--destdir", str(tmp_path / "one")])
    for part in PAIR:
        linked, with_language = (
            tmp_path / "one" / part / name for name in ("train.bin", "train.de.bin")
        )
        assert linked.read_bytes() == with_language.read_bytes()
    counts = [len(IndexedReader(tmp_path / "one" / f"data{part}" / "train")) for part in (1, 2)]
    assert counts == [200, 200]
    labels = tmp_path / "labels"
    labels.mkdir()
    shutil.copyfile(text / "train.de", labels / "train.de")
    lines = [
        " ".join("ab"[len(word) % 2] for word in line.split())
        for line in read_lines(text / "train.de")
    ]
    (labels / "train.tags").write_text("".join(f"{line}\n" for line in lines))
    pair = ["-s", "de", "-t", "tags", "--labels", "word", "--parser", "none", "--bpe", "none"]
    folders = ["--trainpref", str(labels / "train"), "--destdir", str(labels / "out")]
    main([*pair, *folders, "--parts", "2"])
    first, second = ((labels / "out" / part / "dict.tags.txt").read_text() for part in PAIR)
    assert first == second
    assert len(first.splitlines()) == 2


def test_lines_that_are_left_out_are_listed_once(text, tmp_path):
    preprocess(text, tmp_path / "a", "--list-left-out", str(tmp_path / "whole.tsv"))
    preprocess(text, tmp_path / "b", "--list-left-out", str(tmp_path / "parts.tsv"), "--parts", "4")
    assert (tmp_path / "parts.tsv").read_text() == (tmp_path / "whole.tsv").read_text()
    assert len((tmp_path / "parts.tsv").read_text().splitlines()) == 3


def test_the_list_names_the_source_after_lines_that_the_subword_model_changes(text, tmp_path):
    folder, listed = tmp_path / "text", tmp_path / "listed.tsv"
    shutil.copytree(text, folder)
    lines = list(read_lines(folder / "train.en"))
    lines[5] = lines[5].replace("a", "\N{FULLWIDTH LATIN SMALL LETTER A}")
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    more = ("--normal-form", "nfkc", "--list-left-out", str(listed))
    preprocess(folder, tmp_path / "out", *more)
    rows = [row.split("\t")[:2] for row in listed.read_text().splitlines()[1:]]
    assert rows == [[str(folder / "train.de"), "31"], [str(folder / "train.de"), "261"]]


def test_flat_trees_are_counted_in_the_whole_text(text, tmp_path, capsys):
    """8 of the last 50 lines have no parse: 2% of the text, and 16% of the last part."""
    folder = tmp_path / "text"
    shutil.copytree(text, folder)
    trees = (folder / "train.de.conllu").read_text().split("\n\n")
    trees[350:358] = [trees[0]] * 8
    (folder / "train.de.conllu").write_text("\n\n".join(trees))
    preprocess(folder, tmp_path / "out", "--on-error", "flat", "--max-flat", "0.02", "--parts", "8")
    assert "8 flat trees of de" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        preprocess(
            folder, tmp_path / "no", "--on-error", "flat", "--max-flat", "0.01", "--parts", "8"
        )
    assert "5 of the 400 lines" in capsys.readouterr().err


# Killed runs

KILLED = """
import os, signal, sys
from pathlib import Path
from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.data.preprocessing import engines, texts
from fairseq_phrase.data.preprocessing.blocks import BlockFolder
from fairseq_phrase.data.store.indexed import IndexedWriter
texts.BLOCK_LINES, engines.LINES_PER_PARSER = 50, 1
PLACES = {
    "parsing": (BlockFolder, "write"),
    "writing": (IndexedWriter, "close"),
    "sharing": (Path, "hardlink_to"),
    "publishing": (os, "replace"),
}
def kill(place, count):
    owner, name = PLACES[place]
    original, calls = getattr(owner, name), []
    def killed(*arguments, **options):
        result = original(*arguments, **options)
        if place != "publishing" or "ready" in str(arguments[0]):
            calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, killed)
if __name__ == "__main__":
    kill(sys.argv[1], int(sys.argv[2]))
    preprocess_command.main(sys.argv[3:])
"""


@pytest.fixture(scope="module")
def uninterrupted(text, tmp_path_factory, trained_pipeline):
    out = tmp_path_factory.mktemp("uninterrupted")
    return files(preprocess(text, out, "--parts", "3", *parser(trained_pipeline)))


def parser(trained_pipeline):
    return ["--parser", f"spacy:{trained_pipeline}", "--constituents", "from-dependencies"]


@pytest.mark.fast(1)
@pytest.mark.parametrize(
    ("place", "count", "workers", "blocks", "is_published"),
    [
        ("parsing", 4, 1, 4, False),
        ("parsing", 5, 2, 5, False),
        ("writing", 12, 1, 11, False),
        ("sharing", 2, 1, 11, False),
        ("publishing", 7, 1, 11, True),
    ],
)
def test_a_killed_run_continues_after_its_last_block_and_gives_the_same_files(
    text, tmp_path, trained_pipeline, uninterrupted, jobs_done, place, count, workers, blocks,
    is_published,
):  # fmt: skip
    script, out = tmp_path / "killed.py", tmp_path / "out"
    script.write_text(KILLED)
    more = ["--parts", "3", *parser(trained_pipeline)]
    command = [python(), str(script), place, str(count), *options(text, out, *more)]
    stopped = subprocess.run([*command, "--workers", str(workers)], capture_output=True, text=True)
    assert stopped.returncode == -signal.SIGKILL, stopped.stderr
    assert len(list(out.glob(".partial/blocks/*/*"))) == blocks
    assert bool(list(out.glob("data*"))) == is_published
    preprocess(text, out, *more)
    assert len(jobs_done) == 11 - (0 if is_published else blocks)
    assert files(out) == uninterrupted


def test_a_later_run_with_other_options_is_refused(
    text, tmp_path, interrupted, capsys, refused, trained_pipeline
):
    out, spacy = tmp_path / "out", parser(trained_pipeline)
    with interrupted():
        preprocess(text, out, "--parts", "3", *spacy)
    cases = [
        (["--parts", "4", *spacy], "made with parts 3; this run has parts 4"),
        (["--parts", "3", "--max-length", "9", *spacy], "made with max_length 1023; this run has"),
        (["--parts", "3", *spacy[:2]], "made with parsing "),
        (spacy, "made with parts 3; this run has parts 1"),
    ]
    capsys.readouterr()
    for more, message in cases:
        stderr = refused(preprocess, text, out, *more)
        assert message in stderr
        assert f"or remove {out / '.partial'}" in stderr
    more = ("--parts=3", "--min-count", "2", "--on-error=skip", *spacy)
    preprocess(text, out, *more, "--max-flat", "0.5", "--workers", "2")
    assert files(out) == files(preprocess(text, tmp_path / "other", *more))


def test_a_strict_run_that_stopped_at_a_line_is_continued_without_strict(
    text, tmp_path, capsys, refused, trained_pipeline
):
    folder, out, spacy = tmp_path / "text", tmp_path / "out", parser(trained_pipeline)
    shutil.copytree(text, folder)
    lines = list(read_lines(folder / "train.en"))
    lines[30] = lines[31]  # the empty line of a later part is left
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    assert "line 261" in refused(preprocess, folder, out, "--parts", "3", "--strict", *spacy)
    assert len(list(out.glob(".partial/blocks/train/*"))) == 5
    preprocess(folder, out, "--parts", "3", *spacy)
    assert files(out) == files(preprocess(folder, tmp_path / "other", "--parts", "3", *spacy))
    assert "train: 399 sentence pairs" in capsys.readouterr().out


def test_a_part_without_a_pair_is_named_with_what_to_do(text, tmp_path, refused):
    """The last 50 of 400 lines have an empty side."""
    folder, out = tmp_path / "text", tmp_path / "out"
    shutil.copytree(text, folder)
    lines = list(read_lines(folder / "train.en"))
    lines[350:] = [""] * 50
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    stderr = refused(preprocess, folder, out, "--parts", "8")
    assert "train.de, lines 351 to 400, is left: 50 have an empty side" in stderr
    assert "have no parse: give fewer --parts" in stderr


def test_bad_numbers_of_parts_are_refused(text, parts, tmp_path, capsys, refused):
    bad = [
        (["--parts", "9"], ("train",), "has 400 lines, and a part has at least 50: give --parts 8"),
        (["--parts", "2"], ("test",), "--parts divides the training text: give --trainpref"),
    ]
    for more, splits, message in bad:
        assert message in refused(preprocess, text, tmp_path / "out", *more, splits=splits)
        assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit):
        preprocess(text, parts[0].parent, "--parts", "2")
    assert "also holds data3, which are not among the 2 parts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        preprocess(text, parts[0].parent, "--parts", "3", splits=("train",))
    assert "data1 also holds test.de-en" in capsys.readouterr().err
    before = files(parts[1])
    with pytest.raises(SystemExit):
        preprocess(text, parts[1])
    message = "data2 is part 2 of 3 of a text, and this run would make the whole: name another"
    assert message in capsys.readouterr().err
    assert files(parts[1]) == before


# Training


def parts_of_epochs(log):
    """The folder whose training text each epoch reads."""
    return re.findall(r"examples from: .*(data\d)/train\.de-en\.en", log)


def test_fairseq_trains_on_one_part_after_the_other(parts):
    data = ":".join(map(str, parts[:2]))
    short = ["--max-epoch", "3", "--no-save"]
    small = ["--arch", "transformer", *PHRASE[2:]]
    stock = [*small, *(option for option in TRAINING if option != "--share-all-embeddings")]
    log = run("fairseq-train", data, "--task", "translation", *stock, *short)
    assert parts_of_epochs(log)[:3] == ["data1", "data2", "data1"]
    ours = [option for option in TRAINING if option != "--share-all-embeddings"]
    user = ["--user-dir", "fairseq_phrase", "--task", "syntax_translation"]
    structural = ["--arch", "structural_transformer_tiny", "--structural-absolute", *PHRASE[2:]]
    log = run("fairseq-train", data, *user, *structural, *ours, *short)
    assert parts_of_epochs(log)[:3] == ["data1", "data2", "data1"]


@pytest.mark.slow
def test_a_training_that_stops_goes_on_with_the_part_that_it_read(text, tmp_path):
    data = preprocess(text, tmp_path / "data", "--parts", "2")
    options = [option for option in TRAINING if option != "--share-all-embeddings"]
    train_with_stops(
        lambda *others: run(
            "fairseq-train", ":".join(str(data / part) for part in PAIR), "--user-dir",
            "fairseq_phrase", "--task", "syntax_translation", "--arch", "relation_transformer",
            *SIZES, *options, "--batch-size", "40", "--disable-validation", *others,
        ),
        tmp_path,
    )  # fmt: skip


def test_a_part_of_another_run_is_refused(text, parts, tmp_path, command):
    first = parts[0]
    same_models = ["--sentencepiece-model", str(first / "spm.model")]
    for language, option in (("de", "--srcdict"), ("en", "--tgtdict")):
        same_models += [option, str(first / f"dict.{language}.txt")]
    sizes = [*(option for option in TRAINING if option != "--share-all-embeddings")]

    def train(*folders):
        data = ":".join(map(str, folders))
        command(
            fairseq_train, data, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
            *PHRASE, *sizes, "--max-update", "1", "--no-save",
        )  # fmt: skip

    trees = ["--parts", "3", "--constituents", "from-dependencies"]
    other_data = {
        "four": preprocess(text, tmp_path / "four", *same_models, "--parts", "4") / "data2",
        "trees": preprocess(text, tmp_path / "trees", *same_models, *trees) / "data2",
    }
    for name, other_folder in other_data.items():
        of = 4 if name == "four" else 3
        with pytest.raises(UserError, match="made with other options or another parser") as error:
            train(first, other_folder)
        assert f"{other_folder} has part 2 of {of} (run " in str(error.value)
        assert f"and {first} has part 1 of 3 (run " in str(error.value)
    (tmp_path / "more").mkdir()
    shutil.copyfile(text / "valid.de", tmp_path / "more" / "train.de")
    shutil.copyfile(text / "valid.de.conllu", tmp_path / "more" / "train.de.conllu")
    shutil.copyfile(text / "valid.en", tmp_path / "more" / "train.en")
    more = preprocess(tmp_path / "more", tmp_path / "added", *same_models, splits=("train",))
    train(first, parts[1], more)
    unrelated = preprocess(
        tmp_path / "more", tmp_path / "own", "--vocab-size", "80", splits=("train",)
    )
    with pytest.raises(UserError, match="differ"):
        train(first, unrelated)
