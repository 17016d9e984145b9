"""The description of a registered encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any, NamedTuple, get_type_hints


class EncoderOption(NamedTuple):
    """An option of an encoder.

    Attributes:
        name: with underscores, ``phrase_max_length``.
        kind: its type.
        field: its default and help.
    """

    name: str
    kind: Any
    field: Field


def options_of(options: type | None) -> list[EncoderOption]:
    """List the options of a dataclass.

    fairseq reads their types. With postponed annotations these are strings, so they are resolved here.

    Args:
        options: the dataclass; None if there are no options.
    """
    if options is None:
        return []
    types = get_type_hints(options)
    return [EncoderOption(each.name, types[each.name], each) for each in fields(options)]


@dataclass(frozen=True)
class EncoderMethod:
    """A registered encoder.

    Attributes:
        name: ``--encoder NAME``, and ``--arch NAME`` of translation: ``phrase_transformer``.
        encoder: the encoder's class.
        options: the method's own options.
        config: fairseq's options and the method's own options, flat.
        parse_fields: a function of the nested options that returns the parse fields that the encoder
            needs; it raises :class:`UserError` if the options contradict each other.
        decoder: the translation model's own decoder, or None.
        rows: settings to compare, by title: the options that differ from the defaults. The first is the
            method as in its paper. The benchmarks and the tests of all encoders run them.
        presets: by architecture, the defaults that differ from ``config``'s.
        translation: whether the translation architectures exist.
    """

    name: str
    encoder: type
    options: Sequence[EncoderOption]
    config: type
    parse_fields: Callable[[Any], Sequence[str]]
    decoder: type | None
    rows: Mapping[str, Mapping[str, Any]]
    presets: Mapping[str, Mapping[str, Any]]
    translation: bool = True

    def flags(self, row: str) -> list[str]:
        """Write a row as flags of fairseq-train, for translation."""
        return ["--arch", self.name, *self.option_flags(row)]

    def option_flags(self, row: str) -> list[str]:
        """Write the options of a row as flags of fairseq-train."""
        flags = []
        for option, value in self.rows[row].items():
            flags.append("--" + option.replace("_", "-"))
            # A switch is on if its flag is given.
            flags += [] if value is True else [str(value)]
        return flags


#: All registered encoders, by name.
ENCODERS: dict[str, EncoderMethod] = {}


def translation_encoders() -> dict[str, EncoderMethod]:
    """Return the encoders that have translation architectures, by name."""
    return {name: method for name, method in ENCODERS.items() if method.translation}
