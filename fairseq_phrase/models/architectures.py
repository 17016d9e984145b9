"""fairseq's architectures, made from the registered encoders and models: presets, flags and YAML options.

Importing this module registers all encoders, including encoders of installed packages, and builds the
architectures once. fairseq imports it with ``--user-dir``. Encoders that a user's own ``--user-dir``
registers later are added.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, make_dataclass
from enum import Enum
from importlib.metadata import entry_points
from typing import Any

from fairseq.models import (
    ARCH_MODEL_REGISTRY,
    MODEL_DATACLASS_REGISTRY,
    MODEL_REGISTRY,
    register_model,
    register_model_architecture,
)
from hydra.core.config_store import ConfigNode, ConfigStore
from omegaconf import DictConfig, OmegaConf

from fairseq_phrase.errors import UserError

# Importing encoders registers them.
from fairseq_phrase.methods import transformer_encoder
from fairseq_phrase.methods.accumulation import tree_transformer
from fairseq_phrase.methods.config import FlatTransformerConfig, copied
from fairseq_phrase.methods.copying.copying_decoder import CopyOptions
from fairseq_phrase.methods.encoder_method import (
    BROKEN,
    ENCODERS,
    LATE,
    PRESETS,
    EncoderMethod,
    options_of,
)
from fairseq_phrase.methods.parents import parent_scaled_transformer
from fairseq_phrase.methods.phrases import phrase_transformer
from fairseq_phrase.methods.positions import structural_transformer
from fairseq_phrase.methods.recurrent import recurrent_encoders
from fairseq_phrase.methods.relations import relation_transformer
from fairseq_phrase.methods.xl import xl_transformer
from fairseq_phrase.models import huggingface_encoder, labeller, pretrainer, seq2seq
from fairseq_phrase.models.named_encoder import NAMED_MODELS, NamedModel
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel

#: The group of entry points in which installed packages offer encoders.
ENCODER_GROUP = "fairseq_phrase.encoders"

logger = logging.getLogger(__name__)
_TRANSLATION = options_of(CopyOptions)
_FAIRSEQS = {each.name: each for each in fields(FlatTransformerConfig)}
BUILT: set[str] = set()


def build() -> None:
    """Build the architectures of encoders that lack them, and the models that take any encoder.

    Raises:
        UserError: an option lacks a default; or fairseq, another encoder, or a model that takes any
            encoder has an option of the same name with another type or default. The encoder is then not
            registered.
    """
    new = [method for method in ENCODERS.values() if method.name not in BUILT]
    for method in new:
        try:
            _check_encoder(method)
        except UserError:
            del ENCODERS[method.name]
            raise
        if method.translation:
            _build_translation(method)
        BUILT.add(method.name)
    for model in NAMED_MODELS.values():
        if new or model.name not in MODEL_REGISTRY:
            build_named(model)


def _build_translation(method: EncoderMethod) -> None:
    """Register an encoder's translation architecture and its presets."""
    model = type(
        method.encoder.__name__.removesuffix("Encoder") + "TransformerModel",
        (SyntaxTransformerModel,),
        {"__doc__": method.encoder.__doc__, "method": method},
    )
    options = [*method.options, *_TRANSLATION]
    _register(method.name, model, options, {**PRESETS, **method.presets})


def build_named(model: NamedModel) -> None:
    """Register a model with the options of all encoders."""
    options = {option.name: option for option in model.options}
    for method in ENCODERS.values():
        of_encoder = f"the encoder '{method.name}'"
        _refuse_clashes(f"--arch {model.name}", model.options, of_encoder, method.options)
        options |= {option.name: option for option in method.options}
    _register(model.name, model.model, options.values(), {"": {}, **model.presets})


def _register(
    name: str, model: type, options: Iterable[Field[Any]], presets: Mapping[str, Mapping[str, Any]]
) -> None:
    """Register a model with fairseq, under a name for each preset.

    fairseq's architecture functions run before hydra fills in defaults, so ``fairseq-hydra-train`` loses
    presets that such a function sets. Here a preset is a dataclass; its defaults work in both commands.
    """
    by_name = {option.name: option for option in options}
    for preset, defaults in presets.items():
        arch = f"{name}_{preset}" if preset else name
        changed = [_FAIRSEQS[option] for option in defaults if option not in by_name]
        option_fields = [
            (option.name, option.type, copied(option, defaults.get(option.name, option.default)))
            for option in (*by_name.values(), *changed)
        ]
        config = make_dataclass(f"{name}_config", option_fields, bases=(FlatTransformerConfig,))
        # A model that takes any encoder is registered again when a late encoder adds options to it.
        for registry in (MODEL_REGISTRY, ARCH_MODEL_REGISTRY):
            registry.pop(arch, None)
        # One class per name: fairseq keeps the dataclass on the class.
        own_model = type(model.__name__, (model,), {"__doc__": model.__doc__})
        _register_with_fairseq(arch, own_model, config)


