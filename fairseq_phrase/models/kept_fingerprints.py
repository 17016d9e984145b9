"""What a model's numbers mean, kept in its checkpoint: fingerprints of labels and dictionaries.

They are attributes of the model's configuration, which fairseq saves with its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from fairseq.data import Dictionary
from omegaconf import OmegaConf, open_dict

from fairseq_phrase.store.labels import labels_fingerprint

_LABELS = "label_fingerprints"

#: The sides whose dictionaries a checkpoint keeps, with the option that reuses a dictionary.
SIDES = {"source": "--srcdict", "target": "--tgtdict"}

#: The last entry of a dictionary of pre-training.
MASK = "<mask>"


def kept_labels(cfg: Any) -> dict[str, str]:
    """Return the fingerprints of the labels that a model was trained with, by field.

    Args:
        cfg: the model's configuration.
    """
    return dict(_kept(cfg, _LABELS) or {})


def keep_labels(cfg: Any, fingerprints: Mapping[str, str]) -> None:
    """Write the fingerprints of a model's labels into its configuration."""
    _keep(cfg, _LABELS, dict(fingerprints))


def kept_dictionary(cfg: Any, side: str = "source") -> str | None:
    """Return the fingerprint of a dictionary that a model was trained with.

    Args:
        cfg: the model's configuration.
        side: one of :data:`SIDES`; the target of a labeller is its labels.

    Returns:
        None for a checkpoint of an earlier version.
    """
    return _kept(cfg, f"{side}_dictionary_fingerprint")


def keep_dictionary(cfg: Any, dictionary: Dictionary, side: str = "source") -> None:
    """Write the fingerprint of one of a model's dictionaries into its configuration."""
    _keep(cfg, f"{side}_dictionary_fingerprint", dictionary_fingerprint(dictionary))


def dictionary_fingerprint(dictionary: Dictionary) -> str:
    """Return the fingerprint of a dictionary's entries, in order and without a ``<mask>`` at the end."""
    symbols = dictionary.symbols
    return labels_fingerprint(symbols[:-1] if symbols[-1] == MASK else symbols)


def _kept(cfg: Any, name: str) -> Any:
    return cfg.get(name) if isinstance(cfg, dict) else getattr(cfg, name, None)


def _keep(cfg: Any, name: str, value: Any) -> None:
    with open_dict(cfg) if OmegaConf.is_config(cfg) else nullcontext():
        setattr(cfg, name, value)
