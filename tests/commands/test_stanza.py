"""Stanza, with real models that its own trainers made of the synthetic corpus."""

import json
import pickle
import shlex
import shutil
import socket
import sys

import numpy as np
import pytest
import stanza
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.cli import preprocess as preprocess_command
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import load_parser
from fairseq_phrase.parsers import stanza as adapter
from fairseq_phrase.parsers.interfaces import LineParser, Unparsed
from fairseq_phrase.syntax.brackets import parse_brackets
from tests.support.hostile import SNIPPETS, lines
from tests.support.stanza_training import MULTI_WORD_TOKENS, train_stanza

LINE = "Der schöne Junge im Hotel ist nicht klug. Die alte Frau schreibt dem Mann."
MULTI_WORD = "Der Junge im Hotel."
MULTI_WORDS = ["Der", "Junge", "in", "dem", "Hotel", "."]


@pytest.fixture(scope="module")
def models(synthetic_corpus, tmp_path_factory):
    """A folder of Stanza's models of German."""
    return train_stanza(synthetic_corpus / "valid.de", tmp_path_factory.mktemp("stanza"))


@pytest.fixture(scope="module")
def parser(models):
    """The parser with all there is: words, tags, heads, relations and constituents."""
    return load_parser(f"stanza:de@{models}")


@pytest.fixture
def copied(models, tmp_path):
    """A copy of the models for a test to damage."""
    return shutil.copytree(models, tmp_path / "models")


@pytest.fixture
def offline(monkeypatch):
    """Fail where anything is looked up on the network."""

    def refuse(*_, **__):
        raise AssertionError("something was looked up on the network")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def assert_well_formed(sentence, fields):
    count = len(sentence.words)
    assert len(sentence.space_before) == len(sentence.tags) == count
    assert all(word and not any(map(str.isspace, word)) for word in sentence.words)
    if "heads" in fields:
        assert len(sentence.tree) == len(sentence.deprels) == count
        roots = np.flatnonzero(sentence.tree.heads == np.arange(count))
        assert len(roots) == min(count, 1)
    if "spans" in fields:
        assert sentence.constituents.num_words == count
        # Stanza's trees cover all of their words, and the extra root all sentences.
        assert not count or [0, count] in sentence.constituents.spans.tolist()
    assert all(label.split() == [label] for label in (*sentence.deprels, *sentence.tags))


def spelled(text):
    """A text without white space, in which words of one surface token are one."""
    text = "".join(text.split()).replace("▁", "").casefold()
    for surface, words in MULTI_WORD_TOKENS.items():
        text = text.replace("".join(words), surface)
    return text


def content(sentence):
    constituents = sentence.constituents
    return (
        sentence.words,
        sentence.tree.heads.tolist(),
        sentence.deprels,
        sentence.tags,
        constituents.spans.tolist(),
        constituents.labels,
    )


@pytest.mark.slow
def test_any_line_has_both_trees_over_all_of_its_text(parser):
    @given(lines())
    def holds(line):
        (sentence,) = parser.parse([line])
        assert not isinstance(sentence, Unparsed), sentence.reason
        assert_well_formed(sentence, parser.fields)
        assert spelled("".join(sentence.words)) == spelled(line)
        (tokenized,) = parser.tokenize([line])
        assert tokenized.words == sentence.words
        assert tokenized.space_before == sentence.space_before
        assert tokenized.tree is tokenized.constituents is None

    holds()


def test_the_trees_stand_as_stanza_gives_them(parser, models):
    assert parser.fields == ("words", "heads", "deprels", "tags", "spans")
    (sentence,) = parser.parse([LINE])
    pipeline = stanza.Pipeline("de", dir=str(models), download_method=None, verbose=False)
    parts = pipeline(LINE).sentences
    assert len(parts) == 2, "Stanza sees one sentence: choose another line"
    words = [word for part in parts for word in part.words]
    assert sentence.words == [word.text for word in words]
    assert sentence.deprels == [word.deprel for word in words]
    assert sentence.tags == [word.upos for word in words]

    starts = [0, len(parts[0].words)]
    roots = [
        start + next(word.id - 1 for word in part.words if word.head == 0)
        for start, part in zip(starts, parts, strict=True)
    ]
    for start, part in zip(starts, parts, strict=True):
        for word in part.words:
            expected = start + word.head - 1 if word.head else roots[0]
            assert sentence.tree.heads[start + word.id - 1] == expected

    brackets = " ".join(str(part.constituency) for part in parts)
    assert sentence.constituents == parse_brackets(brackets).tree
    assert sentence.constituents.labels[-1] == "ROOT"
    assert sentence.constituents.spans[-1].tolist() == [0, len(words)]


