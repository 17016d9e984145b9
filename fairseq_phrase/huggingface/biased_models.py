"""Models of transformers whose encoders have relation biases: made, saved, loaded."""

from __future__ import annotations

import copy
import functools
import inspect
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface.batches import label_numbers
from fairseq_phrase.huggingface.training import (
    check_trained,
    derived_class,
    has_biases,
    with_keywords,
)
from fairseq_phrase.methods.relations.batch_relations import BatchRelations, PromptRelations
from fairseq_phrase.methods.relations.huggingface_attention import (
    ATTENTION,
    PROBE,
    RELATIONS,
    AttentionSizes,
    add_tables,
    register_attention,
    rotates,
    self_attentions,
)
from fairseq_phrase.methods.relations.relation_bias import RelationBias
from fairseq_phrase.optional_packages import import_transformers

Model = TypeVar("Model", bound=nn.Module)

_NAME = "fairseq_phrase.huggingface"
#: Arguments of a forward pass in addition to transformers' own arguments.
_PARSE = ("src_words", "src_heads", "src_deprels", "src_edges")
#: The attention that a saved configuration names. It does not exist: transformers' classes refuse to load
#: the model without its biases, and their message contains this name.
_LOADER = "fairseq_phrase.huggingface.from_pretrained"
#: The end of a model's name until it is saved with its biases. An adapter of peft names its base model:
#: with the name of the model without biases, it would be loaded without them.
_UNSAVED = (
    " with relation biases, which are not saved: save_pretrained(FOLDER) before get_peft_model"
)
#: Options of ``from_pretrained`` that also find the configuration.
_OF_HUB = ("cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token")
#: The file in the folder of a saved model, by which transformers' own classes load it.
_CODE = Path(__file__).with_name("modeling_relation_bias.py")


def _add_relations(config: Any, of_prompt: bool, kwargs: dict[str, Any], cache: Any) -> None:
    """Replace the parse in a call's arguments by its relations, unless the caller has done so.

    Args:
        of_prompt: whether only the tokens of a prompt have relations.
        kwargs: the arguments. They are changed.
        cache: the keys and values of the tokens before; None without a cache.
    """
    words, heads, labels, edges = (kwargs.pop(name, None) for name in _PARSE)
    bias = config.relation_bias
    relations = (PromptRelations if of_prompt else BatchRelations)(
        bias["kind"], len(bias["labels"]), words, heads, labels, edges, _reads_graphs(bias)
    )
    if isinstance(relations, PromptRelations) and cache is not None:
        past = cache.get_seq_length()
        # The layers of a cache of fixed size add to its tensor.
        relations.past = past.clone() if isinstance(past, Tensor) else past
    kwargs.setdefault(RELATIONS, relations)


def _cache_of(arguments: dict[str, Any]) -> Any:
    """Return the cache in a call's arguments, or None; transformers 5.24 changed its name."""
    caches = (arguments.get(name) for name in ("cache", "past_key_values"))
    return next((cache for cache in caches if cache is not None), None)


def _reads_graphs(relation_bias: dict[str, Any]) -> bool:
    """Return whether relations are of graphs; the configurations of older models lack the source."""
    return bool(relation_bias.get("source", "heads") != "heads")


class BiasedModel:
    """The base of models of transformers whose encoders have relation biases."""


def biased_class(base: Any) -> Any:
    """Derive the class of a model whose configuration has ``relation_bias``.

    Args:
        base: a class of transformers, or its name, which the file in a saved model's folder gives.
    """
    if isinstance(base, str):
        base = getattr(import_transformers(_NAME), base)
    return base if issubclass(base, BiasedModel) else _with_biases(base)


