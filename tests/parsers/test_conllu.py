"""CoNLL-U files beside the text: what is read of them, and what is refused, by file and line."""

import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import conllu
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.data.store.manifest import parser_entries
from fairseq_phrase.data.subwords.encoded_sentences import marked_words
from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.conllu import ConlluFiles, sentence_of
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.text import read_lines
from tests.support.hostile import lines, trees
from tests.support.repository import shared_data
from tests.twins.projectivity import is_projective


def row(identifier, form, head, deprel="dep", upos="X", misc="_", deps="_"):
    return "\t".join([str(identifier), form, "_", upos, "_", "_", str(head), deprel, deps, misc])


def read(tmp_path, rows, *texts, words="words"):
    path = tmp_path / "train.de.conllu"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8", newline="")
    return list(ConlluFiles(words).read(path, iter(texts)))


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


def test_a_line_of_invisible_characters_may_have_a_sentence_or_none(tmp_path):
    lines = "Der Hund bellt", "\u200b", "\ufeff \u200d", "Der Hund bellt"
    for rows in ([], [row(1, "\u200b", 0), ""]):
        sentences = read(tmp_path, [*DOG, "", *rows, *DOG], *lines)
        assert [getattr(sentence, "words", None) for sentence in sentences] == [
            ["Der", "Hund", "bellt"], ["\u200b"], ["\ufeff", "\u200d"], ["Der", "Hund", "bellt"],
        ]  # fmt: skip
        assert [sentence.tree.heads.tolist() for sentence in sentences[::3]] == [[1, 2, 2]] * 2


def test_hash_signs_and_separators_within_words_are_text(tmp_path):
    rows = [row(1, "#", 2), row(2, "1\u2028a", 0)]
    (sentence,) = read(tmp_path, rows, "# 1\u2028a")
    assert sentence.words == ["#", "1▁a"]


def heads_of(sentence):
    """Heads as CoNLL-U counts them, from 1, and 0 at the root."""
    return [0 if h == word else h + 1 for word, h in enumerate(sentence.tree.heads.tolist())]


def test_surface_tokens_take_the_place_of_the_highest_of_their_words(tmp_path):
    # Er geht zum Haus vom Mann: zu is above dem, and von and dem both hang off Mann.
    rows = [
        row(1, "Er", 2, "nsubj", "PRON"), row(2, "geht", 0, "root", "VERB"),
        row("3-4", "zum", "_"), row(3, "zu", 2, "obl", "ADP"), row(4, "dem", 3, "det", "DET"),
        row(5, "Haus", 4, "nmod", "NOUN", "SpaceAfter=No"),
        row("6-7", "vom", "_", misc="SpaceAfter=No"),
        row(6, "von", 8, "case", "ADP"), row(7, "dem", 8, "det", "DET"),
        row("7.1", "dem", "_"), row(8, "Mann", 5, "nmod", "NOUN"),
    ]  # fmt: skip
    (sentence,) = read(tmp_path, rows, "Er geht zum Hausvom" + "Mann", words="surface")
    assert sentence.words == ["Er", "geht", "zum", "Haus", "vom", "Mann"]
    assert heads_of(sentence) == [2, 0, 2, 3, 6, 4]
    assert sentence.deprels == ["nsubj", "root", "obl", "nmod", "case", "nmod"]
    assert sentence.tags == ["PRON", "VERB", "ADP", "NOUN", "ADP", "NOUN"]
    assert sentence.space_before == [True, True, True, True, False, False]


def test_a_second_root_of_a_sentence_depends_on_the_first(tmp_path):
    """As in CoNLL-X, and as a parser's two trees of one line are joined."""
    rows = [row(1, "a", 0, "ROOT"), row(2, "b", 3), row(3, "c", 0, "ROOT"), row(4, "d", 1)]
    (sentence,) = read(tmp_path, rows, "a b c d")
    assert heads_of(sentence) == [0, 3, 1, 1]
    assert sentence.deprels == ["ROOT", "dep", "ROOT", "dep"]
    rows = [row(1, "a", 0, "ROOT"), row(2, "b", 1), row(3, "c", 0, "ROOT"), row(4, "d", 3)]
    (two,) = read(tmp_path, rows, "a b c d")
    spans = ConstituencyTree.from_dependencies(two.tree, two.tags, two.deprels)
    assert spans.labels == ["X", "X", "ROOT"]


