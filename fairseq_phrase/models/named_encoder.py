"""Models with an encoder chosen by name: the shared part of all models except translation.

    --arch labeller --encoder tree_transformer --no-subtree-masking --encoder-layers 2

Such a model has fairseq's flat options (:data:`~fairseq_phrase.methods.config.FlatTransformerConfig`),
``--encoder NAME``, the options of all registered encoders, and its own options. So two encoders may share
an option only if it has the same type and default in both, as the options of positions (from one
base dataclass). An encoder's name is a good prefix for its own options.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from fairseq.models import BaseFairseqModel
from fairseq.models.transformer import TransformerModelBase
from torch import nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.config import nested_config
from fairseq_phrase.methods.encoder_method import (
    BROKEN,
    ENCODERS,
    LATE,
    EncoderMethod,
    option,
    options_of,
)
from fairseq_phrase.models.syntax_task import SyntaxTask, require_parses

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)
#: Options of other encoders that an encoder had once: a checkpoint that records one is of another model.
LOST_OPTIONS = {
    "phrase_transformer": {
        "no_sequential_absolute", "sequential_relative", "structural_absolute", "structural_relative",
    },
}  # fmt: skip
Model = TypeVar("Model", bound="type[NamedEncoderModel]")


@dataclass
class EncoderChoice:
    """The option that chooses the encoder."""

    encoder: str = option(
        "transformer",
        "the encoder: any registered one (transformer, phrase_transformer, tree_transformer, …, "
        "or one of an installed package), with its own options",
    )


class NamedEncoderModel(BaseFairseqModel):
    """The base of models that :func:`register_named_model` registers."""


@dataclass(frozen=True)
class NamedModel:
    """A model that takes any encoder; see :func:`register_named_model` for the attributes."""

    name: str
    model: type[NamedEncoderModel]
    options: Sequence[Field[Any]]
    presets: Mapping[str, Mapping[str, Any]]


#: All registered models that take any encoder, by name.
NAMED_MODELS: dict[str, NamedModel] = {}


def register_named_model(
    name: str,
    *,
    options: type | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Model], Model]:
    """Return a class decorator that registers a :class:`NamedEncoderModel`.

    Args:
        name: ``--arch NAME``.
        options: a dataclass of the model's own options, each with a default and a ``help`` in its
            metadata; None without options.
        presets: additional architectures ``NAME_PRESET``: by preset, the defaults that differ.
    """

    def register(model: Model) -> Model:
        model_options = [*options_of(EncoderChoice), *options_of(options)]
        NAMED_MODELS[name] = NamedModel(name, model, model_options, presets or {})
        for build in LATE:
            build()
        return model

    return register


def named_method(name: str) -> EncoderMethod:
    """Return the registered encoder of a name.

    Raises:
        UserError: an encoder of this name does not exist, or its registration failed.
    """
    if name in BROKEN:
        raise UserError(f"--encoder {name}: {BROKEN[name]}")
    if name not in ENCODERS:
        raise UserError(f"--encoder {name}: expected one of {', '.join(sorted(ENCODERS))}")
    return ENCODERS[name]


def report_other_encoders(cfg: Any, encoder: str) -> None:
    """Log the options that are changed but have no effect, because only other encoders have them.

    Args:
        encoder: the name of the encoder, also of one that is not registered.

    Raises:
        UserError: the encoder had such an option once.
    """
    of_encoder = (
        {option.name for option in ENCODERS[encoder].options} if encoder in ENCODERS else ()
    )
    changed = {
        f"--{option.name.replace('_', '-')}"
        for method in ENCODERS.values()
        for option in method.options
        if option.name not in of_encoder
        and vars(cfg).get(option.name, option.default) != option.default
    }
    if lost := changed & {f"--{name.replace('_', '-')}" for name in LOST_OPTIONS.get(encoder, ())}:
        raise UserError(f"--encoder {encoder} lost {', '.join(sorted(lost))}: leave it out")
    if changed:
        logger.warning(
            "--encoder %s does not have these options, so they have no effect: %s",
            *(encoder, ", ".join(sorted(changed))),
        )


def build_named_encoder(
    cfg: Any, task: SyntaxTask, dictionary: Dictionary, embed_tokens: nn.Embedding | None = None
) -> Any:
    """Build the encoder that ``--encoder`` names, and ask the task for the parses that it needs.

    Args:
        cfg: the model's options, flat or nested by :func:`~fairseq_phrase.methods.config.nested_config`.
        dictionary: the source dictionary.
        embed_tokens: the source embeddings; None makes new ones of ``--encoder-embed-dim``.

    Returns:
        The encoder. It is called as ``encoder(src_tokens, src_lengths=…, return_all_hiddens=…,
        **parse)``, where ``parse`` is the rest of a batch's ``net_input``. It returns fairseq's
        dictionary: ``encoder_out[0]`` (shape (nodes, batch, width), time-first; the first nodes are
        the tokens), ``encoder_padding_mask[0]`` (shape (batch, nodes)), and so on.

    Raises:
        UserError: an encoder of this name does not exist, or the options cannot be used with it.
    """
    cfg = nested_config(cfg)
    method = named_method(cfg.encoder_name)
    if cfg.encoder.layers_to_keep:
        raise UserError(
            f"--encoder-layers-to-keep {cfg.encoder.layers_to_keep} prunes only translation models: "
            "leave it out"
        )
    report_other_encoders(cfg, method.name)
    require_parses(method, cfg, task)
    if embed_tokens is None:
        embed_tokens = TransformerModelBase.build_embedding(
            cfg, dictionary, cfg.encoder.embed_dim, cfg.encoder.embed_path
        )
    return method.encoder(cfg, dictionary, embed_tokens)
