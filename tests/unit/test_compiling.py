"""torch.compile makes one graph of an encoder."""

from __future__ import annotations

import pytest
import torch
from torch import _dynamo

from fairseq_phrase.batch.source_batches import make_structures
from fairseq_phrase.models.encoder_method import ENCODERS
from fairseq_phrase.testing import build_model, make_batch


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("relation_transformer", "relation bias, both"),
        ("phrase_transformer", "phrase, k = 2"),
        ("phrase_transformer", "phrase, chunks"),
        ("phrase_transformer", "phrase, structural positions"),
        ("parent_scaled_transformer", "parent-scaled"),
    ],
)
def test_nothing_parts_the_graph(dictionary, name, row):
    model = build_model(name, dictionary, **ENCODERS[name].rows[row])
    inputs = make_batch(dictionary, [5, 3])
    tokens = inputs.pop("src_tokens")
    structure = model.encoder.batch_structure(model.cfg, dictionary)
    if structure is not None:
        inputs |= make_structures(dict([structure]), tokens, inputs)
    expected = model.encoder(tokens, **inputs)["encoder_out"][0]
    _dynamo.reset()
    compiled = torch.compile(model.encoder, backend="eager", fullgraph=True)
    found = compiled(tokens, **inputs)["encoder_out"][0]
    torch.testing.assert_close(found, expected)
