"""Translation of chunks of lines by a model in this process, or by models in other processes."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fairseq_phrase.data.preprocessing.engines import EngineOptions, Job, in_order, run_jobs
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.output_files import Chunks, Outputs
from fairseq_phrase.inference.search import Hypothesis
from fairseq_phrase.inference.search_options import SearchOptions
from fairseq_phrase.inference.translator import load


class TranslationWorker:
    """A model that translates chunks of lines.

    Args:
        args: the options of ``fairseq-phrase-translate``.
        options_of_load: a function that returns other options of :func:`fairseq_phrase.load`. It is
            called in the process that loads, where it may register tasks and models.
        search: how translations are searched for.
        workers: the number of workers on this machine; they share its cores.
    """

    def __init__(
        self,
        args: Namespace,
        options_of_load: Callable[[], Mapping[str, Any]],
        search: SearchOptions,
        workers: int = 1,
    ) -> None:
        self._args, self._search = args, search
        self._model = load(
            args.path,
            args.data,
            source_tokenized=args.source_tokenized,
            target_tokenized=args.target_tokenized,
            **options_of_load(),
        )
        if workers > 1 and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, torch.get_num_threads() // workers))

    def texts(self, chunks: Chunks) -> Outputs:
        """Yield the number of lines of each chunk, and the output for them."""
        with closing(self._model.in_chunks(chunks, self._search)) as translated:
            for hypotheses in translated:
                yield (
                    len(hypotheses),
                    b"".join(
                        output_line(hypothesis, self._args)
                        for hypotheses_of_line in hypotheses
                        for hypothesis in hypotheses_of_line
                    ),
                )

    def __call__(self, job: Job) -> tuple[int, tuple[int, bytes]]:
        """Return the number of a job, and the number of its lines with their output."""
        (output,) = self.texts(iter([(job.first_line, job.lines)]))
        return job.number, output


def translated_chunks(
    make: partial[TranslationWorker], engine: EngineOptions, chunks: Chunks
) -> Outputs:
    """Translate chunks in this process or in others; yields the same as ``TranslationWorker.texts``."""
    if engine.is_this_process:
        return make().texts(chunks)
    return _elsewhere(make, engine, chunks)


def _elsewhere(make: partial[TranslationWorker], engine: EngineOptions, chunks: Chunks) -> Outputs:
    jobs = (Job(number, *chunk) for number, chunk in enumerate(chunks))
    finished = run_jobs(jobs, partial(make, workers=engine.workers), engine, "the model")
    yield from in_order(finished)


def with_gpus(engine: EngineOptions, device: str | None) -> EngineOptions:
    """Return an engine; each of its actors has a GPU if the models use GPUs."""
    if engine.name != "ray":
        return engine
    gpus = torch.cuda.device_count()
    kind, _, index = (device or ("cuda" if gpus else "cpu")).partition(":")
    if kind != "cuda":
        return engine
    if index:
        raise UserError(f"--device {device}: Ray chooses each actor's GPU: --device cuda")
    if engine.ray_address is None and engine.workers > gpus:
        raise UserError(
            f"--workers {engine.workers}: each actor needs a GPU, and this machine has {gpus}: fewer "
            "--workers, or --device cpu"
        )
    return replace(engine, gpus=1)


def output_line(hypothesis: Hypothesis, args: Namespace) -> bytes:
    """Write a hypothesis as a line, in the columns that the command's options ask for."""
    columns = [] if args.score else [hypothesis.text]
    if args.scores or args.score:
        columns.insert(0, "" if hypothesis.score is None else f"{hypothesis.score:.4f}")
    if args.alignments:
        columns.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return ("\t".join(columns) + "\n").encode()
