"""An encoder that starts from another training's encoder: ``--pretrained PATH``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from fairseq.utils import split_paths
from torch import nn

from fairseq_phrase.batch.label_dictionaries import kept_labels
from fairseq_phrase.compat import load_checkpoint
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.model_options import saved_options
from fairseq_phrase.store.dictionaries import load_dictionary

logger = logging.getLogger(__name__)
_PREFIX = "encoder."
_NAMED = 6


def load_pretrained(encoder: nn.Module, path: Path, task: Any) -> None:
    """Load the parameters of a checkpoint's encoder, as far as the encoder has them.

    What was loaded, and what was not, is logged.

    Args:
        encoder: the new model's encoder.
        path: a checkpoint of translation, labelling or pre-training.
        task: the new model's task, whose source dictionary and labels must be those of the checkpoint.

    Raises:
        UserError: the checkpoint is missing or has no encoder; or its sizes, its source dictionary or the
            labels of its parses differ.
    """
    state = load_checkpoint(path)
    _check_dictionary(state, path, task)
    if hasattr(task, "check_labels"):
        try:
            task.check_labels(kept_labels(saved_options(state)))
        except UserError as error:
            raise UserError(f"--pretrained {path}: {error}") from None
    saved = {
        name.removeprefix(_PREFIX): value
        for name, value in state["model"].items()
        if name.startswith(_PREFIX)
    }
    own = encoder.state_dict()
    shared = saved.keys() & own.keys()
    if not shared:
        raise UserError(
            f"--pretrained {path} has no parameter of this encoder "
            f"({type(encoder).__name__}): name a checkpoint with an encoder of the same kind"
        )
    for name in sorted(shared):
        if saved[name].shape != own[name].shape:
            raise UserError(
                f"--pretrained {path}: encoder.{name} has the shape {tuple(saved[name].shape)}, and here "
                f"{tuple(own[name].shape)}: give the sizes of that training (--encoder-embed-dim, "
                "--encoder-ffn-embed-dim, …), and make the data with its dictionary (--srcdict)"
            )
    encoder.load_state_dict({name: saved[name] for name in shared}, strict=False)
    logger.info("--pretrained %s: loaded %d tensors of the encoder", path, len(shared))
    for names, where in (
        (own.keys() - shared, "are new, because the checkpoint does not have them"),
        (saved.keys() - shared, "of the checkpoint are not used, because this encoder lacks them"),
    ):
        if names:
            logger.warning(
                "--pretrained %s: %d tensors %s: %s", path, len(names), where, _some(names)
            )


def _some(names: Any) -> str:
    first = sorted(names)[:_NAMED]
    return ", ".join(first) + (", …" if len(names) > _NAMED else "")


def _check_dictionary(state: dict[str, Any], path: Path, task: Any) -> None:
    """Compare the source dictionaries, if the checkpoint's data directory is there.

    Raises:
        UserError: they differ.
    """
    cfg = (state.get("cfg") or {}).get("task") or {}
    cfg = cfg if hasattr(cfg, "get") else vars(cfg)
    data, language = cfg.get("data"), cfg.get("source_lang")
    file = Path(split_paths(str(data))[0]) / f"dict.{language}.txt"
    if not data or not file.is_file():
        logger.warning(
            "--pretrained %s: the dictionary of its training (%s) is not there, so it cannot be compared "
            "with this one: subwords must have the same numbers",
            path,
            file,
        )
        return
    theirs, own = load_dictionary(file).symbols, task.source_dictionary.symbols
    if theirs == own:
        return
    place = next(
        (i for i, pair in enumerate(zip(theirs, own, strict=False)) if pair[0] != pair[1]),
        min(len(theirs), len(own)),
    )
    raise UserError(
        f"--pretrained {path} was trained with the dictionary {file}, which differs from this one from "
        f"entry {place} on ({len(theirs)} and {len(own)} entries): make the data with --srcdict {file} "
        "and the subword model beside it"
    )
