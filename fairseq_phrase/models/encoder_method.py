"""The description of a registered encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class EncoderMethod:
    """A registered encoder.

    Attributes:
        name: its architecture, ``phrase_transformer``.
        encoder: the encoder's class.
        config: fairseq's options and the method's own options, flat.
        parse_fields: a function of the nested options that returns the parse fields that the encoder
            needs; it raises :class:`UserError` if the options contradict each other.
        decoder: the translation model's decoder; None for fairseq's.
        rows: settings to compare, by title: the options that differ from the defaults. The first is the
            method as in its paper. The benchmarks and the tests of all encoders run them.
        presets: by architecture, the defaults that differ from ``config``'s.
    """

    name: str
    encoder: type
    config: type
    parse_fields: Callable[[Any], Sequence[str]]
    decoder: type | None
    rows: Mapping[str, Mapping[str, Any]]
    presets: Mapping[str, Mapping[str, Any]]

    def flags(self, row: str) -> list[str]:
        """Write a row as flags of fairseq-train."""
        flags = ["--arch", self.name]
        for option, value in self.rows[row].items():
            flags.append("--" + option.replace("_", "-"))
            # A switch is on if its flag is given.
            flags += [] if value is True else [str(value)]
        return flags


#: All registered encoders, by name.
ENCODERS: dict[str, EncoderMethod] = {}
