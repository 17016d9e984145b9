"""One vector for each sentence and layer: the mean of the encoder's states over the tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fairseq_phrase.errors import UserError
from fairseq_phrase.syntax.sentence import EncodedSentence

logger = logging.getLogger(__name__)
Layers = int | Literal["last", "all"]


class EncodedLines:
    """Subwords and parses of lines, kept for other models of the same data."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], EncodedSentence] = {}

    def encode(self, task: Any, lines: Sequence[str]) -> list[EncodedSentence]:
        """Segment lines into subwords, and parse them if the task's model needs trees.

        Raises:
            UserError: the task or the data's parser cannot encode raw text.
        """
        if not hasattr(task, "source_text"):
            raise UserError(
                "this model's task does not read raw text: train with --task syntax_translation"
            )
        read = frozenset(task.source_text.fields_to_parse)
        # The parser and the subword model are from the data.
        keys = [(task.cfg.data, read, line) for line in lines]
        new = list(dict.fromkeys(key for key in keys if key not in self._known))
        encoded = task.source_text.encode([line for *_, line in new])
        self._known.update(zip(new, encoded, strict=True))
        return [self._known[key] for key in keys]


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
        task: Any,
        *,
        layers: Layers = "last",
        max_tokens: int = 8000,
        device: torch.device | str = "cpu",
    ):
        if not hasattr(model, "encoder"):
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
        if cut := sum(len(sentence.pieces) > limit for sentence in sentences):
            logger.warning("%d sentences are cut to the model's %d subwords", cut, limit)
        found: dict[int, list[np.ndarray]] = {layer: [] for layer in self.layers}
        order: list[int] = []
        batches = self.task.source_text.batches(sentences, self.max_tokens, limit=limit)
        for batch, sample in batches:
            order += batch
            inputs = {name: value.to(self.device) for name, value in sample["net_input"].items()}
            with torch.no_grad():
                means = self._means(inputs)
            for layer, values in means.items():
                found[layer].append(values.float().cpu().numpy())
        inverse = np.argsort(order)
        return {layer: np.concatenate(values)[inverse] for layer, values in found.items()}

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
