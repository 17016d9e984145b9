"""Reading of ``fairseq-generate``'s and ``fairseq-interactive``'s output; checks of its test set."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_phrase.data.store import identity
from fairseq_phrase.errors import UserError, location
from fairseq_phrase.text import read_lines

_SENTENCE = re.compile(r"([STD])-(\d+)\t(.*)")
_END = re.compile(r"Generate (\S+) with beam=(\d+): ")
_SPEED = re.compile(r"(?:\| |:)Translated [\d,]+ sentences .*\(([\d.]+) sentences/s")
_BATCH = re.compile(r"'max_tokens': (\w+), 'batch_size': (\w+)")
_SEARCH = re.compile(r"'batch_size': \w+\}(?:, models \[(.*)\])?, search \{(.*)\}$")
_COMPARED = f":{identity.__name__}:"  # before the messages of the comparison of records
_TOTAL = re.compile(r"(?:\| |:)Total time: ([\d.]+) seconds; translation time: ([\d.]+)")
# fairseq's log in the middle of a line, if stdout and stderr went to one file.
_MIXED = re.compile(r"(?:DEBUG|INFO|WARNING|ERROR):[\w.]+:|\d\d:\d\d:\d\d \| [A-Z]+ \| ")


@dataclass(frozen=True)
class Generation:
    """A translated test set, in its own order.

    Attributes:
        hypotheses: the best translation of each sentence, detokenized.
        sources: the sentences that fairseq printed; empty texts if it did not print them.
        targets: the references that fairseq printed; empty texts if it did not print them.
        subset: the test set's name, ``test``, ``test1``, ``valid``; None if fairseq did not print it.
        beam: the beam's size; None if fairseq did not print it.
        batch: the batches' size, ``100 sentences``; None without the log.
        speed: sentences per second, without parsing; None without the log.
        search: the options of the search that are not fairseq's defaults, but for the beam; None if the
            log lacks them.
        models: the names of the models' files; None if the log lacks them.
        differences: how the translation differs from the models' training, by the log.
    """

    hypotheses: list[str]
    sources: list[str]
    targets: list[str]
    subset: str | None
    beam: int | None
    batch: str | None
    speed: float | None
    search: str | None = None
    models: str | None = None
    differences: Sequence[str] = ()


def _log_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a command's log: its output, and the file next to it that ends in ``.log``."""
    for log in (path, path.with_suffix(".log")):
        if log.is_file():
            yield from read_lines(log)


def read_generation(path: Path) -> Generation:
    """Read the output of ``fairseq-generate``.

    fairseq 0.12.3 prints translations to stdout and its log, including the speed, to stderr. The log is
    searched in PATH and in the file next to it that ends in ``.log``.

    Args:
        path: its output, made with ``--bpe`` or ``--remove-bpe``: ``D-`` lines are text.

    Raises:
        UserError: the output is missing or incomplete, has two translations of a sentence, or has
            subwords.
    """
    texts: dict[str, dict[int, str]] = {"S": {}, "T": {}, "D": {}}
    ends = []
    for number, line in enumerate(read_lines(path), start=1):
        if match := _SENTENCE.fullmatch(line):
            kind, index, text = match.groups()
            if _MIXED.search(text):
                raise UserError(
                    f"{location(path, number)}: fairseq's log is in the middle of a sentence: translate "
                    "again, with 2>FILE.log to keep the log apart"
                )
            # With --nbest the best translation comes first.
            texts[kind].setdefault(int(index), text.split("\t", 1)[-1] if kind == "D" else text)
        elif match := _END.match(line):
            ends.append(match)
    if len(ends) > 1:
        raise UserError(f"{path} holds {len(ends)} outputs of fairseq-generate in a row")
    log = _read_log(path)
    best = texts["D"]
    is_complete = bool(ends) or log["speed"] is not None
    if not is_complete or not best or sorted(best) != list(range(len(best))):
        raise UserError(
            f"{path} is not a whole output of fairseq-generate ({len(best)} translations): run it again"
        )
    hypotheses = _in_order(best, len(best))
    _check_subwords(path, hypotheses)
    return Generation(
        hypotheses, _in_order(texts["S"], len(best)), _in_order(texts["T"], len(best)),
        ends[0][1] if ends else None, int(ends[0][2]) if ends else None, **log,
    )  # fmt: skip


def _in_order(texts: dict[int, str], count: int) -> list[str]:
    return [texts.get(index, "") for index in range(count)]


def _check_subwords(path: Path, hypotheses: list[str]) -> None:
    marked = sum(1 for text in hypotheses if re.search(r"▁|@@(?: |$)", text))
    if 2 * marked > len(hypotheses):
        raise UserError(
            f"{path} holds subwords, not text: translate with --bpe, or with --remove-bpe sentencepiece"
        )