def test_a_surface_token_that_holds_the_root_is_the_root(tmp_path):
    rows = [row("1-2", "vámonos", "_"), row(1, "vamos", 0, "root", "VERB"), row(2, "nos", 1)]
    (sentence,) = read(tmp_path, [*rows, row(3, "ya", 2, "advmod")], "vámonos ya", words="surface")
    assert heads_of(sentence) == [0, 1]
    assert sentence.deprels == ["root", "advmod"]


def test_one_surface_token_alone_is_its_own_head(tmp_path):
    rows = [row("1-2", "zum", "_"), row(1, "zu", 2), row(2, "dem", 0)]
    (sentence,) = read(tmp_path, rows, "zum", words="surface")
    assert (sentence.words, heads_of(sentence)) == (["zum"], [0])


@given(trees(12), st.data())
def test_surface_tokens_of_any_tree_make_a_tree(tmp_path_factory, heads, data):
    rows, sizes, word = [], [], 0
    while word < len(heads):
        sizes.append(data.draw(st.integers(1, min(3, len(heads) - word))))
        if sizes[-1] > 1:
            rows.append(row(f"{word + 1}-{word + sizes[-1]}", "ab", "_"))
        for _ in range(sizes[-1]):
            rows.append(
                row(word + 1, "ab", 0 if heads[word] == word else heads[word] + 1, f"w{word}")
            )
            word += 1
    folder = tmp_path_factory.getbasetemp()
    (sentence,) = read(folder, rows, "ab " * len(sizes), words="surface")
    (words,) = read(folder, rows, "ab " * len(sizes))
    assert words.tree.heads.tolist() == heads
    tokens = [token for token, size in enumerate(sizes) for _ in range(size)]
    for token, head in enumerate(sentence.tree.heads.tolist()):
        highest = int(sentence.deprels[token][1:])
        inside = [word for word, of in enumerate(tokens) if of == token]
        assert highest in inside
        assert words.tree.depths[highest] == min(words.tree.depths[inside])
        assert head == tokens[heads[highest]]


def test_words_or_surface_tokens_and_nothing_else():
    assert ConlluFiles("surface").version != ConlluFiles().version == ConlluFiles("words").version
    with pytest.raises(UserError, match=r"expected conllu:words or .* train\.de\.conllu of"):
        ConlluFiles("tokens")


