"""An encoder by its name: what models for other jobs than translation share.

    --arch labeller --encoder tree_transformer --no-subtree-masking --encoder-layers 2

Such a model is registered with :func:`register_named_model`. It has fairseq's flat options
(:data:`~fairseq_phrase.models.config.FlatTransformerConfig`), ``--encoder NAME``, the options of all
registered encoders, and its own options. An encoder may be registered before or after the model: the
model's options grow with every encoder, also with those of other packages. The model builds the encoder
with :func:`build_named_encoder` in ``build_model``.

The options of all encoders are in one set. So two encoders may share an option only if it has the same
type and default in both, as those of positions do (they inherit one dataclass). An encoder's name is a
good prefix for its own options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from enum import Enum
from typing import Any, TypeVar

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from torch import nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import (
    FlatTransformerConfig,
    copied,
    nested_config,
    register_presets,
    replace_config,
)
from fairseq_phrase.models.encoder_method import ENCODERS, EncoderMethod, EncoderOption, options_of
from fairseq_phrase.models.syntax_transformer import require_parses

__all__ = ["NamedEncoderModel", "build_named_encoder", "named_method", "register_named_model"]

Model = TypeVar("Model", bound="type[NamedEncoderModel]")


@dataclass
class EncoderChoice:
    """The option that chooses the encoder."""

    encoder: str = field(
        default="transformer",
        metadata={
            "help": "the encoder: any registered one (transformer, phrase_transformer, "
            "tree_transformer, …, or one of an installed package), with its own options"
        },
    )


class NamedEncoderModel(BaseFairseqModel):
    """The base of models that :func:`register_named_model` registers, with the flags of all encoders."""

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the flags of the registered options."""
        gen_parser_from_dataclass(parser, getattr(cls, "__dataclass")(), delete_default=True)


@dataclass(frozen=True)
class _NamedModel:
    """A registered model.

    Attributes:
        name: ``--arch NAME``.
        own: the model's own options.
        presets: by architecture, the defaults that differ.
    """

    name: str
    own: list[EncoderOption]
    presets: Mapping[str, Mapping[str, Any]]

    def config(self) -> type:
        """Join fairseq's options, those of the encoders so far, and the model's own."""
        known = {option.name: option for option in self.own}
        for method in ENCODERS.values():
            known |= {option.name: option for option in method.options}
        return flat_config(f"{self.name}_config", known.values())


def flat_config(name: str, options: Iterable[EncoderOption]) -> type:
    """Join options with fairseq's."""
    own = [(each.name, each.kind, copied(each.field, each.field.default)) for each in options]
    return make_dataclass(name, own, bases=(FlatTransformerConfig,))


_MODELS: list[_NamedModel] = []


def register_named_model(
    name: str,
    *,
    options: type | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Model], Model]:
    """Register a model that takes any encoder by its name.

    Args:
        name: ``--arch NAME``.
        options: a dataclass of the model's own options, each with a default and a ``help`` in its
            metadata; None if it has none.
        presets: additional architectures ``NAME_PRESET``: by preset, the defaults that differ.

    Returns:
        A decorator of a :class:`NamedEncoderModel`.

    Raises:
        UserError: an encoder has an option of the same name with another type or default.
    """

    def register(model: Model) -> Model:
        own = [*options_of(EncoderChoice), *options_of(options)]
        names = {name: {}, **{f"{name}_{key}": sizes for key, sizes in (presets or {}).items()}}
        named = _NamedModel(name, own, names)
        for method in ENCODERS.values():
            _refuse_clashes(f"--arch {name}", own, f"the encoder '{method.name}'", method.options)
        _MODELS.append(named)
        register_presets(named.config(), **names)(model)
        return model

    return register


def extend_named_models() -> None:
    """Give all registered models the options of an encoder that was registered after them."""
    for model in _MODELS:
        replace_config(model.config(), **model.presets)


def check_options(name: str, options: Iterable[EncoderOption]) -> None:
    """Check that the options of a new encoder do not contradict those that exist.

    Args:
        name: the new encoder.
        options: its own options.

    Raises:
        UserError: an option has no default; or fairseq, another encoder, or a model that takes encoders
            by name has an option of the same name with another type or default.
    """
    mine = f"the encoder '{name}'"
    for option in options:
        # dataclasses would name an option that has a default: that of fairseq before it.
        if option.field.default is MISSING:
            raise UserError(
                f"{mine} has an option {option.name} without a default value: give one as "
                'field(default=…, metadata={"help": …}); of several values, as one text'
            )
    fairseqs = [EncoderOption(each.name, each.type, each) for each in fields(FlatTransformerConfig)]
    _refuse_clashes(mine, options, "fairseq's Transformer", fairseqs)
    for method in ENCODERS.values():
        _refuse_clashes(mine, options, f"the encoder '{method.name}'", method.options)
    for model in _MODELS:
        _refuse_clashes(mine, options, f"--arch {model.name}", model.own)


def named_method(name: str) -> EncoderMethod:
    """Return the registered encoder of a name.

    Raises:
        UserError: no encoder has this name.
    """
    if name not in ENCODERS:
        raise UserError(f"--encoder {name}: expected one of {', '.join(sorted(ENCODERS))}")
    return ENCODERS[name]


def build_named_encoder(
    cfg: Any, task: Any, dictionary: Any, embed_tokens: nn.Embedding | None = None
) -> Any:
    """Build the encoder that ``--encoder`` names, and ask the task for the parses that it needs.

    Args:
        cfg: the model's options, flat or nested by :func:`~fairseq_phrase.models.config.nested_config`.
        task: fairseq's task.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings; None makes new ones of ``--encoder-embed-dim``.

    Returns:
        The encoder. It is called as ``encoder(src_tokens, src_lengths=…, return_all_hiddens=…,
        **parse)``, where ``parse`` is the rest of a batch's ``net_input``. It returns fairseq's
        dictionary: ``encoder_out[0]`` (shape ``(nodes, batch, width)``, time-first; the first nodes are
        the tokens), ``encoder_padding_mask[0]`` (shape ``(batch, nodes)``), and so on.

    Raises:
        UserError: no encoder has this name, its options contradict one another, or the task or its data
            lack the parses.
    """
    cfg = nested_config(cfg)
    method = named_method(cfg.encoder_name)
    require_parses(method, cfg, task)
    if embed_tokens is None:
        embed_tokens = TransformerModelBase.build_embedding(
            cfg, dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path
        )
    return method.encoder(cfg, dictionary, embed_tokens)


def _refuse_clashes(
    who: str, options: Iterable[EncoderOption], other: str, others: Iterable[EncoderOption]
) -> None:
    known = {option.name: option for option in others}
    for option in options:
        there = known.get(option.name)
        if there is not None and (_choices(option.kind), option.field.default) != (
            _choices(there.kind),
            there.field.default,
        ):
            flag = "--" + option.name.replace("_", "-")
            raise UserError(
                f"{who} and {other} both have {flag}, with the types and defaults "
                f"{_described(option)} and {_described(there)}: models that take any encoder by "
                "--encoder have the options of all, so rename one, or make both alike"
            )


def _choices(kind: Any) -> Any:
    """Return what tells types apart: two enumerations with the same values are alike."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [str(choice.value) for choice in kind]
    return kind


def _described(option: EncoderOption) -> str:
    kind = _choices(option.kind)
    name = "/".join(kind) if isinstance(kind, list) else getattr(kind, "__name__", str(kind))
    return f"({name}, {option.field.default!r})"
