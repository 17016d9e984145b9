"""The logs of ``fairseq-train`` and ``fairseq-hydra-train``."""

from __future__ import annotations

import re
import statistics
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from fairseq_phrase.data.store.identity import LOGGED, TEXT_LOGGED, Identity, matches
from fairseq_phrase.text import read_json, read_lines

# "time | level | logger | message" is fairseq's own format, "[time][logger][level] - message" is
# hydra's, and "level:logger:message" is fairseq-generate's.
_LINES = [
    re.compile(r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| \w+ \| (?P<logger>\S+) \| (?P<text>.*)"),
    re.compile(
        r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+\]\[(?P<logger>[^\]]+)\]\[\w+\] - (?P<text>.*)"
    ),
    re.compile(r"(?P<time>)(?:DEBUG|INFO|WARNING|ERROR):(?P<logger>[\w.]+):(?P<text>.*)"),
]  # fmt: skip
_PARAMETERS = re.compile(r"num\. (?:shared )?model params: ([\d,]+)")
_DEVICES = re.compile(r"training on (\d+) devices")
_GPUS = re.compile(r"CUDA enviro\w+ for all (\d+) workers")  # the misspelling is fairseq's
_GPU_NAME = re.compile(r"rank +\d+: capabilities.*name = (.*\S)")
_LOADED = re.compile(r"loaded ([\d,]+) examples from: .*/(train\d*)\.[^/]*$")
_RESUMED = re.compile(r"Loaded checkpoint .* @ (\d+) updates\)")
_EXCEPTION = re.compile(r"(?:[\w.]+\.)?\w*(?:Error|Exception|Interrupt)\b.*")
# An option in a configuration, which has dictionaries, and for old architectures a Namespace.
_OPTION = re.compile(r"(?:'|\b)(?P<name>\w+)(?:': |=)(?P<value>'[^']*'|\[[^\]]*\]|[^,{}()\[\]]+)")
# Options, or patterns of their names, that change the device, the files or the messages of a training, or
# that differ between seeds. All others change the model, or which of its checkpoints is the best.
_NEUTRAL = (
    "_name data pretrained seed tree_seed fixed_validation_seed no_seed_provided path *_path *_file *dir "
    "cpu *cpu_* device_id *_devices *gpus *_rank *port distributed_backend distributed_init_method "
    "distributed_no_spawn distributed_num_procs ddp_* num_workers checkpoint_* pipeline_checkpoint "
    "*_checkpoints* load_checkpoint_* keep_* no_save* reset_* log_* *_logging wandb_* *progress* profile "
    "report_* suppress_*"
)
_NUMBER = r"(-?\d[\d.]*(?:e[+-]?\d+)?)"


class LogLine(NamedTuple):
    """A line of a log.

    Attributes:
        time: the time at which it was written; None if the format lacks it.
        logger: the logger's name, such as ``fairseq_cli.train`` or ``train_inner``.
    """

    time: datetime | None
    logger: str
    text: str


class Validation(NamedTuple):
    """One validation.

    Attributes:
        update: the number of updates before it.
        loss: the criterion's, in fairseq's base 2.
        ppl: perplexity of subwords.
        bleu: fairseq's BLEU, if training used ``--eval-bleu``.
    """

    update: int
    loss: float | None
    ppl: float | None
    bleu: float | None