@pytest.mark.parametrize("words", ["words", "surface"])
@pytest.mark.parametrize(
    ("rows", "place", "message"),
    [
        ([row(1, "a", 2), row(2, "b", 1)], 2, "1 -> 2 -> 1|2 -> 1 -> 2"),
        ([row(1, "a", 0), row(2, "b", 3), row(3, "\u200b", 2)], 2, "form a cycle"),
        ([row(1, "a", 0), row(2, "b", 3)], 3, "word 2 has head 3, and .* 2 words"),
        ([row(1, "a", 0), row(2, "b", -1)], 3, "word 2 has no head but '-1'"),
        ([row(1, "a", 0), row(2, "b", "_")], 3, "word 2 has no head but '_'"),
        ([row(1, "a", 0), row(2, "b", "01")], 3, "word 2 has no head but '01'"),
        ([row(1, "a", 0), row(2, "b", "1.1")], 3, "word 2 has no head but '1.1'"),
        ([row(1, "a", 0), row(2, "b", "9" * 5000)], 3, "word 2 has no head but '9{60}'"),
        ([row(1, "a", 0), row(2, "b", "١")], 3, "word 2 has no head but '١'"),
        ([row(1, "a", 0), row(2, "b", 2)], 3, "word 2 is its own head; a root has head 0"),
        ([row(1, "a", 0) + "\t_"], 2, "expected 10 columns .* found 11"),
        ([row(1, "a", 0), "2\tb\t1"], 3, "expected 10 columns .* found 3"),
        ([row(1, "a", 0).replace("\t", "  ")], 2, "expected 10 columns .* found 1"),
        ([row(1, "a", 0), row(2, "", 1)], 3, "2 has no word in its second column"),
        ([row(1, "a", 0), row(3, "b", 1)], 3, "expected word 2 next, found '3'"),
        ([row(1, "a", 0), row(1, "b", 1)], 3, "expected word 2 next, found '1'"),
        ([row("x", "a", 0)], 2, "expected word 1 next, found 'x'"),
        ([row(0, "a", 0)], 2, "expected word 1 next, found '0'"),
        ([row("2-3", "ab", "_"), row(1, "a", 0)], 2, "2-3 is not where its words are"),
        ([row("2-1", "ab", "_"), row(1, "a", 0)], 2, "2-1 is not where its words are"),
        ([row("1-2", "ab", "_"), row("1-2", "ab", "_")], 3, "1-2 is not where its words are"),
        ([row("1-2", "ab", "_"), row(1, "a", 0), row("2-3", "b", "_")], 4, "2-3 is not where"),
        ([row("1-2", "ab", "_"), row(1, "a", 0)], 3, "word 2 of 1-2 is missing"),
        ([row(f"1-{'9' * 5000}", "ab", "_")], 2, "expected word 1 next, found '1-999"),
        ([row(1, "x", 2), row(2, "b", 0)], 2, "word 1 is 'x', and the text has 'a b' there"),
        ([row(1, "a", 2), row(2, "c", 0)], 3, "word 2 is 'c', and the text has 'b' there"),
        (
            [row(1, "a", 2), row(2, "b", 0), row(3, "c", 2)],
            4,
            "word 3 is 'c', and the text has no more words",
        ),
        ([row(1, "a", 0)], 2, "ends after its 1 words, and the text goes on: 'b'"),
        ([row("0.1", "a", "_")], 2, "a tree without words, for 'a b'"),
        ([row(1, "a", 0), row("1.1", "", 0), row("1.1", "", 0)], 4, "node 1.1 is there a second"),
        (
            [row(1, "a", 0), row("1.0", "c", 0), row(2, "b", 1)],
            3,
            "expected word 2 next, found '1.0'",
        ),
        ([row(1, "a", 0), "  " + row(2, "b", 1)], 3, "expected word 2 next, found '  2'"),
        ([row(1, "a", " 0 "), row(2, "b", 1)], 2, "word 1 has no head but ' 0 '"),
        ([row("1-3", "ab", "_"), row(1, "a", 0), row("2-3", "b", "_")], 4, "2-3 is not where"),
        ([row(1, "a\tb", 0)], 2, "expected 10 columns .* found 11"),
        ([row("1-2", "_", "_"), row(1, "a", 0), row(2, "b", 1)], 2, "word 1 is '_', and the text"),
    ],
    ids=lambda value: None,
)
def test_a_malformed_sentence_is_named_by_file_and_line_and_the_next_is_read(
    tmp_path, rows, place, message, words
):
    good = row(1, "Ja", 0)
    block = ["# comment", *rows, ""]
    before, unparsed, after = read(
        tmp_path, [good, "", *block, good], "Ja", "a b", "Ja", words=words
    )
    assert isinstance(unparsed, Unparsed)
    assert unparsed.reason.startswith(f"{tmp_path / 'train.de.conllu'}, line {place + 2}: ")
    assert re.search(message, unparsed.reason)
    assert unparsed.sentence.words == ["a", "b"]
    assert unparsed.sentence.tree is None
    assert before.words == after.words == ["Ja"]


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_sentence(tmp_path):
    path = tmp_path / "train.de.conllu"
    path.write_bytes(("\ufeff" + "\r\n".join([*DOG, "", row(1, "Ja", 0)]) + "\r\n").encode())
    sentences = list(ConlluFiles().read(path, iter(["Der Hund bellt", "Ja"])))
    assert [len(sentence.words) for sentence in sentences] == [3, 1]


