"""Scores of sentences that another program wrote: ``--metric file:NAME=SCORES``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.text import read_lines


class ScoreFile:
    """The numbers in a file, one for each sentence.

    Args:
        argument: ``NAME=SCORES``: the scores' name in the table, and the file in each run's folder, or
            the file of a single run. ``SUBSET`` in it becomes the test set's name.

    Raises:
        UserError: the argument has another form.
    """

    needs_sources = False

    def __init__(self, argument: str) -> None:
        self.title, _, self._name = argument.partition("=")
        if not self.title or not self._name:
            raise UserError(
                f"--metric file:{argument}: expected file:NAME=SCORES, such as file:COMET=comet.txt"
            )
        self.signature = f"file:{Path(self._name).name}"
        self._runs: dict[Path, tuple[Path, str]] = {}

    def of_run(self, folder: Path, subset: str) -> Callable[..., list[float]]:
        """Return a metric of a run's translation of a test set.

        Raises:
            UserError: the file is missing, is another run's too, or does not have a number for each
                sentence.
        """
        name = self._name.replace("SUBSET", subset)
        path = folder / name if (folder / name).is_file() else Path(name)
        if not path.is_file():
            raise UserError(
                f"--metric file:{self.title}={self._name}: {folder / name} is not there"
            )
        run = (folder, subset)
        if self._runs.setdefault(path.resolve(), run) != run:
            raise UserError(
                f"{path} has the scores of one translation, and this table has several: write each run's "
                "scores into its folder, with SUBSET in the name for several test sets"
            )
        scores = []
        for number, line in enumerate(read_lines(path), start=1):
            try:
                scores.append(float(line))
            except ValueError:
                raise UserError(f"{at(path, number)}: expected a number, not '{line}'") from None

        def found(sources: object, hypotheses: list[str], references: object) -> list[float]:
            if len(scores) != len(hypotheses):
                raise UserError(f"{path} has {len(scores)} scores of {len(hypotheses)} sentences")
            return scores

        return found
