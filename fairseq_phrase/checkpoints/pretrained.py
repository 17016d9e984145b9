"""Models that start from a trained model: ``--pretrained`` (its encoder) and ``--pretrained-model``."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import torch
from fairseq.data import Dictionary
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_phrase.checkpoints.guards import check_sizes, check_ties
from fairseq_phrase.checkpoints.identity import RecordingTask, identity_of
from fairseq_phrase.checkpoints.options import (
    complete_options,
    identity_kind,
    model_options,
    sections_of,
)
from fairseq_phrase.checkpoints.trust import load_checkpoint, plain_options
from fairseq_phrase.data.batches.raw_tokens import SourceDictionary
from fairseq_phrase.data.store.dictionaries import begins_with, labels_fingerprint
from fairseq_phrase.data.store.identity import (
    MASK,
    OF_OTHER_DECODERS,
    OF_OTHER_TASKS,
    Identity,
    dictionary_entry,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.encoder_method import option
from fairseq_phrase.methods.relations.relation_bias import RelationBias
from fairseq_phrase.repairs.checkpoints import rename_old_parameters

logger = logging.getLogger(__name__)
_NAMED = 6


@dataclass
class PretrainedOptions(FairseqDataclass):
    """Options of tasks whose models may start from a checkpoint."""

    # fmt: off
    pretrained: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "start from the encoder of this checkpoint (translation, labelling, pre-training)")
    pretrained_model: Optional[str] = option(None,  # noqa: UP045 - fairseq reads this type
        "start from the encoder and the decoder of this checkpoint")
    take_options: bool = option(False,
        "with --pretrained-model: take the model's sizes and form from the checkpoint")
    pretrained_decoder_embeddings: bool = option(False,
        "with --pretrained: the decoder's embeddings start from the checkpoint's, too; for one "
        "dictionary of both languages (with --share-all-embeddings they do so anyway)")
    freeze_encoder: bool = option(False,
        "train all but the encoder, which is used without dropout; embeddings that the decoder "
        "shares with it are not trained, either")
    lr_scale_pretrained: float = option(1.0,
        "with --pretrained or --pretrained-model: factor of the learning rate of parameters that "
        "came from the checkpoint")


def take_options(cfg: Any, path: Path) -> None:
    """Set options of the next model to a checkpoint's values, and log the changed options."""
    values, _ = sections_of(_read(path, "--pretrained-model"))
    now = plain_options(cfg)
    # The table of learned positions has a fixed size. The encoder is this run's, which may be neutral.
    positions = {"max_source_positions", "max_target_positions"}
    names = {
        option.name
        for option in model_options(values)
        if option.name in positions or identity_kind(option) != "free"
    }
    names &= values.keys() & now.keys()
    changed = {
        name: values[name]
        for name in sorted(names - {"encoder", "_name"})
        if values[name] != now[name]
    }
    for name, value in changed.items():
        setattr(cfg, name, value)
    text = ", ".join(f"{name} {value}" for name, value in changed.items())
    logger.info("--take-options %s: %s", path, text or "all options are the same")


