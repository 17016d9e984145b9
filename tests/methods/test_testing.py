"""The checks for authors of encoders: each finds the encoder that is wrong in its way."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fairseq_phrase import testing
from fairseq_phrase.checkpoints.loading import register
from fairseq_phrase.methods.syntax_encoder import SyntaxEncoderLayer
from tests.support.registrations import registrations_undone
from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "examples" / "encoder_plugin"))
from label_transformer import LabelEncoder, LabelledTokens

STRUCTURE = LabelEncoder.structure
SMALL = 1e-6  # seen by checks, and without an effect on translations


def first_states(difference):
    """Add a little to the first states, computed from the padding."""

    def changed(
        self, src_tokens, structure, token_embeddings=None, right=LabelEncoder.first_states
    ):
        states, embedding = right(self, src_tokens, structure, token_embeddings)
        return states + SMALL * difference(structure.padding_mask).to(states), embedding

    return {"first_states": changed}


def structure(**changes):
    """Change fields of the structure by functions of the encoder, the tokens and the parse."""

    def changed(self, src_tokens, parse):
        fields = vars(STRUCTURE(self, src_tokens, parse))
        return Structure(**fields | {n: f(self, src_tokens, parse) for n, f in changes.items()})

    return {"structure": changed}


@dataclass(frozen=True)
class Structure(LabelledTokens):
    more: Any = None


def any_structure(self, src_tokens, parse):
    if "deprels" in parse:
        return STRUCTURE(self, src_tokens, parse)
    return LabelledTokens(self.padding(src_tokens), torch.zeros_like(src_tokens))


class Recomputed(SyntaxEncoderLayer):
    def forward(self, states, *args, **options):
        return super().forward(states * (1 + torch.is_grad_enabled()), *args, **options)


def after_layers(change):
    return {"after_layers": lambda self, states, structure: change(states)}


def reordered(order, in_place=False, right=LabelEncoder.reorder_encoder_out):
    def changed(self, encoder_out, new_order):
        output = right(self, encoder_out, order(new_order))
        return encoder_out.update(output) or output if in_place else output

    return {"reorder_encoder_out": changed}


def hidden_states(change, right=LabelEncoder.forward):
    def forward(self, *args, **options):
        encoded = right(self, *args, **options)
        return {**encoded, "encoder_states": change(encoded["encoder_states"])}

    return {"forward": forward}


def maps(change, right=LabelEncoder.attention_maps):
    def attention_maps(self, *args, **options):
        structure, layers = right(self, *args, **options)
        return structure, [{n: change(m) for n, m in layer.items()} for layer in layers]

    return {"attention_maps": attention_maps}


def members(change, right=LabelEncoder.node_members):
    return {"node_members": lambda self, *args: [change(nodes) for nodes in right(self, *args)]}


ALONE, PERMUTED = (
    "a_sentence_in_a_padded_batch_is_encoded_as_if_alone",
    "permuting_the_batch_permutes_the_output",
)
REORDERED = "reordered_beams_are_the_encoding_of_the_reordered_batch"
MAPS, DRAWN = "attention_maps_are_those_of_the_encoder", "its_attention_can_be_drawn"
COLLATED = "the_collaters_structure_is_that_of_the_encoder"
MISTAKES = {
    "padding counts": (
        first_states(lambda padding: padding.sum(1)[:, None, None]),
        {ALONE},
    ),
    "the first sentence is expected to be the longest": (
        first_states(lambda padding: padding[0].any()),
        {ALONE, PERMUTED, REORDERED},
    ),
    "heads are read, too": (
        structure(labels=lambda self, tokens, parse: torch.full_like(tokens, "heads" in parse)),
        {"a_parse_of_another_encoder_changes_nothing"},
    ),
    "a missing parse is no error": (
        {"structure": any_structure}, {"a_missing_parse_is_named"},
    ),
    "no gradient": (
        after_layers(lambda states: states.detach() + 0 * states),
        {"the_parse_has_a_gradient_to_give"},
    ),
    "reordered in another order": (
        reordered(lambda order: order.flip(0)),
        {REORDERED, "beam_search_over_a_batch_is_that_of_single_sentences"},
    ),
    "reordered in place": (reordered(lambda order: order, in_place=True), {REORDERED}),
    "embeddings in the structure": (
        structure(more=lambda self, *_: [{"labels": self.embed_labels.weight}]),
        {"the_structure_has_no_gradient"},
    ),
    "other labels from the collater": (
        {
            "batch_structure": lambda *_: ("labels", lambda tokens, _: [torch.zeros_like(tokens)]),
            **structure(labels=lambda self, tokens, parse: (
                *parse.made("labels"), STRUCTURE(self, tokens, parse).labels
            )[0]),
        },
        {COLLATED},
    ),
    "another result when it is computed again": (
        {"layer_class": Recomputed}, {"checkpointed_activations_have_the_same_gradients"},
    ),
    "too small a number for half precision": (
        after_layers(lambda states: states + (states * 0 + 1e-9) * 1e9),
        {"half_precision_keeps_to_the_result"},
    ),
    "columns attend to rows": (maps(lambda map_: map_.transpose(2, 3)), {MAPS, DRAWN}),
    "a head is missing": (maps(lambda map_: map_[:, 1:]), {MAPS}),
    "nodes in reversed order": (members(lambda nodes: nodes[::-1]), {MAPS}),
    "a layer's states are missing": (
        hidden_states(lambda states: states[1:]), {"the_states_of_every_layer_can_be_asked_for"},
    ),
    "other last states": (
        hidden_states(lambda states: [*states[:-1], states[0]] if states else []),
        {"the_states_of_every_layer_can_be_asked_for"},
    ),
}  # fmt: skip


def failing(monkeypatch, changes) -> set[str]:
    for name, value in changes.items():
        monkeypatch.setattr(LabelEncoder, name, value)
    failed = set()
    for check in testing.CHECKS:
        try:
            check("label_transformer", "dependency labels")
        except (AssertionError, ValueError, IndexError):
            failed.add(check.__name__)
    return failed


def test_the_attention_of_the_tutorial_passes_all_checks():
    page = (REPOSITORY / "docs/tutorials/encoder.md").read_text(encoding="utf-8")
    with registrations_undone("no package"):
        exec("".join(re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)), {})
        register()
        for check in testing.CHECKS:
            check("label_attention", "labels")


@pytest.mark.fast(3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_encoder_fails_the_checks_of_its_mistake(mistake, monkeypatch):
    changes, expected = MISTAKES[mistake]
    assert failing(monkeypatch, changes) == expected


def test_every_check_has_a_wrong_encoder(monkeypatch):
    names = {check.__name__ for check in testing.CHECKS}
    assert set().union(*(failed for _, failed in MISTAKES.values())) == names
    assert failing(monkeypatch, {}) == set()
