"""The program that another interpreter runs to score by COMET: it answers each line of JSON by one.

It imports nothing from this package, which that interpreter may lack. The first input line names the
model. The first output line has COMET's version, and the others have scores; or a line has an error.
"""

import json
import os
import sys
from typing import Any


def _answer(out: Any, **content: Any) -> None:
    out.write(json.dumps(content) + "\n")
    out.flush()


def main() -> None:
    """Load a model, and score the items of each line."""
    # The libraries' output goes to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        from importlib.metadata import version

        from comet import download_model, load_from_checkpoint

        name = json.loads(sys.stdin.readline())
        model = load_from_checkpoint(name if os.path.isfile(name) else download_model(name))
        _answer(out, version=version("unbabel-comet"))
        for line in sys.stdin:
            prediction = model.predict(json.loads(line), batch_size=16, gpus=0, progress_bar=False)
            _answer(out, scores=[float(score) for score in prediction.scores])
    except Exception as error:  # it is raised again in the other process
        missing = isinstance(error, ModuleNotFoundError) and error.name == "comet"
        _answer(out, error=f"{type(error).__name__}: {error}", missing=missing)


if __name__ == "__main__":
    main()
