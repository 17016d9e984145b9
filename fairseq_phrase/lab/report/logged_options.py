"""Options in the logs of trainings, of which some are of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields

from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY

from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.options import REMOVED_OPTIONS
from fairseq_phrase.methods.encoder_method import ENCODERS
from fairseq_phrase.repairs.late_imports import same_logging


def comparable_options(logged: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Make the options of several trainings comparable.

    An option that the version of a training did not have gets the value that models had before it, or
    have since it was removed.
    Options of encoders that a model does not have are left out.

    Args:
        logged: the options of each training, as fairseq logs them.
    """
    with same_logging():
        register_all()
    names = {name for options in logged for name in options}
    removed = {name: str(constant) for name, constant in REMOVED_OPTIONS.items()}
    before = {
        name: value for name, value in {**removed, **_values_before()}.items() if name in names
    }
    return [
        {
            name: value.strip("'")  # fairseq logs some words with quotation marks
            for name, value in sorted({**before, **options}.items())
            if name not in _options_of_others(options)
        }
        for options in logged
    ]


def _values_before() -> dict[str, str]:
    """Return the values that models had before an option, by option, as fairseq logs them.

    They are the defaults, unless the option states another value. An option with several has none.
    """
    registries = [MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY]
    registries += [registry["dataclass_registry"] for registry in REGISTRIES.values()]
    values: dict[str, set[str]] = {}
    for dataclass in (kind for registry in registries for kind in registry.values()):
        for option in fields(dataclass):
            default = option.metadata.get("before", option.default)
            values.setdefault(option.name, set()).add(repr(default))
    missing = repr(MISSING)
    return {
        name: text
        for name, (text, *further_values) in values.items()
        if not further_values and text != missing
    }


def _options_of_others(options: Mapping[str, str]) -> set[str]:
    """Return the options of the encoders that ``--encoder`` does not name."""
    method = ENCODERS.get(options.get("encoder", "").strip("'"))
    if method is None:
        return set()
    names = {option.name for encoder in ENCODERS.values() for option in encoder.options}
    return names - {option.name for option in method.options}
