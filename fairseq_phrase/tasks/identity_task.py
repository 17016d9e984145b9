"""Tasks that record the data and options of their models, and compare records at each use."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Optional
from uuid import uuid4

from fairseq import utils
from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from fairseq_phrase.checkpoints.identity import begin_neutrally, prune
from fairseq_phrase.checkpoints.options import check_name, model_entries, name_of, task_entries
from fairseq_phrase.checkpoints.pretrained import begin_from_checkpoint, scaled_step, take_options
from fairseq_phrase.data.store.identity import (
    OF_EACH_MODEL,
    Entry,
    Identity,
    Tolerance,
    check_identity,
    log_record,
)
from fairseq_phrase.data.store.manifest import data_identity
from fairseq_phrase.data.store.parts import check_parts
from fairseq_phrase.fairseq_types import Dictionary
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.model_parts import encoder_of
from fairseq_phrase.models.huggingface_encoder import take_configuration
from fairseq_phrase.models.source_factors import begin_with_factors
from fairseq_phrase.repairs.inference import truncate_as_trained
from fairseq_phrase.tasks.update import UpdateTask


@dataclass
class IdentityOptions(FairseqDataclass):
    """Options of the comparison of identity records."""

    allow_difference: Optional[str] = option(  # noqa: UP045 - fairseq reads this type
        None,
        "entries of the identity record that may differ between a checkpoint and its use, "
        "commas between them; fairseq-phrase-inspect CHECKPOINT prints the record",
    )
    strict_identity: bool = option(False, "also stop if the parser or the source of trees differs")


class IdentifiedTask(UpdateTask):
    """A task whose checkpoints hold the identity record of their model.

    A subclass sets ``_labels``, the labels of each parse field, before it builds a model.

    Attributes:
        identity: the record of the last built model.
    """

    #: Whether the task has :class:`~fairseq_phrase.checkpoints.pretrained.PretrainedOptions`.
    can_start: ClassVar[bool] = True
    _labels: Callable[[str], Dictionary]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.identity = Identity()
        self._labels_asked_for: set[str] = set()
        self._model_entries: dict[str, Entry] = {}
        self._encoder: Any = None
        number = uuid4().hex
        self._training = {"training": Entry(number, number[:8], "training")}
        self._pretrained: list[Tensor] = []
        self._loaded: list[Identity] = []

    def directory_of(self, split: str, epoch: int) -> str:
        """Return the data directory of a split; each epoch of training reads the next one."""
        directories: list[str] = utils.split_paths(self.cfg.data)
        return directories[(epoch - 1) % len(directories) if split == self.cfg.train_subset else 0]

    def label_dictionary(self, field: str) -> Dictionary:
        """Return the labels of a parse field, such as the entries of ``dict.constituent.txt``.

        A model that calls this while it is built depends on the labels' numbers. So its record includes
        the labels.
        """
        self._labels_asked_for.add(field)
        return self._labels(field)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model; a new one may start from another (``--pretrained``, ``--pretrained-model``)."""
        if not from_checkpoint:
            if self.can_start and self.cfg.pretrained_model and self.cfg.take_options:
                take_options(cfg, Path(self.cfg.pretrained_model))
            take_configuration(cfg)
        else:
            check_name("model", name_of(cfg), "the checkpoint")
        self._labels_asked_for = set()
        model = super().build_model(cfg, from_checkpoint)
        trained = self._loaded[-1] if from_checkpoint and self._loaded else None
        self._model_entries = model_entries(cfg)
        self.extend(model, trained)
        self._encoder = encoder_of(model)
        self.identity = self.current_record()
        if trained:
            self.check_record(trained, "use")
            options = self.identity.only("encoder", "decoder")
            model_record = prune(trained, options).only("encoder", "decoder")
            allowed = self._check(model_record, options, "join")
            self.identity = replace(self.identity, allowed=allowed)
            for earlier in self._loaded[:-1]:
                self._check(earlier, trained, "join", OF_EACH_MODEL)
        elif not from_checkpoint:
            if self.can_start:
                names = begin_from_checkpoint(model, self.cfg, self)
                parameters = model.named_parameters()
                self._pretrained = [
                    p for name, p in parameters if name in names and p.requires_grad
                ]
            log_record(self.identity)
        return model

    def extend(self, model: Any, trained: Identity | None) -> None:
        """Add the parts to a model that the task's options ask for.

        Args:
            trained: the record of its checkpoint; None for a new model.
        """

    def check_record(self, trained: Identity, use: str, without: Sequence[str] = ()) -> None:
        """Restore the state from a checkpoint's record, and compare the record with this run's.

        Args:
            use: one of :data:`fairseq_phrase.data.store.identity.USES`.
            without: the parts that are not compared. Of a model that this one begins from, also source
                factors, which start at 0.
        """
        if use == "continue":  # for use, fairseq has already passed the state
            self.restore(trained, in_ensemble=False)
        current = replace(self.current_record(), allowed=self.identity.allowed)
        if use == "continue":
            trained = begin_neutrally(trained, current, self._encoder, self.cfg.allow_difference)
        if without:
            trained = begin_with_factors(trained, current)
        allowed = self._check(trained, current, use, without)
        self.identity = replace(current, allowed=allowed)
        if use == "continue" and not without:
            log_record(self.identity)

    def continue_training(self, trained: Identity) -> None:
        """Adopt the number of a training, which its checkpoints share, also after a resume."""
        self._training = dict(trained.only("training").entries) or self._training

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        """Update the model's parameters, with ``--lr-scale-pretrained``."""
        scale = self.cfg.lr_scale_pretrained if self.can_start else 1.0
        if scale == 1.0:
            super().optimizer_step(optimizer, model, update_num)
        else:
            scaled_step(optimizer, self._pretrained, scale)

    def restore(self, trained: Identity, *, in_ensemble: bool) -> None:
        """Adopt the state from a record.

        Args:
            in_ensemble: whether the record is of another model of an ensemble.
        """

    def own_entries(self) -> dict[str, Entry]:
        """Return the entries of the task itself: its options."""
        return task_entries(self.cfg)

    def state_dict(self) -> dict[str, Any]:
        """Return the task's state for checkpoints, with the record."""
        return {**super().state_dict(), "identity": self.identity.as_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Adopt the record of the next model."""
        truncate_as_trained(self, state_dict)
        path = state_dict.get("checkpoint", "the checkpoint")
        trained = Identity.from_dict(state_dict["identity"], path)
        self._loaded.append(trained)
        self.continue_training(trained)
        self.restore(trained, in_ensemble=True)

    def current_record(self) -> Identity:
        """Make the record of the data, the task and the built model."""
        cfg, read = self.cfg, {f"{name}-labels" for name in self._labels_asked_for}
        directories = utils.split_paths(cfg.data)
        check_parts(directories)
        first, *records = (
            data_identity(directory, cfg.source_lang, getattr(cfg, "target_lang", None), read)
            for directory in directories
        )
        allowed = first.allowed
        for record in records:
            allowed = self._check(record, replace(first, allowed=allowed), "use")
        of_run = {**self.own_entries(), **self._model_entries, **self._training}
        where = f"this run on {cfg.data}"
        return replace(first.with_entries(of_run), allowed=allowed, where=where)

    def _check(
        self, trained: Identity, here: Identity, use: str, without: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Compare records as the options say; see :func:`check_identity`."""
        tolerance = Tolerance(self.cfg.allow_difference, self.cfg.strict_identity)
        return check_identity(trained.without(without), here.without(without), use, tolerance)
