"""New source text: parsed by the parser of the data, or by the one that the user names."""

from __future__ import annotations

import re
import shutil

import pytest
import spacy

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import load_parser
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline


@pytest.fixture(scope="module")
def encoder(trained_pipeline, segmenter):
    return TextEncoder(pipeline(f"spacy:{trained_pipeline}"), segmenter)


def pipeline(parser):
    return ParsingPipeline(ParsingOptions(parser))


@pytest.mark.parametrize("parser", ["spacy", "none"])
def test_half_characters_are_an_error_that_shows_them(encoder, segmenter, parser):
    text_encoder = encoder if parser == "spacy" else TextEncoder(pipeline("none"), segmenter)
    with pytest.raises(UserError, match=r"ud83d|surrogates"):
        text_encoder.encode_lines(["Hund \ud83d"])


def test_new_text_is_encoded_as_the_data_directory_says(data_directory, trained_pipeline):
    encoder = TextEncoder.from_data(data_directory, "de", f"spacy:{trained_pipeline}")
    (encoded,) = encoder.encode_lines(["Der Hund schläft."])
    assert "".join(encoded.subwords) == "▁Der▁Hund▁schläft."
    assert len(encoded.heads) == 4


@pytest.fixture
def parsed_by(data_directory, trained_pipeline, tmp_path, monkeypatch):
    """Make a data directory whose manifest names a parser, and say what of it was loaded."""
    loaded = []
    load_meta = spacy.util.load_meta  # what is read first of a pipeline
    monkeypatch.setattr(
        spacy.util, "load_meta", lambda path: loaded.append(path) or load_meta(path)
    )

    def make(parser, version=None):
        data = tmp_path / "data"
        shutil.copytree(data_directory, data, dirs_exist_ok=True)
        manifest = Manifest.load(data, "de")
        manifest.parser = parser
        loaded_parser = load_parser(parser)
        manifest.parser_version, manifest.parser_digest = (
            version or loaded_parser.version,
            loaded_parser.digest,
        )
        manifest.save(data)
        loaded.clear()
        return data, loaded

    return make


def test_a_path_that_a_manifest_names_is_not_loaded_unless_the_user_names_it(
    parsed_by, trained_pipeline
):
    parser = f"spacy:{trained_pipeline}"
    data, loaded = parsed_by(parser)
    with pytest.raises(UserError, match=re.escape(f'add source_parser="{parser}"')) as caught:
        TextEncoder.from_data(data, "de")
    assert f"{data / 'syntax.de.json'} names the parser {parser}" in str(caught.value)
    assert loaded == []
    assert TextEncoder.from_data(data, "de", parser).encode_lines(["Der Hund"])[0].heads is not None


def test_a_name_that_is_a_folder_here_is_a_path(parsed_by, trained_pipeline, monkeypatch):
    data, loaded = parsed_by(f"spacy:{trained_pipeline}")
    manifest = Manifest.load(data, "de")
    monkeypatch.chdir(trained_pipeline.parent)
    manifest.parser = f"spacy:{trained_pipeline.name}"
    manifest.save(data)
    with pytest.raises(UserError, match="a parser is loaded from a path only if you name it"):
        TextEncoder.from_data(data, "de")
    assert loaded == []


def test_another_version_of_the_parser_is_a_warning_or_on_request_an_error(
    parsed_by, trained_pipeline, caplog
):
    parser = f"spacy:{trained_pipeline}"
    data, _ = parsed_by(parser)
    TextEncoder.from_data(data, "de", parser)
    assert caplog.text == ""
    data, _ = parsed_by(parser, version="de_synthetic 0.1")
    for _ in range(2):
        TextEncoder.from_data(data, "de", parser)
    assert caplog.text.count("differ in parser de_synthetic 0.1 ") == 1
    with pytest.raises(UserError, match="parse with the training's parser"):
        TextEncoder.from_data(data, "de", parser, strict=True)


def test_another_parser_is_a_warning_or_on_request_an_error(parsed_by, trained_pipeline, caplog):
    parser = f"spacy:{trained_pipeline}"
    data, _ = parsed_by(parser)
    for _ in range(2):
        TextEncoder.from_data(data, "de", "none")
    assert caplog.text.count("parser-name spacy and none (strict_identity refuses this)") == 1
    with pytest.raises(UserError, match="parser-name spacy and none: parse with the training's"):
        TextEncoder.from_data(data, "de", "none", strict=True)
    TextEncoder.from_data(data, "de", "none", strict=True, allow="parser,parser-name")


@pytest.mark.parametrize("whole", ["tokenized", "whole_lines"])
def test_words_that_no_parser_finds_need_none(parsed_by, trained_pipeline, caplog, whole):
    data, _ = parsed_by(f"spacy:{trained_pipeline}")
    manifest = Manifest.load(data, "de")
    setattr(manifest, whole, True)
    manifest.save(data)
    TextEncoder.from_data(data, "de", "none", strict=True)
    assert caplog.text == ""
