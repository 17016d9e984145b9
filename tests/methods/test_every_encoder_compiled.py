"""torch.compile makes one graph of some encoders, and computes the same with all."""

from __future__ import annotations

import pytest
import torch
from torch import _dynamo

from fairseq_phrase.data.batches.source_batches import make_structures
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.testing import build_model, make_batch

WHOLE = [
    ("relation_transformer", "relation bias, both"),
    ("phrase_transformer", "phrase, k = 2"),
    ("phrase_transformer", "phrase, chunks"),
    ("parent_scaled_transformer", "parent-scaled"),
]
#: Of every other encoder one variant, and constituents, whose number is read from the batch.
IN_PARTS = [
    (name, next(iter(method.variants)))
    for name, method in translation_encoders().items()
    if name not in dict(WHOLE)
] + [("phrase_transformer", "phrase, constituents")]
VARIANTS = [(*each, True) for each in WHOLE] + [(*each, False) for each in IN_PARTS]


@pytest.mark.fast(2)
@pytest.mark.parametrize(
    ("name", "variant", "whole"), VARIANTS, ids=[variant for _, variant, _ in VARIANTS]
)
def test_compiled_it_computes_the_same(dictionary, name, variant, whole):
    # Layers of a whole graph are compiled together. Otherwise a second one is traced as the first.
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), 2 if whole else 1)
    model = build_model(
        name, dictionary, **{**layers, **translation_encoders()[name].variants[variant]}
    )
    inputs = make_batch(dictionary, [5, 3])
    tokens = inputs.pop("src_tokens")
    structure = getattr(model.encoder, "batch_structure", lambda *_: None)(
        getattr(model, "cfg", None), dictionary
    )
    if whole and structure is not None:
        inputs |= make_structures(dict([structure]), tokens, inputs)
    expected = model.encoder(tokens, **inputs)["encoder_out"][0]
    _dynamo.reset()
    compiled = torch.compile(model.encoder, backend="eager", fullgraph=whole)
    states = compiled(tokens, **inputs)["encoder_out"][0]
    torch.testing.assert_close(states, expected)