def test_unusual_files_are_read(tmp_path):
    """Two files in one, comments and white space between rows, columns with spaces, a range of one."""
    rows = [row(1, "a", 0), "# comment", row(2, "b", 1) + "  ", " \t", "# only a comment", ""]
    rows += ["\ufeff" + row(1, "c", 0, "a b", "N N"), "", row("1-1", "10\u00a0000", "_")]
    rows += [row(1, "10\u00a0000", 0), row("7.1", "", "_")]
    first, second, third = read(tmp_path, rows, "a b", "c", "10 000")
    assert (first.words, second.words, third.words) == (["a", "b"], ["c"], ["10▁000"])
    assert (second.deprels, second.tags) == (["a▁b"], ["N▁N"])


@given(st.lists(lines(3), min_size=1, max_size=6), trees(6))
def test_any_words_are_read_as_they_are(tmp_path_factory, texts, heads):
    forms = ["".join(text.split()).strip("#") or "x" for text in texts][: len(heads)]
    heads = [min(head, word) for word, head in enumerate(heads[: len(forms)])]
    heads[0] = 0
    heads = [head if word == 0 or head != word else 0 for word, head in enumerate(heads)]
    rows = [
        row(word + 1, form, 0 if word == 0 else heads[word] + 1) for word, form in enumerate(forms)
    ]
    (sentence,) = read(tmp_path_factory.getbasetemp(), rows, " ".join(forms))
    assert not isinstance(sentence, Unparsed), sentence.reason
    assert sentence.words == forms
    assert sentence.tree.heads.tolist() == heads


@pytest.mark.slow
def test_a_sentence_of_a_hundred_thousand_words_takes_seconds(tmp_path):
    count, start = 100_000, time.process_time()
    rows = [row(word, "ja", word - 1) for word in range(1, count + 1)]
    (sentence,) = read(tmp_path, rows, "ja " * count, words="surface")
    assert sentence.tree.depths[-1] == count - 1
    assert time.process_time() - start < 20


def test_a_tree_that_is_missing_costs_its_line_and_is_counted(tmp_path):
    (tmp_path / "train.de").write_text("Der Hund bellt\n\nJa\nSo\nNein\n")
    rows = [*DOG, "", row(1, "So", 0), ""]
    texts = ["Der Hund bellt", "", "Ja", "So", "Nein"]
    first, _, missing, so, last = read(tmp_path, rows, *texts)
    assert (first.words, so.words) == (["Der", "Hund", "bellt"], ["So"])
    assert missing.reason == (
        f"{tmp_path / 'train.de.conllu'}, line 5: a tree is missing before this one: line 3 of the text "
        "has none, and this tree is of line 4 (2 trees for 4 lines with text)"
    )
    assert "a tree is missing at the end: line 5 of the text has none (2 trees for" in last.reason


def test_several_sentences_that_spell_a_line_are_joined(tmp_path):
    two = [row(1, "Ja", 2, "a", "INTJ"), row(2, "so", 0, "root")]
    rows = [*DOG, "", *two, "", *two, "", *DOG]
    texts = ["Der Hund bellt Ja so ja so", "Der Hund bellt"]
    first, second = read(tmp_path, rows, *texts)
    assert first.words == texts[0].split()
    assert first.tree.heads.tolist() == [1, 2, 2, 4, 2, 6, 2]
    assert first.deprels == ["det", "nsubj", "root", "a", "root", "a", "root"]
    assert len(second.words) == 3


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_line_in_several_sentences_with_one_wrong_word_costs_one_line(tmp_path, bad):
    parts = [[row(1, f"a{number}", 0), ""] for number in range(3)]
    parts[bad] = [row(1, "wrong", 0), ""]
    rows = [*DOG, "", *(line for part in parts for line in part), *DOG]
    texts = ["Der Hund bellt", "a0 a1 a2", "Der Hund bellt"]
    before, unparsed, after = read(tmp_path, rows, *texts)
    assert len(before.words) == len(after.words) == 3
    assert "word 1 is 'wrong'" in unparsed.reason or "ends after its 1 words" in unparsed.reason


