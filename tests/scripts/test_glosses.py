"""``scripts/glosses.py``: a dictionary's translations behind sentences, and the graph to them."""

from __future__ import annotations

import gzip
import re
import sys
from unicodedata import normalize

import pytest

from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.syntax.alignment import TextReader
from tests.support.repository import REPOSITORY
from tests.support.run_folders import write_generation

sys.path.append(str(REPOSITORY / "scripts"))
from glosses import accuracy, expected_words, main, rows_of

DING = f"""# a comment
Hund {{m}} [zool.]; Köter {{m}} (abwertend) | Hunde {{pl}} :: dog; hound /H/ {{dog; dogs}} | dogs
er/sie bellt :: he/she barks
bellen {{vi}} | ohne Übersetzung :: to bark
leise ::{" "}
leise {{adj}} :: in a very quiet way
das A und O :: the essentials
"""
FREEDICT = "dog /dˈɒɡ/\n1. (zool.) köpek, it. dog days en sıcak günler.\n2. köpek\n"
TREE = """# text = Der Hund bellt.
1\tDer\tder\tDET\t_\t_\t2\tdet\t_\t_
2\tHund\tHund\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tbellt\tbellen\tVERB\t_\t_\t0\troot\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_
"""
WORDS = "Hund\thound\nHund\tbig dog\nHund\tdog\nbellen\tbark\n"


@pytest.fixture
def texts(tmp_path):
    """A parsed sentence, its translation and a dictionary."""
    (tmp_path / "train.de.conllu").write_text(f"{TREE}\n")
    (tmp_path / "train.en").write_text("A dog is a dog.\n")
    (tmp_path / "words.tsv").write_text(WORDS)
    return tmp_path


def append(texts, *arguments):
    """Append glosses; return the text, and the edges of its graph as words."""
    main(["append", f"{texts}/train.de", "--ranked-by", f"{texts}/train.en", "--dictionary",
          f"{texts}/words.tsv", "--out", f"{texts}/out", *arguments])  # fmt: skip
    text = (texts / "out" / "train.de").read_text().splitlines()
    assert (texts / "out" / "train.en").read_text().startswith("A dog is a dog.\n")
    if "entries" in arguments:
        return text, [], []
    (tree,) = ConlluFiles("surface,enhanced").trees(texts / "out" / "train.de.conllu")
    sentence = tree.spelled(TextReader(text[0]))
    edges = [(e.head, e.dependent) for e in sentence.edges["enhanced"] if e.label == "gloss"]
    heads = list(sentence.tree.heads)
    return text, [(sentence.words[h], sentence.words[d]) for h, d in edges], heads


def score(texts):
    """Write the scores of a run on the sentence itself."""
    main(["score", f"{texts}/runs", f"{texts}/train.de", f"{texts}/train.de", "--reference",
          f"{texts}/train.en", "--dictionary", f"{texts}/words.tsv"])  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("ding", DING, ["Hund\tdog", "Hund\thound", "Köter\tdog", "Köter\thound", "Hunde\tdogs",
                        "bellt\tbarks"]),
        ("freedict", FREEDICT, ["dog\tköpek", "dog\tit"]),
    ],
)  # fmt: skip
def test_a_dictionary_of_single_words_and_short_translations(
    kind, text, expected, tmp_path, capsys
):
    path = tmp_path / "dictionary.txt"
    path.write_text(text)
    main(["dictionary", kind, str(path)])
    printed = capsys.readouterr()
    assert printed.out.splitlines() == expected
    if kind == "ding":
        assert printed.err.splitlines() == [
            f"{path}, line 4: no translation (2 left out)",
            f"{path}, line 6: a sentence, or more than 3 words, as translation (1 left out)",
            f"{path}, line 7: an entry of several words (1 left out)",
        ]


def test_glosses_and_edges_to_them(texts):
    text, edges, heads = append(texts, "--most", "2")
    assert text == ["Der Hund bellt. . dog hound bark"]
    assert edges == [("Hund", "dog"), ("Hund", "hound"), ("bellt", "bark")]
    assert heads == [1, 2, 2, 2, 2, 1, 1, 2], "glosses depend on their words"


def test_words_without_tags_are_looked_up(texts):
    tree = texts / "train.de.conllu"
    tree.write_text(re.sub(r"\b(DET|NOUN|VERB|PUNCT)\b", "_", tree.read_text()))
    assert append(texts)[0] == ["Der Hund bellt. . dog hound big dog bark"]


def test_the_controls_and_the_rows_without_a_graph(texts):
    text, edges, _ = append(texts, "--variant", "shuffled")
    assert text == ["Der Hund bellt. . dog hound big dog bark"]
    assert edges == [
        ("Hund", "bark"),
        *(("bellt", word) for word in ("dog", "hound", "big", "dog")),
    ]
    text, edges, _ = append(texts, "--variant", "other")
    assert text == ["Der Hund bellt. . bark dog hound big dog"]
    assert edges[0] == ("Hund", "bark")
    text, _, _ = append(texts, "--variant", "keyed", "--most", "1")
    assert text == ["Der Hund bellt. . Hund dog bellt bark"]
    text, _, _ = append(texts, "--variant", "entries", "--most", "1")
    assert text == ["Der Hund bellt.", "Der Hund bellt.", "Hund", "bellen"]
    assert (texts / "out" / "train.en").read_text().endswith("dog.\ndog\nbark\n")


