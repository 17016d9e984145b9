"""``fairseq-phrase-translate FILE`` with ``FILE.conllu``, for data whose parser reads files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairseq_phrase.cli import translate as translate_command
from fairseq_phrase.data.preprocessing.subword_models import (
    CharacterOptions,
    train_sentencepiece,
)
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import translator
from fairseq_phrase.inference.bundle import new_folder, write_bundle
from fairseq_phrase.inference.source_parses import find_parses
from tests.support.small_checkpoints import ChainParser, make_checkpoint, make_data

LINES = ["der Hund schläft", "", "Hund schläft"]
MODEL = [
    "--arch", "relation_transformer", "--relation-labels", "--source-factors", "tags",
    "--max-target-positions", "6",
]  # fmt: skip


def conllu(lines) -> str:
    """The trees of a chain, as :class:`ChainParser` makes them."""
    blocks = []
    for line in filter(None, lines):
        (sentence,) = ChainParser().parse([line])
        heads = [0 if h == i else h + 1 for i, h in enumerate(sentence.tree.heads)]
        columns = zip(sentence.words, sentence.tags, heads, sentence.deprels, strict=True)
        rows = [
            f"{number}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t_\t_"
            for number, (word, tag, head, label) in enumerate(columns, start=1)
        ]
        blocks.append("\n".join(rows) + "\n\n")
    return "".join(blocks)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conllu")
    return make_checkpoint(folder / "a.pt", make_data(folder / "data", "conllu"), *MODEL)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "new.de"
    path.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    path.with_name("new.de.conllu").write_text(conllu(LINES), encoding="utf-8")
    return path


@pytest.fixture
def translate(capfdbinary):
    def run(*arguments):
        translate_command.main([*map(str, arguments), "--device", "cpu", "--beam", "2"])
        return capfdbinary.readouterr().out.decode()

    return run


@pytest.mark.parametrize("form", ["plain", "gz", "bundle", "by the option"])
def test_trees_next_to_the_text_are_those_of_a_parser(form, checkpoint, text, translate) -> None:
    expected = translate("--path", checkpoint, text, "--scores", "--source-parser", "chain")
    model = ["--path", checkpoint]
    if form == "gz":
        trees = text.with_name("new.de.conllu")
        text.with_name("new.de.conllu.gz").write_bytes(gzip.compress(trees.read_bytes()))
        trees.unlink()
    elif form == "bundle":
        bundle = text.with_name("bundle")
        with new_folder(bundle) as out:
            write_bundle(checkpoint, checkpoint.with_name("data"), out)
        model = [bundle]
    options = ["--source-parser", "conllu"] if form == "by the option" else []
    assert translate(*model, text, "--scores", *options) == expected


def test_of_several_data_directories_the_first_has_the_subword_model(text, tmp_path) -> None:
    data = make_data(tmp_path / "data", "conllu")
    characters = CharacterOptions("identity")
    train_sentencepiece(LINES * 9, data / "spm.model", 18, 1, characters)
    manifest = Manifest.load(data, "de")
    manifest.bpe, manifest.bpe_model = "sentencepiece", "spm.model"
    manifest.save(data)
    text_parses = find_parses([text], "a.pt", f"{data}:{data}")
    assert text_parses is not None
    assert [" ".join(parse.words) for parse in text_parses[1]] == LINES


def test_a_file_of_translations_depends_on_the_trees(
    checkpoint, text, translate, capfdbinary
) -> None:
    out, shard = text.with_name("out"), ["--out", text.with_name("parts"), "--shard"]
    expected = translate("--path", checkpoint, text)
    translate("--path", checkpoint, text, "--out", out)
    assert out.read_text(encoding="utf-8") == expected
    translate("--path", checkpoint, text, *shard, "1/2")
    trees = text.with_name("new.de.conllu")
    trees.write_text("# others\n" + trees.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(SystemExit):
        translate("--path", checkpoint, text, *shard, "2/2")
    assert "was made with parses new.de.conllu " in capfdbinary.readouterr().err.decode()


def test_text_without_trees_is_refused_with_what_to_do(checkpoint, text, refused) -> None:
    text.with_name("new.de.conllu").unlink()
    for options in ([], ["--source-parser", "conllu"]):
        message = refused(translate_command.main, ["--path", str(checkpoint), str(text), *options])
        assert (
            f"neither {text}.conllu nor {text}.conllu.gz is there: write it, or name a " in message
        )
    with pytest.raises(
        UserError, match=r"FILE with FILE\.conllu, draw a --line .* or name a parser for it, "
    ):
        translator.load(checkpoint, device="cpu").translate("der Hund")


def test_a_data_directory_without_a_model_is_named(checkpoint, text, refused) -> None:
    data = checkpoint.with_name("data")
    assert f"{data} is a data directory: name the model, too, with --path" in refused(
        translate_command.main, [str(data), str(text)]
    )


def test_a_mistyped_folder_is_named(checkpoint, text, tmp_path) -> None:
    with pytest.raises(UserError, match=r"^nodir is not there$"):
        find_parses([Path("nodir"), text], str(checkpoint))
    with pytest.raises(
        UserError, match=f"^{tmp_path} is not a data directory: no file in it names"
    ):
        find_parses([text], str(checkpoint), str(tmp_path))


def test_trees_of_another_text_are_refused(checkpoint, text, capsys) -> None:
    text.with_name("new.de.conllu").write_text(conllu(LINES * 2), encoding="utf-8")
    with pytest.raises(SystemExit):
        translate_command.main(["--path", str(checkpoint), str(text), "--device", "cpu"])
    message = capsys.readouterr().err
    assert "new.de.conllu, line 8: there are more trees here than lines in the text" in message


def test_a_line_that_is_too_long_is_named(text, tmp_path) -> None:
    data = make_data(tmp_path / "data", "conllu")
    path = make_checkpoint(tmp_path / "a.pt", data, *MODEL, "--max-source-positions", "3")
    model = translator.load(path, device="cpu")
    _, parses = find_parses([text], str(path))
    with pytest.raises(UserError, match="line 1 has 4 subwords, and the model takes 3: divide the"):
        list(model.hypotheses(LINES, parses=parses))
