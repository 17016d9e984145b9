"""spaCy on real pipelines and hostile text."""

import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest
import spacy
from hypothesis import given

from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.subwords.encoded_sentences import marked_words
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import LineParser, Unparsed, load_parser
from fairseq_phrase.parsers.interfaces import split_at_white_space
from fairseq_phrase.parsers.spacy import SpacyParser, unused_components
from tests.support.commands import script_environment
from tests.support.data_directories import copied
from tests.support.hostile import SNIPPETS, lines
from tests.support.repository import REPOSITORY
from tests.support.well_formed import assert_well_formed


@pytest.fixture(scope="module")
def parser(spacy_pipeline):
    """The shared pipeline, or the one trained here."""
    return SpacyParser(str(spacy_pipeline))


@pytest.fixture(scope="module")
def small_parser(trained_pipeline):
    """The pipeline trained here, which sees sentences everywhere."""
    return SpacyParser(str(trained_pipeline))


def spelled(sentence):
    """A sentence's words with the spaces that were between them."""
    return "".join(marked_words(sentence)).replace("▁", " ").split()


@pytest.mark.fast(1)
@pytest.mark.parametrize("name", ["parser", "small_parser"])
def test_spacy_gives_one_tree_over_the_words_of_any_line(name, request):
    adapter = request.getfixturevalue(name)

    @given(lines())
    def holds(line):
        (sentence,) = adapter.parse([line])
        assert_well_formed(sentence, adapter.fields)
        assert spelled(sentence) == line.replace("▁", " ").split()
        (tokenized,) = adapter.tokenize([line])
        assert tokenized.words == sentence.words
        assert tokenized.space_before == sentence.space_before
        assert tokenized.tree is None

    holds()


def test_spacys_heads_and_labels_stand_as_spacy_gives_them(parser, spacy_pipeline):
    line = "Ein Mann mit Hut kauft das alte Haus, weil es ihm gefällt."
    (sentence,) = parser.parse([line])
    document = spacy.load(spacy_pipeline)(line)
    roots = [token.i for token in document if token.head.i == token.i]
    expected = [roots[0] if token.i in roots else token.head.i for token in document]
    assert sentence.words == [token.text for token in document]
    assert sentence.tree.heads.tolist() == expected
    assert sentence.deprels == [token.dep_ for token in document]
    assert sentence.tags == [token.pos_ or "X" for token in document]


def test_a_line_of_several_sentences_has_one_root(parser, spacy_pipeline):
    line = "Der Hund schläft. Die Katze wacht. Wo ist die Maus? Niemand weiß es."
    document = spacy.load(spacy_pipeline)(line)
    assert len(list(document.sents)) > 1, "the pipeline sees one sentence: choose another line"
    (sentence,) = parser.parse([line])
    heads = sentence.tree.heads.tolist()
    assert [word for word, head in enumerate(heads) if word == head] == [sentence.tree.root]


def test_white_space_tokens_leave_the_tree_and_spaces_are_remembered(parser):
    (sentence,) = parser.parse(["  Der \t Hund\u00a0 bellt  (laut)."])
    assert sentence.words == ["Der", "Hund", "bellt", "(", "laut", ")", "."]
    assert sentence.space_before == [True, True, True, True, False, False, False]
    assert_well_formed(sentence, parser.fields)


@pytest.mark.parametrize("line", ["", " ", "\t", "\u2028 \u3000"])
def test_a_line_without_text_has_no_words(parser, line):
    (sentence,) = parser.parse([line])
    assert (sentence.words, len(sentence.tree)) == ([], 0)


@pytest.mark.slow
def test_a_line_of_ten_thousand_words_has_a_tree(small_parser):
    line = " ".join(["Die Katze schläft"] * 3333 + ["."])
    (sentence,) = small_parser.parse([line])
    assert len(sentence.words) == 10_000
    assert sentence.tree.depths.max() > 0


def test_lines_together_and_alone_have_the_same_trees(small_parser):
    texts = ["Der Hund schläft.", "", *SNIPPETS, "Die Katze sieht den Hund im Haus."]
    alone = [small_parser.parse([text])[0] for text in texts]
    together = small_parser.parse(texts)
    assert [sentence.words for sentence in together] == [sentence.words for sentence in alone]
    assert [s.tree.heads.tolist() for s in together] == [s.tree.heads.tolist() for s in alone]


