"""The encoder and the decoder of any model: labellers lack a decoder, and language models an encoder."""

from __future__ import annotations

from typing import Any


def encoder_of(model: Any) -> Any:
    """Return the encoder of a model; None if it has none."""
    return getattr(model, "encoder", None)


def decoder_of(model: Any) -> Any:
    """Return the decoder of a model; None if it has none."""
    return getattr(model, "decoder", None)
