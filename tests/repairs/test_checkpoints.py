"""Files of checkpoints: names of parameters, formats and classes."""

from __future__ import annotations

import torch

from fairseq_phrase.repairs.checkpoints import rename_old_parameters

PREFIX = "encoder.layers.0."


def test_a_matrix_of_queries_keys_and_values_is_divided():
    weight, bias = torch.arange(12.0).view(6, 2), torch.arange(6.0)
    saved = {f"{PREFIX}self_attn.in_proj_weight": weight, f"{PREFIX}self_attn.in_proj_bias": bias}
    names = [
        f"{PREFIX}self_attn.{part}_proj.{kind}" for kind in ("weight", "bias") for part in "qkv"
    ]
    rename_old_parameters(saved, names)
    assert saved.keys() == {*names}
    for index, part in enumerate("qkv"):
        rows = slice(2 * index, 2 * index + 2)
        assert saved[f"{PREFIX}self_attn.{part}_proj.weight"].equal(weight[rows])
        assert saved[f"{PREFIX}self_attn.{part}_proj.bias"].equal(bias[rows])


def test_layer_norms_get_the_names_of_their_blocks():
    saved = {
        f"{side}.layers.1.layer_norms.{index}.weight": torch.tensor([float(index)])
        for side, count in (("encoder", 2), ("decoder", 3))
        for index in range(count)
    }
    rename_old_parameters(saved, ())
    assert {name: value.item() for name, value in saved.items()} == {
        "encoder.layers.1.self_attn_layer_norm.weight": 0,
        "encoder.layers.1.final_layer_norm.weight": 1,
        "decoder.layers.1.self_attn_layer_norm.weight": 0,
        "decoder.layers.1.encoder_attn_layer_norm.weight": 1,
        "decoder.layers.1.final_layer_norm.weight": 2,
    }


def test_names_that_a_model_has_or_cannot_place_are_kept():
    theirs = torch.nn.MultiheadAttention(4, 2).state_dict()
    for model_names in (theirs, {}):  # a model with torch's attention, and one without attention
        saved = dict(theirs)
        rename_old_parameters(saved, model_names)
        assert saved.keys() == theirs.keys()