@functools.cache
def _with_biases(base: Any) -> Any:
    register_attention()
    names = list(inspect.signature(base.forward).parameters)[1:]

    class Biased(BiasedModel, base):
        name_or_path: str

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            _check_encoder(self)
            bias = self.config.relation_bias
            _check_prompts(self, bias["kind"], bias.get("source", "heads"))
            if bias["vectors"] and not bias.get("unrotated") and rotates(self):
                raise UserError(
                    "an older version trained these vectors, and they depend on absolute positions: "
                    "add_relation_bias to the model without biases, and train it again"
                )
            _install_biases(self)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            check_trained(self)
            arguments = dict(zip(names, args, strict=False)) | kwargs
            _add_relations(self.config, _reads_prompts(self), kwargs, _cache_of(arguments))
            if _encoder_of(self) is self:
                kwargs[RELATIONS].number()
            return super().forward(*args, **kwargs)

        def save_pretrained(
            self, save_directory: Any, *args: Any, push_to_hub: bool = False, **options: Any
        ) -> None:
            if getattr(self, "_hf_peft_config_loaded", False):  # it saves an adapter alone
                options["push_to_hub"] = push_to_hub
                super().save_pretrained(save_directory, *args, **options)
                return
            _forget_code(self.config)
            self.config.auto_map = auto_map = _auto_map(self.config)
            super().save_pretrained(save_directory, *args, **options)
            if self.name_or_path.endswith(_UNSAVED):
                self.name_or_path = str(save_directory)
            if auto_map and options.get("is_main_process", True):
                shutil.copyfile(_CODE, Path(save_directory, _CODE.name))
            if push_to_hub:  # now, with the file
                options.pop("is_main_process", None)
                name = options.pop("repo_id", Path(save_directory).name)
                self.push_to_hub(name, **options)

        @classmethod
        def from_pretrained(cls, path: Any, *args: Any, **kwargs: Any) -> Any:
            return _load(super().from_pretrained, path, *args, **kwargs)

        @classmethod
        def register_for_auto_class(cls, auto_class: Any = None) -> None:
            """Do nothing: else transformers would save the file of the class without biases."""

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, RelationBias):
                for table in module.parameters():
                    nn.init.zeros_(table)  # transformers lets it leave tables of a file as they are
            else:
                super()._init_weights(module)

    # transformers reads the signatures: Trainer, to choose columns, and generate, to check arguments.
    signature = with_keywords(inspect.signature(base.forward), _PARSE)
    Biased.forward.__signature__ = signature  # type: ignore[attr-defined]
    return derived_class(Biased, base, _with_biases)


def _auto_map(config: Any) -> dict[str, str]:
    """Return the classes by which transformers loads a saved model with ``trust_remote_code``."""
    transformers = import_transformers(_NAME)
    classes = {}
    for name in dir(transformers.models.auto):
        mapping = getattr(getattr(transformers.models.auto, name), "_model_mapping", None)
        if mapping is not None and type(config) in mapping:
            model_class = mapping[type(config)]
            model_class = model_class[0] if isinstance(model_class, tuple) else model_class
            classes[name] = f"{_CODE.stem}.{model_class.__name__}"
    return classes


def _forget_code(config: Any) -> None:
    """Remove the code that the configuration of the base model names, for loading with trust.

    The base model was loaded without it. transformers adds code again that was loaded with trust.
    """
    for part in _configurations(config):
        for name in ("auto_map", "custom_pipelines"):
            vars(part).pop(name, None)


