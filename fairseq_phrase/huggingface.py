"""Relation biases in the encoders of transformers, without fairseq and spaCy.

    model = add_relation_bias(AutoModelForSeq2SeqLM.from_pretrained(folder), labels=["nsubj", …])
    model(**encoding, **collate(encoding, parses, labels))
    model.save_pretrained(saved)
    model = from_pretrained(AutoModelForSeq2SeqLM, saved)

``docs/models/tree_relations.md`` describes the biases, ``docs/tutorials/huggingface.md`` their use.
"""

from __future__ import annotations

import functools
import inspect
from bisect import bisect_left
from collections.abc import Sequence
from contextvars import ContextVar
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from fairseq_phrase.errors import UserError, import_transformers
from fairseq_phrase.modules.positions.huggingface_attention import (
    ATTENTION,
    PROBE,
    BatchRelations,
    add_tables,
    enter_encoder,
    leave_encoder,
    register_attention,
    self_attentions,
    set_to,
)
from fairseq_phrase.modules.positions.relation_bias import RelationBias

if TYPE_CHECKING:
    from fairseq_phrase.syntax.sentence import ParsedSentence

Model = TypeVar("Model", bound=nn.Module)

_NAME = "fairseq_phrase.huggingface"
#: Arguments of a forward pass in addition to transformers' own arguments.
_PARSE = ("src_words", "src_heads", "src_deprels")
#: The attention that a saved configuration names. It does not exist: transformers' classes refuse to load
#: the model without its biases, and their message contains this name.
_LOADER = "fairseq_phrase.huggingface.from_pretrained"
#: Options of ``from_pretrained`` that also find the configuration.
_OF_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
#: The relations of the batch that a model reads.
_READ: ContextVar[BatchRelations | None] = ContextVar("relations of a model's batch", default=None)


def _relations(config: Any, kwargs: dict[str, Any]) -> BatchRelations:
    """Take the parse out of a call's arguments."""
    chosen = config.relation_bias
    parse = (kwargs.pop(name, None) for name in _PARSE)
    return BatchRelations(chosen["kind"], len(chosen["labels"]), *parse)


@functools.cache
def _with_biases(base: Any) -> Any:
    """Derive the class of a model whose configuration has ``relation_bias``."""

    class Biased(base):
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            _install_biases(self)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with set_to(_READ, _relations(self.config, kwargs)):
                return super().forward(*args, **kwargs)

        def generate(self, *args: Any, **kwargs: Any) -> Any:
            # The encoder runs before the first forward pass, and before sentences are repeated for beams.
            with set_to(_READ, _relations(self.config, kwargs)):
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
    for name in ("__name__", "__qualname__", "__module__"):
        setattr(Biased, name, getattr(base, name))
    return Biased