def begin_from_checkpoint(model: Any, options: Any, task: RecordingTask) -> set[str]:
    """Let a new model start from a checkpoint, if the options name one, and freeze its encoder.

    Args:
        task: the task, with which the record of the checkpoint is compared.

    Returns:
        The names of the parameters that came from the checkpoint.

    Raises:
        UserError: options contradict each other; or the checkpoint is missing, lacks parameters, or
            differs in its dictionary, sizes or record.
    """
    model_path, path = options.pretrained_model, options.pretrained_model or options.pretrained
    if model_path and options.pretrained:
        raise UserError("--pretrained and --pretrained-model: give one of them")
    if options.take_options and not model_path:
        raise UserError("--take-options: give the checkpoint with --pretrained-model")
    if options.pretrained_decoder_embeddings and not options.pretrained:
        raise UserError("--pretrained-decoder-embeddings: give the checkpoint with --pretrained")
    if options.lr_scale_pretrained < 0:
        raise UserError(f"--lr-scale-pretrained {options.lr_scale_pretrained}: expected 0 or more")
    # The parameters of an encoder from --huggingface-model.
    pretrained = {f"encoder.{name}" for name in getattr(model.encoder, "pretrained_names", ())}
    if options.lr_scale_pretrained != 1 and not path and not pretrained:
        raise UserError(
            "--lr-scale-pretrained: give the checkpoint with --pretrained or --pretrained-model"
        )
    if path:
        pretrained |= _load(model, Path(path), task, whole=bool(model_path))
    if options.pretrained_decoder_embeddings:
        if task.source_dictionary != task.target_dictionary:
            raise UserError(
                "--pretrained-decoder-embeddings: source and target have different dictionaries: "
                "make the data with --joined-dictionary"
            )
        with torch.no_grad():
            model.decoder.embed_tokens.weight.copy_(model.encoder.embed_tokens.weight)
        logger.info("--pretrained %s: loaded the decoder's embeddings", path)
    if options.freeze_encoder:
        model.encoder.requires_grad_(False)
        # Disables dropout, which model.train() enables.
        model.encoder.register_forward_pre_hook(_evaluate)
        biases = [m for m in model.encoder.modules() if isinstance(m, RelationBias)]
        if pretrained and not all(table.any() for bias in biases for table in bias.biases()):
            logger.warning(
                "--freeze-encoder: relation biases of the encoder are 0 and stay 0, unless they come "
                "from a checkpoint of this training or of --finetune-from-model: --relation-bias none "
                "does the same faster"
            )
        if not pretrained:
            logger.warning(
                "--freeze-encoder without --pretrained: the encoder keeps its random parameters, "
                "unless they come from a checkpoint of this training or of --finetune-from-model"
            )
    return pretrained


def scaled_step(optimizer: Any, pretrained: Sequence[Tensor], scale: float) -> None:
    """Update parameters, with a different learning rate for parameters from a checkpoint.

    The optimizer updates only parameters with a gradient, and runs twice. So its state has one group of
    parameters, and a resumed training may have another factor.

    Args:
        pretrained: the parameters of the checkpoint.
        scale: factor of their learning rate.

    Raises:
        UserError: the optimizer has copies of the parameters, or all of them are frozen.
    """
    of_checkpoint, parameters = set(map(id, pretrained)), list(optimizer.params)
    if not of_checkpoint & set(map(id, parameters)) or hasattr(optimizer, "scaler"):
        raise UserError(
            "--lr-scale-pretrained: leave out --fp16, --bf16 and --amp, whose optimizers have copies of "
            "the parameters; with --freeze-encoder nothing of the checkpoint may be left to train"
        )
    gradients, rate = [parameter.grad for parameter in parameters], optimizer.get_lr()
    for scaled in (False, True):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient if (id(parameter) in of_checkpoint) == scaled else None
        optimizer.set_lr(rate * scale if scaled else rate)
        optimizer.step()
    optimizer.set_lr(rate)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def _evaluate(module: nn.Module, inputs: Any) -> None:
    module.eval()


def _load(model: Any, path: Path, task: RecordingTask, *, whole: bool) -> set[str]:
    """Load a checkpoint's parameters: of the encoder, as far as the model has them, or all."""
    flag = "--pretrained-model" if whole else "--pretrained"
    where = f"{flag} {path}"
    state = _read(path, flag)
    record, checked = _with_dictionaries(identity_of(state, path), path, task)
    task.check_record(record, "continue", OF_OTHER_TASKS if whole else OF_OTHER_DECODERS)
    parameters = model.state_dict()
    saved = dict(state["model"])
    if not whole:
        saved, parameters = (
            {name: value for name, value in mapping.items() if name.startswith("encoder.")}
            for mapping in (saved, parameters)
        )
    if not saved.keys() & parameters.keys():
        raise UserError(
            f"{where} has no parameter of this encoder ({type(model.encoder).__name__}): name a "
            "checkpoint with an encoder of the same kind"
        )
    rename_old_parameters(saved, parameters)
    check_ties(saved, parameters, where)
    _fit_dictionaries(saved, parameters, checked, where)
    check_sizes(saved, parameters, where)
    pretrained: set[str] = saved.keys() & parameters.keys()
    if whole:
        model.upgrade_state_dict(saved)
        if lacking := parameters.keys() - saved.keys():
            raise UserError(
                f"{where} lacks {_some(lacking)}: take the form of its model with --take-options, or "
                "its encoder alone with --pretrained"
            )
    model.load_state_dict(
        {**model.state_dict(), **{name: saved[name] for name in saved.keys() & parameters}}
    )
    logger.info(
        "%s: loaded %d tensors of the %s", where, len(pretrained), "model" if whole else "encoder"
    )
    new = "are new, because the checkpoint does not have them"
    unused = "of the checkpoint are not used, because this model lacks them"
    for names, difference in (
        (parameters.keys() - saved.keys(), new),
        (saved.keys() - parameters.keys(), unused),
    ):
        if names:
            logger.warning("%s: %d tensors %s: %s", where, len(names), difference, _some(names))
    return pretrained


