"""The seam of model and task: a model asks for parses, structures and labels when it is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.common.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.methods.common.tensors import may_read
from fairseq_phrase.methods.encoder_method import EncoderMethod, neutral_obstacle
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Dictionary

logger = logging.getLogger(__name__)


@runtime_checkable
class SyntaxTask(Protocol):
    """The functions of a task with parses that a model calls while it is built."""

    source_dictionary: Dictionary
    target_dictionary: Dictionary

    def require_parses(self, fields: Sequence[str], for_model: bool = True) -> None:
        """Add parse fields to every later batch."""

    def require_structure(self, key: str, make: MakeStructure) -> None:
        """Let the collater compute tensors from the parses of every later batch."""

    def label_dictionary(self, field: str) -> Dictionary:
        """Return the numbered labels of a parse field."""


def report_without_effect(options: Iterable[Field[Any]], cfg: Any) -> None:
    """Log the options that are changed but have no effect, because what they need is off.

    They are not refused: the rows of a table share options.
    """
    values = vars(cfg)
    for option in options:
        needed = option.metadata.get("needs", "").split()
        changed = values.get(option.name, option.default) != option.default
        if changed and needed and not any(values[name] for name in needed):
            flags = [f"--{name.replace('_', '-')}" for name in (option.name, *needed)]
            logger.warning("%s has no effect without %s", flags[0], " or ".join(flags[1:]))


@dataclass(frozen=True)
class ParseLabels:
    """The labels of a model's parses.

    Attributes:
        fields: the parse fields of which the encoder reads labels.
        dictionary_of: returns the numbered labels of a parse field. A model that calls it while it is
            built depends on the numbers of these labels.
    """

    fields: Sequence[str]
    dictionary_of: Callable[[str], Dictionary]

    def count(self, field: str) -> int:
        """Return the number of labels of a parse field, special labels included."""
        return len(self.dictionary_of(field))

    def read(self, tensors: Mapping[str, Tensor]) -> ParseBatch:
        """Take the parse out of an encoder's keyword arguments, and check its labels.

        A label out of range would read a parameter of another label. There is no check where it would
        wait for a GPU.

        Raises:
            ValueError: a label does not exist; with its sentence.
        """
        parse = ParseBatch.from_net_input(tensors)
        for field in self.fields:
            if field not in parse or not may_read(labels := parse[field]):
                continue
            count, labels = self.count(field), labels if labels.dim() == 2 else labels[..., -1]
            faults = (labels < -1) | (labels >= count)
            if faults.any():
                row, column = faults.nonzero()[0].tolist()
                raise ValueError(
                    f"{PREFIX}{field}: sentence {row} of the batch has the label "
                    f"{int(labels[row, column])}, and the dictionary has {count} labels, from 0: use the "
                    "labels of the model's training"
                )
        return parse


def require_parses(method: EncoderMethod, cfg: Any, task: SyntaxTask) -> None:
    """Ask the task for the parses that an encoder needs, and for their labels.

    Args:
        cfg: fairseq's nested options. This function sets ``labels``, the :class:`ParseLabels`: fairseq
            builds an encoder from its options and the dictionary, without the task.

    Raises:
        UserError: the task or its data lack the parses, or the options contradict each other.
    """
    method.check(cfg)
    needed = list(method.parse_fields(cfg))
    if unknown := [field for field in needed if field not in FIELDS]:
        raise UserError(
            f"the encoder {method.name} needs unknown parse fields, {', '.join(unknown)}: expected some "
            f"of {', '.join(FIELDS)}"
        )
    report_without_effect(method.options, cfg)
    if vars(cfg).get("neutral_start") and (obstacle := neutral_obstacle(method.encoder, cfg)):
        raise UserError(f"--neutral-start, {method.name}: {obstacle}")
    # A copy of the model, for an export or an average, would copy the task with a bound method.
    cfg.labels = ParseLabels(
        [field for field in needed if FIELDS[field].label_file],
        lambda field: task.label_dictionary(field),
    )
    if not needed:
        return
    if not isinstance(task, SyntaxTask):
        raise UserError(
            f"this model needs the source's {' and '.join(needed)}: use --task "
            "syntax_translation or syntax_labelling, on data made by fairseq-phrase-preprocess or -attach"
        )
    task.require_parses(needed)
    find = getattr(method.encoder, "batch_structure", lambda *_: None)
    structure = find(cfg, task.source_dictionary)
    if structure is not None:
        task.require_structure(*structure)
