"""Training of relation biases, also beside adapters of peft."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.relations.huggingface_attention import RelationVectors
from fairseq_phrase.methods.relations.relation_bias import RelationBias

#: The modules that hold biases and vectors, in each attention.
_TABLES = ("relation_bias", "relation_vectors")


def parameter_groups(model: nn.Module, lr: float, bias_lr: float) -> list[dict[str, Any]]:
    """Group a model's parameters for an optimizer, with a larger learning rate for the biases.

    They start at 0, and a learning rate for fine-tuning hardly moves them.

    Args:
        model: a model with relation biases, or a model of peft around it.
        lr: for the parameters of the model.
        bias_lr: for the biases and vectors of relations, which have no weight decay.

    Raises:
        UserError: the model has no relation biases, or some take no gradient.
    """
    tables = _tables(model)
    if not tables:
        raise UserError(
            "parameter_groups: this model has no relation biases: add_relation_bias first"
        )
    _check_saved(model, tables)
    for name, table in tables.items():
        if not all(bias.requires_grad for bias in table.biases()):
            raise UserError(f"parameter_groups: {name} takes no gradient: {_advice(tables)}")
    of_model: list[nn.Parameter] = []
    of_relations: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (of_relations if ".relation_" in name else of_model).append(parameter)
    return [
        {"params": of_model, "lr": lr},
        {"params": of_relations, "lr": bias_lr, "weight_decay": 0.0},
    ]


def lora_options(model: nn.Module, **options: Any) -> dict[str, Any]:
    """Return options of peft's ``LoraConfig`` with which the relation biases are trained and saved.

    Args:
        model: a model with relation biases.
        **options: other options of ``LoraConfig``, such as ``task_type`` and ``r``; modules in
            ``modules_to_save`` are added to those of the biases. Other configurations of peft that have
            ``modules_to_save``, such as ``IA3Config``, take these options, too.

    Raises:
        UserError: the model has no relation biases, or ``modules_to_save`` is a string.
    """
    modules = _modules_to_save(_tables(model))
    if not modules:
        raise UserError("lora_options: this model has no relation biases: add_relation_bias first")
    names = options.get("modules_to_save") or ()
    if isinstance(names, str):
        raise UserError(f"lora_options: modules_to_save={names!r}: expected a list of names")
    further_modules = [name for name in names if name not in modules]
    return options | {"modules_to_save": modules + further_modules}


def check_trained(model: Any) -> None:
    """Check at a training step that all biases are trained, and that adapters of peft have them.

    Frozen biases are allowed if they were trained before.

    Args:
        model: a model with relation biases, or its encoder.

    Raises:
        UserError: a bias is 0 and takes no gradient, or would not be saved with the adapter.
    """
    if not (model.training and torch.is_grad_enabled()) or torch.compiler.is_compiling():
        return
    tables = _tables(model)
    _check_saved(model, tables)
    frozen = {
        name: biases
        for name, table in tables.items()
        if (biases := [bias for bias in table.biases() if not bias.requires_grad])
    }
    if not frozen or not any(parameter.requires_grad for parameter in model.parameters()):
        return
    for name, biases in frozen.items():
        if not all(bias.any() for bias in biases):
            raise UserError(f"{name} is 0, takes no gradient and stays 0: {_advice(tables)}")


def _tables(model: nn.Module) -> dict[str, Any]:
    """Return the biases and vectors of each attention, by name; peft may have wrapped them."""
    return {
        f"{path}.{name}": module._modules[name]
        for path, module in model.named_modules()
        for name in _TABLES
        if name in module._modules
    }


def _modules_to_save(tables: dict[str, Any]) -> list[str]:
    return sorted({name.rpartition(".")[2] for name in tables})


def _advice(tables: dict[str, Any]) -> str:
    return (
        "with peft, write LoraConfig(**lora_options(model, …)), which has "
        f"modules_to_save={_modules_to_save(tables)}; without it, requires_grad_(True) for all biases"
    )


def _check_saved(model: Any, tables: dict[str, Any]) -> None:
    """Check that an adapter of peft saves the biases that are trained.

    Raises:
        UserError: it would lack them.
    """
    if not getattr(model, "peft_config", None):
        return
    for name, table in tables.items():
        is_wrapped = not isinstance(table, RelationBias | RelationVectors)
        if not is_wrapped and any(bias.requires_grad for bias in table.biases()):
            raise UserError(f"{name} is trained, but the adapter lacks it: {_advice(tables)}")


def has_biases(config: Any) -> bool:
    """Return whether a configuration of transformers is of a model with relation biases."""
    return bool(getattr(config, "relation_bias", None))


def take_name(derived: type, base: type) -> None:
    """Give a derived class the names of its base, which saved models have."""
    derived.__name__, derived.__qualname__ = base.__name__, base.__qualname__
    derived.__module__ = base.__module__


def derived_class(derived: Any, base: Any, derive: Callable[[Any], Any]) -> Any:
    """Let a class, which is made at run time, take the names of its base, and be pickled.

    Args:
        derive: the function that makes the class of its base, here and in another process.
    """
    take_name(derived, base)
    first, steps = getattr(base, "derivation", (base, ()))
    derived.derivation = first, (*steps, derive)
    derived.__reduce__ = _reduce
    return derived


def _reduce(model: Any) -> tuple[Any, ...]:
    return _empty_model, type(model).derivation, vars(model)


def _empty_model(base: Any, steps: Iterable[Callable[[Any], Any]]) -> Any:
    kind = functools.reduce(lambda kind, derive: derive(kind), steps, base)
    return kind.__new__(kind)


def with_keywords(signature: inspect.Signature, names: Iterable[str]) -> inspect.Signature:
    """Add keyword arguments to a forward pass, from whose signature Trainer chooses the columns of data.

    They are None by default, and stand before the keyword arguments that have no names.
    """
    kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = list(signature.parameters.values())
    last = [parameter for parameter in parameters if parameter.kind is kinds[0]]
    new = [inspect.Parameter(name, kinds[1], default=None) for name in names]
    return signature.replace(parameters=[*parameters[: len(parameters) - len(last)], *new, *last])
