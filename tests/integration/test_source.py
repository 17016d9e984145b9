"""Words first: every subword's word is known by construction, and nothing of the text is lost."""

import re
import shutil
from collections import Counter

import numpy as np
import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_phrase.batch.raw_lines import SourceEncoder
from fairseq_phrase.corpus.encoding import encode_sentence
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import load_parser, names_path
from fairseq_phrase.parsers import spacy as spacy_module
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.store.manifest import Manifest
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from fairseq_phrase.text import read_lines
from tests.support.hostile import SNIPPETS, lines, trees
from tests.twins.alignment import check_words

INVISIBLE = "\u200b"


@pytest.fixture(scope="module")
def normalize(segmenter):
    """A word's normal form by SentencePiece, ``▁`` for every space and none added or taken away."""
    normalizer = sentencepiece.SentencePieceNormalizer(
        model_file=str(segmenter.model), add_dummy_prefix=False, remove_extra_whitespaces=False
    )
    return lambda word: normalizer.normalize(word).replace(" ", "▁")


@pytest.fixture(scope="module")
def encoder(trained_pipeline, segmenter):
    return SourceEncoder(pipeline(f"spacy:{trained_pipeline}"), segmenter)


def pipeline(parser):
    return ParsingPipeline(ParsingOptions(parser))


def pieces_by_word(encoded):
    """The pieces of each word, joined, by a loop."""
    spelled = {}
    for piece, word in zip(encoded.pieces, encoded.words.tolist(), strict=True):
        spelled[word] = spelled.get(word, "") + piece
    return [spelled[word] for word in sorted(spelled)]


@st.composite
def parsed_sentences(draw):
    """Words of hostile text, some invisible, under a random tree."""
    heads = draw(trees(12))
    texts = st.one_of(st.sampled_from([INVISIBLE, *SNIPPETS]), lines(2))
    words = ["".join(draw(texts).split()) or "x" for _ in heads]
    labels = [f"label{index}" for index in range(len(heads))]
    spaces = draw(st.lists(st.booleans(), min_size=len(heads), max_size=len(heads)))
    return ParsedSentence(words, spaces, DependencyTree(heads), labels, labels)


@given(sentence=parsed_sentences())
@settings(max_examples=200, deadline=None)
def test_the_pieces_of_each_word_spell_it_in_its_normal_form(segmenter, normalize, sentence):
    encoded = encode_sentence(sentence, segmenter)
    normal = ["".join(normalize(word).split()) for word in sentence.marked_words()]
    assert pieces_by_word(encoded) == [word for word in normal if word.strip("▁")]
    check_words(encoded.words)


@given(sentence=parsed_sentences())
@settings(max_examples=200, deadline=None)
def test_a_word_of_which_nothing_is_left_leaves_the_tree(segmenter, sentence):
    encoded = encode_sentence(sentence, segmenter)
    keep = [bool(segmenter.word_pieces(word)) for word in sentence.marked_words()]
    expected = sentence.tree.restricted_to(np.array(keep, dtype=bool))
    assert encoded.heads.tolist() == expected.heads.tolist()
    labels = [label for label, kept in zip(sentence.deprels, keep, strict=True) if kept]
    assert encoded.deprels == encoded.tags == labels
    assert len(labels) == (int(encoded.words[-1]) + 1 if len(encoded.words) else 0)


def test_an_invisible_words_dependents_hang_off_its_head(segmenter):
    words = ["der", "Hund", INVISIBLE, "schläft"]
    sentence = ParsedSentence(words, [True] * 4, DependencyTree([1, 2, 3, 3]), list("abcd"), [])
    encoded = encode_sentence(sentence, segmenter)
    assert encoded.heads.tolist() == [1, 2, 2]
    assert encoded.deprels == ["a", "b", "d"]
    assert Counter(encoded.words.tolist()).keys() == {0, 1, 2}


@pytest.mark.parametrize("words", [[], [INVISIBLE], [INVISIBLE, INVISIBLE]])
def test_a_sentence_of_which_nothing_is_left_is_empty(segmenter, words):
    heads = [0] * len(words)
    sentence = ParsedSentence(words, [True] * len(words), DependencyTree(heads), heads, heads)
    encoded = encode_sentence(sentence, segmenter)
    assert (encoded.pieces, len(encoded.words), len(encoded.heads)) == ([], 0, 0)


def test_a_sentence_without_a_tree_is_cut_without_one(segmenter):
    encoded = encode_sentence(ParsedSentence(["Hund", INVISIBLE], [True, True]), segmenter)
    assert encoded.heads is None
    assert pieces_by_word(encoded) == ["▁Hund"]


@given(line=lines())
@settings(max_examples=150, deadline=None)
def test_the_pieces_of_any_line_give_it_back_in_its_normal_form(encoder, normalize, line):
    (encoded,) = encoder.parse([line])
    expected = "".join(map(normalize, encoder.tokenize(line)))
    assert "".join(encoded.pieces).replace("▁", "") == "".join(expected.replace("▁", "").split())
    assert len(encoded.heads) == len(encoded.deprels) == len(set(encoded.words.tolist()))
    check_words(encoded.words)


