"""CoNLL-U files beside the text: what is read of them, and what is refused, by file and line."""

import gzip
from pathlib import Path

import conllu
import pytest
from conftest import shared_data

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.text import read_lines


def row(identifier, form, head, deprel="dep", upos="X", misc="_"):
    return "\t".join([str(identifier), form, "_", upos, "_", "_", str(head), deprel, "_", misc])


def read(tmp_path, rows, *lines):
    path = tmp_path / "train.de.conllu"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return list(ConlluFiles().read(path, iter(lines)))


DOG = [
    row(1, "Der", 2, "det", "DET"),
    row(2, "Hund", 3, "nsubj", "NOUN"),
    row(3, "bellt", 0, "root"),
]


def test_words_heads_relations_and_tags_are_read(tmp_path):
    (sentence,) = read(tmp_path, ["# text = Der Hund bellt", *DOG, ""], "Der Hund bellt")
    assert sentence.words == ["Der", "Hund", "bellt"]
    assert sentence.tree.heads.tolist() == [1, 2, 2]
    assert sentence.deprels == ["det", "nsubj", "root"]
    assert sentence.tags == ["DET", "NOUN", "X"]
    assert sentence.space_before == [True, True, True]


def test_a_surface_token_of_several_words_gives_its_words(tmp_path):
    rows = [row(1, "(", 4, misc="SpaceAfter=No"), row("2-3", "zum", "_", misc="SpaceAfter=No")]
    rows += [row(2, "zu", 4), row(3, "dem", 4), row(4, ")", 0), row(5, "Haus", 4)]
    (sentence,) = read(tmp_path, rows, "(zum) Haus")
    assert sentence.words == ["(", "zu", "dem", ")", "Haus"]
    assert sentence.space_before == [True, False, True, False, True]


def test_a_space_follows_a_surface_token_unless_it_says_otherwise(tmp_path):
    rows = [row("1-2", "Zum", "_"), row(1, "zu", 3), row(2, "dem", 3, misc="SpaceAfter=No")]
    (sentence,) = read(tmp_path, [*rows, row(3, "Haus", 0)], "Zum Haus")
    assert sentence.space_before == [True, True, True]


def test_empty_nodes_are_left_out(tmp_path):
    rows = [row("0.1", "es", "_"), row(1, "Sie", 2), row(2, "kommt", 0), row("2.1", "kommt", "_")]
    (sentence,) = read(tmp_path, rows, "Sie kommt")
    assert sentence.words == ["Sie", "kommt"]


def test_no_space_stands_where_the_file_says_so(tmp_path):
    rows = [row(1, "Ja", 0, misc="Gloss=yes|SpaceAfter=No"), row(2, "!", 1, misc="SpaceAfter=Yes")]
    (sentence,) = read(tmp_path, rows, "Ja!")
    assert sentence.space_before == [True, False]


def test_a_word_may_hold_spaces_and_the_line_may_space_it_otherwise(tmp_path):
    (sentence,) = read(tmp_path, [row(1, "10  000", 2), row(2, "Euro", 0)], "10 000\u00a0Euro")
    assert sentence.words == ["10▁000", "Euro"]


def test_columns_may_be_empty(tmp_path):
    rows = ["1\tJa\t\t\t\t\t0\t\t\t", "2\t,\t\t\t\t\t1\t\t\tSpaceAfter=No"]
    (sentence,) = read(tmp_path, rows, "Ja ,")
    assert (sentence.deprels, sentence.tags) == (["dep", "dep"], ["X", "X"])


def test_a_line_without_text_has_no_sentence_in_the_file(tmp_path):
    rows = [*DOG, "", "", "# comment", row(1, "Ja", 0), ""]
    sentences = read(tmp_path, rows, "", "Der Hund bellt", " \t", "Ja", "")
    assert [len(sentence.words) for sentence in sentences] == [0, 3, 0, 1, 0]
    assert all(sentence.tree is not None for sentence in sentences)


def test_hash_signs_and_separators_within_words_are_text(tmp_path):
    rows = [row(1, "#", 2), row(2, "1\u2028a", 0)]
    (sentence,) = read(tmp_path, rows, "# 1\u2028a")
    assert sentence.words == ["#", "1▁a"]