def test_trees_that_are_of_no_line_cost_one_line(tmp_path):
    extra = [row(1, "Wer", 0), "", row(1, "Was", 0), ""]
    texts = ["Der Hund bellt", "Ja", "Der Hund bellt"]
    before, unparsed, after = read(tmp_path, [*DOG, "", *extra, row(1, "Ja", 0), "", *DOG], *texts)
    assert len(before.words) == len(after.words) == 3
    assert "line 5: 2 trees from here on are of no line of the text (5 trees" in unparsed.reason


@given(st.data())
def test_one_bad_line_costs_one_line(tmp_path_factory, data):
    count = data.draw(st.integers(3, 12))
    texts = [f"w{number} x{number}" for number in range(count)]
    bad = set(data.draw(st.lists(st.integers(0, count - 1), max_size=3)))
    rows = []
    for number in range(count):
        word = f"w{number}"
        kind = data.draw(st.sampled_from(["other", "none", "malformed", "split"]))
        if number in bad and kind == "none":
            continue
        if number in bad:
            word = "other" if kind != "malformed" else f"{word}\t"
        rows += [row(1, word, 0), *([""] if kind == "split" else [])]
        rows += [row(1 if kind == "split" else 2, f"x{number}", 0 if kind == "split" else 1), ""]
    parses = read(tmp_path_factory.getbasetemp(), rows, *texts)
    assert {n for n, parse in enumerate(parses) if isinstance(parse, Unparsed)} == bad


def test_trees_of_cased_text_fit_lower_cased_text(tmp_path):
    rows = [row("1-2", "Zum", "_"), row(1, "Zu", 3), row(2, "dem", 3), row(3, "HAUS", 0)]
    for words, expected in (("words", ["zu", "dem", "haus"]), ("surface", ["zum", "haus"])):
        (sentence,) = read(tmp_path, rows, "zum haus", words=words)
        assert sentence.words == expected


@pytest.mark.parametrize(
    ("token", "several", "text", "words", "invented"),
    [
        ("florist's", ["florstst", "'s"], "florist's", ["florstst", "'s"], True),
        ("zum", ["zu", "dem"], "ZUM", ["ZU", "DEM"], True),
        ("IŞIKLI", ["IŞIĞ", "LI"], "ışıklı", ["ışığ", "lı"], True),
        ("d\u00e9s", ["d\u00e9", "\u00e9s"], "de\u0301s", ["de\u0301", "e\u0301s"], True),
        ("don't", ["do", "n't"], "Don’t", ["Do", "n’t"], False),
        ("İyiydi", ["İyi", "idi"], "iyiydi", ["iyi", "idi"], True),
        ("İyisin", ["İyi", "sin"], "iyisin", ["iyi", "sin"], False),
    ],
)
def test_words_that_the_text_does_not_spell_are_counted_and_follow_its_form(
    tmp_path, token, several, text, words, invented
):
    rows = [row("1-2", token, "_"), row(1, several[0], 3), row(2, several[1], 1), row(3, "x", 0)]
    (sentence,) = read(tmp_path, rows, f"{text} x")
    assert sentence.words == [*words, "x"]
    assert sentence.expansions == ([(text, tuple(words))] if invented else [])
    (surface,) = read(tmp_path, rows, f"{text} x", words="surface")
    assert (surface.words, surface.expansions) == ([text, "x"], [])


def test_more_sentences_than_lines_are_refused_with_their_place(tmp_path):
    with pytest.raises(UserError, match=r"train\.de\.conllu, line 5: there are more trees"):
        read(tmp_path, [*DOG, "", row(1, "Ja", 0)], "Der Hund bellt")


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    path = tmp_path / "train.de.conllu"
    path.write_bytes(f"{row(1, 'Ja', 2)}\n{row(2, 'schön', 0)}\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.de\.conllu, line 2: not UTF-8"):
        list(ConlluFiles().read(path, iter(["Ja schön"])))


def treebanks(synthetic_corpus) -> list[Path]:
    """UD's German and English treebanks where they are at hand, else the synthetic corpus."""
    folder = shared_data("treebanks")
    if folder is None:
        return [synthetic_corpus / f"test.{language}.conllu" for language in ("de", "en")]
    # The training set of EWT is five times as large as the next one, and is made as its test set is.
    return sorted(
        {*folder.glob("*/*.conllu.gz")} - {folder / "en_ewt" / "en_ewt-ud-train.conllu.gz"}
    )


