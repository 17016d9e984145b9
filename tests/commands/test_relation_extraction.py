"""The example of relation extraction: its pairs, its trees, and short trainings with each kind."""

from __future__ import annotations

import gzip
import json
import random
import runpy

import pytest

from tests.support.huggingface_models import write_bert
from tests.support.repository import REPOSITORY

SCRIPT = REPOSITORY / "examples/relation_extraction/train.py"
#: Columns: word, tag, head, relation, enhanced edges. She is the subject of "leave", too; "sing" shares
#: its object with "read".
SENTENCES = [
    [
        ("She", "PRON", 2, "nsubj", "2:nsubj|4:nsubj:xsubj"),
        ("wants", "VERB", 0, "root", "0:root"),
        ("to", "PART", 4, "mark", "4:mark"),
        ("leave", "VERB", 2, "xcomp", "2:xcomp"),
    ],
    [
        ("They", "PRON", 2, "nsubj", "2:nsubj|4:nsubj"),
        ("read", "VERB", 0, "root", "0:root"),
        ("and", "CCONJ", 4, "cc", "4:cc"),
        ("sing", "VERB", 2, "conj", "2:conj:and"),
        ("songs", "NOUN", 4, "obj", "4:obj|2:obj"),
        ("of", "ADP", 7, "case", "7:case"),
        ("birds", "NOUN", 5, "nmod", "5:nmod:of"),
    ],
]


def conllu(sentences):
    blocks = []
    for rows in sentences:
        lines = [
            f"{i}\t{word}\t_\t{tag}\t_\t_\t{head}\t{label}\t{edges}\t_"
            for i, (word, tag, head, label, edges) in enumerate(rows, 1)
        ]
        lines.insert(2, "2-3\tof\t_\t_\t_\t_\t_\t_\t_\t_")
        lines.append(f"{len(rows)}.1\t_\t_\t_\t_\t_\t_\t_\t2:conj\t_")
        blocks.append("\n".join(["# text = …", *lines]))
    return "\n\n".join(blocks) + "\n\n"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT))


def test_pairs_have_a_relation_that_is_not_in_the_tree(example, tmp_path):
    path = tmp_path / "train.conllu"
    path.write_text(conllu(SENTENCES), encoding="utf-8")
    (tmp_path / "train.conllu.gz").write_bytes(gzip.compress(path.read_bytes()))
    rows = example["examples"](path, 30)
    assert rows == example["examples"](tmp_path / "train.conllu.gz", 30)
    pairs = [(words[first], words[second], relation) for words, _, first, second, relation in rows]
    assert pairs == [
        ("leave", "She", "nsubj"),
        ("sing", "They", "nsubj"),
        ("read", "songs", "obj"),
        ("read", "birds", "none"),
    ]
    assert rows[0][1] == [1, 1, 3, 1]
    assert len(example["examples"](path, 4)) == 1


def test_markers_depend_on_their_words(example):
    words, heads, first, second = example["marked"](["a", "b", "c"], [1, 1, 0], 2, 0)
    assert words == ["*", "a", "*", "b", "#", "c", "#"]
    assert heads == [1, 3, 1, 3, 5, 1, 5]
    assert (words[first], words[second]) == ("c", "a")


def test_controls_are_trees_without_syntax(example):
    words, draw = list("abcdef"), random.Random(0)
    tree_of = example["tree_of"]
    assert tree_of("linear", words, None, None, draw) == [1, 2, 3, 4, 5, 5]
    assert tree_of("gold", words, [0] * 6, None, draw) == [0] * 6
    random_trees = [tree_of("random", words, None, None, draw) for _ in range(20)]
    assert len({tuple(heads) for heads in random_trees}) > 15
    for heads in random_trees:
        roots = [word for word in range(6) if heads[word] == word]
        assert len(roots) == 1
        for word in range(6):
            for _ in range(6):
                word = heads[word]
            assert word == roots[0]


@pytest.mark.fast(1)
@pytest.mark.parametrize("trees", ["parsed", "none", "gold"])
def test_a_slice_trains_with_each_kind_of_tree(trees, spacy_pipeline, tmp_path, capsys):
    words = [" ".join(row[0] for row in rows) for rows in SENTENCES]
    model = write_bert(tmp_path / "bert", [*words, "# *"])
    for split in ("train", "dev", "test"):
        text = conllu(SENTENCES * 3)
        (tmp_path / f"en-ud-{split}.conllu").write_text(text, encoding="utf-8")
    arguments = [
        "--treebank", tmp_path, "--model", model, "--trees", trees, "--parser", spacy_pipeline,
        "--steps", "3", "--batch", "4", "--seed", "2",
    ]  # fmt: skip
    runpy.run_path(str(SCRIPT))["main"]([*map(str, arguments)])
    scores = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (scores["trees"], scores["seed"], scores["steps"]) == (trees, 2, 3)
    assert 0 <= scores["f1"] <= 100
    assert 0 < scores["accuracy"] <= 100
