"""Tokenized text keeps its words under a spaCy pipeline."""

from __future__ import annotations

import gzip
import itertools

from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.parsers import Unparsed
from fairseq_phrase.parsers.pipeline import ParsingOptions, ParsingPipeline
from tests.support.hostile import SNIPPETS, lines
from tests.support.repository import shared_data


@given(st.lists(lines(4), max_size=5))
def test_spacy_keeps_tokenized_words_whatever_they_are(trained_pipeline, texts):
    options = ParsingOptions(f"spacy:{trained_pipeline}", "from-dependencies", tokenized=True)
    for sentence, text in zip(loaded(options).parse(texts), texts, strict=True):
        assert not isinstance(sentence, Unparsed), sentence.reason
        assert sentence.words == text.split()
        assert len(sentence.tree) == sentence.constituents.num_words == len(sentence.words)


_LOADED: dict = {}


def loaded(options):
    """A pipeline that is loaded once."""
    if options not in _LOADED:
        _LOADED[options] = ParsingPipeline(options)
    return _LOADED[options]


def test_moses_tokenized_text_keeps_its_words_under_spacy(spacy_pipeline):
    folder = shared_data("wmt")
    if folder is None:
        texts = ["Es ist &quot; gut &quot; , sagt O &apos;Neill @-@ Müller &#91; 1 &#93; ."] * 5
    else:
        with gzip.open(folder / "slice10k.de.gz", "rt", encoding="utf-8") as stream:
            texts = [line.rstrip("\n") for line in itertools.islice(stream, 300)]
    pipeline = loaded(
        ParsingOptions(f"spacy:{spacy_pipeline}", "from-dependencies", tokenized=True)
    )
    parsed = pipeline.parse([*texts, *SNIPPETS])
    for sentence, text in zip(parsed, [*texts, *SNIPPETS], strict=True):
        assert sentence.words == text.split()
    assert sum(len(sentence.constituents) for sentence in parsed) > len(texts)
