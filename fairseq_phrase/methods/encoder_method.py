"""Registration of encoders: descriptions, without imports of code that uses them.

    @register_encoder("my_encoder", options=MyOptions, parse_fields=["words", "heads"])
    class MyEncoder(SyntaxEncoder): ...

:mod:`fairseq_phrase.models.architectures` makes fairseq's architectures from the descriptions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from fairseq.models.transformer import TransformerEncoderBase

Encoder = TypeVar("Encoder", bound=type)
OptionsClass = TypeVar("OptionsClass", bound=type)


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Define an option, in a dataclass of options.

    Args:
        help: its description, for ``--help``.
        **metadata: other properties, such as ``identity="free"`` for an option that does not affect a
            trained model (:func:`fairseq_phrase.checkpoints.options.option_entries`); ``needs``, the
            names of options, of which one must be on, else this option has no effect and is reported;
            ``before``, the value of models from before the option existed, if this is not its default; or
            ``of_plain``, if it is a switch that also changes an encoder that ``is_plain``.
    """
    return field(default=default, metadata={"help": help, **metadata})


def declare(**metadata: Any) -> Callable[[OptionsClass], OptionsClass]:
    """Return a class decorator that adds metadata to a dataclass' own options.

    Args:
        **metadata: ``identity`` and ``part``, see
            :func:`fairseq_phrase.checkpoints.options.option_entries`.
    """

    def declared(options: OptionsClass) -> OptionsClass:
        for name in inspect.get_annotations(options):
            option = options.__dataclass_fields__[name]  # type: ignore[attr-defined]
            option.metadata = {**metadata, **option.metadata}
        return options

    return declared


def options_of(options: type | None) -> list[Field[Any]]:
    """List the options of a dataclass; for None, the list is empty.

    fairseq reads their types. With postponed annotations these are strings, so they are resolved here.
    """
    if options is None:
        return []
    types = get_type_hints(options)
    for option in fields(options):
        option.type = types[option.name]
    return list(fields(options))


@dataclass
class NeutralOptions:
    """The option of encoders that can start as fairseq's Transformer."""

    neutral_start: bool = option(
        False,
        "start as fairseq's Transformer: what the encoder adds has a learned factor that starts at 0, or "
        "embeddings that do. It can then begin from a trained Transformer (--finetune-from-model, "
        "--restore-file, --pretrained-model)",
    )


@dataclass
class AttentionOptions:
    """Options of the self-attention of every :class:`SyntaxEncoder`."""

    # fmt: off
    attention_gate: bool = option(False, of_plain=True, help=
        "multiply the heads' outputs of the encoder's self-attention by sigmoid(X W_g), where X is the "
        "attention's input (Qiu et al. 2025)")
    attention_start_scale: float = option(1.0, identity="free", help=
        "multiply the initial values of the output projections of the encoder's self-attention by this "
        "number, so that the attention block starts small")
    # fmt: on


def size(width: int, ffn: int, heads: int, layers: int = 6, **options: Any) -> dict[str, Any]:
    """Return the options for sizes that encoder and decoder share, also the number of layers."""
    sizes = {"embed_dim": width, "ffn_embed_dim": ffn, "attention_heads": heads, "layers": layers}
    of_sides = {
        f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sizes.items()
    }
    return of_sides | options


#: Sizes and regularization, with the names of fairseq's ``transformer_*`` architectures.
PRESETS: dict[str, dict[str, Any]] = {
    "": {},
    "tiny": size(128, 256, 4, 3),
    "iwslt_de_en": size(512, 1024, 4),
    "wmt_en_de": {},
    "wmt_en_de_big": size(1024, 4096, 16, dropout=0.3),
}