@dataclass
class TrainingLog:
    """A training, which may have been stopped and resumed.

    Attributes:
        seed: fairseq's ``--seed``.
        best_metric: fairseq's ``--best-checkpoint-metric``, by which it chose ``checkpoint_best.pt``.
        updates: the last one that was logged.
        words_per_second: median of fairseq's ``wps`` over the training: target subwords or labels per
            second, over all devices.
        seconds: how long its processes ran, including all sessions and validations. fairseq's ``wall`` is
            not used, because it starts from 0 at each resumption.
        devices: number of processes; each has a GPU if GPUs were used.
        gpu: the GPUs' name; None if it trained on CPUs.
        finished: whether the last session finished normally.
        failure: the exception that ended it.
        validations: of the first validation set, by update.
        options: fairseq's configuration, by option, without the options that do not change a training.
        sentences: numbers of training sentences, by split, and a digest of their lengths.
    """

    parameters: int | None = None
    seed: int | None = None
    best_metric: str | None = None
    updates: int | None = None
    words_per_second: float | None = None
    seconds: float | None = None
    devices: int = 1
    gpu: str | None = None
    finished: bool = False
    failure: str | None = None
    validations: list[Validation] = field(default_factory=list)
    identity: Identity | None = None
    options: dict[str, str] = field(default_factory=dict)
    sentences: dict[str, str] = field(default_factory=dict)

    @property
    def hours(self) -> float | None:
        """Device hours: the running time times the number of devices; shared devices count fully."""
        return None if self.seconds is None else self.seconds / 3600 * self.devices

    @property
    def target_language(self) -> str | None:
        """The code of the target language; None if the log does not have it."""
        recorded = self.identity.value("target-language") if self.identity else None
        option = self.options.get("target_lang", "None").strip("'")
        return recorded or (None if option == "None" else option)


def log_line(line: str) -> LogLine | None:
    """Split a line of a log; None for another line, such as a part of a traceback."""
    line = line.rsplit("\r", 1)[-1]  # a progress bar may be before it
    for pattern in _LINES:
        if match := pattern.fullmatch(line):
            time = match["time"]
            moment = datetime.strptime(time, "%Y-%m-%d %H:%M:%S") if time else None
            return LogLine(moment, match["logger"], match["text"])
    return None


def statistics_of(logger: str, text: str) -> dict[str, float]:
    """Read the numbers of a progress message.

    Args:
        logger: ``train_inner``, ``train``, or the name of a validation set.
        text: in fairseq's formats ``simple`` or ``json``.

    Returns:
        The numbers by name, ``wps``, ``num_updates``, …; other values are left out.
    """
    if text.startswith("{"):
        try:
            by_name = {
                name.removeprefix(f"{logger}_"): str(value)
                for name, value in read_json(text).items()
            }
        except (ValueError, AttributeError):
            return {}
        pairs = [pair for pair in by_name.items() if re.fullmatch(_NUMBER, pair[1])]
    elif logger == "train_inner":
        pairs = re.findall(rf"\b(\w+)={_NUMBER}(?=,|$)", text)
    else:
        pairs = re.findall(rf"(?<=\| )(\w+) {_NUMBER}(?= \||$)", text)
    return {name: float(number) for name, number in pairs}


def read_training_log(path: Path) -> TrainingLog:
    """Read a log of ``fairseq-train``, in any of its formats, of one session or of several in a row.

    A session that starts without a checkpoint discards the sessions before it. A session that resumes
    from a checkpoint discards the lines after the checkpoint, but the time still counts.
    """
    reader = _Reader()
    for line in read_lines(path):
        reader.read(line)
    return reader.result()


def _is_of_session(logger: str) -> bool:
    """Return whether a logger writes only after the configuration.

    Other loggers (of imported modules and of torch.distributed) also write before it. Their lines would
    be mistaken for the end of the previous session.
    """
    return "." not in logger or logger in (
        "fairseq_cli.train", "fairseq.trainer", "fairseq.checkpoint_utils"
    )  # fmt: skip


