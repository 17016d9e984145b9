"""fairseq's commands: their messages, threads and options."""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch
from fairseq import utils
from fairseq.dataclass.configs import GenerationConfig
from fairseq.models import FairseqEncoder
from fairseq.nan_detector import NanDetector
from fairseq.trainer import Trainer
from omegaconf import dictconfig
from torch import nn

from fairseq_phrase.errors import UserError

_Function = Callable[..., Any]


def as_user_error(error: Exception, message: str) -> UserError:
    """Return a :class:`UserError` that replaces an error of fairseq.

    Code that expects the class of that error catches it, too.
    """
    kind = type(error)
    replacement: UserError = type(kind.__name__, (UserError, kind), {})(message)
    return replacement


def print_user_errors_plainly() -> None:
    """Make fairseq's commands print only the message of a :class:`UserError`, as our commands do.

    An error that was raised from a :class:`UserError` is printed like it. An error that was raised while
    a :class:`UserError` was handled is a different error. Text that ``fairseq-interactive`` cannot decode
    and fairseq's own checks of options are treated like a :class:`UserError`. Ctrl-C prints one line.
    """
    default = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is not None or _is_a_check_of_options(error, traceback):
            print(f"error: {cause or error}", file=sys.stderr)
        elif isinstance(error, UnicodeDecodeError) and (
            place := _undecodable_line(error, traceback)
        ):
            print(f"error: {place} is not UTF-8: {error.reason}", file=sys.stderr)
        elif isinstance(error, KeyboardInterrupt):
            trains = Path(sys.argv[0]).name in ("fairseq-train", "fairseq-hydra-train")
            then = ". The same command continues from checkpoint_last.pt, if it is there"
            print(f"interrupted{then * trains}", file=sys.stderr)
        else:
            default(kind, error, traceback)

    sys.excepthook = hook
    # fairseq-hydra-train otherwise prints every error itself, with a traceback.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")


def _is_a_check_of_options(error: BaseException, traceback: types.TracebackType | None) -> bool:
    """Return whether fairseq asserted something of its options, and says what."""
    if not isinstance(error, AssertionError) or not str(error):
        return False
    modules = ["", *(str(frame.f_globals["__name__"]) for frame, _ in walk_tb(traceback))]
    return modules[-1].startswith(("fairseq_cli.", "fairseq.distributed.utils"))


def _undecodable_line(
    error: UnicodeDecodeError, traceback: types.TracebackType | None
) -> str | None:
    """Find the input's line that cannot be decoded, if ``fairseq-interactive`` was reading it."""
    for frame, _ in walk_tb(traceback):
        if frame.f_code.co_name == "buffered_read" and "h" in frame.f_locals:
            path = frame.f_locals.get("input", "-")
            # Text is decoded some lines ahead. All lines before them were read.
            number = frame.f_locals["h"].lineno() + 1 + error.object[: error.start].count(b"\n")
            return f"line {number} of {'standard input' if path == '-' else path}"
    return None


def use_idle_cores() -> None:
    """Let torch use one thread for each idle core, unless the user chose the number of threads.

    By default torch uses all cores. On busy cores the threads of each small operation wait for each
    other, and a translation can take forty times as long as on one thread.
    """
    is_chosen = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    if is_chosen or not hasattr(os, "getloadavg"):
        return
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    idle = max(1, int(cores - os.getloadavg()[0]))
    if idle < torch.get_num_threads():
        torch.set_num_threads(idle)


def quieten() -> None:
    """Suppress messages of hydra, fairseq and torch that are meant for developers.

    ``PYTHONWARNINGS`` or ``python -W`` restore the warnings. ``LOGLEVEL`` restores the configuration and
    fairseq's four lines for each epoch, or for each batch of raw lines.
    """
    if not sys.warnoptions:
        for module in (r"hydra\.", r"torch\.utils\.data\.dataloader"):
            warnings.filterwarnings("ignore", category=UserWarning, module=module)
        warnings.filterwarnings("ignore", message=r"\s*'config' is validated against ConfigStore")
        warnings.filterwarnings("ignore", message=r"Support for mismatched key_padding_mask")
        warnings.filterwarnings(
            "ignore", message=r"`torch\.cuda\.amp\.\w+\(args\.\.\.\)` is deprecated"
        )
    if "LOGLEVEL" not in os.environ:
        logging.getLogger("hydra").setLevel(logging.INFO)
        logging.getLogger("fairseq.tasks.fairseq_task").setLevel(logging.WARNING)
        logging.getLogger("fairseq_cli.generate").addFilter(_shorten_configuration)
        logging.getLogger("fairseq_cli.interactive").addFilter(
            lambda record: not isinstance(record.msg, dict | dictconfig.DictConfig)
        )


