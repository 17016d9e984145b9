"""The sentences of a line are those that its parser found."""

from __future__ import annotations

import numpy as np
import pytest
import spacy

from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.syntax.sentence_boundaries import sentences_of_dependencies

LINES = [
    "Ein Hund läuft. Eine Katze schläft! Warum? Der Mann sieht das Kind, und es lacht.",
    "Ein Mann.  Zwei Frauen sitzen auf einer Bank . Ein Kind spielt",
    "Hallo",
    "Er kam, sah z. B. nichts und ging. Sie blieb. Sie blieb. Sie blieb. Alle blieben, auch er.",
]


@pytest.mark.parametrize("pipeline", ["spacy_pipeline", "trained_pipeline"])
def test_the_roots_of_a_line_tell_its_sentences(pipeline, request):
    folder = str(request.getfixturevalue(pipeline))
    parser, own = SpacyParser(folder), spacy.load(folder)
    several = 0
    for sentence, document in zip(parser.parse(LINES), own.pipe(LINES), strict=True):
        lengths = [sum(not token.is_space for token in found) for found in document.sents]
        relations = np.unique(sentence.deprels, return_inverse=True)[1]
        numbers = sentences_of_dependencies(sentence.tree.heads, relations)
        assert np.bincount(numbers).tolist() == [length for length in lengths if length]
        several += numbers[-1] > 0
    assert several
