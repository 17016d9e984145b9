"""Loading of trained models with their task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.utils import overwrite_args_by_name
from fairseq.tasks import TASK_REGISTRY
from torch import Tensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from fairseq_phrase.checkpoints.guards import guard_checkpoints
from fairseq_phrase.checkpoints.identity import RecordingTask, identity_of
from fairseq_phrase.checkpoints.options import check_name, name_of
from fairseq_phrase.checkpoints.trust import plain_options
from fairseq_phrase.data.store.data_directory import languages_in_names
from fairseq_phrase.data.store.identity import Tolerance, check_identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.checkpoints import make_checkpoints_loadable
from fairseq_phrase.repairs.patches import patch_fairseq
from fairseq_phrase.repairs.uncompiled import replace_missing_extensions

_PACKAGE = Path(__file__).parents[1]
#: The smallest valid value of a size option, by the last word of its name.
_SMALLEST = {"layers": 0, "dim": 0, "heads": 0, "positions": 1}
#: Largest number of values in a table of sinusoids, which is not in the file: 1 GiB.
_LARGEST_TABLE = 1 << 28
#: A model may be built with additional parameters that it drops. All others are in the file.
_SPARE_FACTOR, _SPARE, _SPARE_LAYERS = 2, 1 << 20, 64


@dataclass(frozen=True)
class SavedModel:
    """The contents of a checkpoint.

    Attributes:
        state: fairseq's dictionary with the configuration (``cfg``), the parameters (``model``) and the
            task's state (``task_state``).
    """

    path: Path
    state: dict[str, Any]

    @property
    def task_config(self) -> Any:
        """The configuration of the task."""
        return self.state["cfg"].task

    def has_task(self, kind: type) -> bool:
        """Return whether its task is registered and of this class, or derives from it."""
        task = TASK_REGISTRY.get(self.name("task"))
        return isinstance(task, type) and issubclass(task, kind)

    def name(self, section: str) -> str | None:
        """Return the name of the model or the task.

        Args:
            section: ``model`` or ``task``.
        """
        return name_of(getattr(self.state["cfg"], section))


def register() -> None:
    """Prepare fairseq as ``--user-dir fairseq_phrase`` does for its commands, except for messages.

    Every task, model and installed encoder is registered, and fairseq is patched
    (:func:`fairseq_phrase.repairs.patches.patch_fairseq`). A user directory with tasks or models derived
    from this package's classes calls this function first. A second call changes nothing.
    """
    patch_fairseq()
    register_all()


def register_all() -> None:
    """Register every task and model of this package, and let fairseq load their checkpoints.

    Without a compiled fairseq, its data sets need the replacements of its extensions.
    """
    make_checkpoints_loadable()
    replace_missing_extensions()
    guard_checkpoints()
    for part in ("tasks", "models"):
        for module in iter_modules([str(_PACKAGE / part)]):
            if module.name != "user_directory":
                import_module(f"fairseq_phrase.{part}.{module.name}")


def read_checkpoint(path: Path) -> SavedModel:
    """Read a checkpoint file.

    Raises:
        UserError: the file is missing, or is not a fairseq checkpoint.
    """
    register_all()
    reason = "it does not name a model and a task"
    try:
        state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
        state["args"] = None  # of fairseq 0.10 and older, which fairseq would read instead of cfg
        saved = SavedModel(path, state)
        if saved.name("model") and saved.name("task"):
            return saved
    except UserError:
        raise
    except Exception as error:  # fairseq does not check for missing entries
        reason = _reason(error)
    raise UserError(f"{path} is not a fairseq checkpoint: {reason}")


def languages_of(saved: SavedModel, directory: str | Path) -> tuple[str, str]:
    """Return the source and the target language of a translation model.

    Args:
        saved: the model. It may not name them.
        directory: its data directory, whose file names contain the languages.

    Raises:
        UserError: neither names the languages, or the data are monolingual.
    """
    config = saved.task_config
    languages: Any = (getattr(config, "source_lang", None), getattr(config, "target_lang", None))
    for name in languages:
        is_name = isinstance(name, str) and name.isprintable() and Path(name).name == name
        if name is not None and not is_name:
            raise UserError(f"{saved.path} names the language {name!r}: it is damaged")
    return languages_in_names(directory) if None in languages else languages


def build_models(
    saved: Sequence[SavedModel], data: str | Path, **options: Any
) -> tuple[list[Any], Any]:
    """Build the models of an ensemble and their task for inference.

    Args:
        saved: the models; the task is the first model's.
        options: options of fairseq that replace the checkpoints' options; None for no change.

    Raises:
        UserError: a model or task is not registered, or does not fit the data.
    """
    task_options: dict[str, Any] = {"allow_difference": None, "strict_identity": False}
    task_options |= {name: value for name, value in options.items() if value is not None}
    models: list[Any] = []
    task: Any = None
    for model in saved:
        for part in ("model", "task"):
            check_name(part, model.name(part), model.path)
        check_configured_sizes(model)
        with _building(model, data):
            overwrite_args_by_name(model.state["cfg"], {"data": str(data), **task_options})
            built, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [str(model.path)], state=model.state, task=task
            )
        if not isinstance(task, RecordingTask):  # one of stock fairseq does not compare records
            _compare(model, data, task_options)
        models += [model.eval() for model in built]
    return models, task


def _compare(saved: SavedModel, data: str | Path, options: Mapping[str, Any]) -> None:
    """Compare the record of the training with the data."""
    trained = identity_of(saved.state, saved.path)
    current = identity_of({"cfg": saved.state["cfg"]}, str(data))
    check_identity(
        trained, current, "use", Tolerance(options["allow_difference"], options["strict_identity"])
    )


def check_configured_sizes(saved: SavedModel) -> None:
    """Check the sizes in a file's configuration before anything is built."""
    parameters, options = saved.state["model"], plain_options(saved.state["cfg"].model)
    if not all(isinstance(value, Tensor) for value in parameters.values()):
        raise UserError(f"{saved.path} is damaged: it has parameters that are not tensors")
    if options.get("quant_noise_scalar") and not torch.cuda.is_available():
        raise UserError(
            f"{saved.path} has --quant-noise-scalar, which fairseq computes on GPUs only"
        )
    widest = max((size for value in parameters.values() for size in value.shape), default=1)
    held = sum(value.numel() for value in parameters.values())
    largest = {"layers": _SPARE_LAYERS + len(parameters), "positions": _LARGEST_TABLE // widest}
    for name, value in options.items():
        last = name.rpartition("_")[2]
        if last not in _SMALLEST or type(value) is not int:
            continue
        least, most = _SMALLEST[last], largest.get(last, held + _SPARE)
        if not least <= value <= most:
            raise UserError(
                f"{saved.path} was not loaded: its {name} is {value}, but a model of its {held:,} "
                f"parameters has {least} to {most}"
            )


@contextmanager
def _building(saved: SavedModel, data: str | Path) -> Iterator[None]:
    """Build a model from an untrusted file."""
    held = {value.data_ptr(): value.numel() for value in saved.state["model"].values()}
    largest = _SPARE + _SPARE_FACTOR * sum(held.values())
    built = 0

    def count(module: Any, name: str, parameter: Any) -> None:
        nonlocal built
        built += 0 if parameter is None else parameter.numel()
        if built > largest:
            raise UserError(
                f"its configuration asks for more than {largest:,} parameters, and the file has "
                f"{sum(held.values()):,}"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (RuntimeError, FileNotFoundError, UserError) as error:
        raise UserError(f"{saved.path} cannot be used with {data}: {error}") from None
    except Exception as error:  # a wrong configuration raises errors of many kinds
        raise UserError(f"{saved.path} cannot be used with {data}: {_reason(error)}") from error
    finally:
        hook.remove()


def _reason(error: Exception) -> str:
    """Describe an error of a library in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}".removesuffix(": ")


def load_model(
    checkpoint: Path, data: Path | None, source_parser: str | None = None, **identity: Any
) -> tuple[Any, Any]:
    """Load the model of a checkpoint and its task for inference.

    Args:
        data: its data directory; None for the directory it was trained on.
        source_parser: the parser of raw text; by default the parser of the data.
        **identity: ``allow_difference`` and ``strict_identity``, as in fairseq's commands.
    """
    saved = read_checkpoint(checkpoint)
    directory = saved.task_config.data if data is None else data
    models, task = build_models([saved], directory, source_parser=source_parser, **identity)
    return models[0], task