def test_ordinary_lines_come_back_with_their_very_spaces(segmenter, synthetic_corpus):
    texts = list(read_lines(synthetic_corpus / "test.de"))
    encoder = SourceEncoder(pipeline("none"), segmenter)
    for line, encoded in zip(texts, encoder.parse(texts), strict=True):
        assert "".join(encoded.pieces).replace("▁", " ").strip() == line
    parses = ConlluFiles().read(synthetic_corpus / "test.de.conllu", iter(texts))
    for line, sentence in zip(texts, parses, strict=True):
        encoded = encode_sentence(sentence, segmenter)
        assert "".join(encoded.pieces).replace("▁", " ").strip() == line
        assert len(encoded.heads) == len(sentence.words)


@given(line=lines())
@settings(max_examples=100, deadline=None)
def test_words_alone_make_the_subwords_that_the_parse_has(encoder, line):
    (encoded,) = encoder.parse([line])
    pieces = [p for word in encoder.tokenize(line) for p in encoder.segmenter.word_pieces(word)]
    assert pieces == encoded.pieces


def test_ten_thousand_words_keep_their_places(segmenter):
    line = "der Hund " * 5000
    (encoded,) = SourceEncoder(pipeline("none"), segmenter).parse([line])
    assert encoded.words[-1] == 9999
    assert pieces_by_word(encoded) == ["▁der", "▁Hund"] * 5000


@pytest.mark.parametrize("parser", ["spacy", "none"])
def test_half_characters_are_an_error_that_shows_them(encoder, segmenter, parser):
    made = encoder if parser == "spacy" else SourceEncoder(pipeline("none"), segmenter)
    with pytest.raises(UserError, match=r"ud83d|surrogates"):
        made.parse(["Hund \ud83d"])


def test_new_text_is_encoded_as_the_data_directory_says(data_directory, trained_pipeline):
    encoder = SourceEncoder.of_data(data_directory, "de", f"spacy:{trained_pipeline}")
    (encoded,) = encoder.parse(["Der Hund schläft."])
    assert "".join(encoded.pieces) == "▁Der▁Hund▁schläft."
    assert len(encoded.heads) == 4


def test_data_parsed_from_files_asks_for_a_parser_of_new_text(data_directory):
    with pytest.raises(UserError, match="--source-parser spacy:MODEL"):
        SourceEncoder.of_data(data_directory, "de")


@pytest.fixture
def parsed_by(data_directory, trained_pipeline, tmp_path, monkeypatch):
    """Make a data directory whose manifest names a parser, and say what of it was loaded."""
    loaded = []
    original = spacy_module.SpacyParser.__init__
    monkeypatch.setattr(
        spacy_module.SpacyParser,
        "__init__",
        lambda self, model: (loaded.append(model), original(self, model))[1],
    )

    def make(parser, version=None):
        data = tmp_path / "data"
        shutil.copytree(data_directory, data, dirs_exist_ok=True)
        manifest = Manifest.load(data, "de")
        manifest.parser = parser
        manifest.parser_version = version or load_parser(parser).version
        manifest.save(data)
        loaded.clear()
        return data, loaded

    return make


def test_a_path_that_a_manifest_names_is_not_loaded_unless_the_user_names_it(
    parsed_by, trained_pipeline
):
    parser = f"spacy:{trained_pipeline}"
    data, loaded = parsed_by(parser)
    with pytest.raises(UserError, match=re.escape(f"add --source-parser {parser}")) as caught:
        SourceEncoder.of_data(data, "de")
    assert f"{data / 'syntax.de.json'} names the parser {parser}" in str(caught.value)
    assert loaded == []
    assert SourceEncoder.of_data(data, "de", parser).parse(["Der Hund"])[0].heads is not None


def test_a_name_that_is_a_folder_here_is_a_path(parsed_by, trained_pipeline, monkeypatch):
    data, loaded = parsed_by(f"spacy:{trained_pipeline}")
    manifest = Manifest.load(data, "de")
    monkeypatch.chdir(trained_pipeline.parent)
    manifest.parser = f"spacy:{trained_pipeline.name}"
    manifest.save(data)
    with pytest.raises(UserError, match="a parser is loaded from a path only if you name it"):
        SourceEncoder.of_data(data, "de")
    assert loaded == []


def test_names_of_parsers_are_told_from_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for spec in (
        "none",
        "ptb",
        "conllu:surface",
        "spacy:de_core_news_sm",
        "stanza:de",
        "own:small",
    ):
        assert not names_path(spec)
    for spec in (
        "spacy:folder",
        "spacy:/a/b",
        "spacy:../b",
        "stanza:de@folder",
        "own:/a/b",
        "own:~",
    ):
        assert names_path(spec)


def test_another_version_of_the_parser_is_a_warning_or_on_request_an_error(
    parsed_by, trained_pipeline, caplog
):
    parser = f"spacy:{trained_pipeline}"
    data, _ = parsed_by(parser)
    SourceEncoder.of_data(data, "de", parser)
    SourceEncoder.of_data(data, "de", "none")  # another parser is the user's choice
    assert caplog.text == ""
    data, _ = parsed_by(parser, version="de_synthetic 0.1")
    for _ in range(2):
        SourceEncoder.of_data(data, "de", parser)
    assert caplog.text.count("says that de_synthetic 0.1 made its parses, and this run") == 1
    with pytest.raises(UserError, match="install the former, or leave --strict-parser out"):
        SourceEncoder.of_data(data, "de", parser, strict=True)