class _Reader:
    def __init__(self) -> None:
        self.log = TrainingLog()
        self._spans: list[list[datetime]] = []  # first and last time of each session
        self._walls: list[float] = []  # and fairseq's own clock, for logs without times
        self._speeds: dict[str, list[float]] = {"train_inner": [], "train": []}
        self._validations: dict[int, Validation] = {}
        self._validation_set: str | None = None

    def read(self, line: str) -> None:
        entry = log_line(line)
        if entry is None:
            if _EXCEPTION.fullmatch(line):
                self.log.failure = line.strip()
            return
        if entry.logger == "fairseq_cli.train" and entry.text.startswith("{'_name'"):
            self._start(entry)
        if entry.time is not None and self._spans and _is_of_session(entry.logger):
            span = self._spans[-1]
            span[:] = [span[0], entry.time] if span else [entry.time, entry.time]
        if entry.text.startswith(LOGGED):
            with suppress(ValueError):  # another process may have written into the line
                record = read_json(entry.text.removeprefix(LOGGED))
                self.log.identity = Identity.from_dict(record, "the log of a training")
        elif entry.text.startswith(TEXT_LOGGED):
            name, _, digest = entry.text.rpartition(": ")
            self.log.sentences[name] = digest
        elif entry.logger.startswith(("fairseq_cli", "fairseq.")):
            self._read_event(entry.text)
        else:
            self._read_statistics(entry)

    def _start(self, entry: LogLine) -> None:
        """Begin a session: fairseq logs its configuration first."""
        self.log.finished, self.log.failure = False, None
        self._spans.append([])
        self._walls.append(0.0)
        self.log.options = {
            match["name"]: match["value"]
            for match in _OPTION.finditer(entry.text)
            if not matches(match["name"], _NEUTRAL)
        }
        self.log.sentences = {}
        if match := re.search(r"'seed': (\d+)", entry.text):
            self.log.seed = int(match[1])
        if match := re.search(r"'best_checkpoint_metric': '(\w+)'", entry.text):
            self.log.best_metric = match[1]

    def _read_event(self, text: str) -> None:
        if match := _PARAMETERS.match(text):
            self.log.parameters = int(match[1].replace(",", ""))
        elif match := _LOADED.match(text):
            self.log.sentences[f"sentences of {match[2]}"] = match[1]
        elif match := _GPUS.search(text):
            self.log.gpu = self.log.gpu or "GPU"
        elif match := _GPU_NAME.match(text):
            self.log.gpu = match[1]
        elif match := _DEVICES.match(text):
            self.log.devices = int(match[1])
        elif text.startswith("No existing checkpoint found"):
            del self._spans[:-1], self._walls[:-1]
            self._speeds = {"train_inner": [], "train": []}
            self._forget_after(0)
        elif match := _RESUMED.match(text):
            self._forget_after(int(match[1]))
        elif text.startswith("done training in"):
            self.log.finished = True

    def _forget_after(self, update: int) -> None:
        self.log.updates = update or None
        self._validations = {
            at: validation for at, validation in self._validations.items() if at <= update
        }

    def _read_statistics(self, entry: LogLine) -> None:
        numbers = statistics_of(entry.logger, entry.text)
        if "num_updates" not in numbers:
            return
        update = int(numbers["num_updates"])
        self.log.updates = max(update, self.log.updates or 0)
        if entry.logger in self._speeds:
            if numbers.get("wps"):
                self._speeds[entry.logger].append(numbers["wps"])
            if self._walls:
                self._walls[-1] = max(self._walls[-1], numbers.get("wall", 0.0))
        elif self._validation_set in (None, entry.logger):
            self._validation_set = entry.logger
            self._validations[update] = Validation(
                update, numbers.get("loss"), numbers.get("ppl"), numbers.get("bleu")
            )

    def result(self) -> TrainingLog:
        # With a progress bar on a terminal, fairseq logs only whole epochs.
        speeds = self._speeds["train_inner"] or self._speeds["train"]
        self.log.words_per_second = statistics.median(speeds) if speeds else None
        if any(self._spans):
            spans = [span for span in self._spans if span]
            self.log.seconds = sum((end - start).total_seconds() for start, end in spans)
        else:
            self.log.seconds = sum(self._walls) or None
        self.log.validations = [self._validations[update] for update in sorted(self._validations)]
        return self.log