@pytest.mark.parametrize(
    ("changes", "text", "count"),
    [
        ({"Hund": "Köter"}, "Der Köter bellt. . cur bark", 2),
        ({"Der": "der", "Hund": "hund"}, "der hund bellt. . dog bark", 2),
        ({"bellt": "hund", "bellen": "hund"}, "Der Hund hund. . dog", 1),  # it may not be the noun
    ],
)
def test_words_in_another_normalization_and_without_capitals(texts, capsys, changes, text, count):
    (texts / "words.tsv").write_text(normalize("NFD", f"{WORDS}Köter\tcur\n"))
    tree = texts / "train.de.conllu"
    tree.write_text(re.sub("|".join(changes), lambda match: changes[match[0]], tree.read_text()))
    assert append(texts, "--most", "1")[0] == [text]
    assert capsys.readouterr().err == f"{texts}/train.de: {count} of 2 content words have glosses\n"


def test_a_packed_ranking_text_names_the_language(texts):
    with gzip.open(texts / "other.en.gz", "wt") as file:
        file.write("A dog is a dog.\n")
    append(texts, "--ranked-by", f"{texts}/other.en.gz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--most", "0"], "--most 0: expected 1 or more"),
        (["--out", "{}/out/.."], "--out .* has texts that are read here"),
        (["--out", "{}/train.en"], "--out .*train.en is a file: name a folder"),
    ],
)
def test_a_bad_option_is_named_before_anything_is_read(texts, options, message):
    (texts / "words.tsv").unlink()
    with pytest.raises(SystemExit, match=message):
        append(texts, *(option.format(texts) for option in options))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("Hund\tdog\nHund\n", "words.tsv, line 2: expected lines of a word"),
        ("Hund\tdog\tn.\n", "words.tsv, line 1: expected lines of a word"),
        ("", "words.tsv is empty"),
        ("Katze\tcat\n", "words.tsv has none of the content words .* of .*/train.de$"),
    ],
)
def test_a_bad_dictionary_is_named(texts, words, message):
    (texts / "words.tsv").write_text(words)
    with pytest.raises(SystemExit, match=message):
        append(texts)


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        ("\t0\troot", "\t2\tdep", "line 2: the heads of words 3 -> 2 -> 3 form a cycle"),
        (r"_\t_(\t\d\t\w+)\t_\t_", r"_\1", "line 2: this is CoNLL of 7 columns"),
        (r"(?m)^(2.*)\t_$", r"\1", "line 3: expected 10 columns with tabs between them, found 9"),
        ("\t", " ", "line 2: expected 10 columns with tabs between them, found 1"),
    ],
)
@pytest.mark.parametrize("command", ["append", "score"])
def test_a_bad_tree_is_named_with_its_line(texts, command, pattern, replacement, message):
    tree = texts / "train.de.conllu"
    tree.write_text(re.sub(pattern, replacement, tree.read_text()))
    with pytest.raises(SystemExit, match=f"train.de.conllu, {message}"):
        append(texts) if command == "append" else score(texts)


@pytest.mark.parametrize(("lines", "outputs"), [(1, 1), (2, 1), (1, 2)])
def test_reference_and_output_have_a_line_for_each_tree(texts, lines, outputs):
    (texts / "train.en").write_text("A dog is a dog.\n" * lines)
    run = texts / "runs" / "row" / "seed1"
    run.mkdir(parents=True)
    write_generation(run / "generate-test.txt", *[["A dog."] * outputs] * 3)
    if lines == outputs:
        score(texts)
        assert (run / "seen-test.txt").read_text() == "100.0\n"
    else:
        name = "train.en" if lines == 2 else "generate-test.txt"
        with pytest.raises(SystemExit, match=rf"{name} has 2 lines, and .*de\.conllu has 1 trees"):
            score(texts)
        assert not (run / "seen-test.txt").exists()


def test_a_pipeline_that_is_missing_or_has_no_parser_is_named(texts):
    (texts / "meta.json").write_text(
        '{"lang": "de", "name": "x", "version": "1", "pipeline": ["tagger"]}'
    )
    for pipeline, message in (
        ("de_missing", "no spaCy pipeline"),
        (texts, "has no dependency parser"),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["parse", str(pipeline), f"{texts}/train.en", f"{texts}/out/train.en"])


def test_accuracy_on_words_that_the_training_text_lacks():
    rows, dictionary = rows_of(TREE.strip()), {"Hund": ["dog", "hot dog"], "bellen": ["bark"]}
    other = [[["1", "bellt", "_", "VERB", *"_" * 6]]]
    references = ["The hot dog barks.", "A dog bark!"]
    groups = expected_words(other, [rows, rows], references, dictionary)
    assert groups == {"unseen": [[{"dog", "hot dog"}], [{"dog"}]], "seen": [[], [{"bark"}]]}
    assert accuracy(groups["unseen"], ["Dog!", "hotdog"]) == [100, 0]  # of a mean of 50%
    assert accuracy(groups["seen"], ["", "It did bark"]) == [0, 200]
    assert accuracy([[]], ["no such word"]) == [0]
