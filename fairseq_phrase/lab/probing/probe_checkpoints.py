"""Probing of several checkpoints with several tasks.

A sentence has one vector for each layer: the mean of the encoder's states over the tokens.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from fairseq_phrase.data.batches.source_batches import SourceTask
from fairseq_phrase.errors import UserError
from fairseq_phrase.lab.probing.classifier import Probe, ProbeOptions, probe
from fairseq_phrase.lab.probing.results import Results
from fairseq_phrase.lab.probing.task_files import ProbingTask
from fairseq_phrase.methods.common.parse_batch import to_device
from fairseq_phrase.methods.model_parts import encoder_of
from fairseq_phrase.optional_packages import optional_packages
from fairseq_phrase.syntax.sentence import EncodedSentence

if TYPE_CHECKING:
    from fairseq_phrase.fairseq_types import Task

logger = logging.getLogger(__name__)
Layers = int | Literal["last", "all"]


class EncodedLines:
    """Subwords and parses of lines, kept for other models of the same data."""

    def __init__(self) -> None:
        self._sentences: dict[tuple[Any, ...], EncodedSentence] = {}

    def encode(self, task: Task | SourceTask, lines: Sequence[str]) -> list[EncodedSentence]:
        """Segment lines into subwords, and parse them if the task's model needs trees.

        Raises:
            UserError: the task or the data's parser cannot encode raw text.
        """
        if not isinstance(task, SourceTask):
            raise UserError(
                "this model's task does not read raw text: train with --task syntax_translation"
            )
        read = frozenset(task.source_text.fields_to_parse)
        # The parser and the subword model are from the data.
        keys = [(task.cfg.data, task.cfg.source_lang, read, line) for line in lines]
        new = list(dict.fromkeys(key for key in keys if key not in self._sentences))
        encoded = task.source_text.encode([line for *_, line in new])
        self._sentences.update(zip(new, encoded, strict=True))
        return [self._sentences[key] for key in keys]


class SentenceVectors:
    """A model's encoder as a function from sentences to vectors.

    Args:
        model: has an encoder; in evaluation mode.
        layers: a layer from 0 (the input of the first layer) to the last one, ``"last"`` or ``"all"``.
        max_tokens: tokens in a batch with its padding, at most; a longer sentence has a separate batch.

    Raises:
        UserError: the model lacks an encoder, or the encoder has fewer layers.
    """

    def __init__(
        self,
        model: Any,
        task: SourceTask,
        *,
        layers: Layers = "last",
        max_tokens: int = 4000,
        device: torch.device | str = "cpu",
    ):
        if encoder_of(model) is None:
            raise UserError("this checkpoint's model has no encoder")
        self.encoder = model.encoder.to(device).eval()
        self.task, self.max_tokens, self.device = task, max_tokens, torch.device(device)
        last = getattr(self.encoder, "num_layers", 0)
        if not last:
            raise UserError("this checkpoint's encoder does not state its number of layers")
        numbers = {"last": [last], "all": list(range(last + 1))}
        self.layers: list[int] = numbers[layers] if isinstance(layers, str) else [layers]
        if self.layers[0] > last:
            raise UserError(f"--layer {layers}: this encoder has the layers 0 to {last}")

    def __call__(self, sentences: Sequence[EncodedSentence]) -> dict[int, np.ndarray]:
        """Compute the vectors of sentences of :class:`EncodedLines`, in batches of similar length.

        The mean is over all tokens, including the end of sentence, since a decoder attends to it; phrases
        and constituents do not count. The last layer's states are the encoder's output. A sentence longer
        than the model's positions is truncated.

        Returns:
            The vectors by layer. Shape: ``(sentences, width)`` each, float32.
        """
        # The subwords for which the model has positions, in addition to the end of sentence.
        limit = int(self.encoder.max_positions()) - 1
        if num_truncated := sum(len(sentence.subwords) > limit for sentence in sentences):
            logger.warning(
                "%d sentences are truncated to the model's %d subwords", num_truncated, limit
            )
        by_layer: dict[int, list[np.ndarray]] = {layer: [] for layer in self.layers}
        order: list[int] = []
        batches = self.task.source_text.batches(sentences, self.max_tokens, limit=limit)
        for batch, sample in batches:
            order += batch
            inputs = to_device(sample["net_input"], self.device)
            with torch.no_grad():
                means = self._means(inputs)
            for layer, values in means.items():
                by_layer[layer].append(values.float().cpu().numpy())
        inverse = np.argsort(order)
        return {layer: np.concatenate(values)[inverse] for layer, values in by_layer.items()}

    def _means(self, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
        """Compute the means of a batch by layer. Shape: ``(batch, width)`` each."""
        encoded = self.encoder(**inputs, return_all_hiddens=True)
        states, last = encoded["encoder_states"], len(encoded["encoder_states"]) - 1
        is_token = inputs["src_tokens"].ne(self.task.source_dictionary.pad())
        means = {}
        for layer in self.layers:
            # Tokens are the first nodes. The output is the last layer's states, normalized.
            nodes = encoded["encoder_out"][0] if layer == last else states[layer]
            tokens = nodes[: is_token.size(1)].transpose(0, 1)
            sums = tokens.masked_fill(~is_token.unsqueeze(2), 0.0).sum(1)
            means[layer] = sums / is_token.sum(1, keepdim=True)
        return means


def probe_checkpoints(
    checkpoints: Sequence[tuple[str, Path]],
    load: Callable[[Path], tuple[Any, Any]],
    tasks: Sequence[ProbingTask],
    *,
    layers: Layers = "last",
    options: ProbeOptions | None = None,
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
        finished: a folder that keeps the classifiers' results. A later call does not train a classifier
            of the same vectors, labels and options again, unless scikit-learn has another version. None
            to keep nothing.

    Raises:
        UserError: a checkpoint cannot be loaded or encode raw text, a task cannot be learned, or two
            checkpoints of one name are the same or have different layers.
    """
    lines = EncodedLines()
    probes: dict[str, dict[str, dict[int, dict[str, Probe]]]] = {}
    for index, (name, checkpoint) in enumerate(checkpoints):
        if (name, checkpoint) in checkpoints[:index]:
            raise UserError(f"{checkpoint} is probed twice as '{name}'")
    with tqdm(total=len(checkpoints) * len(tasks), unit="task", file=sys.stderr) as progress:
        for name, checkpoint in checkpoints:
            seeds = probes.setdefault(name, {})
            model, task = load(checkpoint)
            vectors = SentenceVectors(model, task, layers=layers, device=device)
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
    return Results(tasks, probes)