def _shorten_configuration(record: logging.LogRecord) -> bool:
    """Leave of a configuration in the log the batches, the models' files, and the search's options."""
    config: Any = record.msg
    if isinstance(config, dict | dictconfig.DictConfig):
        batches = {name: config["dataset"][name] for name in ("max_tokens", "batch_size")}
        defaults = {"_name": None, **vars(GenerationConfig())}
        search = {
            name: value for name, value in config["generation"].items() if value != defaults[name]
        }
        files = map(os.path.basename, utils.split_paths(config["common_eval"]["path"]))
        record.msg = f"{batches}, models {list(files)}, search {search}"
    return True


def train_in_bfloat16_without_a_tpu(original: _Function, *args: Any, **options: Any) -> Any:
    """Make ``--bf16`` train on a GPU or CPU where torch_xla is not installed.

    In fairseq 0.12.3 the flag implies ``--tpu``, and then ends with an AttributeError.
    """
    parsed = original(*args, **options)
    args_of_command = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(args_of_command, "bf16", False) and utils.xm is None:
        args_of_command.tpu = False
    return parsed


def refuse_fp16_without_a_gpu(original: _Function, self: Trainer) -> None:
    """End a training with ``--fp16`` on a CPU, whose optimizer asks fairseq for the current GPU."""
    common = self.cfg.common
    works_on_a_cpu = common.memory_efficient_fp16 or common.fp16_no_flatten_grads
    if common.fp16 and not works_on_a_cpu and not torch.cuda.is_available():
        raise UserError(
            "--fp16 needs a GPU, and torch finds none: leave it out (--bf16 also trains on a CPU)"
        )
    original(self)


def name_divergence(original: _Function, self: Trainer, *args: Any, **options: Any) -> Any:
    """End a training whose gradients are not numbers with a message, after fairseq's report."""
    try:
        return original(self, *args, **options)
    except FloatingPointError as error:
        raise as_user_error(
            error,
            f"the training diverged after {self.get_num_updates()} updates ({error}): give a smaller "
            "--lr, more --warmup-updates or --clip-norm 1, and continue from a checkpoint before it",
        ) from None


def watch_results_of_tensors(original: _Function, self: NanDetector, module: nn.Module) -> None:
    """Leave encoders out of fairseq's search for the first gradient that is not a number.

    They return lists in a dictionary, at which torch ends with StopIteration. Their parts are searched.
    """
    watches = self.backward
    self.backward = watches and not isinstance(module, FairseqEncoder)
    original(self, module)
    self.backward = watches


def name_unwritable_directory(original: _Function, save_dir: str) -> None:
    """End a training that cannot write to its ``--save-dir`` with a message."""
    try:
        original(save_dir)
    except OSError as error:
        reason = error.strerror or error
        raise as_user_error(error, f"--save-dir {save_dir} cannot be written: {reason}") from None


def name_missing_choices(original: _Function, *args: Any, **options: Any) -> Any:
    """End a training without ``--arch``, or a validation without ``--task``, with a message.

    fairseq raises an empty RuntimeError, and a KeyError.
    """
    try:
        return original(*args, **options)
    except KeyError as error:
        if error.args != (None,):
            raise
        raise UserError("give the model's task, such as --task translation") from None
    except RuntimeError as error:
        if error.args:
            raise
        raise as_user_error(
            error, "give an architecture, such as --arch phrase_transformer; --help lists all"
        ) from None


def name_missing_checkpoint(original: _Function, *args: Any, **options: Any) -> Any:
    """End a command whose checkpoint is missing with fairseq's message alone."""
    try:
        return original(*args, **options)
    except (OSError, ValueError) as error:
        if str(error).startswith(("Model file not found", "--finetune-from-model")):
            raise as_user_error(error, str(error)) from None
        raise


def keep_arguments(original: _Function, self: Any, args: Any, *dictionaries: Any) -> None:
    """Give ``translation_from_pretrained_bart`` its options, which fairseq 0.12.3 calls ``cfg``."""
    original(self, args, *dictionaries)
    self.args = args


def write_only_a_shard(original: _Function, cfg: Any, output_file: Any) -> Any:
    """Make ``fairseq-generate`` honor ``--num-shards`` and ``--shard-id``.

    fairseq 0.12.3 ignores them and takes the number of processes, which is 1. It computes the speed by
    dividing by the time, which is 0 without a batch.
    """
    shards, shard = cfg.dataset.num_shards, cfg.dataset.shard_id
    if not 0 <= shard < shards:
        raise UserError(f"--shard-id {shard}: expected 0 to {shards - 1}, by --num-shards")
    if shards > 1:
        cfg.distributed_training.distributed_world_size = shards
        cfg.distributed_training.distributed_rank = shard
    try:
        return original(cfg, output_file)
    except ZeroDivisionError:
        raise UserError(
            f"--gen-subset {cfg.dataset.gen_subset}, --shard-id {shard}: no batch is left: give "
            "fewer --num-shards, or smaller batches (--batch-size, --max-tokens)"
        ) from None
