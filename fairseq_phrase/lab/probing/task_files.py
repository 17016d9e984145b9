"""Probing tasks from files: SentEval's format, and X-Probe's.

Source: Conneau et al., *What you can cram into a single vector* (ACL 2018), and SentEval. SentEval has
a file for each task, ``TASK.txt``: split (``tr``, ``va`` or ``te``), tab, label, tab, text. X-Probe has a
file for each split, ``TASK.va.txt`` and ``TASK.te.txt``: text, tab, label.
"""

from __future__ import annotations

import logging
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.text import read_lines

logger = logging.getLogger(__name__)

#: The ten tasks by the kind of property, with their titles in table 3 of the structural paper.
GROUPS: dict[str, dict[str, str]] = {
    "surface": {"sentence_length": "SeLen", "word_content": "WC"},
    "syntactic": {"tree_depth": "TrDep", "top_constituents": "ToCo", "bigram_shift": "BShif"},
    "semantic": {
        "past_present": "Tense", "subj_number": "SubN", "obj_number": "ObjN", "odd_man_out": "SoMo",
        "coordination_inversion": "CoIn",
    },
}  # fmt: skip
SPLITS = ("tr", "va", "te")
_ORDER = [name for tasks in GROUPS.values() for name in tasks]
_NAME = re.compile(r"(?P<task>.+?)(?:\.(?P<split>tr|va|te))?\.txt(?:\.gz)?")
_FORMAT = "expected SentEval's split, label and text, with tabs between them"
_XPROBE_FORMAT = "expected X-Probe's text and label, with a tab between them"


@dataclass(frozen=True)
class Example:
    """A sentence and its label."""

    text: str
    label: str