def texts_of(path):
    """The texts of a treebank's sentences, as their comments have them."""
    comments = (line for line in read_lines(path) if line.startswith("# text = "))
    return [comment.removeprefix("# text = ") for comment in comments]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["words", "surface"])
def test_whole_treebanks_are_read_and_have_constituents(synthetic_corpus, words):
    paths = treebanks(synthetic_corpus)
    for path in paths if words == "words" else paths[-2:]:
        texts = texts_of(path)
        assert len(texts) >= 100
        for sentence, text in zip(ConlluFiles(words).read(path, iter(texts)), texts, strict=True):
            assert not isinstance(sentence, Unparsed), sentence.reason
            if words == "surface":
                spelled = "".join(marked_words(sentence)).replace("▁", "")
                assert spelled == "".join(text.split()).replace("▁", "")
            tree = ConstituencyTree.from_dependencies(sentence.tree, sentence.tags)
            heads = set(sentence.tree.heads.tolist()) if len(sentence.words) > 1 else ()
            if is_projective(sentence.tree):
                assert len(tree) == len(heads)
            else:
                assert 0 < len(tree) <= len(heads)


def test_treebanks_are_read_as_the_conllu_library_reads_them(synthetic_corpus):
    for path in treebanks(synthetic_corpus)[-2:]:  # the two of PUD
        texts = texts_of(path)
        expected = conllu.parse("\n".join(read_lines(path)))
        sentences = list(ConlluFiles().read(path, iter(texts)))
        assert len(sentences) == len(expected) >= 100
        for sentence, tokens in zip(sentences, expected, strict=True):
            words = [token for token in tokens if isinstance(token["id"], int)]
            assert sentence.words == [token["form"].replace(" ", "▁") for token in words]
            assert sentence.deprels == [token["deprel"] for token in words]
            assert sentence.tags == [token["upos"] for token in words]
            assert heads_of(sentence) == [token["head"] for token in words]
            if all(isinstance(token["id"], int) for token in tokens):
                spelled = "".join(marked_words(sentence)).replace("▁", " ").split()
                assert spelled == tokens.metadata["text"].split()


def sie_kommt(**changed):
    """Sie kommt und geht in the house: a shared subject, an empty node, a surface token of two words."""
    deps = {
        "1": "2:nsubj|4:nsubj", "2": "0:root", "3": "4:cc", "4": "2:conj:und",
        "4.1": "2:conj", "5": "4:case|6:fixed", "6": "4.1:obl",
    } | changed  # fmt: skip
    return [
        row(1, "Sie", 2, deps=deps["1"]), row(2, "kommt", 0, deps=deps["2"]),
        row(3, "und", 4, deps=deps["3"]), row(4, "geht", 2, deps=deps["4"]),
        row("4.1", "_", "_", deps=deps["4.1"]),
        row("5-6", "zum", "_"), row(5, "zu", 4, deps=deps["5"]), row(6, "dem", 5, deps=deps["6"]),
    ]  # fmt: skip


SIE_KOMMT = [
    (1, 0, "nsubj"), (1, 1, "root"), (1, 3, "conj:und"), (1, 5, "conj>obl"), (3, 0, "nsubj"),
    (3, 2, "cc"), (3, 4, "case"), (5, 4, "fixed"),
]  # fmt: skip