@pytest.mark.parametrize(
    ("rows", "place", "message"),
    [
        ([row(1, "a", 2), row(2, "b", 1)], "line 2", "0 -> 1 -> 0|1 -> 0 -> 1"),
        ([row(1, "a", 0), row(2, "b", 3), row(3, "c", 2)], "line 2", "form a cycle"),
        ([row(1, "a", 0), row(2, "b", 0)], "line 3", "more than one root, words 1 and 2"),
        ([row(1, "a", 0), row(2, "b", 3)], "line 3", "word 2 has head 3, and .* 2 words"),
        ([row(1, "a", 0), row(2, "b", -1)], "line 3", "word 2 has no head but '-1'"),
        ([row(1, "a", 0), row(2, "b", "_")], "line 3", "word 2 has no head but '_'"),
        ([row(1, "a", 0), row(2, "b", "١")], "line 3", "word 2 has no head but '١'"),
        ([row(1, "a", 0), row(2, "b", 2)], "line 3", "word 2 is its own head; a root has head 0"),
        ([row(1, "a", 0) + "\t_"], "line 2", "expected 10 columns .* found 11"),
        ([row(1, "a", 0), "2\tb\t1"], "line 3", "expected 10 columns .* found 3"),
        ([row(1, "a", 0).replace("\t", "  ")], "line 2", "expected 10 columns .* found 1"),
        ([row(1, "a", 0), row(3, "b", 1)], "line 3", "expected word 2 next, found '3'"),
        ([row("x", "a", 0)], "line 2", "expected word 1 next, found 'x'"),
        ([row("2-3", "ab", "_"), row(1, "a", 0)], "line 2", "2-3 is not where its words are"),
        ([row("1-2", "ab", "_"), row(1, "a", 0)], "line 3", "word 2 of 1-2 is missing"),
        ([row(1, "x", 2), row(2, "b", 0)], "line 2", "not line 1 .* expected 'a b', found 'xb'"),
    ],
    ids=lambda value: None,
)
def test_a_malformed_sentence_is_refused_with_file_and_line(tmp_path, rows, place, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, ["# comment", *rows, ""], "a b")
    assert f"train.de.conllu, {place}:" in str(caught.value)


def test_fewer_sentences_than_lines_are_refused_with_the_line_left_over(tmp_path):
    with pytest.raises(UserError, match=r"train\.de\.conllu has fewer sentences .* line 3"):
        read(tmp_path, [*DOG, ""], "Der Hund bellt", "", "Ja")


def test_more_sentences_than_lines_are_refused_with_their_place(tmp_path):
    with pytest.raises(UserError, match=r"train\.de\.conllu, line 5: there are more sentences"):
        read(tmp_path, [*DOG, "", row(1, "Ja", 0)], "Der Hund bellt")


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "train.de.conllu"
    path.write_bytes(f"{row(1, 'Ja', 2)}\n{row(2, 'schön', 0)}\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.de\.conllu, line 2: not UTF-8"):
        list(ConlluFiles().read(path, iter(["Ja schön"])))


def treebank(synthetic_corpus, tmp_path) -> Path:
    """German PUD where it is at hand, else the synthetic corpus' own trees."""
    folder = shared_data("treebanks")
    if folder is None:
        return synthetic_corpus / "test.de.conllu"
    path = tmp_path / "pud.conllu"
    path.write_bytes(gzip.decompress((folder / "pud" / "de_pud-ud-test.conllu.gz").read_bytes()))
    return path


def test_a_treebank_is_read_as_the_conllu_library_reads_it(synthetic_corpus, tmp_path):
    path = treebank(synthetic_corpus, tmp_path)
    expected = conllu.parse(path.read_text(encoding="utf-8"))
    texts = [tokens.metadata["text"] for tokens in expected]
    sentences = list(ConlluFiles().read(path, iter(texts)))
    assert len(sentences) == len(expected) >= 100
    for sentence, tokens in zip(sentences, expected, strict=True):
        words = [token for token in tokens if isinstance(token["id"], int)]
        assert sentence.words == [token["form"].replace(" ", "▁") for token in words]
        assert sentence.deprels == [token["deprel"] for token in words]
        assert sentence.tags == [token["upos"] for token in words]
        heads = sentence.tree.heads
        assert [0 if h == i else h + 1 for i, h in enumerate(heads)] == [t["head"] for t in words]
        if all(isinstance(token["id"], int) for token in tokens):
            spelled = "".join(sentence.marked_words()).replace("▁", " ").split()
            assert spelled == tokens.metadata["text"].split()


def test_the_synthetic_corpus_reads_back_whole(synthetic_corpus):
    for language in ("de", "en"):
        text = synthetic_corpus / f"test.{language}"
        sentences = list(ConlluFiles().read(Path(f"{text}.conllu"), read_lines(text)))
        spelled = ["".join(s.marked_words()).replace("▁", " ").strip() for s in sentences]
        assert spelled == list(read_lines(text))
