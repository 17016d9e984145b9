"""Words first: every subword's word is known by construction, and nothing of the text is lost."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.subwords.encoded_sentences import encode_sentence, marked_words
from fairseq_phrase.data.subwords.protected_tokens import JOINER, ProtectedTokens
from fairseq_phrase.data.subwords.segmenters import WholeWords
from fairseq_phrase.data.subwords.text_encoder import TextEncoder
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import names_path
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import Expansion, ParsedSentence
from fairseq_phrase.text import is_invisible, read_lines
from tests.support.hostile import SNIPPETS, lines, trees
from tests.twins.alignment import check_words

INVISIBLE = "\u200b"


def pipeline(parser):
    return ParsingPipeline(ParsingOptions(parser))


def subwords_by_word(encoded):
    """The subwords of each word, joined, by a loop."""
    spelled = {}
    for subword, word in zip(encoded.subwords, encoded.words.tolist(), strict=True):
        spelled[word] = spelled.get(word, "") + subword
    return [spelled[word] for word in sorted(spelled)]


@st.composite
def parsed_sentences(draw):
    """Words of hostile text, some invisible, under a random tree."""
    heads = draw(trees(12))
    texts = st.one_of(st.sampled_from([INVISIBLE, *SNIPPETS]), lines(2))
    words = ["".join(draw(texts).split()) or "x" for _ in heads]
    labels = [f"label{index}" for index in range(len(heads))]
    spaces = draw(st.lists(st.booleans(), min_size=len(heads), max_size=len(heads)))
    return ParsedSentence(words, spaces, tree=DependencyTree(heads), deprels=labels, tags=labels)


@given(sentence=parsed_sentences())
def test_the_subwords_of_each_word_spell_it_in_its_normal_form(segmenter, normalize, sentence):
    encoded = encode_sentence(sentence, segmenter)
    normal = ["".join(normalize(word).split()) for word in marked_words(sentence)]
    visible = [word for word in normal if not is_invisible(word.removeprefix("▁"))]
    assert subwords_by_word(encoded) == [word for word in visible if word.strip("▁")]
    check_words(encoded.words)


@given(sentence=parsed_sentences())
def test_a_word_of_which_nothing_is_left_leaves_the_tree(segmenter, sentence):
    encoded = encode_sentence(sentence, segmenter)
    keep = [bool(segmenter.segment_word(word)) for word in marked_words(sentence)]
    expected = sentence.tree.restricted_to(np.array(keep, dtype=bool))
    assert encoded.heads.tolist() == expected.heads.tolist()
    labels = [label for label, is_kept in zip(sentence.deprels, keep, strict=True) if is_kept]
    assert encoded.deprels == encoded.tags == labels
    assert len(labels) == (int(encoded.words[-1]) + 1 if len(encoded.words) else 0)


def test_an_invisible_words_dependents_hang_off_its_head(segmenter):
    words = ["der", "Hund", INVISIBLE, "schläft"]
    sentence = ParsedSentence(
        words, [True] * 4, tree=DependencyTree([1, 2, 3, 3]), deprels=list("abcd"), tags=[]
    )
    encoded = encode_sentence(sentence, segmenter)
    assert encoded.heads.tolist() == [1, 2, 2]
    assert encoded.deprels == ["a", "b", "d"]
    assert Counter(encoded.words.tolist()).keys() == {0, 1, 2}


@pytest.mark.parametrize("words", [[], [INVISIBLE], [INVISIBLE, INVISIBLE]])
def test_a_sentence_of_which_nothing_is_left_is_empty(segmenter, words):
    heads = [0] * len(words)
    sentence = ParsedSentence(
        words, [True] * len(words), tree=DependencyTree(heads), deprels=heads, tags=heads
    )
    encoded = encode_sentence(sentence, segmenter)
    assert (encoded.subwords, len(encoded.words), len(encoded.heads)) == ([], 0, 0)


def test_a_sentence_without_a_tree_is_segmented_without_one(segmenter):
    encoded = encode_sentence(ParsedSentence(["Hund", INVISIBLE], [True, True]), segmenter)
    assert encoded.heads is None
    assert subwords_by_word(encoded) == ["▁Hund"]


def test_ordinary_lines_come_back_with_their_very_spaces(segmenter, synthetic_corpus):
    texts = list(read_lines(synthetic_corpus / "test.de"))
    encoder = TextEncoder(pipeline("none"), segmenter)
    for line, encoded in zip(texts, encoder.encode_lines(texts), strict=True):
        assert "".join(encoded.subwords).replace("▁", " ").strip() == line
    parses = ConlluFiles().read(synthetic_corpus / "test.de.conllu", iter(texts))
    for line, sentence in zip(texts, parses, strict=True):
        encoded = encode_sentence(sentence, segmenter)
        assert "".join(encoded.subwords).replace("▁", " ").strip() == line
        assert len(encoded.heads) == len(sentence.words)


def test_ten_thousand_words_keep_their_places(segmenter):
    line = "der Hund " * 5000
    (encoded,) = TextEncoder(pipeline("none"), segmenter).encode_lines([line])
    assert encoded.words[-1] == 9999
    assert subwords_by_word(encoded) == ["▁der", "▁Hund"] * 5000


def test_data_parsed_from_files_asks_for_a_parser_of_new_text(data_directory):
    encoder = TextEncoder.from_data(data_directory, "de")
    for read in (encoder.encode_lines, encoder.segment_lines):
        with pytest.raises(UserError, match='source_parser="spacy:MODEL"'):
            read(["Ein Hund"])


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


@pytest.mark.parametrize(
    ("line", "words", "subwords"),
    [
        (
            "er geht zum Haus <g1> jetzt",
            "er geht zu dem Haus jetzt",
            "er geht zu dem Haus <g1> jetzt",
        ),
        ("zum <g1>Haus", "zu dem Haus", "zu dem <g1> + Haus"),
        ("zum<g1> Haus", "zu dem Haus", "zu dem + <g1> Haus"),
        ("<g1>zum Haus", "zu dem Haus", "<g1> + zu dem Haus"),
        ("Haus <g1> zum", "Haus zu dem", "Haus <g1> zu dem"),
        ("the dog's <g1> tail", "the dog 's tail", "the dog 's <g1> tail"),
        ("10 000 <g1> Euro", "10▁000 Euro", "10▁000 <g1> Euro"),
        ("10 <g1> 000 Euro", "10▁000 Euro", "10 <g1> 000 Euro"),
        ("10 0<g1>00", "10▁000", "10▁0 + <g1> + 00"),
        (f"ein {INVISIBLE} <g1> Haus", "ein Haus", "ein <g1> Haus"),
        ("Das￨DET <g1> Haus￨NOUN", "Das Haus", "Das <g1> Haus"),
    ],
)
def test_protected_tokens_stand_between_the_words_that_the_line_has_around_them(
    line, words, subwords
):
    segmenter = ProtectedTokens(WholeWords(), ["<g1>", JOINER])
    text, tokens = segmenter.separate(line)
    several = words.split()
    expansions = [Expansion("zum", ("zu", "dem"))] * ("zu" in several)
    sentence = ParsedSentence(several, [True] * len(several), expansions=expansions)
    encoded = encode_sentence(sentence, segmenter, tokens, text)
    assert " ".join(encoded.subwords).replace(JOINER, "+") == subwords
    assert encoded.num_words == len(several)