def _encoder_of(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def _install_biases(model: Any) -> None:
    """Add the biases that the configuration names, and let the encoder read relations."""
    config, bias = model.config, model.config.relation_bias
    kind, num_labels, vectors = bias["kind"], len(bias["labels"]), bias["vectors"]
    for name, sizes in bias["attentions"].items():
        module = model.base_model.get_submodule(name)
        add_tables(module, AttentionSizes(*sizes), kind, num_labels, vectors, _reads_graphs(bias))
    encoder = _encoder_of(model)
    if encoder is not model:  # torch.compile makes another graph of a hook of the whole model
        enter = functools.partial(_enter, config, _reads_prompts(model))
        encoder.register_forward_pre_hook(enter, with_kwargs=True)
    config.attn_implementation = _LOADER


def _enter(
    config: Any, of_prompt: bool, module: nn.Module, args: Any, kwargs: dict[str, Any]
) -> Any:
    """Let an encoder read relations, before it is called."""
    check_trained(module)
    _add_relations(config, of_prompt, kwargs, _cache_of(kwargs))
    kwargs[RELATIONS].number()
    return args, kwargs


def add_relation_bias(
    model: Model,
    kind: str = "both",
    labels: Sequence[str] = (),
    vectors: bool = False,
    source: str = "heads",
) -> Model:
    """Add relation biases, which are 0 at the start, to the encoder of a model of transformers.

    The model then takes ``src_words``, ``src_heads`` and ``src_deprels``, or with a graph ``src_edges``
    (:func:`collate`), also in ``generate``. ``save_pretrained`` saves the biases; :func:`from_pretrained`
    loads them. Attention is computed by ``sdpa``.

    Args:
        model: a model with any head whose encoder is found by transformers' ``AttentionInterface``: an
            encoder, a sequence-to-sequence model, a decoder that encodes with a causal mask, such as
            ``LlamaForTokenClassification``, or a decoder that continues a prompt, such as
            ``LlamaForCausalLM``: there tokens of the prompt have relations, and other tokens none. It is
            changed.
        kind: relations in the tree (``"tree"``), in the sentence (``"sequence"``), or ``"both"``.
        labels: dependency labels that have a bias, each once; none by default.
        vectors: also add a vector for each relation in the tree to the keys and the values (Shaw et al.
            2018; RAT-SQL). The heads share them; they are 0 at the start. Where positions rotate queries
            (RoPE), vectors are multiplied with the queries before.
        source: ``"heads"`` for dependency trees, or the name of a graph of labelled edges between words,
            as of ``--relation-source``: ``"enhanced"`` for a :class:`ParsedSentence` of enhanced
            dependencies or AMR, or a name of your own.

    Returns:
        The model.

    Raises:
        UserError: the encoder cannot take biases, with the reason; the model is a decoder without an
            encoder, or already has biases; its attention implementation takes no mask; or labels are a
            string or stand twice.
        ValueError: the kind is unknown.
    """
    untyped: Any = model
    _check_encoder(model)
    if has_biases(untyped.config):
        raise UserError("this model has relation biases already")
    if hasattr(model, "tree_losses"):
        raise UserError("this model has losses of trees: add them after the relation biases")
    before = untyped.config._attn_implementation
    _check_attention(before)
    names_of_labels = list(label_numbers(labels))
    options = {"labels": labels, "vectors": vectors, "a graph as source": source != "heads"}
    if options_of_trees := [
        name for name, value in options.items() if value and kind == "sequence"
    ]:
        raise UserError(f'{" and ".join(options_of_trees)} need kind="tree" or "both"')
    RelationBias(1, kind)  # an unknown kind leaves the model unchanged
    _check_prompts(model, kind, source)
    _copy_configurations(model)
    register_attention()
    config = untyped.config
    try:
        untyped.set_attn_implementation(PROBE)
        sizes_of_modules = self_attentions(_encoder_of(untyped), vectors)
        untyped.set_attn_implementation(ATTENTION)
    except (UserError, ValueError) as error:
        untyped.set_attn_implementation(before)
        reason = error if isinstance(error, UserError) else "sdpa cannot compute its attention"
        raise UserError(f"a {config.model_type} model takes no relation biases: {reason}") from None
    names = {module: name for name, module in untyped.base_model.named_modules()}
    attentions = {names[module]: list(sizes) for module, sizes in sizes_of_modules.items()}
    config.relation_bias = {
        "kind": kind, "labels": names_of_labels, "vectors": vectors, "source": source,
        "attentions": attentions, "unrotated": vectors,
    }  # fmt: skip
    untyped.__class__ = biased_class(untyped.__class__)
    untyped.name_or_path += _UNSAVED
    _install_biases(untyped)
    return model


def _copy_configurations(model: nn.Module) -> None:
    """Give a model copies of its configurations, which other models may share."""
    copies: dict[int, Any] = {}
    configuration = import_transformers(_NAME).PreTrainedConfig
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, configuration):
                setattr(module, name, copy.deepcopy(value, copies))


def _reads_prompts(model: Any) -> bool:
    """Return whether a model is a decoder that continues a prompt."""
    return not model.config.is_encoder_decoder and bool(model.can_generate())


def _check_encoder(model: Any) -> None:
    """Refuse a decoder that neither encodes nor continues a prompt."""
    if model.config.is_encoder_decoder:
        return
    is_causal = any(getattr(module, "is_causal", False) for module in model.modules())
    if getattr(model.config, "is_decoder", False) or (_reads_prompts(model) and not is_causal):
        raise UserError(
            f"{type(model).__name__} is a decoder without an encoder, and no decoder of prompts as "
            "LlamaForCausalLM: load an encoder, such as AutoModel or AutoModelForTokenClassification"
        )


def _check_prompts(model: Any, kind: str, source: str) -> None:
    """Refuse options that decoders of prompts do not have."""
    if _reads_prompts(model) and (kind == "sequence" or source != "heads"):
        raise UserError(
            f"{type(model).__name__} reads the trees of prompts: expected kind='tree' or 'both' and "
            "source='heads'"
        )


def _check_attention(implementation: str | None) -> None:
    if implementation not in (None, "eager", "sdpa"):
        raise UserError(
            f"attn_implementation={implementation!r} takes no biases: "
            'load the model with attn_implementation="sdpa"'
        )


