"""Parsers by their names, and the one that only splits at white space."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given

from fairseq_phrase.errors import UserError, as_given
from fairseq_phrase.parsers import load_parser, resolve
from fairseq_phrase.syntax.sentence import join_white_space
from tests.support.hostile import lines
from tests.support.well_formed import assert_well_formed


@pytest.mark.parametrize("spec", ["", ":", ":de", "Conllu", "None", "spacy de"])
def test_an_unknown_parser_is_refused_with_those_there_are(spec):
    with pytest.raises(
        UserError,
        match=r"expected spacy:MODEL, .*conllu\[:surface\]\[,enhanced\], ptb, .*penman, fac.*, none",
    ):
        load_parser(spec)


@pytest.mark.parametrize(
    ("spec", "ending"),
    [
        ("en_core_web_sm", r"none, .*; did you mean spacy:en_core_web_sm\?$"),
        ("./zh_core_web_trf", r"none, .*; did you mean spacy:\./zh_core_web_trf\?$"),
        ("another", r"none, chain, gold or of-test$"),
    ],
)
def test_the_parser_of_a_pipeline_is_suggested(spec, ending):
    with pytest.raises(UserError, match=ending):
        load_parser(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("spacy", "parser spacy: expected spacy:MODEL"),
        ("spacy:", "parser spacy:: expected spacy:MODEL"),
        ("stanza", r"parser stanza: expected stanza:LANG\[,surface\]\[@DIR\]"),
        ("conllu:de", "parser conllu:de: expected conllu:words or conllu:surface"),
        ("ptb:x", "parser ptb:x: expected ptb"),
        ("none:x", "parser none:x: expected none"),
    ],
)
def test_an_argument_that_a_parser_does_not_take_is_refused(spec, message):
    with pytest.raises(UserError, match=message):
        load_parser(spec)


def test_a_folder_is_found_again_from_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "de_model").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve("spacy:de_model") == f"spacy:{tmp_path / 'de_model'}"
    assert resolve("spacy:de_core_news_sm") == "spacy:de_core_news_sm"
    assert resolve("stanza:de@de_model") == f"stanza:de@{tmp_path / 'de_model'}"
    assert resolve("stanza:de_model") == "stanza:de_model"
    assert resolve("none") == "none"
    assert resolve("conllu") == "conllu"
    (tmp_path / "surface").mkdir()
    assert resolve("conllu:surface") == "conllu:surface"
    assert resolve("another:de_model") == f"another:{tmp_path / 'de_model'}"
    assert resolve("another:model") == "another:model"
    assert resolve("another") == "another"


def test_the_folder_of_a_pipeline_is_suggested(tmp_path):
    (tmp_path / "meta.json").touch()
    with pytest.raises(UserError, match=rf"; did you mean spacy:{tmp_path}\?$"):
        load_parser(str(tmp_path))


def test_a_missing_folder_of_a_pipeline_is_not_downloaded(tmp_path):
    with pytest.raises(
        UserError, match=r"there is no folder '.*/en_core_web_sm': .*installed pipeline"
    ):
        load_parser(f"spacy:{tmp_path}/en_core_web_sm")


@given(lines())
def test_without_a_parser_words_stand_between_white_space(line):
    parser = load_parser("none")
    (sentence,) = parser.parse([line])
    assert sentence.words == line.split()
    assert parser.tokenize([line]) == [sentence]
    assert sentence.tree is None
    assert_well_formed(sentence, parser.fields)


def test_a_library_that_exits_does_not_end_the_command(install_parser):
    install_parser(lambda: sys.exit(3))
    with pytest.raises(UserError, match=r"parser of-test ended with sys\.exit\(3\)"):
        load_parser("of-test")


@given(lines())
def test_white_space_within_a_token_is_joined_and_dropped_at_its_ends(text):
    joined = join_white_space(text)
    assert not any(map(str.isspace, joined))
    assert joined.replace("▁", " ").split() == text.replace("▁", " ").split()


@pytest.mark.parametrize(
    ("program", "written"),
    [
        ("/bin/fairseq-train", "--source-parser ptb"),
        ("fairseq_phrase/cli/label.py", "--source-parser ptb"),
        ("fairseq_phrase/__main__.py", "--source-parser ptb"),
        ("own.py", 'source_parser="ptb"'),
    ],
)
def test_messages_name_flags_in_commands_and_arguments_in_python(program, written, monkeypatch):
    monkeypatch.setattr("sys.argv", [program])
    assert as_given("source-parser", "ptb") == written
