"""fairseq's commands: their messages, threads and options."""

from __future__ import annotations

import logging
import os
import sys
import types
import warnings
from collections.abc import Callable
from contextlib import nullcontext
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

from fairseq_phrase.cores import num_cores
from fairseq_phrase.errors import UserError

_Function = Callable[..., Any]


def print_user_errors_plainly() -> None:
    """Make fairseq's commands print only the message of a :class:`UserError`, as our commands do.

    An error that was raised from a :class:`UserError` is printed like it. An error that was raised while
    a :class:`UserError` was handled is a different error. Text that ``fairseq-interactive`` cannot decode
    and what fairseq itself refuses, with a reason, are treated like a :class:`UserError`. Ctrl-C prints
    one line.
    """
    default = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: types.TracebackType | None
    ) -> None:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UserError):
            cause = cause.__cause__
        if cause is not None or _is_refusal_of_fairseq(error, traceback):
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


def _is_refusal_of_fairseq(error: BaseException, traceback: types.TracebackType | None) -> bool:
    """Return whether fairseq raised an error that says what it refuses: an option, a file, data.

    Errors of its modules and models, such as those about shapes, are for developers.
    """
    is_of_a_kind = isinstance(error, AssertionError | ValueError | OSError | FloatingPointError)
    if not str(error) or not (is_of_a_kind or type(error) is Exception):
        return False
    modules = ["", *(str(frame.f_globals["__name__"]) for frame, _ in walk_tb(traceback))]
    is_of_fairseq = modules[-1].startswith(("fairseq.", "fairseq_cli."))
    return is_of_fairseq and not modules[-1].startswith(("fairseq.modules.", "fairseq.models."))


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
    idle = max(1, int(num_cores() - os.getloadavg()[0]))
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
        logging.getLogger("fairseq_cli.generate").addFilter(shorten_configuration)
        logging.getLogger("fairseq_cli.interactive").addFilter(
            lambda record: not isinstance(record.msg, dict | dictconfig.DictConfig)
        )


def shorten_configuration(record: logging.LogRecord) -> bool:
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

    Symptom: ``'NoneType' object has no attribute 'xla_device'``. In fairseq 0.12.3 the flag implies
    ``--tpu``.
    """
    parsed = original(*args, **options)
    args_of_command = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(args_of_command, "bf16", False) and utils.xm is None:
        args_of_command.tpu = False
    return parsed


def let_tasks_choose_optimizers(original: _Function, self: Trainer) -> None:
    """Build the optimizer of a task that has classes for it, as fairseq's tasks build criteria.

    Symptom: an update launches three times the kernels: Adam, clipping and copies of half precision are
    loops over the parameters, and fairseq has no function of a task for its optimizer. On a CPU,
    ``--fp16`` ends with an assertion of torch.
    """
    common = self.cfg.common
    flattens = common.fp16 and not (common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    if flattens and not self.cuda:
        raise UserError("--fp16 trains on GPUs only: take --bf16, or leave it out")
    with getattr(self.task, "optimizer_classes", nullcontext)():
        original(self)


def watch_results_of_tensors(original: _Function, self: NanDetector, module: nn.Module) -> None:
    """Leave encoders out of fairseq's search for the first gradient that is not a number.

    Symptom: a training that diverges ends with StopIteration, and no cause. Encoders return lists in a
    dictionary, in which torch finds no tensor. Their parts are searched.
    """
    watches = self.backward
    self.backward = watches and not isinstance(module, FairseqEncoder)
    original(self, module)
    self.backward = watches


def name_missing_choices(original: _Function, *args: Any, **options: Any) -> Any:
    """End a training without ``--arch``, or a validation without ``--task``, with a message.

    Symptom: an empty RuntimeError, and ``KeyError: None``.
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
        raise UserError(
            "give an architecture, such as --arch phrase_transformer; --help lists all"
        ) from None


def keep_arguments(original: _Function, self: Any, args: Any, *dictionaries: Any) -> None:
    """Give ``translation_from_pretrained_bart`` its options, which fairseq 0.12.3 calls ``cfg``.

    Symptom: a training ends in "has no attribute 'args'".
    """
    original(self, args, *dictionaries)
    self.args = args


def write_only_a_shard(original: _Function, cfg: Any, output_file: Any) -> Any:
    """Make ``fairseq-generate`` honor ``--num-shards`` and ``--shard-id`` (fairseq's issue 1937).

    Symptom: every shard has all sentences. fairseq 0.12.3 ignores the options and takes the number of
    processes, which is 1. It computes the speed by dividing by the time, which is 0 without a batch.
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
