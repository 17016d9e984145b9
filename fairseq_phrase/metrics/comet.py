"""COMET (Rei et al., 2020) by its authors' package, ``unbabel-comet``, in another interpreter.

The package pins older versions of transformers and NumPy than this project needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import weakref
from importlib.resources import files
from typing import Any

from fairseq_phrase.errors import UserError
from fairseq_phrase.text import read_json

#: The environment variable that names an interpreter with ``unbabel-comet``; by default this one.
PYTHON = "FAIRSEQ_PHRASE_COMET_PYTHON"


class Comet:
    """COMET's score of each sentence, times 100, on the CPU.

    Args:
        model: the name of a model, which is downloaded, or the file of a checkpoint.

    Raises:
        UserError: the interpreter cannot be started, or lacks the package.
    """

    title = "COMET"

    def __init__(self, model: str = "Unbabel/wmt22-comet-da") -> None:
        self._python = os.environ.get(PYTHON) or sys.executable
        program = files("fairseq_phrase.metrics").joinpath("comet_worker.py").read_text("utf-8")
        # Modules that this process finds by PYTHONPATH may not fit the other interpreter.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        try:
            self._process = subprocess.Popen(
                [self._python, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env=environment, text=True, encoding="utf-8",
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"{PYTHON}: {self._python} cannot be run: {error.strerror}") from None
        # The worker ends when its input ends.
        weakref.finalize(self, self._process.communicate)
        self.signature = f"{model}|unbabel-comet:{self._ask(model)['version']}"

    def _ask(self, question: Any) -> dict[str, Any]:
        """Return the answer to a line."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended; its last output explains why
        answer = read_json(self._process.stdout.readline() or "{}")
        if answer.get("missing"):
            raise UserError(
                f"COMET is not installed for {self._python}. Install it elsewhere: python3 -m venv comet "
                f"&& comet/bin/pip install unbabel-comet && export {PYTHON}=comet/bin/python"
            )
        if not answer or "error" in answer:
            reason = answer.get("error", "it ended without an answer")
            raise UserError(f"COMET failed in {self._python}: {reason}")
        return dict(answer)

    def __call__(
        self, sources: list[str], hypotheses: list[str], references: list[list[str]]
    ) -> list[float]:
        """Score each sentence against the first reference."""
        lines = zip(sources, hypotheses, references[0], strict=True)
        items = [{"src": source, "mt": output, "ref": right} for source, output, right in lines]
        return [100 * score for score in self._ask(items)["scores"]]
