"""Probing of several checkpoints with several tasks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from fairseq_phrase.errors import UserError, needs
from fairseq_phrase.evaluation.probing.classifier import Probe, ProbeOptions, probe
from fairseq_phrase.evaluation.probing.results import Results
from fairseq_phrase.evaluation.probing.sentence_vectors import EncodedLines, Layers, SentenceVectors
from fairseq_phrase.evaluation.probing.task_files import ProbingTask


def probe_checkpoints(
    checkpoints: Sequence[tuple[str, Path]],
    load: Callable[[Path], tuple[Any, Any]],
    tasks: Sequence[ProbingTask],
    *,
    layers: Layers = "last",
    options: ProbeOptions | None = None,
    max_tokens: int = 8000,
    device: torch.device | str = "cpu",
    workers: int = 1,
    finished: Path | None = None,
) -> Results:
    """Probe all checkpoints with all tasks.

    A sentence is encoded once for all layers and classifiers of a checkpoint, and it is parsed once for
    all checkpoints that share data.

    Args:
        checkpoints: names in tables, and files. Several checkpoints of one name are seeds of one model.
        load: loads a checkpoint's model and task; with the same parser for all, if one is named.
        layers: a layer's number, ``"last"`` or ``"all"``.
        max_tokens: tokens in a batch with its padding, at most.
        finished: a folder that keeps the classifiers' results. A later call does not train a classifier
            of the same vectors, labels and options again. None to keep nothing.

    Raises:
        UserError: a checkpoint cannot be loaded or encode raw text, a task cannot be learned, or two
            checkpoints of one name are the same or have different layers.
    """
    lines = EncodedLines()
    found: dict[str, dict[str, dict[int, dict[str, Probe]]]] = {}
    for index, (name, checkpoint) in enumerate(checkpoints):
        if (name, checkpoint) in checkpoints[:index]:
            raise UserError(f"{checkpoint} is probed twice as '{name}'")
    with tqdm(total=len(checkpoints) * len(tasks), unit="task", file=sys.stderr) as progress:
        for name, checkpoint in checkpoints:
            seeds = found.setdefault(name, {})
            model, task = load(checkpoint)
            vectors = SentenceVectors(
                model, task, layers=layers, max_tokens=max_tokens, device=device
            )
            if any(list(layers) != vectors.layers for layers in seeds.values()):
                raise UserError(
                    f"{checkpoint} does not have the layers of {next(iter(seeds))}: they cannot both "
                    f"be '{name}'"
                )
            by_layer: dict[int, dict[str, Probe]] = {layer: {} for layer in vectors.layers}
            seeds[str(checkpoint)] = by_layer
            for probing in tasks:
                progress.set_description(f"{name}: {probing.name}")
                for layer, result in _probe_task(
                    probing, vectors, lines, options or ProbeOptions(), workers, finished
                ):
                    by_layer[layer][probing.name] = result
                progress.update()
    return Results(tasks, found)


def _probe_task(
    probing: ProbingTask,
    vectors: SentenceVectors,
    lines: EncodedLines,
    options: ProbeOptions,
    workers: int,
    finished: Path | None,
) -> list[tuple[int, Probe]]:
    with needs("probing needs scikit-learn", "'fairseq-phrase[probe]'"):
        from joblib import Memory, Parallel, delayed
    splits = (probing.train, probing.valid, probing.test)
    # joblib stores the arguments' text next to the cached results, and shortens only the text of arrays.
    labels = [np.array([example.label for example in split]) for split in splits]
    texts = [example.text for split in splits for example in split]
    by_layer = vectors(lines.encode(vectors.task, texts))
    ends = [len(splits[0]), len(splits[0]) + len(splits[1])]
    # Workers get large arrays as memory-mapped files. joblib distinguishes these from arrays. Unless it
    # also maps its own files, it would train again with a different number of workers.
    train = delayed(Memory(finished, mmap_mode="r", verbose=0).cache(probe))
    try:
        probes = Parallel(n_jobs=workers)(
            train([found[: ends[0]], found[ends[0] : ends[1]], found[ends[1] :]], labels, options)
            for found in by_layer.values()
        )
    except UserError as error:
        raise UserError(f"the task {probing.name}: {error}") from None
    return list(zip(by_layer, probes, strict=True))