#: The implementations of experts for which transformers fetches no code; None lets it choose.
_EXPERTS = (None, "eager", "grouped_mm", "batched_mm")


def _check_experts(config: Any) -> None:
    """Refuse a configuration that makes transformers fetch the code of experts, and run it."""
    for part in _configurations(config):
        if (experts := part._experts_implementation) not in _EXPERTS:
            raise UserError(
                f"experts_implementation={experts!r} of the {part.model_type} configuration may fetch "
                f"code: expected {', '.join(_EXPERTS[1:])}"
            )


def _configurations(config: Any) -> Iterator[Any]:
    """Yield a configuration and the configurations in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, import_transformers(_NAME).PreTrainedConfig):
            yield from _configurations(value)


def from_pretrained(model_class: Any, path: Any, **kwargs: Any) -> Any:
    """Load a model that :func:`add_relation_bias` made and ``save_pretrained`` saved.

    Args:
        model_class: a class of transformers, such as ``BertForTokenClassification`` or
            ``AutoModelForSeq2SeqLM``.
        path: the folder, or a model's name in a hub.
        **kwargs: for ``model_class.from_pretrained``.

    Raises:
        UserError: there is no model, it has no relation biases, its weights lack them, its attention
            implementation takes no mask, or its experts would fetch code.
    """
    of_hub = {name: kwargs[name] for name in _OF_HUB if name in kwargs}
    try:
        config = kwargs.pop("config", None)
        config = config or import_transformers(_NAME).AutoConfig.from_pretrained(path, **of_hub)
        if hasattr(model_class, "_model_mapping"):  # AutoModel and the like
            model_class = model_class._model_mapping[type(config)]
        return biased_class(model_class).from_pretrained(path, config=config, **kwargs)
    except OSError as error:
        raise UserError(f"{path}: no model is there ({str(error).splitlines()[0]})") from None


def _load(
    load: Callable[..., Any], path: Any, *args: Any, config: Any = None, **kwargs: Any
) -> Any:
    """Load a model with its biases.

    Args:
        load: ``from_pretrained`` of the class without biases.
        path: the folder, or a model's name in a hub.
        config: the configuration; by default the folder's.
        *args, **kwargs: for ``load``.

    Raises:
        UserError: the model has no relation biases, its weights lack them, its attention implementation
            takes no mask, or its experts would fetch code.
    """
    of_hub = {name: kwargs[name] for name in _OF_HUB if name in kwargs}
    auto_config = import_transformers(_NAME).AutoConfig
    config = copy.deepcopy(config) or auto_config.from_pretrained(path, **of_hub)
    if not has_biases(config):
        raise UserError(
            f"{path} has no relation biases: load it by transformers, then add_relation_bias"
        )
    attention = kwargs.pop("attn_implementation", config._attn_implementation)
    if attention not in (ATTENTION, _LOADER):
        _check_attention(attention)
    if "experts_implementation" in kwargs:
        config._experts_implementation = kwargs.pop("experts_implementation")
    _check_experts(config)
    register_attention()
    config._attn_implementation = ATTENTION
    renamed = _rename_vectors(config)
    if renamed:
        kwargs["key_mapping"] = renamed | (kwargs.get("key_mapping") or {})
    with_info = kwargs.pop("output_loading_info", False)
    model, info = load(path, *args, config=config, output_loading_info=True, **kwargs)
    if missing := [name for name in info["missing_keys"] if ".relation_" in name]:
        raise UserError(f"{path}: its weights lack {sorted(missing)[0]}")
    if renamed:  # transformers would save the former names again
        conversions = model._weight_conversions
        model._weight_conversions = [c for c in conversions if c.source_patterns[0] not in renamed]
    return (model, info) if with_info else model


def _rename_vectors(config: Any) -> dict[str, str]:
    """Return the new names of vectors in files of version 0.1.0, by the former ones, as patterns.

    The configuration then had one width for keys and values, and gets both.
    """
    attentions = config.relation_bias["attentions"]
    former = {name: sizes for name, sizes in attentions.items() if len(sizes) == 2}
    attentions |= {name: [heads, width, width] for name, (heads, width) in former.items()}
    sides = ("key", "value") if former and config.relation_bias["vectors"] else ()
    return {rf"relation_vectors\.{side}\.": f"relation_vectors.{side}_vectors." for side in sides}
