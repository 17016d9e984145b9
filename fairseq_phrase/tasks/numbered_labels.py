"""Models of a task: their labels' numbers are those of the data, and encoders start from checkpoints."""

import logging
from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask

from fairseq_phrase.batch.label_dictionaries import LabelDictionaries
from fairseq_phrase.models.kept_fingerprints import keep_dictionary, keep_labels, kept_labels

logger = logging.getLogger(__name__)


class NumberedLabels(FairseqTask):
    """A task whose models may have an embedding for each label of parses.

    A subclass sets ``_labels`` before it builds a model.
    """

    _labels: LabelDictionaries

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._labels_asked_for: set[str] = set()

    def label_dictionary(self, field: str) -> Dictionary:
        """Return the labels of a parse field, such as those of ``dict.constituent.txt``.

        A model that calls this while it is built depends on the labels' numbers. So its configuration
        keeps their fingerprint, and its checkpoint cannot be used with data whose labels have other
        numbers.

        Args:
            field: a name in :data:`fairseq_phrase.store.fields.FIELDS` that has labels.

        Raises:
            UserError: the data lack the labels, or the data directories number them differently.
        """
        self._labels_asked_for.add(field)
        return self._labels.dictionary(field)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build a model; a new one may start from another encoder (``--pretrained``).

        For a model from a checkpoint, check that labels have the same numbers.

        Raises:
            UserError: the data lack fields that the model needs, or number its labels differently; for
                ``--pretrained`` see :mod:`fairseq_phrase.models.pretrained`.
        """
        trained = kept_labels(cfg)
        self._labels_asked_for = set()
        model = super().build_model(cfg, from_checkpoint)
        found = {name: self._labels.fingerprint(name) for name in sorted(self._labels_asked_for)}
        self._labels.check({name: trained[name] for name in found if name in trained})
        if from_checkpoint and not found.keys() <= trained.keys():
            logger.warning(
                "this checkpoint does not say how its labels were numbered, as those of earlier "
                "versions do not: make sure that %s is the data directory of its training, or was made "
                "with its label dictionaries (--labeldict)",
                self._labels.directory,
            )
        keep_labels(cfg, found)
        keep_dictionary(cfg, self.source_dictionary)
        if not from_checkpoint and hasattr(model, "load_pretrained"):
            model.load_pretrained(self)
        return model

    def check_labels(self, trained: Mapping[str, str]) -> None:
        """Check that another model was trained with the same numbers of the parses' labels.

        Args:
            trained: fingerprints by field, as its checkpoint keeps them.

        Raises:
            UserError: the data number labels differently.
        """
        self._labels.check({name: trained[name] for name in self._labels_asked_for & set(trained)})
