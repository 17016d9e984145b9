"""Encoders by name: one decorator makes a method available to every job.

An entry of :data:`ENCODERS` defines the translation architectures (``--arch NAME`` and its presets), the
name that labelling and pre-training take (``--encoder NAME``,
:mod:`fairseq_phrase.models.named_encoder`), the models that plots can load, the rows of the benchmarks,
and the tests that run for every encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, TypeVar

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import PRESETS, register_presets
from fairseq_phrase.models.copying import CopyOptions
from fairseq_phrase.models.encoder_method import ENCODERS, EncoderMethod, options_of
from fairseq_phrase.models.named_encoder import check_options, extend_named_models, flat_config
from fairseq_phrase.models.pretrained import PretrainedTranslationOptions
from fairseq_phrase.models.syntax_decoder import SyntaxDecoder
from fairseq_phrase.models.syntax_transformer import SyntaxTransformerModel

__all__ = ["ENCODERS", "GROUP", "EncoderMethod", "load_installed_encoders", "register_encoder"]

#: The group of entry points in which installed packages offer encoders.
GROUP = "fairseq_phrase.encoders"

Encoder = TypeVar("Encoder", bound=type)


def register_encoder(
    name: str,
    *,
    options: type | None = None,
    parse_fields: Sequence[str] | Callable[[Any], Sequence[str]] = (),
    decoder: type[SyntaxDecoder] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    rows: Mapping[str, Mapping[str, Any]] | None = None,
    translation: bool = True,
) -> Callable[[Encoder], Encoder]:
    """Register an encoder, and with it the translation architecture of this name and its presets.

    An encoder is a :class:`~fairseq_phrase.models.syntax_encoder.SyntaxEncoder`, or any module that is
    made and called as such, see :func:`~fairseq_phrase.models.named_encoder.build_named_encoder`.

    Args:
        name: ``--encoder NAME`` and ``--arch NAME``.
        options: a dataclass of the method's own options, each with a default and a ``help`` in its
            metadata; None if it has none.
        parse_fields: the parse fields that the encoder needs (names in
            :data:`fairseq_phrase.store.fields.FIELDS`), or a function of fairseq's nested options that
            returns them and raises :class:`UserError` if the options contradict each other.
        decoder: the translation model's decoder, if it is not :class:`SyntaxDecoder`.
        presets: additional architectures ``NAME_PRESET``: by preset, the defaults that differ. They are
            added to :data:`fairseq_phrase.models.config.PRESETS`, which every encoder has.
        rows: settings to compare, see :class:`EncoderMethod`; by default one row with the defaults.
        translation: also register the translation architectures. False for an encoder that is only
            chosen by ``--encoder``.

    Returns:
        A class decorator.

    Raises:
        ValueError: the name is taken.
        UserError: another encoder has an option of the same name with another type or default.

    Example:
        ``examples/encoder_plugin`` in this project's repository contains a complete encoder.
    """

    def register(encoder: Encoder) -> Encoder:
        if name in ENCODERS:
            raise ValueError(f"an encoder '{name}' is registered already: {ENCODERS[name].encoder}")
        own = options_of(options)
        check_options(name, own)
        of_translation = [*options_of(CopyOptions), *options_of(PretrainedTranslationOptions)]
        config = flat_config(f"{encoder.__name__}Config", [*own, *of_translation])
        names = {
            name + (f"_{preset}" if preset else ""): sizes
            for preset, sizes in {**PRESETS, **(presets or {})}.items()
        }
        method = EncoderMethod(
            name=name,
            encoder=encoder,
            options=own,
            config=config,
            parse_fields=parse_fields if callable(parse_fields) else lambda cfg: parse_fields,
            decoder=decoder,
            rows=rows or {name.replace("_", " "): {}},
            presets=names if translation else {},
            translation=translation,
        )
        ENCODERS[name] = method
        extend_named_models()
        if translation:
            model = type(
                encoder.__name__.removesuffix("Encoder") + "TransformerModel",
                (SyntaxTransformerModel,),
                {"__doc__": encoder.__doc__, "method": method},
            )
            register_presets(config, **names)(model)
        return encoder

    return register


def load_installed_encoders() -> None:
    """Import the encoders that other packages offer as entry points of :data:`GROUP`.

    Raises:
        UserError: an encoder cannot be imported.
    """
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            raise UserError(
                f"the encoder '{entry.name}' ({entry.value}) of an installed package cannot be "
                f"imported: {type(error).__name__}: {error}"
            ) from error
