"""Source factors: embeddings of words' labels in addition to token embeddings, for any encoder.

Source: Sennrich and Haddow (2016). The encoder's embeddings are replaced after the model is built, so
fairseq's own models can have factors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, pad

from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.errors import UserError
from fairseq_phrase.models.model_parts import encoder_of
from fairseq_phrase.models.syntax_encoder import add_neutral
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
            _make_read(module)


_ENTRY = "source-factors"


def begin_with_factors(trained: Identity, here: Identity) -> Identity:
    """Let a model with factors, which start at 0, start from a model without.

    Returns:
        The record of the checkpoint, with the entry of factors.
    """
    if _ENTRY in trained.entries or _ENTRY not in here.entries:
        return trained
    return replace(trained, entries={**trained.entries, _ENTRY: here.entries[_ENTRY]})


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

    @contextmanager
    def reading(self, inputs: Mapping[str, Any]) -> Iterator[None]:
        """Use the parse of a batch. A batch without a parse keeps the current parse.

        Args:
            inputs: a batch's ``net_input``, with ``src_words`` and the factors' fields.
        """
        before = self._labels
        self._labels = self.labels(inputs) or before
        try:
            yield
        finally:
            self._labels = before

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


def _make_read(module: nn.Module) -> None:
    """Let a model or an encoder pass each batch to its embeddings, and to itself only accepted arguments.

    fairseq's generators call ``forward`` themselves, so a hook of torch would not run.
    """
    kind = type(module)
    names = [name for name in ("forward", "attention_maps") if hasattr(kind, name)]
    methods = {name: _reading(getattr(kind, name)) for name in names}
    module.__class__ = type(f"{kind.__name__}WithFactors", (kind,), methods)


def _reading(method: Callable[..., Any]) -> Callable[..., Any]:
    accepting = leaving_out_unknown(method)

    def read(self: Any, *args: Any, **inputs: Any) -> Any:
        with getattr(self, "encoder", self).embed_tokens.reading(inputs):
            return accepting(self, *args, **inputs)

    return read


def leaving_out_unknown(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function ignore keyword arguments that it does not accept.

    fairseq passes a batch's whole ``net_input`` to every encoder of an ensemble, but fairseq's encoders
    do not accept parses or other keywords.
    """
    names = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values()):
        return function

    def called(*args: Any, **inputs: Any) -> Any:
        return function(*args, **{name: inputs[name] for name in inputs if name in names})

    return called
