"""``fairseq-phrase-inspect``, by its arguments and what it prints."""

from __future__ import annotations

import json
import re

import pytest

from fairseq_phrase.cli import inspect_data as inspect_command
from fairseq_phrase.data.store.manifest import Manifest, fingerprint
from tests.support.data_directories import SPLIT, copied, rewrite, sign


@pytest.fixture
def directory(data_directory, tmp_path):
    return copied(data_directory, tmp_path / "data")


@pytest.fixture
def both_languages(directory):
    """The German text and its parses, as if they were English too."""
    for path in list(directory.iterdir()):
        if f"{SPLIT}.de" in path.name or path.name == "dict.de.txt":
            name = path.name.replace(f"{SPLIT}.de", f"{SPLIT}.en").replace("dict.de", "dict.en")
            (directory / name).write_bytes(path.read_bytes())
    text = (directory / "syntax.de.json").read_text(encoding="utf-8")
    text = text.replace(f"{SPLIT}.de.", f"{SPLIT}.en.").replace(
        '"language": "de"', '"language": "en"'
    )
    (directory / "syntax.en.json").write_text(text, encoding="utf-8")
    return directory


def inspect(*arguments):
    inspect_command.main(list(map(str, arguments)))


def failure(capsys, *arguments):
    """The message of a command that ends with status 2."""
    with pytest.raises(SystemExit) as caught:
        inspect(*arguments)
    assert caught.value.code == 2
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_the_manifest_statistics_and_a_sentence_are_printed(data_directory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    inspect(data_directory)
    out = capsys.readouterr().out
    manifest = Manifest.load(data_directory, "de")
    assert out.startswith(f"{data_directory}/syntax.de.json (format {manifest.format})\n")
    assert "  parser        conllu (" in out
    assert "  constituents  from-dependencies\n" in out
    assert "  splits        train.de-en, valid.de-en, test.de-en\n" in out
    (header,) = re.findall(r"\n +train\.de-en +valid\.de-en +test\.de-en\n", out)
    rows = dict(re.findall(r"^( *\S.*?)  +(\S.*)$", out[out.index(header) :], re.MULTILINE))
    records = manifest.splits.values()
    assert rows["sentences"].split() == ["2,000", "100", "100"]
    assert rows["words"].split() == [f"{record.words:,}" for record in records]
    assert rows["subwords"].split() == [f"{record.subwords:,}" for record in records]
    means = [f"{record.words / record.sentences:.2f}" for record in records]
    assert re.findall(r"\nwords .*\n  per sentence +(.*)\n", out)[0].split() == means
    shares = re.findall(r"^  \S.*? +([\d.]+) %.*$", out[out.index("\nrelations") :], re.MULTILINE)
    assert sum(map(float, shares)) == pytest.approx(300, abs=0.3)  # relations, tags, constituents
    assert re.search(r"\n\n(train|valid|test)\.de-en\.de, line \d+: \d+ words, \d+ subwords\n", out)


def test_a_narrow_terminal_gets_the_splits_one_below_the_other(data_directory, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    inspect(data_directory, "--sentences", "0")
    out = capsys.readouterr().out
    assert max(map(len, out.partition("\n\n")[2].splitlines())) <= 60
    assert re.search(r"\n +train\.de-en +valid\.de-en\n", out)
    assert re.search(r"\n +test\.de-en\n", out)


def test_counts_of_unparsed_lines_are_those_of_the_manifest(directory, capsys):
    path = directory / "syntax.de.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["splits"][SPLIT].update(unparsed_skipped=17, unparsed_flat=1234)
    path.write_text(json.dumps(content))
    inspect(directory, "--sentences", "0")
    out = capsys.readouterr().out
    assert re.search(r"^  unparsed, left out +17$", out, re.MULTILINE)
    assert re.search(r"^  unparsed, with flat trees +1,234$", out, re.MULTILINE)


def headings(out):
    return re.findall(r"^(\w+\.de-en\.\w+, line \d+):", out, re.MULTILINE)


def test_the_same_sentences_are_drawn_at_random(data_directory, capsys):
    drawn = []
    for _ in range(2):
        inspect(data_directory, "--sentences", 5, "--subset", "test")
        drawn.append(headings(capsys.readouterr().out))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 5
    inspect(data_directory, "--sentences", 500, "--subset", "valid", "--subset", "test.de-en")
    expected = [
        f"{name}.de-en.de, line {line}" for name in ("valid", "test") for line in range(1, 101)
    ]
    assert headings(capsys.readouterr().out) == expected


def test_lines_are_drawn_without_statistics(data_directory, synthetic_corpus, capsys):
    inspect(data_directory, "--subset", "valid", "--line", 3, "--line", 100)
    out = capsys.readouterr().out
    assert headings(out) == ["valid.de-en.de, line 3", "valid.de-en.de, line 100"]
    assert out.startswith("valid.de-en.de, line 3: ")
    lines = (synthetic_corpus / "valid.de").read_text(encoding="utf-8").splitlines()
    assert lines[2] in out
    assert lines[99] in out
    assert "sentences" not in out


def test_all_languages_are_inspected(both_languages, capsys):
    inspect(both_languages, "--sentences", 2)
    out = capsys.readouterr().out
    assert [f"syntax.{name}.json" in out for name in ("de", "en")] == [True, True]
    places = headings(out)
    assert len(places) == 4
    german, english = places[::2], places[1::2]
    assert [place.replace(".de,", ".en,") for place in german] == english  # the same lines


def test_changed_files_have_no_statistics(directory, capsys):
    def out_of_range(rows):
        rows[56][0] = 200

    rewrite(directory, "heads", out_of_range)
    assert "has changed since" in failure(capsys, directory)
    sign(directory)
    assert f"{SPLIT}.de, line 57 is broken" in failure(capsys, directory, "--line", 57)


@pytest.mark.parametrize("name", ["dict.de.txt", "dict.tag.txt"])
@pytest.mark.parametrize("content", [None, b"\xff\n", b"no count\n"])
def test_a_dictionary_that_is_missing_or_damaged_is_named(directory, name, content, capsys):
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_bytes(content)
    problem = r"(, line 1: not UTF-8| is not there| is not a fairseq dictionary)"
    assert re.search(f"{name}{problem}.*: run fairseq-phrase-pre", failure(capsys, directory))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--subset", "trian"], r"has no split trian, only valid\.de-en"),
        (["--line", "101"], "has lines 1 to 100, not 101"),
        (["--line", "1", "--sentences", "1"], "--line names the sentences"),
        (["--sentences", "-1"], "expected a positive number, not -1"),
        (["--line", "0"], "expected a positive number, not 0"),
    ],
)
def test_arguments_that_cannot_be_met_are_explained(directory, capsys, arguments, expected):
    assert re.search(expected, failure(capsys, directory, *arguments))


def test_a_folder_without_parses_is_named(tmp_path, capsys):
    assert "has no parses (no syntax.LANG.json)" in failure(capsys, tmp_path)
    assert "is not a folder" in failure(capsys, tmp_path / "nowhere")


def test_parses_of_words_alone_are_inspected(directory, capsys):
    path = directory / "syntax.de.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["fields"], content["constituents"] = ["words"], "none"
    content["labels"] = {}
    checksums = content["splits"][SPLIT]["checksums"]
    names = {f"{SPLIT}.de.{end}" for end in ("bin", "idx", "words.bin", "words.idx")}
    content["splits"][SPLIT]["checksums"] = {
        name: fingerprint(directory / name) for name in checksums if name in names
    }
    path.write_text(json.dumps(content))
    inspect(directory)
    out = capsys.readouterr().out
    assert "dependency trees" not in out
    assert "constituent" not in out.replace("constituents  none", "")
    assert re.search(r"\n\n *0  \S+", out)
