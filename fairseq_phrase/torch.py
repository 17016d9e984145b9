"""Relation biases for models of transformers, without fairseq and spaCy.

    model = add_relation_bias(BertForTokenClassification.from_pretrained(folder), labels=["nsubj", …])
    model(**encoding, **collate(encoding, parses, labels))
    model.save_pretrained(saved)
    model = from_pretrained(BertForTokenClassification, saved)

Load by :func:`from_pretrained` of this module. That of transformers' classes leaves the biases out.
``docs/models/tree_relations.md`` describes the biases. They are added to the attention mask of every
self-attention of the encoder, which transformers adds to the scores.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.modules.positions.relation_bias import (
    RelationBias,
    kinds_of_pairs,
    sentence_buckets,
    tree_relations,
)
from fairseq_phrase.modules.positions.tree_positions import TreePositions
from fairseq_phrase.modules.tensors import cached_per_tensor

Model = TypeVar("Model", bound=nn.Module)

#: By type of model, where an encoder's layers are, and where in a layer its self-attention is.
FAMILIES = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), ("encoder.layer", "attention.self")),
    **dict.fromkeys(("bart", "mbart", "marian"), ("layers", "self_attn")),
    **dict.fromkeys(("t5", "mt5"), ("block", "layer.0.SelfAttention")),
    "distilbert": ("transformer.layer", "attention"),
}
#: Arguments of a forward pass in addition to transformers' own arguments.
_PARSE = ("src_words", "src_heads", "src_deprels")


class _Relations:
    """The relations of the current batch, which all layers share."""

    tree: Tensor | None = None
    _kinds: Tensor | None = None

    def read(self, num_labels: int, parse: Sequence[Tensor | None]) -> None:
        words, heads, labels = parse
        self.tree = self._kinds = None
        if words is None or heads is None:
            return
        if num_labels and labels is None:
            raise UserError("this model has biases for labels: pass src_deprels, too (collate)")
        positions = TreePositions(words, heads, torch.zeros_like(words, dtype=torch.bool))
        self.tree = tree_relations(positions, labels if num_labels else None, num_labels)

    def kinds(self, bias: RelationBias, states: Tensor) -> Tensor:
        """Return :func:`kinds_of_pairs` of the states' tokens."""
        batch, size, _ = states.shape
        tree, found = None if bias.tree_bias is None else self.tree, self._kinds
        shape = 1 if bias.tree_bias is None else batch, size, size
        if found is None or found.shape != shape or found.device != states.device:
            if bias.tree_bias is not None and (tree is None or tree.shape != shape):
                raise UserError(
                    "this model has tree biases: pass src_words and src_heads of the same batch (collate)"
                )
            wanted = bias.sequence_bias is not None
            buckets = sentence_buckets(size, states.device) if wanted else None
            self._kinds = found = kinds_of_pairs(tree, buckets)
        return found


def _add_to_mask(
    position: int, name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Add the biases to the mask, an argument of this position and name, of a self-attention's call."""
    states, bias = args[0] if args else kwargs["hidden_states"], module.relation_bias
    mask = args[position] if len(args) > position else kwargs.get(name)
    masked = None
    if mask is not None and mask.dtype == torch.bool:
        masked = cached_per_tensor(mask, "masked", lambda: ~mask[:, 0])
    added = bias.bias(module.relations.kinds(bias, states), masked).to(states.dtype)
    if mask is not None and masked is None:
        added = added + mask
    if len(args) > position:
        return (*args[:position], added, *args[position + 1 :]), kwargs
    return args, kwargs | {name: added}


@functools.cache
def _with_biases(base: Any) -> Any:
    """Derive the class of a model whose configuration has ``relation_bias``."""

    def take(self: Any, kwargs: dict[str, Any]) -> None:
        parse = [kwargs.pop(name, None) for name in _PARSE]
        self.relations.read(len(self.config.relation_bias["labels"]), parse)

    class Biased(base):
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            install_biases(self)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            take(self, kwargs)
            return super().forward(*args, **kwargs)

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            # The encoder runs before the first forward pass, and before sentences are repeated for beams.
            take(self, kwargs)
            return super().generate(*args, **kwargs)

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, RelationBias):
                for table in module.parameters():
                    if not getattr(table, "_is_hf_initialized", False):
                        nn.init.zeros_(table)
            else:
                super()._init_weights(module)

    # transformers reads the signatures: Trainer, to choose columns, and generate, to check arguments.
    own = inspect.signature(base.forward)
    known = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    rest = [p for p in own.parameters.values() if p.kind is inspect.Parameter.VAR_KEYWORD]
    new = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in _PARSE]
    signature = own.replace(parameters=[*known, *new, *rest])
    Biased.forward.__signature__ = signature  # type: ignore[attr-defined]
    Biased.__name__, Biased.__qualname__, Biased.__module__ = (
        base.__name__,
        base.__qualname__,
        base.__module__,
    )
    return Biased


