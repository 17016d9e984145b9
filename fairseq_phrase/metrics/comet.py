"""COMET (Rei et al., 2020) by its authors' package, ``unbabel-comet``."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

from fairseq_phrase.errors import needs


class Comet:
    """COMET's score of each sentence, times 100, on the CPU.

    Args:
        model: the name of a model, which is downloaded, or the file of a checkpoint.

    Raises:
        UserError: the package is not installed.
    """

    title = "COMET"

    def __init__(self, model: str = "Unbabel/wmt22-comet-da") -> None:
        with needs("COMET is not installed", "'fairseq-phrase[comet]'"):
            from comet import download_model, load_from_checkpoint
        path = model if Path(model).is_file() else download_model(model)
        self._model = load_from_checkpoint(path)
        self.signature = f"{model}|unbabel-comet:{version('unbabel-comet')}"

    def __call__(
        self, sources: list[str], hypotheses: list[str], references: list[list[str]]
    ) -> list[float]:
        """Score each sentence against the first reference."""
        names = ("src", "mt", "ref")
        lines = zip(sources, hypotheses, references[0], strict=True)
        items = [dict(zip(names, line, strict=True)) for line in lines]
        scores = self._model.predict(items, batch_size=16, gpus=0, progress_bar=False).scores
        return [100 * float(score) for score in scores]
