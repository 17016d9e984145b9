"""Source factors: embeddings of words' labels in addition to token embeddings, for any encoder.

Source: Sennrich and Haddow (2016). The encoder's embeddings are replaced after the model is built, so
fairseq's own models can have factors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from fairseq.sequence_generator import EnsembleModelWithAlignment
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.methods.model_parts import encoder_of
from fairseq_phrase.methods.syntax_encoder import add_neutral
from fairseq_phrase.syntax.fields import FIELDS, PREFIX

#: The factor for a subword's position in its word.
SUBWORDS = "subwords"
#: ``<pad>`` in every dictionary of fairseq. As a label, it marks a token outside words.
_PAD = 1
#: The positions of subwords, by number: inside, beginning, end, and the whole word (I, B, E, O).
_INSIDE, _NUM_POSITIONS = 2, 6


@dataclass(frozen=True)
class SourceFactors:
    """The options of source factors.

    Attributes:
        names: parse fields of labels of words, and :data:`SUBWORDS`.

    Raises:
        UserError: a name is unknown, or given twice.
    """

    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        labelled = [
            name for name, field in FIELDS.items() if field.per == "word" and field.label_file
        ]
        for name in self.names:
            if name not in (*labelled, SUBWORDS):
                raise UserError(
                    f"--source-factors: '{name}' is not a field of labels of words: expected some of "
                    f"{', '.join([*labelled, SUBWORDS])}"
                )
        if len(set(self.names)) < len(self.names):
            raise UserError(f"--source-factors {','.join(self.names)}: name each factor once")

    @classmethod
    def of(cls, names: str | None) -> SourceFactors:
        """Read ``--source-factors``."""
        return cls(tuple(names.split(",")) if names else ())

    @classmethod
    def recorded(cls, identity: Identity) -> SourceFactors:
        """Read the result of :meth:`entries`."""
        return cls.of(identity.value(_ENTRY))

    def entries(self) -> dict[str, Entry]:
        """Return the entries of an identity record; empty without factors."""
        value = ",".join(self.names)
        return {_ENTRY: Entry(value, value, "encoder", default="")} if self.names else {}

    @property
    def fields(self) -> list[str]:
        """The parse fields that the factors need."""
        return ["words", *(name for name in self.names if name != SUBWORDS)] if self.names else []

    def add_to(self, model: Any, count_labels: Callable[[str], int]) -> None:
        """Give a model's encoder factored embeddings.

        Args:
            count_labels: returns the size of a field's label dictionary.

        Raises:
            UserError: the encoder lacks embeddings.
        """
        encoder = encoder_of(model)
        table = getattr(encoder, "embed_tokens", None)
        if encoder is None or table is None:
            raise UserError(
                f"--source-factors: {type(encoder or model).__name__} has no embeddings of tokens"
            )
        sizes = {
            name: _NUM_POSITIONS if name == SUBWORDS else count_labels(name) for name in self.names
        }
        encoder.embed_tokens = FactoredEmbedding(table, sizes)
        for module in (model, encoder):
            module.register_forward_pre_hook(_read, prepend=True, with_kwargs=True)
            module.register_forward_hook(_forget, always_call=True)


_ENTRY = "source-factors"


def begin_with_factors(trained: Identity, here: Identity) -> Identity:
    """Let a model with factors, which start at 0, start from a model without.

    Returns:
        The record of the checkpoint, with the entry of factors.
    """
    if _ENTRY in trained.entries or _ENTRY not in here.entries:
        return trained
    return trained.with_entries({_ENTRY: here.entries[_ENTRY]})


class FactoredEmbedding(nn.Module):
    """The embeddings of tokens, plus embeddings of their words' labels.

    The latter start at 0, so training starts from the encoder without factors.

    Args:
        table: the embeddings of tokens, of width d.

    Attributes:
        weight: the table's embeddings of tokens.
        factors: by factor, the embeddings of labels.
    """

    def __init__(self, table: nn.Embedding, sizes: Mapping[str, int]) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = table.num_embeddings, table.embedding_dim
        self.padding_idx = _PAD
        self.weight = table.weight
        self.factors = nn.ModuleDict()
        for name, size in sizes.items():
            neutral = torch.zeros(size, self.embedding_dim)
            self.factors[name] = nn.Embedding.from_pretrained(neutral, False, _PAD)
        self._labels: dict[str, Tensor] = {}

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Add factors of value 0 to a checkpoint that lacks them; see fairseq."""
        add_neutral(self, ["factors"], state_dict, name)

    def read(self, inputs: Mapping[str, Any] | None) -> None:
        """Use the parse of a batch until the next call. A batch without a parse keeps the current parse.

        Args:
            inputs: a batch's ``net_input``, with ``src_words`` and the factors' fields; None to forget
                it.
        """
        self._labels = {} if inputs is None else self.labels(inputs) or self._labels

    def labels(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the label of each token by factor; factors whose field is missing are omitted.

        Shape: (batch, tokens), int64.
        """
        words: Tensor | None = inputs.get(f"{PREFIX}words")
        by_factor: dict[str, Tensor] = {}
        if words is None:
            return by_factor
        for name in self.factors:
            if name == SUBWORDS:
                # A subword is first (last) in its word if the token before (after) it has another word.
                first = words != pad(words, (1, -1), value=-1)
                last = words != pad(words, (-1, 1), value=-1)
                labels = _INSIDE + first.long() + 2 * last
            elif (of_words := inputs.get(f"{PREFIX}{name}")) is not None:
                # One column more, for a batch without words.
                labels = pad(of_words, (0, 1)).gather(1, words.clamp(min=0))
            else:
                continue
            by_factor[name] = labels.masked_fill(words < 0, _PAD)
        return by_factor

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens. Shape: (batch, tokens, d).

        Args:
            tokens: token indices of the batch that is read. Shape: (batch, tokens).

        Raises:
            ValueError: the batch does not carry the field of a factor.
        """
        embedded: Tensor = embedding(tokens, self.weight, self.padding_idx)
        for name, table in self.factors.items():
            if name not in self._labels:
                field = "words" if name == SUBWORDS else name
                raise ValueError(
                    f"the batch carries no {field}: use --task syntax_translation, or pass "
                    f"{PREFIX}{field}"
                )
            embedded = embedded + table(self._labels[name])
        return embedded


def factored_embedding(encoder: Any) -> FactoredEmbedding | None:
    """Return the embeddings of an encoder's tokens if they have factors."""
    table = getattr(encoder, "embed_tokens", None)
    return table if isinstance(table, FactoredEmbedding) else None


@contextmanager
def reading(encoder: Any, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Let an encoder's embeddings read the parse of a batch in other methods than ``forward``."""
    table = factored_embedding(encoder)
    if table is not None:
        table.read(inputs)
    try:
        yield
    finally:
        if table is not None:
            table.read(None)


def _read(module: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Pass the parse of a batch to the embeddings; a hook before a model and before its encoder.

    A model may keep the parse from its encoder, whose labels are then those that the model has read.
    """
    getattr(module, "encoder", module).embed_tokens.read(inputs)
    return leave_out_unknown(module, args, inputs)


def _forget(module: Any, *_: Any) -> None:
    getattr(module, "encoder", module).embed_tokens.read(None)


def leave_out_unknown(module: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Leave out keyword arguments that a module does not accept; a hook before its call.

    fairseq passes a batch's whole ``net_input`` to every encoder of an ensemble, but fairseq's encoders
    do not accept parses or other keywords.
    """
    kind: Any = type(module)
    accepted = _keywords(kind)
    if accepted is not None:
        inputs = {name: value for name, value in inputs.items() if name in accepted}
    return args, inputs


@cache
def _keywords(kind: Any) -> frozenset[str] | None:
    """Return the arguments that a module accepts; None if it accepts all."""
    parameters = inspect.signature(kind.forward).parameters
    accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return None if accepts_all else frozenset(parameters)


class HookedEnsemble(EnsembleModelWithAlignment):
    """fairseq's ensemble, but encoders are called as modules, so their hooks run."""

    def forward_encoder(self, net_input: dict[str, Any]) -> list[Any] | None:
        """Encode a batch with each model; None if they have no encoder."""
        if not self.has_encoder():
            return None
        inputs = {name: value for name, value in net_input.items() if name != "prev_output_tokens"}
        return [model.encoder(**inputs) for model in self.models]