def _probe_task(
    probing: ProbingTask,
    vectors: SentenceVectors,
    lines: EncodedLines,
    options: ProbeOptions,
    workers: int,
    finished: Path | None,
) -> list[tuple[int, Probe]]:
    with optional_packages("probing needs scikit-learn", "scikit-learn"):
        from joblib import Memory, Parallel, delayed
        from sklearn import __version__ as version
    splits = (probing.train, probing.valid, probing.test)
    # joblib stores the arguments' text next to the cached results, and shortens only the text of arrays.
    labels = [np.array([example.label for example in split]) for split in splits]
    texts = [example.text for split in splits for example in split]
    by_layer = vectors(lines.encode(vectors.task, texts))
    ends = [len(splits[0]), len(splits[0]) + len(splits[1])]
    # Workers get large arrays as memory-mapped files. joblib distinguishes these from arrays. Unless it
    # also maps its own files, it would train again with a different number of workers.
    cache = finished and finished / f"scikit-learn {version}"
    train = delayed(Memory(cache, mmap_mode="r", verbose=0).cache(probe))
    try:
        probes = Parallel(n_jobs=workers)(
            train(
                [states[: ends[0]], states[ends[0] : ends[1]], states[ends[1] :]], labels, options
            )
            for states in by_layer.values()
        )
    except UserError as error:
        raise UserError(f"the task {probing.name}: {error}") from None
    return list(zip(by_layer, probes, strict=True))
