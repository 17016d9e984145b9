"""The sentences of a line are those that its parser found."""

from __future__ import annotations

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc

from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.syntax.sentence_boundaries import (
    sentences_of_dependencies,
)

LINES = [
    "Ein Hund läuft. Eine Katze schläft! Warum? Der Mann sieht das Kind, und es lacht.",
    "Ein Mann.  Zwei Frauen sitzen auf einer Bank . Ein Kind spielt",
    "Hallo",
    "Er kam, sah z. B. nichts und ging. Sie blieb. Sie blieb. Sie blieb. Alle blieben, auch er.",
]


@pytest.mark.fast(1)
@pytest.mark.parametrize("pipeline", ["spacy_pipeline", "trained_pipeline"])
def test_the_roots_of_a_line_tell_its_sentences(pipeline, request):
    folder = str(request.getfixturevalue(pipeline))
    parser, nlp = SpacyParser(folder), spacy.load(folder)
    several = 0
    for sentence, document in zip(parser.parse(LINES), nlp.pipe(LINES), strict=True):
        lengths = [sum(not token.is_space for token in tokens) for tokens in document.sents]
        relations = np.unique(sentence.deprels, return_inverse=True)[1]
        numbers = sentences_of_dependencies(sentence.tree.heads, relations)
        assert np.bincount(numbers).tolist() == [length for length in lengths if length]
        several += numbers[-1] > 0
    assert several


@Language.factory("given_heads", default_config={"heads": []})
def given_heads(nlp, name, heads: list[int]):
    """A parser that gives each line the same tree; roots have the relation ``ROOT``, others ``dep``."""

    def parse(document):
        labels = ["ROOT" if head == token else "dep" for token, head in enumerate(heads)]
        words, spaces = zip(
            *[(token.text, bool(token.whitespace_)) for token in document], strict=True
        )
        return Doc(nlp.vocab, words, spaces, heads=heads, deps=labels)

    return parse


@pytest.mark.parametrize(
    ("line", "heads", "expected"),
    [
        ("Ein Hund  läuft Eine Katze", [2, 0, 2, 2, 4, 4], [0, 0, 0, 1, 1]),  # the first root
        ("Ein Hund  läuft Eine Katze", [0, 0, 2, 2, 3, 2], [0, 0, 1, 1, 1]),  # another root
        ("Eine  Katze  läuft", [1, 1, 3, 1, 3], [0, 0, 0]),  # more white space below it
    ],
)
def test_white_space_that_is_a_root_leaves_the_sentences_as_they_are(
    line, heads, expected, tmp_path
):
    pipeline = spacy.blank("de")
    pipeline.add_pipe("given_heads", "parser", config={"heads": heads})
    pipeline.to_disk(tmp_path / "pipeline")
    (sentence,) = SpacyParser(str(tmp_path / "pipeline")).parse([line])
    assert sentence.words == line.split()
    relations = np.unique(sentence.deprels, return_inverse=True)[1]
    numbers = sentences_of_dependencies(sentence.tree.heads, relations)
    assert numbers.tolist() == expected