def test_the_ninth_column_is_a_graph_without_its_empty_nodes(tmp_path):
    text = "Sie kommt und geht zum"
    (sentence,) = read(tmp_path, sie_kommt(), text, words="enhanced")
    assert sentence.edges == {"enhanced": SIE_KOMMT}
    assert sentence.tree.heads.tolist() == [1, 1, 3, 1, 3, 4]
    (sentence,) = read(tmp_path, sie_kommt(), text)
    assert sentence.edges == {}
    # The edge from dem to zu is within a token.
    (sentence,) = read(tmp_path, sie_kommt(), text, words="surface,enhanced")
    expected = sorted((h, min(d, 4), label) for h, d, label in SIE_KOMMT if label != "fixed")
    assert sentence.edges == {"enhanced": expected}
    assert sentence.lost_edges == 1
    # Two sentences of a line, and a chain of empty nodes that goes round.
    round_ = [row(1, "Ja", 0, deps="0:root|1.1:x"), row("1.1", "_", "_", deps="1.2:y"),
              row("1.2", "_", "_", deps="1.1:z|1:w")]  # fmt: skip
    (joined,) = read(tmp_path, [*sie_kommt(), "", *round_], f"{text} Ja", words="enhanced")
    assert joined.edges["enhanced"] == [*SIE_KOMMT, (6, 6, "root"), (6, 6, "w>y>x")]
    assert joined.lost_edges == 1


@pytest.mark.parametrize(
    ("empty", "lost"),
    [
        ({"1.1": "1.1:x"}, 1),
        ({"1.1": "1.2:x", "1.2": "1.1:y"}, 1),
        ({"1.1": "_"}, 1),
        ({"1.1": "1.2:x|2:z", "1.2": "1.1:y|1.2:y"}, 2),
        ({"1.1": "2:x"}, 0),
    ],
)
def test_paths_of_empty_nodes_that_lead_to_no_word_are_counted(tmp_path, empty, lost):
    nodes = [row(node, "_", "_", deps=deps) for node, deps in empty.items()]
    rows = [row(1, "a", 2, deps="1.1:a|2:b"), *nodes, row(2, "b", 0, deps="0:root")]
    (sentence,) = read(tmp_path, rows, "a b", words="enhanced")
    assert sentence.lost_edges == lost
    assert (1, 0, "b") in sentence.edges["enhanced"]


def test_long_chains_of_empty_nodes_are_read_and_too_many_paths_are_refused(tmp_path):
    def chain(count, deps):
        nodes = [row(f"1.{n}", "_", "_", deps=deps(n)) for n in range(1, count)]
        last = row(f"1.{count}", "_", "_", deps="0:root")
        return [row(1, "a", 0, deps="1.1:a"), *nodes, last]

    (sentence,) = read(tmp_path, chain(2000, lambda n: f"1.{n + 1}:x"), "a", words="enhanced")
    assert len(sentence.edges["enhanced"]) == 1
    twice = chain(40, lambda n: f"1.{n + 1}:x|1.{n + 1}:y")
    (unparsed,) = read(tmp_path, twice, "a", words="enhanced")
    assert "line 1: the empty nodes make more than 100000 paths" in unparsed.reason


@pytest.mark.parametrize(
    ("changed", "line", "message"),
    [
        ({"3": "9:cc"}, 3, "of 3 has an edge from 9, which is not there: the sentence has 6 words"),
        ({"6": "4.2:obl"}, 8, "the ninth column of 6 has an edge from 4.2, which is not there"),
        ({"4.1": "7:conj"}, 5, "the ninth column of 4.1 has an edge from 7, which is not there"),
        ({"6": "5-6:obl"}, 8, "the ninth column of 6 has an edge from 5-6, which is not there"),
        ({"1": "nsubj"}, 1, "expected HEAD:LABEL|… in the ninth column of 1, found 'nsubj'"),
        (dict.fromkeys(["1", "2", "3", "4", "4.1", "5", "6"], "_"), 1, "has no enhanced dep"),
    ],
)
def test_an_edge_to_a_word_that_is_not_there_is_named_by_file_and_line(
    tmp_path, changed, line, message
):
    (unparsed,) = read(
        tmp_path, sie_kommt(**changed), "Sie kommt und geht zum", words="surface,enhanced"
    )
    assert isinstance(unparsed, Unparsed)
    assert unparsed.reason.startswith(f"{tmp_path / 'train.de.conllu'}, line {line}: ")
    assert message in unparsed.reason


def test_without_the_library_the_ninth_column_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "conllu.parser", None)
    with pytest.raises(UserError, match="pip install conllu"):
        ConlluFiles("enhanced")
    assert ConlluFiles().fields == ("words", "heads", "deprels", "tags")


