"""An encoder that starts from another training's encoder: ``--pretrained PATH``.

The checkpoint is one of translation, labelling or pre-training.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor, nn

from fairseq_phrase.compat import load_checkpoint
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import option
from fairseq_phrase.models.identity import check_sizes, identity_of, plain
from fairseq_phrase.store.identity import free_options

logger = logging.getLogger(__name__)
_PREFIX = "encoder."
_NAMED = 6


@free_options
@dataclass
class PretrainedOptions:
    """Options of models whose encoder may start from a checkpoint."""

    pretrained: Optional[str] = option(  # noqa: UP045 - fairseq reads this type
        None, "start from the encoder of this checkpoint (translation, labelling, pre-training)"
    )
    freeze_encoder: bool = option(
        False,
        "train all but the encoder, which is used without dropout; embeddings that the decoder "
        "shares with it are not trained, either",
    )


@free_options
@dataclass
class PretrainedTranslationOptions(PretrainedOptions):
    """The same for a model with a decoder."""

    pretrained_decoder_embeddings: bool = option(
        False,
        "the decoder's embeddings start from the checkpoint's, too; for one dictionary of both "
        "languages (with --share-all-embeddings they do so anyway)",
    )


class PretrainedModel(nn.Module):
    """A model that may start from a checkpoint; the task calls :meth:`load_pretrained`.

    Attributes:
        pretrained: the checkpoint that the encoder starts from; None for none.
        frozen: whether the encoder is not trained.
        decoder_too: whether the decoder's embeddings start from it, too.
    """

    encoder: Any
    decoder: Any
    pretrained: str | None = None
    frozen: bool = False
    decoder_too: bool = False

    def use_pretrained(self, cfg: Any, task: Any) -> None:
        """Take note of the options, when the model is built.

        Raises:
            UserError: the task does not load checkpoints, or an option has no effect.
        """
        self.pretrained, self.frozen = cfg.pretrained, cfg.freeze_encoder
        self.decoder_too = getattr(cfg, "pretrained_decoder_embeddings", False)
        if self.decoder_too and not self.pretrained:
            raise UserError(
                "--pretrained-decoder-embeddings: give the checkpoint with --pretrained"
            )
        if self.pretrained and not hasattr(task, "require_parses"):
            raise UserError("--pretrained: use --task syntax_translation or syntax_labelling")
        if self.frozen:
            self.encoder.requires_grad_(False)
            self.encoder.eval()

    def load_pretrained(self, task: Any) -> None:
        """Start from the checkpoint, if one is given; warn of an encoder that stays random.

        Raises:
            UserError: see :func:`load_pretrained`; or source and target have other dictionaries, and
                the decoder's embeddings should be loaded.
        """
        if not self.pretrained:
            if self.frozen:
                logger.warning(
                    "--freeze-encoder without --pretrained: the encoder keeps its random parameters, "
                    "unless they come from a checkpoint of this training or of --finetune-from-model"
                )
            return
        load_pretrained(self.encoder, Path(self.pretrained), task)
        if self.decoder_too:
            if task.source_dictionary != task.target_dictionary:
                raise UserError(
                    "--pretrained-decoder-embeddings: source and target have different dictionaries: "
                    "make the data with --joined-dictionary"
                )
            with torch.no_grad():
                self.decoder.embed_tokens.weight.copy_(self.encoder.embed_tokens.weight)
            logger.info("--pretrained %s: loaded the decoder's embeddings", self.pretrained)

    def train(self, mode: bool = True) -> Any:
        """Switch dropout on or off; that of a frozen encoder stays off."""
        super().train(mode)
        if self.frozen:
            self.encoder.eval()
        return self


def load_pretrained(encoder: nn.Module, path: Path, task: Any) -> None:
    """Load the parameters of a checkpoint's encoder, as far as the encoder has them.

    What was loaded, and what was not, is logged.

    Args:
        encoder: the new model's encoder.
        path: a checkpoint of translation, labelling or pre-training.
        task: the new model's task, with which the identity record of the checkpoint is compared.

    Raises:
        UserError: the checkpoint is missing or has no encoder; or its sizes or its record differ.
    """
    if not path.is_file():
        raise UserError(
            f"--pretrained {path} is not there; a training is resumed without this option"
        )
    state = load_checkpoint(path)
    task.meet(identity_of(state, path), path, "pretrained")
    saved = {
        name.removeprefix(_PREFIX): value
        for name, value in state["model"].items()
        if name.startswith(_PREFIX)
    }
    own = encoder.state_dict()
    _leave_out_mask(state, saved, own)
    shared = saved.keys() & own.keys()
    if not shared:
        raise UserError(
            f"--pretrained {path} has no parameter of this encoder "
            f"({type(encoder).__name__}): name a checkpoint with an encoder of the same kind"
        )
    theirs, ours = ({_PREFIX + name: part[name] for name in part} for part in (saved, own))
    check_sizes(theirs, ours, f"--pretrained {path}")
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


def _leave_out_mask(
    state: dict[str, Any], saved: dict[str, Tensor], own: dict[str, Tensor]
) -> None:
    """Remove the embedding of ``<mask>``, the last one of a pre-trained encoder."""
    name = "embed_tokens.weight"
    is_pretraining = plain(plain(state.get("cfg")).get("task")).get("_name") == "syntax_pretraining"
    if is_pretraining and name in saved and name in own and len(saved[name]) == len(own[name]) + 1:
        saved[name] = saved[name][:-1]


def _some(names: Any) -> str:
    first = sorted(names)[:_NAMED]
    return ", ".join(first) + (", …" if len(names) > _NAMED else "")
