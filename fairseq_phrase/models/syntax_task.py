"""The seam of model and task: a model asks for parses, structures and labels when it is built."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field
from typing import Any, Protocol

from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.models.encoder_method import EncoderMethod, neutral_obstacle
from fairseq_phrase.modules.parse_batch import MakeStructure, ParseBatch
from fairseq_phrase.modules.tensors import may_read
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

logger = logging.getLogger(__name__)


class SyntaxTask(Protocol):
    """The functions of a task with parses that a model calls while it is built."""

    source_dictionary: Any
    target_dictionary: Any

    def require_parses(self, fields: Sequence[str], for_model: bool = True) -> None:
        """Add parse fields to every later batch."""

    def require_structure(self, key: str, make: MakeStructure) -> None:
        """Let the collater compute tensors from the parses of every later batch."""

    def label_dictionary(self, field: str) -> Any:
        """Return the numbered labels of a parse field."""


def report_without_effect(options: Iterable[Field[Any]], cfg: Any) -> None:
    """Log the options that are changed but have no effect, because what they need is off.

    They are not refused: the rows of a table share options.
    """
    for option in options:
        needed = option.metadata.get("needs", "").split()
        changed = getattr(cfg, option.name, option.default) != option.default
        if changed and needed and not any(getattr(cfg, name) for name in needed):
            flags = [f"--{name.replace('_', '-')}" for name in (option.name, *needed)]
            logger.warning("%s has no effect without %s", flags[0], " or ".join(flags[1:]))


def require_parses(method: EncoderMethod, cfg: Any, task: SyntaxTask) -> None:
    """Ask the task for the parses that an encoder needs, and for their labels.

    Args:
        cfg: fairseq's nested options. This function sets ``count_labels``, a function that returns the
            number of labels of a parse field, special labels included, and ``label_number``, a function
            that returns the number of one label of a field; ``labelled_fields``, their names; and
            ``read_parse``, :func:`read_parse` for these fields.

    Raises:
        UserError: the task or its data lack the parses, or the options contradict each other.
    """
    method.check(cfg)
    needed = list(method.parse_fields(cfg))
    report_without_effect(method.options, cfg)
    if getattr(cfg, "neutral_start", False) and (obstacle := neutral_obstacle(method.encoder, cfg)):
        raise UserError(f"--neutral-start, {method.name}: {obstacle}")
    cfg.count_labels = lambda field: len(task.label_dictionary(field))
    cfg.label_number = lambda field, label: task.label_dictionary(field).index(label)
    cfg.labelled_fields = [field for field in needed if FIELDS[field].label_file]
    cfg.read_parse = lambda tensors: read_parse(tensors, cfg.labelled_fields, cfg.count_labels)
    if not needed:
        return
    if not hasattr(task, "require_parses"):
        raise UserError(
            f"this model needs the source's {' and '.join(needed)}: use --task "
            "syntax_translation or syntax_labelling, on data made by fairseq-phrase-preprocess or -attach"
        )
    task.require_parses(needed)
    find = getattr(method.encoder, "batch_structure", lambda *_: None)
    structure = find(cfg, task.source_dictionary)
    if structure is not None and hasattr(task, "require_structure"):
        task.require_structure(*structure)


def read_parse(
    tensors: Mapping[str, Tensor], labelled: Sequence[str], count_labels: Callable[[str], int]
) -> ParseBatch:
    """Take the parse out of an encoder's keyword arguments, and check its labels.

    A label out of range would read a parameter of another label. There is no check where it would wait
    for a GPU.

    Args:
        labelled: the fields of which the encoder reads labels.
        count_labels: returns the number of labels of a field.

    Raises:
        ValueError: a label does not exist; with its sentence.
    """
    parse = ParseBatch.from_net_input(tensors)
    for field in labelled:
        if field not in parse or not may_read(labels := parse[field]):
            continue
        count, labels = count_labels(field), labels if labels.dim() == 2 else labels[..., -1]
        faults = (labels < -1) | (labels >= count)
        if faults.any():
            row, column = faults.nonzero()[0].tolist()
            raise ValueError(
                f"{PREFIX}{field}: sentence {row} of the batch has the label {int(labels[row, column])}, "
                f"and the dictionary has {count} labels, from 0: use the labels of the model's training"
            )
    return parse
