"""The demo's answer for a sentence."""

from __future__ import annotations

import pytest

import fairseq_phrase
from fairseq_phrase import parsers
from fairseq_phrase.data.store.manifest import Manifest, fingerprint
from fairseq_phrase.demo.answers import answer
from fairseq_phrase.inference import search
from tests.support.small_checkpoints import ChainParser, make_checkpoint, make_data

TAG = "<2en>"


@pytest.fixture(params=[1, 2], ids=["data", "data in two directories"])
def translator(request, tmp_path, monkeypatch):
    """A model of trees whose data have a protected token."""
    monkeypatch.setitem(parsers._BUILT_IN, "chain", parsers._BuiltIn("chain", ChainParser))
    monkeypatch.setattr(search, "longest_target", lambda source: 5)
    data = make_data(tmp_path / "data")
    for language in ("de", "en"):
        with open(data / f"dict.{language}.txt", "a", encoding="utf-8") as dictionary:
            dictionary.write(f"{TAG} 1\n")
    manifest = Manifest.load(data, "de")
    manifest.protected, manifest.dictionary = [TAG], fingerprint(data / "dict.de.txt")
    manifest.save(data)
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "relation_transformer")
    return fairseq_phrase.load(checkpoint, ":".join([str(data)] * request.param), device="cpu")


@pytest.mark.parametrize("heads", [None, [1, 2, 2]])
def test_an_answer_is_of_the_text_with_its_protected_tokens(translator, heads):
    text = f"{TAG} der Hund schläft"
    found = answer(translator, text, heads, 10)
    assert found["translation"] == translator.translate(text)
    assert found["words"] == ["der", "Hund", "schläft"]
    assert found["attention"]["nodes"][:2] == [TAG, "der"]
    assert found["translation"] != translator.translate("der Hund schläft")
