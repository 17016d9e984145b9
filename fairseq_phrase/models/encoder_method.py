"""What is known of a registered encoder."""

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
        config: fairseq's options with the method's own, flat.
        parse_fields: names the parse fields that the encoder needs, given the nested options; raises
            :class:`UserError` where the options make no sense.
        decoder: the translation model's decoder; None for fairseq's.
        rows: settings worth comparing, by title: options that differ from the defaults. The first is
            the method as its paper has it. Benchmarks and the tests of all encoders run them.
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
            # A switch is on where it is named.
            flags += [] if value is True else [str(value)]
        return flags


#: All registered encoders, by name.
ENCODERS: dict[str, EncoderMethod] = {}