def content(sentences):
    return [
        (
            s.words,
            s.space_before,
            None if s.tree is None else s.tree.heads.tolist(),
            s.deprels,
            s.tags,
        )
        for s in sentences
    ]


@pytest.fixture
def forgetful_parser(spacy_pipeline, monkeypatch):
    """A parser that keeps no new word in memory."""
    monkeypatch.setattr("fairseq_phrase.parsers.spacy.KEPT_WORDS", 0)
    return SpacyParser(str(spacy_pipeline))


def test_words_that_are_forgotten_change_no_parse(parser, forgetful_parser):
    texts = ["Der Hund schläft.", "", *SNIPPETS, "Die Katze sieht den Zebrafinkenkäfig im Haus."]
    words = [text.split() for text in texts]
    sizes = set()
    for _ in range(2):
        for name, source in (("parse", texts), ("parse_words", words), ("tokenize", texts)):
            expected = content(getattr(parser, name)(source))
            assert content(getattr(forgetful_parser, name)(source)) == expected
        with pytest.raises(UnicodeEncodeError):
            forgetful_parser.parse(["Hund \ud83d"])
        sizes.add(len(list(forgetful_parser.pipeline.vocab)))
    assert len(sizes) == 1


def test_threads_may_share_a_parser_that_forgets(parser, forgetful_parser):
    parts = [[f"Der Hund {letter * number} schläft."] * 20 for letter in "ab" for number in (7, 8)]
    with ThreadPoolExecutor(2) as threads:
        parses = list(threads.map(forgetful_parser.parse, parts))
    assert [*map(content, parses)] == [content(parser.parse(part)) for part in parts]


def test_a_parser_that_has_parsed_goes_to_other_processes(small_parser):
    expected = small_parser.parse(["Der Hund schläft."])[0].tree.heads.tolist()
    unpickled = pickle.loads(pickle.dumps(small_parser))
    assert unpickled.version == small_parser.version
    assert unpickled.parse(["Der Hund schläft."])[0].tree.heads.tolist() == expected


def test_a_parser_with_other_weights_is_named_and_weights_are_read_only_if_dates_differ(
    data_directory, trained_pipeline, tmp_path, monkeypatch, caplog
):
    """Another training of a pipeline has the same name and version."""
    data = copied(data_directory, tmp_path / "data")
    spec = f"spacy:{shutil.copytree(trained_pipeline, tmp_path / 'pipeline')}"
    parser, manifest = load_parser(spec), Manifest.load(data, "de")
    parsing = {"parser": spec, "constituents": "none", "parser_version": parser.version}
    weights = {"parser_digest": parser.digest, "parser_stamp": parser.stamp}
    build = partial(TextEncoder.from_data, data, "de", spec, strict=True)

    def record(**changes):
        replace(manifest, **parsing, **weights | changes).save(data)

    record(parser_stamp="of other dates")
    build()
    record(parser_digest="ab", parser_stamp="of other dates")
    with pytest.raises(
        UserError, match=r"differ in parser .* ab and .*: parse with the training's"
    ):
        build()
    TextEncoder.from_data(data, "de", spec)
    assert "differ in parser " in caplog.text
    record()
    # With the same dates, no weights are read.
    monkeypatch.setattr(LineParser, "digest", property(lambda parser: pytest.fail("they are read")))
    build()


def test_a_line_longer_than_spacy_parses_comes_back_unparsed(trained_pipeline):
    adapter = SpacyParser(str(trained_pipeline))
    adapter.parse([])
    adapter.tokenize([])
    long = " ".join(["Hund"] * 200_001)
    expected = Unparsed(
        "the line has 1000004 characters, and this spaCy pipeline parses at most 1000000",
        split_at_white_space(long),
    )
    before, unparsed, after = adapter.parse(["Der Hund schläft.", long, "Ja"])
    assert unparsed == expected
    assert (len(before.tree), len(after.tree)) == (4, 1)
    before, unparsed, after = adapter.parse_words([["Der", "Hund"], long.split(), ["Ja"]])
    assert unparsed == expected
    assert (len(before.tree), len(after.tree)) == (2, 1)
    assert adapter.tokenize([long]) == [expected.sentence]