def install_biases(model: Any) -> None:
    """Add the biases that the configuration names to every self-attention of the encoder.

    ``model.relations.read`` then takes a batch's words, heads and labels before the encoder is called.
    """
    config, chosen = model.config, model.config.relation_bias
    layers, attention = FAMILIES[config.model_type]
    encoder = model.get_encoder() if config.is_encoder_decoder else model.base_model
    encoder = getattr(encoder, "encoder", encoder) if layers == "block" else encoder
    model.relations = _Relations()
    weight = next(encoder.parameters())
    for layer in encoder.get_submodule(layers):
        module = layer.get_submodule(attention)
        # Model families name this number differently; BART uses one of the names with another meaning.
        num_heads = getattr(config, "encoder_attention_heads", config.num_attention_heads)
        bias = RelationBias(num_heads, chosen["kind"], len(chosen["labels"]))
        module.relation_bias = bias.to(device=weight.device, dtype=weight.dtype)
        module.relations = model.relations
        names = list(inspect.signature(module.forward).parameters)
        name = "mask" if "mask" in names else "attention_mask"
        hook = functools.partial(_add_to_mask, names.index(name), name)
        module.register_forward_pre_hook(hook, with_kwargs=True)


def add_relation_bias(model: Model, kind: str = "both", labels: Sequence[str] = ()) -> Model:
    """Add relation biases, which are 0 at the start, to the encoder of a transformers model.

    The model then takes ``src_words``, ``src_heads`` and ``src_deprels`` (:func:`collate`), also in
    ``generate``. ``save_pretrained`` saves the biases; :func:`from_pretrained` loads them.

    Args:
        model: a T5, BART, mBART, Marian, BERT, DistilBERT, RoBERTa or XLM-RoBERTa model, with any head.
            It is changed.
        kind: relations in the tree (``"tree"``), in the sentence (``"sequence"``), or ``"both"``.
        labels: dependency labels that have a bias; none by default.

    Returns:
        The model.

    Raises:
        UserError: the model is of another type, is a decoder, or already has biases; or its attention
            implementation takes no biases.
        ValueError: the kind is unknown.
    """
    config: Any = model.config
    if config.model_type not in FAMILIES:
        raise UserError(
            f"a {config.model_type} model takes no relation biases: expected one of "
            f"{', '.join(sorted(FAMILIES))}"
        )
    if getattr(config, "is_decoder", False) and not config.is_encoder_decoder:
        raise UserError("this model is a decoder: relation biases are for encoders")
    if getattr(config, "relation_bias", None):
        raise UserError("this model has relation biases already")
    if config._attn_implementation not in ("eager", "sdpa"):
        raise UserError(
            f"attn_implementation={config._attn_implementation!r} takes no biases: "
            'load the model with attn_implementation="sdpa" or "eager"'
        )
    if labels and kind == "sequence":
        raise UserError('labels need kind="tree" or "both"')
    RelationBias(1, kind)  # an unknown kind leaves the model unchanged
    config.relation_bias = {"kind": kind, "labels": list(labels)}
    plain: Any = type(model)
    model.__class__ = _with_biases(plain)
    install_biases(model)
    return model


def from_pretrained(model_class: Any, path: Any, **kwargs: Any) -> Any:
    """Load a model that :func:`add_relation_bias` made and ``save_pretrained`` saved.

    Args:
        model_class: the model's class in transformers, such as ``BertForTokenClassification``.
        **kwargs: for ``model_class.from_pretrained``.

    Raises:
        UserError: the model has no relation biases.
    """
    config = kwargs.pop("config", None) or model_class.config_class.from_pretrained(path)
    if not getattr(config, "relation_bias", None):
        raise UserError(f"{path} has no relation biases: load it by transformers, then add them")
    return _with_biases(model_class).from_pretrained(path, config=config, **kwargs)


def collate(
    tokenized: Any,
    parses: Sequence[tuple[Sequence[int], Sequence[str]]],
    labels: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Make a batch's words, heads and labels for a model with relation biases.

    Args:
        tokenized: the output of a fast tokenizer for lists of words (``is_split_into_words=True``).
        parses: for each sentence, the 0-based head of each word (a root is its own head) and the
            words' dependency labels, which may be empty without ``labels``.
        labels: the labels given to :func:`add_relation_bias`.

    Returns:
        ``src_words`` (shape (batch, tokens), -1 at tokens of no word), ``src_heads`` (shape (batch,
        words), -1 at padding) and, with labels, ``src_deprels`` (shape (batch, words), 0 at padding),
        int64.

    Raises:
        UserError: the tokenizer does not return the tokens' words, a sentence has another number of
            words than its parse, or a label is unknown.
    """
    try:
        words = [tokenized.word_ids(row) for row in range(len(parses))]
    except (AttributeError, ValueError, IndexError):
        raise UserError(
            "the tokenizer does not know which word each token belongs to (word_ids), or there are "
            "more parses than sentences: use a fast tokenizer, on lists of words, for all sentences"
        ) from None
    numbers = {label: number for number, label in enumerate(labels)}
    width = max((len(heads) for heads, _ in parses), default=0)
    of_heads, of_labels = [], []
    for row, (heads, names) in enumerate(parses):
        last = max((word for word in words[row] if word is not None), default=-1)
        if last >= len(heads) or (labels and len(names) != len(heads)):
            raise UserError(
                f"sentence {row}: {last + 1} words have tokens, and the parse has {len(heads)} heads "
                f"and {len(names)} labels"
            )
        if unknown := set(names) - set(numbers) if labels else set():
            raise UserError(f"sentence {row}: unknown labels {', '.join(sorted(unknown))}")
        of_heads.append([*heads, *[-1] * (width - len(heads))])
        of_labels.append([numbers.get(name, 0) for name in names] if labels else [])
        of_labels[-1] += [0] * (width - len(of_labels[-1]))
    made = {
        "src_words": torch.tensor([[-1 if w is None else w for w in row] for row in words]),
        "src_heads": torch.tensor(of_heads),
    }
    return made | ({"src_deprels": torch.tensor(of_labels)} if labels else {})