def test_the_names_of_conllus_own_columns_are_a_comment(tmp_path):
    columns = "# global.columns = ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC"
    (sentence,) = read(tmp_path, [columns, row(1, "Ja", 0)], "Ja")
    assert sentence.words == ["Ja"]


@pytest.mark.parametrize(
    ("options", "words", "expected"),
    [
        ("xpos,feats", ["zu", "dem", "Haus"], {"factor1": ["APPR", "ART", "NN"],
                                               "factor2": ["_", "Case=Dat", "Case=Dat"]}),
        ("surface,lemma", ["Zum", "Haus"], {"factor1": ["zu", "Haus"]}),
    ],
)  # fmt: skip
def test_columns_of_labels_are_factors(tmp_path, options, words, expected):
    columns = [("zu", "zu", "APPR", "_", 3), ("dem", "der", "ART", "Case=Dat", 1)]
    columns.append(("Haus", "Haus", "NN", "Case=Dat", 0))
    rows = ["\t".join(["1-2", "Zum", *["_"] * 8])]
    rows += [
        "\t".join([str(number), form, lemma, "X", xpos, feats, str(head), "dep", "_", "_"])
        for number, (form, lemma, xpos, feats, head) in enumerate(columns, start=1)
    ]
    (sentence,) = read(tmp_path, rows, "Zum Haus", words=options)
    assert [word.lower() for word in sentence.words] == [word.lower() for word in words]
    assert sentence.features == expected
    assert sentence.tree is not None
    assert set(ConlluFiles(options).fields) == {"words", "heads", "deprels", "tags", *expected}


def test_a_column_is_named_once():
    with pytest.raises(UserError, match="columns of labels, ,xpos ,lemma ,feats"):
        ConlluFiles("xpos,xpos")


def test_the_record_has_the_columns_and_their_order():
    options = [
        "words",
        "surface",
        "xpos",
        "feats",
        "xpos,feats",
        "feats,xpos",
        "surface,xpos,feats",
    ]
    versions = [ConlluFiles(argument).version for argument in options]
    assert versions[:2] == ["CoNLL-U", "CoNLL-U, surface tokens"]
    records = [
        parser_entries(f"conllu:{argument}", version, "", "none")["parser"].value
        for argument, version in zip(options, versions, strict=True)
    ]
    assert len(set(records)) == len(options)
    assert ConlluFiles("words,xpos").version == ConlluFiles("xpos").version


def rows_of(*tokens):
    """Rows of a sentence: identifiers with their forms, the second word is the root."""
    rows = []
    for identifier, form, *misc in tokens:
        head = "_" if "-" in identifier else "0" if identifier == "2" else "2"
        rows.append(
            "\t".join([identifier, form, "_", "X", "_", "_", head, "dep", "_", *(misc or ["_"])])
        )
    return "\n".join(rows) + "\n"


def test_the_text_of_rows_has_each_token_of_several_words_once():
    """The last word of a token is not a token of its own."""
    text = rows_of(
        ("1-2", "zum"), ("1", "zu"), ("2", "dem"), ("3", "Haus", "SpaceAfter=No"), ("4", "!")
    )
    sentence = sentence_of(text)
    assert sentence.words[-2:] == ["Haus", "!"]
    assert sentence.space_before[-2:] == [True, False]
    marked = zip(sentence.words, sentence.space_before, strict=True)
    assert "".join(" " * space + word for word, space in marked).split() == ["zum", "Haus!"]
    for rows, is_right in (
        ((("1-1", "zu"), ("1", "zu"), ("2", "dem")), True),
        ((("1", "zu"), ("2-2", "dem"), ("2", "dem")), True),
        ((("1", "zu"), ("1-2", "zum"), ("2", "dem")), False),
        ((("1", "zu"), ("2-1", "dem"), ("2", "dem")), False),
    ):
        expected = pytest.raises(UserError, match="is not where its words are")
        with nullcontext() if is_right else expected:
            assert sentence_of(rows_of(*rows)).words == ["zu", "dem"]