@given(line=lines())
def test_any_words_can_be_given(parser, line):
    sentence, empty = parser.parse_words([line.split(), []])
    assert sentence.words == line.split()
    assert sentence.space_before == [True] * len(sentence.words)
    assert_well_formed(sentence, parser.fields)
    assert (empty.words, len(empty.tree)) == ([], 0)


def test_given_words_and_the_line_that_spells_them_have_the_same_tree(parser):
    line = "Ein Mann mit Hut kauft das alte Haus"
    (given_words,), (raw,) = parser.parse_words([line.split()]), parser.parse([line])
    assert given_words.words == raw.words
    assert given_words.tree.heads.tolist() == raw.tree.heads.tolist()
    assert (given_words.deprels, given_words.tags) == (raw.deprels, raw.tags)


def test_components_that_no_parse_needs_are_not_loaded(parser, spacy_pipeline):
    lines = ["Ein Mann kauft das Haus .", "Die Katze schläft ."]
    parser.parse(lines)
    full_pipeline = spacy.load(spacy_pipeline)
    assert set(parser.pipeline.pipe_names) <= set(full_pipeline.pipe_names)
    assert unused_components(["tok2vec", "tagger", "morphologizer", "parser"]) >= {"tagger", "ner"}
    assert "tagger" not in unused_components(["tok2vec", "tagger", "attribute_ruler", "parser"])
    assert "tagger" not in unused_components(
        ["tagger", "morphologizer", "attribute_ruler", "parser"]
    )
    for sentence, document in zip(parser.parse(lines), full_pipeline.pipe(lines), strict=True):
        assert sentence.tags == [token.pos_ or "X" for token in document]
        assert sentence.deprels == [token.dep_ for token in document]


def test_a_pipeline_that_is_not_installed_is_named_with_its_command():
    with pytest.raises(UserError, match="python -m spacy download de_no_such_pipeline"):
        load_parser("spacy:de_no_such_pipeline")
    for name in ("--pre", "de --pre", "de;id", "$(id)"):
        with pytest.raises(UserError, match="installed, and it is not a folder: expected a name"):
            load_parser(f"spacy:{name}")


def test_spacy_that_is_not_installed_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match="pip install spacy"):
        load_parser("spacy:de_core_news_sm")


def test_an_installed_package_that_is_no_pipeline_is_refused():
    with pytest.raises(UserError, match="numpy is not a spaCy pipeline"):
        load_parser("spacy:numpy")


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"{tmp_path} is not a spaCy pipeline"):
        load_parser(f"spacy:{tmp_path}")


def test_a_pipeline_without_a_parser_is_refused(tmp_path):
    pipeline = spacy.blank("de")
    pipeline.add_pipe("sentencizer")
    pipeline.to_disk(tmp_path / "de_blank")
    with pytest.raises(UserError, match="has no dependency parser, only sentencizer"):
        load_parser(f"spacy:{tmp_path / 'de_blank'}")


@pytest.mark.parametrize("damage", ["missing", "garbled"])
def test_a_damaged_pipeline_is_named(trained_pipeline, tmp_path, damage):
    folder = shutil.copytree(trained_pipeline, tmp_path / "de_damaged")
    if damage == "missing":
        (folder / "config.cfg").unlink()
    else:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "config.cfg").write_text("[nlp]\nlang = \n")
        (folder / "meta.json").write_text(json.dumps(meta))
    adapter = SpacyParser(str(folder))
    with pytest.raises(UserError, match=f"spaCy cannot load {folder}"):
        adapter.parse(["Haus"])


def test_parsed_text_for_glosses_lacks_lemmas(trained_pipeline, tmp_path):
    (tmp_path / "text").write_text("Haus\n")
    command = [sys.executable, "scripts/glosses.py", "parse", trained_pipeline]
    finished = subprocess.run(
        [*command, tmp_path / "text", tmp_path / "parsed"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env=script_environment(),
    )
    assert (
        finished.stderr == f"{trained_pipeline} gives no lemmas: words are looked up by form only\n"
    )
    assert "\tHaus\t_\t" in (tmp_path / "parsed.conllu").read_text()