def _read(path: Path, flag: str) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{flag} {path} is not there; a training is resumed without this option")
    state = load_checkpoint(path)
    complete_options(state, path)
    return state


def _with_dictionaries(
    trained: Identity, path: Path, task: RecordingTask
) -> tuple[Identity, set[str]]:
    """Allow dictionaries that differ in entries at their ends.

    Args:
        trained: the record of a checkpoint. If it lacks dictionaries, the dictionaries next to it are
            used.

    Returns:
        The record; the sides, ``source`` and ``target``, whose dictionaries were compared.
    """
    entries, checked = dict(trained.entries), set()
    dictionaries = {"source": task.source_dictionary, "target": task.target_dictionary}
    for side, dictionary in dictionaries.items():
        name = f"{side}-dictionary"
        files = [path.parent / f"dict.{part}txt" for part in ("", f"{_language(task, side)}.")]
        there = [file for file in files if file.is_file()]
        if name not in entries and there:
            entries[name] = dictionary_entry(there[0], side)
        if name not in entries or not isinstance(dictionary, Dictionary):
            continue
        checked.add(side)
        added = {MASK}
        if isinstance(dictionary, SourceDictionary):
            added.update(dictionary.added)
        symbols = [
            symbol for symbol in dictionary.symbols[dictionary.nspecial :] if symbol not in added
        ]
        theirs, ours = entries[name].value, labels_fingerprint(symbols)
        if begins_with(symbols, theirs) or any(
            begins_with(_symbols(file), ours)
            for file in there
            if dictionary_entry(file, side).value == theirs
        ):
            entries[name] = replace(entries[name], value=ours)
    return replace(trained, entries=entries), checked


def _language(task: RecordingTask, side: str) -> str:
    return str(getattr(task.cfg, f"{side}_lang", None))


def _symbols(file: Path) -> list[str]:
    dictionary = Dictionary.load(str(file))
    return list(dictionary.symbols[dictionary.nspecial :])


def _fit_dictionaries(
    saved: dict[str, Tensor], parameters: dict[str, Tensor], checked: set[str], where: str
) -> None:
    """Drop rows of entries missing in this run's dictionary, and add rows of its new entries."""
    for name, side in (
        ("encoder.embed_tokens.weight", "source"),
        ("decoder.embed_tokens.weight", "target"),
        ("decoder.output_projection.weight", "target"),
    ):
        if name not in saved or name not in parameters or side not in checked:
            continue
        theirs, ours = len(saved[name]), len(parameters[name])
        if theirs == ours or saved[name].shape[1:] != parameters[name].shape[1:]:
            continue
        saved[name] = torch.cat([saved[name][:ours], parameters[name][theirs:].to(saved[name])])
        change = "leaves out" if theirs > ours else "starts anew with"
        logger.info(
            "%s: %s %s the last %d entries of a dictionary", where, name, change, abs(theirs - ours)
        )


def _some(names: Iterable[str]) -> str:
    first = sorted(names)
    return ", ".join(first[:_NAMED]) + (", …" if len(first) > _NAMED else "")
