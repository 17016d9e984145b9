"""The demo's answer for a sentence."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fairseq_phrase
from fairseq_phrase.data.store.manifest import Manifest, fingerprint
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.demo.answers import MAX_NODES, answer, attention_of
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.small_checkpoints import make_checkpoint, make_data

TAG = "<2en>"


@pytest.fixture(params=[1, 2], ids=["data", "data in two directories"])
def translator(request, tmp_path):
    """A model of trees whose data have a protected token."""
    data = make_data(tmp_path / "data")
    for language in ("de", "en"):
        with open(data / f"dict.{language}.txt", "a", encoding="utf-8") as dictionary:
            dictionary.write(f"{TAG} 1\n")
    manifest = Manifest.load(data, "de")
    manifest.protected, manifest.dictionary = [TAG], fingerprint(data / "dict.de.txt")
    manifest.save(data)
    model = ["--arch", "relation_transformer", "--max-target-positions", "6"]
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, *model)
    return fairseq_phrase.load(checkpoint, ":".join([str(data)] * request.param), device="cpu")


@pytest.mark.parametrize("heads", [None, [1, 2, 2]])
def test_an_answer_is_of_the_text_with_its_protected_tokens(translator, heads):
    text = f"{TAG} der Hund schläft"
    content = answer(translator, text, heads, 10)
    assert content["translation"] == translator.translate(text)
    assert content["words"] == ["der", "Hund", "schläft"]
    assert content["attention"]["nodes"][:2] == [TAG, "der"]
    assert content["translation"] != translator.translate("der Hund schläft")


HEADS, FLAT = [1, 2, 2, 2], [2, 2, 2, 2]


def parsed(constituents):
    words, tags = ["der", "Hund", "schläft", "gern"], ["D", "N", "V", "A"]
    return ParsedSentence(
        words, [True] * 4, tree=DependencyTree(HEADS), tags=tags, constituents=constituents,
        deprels=["det", "nsubj", "root", "advmod"],
    )  # fmt: skip


@pytest.mark.parametrize("made_by", ["parser", "from-dependencies", "none"])
@pytest.mark.parametrize("heads", [None, HEADS, FLAT])
def test_only_constituents_that_are_made_of_the_tree_follow_an_edit(tmp_path, made_by, heads):
    """A constituency parser's stay: they do not depend on the heads."""
    trees = {
        "parser": ConstituencyTree([(2, 4), (0, 4)], ["VP", "S"], 4),
        "from-dependencies": ConstituencyTree.from_dependencies(
            DependencyTree(HEADS), parsed(None).tags, parsed(None).deprels
        ),
        "none": None,
    }
    data, read = make_data(tmp_path / "data"), []
    replace(Manifest.load(data, "de"), constituents=made_by).save(data)

    def refused(text, sentence):
        raise UserError("no maps")

    stub = SimpleNamespace(
        parse=lambda lines: [parsed(trees[made_by])], attention=refused,
        translate=lambda lines, parses: read.extend(parses) or ["a"],
        models=[SimpleNamespace(encoder=SimpleNamespace(attention_maps=None))],
        task=SimpleNamespace(
            cfg=SimpleNamespace(data=f"{data}:b", source_lang="de"),
            source_text=SimpleNamespace(needs_trees=True),
        ),
    )  # fmt: skip
    content = answer(stub, "der Hund schläft gern", heads, 10)
    expected = trees[made_by]
    if made_by == "from-dependencies" and heads is not None:
        tree = DependencyTree(heads)
        expected = ConstituencyTree.from_dependencies(tree, parsed(None).tags, parsed(None).deprels)
        assert (expected.spans.tolist() == trees[made_by].spans.tolist()) == (heads == HEADS)
    spans = [] if expected is None else expected.spans.tolist()
    assert [list(span) for *span, _ in content["constituents"]] == spans
    assert content["heads"] == (heads or HEADS)
    (sentence,) = read
    assert sentence.tree.heads.tolist() == content["heads"]
    assert (sentence.constituents is None) == (expected is None)


@pytest.mark.parametrize(("nodes", "is_drawn"), [(MAX_NODES, True), (MAX_NODES + 1, False)])
def test_attention_of_too_many_nodes_is_not_sent(nodes, is_drawn):
    maps = SimpleNamespace(
        labels=["a"] * nodes, num_tokens=1, weights={"attention": np.ones((1, 1, 1, 1))}
    )
    model = SimpleNamespace(encoder=SimpleNamespace(attention_maps=None))
    translator = SimpleNamespace(attention=lambda *_: maps, models=[model])
    attention = attention_of(translator, "a", None)
    if is_drawn:
        assert attention == {
            "nodes": ["a"] * nodes,
            "tokens": 1,
            "blocks": {"attention": [[[[1.0]]]]},
        }
    else:
        assert (
            attention
            == f"the sentence has {nodes} nodes, and attention is drawn for {MAX_NODES} at most"
        )


@pytest.mark.parametrize("most", [3, 2])
def test_a_sentence_has_at_most_so_many_words(translator, most):
    text = "der Hund schläft"
    if most == 3:
        assert answer(translator, text, None, most)["words"] == text.split()
        return
    with pytest.raises(UserError, match="the sentence has 3 words, at most 2 fit"):
        answer(translator, text, None, most)