def _read_log(path: Path) -> dict[str, Any]:
    """Read attributes of a :class:`Generation` from fairseq-generate's log."""
    values: dict[str, Any] = {"batch": None, "speed": None, "differences": []}
    for line in _log_lines(path):
        if match := _SPEED.search(line):
            values["speed"] = float(match[1])
        elif difference := identity.logged_differences(line.partition(_COMPARED)[2]):
            values["differences"].append(difference)
        elif ("fairseq_cli" in line) and (match := _BATCH.search(line)):
            tokens, sentences = match.groups()
            is_tokens = sentences == "None"
            values["batch"] = f"{tokens} tokens" if is_tokens else f"{sentences} sentences"
            if match := _SEARCH.search(line):
                options = match[2].split(", ")
                search = (option for option in options if not option.startswith("'beam'"))
                values |= {"models": match[1], "search": ", ".join(search)}
    return values


def read_interactive_speed(path: Path) -> float | None:
    """Read how fast ``fairseq-interactive`` translated raw sentences, including parsing.

    Args:
        path: its output; the log is in it or next to it, as for :func:`read_generation`.

    Returns:
        Sentences divided by the total logged time, which includes loading the model and the parser; None
        if the command did not finish.
    """
    sentences = sum(1 for line in read_lines(path) if re.match(r"S-\d+\t", line))
    seconds = None
    for line in _log_lines(path):
        if match := _TOTAL.search(line):
            seconds = float(match[1])
    return sentences / seconds if sentences and seconds else None


# Lines agree if they share this fraction of their pairs of letters. Texts agree if this fraction of their
# lines agrees. The threshold is below 1 because fairseq may print unknown words or escapes of a
# tokenizer.
_COMMON_PAIRS = 0.5
_COMMON_LINES = 0.8
_MARKS = re.compile(r"▁|@@ |<+unk>+|[\W_]")


def check_same_test_set(
    path: Path,
    generation: Generation,
    references: Sequence[str],
    sources: Sequence[str] | None = None,
) -> None:
    """Check that translations belong to the test set of the raw references and sources.

    Raises:
        UserError: the numbers of lines differ, or fairseq's references or sources are a different text.
    """
    count = len(generation.hypotheses)
    if count != len(references):
        raise UserError(
            f"{path} has {count} translations and the reference {len(references)} lines: they do "
            "not belong to the same test set"
        )
    texts = [("reference", generation.targets, references, "should become")]
    if sources:
        texts.append(("source", generation.sources, sources, "is"))
    for kind, printed, lines, verb in texts:
        index = different_line(printed, lines)
        if index is not None:
            raise UserError(
                f"{path} is the translation of another test set than the {kind}: sentence {index} {verb} "
                f"'{_shortened(printed[index])}', the {kind} has '{_shortened(lines[index])}'"
            )


def check_same_sources(outputs: Sequence[tuple[Path, Generation]]) -> None:
    """Check that all translations have the same sources.

    Raises:
        UserError: two of them have different sources.
    """
    first_path, first = outputs[0]
    for path, generation in outputs[1:]:
        index = different_line(first.sources, generation.sources)
        if index is not None:
            raise UserError(
                f"{first_path} and {path} have different test sets: sentence {index} is "
                f"'{_shortened(first.sources[index])}' and '{_shortened(generation.sources[index])}'"
            )


def different_line(lines: Sequence[str], other_text: Sequence[str]) -> int | None:
    """Compare two texts loosely.

    Args:
        other_text: as many lines; lines that are empty in either text are ignored.

    Returns:
        The first line that differs, from 0, if the texts differ; None if they are the same.
    """
    pairs = [
        (index, line, other_line)
        for index, (line, other_line) in enumerate(zip(lines, other_text, strict=True))
        if line and other_line
    ]
    different = [index for index, line, other_line in pairs if not lines_agree(line, other_line)]
    if len(different) > (1 - _COMMON_LINES) * len(pairs):
        return different[0]
    return None


def other_lines(printed: Sequence[str], files: Sequence[Sequence[str]]) -> list[int]:
    """Compare what fairseq printed with the files of its text, loosely.

    Args:
        printed: lines; those that are empty or have unknown words are ignored.
        files: texts with the same number of lines; where one is empty, the line is ignored.

    Returns:
        The lines, from 0, that agree with no file.
    """
    return [
        index
        for index, (line, *versions) in enumerate(zip(printed, *files, strict=True))
        if line and all(versions) and "<unk" not in line
        if not any(lines_agree(line, version) for version in versions)
    ]


def lines_agree(line: str, other_line: str) -> bool:
    """Return whether two lines have mostly the same letters in the same order."""
    first, second = _letters(line), _letters(other_line)
    if first == second:
        return True
    pairs, other_pairs = (
        {text[start : start + 2] for start in range(len(text) - 1)} for text in (first, second)
    )
    total = len(pairs) + len(other_pairs)
    return total > 0 and 2 * len(pairs & other_pairs) >= _COMMON_PAIRS * total


def _letters(line: str) -> str:
    return _MARKS.sub("", unicodedata.normalize("NFKC", html.unescape(line)).casefold())


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"
