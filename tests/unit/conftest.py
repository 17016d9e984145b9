"""What unit tests share."""

from __future__ import annotations

from typing import Any

import pytest

from fairseq_phrase.data.preprocessing.subword_models import (
    CharacterOptions,
    train_sentencepiece,
)
from fairseq_phrase.data.subwords.segmenters import SentencePieceSegmenter


@pytest.fixture(scope="session")
def dictionary() -> Any:
    """Thirty words. Tests do not change it."""
    from fairseq_phrase.testing import make_dictionary

    return make_dictionary()


@pytest.fixture(scope="session")
def normalizing(tmp_path_factory):
    """A model with SentencePiece's default normal form, which removes invisible characters."""
    model = tmp_path_factory.mktemp("nmt") / "spm.model"
    characters = CharacterOptions("nmt_nfkc")
    train_sentencepiece(["das Haus", "die Frau"] * 9, model, 16, 1, characters)
    return SentencePieceSegmenter(model)