class _StoredOptions(ConfigNode):
    """The options of an architecture in hydra's store, converted to hydra's form at their first use."""

    def __init__(self, arch: str, config: type) -> None:
        self.name, self.config = f"{arch}.yaml", config
        self.group, self.package, self.provider = "model", None, "fairseq"

    def __getattr__(self, name: str) -> DictConfig:
        if name != "node":
            raise AttributeError(name)
        options = self.config()
        options._name = self.name.removesuffix(".yaml")
        self.node = OmegaConf.structured(options)
        return self.node


def _register_with_fairseq(arch: str, model: type, config: type) -> None:
    """Register as ``register_model(arch, dataclass=config)``, but store :class:`_StoredOptions`.

    fairseq converts the options of each architecture to hydra's form at once, which is half of this
    package's import time.
    """
    register_model(arch)(model)
    setattr(model, "__dataclass", config)  # fairseq reads it under this name
    MODEL_DATACLASS_REGISTRY[arch] = config
    ConfigStore.instance().repo["model"][f"{arch}.yaml"] = _StoredOptions(arch, config)
    register_model_architecture(arch, arch)(lambda _: None)


def _check_encoder(method: EncoderMethod) -> None:
    """Check that the options of a new encoder do not contradict those that exist; see :func:`build`."""
    mine = f"the encoder '{method.name}'"
    for option in method.options:
        # The error of dataclasses would name the wrong option: fairseq's before it, which has a default.
        if option.default is MISSING:
            raise UserError(
                f"{mine} has an option {option.name} without a default value: give one as "
                'field(default=…, metadata={"help": …}); of several values, as one text'
            )
    _refuse_clashes(mine, method.options, "fairseq's Transformer", _FAIRSEQS.values())
    for name, other_method in ENCODERS.items():
        _refuse_clashes(mine, method.options, f"the encoder '{name}'", other_method.options)
    for name, model in NAMED_MODELS.items():
        _refuse_clashes(mine, method.options, f"--arch {name}", model.options)


def _refuse_clashes(
    mine: str, options: Iterable[Field[Any]], other_owner: str, other_options: Iterable[Field[Any]]
) -> None:
    by_name = {option.name: option for option in other_options}
    for option in options:
        there = by_name.get(option.name, option)
        if _meaning(option) != _meaning(there):
            raise UserError(
                f"{mine} and {other_owner} both have --{option.name.replace('_', '-')}, with the types "
                f"and defaults {_described(option)} and {_described(there)}: models that take any "
                "encoder by --encoder have the options of all, so rename one, or make both alike"
            )


def _meaning(option: Field[Any]) -> tuple[Any, Any]:
    """Return type and default; enumerations with the same values count as one type."""
    kind: Any = option.type
    if isinstance(kind, type) and issubclass(kind, Enum):
        kind = tuple(str(choice.value) for choice in kind)
    return kind, option.default


def _described(option: Field[Any]) -> str:
    kind, default = _meaning(option)
    name = "/".join(kind) if isinstance(kind, tuple) else getattr(kind, "__name__", str(kind))
    return f"({name}, {default!r})"


def load_installed_encoders() -> None:
    """Register the encoders that other packages offer as entry points of :data:`ENCODER_GROUP`.

    An encoder that cannot be imported or registered is omitted, with a warning; using it is an error.
    """
    for entry in entry_points(group=ENCODER_GROUP):
        try:
            entry.load()
            build()
        except (Exception, SystemExit) as error:
            reason = (
                str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            )
            BROKEN[entry.name] = (
                f"the encoder '{entry.name}' ({entry.value}) of an installed package cannot be used: "
                f"{reason}"
            )
            logger.warning(BROKEN[entry.name])


build()
load_installed_encoders()
LATE.append(build)