@dataclass(frozen=True)
class ProbingTask:
    """A task.

    Attributes:
        name: its file's name, ``tree_depth``.
        valid: sentences to choose the classifier's settings by.
    """

    name: str
    train: list[Example]
    valid: list[Example]
    test: list[Example]

    @property
    def majority(self) -> float:
        """The accuracy of the most frequent label of ``train`` on ``test``."""
        ((label, _),) = Counter(example.label for example in self.train).most_common(1)
        return sum(example.label == label for example in self.test) / len(self.test)

    def sliced(self, sentences: int, seed: int) -> ProbingTask:
        """Keep a random part.

        Args:
            sentences: how many of ``train`` to keep, at most; of ``valid`` and ``test`` a quarter of
                this.
        """
        few = max(sentences // 4, 1)
        parts = zip((self.train, self.valid, self.test), (sentences, few, few), strict=True)
        return ProbingTask(self.name, *(_part(examples, count, seed) for examples, count in parts))

    def detokenized(self, language: str) -> ProbingTask:
        """Join words and punctuation again, as the Moses detokenizer of a language does."""
        with optional_packages("--detokenize needs sacremoses", "sacremoses"):
            from sacremoses import MosesDetokenizer
        join = MosesDetokenizer(language).detokenize
        splits = (self.train, self.valid, self.test)
        return ProbingTask(
            self.name,
            *(
                [Example(join(example.text.split()), example.label) for example in split]
                for split in splits
            ),
        )


def title(task: str) -> str:
    """Return a task's title in tables: its title in table 3, or its name."""
    return next((tasks[task] for tasks in GROUPS.values() if task in tasks), task)


def find_tasks(
    folders: Sequence[Path], names: Sequence[str] = (), *, seed: int = 1
) -> list[ProbingTask]:
    """Read the tasks of folders.

    X-Probe has no training files. Four fifths of the validation sentences (8,000 of 10,000), drawn at
    random, are then the training set; all copies of a sentence are in one set. Validation sentences that
    are also test sentences are left out. If this leaves less than half of them (the two files of
    X-Probe's tree_depth are the same), a fifth of the validation sentences becomes the test set, and
    four fifths of the rest the training set. This is logged.

    Args:
        folders: each holds files of tasks; other files than ``.txt`` and ``.txt.gz`` are left out.
        names: the tasks to read; all if empty.

    Returns:
        The tasks, in the order of table 3, then others by name.

    Raises:
        UserError: a folder or task is missing, a task occurs twice, or a file has an unknown format.
    """
    files: dict[str, dict[str, Path]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"{folder} is not a folder of probing tasks: name one with files of SentEval (TASK.txt) "
                "or X-Probe (TASK.va.txt and TASK.te.txt)"
            )
        for path in sorted(folder.iterdir()):
            match = _NAME.fullmatch(path.name)
            if match is None or (names and match["task"] not in names):
                continue
            splits = files.setdefault(match["task"], {})
            split = match["split"] or "all"
            if split in splits or (splits and "all" in {split, *splits}):
                raise UserError(
                    f"{path} and {next(iter(splits.values()))} are the same task: keep one"
                )
            splits[split] = path
    where = ", ".join(map(str, folders))
    for name in names or ([] if files else ["TASK"]):
        if name not in files:
            raise UserError(
                f"{where}: neither {name}.txt nor {name}.va.txt and {name}.te.txt is there"
            )
    order = sorted(files, key=lambda name: (_ORDER.index(name) if name in _ORDER else 99, name))
    return [_read_task(name, files[name], seed) for name in order]


def _read_task(name: str, files: dict[str, Path], seed: int) -> ProbingTask:
    if "all" in files:
        splits = _read_senteval(files["all"])
    else:
        splits = {split: list(_read_xprobe(path)) for split, path in files.items()}
    path = next(iter(files.values()))
    for split in ("va", "te"):
        if not splits.get(split):
            raise UserError(f"{path}: the task {name} has no sentences for '{split}'")
    if splits.get("tr"):
        return ProbingTask(name, splits["tr"], splits["va"], splits["te"])
    examples, test = _training_and_test(name, splits["va"], splits["te"], seed)
    if len(examples) < 2:
        raise UserError(f"{path}: {len(examples)} sentences are too few to train with")
    train, valid = _four_fifths(examples)
    return ProbingTask(name, train, valid, test)


def _training_and_test(
    name: str, examples: Sequence[Example], test: Sequence[Example], seed: int
) -> tuple[list[Example], list[Example]]:
    """Shuffle the validation sentences without those of the test set; return them and a test set."""
    shuffled = _part(examples, len(examples), seed)
    remaining = _without(shuffled, test)
    if len(remaining) >= len(examples) / 2:
        if len(remaining) < len(examples):
            logger.warning(
                "%s: %d of %d validation sentences are also test sentences and are left out",
                name, len(examples) - len(remaining), len(examples),
            )  # fmt: skip
        return remaining, list(test)
    fifth = len(shuffled) // 5
    logger.warning(
        "%s: %d of %d validation sentences are also test sentences; a fifth of the validation sentences "
        "is the test instead, and is not trained with",
        name, len(examples) - len(remaining), len(examples),
    )  # fmt: skip
    return _without(shuffled[fifth:], shuffled[:fifth]), shuffled[:fifth]


def _four_fifths(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Split sentences in two, with all copies of a sentence in one part if there are other sentences.

    Otherwise a classifier that memorized the validation sentences would seem to be the best.
    """
    first: dict[str, int] = {}
    for index, example in enumerate(examples):
        first.setdefault(example.text, index)
    together = sorted(examples, key=lambda example: first[example.text])
    boundary = max(len(together) * 4 // 5, 1)
    bounds = [
        index
        for index in range(1, len(together))
        if together[index].text != together[index - 1].text
    ]
    boundary = min(bounds, key=lambda index: abs(index - boundary), default=boundary)
    return together[:boundary], together[boundary:]


def _without(examples: Sequence[Example], excluded: Sequence[Example]) -> list[Example]:
    texts = {example.text for example in excluded}
    return [example for example in examples if example.text not in texts]


def _part(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    return random.Random(seed).sample(examples, min(count, len(examples)))


def _read_senteval(path: Path) -> dict[str, list[Example]]:
    splits: dict[str, list[Example]] = {split: [] for split in SPLITS}
    for number, line in enumerate(read_lines(path), start=1):
        split, label, text = _columns(path, number, line, 3, _FORMAT)
        if split not in splits:
            raise UserError(f"{location(path, number)}: the split is '{split[:20]}': {_FORMAT}")
        splits[split].append(Example(text, label))
    return splits


def _read_xprobe(path: Path) -> Iterable[Example]:
    for number, line in enumerate(read_lines(path), start=1):
        yield Example(*_columns(path, number, line, 2, _XPROBE_FORMAT))


def _columns(path: Path, number: int, line: str, count: int, expected: str) -> list[str]:
    columns = [column.strip() for column in line.split("\t")]
    if len(columns) != count or not all(columns):
        problem = "an empty column" if len(columns) == count else f"{len(columns)} columns"
        raise UserError(f"{location(path, number)}: {problem}: {expected}")
    return columns