@dataclass(frozen=True)
class EncoderMethod:
    """A registered encoder; see :func:`register_encoder` for the attributes."""

    name: str
    encoder: type
    options: Sequence[Field[Any]]
    check: Callable[[Any], None]
    parse_fields: Callable[[Any], Sequence[str]]
    decoder: type | None
    presets: Mapping[str, Mapping[str, Any]]
    variants: Mapping[str, Mapping[str, Any]]
    translation: bool

    def flags(self, variant: str) -> list[str]:
        """Write a variant as flags of fairseq-train, for translation."""
        return ["--arch", self.name, *self.option_flags(variant)]

    def option_flags(self, variant: str) -> list[str]:
        """Write the options of a variant as flags of fairseq-train."""
        flags = []
        for option, value in self.variants[variant].items():
            flags.append("--" + option.replace("_", "-"))
            # A switch is on if its flag is given.
            flags += [] if value is True else [str(value)]
        return flags


#: All registered encoders, by name.
ENCODERS: dict[str, EncoderMethod] = {}
#: By name, the errors of encoders of installed packages that could not be registered.
BROKEN: dict[str, str] = {}

#: Functions called after each registration, once the architectures are built.
LATE: list[Callable[[], None]] = []


def register_encoder(
    name: str,
    *,
    options: type | None = None,
    check: Callable[[Any], None] = lambda cfg: None,
    parse_fields: Sequence[str] | Callable[[Any], Sequence[str]] = (),
    decoder: type | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    translation: bool = True,
) -> Callable[[Encoder], Encoder]:
    """Return a class decorator that registers an encoder.

    An encoder is a :class:`~fairseq_phrase.methods.syntax_encoder.SyntaxEncoder`, or any module with the
    same constructor and call, see :func:`~fairseq_phrase.models.named_encoder.build_named_encoder`.

    Args:
        name: ``--encoder NAME``, and ``--arch NAME`` of translation.
        options: a dataclass of the method's own options, each with a default and a ``help`` in its
            metadata; None without options. Encoders that share an option give it one type and default.
        check: raises :class:`~fairseq_phrase.errors.UserError` if the options contradict each other.
        parse_fields: the parse fields that the encoder needs (names in
            :data:`fairseq_phrase.syntax.fields.FIELDS`), or a function of the options that returns them.
        decoder: the translation model's decoder; fairseq's by default.
        presets: additional architectures ``NAME_PRESET``: by preset, the defaults that differ. They
            extend :data:`PRESETS`, which every encoder has.
        variants: settings to compare, by title: the options that differ from the defaults. The first is
            the method as in its paper. Benchmarks and the tests of all encoders run them. By default,
            there is one with the defaults.
        translation: whether the encoder has translation architectures. False for an encoder that is only
            chosen by ``--encoder``.

    Raises:
        ValueError: an encoder of this name is registered already.

    Example:
        ``examples/encoder_plugin`` in this project's repository contains a complete encoder.
    """

    def register(encoder: Encoder) -> Encoder:
        if name in ENCODERS:
            raise ValueError(f"an encoder '{name}' is registered already: {ENCODERS[name].encoder}")
        shared = options_of(getattr(encoder, "shared_options", None))
        ENCODERS[name] = EncoderMethod(
            name=name, encoder=encoder, options=[*options_of(options), *shared],
            check=check,
            parse_fields=parse_fields if callable(parse_fields) else lambda cfg: parse_fields,
            decoder=decoder, presets=presets or {}, variants=variants or {name.replace("_", " "): {}},
            translation=translation,
        )  # fmt: skip
        for build in LATE:
            build()
        return encoder

    return register


def translation_encoders() -> dict[str, EncoderMethod]:
    """Return the encoders that have translation architectures, by name."""
    return {name: method for name, method in ENCODERS.items() if method.translation}


def neutral_obstacle(encoder: Any, cfg: Any) -> str | None:
    """Call :meth:`SyntaxEncoder.neutral_obstacle` of any encoder or its class."""
    if getattr(cfg, "attention_gate", False):
        return "leave out --attention-gate, which has no neutral start"
    if find := getattr(encoder, "neutral_obstacle", None):
        obstacle: str | None = find(cfg)
        return obstacle
    return None if isinstance(encoder, TransformerEncoderBase) else "it has no neutral start"
