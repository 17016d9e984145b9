"""Training of relation biases."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(model: nn.Module, lr: float, bias_lr: float) -> list[dict[str, Any]]:
    """Group a model's parameters for an optimizer, with a larger learning rate for the biases.

    They start at 0, and a learning rate for fine-tuning hardly moves them.

    Args:
        lr: for the parameters of the model.
        bias_lr: for the biases and vectors of relations, which have no weight decay.
    """
    of_relations: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in model.named_parameters():
        of_relations[".relation_" in name].append(parameter)
    return [
        {"params": of_relations[False], "lr": lr},
        {"params": of_relations[True], "lr": bias_lr, "weight_decay": 0.0},
    ]
