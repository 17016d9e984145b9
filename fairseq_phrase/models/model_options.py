"""Options that change what a model computes but not the shapes of its parameters.

fairseq loads a checkpoint if the names and shapes of its parameters fit. A model with another phrase
length or another mask fits, too. So this module compares the options of models when a training is resumed
and when checkpoints are averaged.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

from fairseq_phrase.compat import load_checkpoint
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.config import FlatTransformerConfig
from fairseq_phrase.models.kept_fingerprints import SIDES, kept_dictionary, kept_labels
from fairseq_phrase.store.fields import FIELDS

# fairseq's own options that do not change the shape of any parameter.
_WITHOUT_PARAMETERS = (
    "activation_fn",
    "encoder_attention_heads",
    "decoder_attention_heads",
    "encoder_normalize_before",
    "decoder_normalize_before",
    "no_scale_embedding",
    "no_token_positional_embeddings",
)
# What a new model starts from. A resumed training and an average do not need it.
_START = ("pretrained", "pretrained_decoder_embeddings")


def model_options(cfg: Any) -> dict[str, str]:
    """Return, by name, the options of a model that do not change the shapes of its parameters.

    Args:
        cfg: a checkpoint's configuration of its model, or that of a training.

    Returns:
        The options of this package's models, with their defaults where the configuration lacks them, and
        some of fairseq's options; without ``--pretrained``, which sets what parameters start from; empty
        for a configuration of another kind.
    """
    given = OmegaConf.to_container(cfg, enum_to_str=True) if OmegaConf.is_config(cfg) else cfg
    if not isinstance(given, Mapping):
        given = vars(given) if hasattr(given, "__dict__") else {}
    options = {name: str(given[name]) for name in _WITHOUT_PARAMETERS if name in given}
    dataclass = MODEL_DATACLASS_REGISTRY.get(given.get("_name") or given.get("arch"))
    if dataclass is None:
        return options
    shared = {option.name for option in fields(FlatTransformerConfig)}
    for option in fields(dataclass):
        if option.name not in shared and option.name not in _START:
            default = None if option.default is MISSING else option.default
            options[option.name] = str(given.get(option.name, default))
    return options


def differences(first: Any, second: Any) -> list[str]:
    """Describe the options in which two models differ.

    Args:
        first: a model's configuration.
        second: another's.

    Returns:
        For each option that both have and that differs, a text like ``--phrase-max-length 2 and 3``;
        also the dictionaries and the label dictionaries whose numbers differ.
    """
    one, other = model_options(first), model_options(second)
    labels, others = kept_labels(first), kept_labels(second)
    renumbered = [name for name in labels if labels[name] != others.get(name, labels[name])]
    dictionaries = {
        side: {kept_dictionary(first, side), kept_dictionary(second, side)} - {None}
        for side in SIDES
    }
    return [
        *(
            f"the entries of the {side} dictionary are numbered differently"
            for side, kept in dictionaries.items()
            if len(kept) > 1
        ),
        *(
            f"{FIELDS[name].label_meaning} are numbered differently in {FIELDS[name].label_file}"
            for name in renumbered
        ),
        *(
            f"--{name.replace('_', '-')} {one[name]} and {other[name]}"
            for name in one
            if one[name] != other.get(name, one[name])
        ),
    ]


def saved_options(state: dict[str, Any]) -> Any:
    """Return the configuration of a checkpoint's model; an empty one if it has none."""
    return (state.get("cfg") or {}).get("model") or {}


def refuse_changed_options() -> None:
    """Make fairseq's trainer reject a checkpoint to resume from if the model's options have changed.

    If the optimizer is reset (``--reset-optimizer``, ``--finetune-from-model``), a new training begins,
    and it may have other options.
    """
    original = Trainer.load_checkpoint
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def load(self: Trainer, filename: str, reset_optimizer: bool = False, *args: Any, **kw: Any):
        if not reset_optimizer and Path(filename).is_file():
            saved = saved_options(load_checkpoint(Path(filename)))
            if hasattr(self.task, "check_dictionaries"):
                try:
                    self.task.check_dictionaries(saved)
                except UserError as error:
                    raise UserError(f"{filename} cannot be resumed from: {error}") from None
            changed = differences(saved, self.cfg.model)
            if changed:
                raise UserError(
                    f"{filename} was trained with other options of the model: {', '.join(changed)} (the "
                    "checkpoint's and this command's). Resume with the checkpoint's options, or train "
                    "anew with another --save-dir; --reset-optimizer starts a new training from these "
                    "parameters"
                )
        return original(self, filename, reset_optimizer, *args, **kw)

    Trainer.load_checkpoint = load