def _encoder_of(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def _install_biases(model: Any) -> None:
    """Add the biases that the configuration names, and let the encoder read relations."""
    config, chosen = model.config, model.config.relation_bias
    kind, num_labels, vectors = chosen["kind"], len(chosen["labels"]), chosen["vectors"]
    for name, (heads, width) in chosen["attentions"].items():
        module = model.base_model.get_submodule(name)
        add_tables(module, heads, width, kind, num_labels, vectors)

    def enter(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        given, relations = _PARSE[0] in kwargs, _relations(config, kwargs)
        # Without a parse of its own, the encoder reads that of the model's call.
        enter_encoder(relations if given else _READ.get() or relations)
        return args, kwargs

    encoder = _encoder_of(model)
    encoder.register_forward_pre_hook(enter, with_kwargs=True)
    encoder.register_forward_hook(leave_encoder, always_call=True)
    config.attn_implementation = _LOADER


def add_relation_bias(
    model: Model, kind: str = "both", labels: Sequence[str] = (), vectors: bool = False
) -> Model:
    """Add relation biases, which are 0 at the start, to the encoder of a model of transformers.

    The model then takes ``src_words``, ``src_heads`` and ``src_deprels`` (:func:`collate`), also in
    ``generate``. ``save_pretrained`` saves the biases; :func:`from_pretrained` loads them. Attention is
    computed by ``sdpa``.

    Args:
        model: a model with any head whose encoder is found by transformers' ``AttentionInterface``: an
            encoder, a sequence-to-sequence model, or a decoder that encodes with a causal mask, such as
            ``LlamaForTokenClassification``. It is changed.
        kind: relations in the tree (``"tree"``), in the sentence (``"sequence"``), or ``"both"``.
        labels: dependency labels that have a bias; none by default.
        vectors: also add a vector for each relation in the tree to the keys and the values (Shaw et al.
            2018; RAT-SQL). The heads share them; they are 0 at the start.

    Returns:
        The model.

    Raises:
        UserError: the encoder cannot take biases, with the reason; the model is a decoder without an
            encoder, or already has biases; or its attention implementation takes no mask.
        ValueError: the kind is unknown.
    """
    config: Any = model.config
    _check_encoder(model)
    if getattr(config, "relation_bias", None):
        raise UserError("this model has relation biases already")
    before = config._attn_implementation
    _check_attention(before)
    if (labels or vectors) and kind == "sequence":
        raise UserError(f'{"labels" if labels else "vectors"} need kind="tree" or "both"')
    RelationBias(1, kind)  # an unknown kind leaves the model unchanged
    import_transformers(_NAME)
    register_attention()
    untyped: Any = model
    try:
        untyped.set_attn_implementation(PROBE)
        found = self_attentions(_encoder_of(untyped))
        untyped.set_attn_implementation(ATTENTION)
    except (UserError, ValueError) as error:
        untyped.set_attn_implementation(before)
        reason = error if isinstance(error, UserError) else "sdpa cannot compute its attention"
        raise UserError(f"a {config.model_type} model takes no relation biases: {reason}") from None
    names = {module: name for name, module in untyped.base_model.named_modules()}
    attentions = {names[module]: list(sizes) for module, sizes in found.items()}
    config.relation_bias = {
        "kind": kind, "labels": list(labels), "vectors": vectors, "attentions": attentions
    }  # fmt: skip
    untyped.__class__ = _with_biases(untyped.__class__)
    _install_biases(untyped)
    return model


def _check_encoder(model: Any) -> None:
    """Refuse a decoder that is not used as an encoder."""
    config = model.config
    if not config.is_encoder_decoder and (
        getattr(config, "is_decoder", False) or model.can_generate()
    ):
        raise UserError(
            f"{type(model).__name__} is a decoder without an encoder, whose next tokens have no parse: "
            "load an encoder, such as AutoModel or AutoModelForTokenClassification"
        )


def _check_attention(implementation: str | None) -> None:
    if implementation not in (None, "eager", "sdpa"):
        raise UserError(
            f"attn_implementation={implementation!r} takes no biases: "
            'load the model with attn_implementation="sdpa"'
        )


def parameter_groups(model: nn.Module, lr: float, bias_lr: float) -> list[dict[str, Any]]:
    """Group a model's parameters for an optimizer, with a larger learning rate for the biases.

    They start at 0, and a learning rate for fine-tuning hardly moves them.

    Args:
        lr: for the parameters of the model.
        bias_lr: for the biases and vectors of relations, which have no weight decay.
    """
    of_relations: dict[bool, list[nn.Parameter]] = {False: [], True: []}
    for name, parameter in model.named_parameters():
        of_relations[".relation_" in name].append(parameter)
    return [
        {"params": of_relations[False], "lr": lr},
        {"params": of_relations[True], "lr": bias_lr, "weight_decay": 0.0},
    ]


def from_pretrained(model_class: Any, path: Any, **kwargs: Any) -> Any:
    """Load a model that :func:`add_relation_bias` made and ``save_pretrained`` saved.

    Args:
        model_class: a class of transformers, such as ``BertForTokenClassification`` or
            ``AutoModelForSeq2SeqLM``.
        path: the folder, or a model's name in a hub.
        **kwargs: for ``model_class.from_pretrained``.

    Raises:
        UserError: there is no model, it has no relation biases, its weights lack them, or its attention
            implementation takes no mask.
    """
    transformers = import_transformers(_NAME)
    _check_attention(kwargs.pop("attn_implementation", None))
    of_hub = {name: kwargs[name] for name in _OF_HUB if name in kwargs}
    try:
        config = kwargs.pop("config", None)
        config = config or transformers.AutoConfig.from_pretrained(path, **of_hub)
        if not getattr(config, "relation_bias", None):
            raise UserError(
                f"{path} has no relation biases: load it by transformers, then add_relation_bias"
            )
        if hasattr(model_class, "_model_mapping"):  # AutoModel and the like
            model_class = model_class._model_mapping[type(config)]
        register_attention()
        config._attn_implementation = ATTENTION
        model, found = _with_biases(model_class).from_pretrained(
            path, config=config, **kwargs, output_loading_info=True
        )
    except OSError as error:
        raise UserError(f"{path}: no model is there ({str(error).splitlines()[0]})") from None
    if missing := [name for name in found["missing_keys"] if ".relation_" in name]:
        raise UserError(f"{path}: its weights lack {sorted(missing)[0]}")
    return model


def text_of(sentence: ParsedSentence) -> str:
    """Return the text of a parsed sentence, for a tokenizer; :func:`collate` finds its words in it."""
    return "".join(_spaced_words(sentence))


def _spaced_words(sentence: ParsedSentence) -> list[str]:
    """Return the words with the spaces before them."""
    pairs = zip(sentence.words, sentence.space_before, strict=True)
    words = [f"{' ' * space}{word.replace('▁', ' ')}" for word, space in pairs]
    return [words[0].lstrip(), *words[1:]] if words else []


def _words_in_text(tokenized: Any, row: int, sentence: ParsedSentence) -> list[int | None]:
    """Return the word of each token: the word in which the token ends."""
    ends = list(accumulate(map(len, _spaced_words(sentence))))
    of_text = tokenized.sequence_ids(row)
    spans = (tokenized.token_to_chars(row, i) if n == 0 else None for i, n in enumerate(of_text))
    words = [None if span is None else bisect_left(ends, span.end) for span in spans]
    if any(word is not None and word >= len(ends) for word in words):
        raise UserError(
            f"sentence {row}: the tokens go on after its last word: give text_of(sentence)"
        )
    return words


def collate(
    tokenized: Any,
    parses: Sequence[ParsedSentence | tuple[Sequence[int], Sequence[str]]],
    labels: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Make a batch's words, heads and labels for a model with relation biases.

    Args:
        tokenized: the output of a fast tokenizer: for the texts of parsed sentences (:func:`text_of`), or
            for lists of words (``is_split_into_words=True``).
        parses: the parsed sentences; or for each list of words, the 0-based head of each word (a root is
            its own head) and the words' dependency labels, which may be empty without ``labels``.
        labels: the labels given to :func:`add_relation_bias`, in the same order:
            ``model.config.relation_bias["labels"]``.

    Returns:
        ``src_words`` (shape (batch, tokens), -1 at tokens of no word), ``src_heads`` (shape (batch,
        words), -1 at padding) and, with labels, ``src_deprels`` (shape (batch, words), 0 at padding),
        int64.

    Raises:
        UserError: the tokenizer does not return the tokens' words, a sentence has another number of
            words than its parse or no tree, or a label is unknown.
    """
    trees = [_heads_and_labels(row, parse) for row, parse in enumerate(parses)]
    try:
        words = [
            tokenized.word_ids(row) if isinstance(parse, Sequence)
            else _words_in_text(tokenized, row, parse)
            for row, parse in enumerate(parses)
        ]  # fmt: skip
    except (AttributeError, ValueError, IndexError):
        raise UserError(
            "the tokenizer does not know which word each token belongs to (word_ids), or there are "
            "more parses than sentences: use a fast tokenizer, for all sentences"
        ) from None
    numbers = {label: number for number, label in enumerate(labels)}
    width = max((len(heads) for heads, _ in trees), default=0)
    all_heads, all_labels = [], []
    for row, (heads, names) in enumerate(trees):
        last = max((word for word in words[row] if word is not None), default=-1)
        if last >= len(heads) or (labels and len(names) != len(heads)):
            raise UserError(
                f"sentence {row}: {last + 1} words have tokens, and the parse has {len(heads)} heads "
                f"and {len(names)} labels"
            )
        if unknown := set(names) - set(numbers) if labels else set():
            raise UserError(f"sentence {row}: unknown labels {', '.join(sorted(unknown))}")
        fill = width - len(heads)
        all_heads.append([*heads, *[-1] * fill])
        all_labels.append([*(numbers[name] for name in names), *[0] * fill] if labels else [])
    made = {
        "src_words": torch.tensor([[-1 if w is None else w for w in row] for row in words]),
        "src_heads": torch.tensor(all_heads),
    }
    return made | ({"src_deprels": torch.tensor(all_labels)} if labels else {})


def _heads_and_labels(
    row: int, parse: ParsedSentence | tuple[Sequence[int], Sequence[str]]
) -> tuple[Sequence[int], Sequence[str]]:
    if isinstance(parse, Sequence):
        return parse
    tree = getattr(parse, "tree", None)  # a parser may leave a line unparsed
    if tree is None:
        raise UserError(f"sentence {row} has no dependency tree")
    return tree.heads.tolist(), parse.deprels
