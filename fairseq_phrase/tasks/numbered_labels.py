"""Models of a task: their numbers are those of the data, and encoders start from checkpoints."""

import logging
from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask

from fairseq_phrase.batch.label_dictionaries import LabelDictionaries
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.kept_fingerprints import (
    SIDES,
    dictionary_fingerprint,
    keep_dictionary,
    keep_labels,
    kept_dictionary,
    kept_labels,
)
from fairseq_phrase.store.labels import number_of_labels

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

        For a model from a checkpoint, check that labels and dictionaries have the same numbers.

        Raises:
            UserError: the data lack fields that the model needs, or number its labels or the entries of
                its dictionaries differently; for ``--pretrained`` see
                :mod:`fairseq_phrase.models.pretrained`.
        """
        self.check_dictionaries(cfg)
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
        for side, dictionary in self._dictionaries.items():
            keep_dictionary(cfg, dictionary, side)
        if not from_checkpoint and hasattr(model, "load_pretrained"):
            model.load_pretrained(self)
        return model

    @property
    def _dictionaries(self) -> dict[str, Dictionary]:
        return {side: getattr(self, f"{side}_dictionary") for side in SIDES}

    def check_dictionaries(self, cfg: Any) -> None:
        """Check that a model was trained with the dictionaries of the data.

        The target dictionary of labelling is the labels. fairseq numbers them by how often they occur, so
        that data made anew may have them in another order.

        Args:
            cfg: the model's configuration. What an earlier version did not keep in it is not checked.

        Raises:
            UserError: a dictionary has other entries, or has them in another order.
        """
        for side, dictionary in self._dictionaries.items():
            trained = kept_dictionary(cfg, side)
            if trained in (None, dictionary_fingerprint(dictionary)):
                continue
            directory = self._labels.directory
            name = f"dict.{getattr(self.cfg, f'{side}_lang')}.txt"
            raise UserError(
                f"{directory / name} is not the dictionary that this model was trained with "
                f"({len(dictionary)} entries, and {number_of_labels(trained)} in training), so the model "
                f"would take entries for others: make {directory} again with {SIDES[side]} "
                f"TRAINING_DATA/{name}"
            )

    def check_labels(self, trained: Mapping[str, str]) -> None:
        """Check that another model was trained with the same numbers of the parses' labels.

        Args:
            trained: fingerprints by field, as its checkpoint keeps them.

        Raises:
            UserError: the data number labels differently.
        """
        self._labels.check({name: trained[name] for name in self._labels_asked_for & set(trained)})