def test_words_of_a_multi_word_token_are_words_of_their_own(parser):
    (sentence,) = parser.parse([MULTI_WORD])
    assert sentence.words == MULTI_WORDS
    assert sentence.space_before == [True, True, True, True, True, False]
    assert sentence.expansions == [("im", ("in", "dem"))]
    assert parser.parse(["Der Junge."])[0].expansions == []


def test_surface_tokens_are_words_with_the_trees_of_their_words(parser, models):
    surface = load_parser(f"stanza:de,surface@{models}")
    assert ", surface tokens, Stanza" in surface.version
    (sentence,), (words,) = surface.parse([MULTI_WORD]), parser.parse([MULTI_WORD])
    assert sentence.words == ["Der", "Junge", "im", "Hotel", "."]
    assert surface.tokenize([MULTI_WORD])[0].words == sentence.words
    assert_well_formed(sentence, surface.fields)
    depths = words.tree.depths.tolist()
    highest = 2 if depths[2] <= depths[3] else 3
    assert sentence.deprels == [words.deprels[word] for word in (0, 1, highest, 4, 5)]
    assert sentence.expansions == []
    with pytest.raises(UserError, match="expected stanza:de,surface"):
        load_parser(f"stanza:de,words@{models}")


def test_lines_together_and_alone_have_the_same_trees(parser):
    texts = [LINE, "", *SNIPPETS, "Die Katze sieht den Hund im Haus."]
    alone = [parser.parse([text])[0] for text in texts]
    together = parser.parse(texts)
    assert [content(s) for s in together] == [content(s) for s in alone]
    assert [s.words for s in parser.tokenize(texts)] == [s.words for s in alone]
    for text, sentence in zip(texts, together, strict=True):
        assert_well_formed(sentence, parser.fields)
        assert spelled("".join(sentence.words)) == spelled(text)
    assert parser.parse([]) == parser.tokenize([]) == parser.parse_words([]) == []


@pytest.mark.parametrize("line", ["", " ", "\t", "\u2028 \u3000", "\u0085"])
def test_a_line_without_text_has_no_words(parser, line):
    (sentence,) = parser.parse([line])
    assert content(sentence) == ([], [], [], [], [], [])
    assert parser.tokenize([line])[0].words == []


def test_control_characters_that_stanza_takes_for_white_space_stay_in_their_words(parser):
    (sentence,) = parser.parse(["Der\u0097Hund \u0080 \u009f."])
    assert spelled("".join(sentence.words)) == "der\u0097hund\u0080\u009f."


def test_a_line_whose_text_the_tokenizer_loses_is_unparsed_with_all_of_its_words(
    parser, monkeypatch
):
    monkeypatch.setattr(adapter, "KEEP_CONTROLS", {0x97: " "})  # as if it were white space
    texts = ["der \u0097 Hund", "der Hund", "der \u0097"]
    first, second, third = parser.parse(texts)
    assert (first.reason, first.sentence.words) == (
        "Stanza's tokenizer left out '\u0097'",
        ["der", "\u0097", "Hund"],
    )
    assert_well_formed(second, parser.fields)
    assert third.sentence.words == ["der", "\u0097"]
    assert [s.words for s in parser.tokenize(texts)] == [text.split() for text in texts]


def test_a_word_longer_than_stanza_tags_keeps_its_text(parser):
    long = "https://www.example.org/" + "a" * 1500
    (sentence,) = parser.parse([f"Der {long} ."])
    assert spelled("".join(sentence.words)) == f"der{long}."
    (sentence,) = parser.parse_words([["Der", long]])
    assert sentence.words == ["Der", long]
    assert_well_formed(sentence, parser.fields)


def test_a_sentence_too_long_for_the_parser_is_unparsed_and_the_others_are_not(parser):
    long, short = parser.parse_words([["der", "Hund"] * 501, ["der", "Hund"] * 10])
    assert long.reason == "Stanza finds a sentence of 1002 words here, more than the limit of 1000"
    assert len(long.sentence.words) == 1002
    assert_well_formed(short, parser.fields)


@pytest.mark.slow
def test_a_line_of_ten_thousand_words_has_its_words(parser):
    line = " ".join(["Der Hund schläft."] * 3333)
    (sentence,) = parser.tokenize([line])
    assert spelled("".join(sentence.words)) == spelled(line)


