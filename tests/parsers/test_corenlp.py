"""CoreNLP's JSON beside the text."""

import json

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers import Unparsed, load_parser
from fairseq_phrase.parsers import corenlp as module

DOG = ["The", "dog", "(", "runs", ")", "."]
DOG_TAGS = ["DT", "NN", "-LRB-", "VBZ", "-RRB-", "."]
DOG_TREE = (
    "(ROOT\n  (S\n    (NP (DT The) (NN dog))\n    (-LRB- -LRB-)\n    (VP (VBZ runs))\n    (-RRB- -RRB-)\n"
    "    (. .)))"
)
DOG_EDGES = [
    ("ROOT", 0, 4), ("det", 2, 1), ("nsubj", 4, 2), ("punct", 4, 3), ("punct", 4, 5), ("punct", 4, 6),
]  # fmt: skip
CAT = (["A", "cat", "."], ["DT", "NN", "."], "(ROOT\n  (NP (DT A) (NN cat) (. .)))",
       [("ROOT", 0, 2), ("det", 2, 1), ("punct", 2, 3)])  # fmt: skip
SENTENCES = [(DOG, DOG_TAGS, DOG_TREE, DOG_EDGES), CAT]


def escaped(word):
    return {"(": "-LRB-", ")": "-RRB-"}.get(word, word)


def as_json(sentences, indent=2) -> str:
    document = [
        {
            "index": number,
            "parse": tree,
            "basicDependencies": [
                {"dep": label, "governor": head, "governorGloss": "", "dependent": word}
                for label, head, word in edges
            ],
            "enhancedDependencies": [{"dep": "x", "governor": 1, "dependent": 1}],
            "tokens": [
                {"index": n, "word": escaped(word), "originalText": word, "pos": tag, "after": " "}
                for n, (word, tag) in enumerate(zip(words, tags, strict=True), start=1)
            ],
        }
        for number, (words, tags, tree, edges) in enumerate(sentences)
    ]
    return json.dumps({"docId": "a", "sentences": document, "corefs": {}}, indent=indent)


def read(folder, content, *texts, parser="corenlp"):
    parser = load_parser(parser)
    path = folder / f"train.en.{parser.suffix}"
    path.write_text(content)
    return list(parser.read(path, iter(texts)))


def test_words_tags_and_trees_are_read(tmp_path):
    first, second = read(tmp_path, as_json(SENTENCES), "The dog (runs).", "a cat.")
    assert (first.words, first.tags) == (DOG, DOG_TAGS)
    assert first.space_before == [True, True, True, False, False, False]
    assert first.constituents.labels == ["NP", "VP", "S", "ROOT"]
    assert second.words == ["a", "cat", "."]
    assert second.constituents.labels == ["NP", "ROOT"]
    assert first.tree.heads.tolist() == [1, 3, 3, 3, 3, 3]
    assert first.deprels == ["det", "nsubj", "punct", "ROOT", "punct", "punct"]
    assert load_parser("corenlp").fields == ("words", "tags", "heads", "deprels", "spans")


def test_sentences_of_one_line_are_joined(tmp_path):
    (sentence,) = read(tmp_path, as_json(SENTENCES), "The dog (runs). A cat.")
    assert sentence.words == [*DOG, *CAT[0]]
    assert sentence.constituents.labels[-1] == "ROOT"
    assert sentence.tree.heads.tolist() == [1, 3, 3, 3, 3, 3, 7, 3, 7]


def test_one_kind_of_trees_is_read_if_the_other_is_not_there(tmp_path):
    words, tags, tree, edges = CAT
    without_constituents, without_edges = (
        as_json([(words, tags, *trees)]) for trees in (("", edges), (tree, []))
    )
    (flat,) = read(tmp_path, without_constituents, "A cat.")
    assert "3 words, and constituents of 0" in flat.reason
    assert "--parser corenlp:dependencies" in flat.reason
    (good,) = read(tmp_path, without_constituents, "A cat.", parser="corenlp:dependencies")
    assert (good.tree.heads.tolist(), good.constituents) == ([1, 1, 1], None)
    (flat,) = read(tmp_path, without_edges, "A cat.")
    assert "word 1 has no head" in flat.reason
    assert "--parser corenlp:constituents" in flat.reason
    (good,) = read(tmp_path, without_edges, "A cat.", parser="corenlp:constituents")
    assert (good.tree, good.constituents.labels) == (None, ["NP", "ROOT"])


@pytest.mark.parametrize(("indent", "block"), [(None, 1), (2, 1), (2, 3), (2, 50), (0, 4096)])
def test_a_document_is_read_in_parts_of_any_size(tmp_path, monkeypatch, indent, block):
    monkeypatch.setattr(module, "BLOCK", block)
    content = as_json(SENTENCES * 20, indent)
    parses = read(tmp_path, content, *["The dog (runs).", "A cat."] * 20)
    assert not any(isinstance(parse, Unparsed) for parse in parses)


def test_the_line_of_a_sentence_is_named(tmp_path):
    content = as_json(SENTENCES)
    line = content[: content.index('"index": 1,\n      "parse"')].count("\n")
    _, unparsed = read(tmp_path, content, "The dog (runs).", "A dog.")
    assert (
        f"train.en.json, line {line}: word 2 is 'cat', and the text has 'dog.'" in unparsed.reason
    )


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([("ROOT", 0, 2), ("det", 2, 1), ("punct", 9, 3)], "an edge from word 9 to word 3"),
        ([("ROOT", 0, 2), ("det", 1, 1), ("punct", 2, 3)], "an edge from word 1 to word 1"),
        ([("ROOT", 0, 2), ("det", 3, 1), ("punct", 1, 3)], "cycle"),
    ],
)
def test_edges_that_make_no_tree_are_named(tmp_path, edges, message):
    (unparsed,) = read(tmp_path, as_json([(*CAT[:3], edges)]), "A cat.")
    assert message in unparsed.reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (as_json(SENTENCES)[:-150], "line [0-9]+: CoreNLP's JSON list of sentences ends here"),
        ("[]", "line 1: CoreNLP's JSON list of sentences ends here, or none is there"),
        ('{"sentences": [{"index": 0}]}', "line 1: not a sentence of CoreNLP's JSON .*tokens"),
        ('{"sentences": [3]}', "line 1: not a sentence of CoreNLP's JSON"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, content, message):
    with pytest.raises(UserError, match=rf"train\.en\.json, {message}"):
        read(tmp_path, content, "The dog (runs).", "A cat.", "A cat.")


def test_other_options_are_refused():
    with pytest.raises(UserError, match="corenlp:xml: expected dependencies or constituents"):
        module.CoreNlpFiles("xml")


def test_tokens_of_json_stand_in_the_order_of_their_numbers(tmp_path):
    document = json.loads(as_json(SENTENCES))
    for sentence in document["sentences"]:
        sentence["tokens"].reverse()
    first, _ = read(tmp_path, json.dumps(document), "The dog (runs).", "A cat.")
    assert (first.words, first.tags) == (DOG, DOG_TAGS)
    assert first.deprels == ["det", "nsubj", "punct", "ROOT", "punct", "punct"]