def test_any_given_words_have_both_trees(parser):
    @given(st.lists(lines().map(lambda line: "".join(line.split())), max_size=8))
    def holds(words):
        (sentence,) = parser.parse_words([words])
        assert sentence.words == words
        assert all(sentence.space_before)
        assert len(sentence.tree) == sentence.constituents.num_words == len(words)

    holds()


def test_a_corpus_is_parsed_by_the_command(synthetic_corpus, models, tmp_path, monkeypatch):
    monkeypatch.chdir(models.parent)
    text = synthetic_corpus / "test"
    files = [f"--trainpref={text}", f"--destdir={tmp_path / 'data'}"]
    options = ["--parser=stanza:de@models", "--vocab-size=200", "--joined-dictionary"]
    preprocess_command.main(["-s", "de", "-t", "en", *files, *options])
    manifest = json.loads((tmp_path / "data" / "syntax.de.json").read_text())
    assert manifest["parser"] == f"stanza:de@{models}"
    assert manifest["fields"] == ["words", "heads", "deprels", "tags", "spans"]
    assert manifest["splits"]["train.de-en"]["sentences"] == 100


def test_white_space_within_a_token_is_joined():
    class LinePart:
        def __init__(self, **fields):
            vars(self).update(fields)

    word = LinePart(text="2 000")
    tokens = [
        LinePart(start_char=1, end_char=6, words=[word]),
        LinePart(start_char=6, end_char=7, words=[word]),
    ]
    sentence = adapter.sentence_of_line(" 2 000.", LinePart(sentences=[LinePart(tokens=tokens)]))
    assert (sentence.words, sentence.space_before) == (["2▁000", "."], [True, False])


def test_a_parse_over_other_words_is_no_tree(parser, monkeypatch):
    convert = adapter.constituents_of
    # No model of Stanza's makes such a tree.
    monkeypatch.setattr(adapter, "constituents_of", lambda tree, count: convert(tree, count + 1))
    (sentence,) = parser.parse(["der Hund"])
    assert sentence.reason == "Stanza's parse is not a tree: it has 2 leaves for 3 words"
    assert sentence.sentence.words == ["der", "Hund"]


@pytest.mark.parametrize(
    ("missing", "fields"),
    [
        ("constituency", ("words", "heads", "deprels", "tags")),
        ("depparse", ("words", "tags", "spans")),
    ],
)
def test_one_parser_alone_gives_the_trees_it_makes(copied, missing, fields, parser):
    shutil.rmtree(copied / "de" / missing)
    alone = load_parser(f"stanza:de@{copied}")
    assert alone.fields == fields
    assert missing not in alone.version
    (sentence,), (full,) = alone.parse([LINE]), parser.parse([LINE])
    assert_well_formed(sentence, fields)
    assert (sentence.tree is None) == (missing == "depparse")
    assert (sentence.constituents is None) == (missing == "constituency")
    assert sentence.tags == full.tags
    assert sentence.deprels == (full.deprels if "heads" in fields else [])


def test_a_package_without_a_lemmatizer_or_multi_word_tokens_is_parsed(copied):
    edit(copied, lambda default: (default.pop("lemma"), default.pop("mwt")), without=("mwt",))
    alone = load_parser(f"stanza:de@{copied}")
    (sentence,) = alone.parse(["Der Junge im Hotel."])
    assert sentence.words == ["Der", "Junge", "im", "Hotel", "."]
    assert_well_formed(sentence, alone.fields)


def test_a_constituency_parser_that_is_optional_is_used_where_it_is_present(copied):
    edit(
        copied,
        lambda default: default.update(optional={"constituency": default.pop("constituency")}),
    )
    assert "spans" in load_parser(f"stanza:de@{copied}").fields


def edit(folder, change, without=()):
    """Change the default package of German, and leave processors out of the list of models."""
    path = folder / "resources.json"
    resources = json.loads(path.read_text())
    change(resources["de"]["packages"]["default"])
    for name in without:
        del resources["de"][name]
    path.write_text(json.dumps(resources))


def test_the_version_names_the_packages_and_stanza(parser):
    listed = ", ".join(
        f"{name} {'identity' if name == 'lemma' else 'synthetic'}"
        for name in ("tokenize", "mwt", "pos", "lemma", "depparse", "constituency")
    )
    assert parser.version == f"de ({listed}), Stanza {stanza.__version__}"
    assert isinstance(parser, LineParser)
    assert pickle.loads(pickle.dumps(parser)).version == parser.version


def test_cutting_into_words_needs_the_tokenizer_alone(copied):
    alone = load_parser(f"stanza:de@{copied}")
    for name in ("pos", "depparse", "constituency", "pretrain"):
        shutil.rmtree(copied / "de" / name)
    assert alone.tokenize([MULTI_WORD])[0].words == MULTI_WORDS
    with pytest.raises(UserError, match=f"Stanza cannot load .*depparse.* from {copied}"):
        alone.parse([MULTI_WORD])


def test_nothing_is_printed_or_looked_up(models, offline, capfd):
    parser = load_parser(f"stanza:de@{models}")
    parser.parse([LINE])
    parser.parse_words([["der", "Hund"]])
    assert capfd.readouterr() == ("", "")


def test_an_alias_of_an_alias_names_the_language(tmp_path):
    resources = {"a": {"alias": "b"}, "b": {"alias": "de"}, "de": {"packages": {"default": {
        "depparse": "gsd", "optional": {"constituency": "x"}}}}}  # fmt: skip
    (tmp_path / "resources.json").write_text(json.dumps(resources))
    (tmp_path / "de" / "depparse").mkdir(parents=True)
    (tmp_path / "de" / "depparse" / "gsd.pt").touch()
    for name in ("a", "b", "de"):
        assert load_parser(f"stanza:{name}@{tmp_path}").files == [
            tmp_path / "de" / "depparse" / "gsd.pt"
        ]


def test_models_that_stanza_downloaded_are_found(models, monkeypatch):
    monkeypatch.setattr("stanza.resources.common.DEFAULT_MODEL_DIR", str(models))
    assert load_parser("stanza:de").tokenize([MULTI_WORD])[0].words == MULTI_WORDS


@pytest.mark.parametrize("language", ["de", "$(id)`'"])
def test_a_folder_without_models_is_named_with_the_command(tmp_path, offline, language):
    code = f'import stanza; stanza.download("{language}", model_dir="{tmp_path}")'
    command = f"python -c {shlex.quote(code)}"  # which a shell reads as it is
    with pytest.raises(UserError) as caught:
        load_parser(f"stanza:{language}@{tmp_path}")
    assert str(caught.value) == (
        f"{tmp_path} has no Stanza models (resources.json is missing): {command}"
    )


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (
            "tokenize",
            "the Stanza model .*de/tokenize/synthetic.pt is missing, which tokenize needs",
        ),
        ("mwt", "de/mwt/synthetic.pt is missing, which mwt needs"),
        ("pretrain", "de/pretrain/synthetic.pt is missing, which pos needs"),
    ],
)
def test_a_missing_model_is_named_with_the_command(copied, offline, removed, message):
    shutil.rmtree(copied / "de" / removed)
    with pytest.raises(UserError, match=f"{message}: python -c .*stanza.download"):
        load_parser(f"stanza:de@{copied}")


def test_a_folder_without_a_parser_is_refused(copied, offline):
    shutil.rmtree(copied / "de" / "depparse")
    shutil.rmtree(copied / "de" / "constituency")
    with pytest.raises(UserError, match=r"no Stanza parser for .*'de'.*stanza.download"):
        load_parser(f"stanza:de@{copied}")


@pytest.mark.parametrize("language", ["xx", "url", "loop"])
def test_a_language_that_is_not_there_is_refused(copied, language):
    path = copied / "resources.json"
    resources = {**json.loads(path.read_text()), "loop": {"alias": "loop"}}
    path.write_text(json.dumps(resources))
    with pytest.raises(UserError, match=f"no default package for the language '{language}'"):
        load_parser(f"stanza:{language}@{copied}")


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "resources.json cannot be read"), ("[]", "is not Stanza's list of models")],
)
def test_a_garbled_list_of_models_is_refused(tmp_path, text, message):
    (tmp_path / "resources.json").write_text(text)
    with pytest.raises(UserError, match=message):
        load_parser(f"stanza:de@{tmp_path}")


def test_a_damaged_model_is_named(copied):
    (copied / "de" / "tokenize" / "synthetic.pt").write_bytes(b"no model")
    with pytest.raises(UserError, match=f"Stanza cannot load tokenize, mwt from {copied}"):
        load_parser(f"stanza:de@{copied}").tokenize(["Haus"])


def test_stanza_that_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "stanza", None)
    with pytest.raises(UserError, match="pip install stanza"):
        load_parser("stanza:de")
