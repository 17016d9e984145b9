"""The identity record is closed by default: every option of every model and of every task."""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

import pytest
import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer import TransformerConfig
from fairseq.tasks import TASK_DATACLASS_REGISTRY, TASK_REGISTRY
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.options import model_entries, option_entries, task_entries
from fairseq_phrase.data.store.identity import (
    FREE_OPTIONS,
    OF_OTHER_DECODERS,
    USES,
    Identity,
    differences,
    why_free,
)
from fairseq_phrase.methods.encoder_method import ENCODERS, option, translation_encoders
from fairseq_phrase.models.named_encoder import NAMED_MODELS
from fairseq_phrase.tasks.identity_task import IdentifiedTask
from fairseq_phrase.testing import SIZES, make_batch, make_dictionary, randomized
from tests.support.data_tasks import batches, make_task
from tests.support.named_models import make_task as named_task
from tests.support.repository import REPOSITORY

MODELS = sorted({*translation_encoders(), *NAMED_MODELS})
TASKS = sorted(n for n, task in TASK_REGISTRY.items() if issubclass(task, IdentifiedTask))
#: What a change of an option is where none follows from its default.
OTHER = {
    "decoder_input_dim": 24,
    "decoder_output_dim": 24,
    "encoder": "lstm",
}
DICTIONARY = make_dictionary()


def other(field: Field[Any]) -> Any:
    """Another value of an option."""
    default = OTHER.get(field.name, field.default)
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return default + (1 if isinstance(default, int) else 0.25)
    return default if field.name in OTHER else "other"


def every_option(kinds: list[str], registry: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(kind, field, id=f"{kind}-{field.name}")
        for kind in kinds
        for field in fields(registry[kind])
        if not field.name.startswith("_")
    ]


def is_free(field: Field[Any]) -> bool:
    kind = field.metadata.get("identity")
    return kind == "free" or (kind != "must" and bool(why_free(field.name)))


def is_read(model: str, field: Field[Any]) -> bool:
    """Return whether an option is not only of encoders that the model does not have."""
    choice = {
        model_field.name: model_field for model_field in fields(MODEL_DATACLASS_REGISTRY[model])
    }.get("encoder")
    method = ENCODERS.get(model if choice is None else choice.default)
    own_options = (
        {encoder_option.name for encoder_option in method.options} if method else set()
    )  # recurrent, of seq2seq
    of_encoders = {
        encoder_option.name for encoder in ENCODERS.values() for encoder_option in encoder.options
    }
    return field.name not in of_encoders - own_options


def assert_compared(entries: dict, changed: dict, name: str) -> None:
    """Check that a changed option is one difference in every use that has its part."""
    name = name.replace("_", "-")
    for use, left_out in USES.items():
        trained, current = (Identity({name: entry_set[name]}) for entry_set in (entries, changed))
        listed = [difference.name for difference in differences(trained, current, use)]
        assert listed == ([] if entries[name].part in left_out else [name])


@pytest.mark.parametrize(("model", "field"), every_option(MODELS, MODEL_DATACLASS_REGISTRY))
def test_every_option_of_every_model_is_compared_or_free(model, field) -> None:
    entries, changed = model_entries({"_name": model}), model_entries(
        {"_name": model, field.name: other(field)}
    )  # fmt: skip
    if is_free(field) or not is_read(model, field):
        assert changed == entries
    else:
        assert_compared(entries, changed, field.name)


@pytest.mark.parametrize(("task", "field"), every_option(TASKS, TASK_DATACLASS_REGISTRY))
def test_every_option_of_every_task_is_compared_or_free(task, field) -> None:
    entries, changed = task_entries({"_name": task}), task_entries(
        {"_name": task, field.name: other(field)}
    )  # fmt: skip
    if is_free(field):
        assert changed == entries
    else:
        assert_compared(entries, changed, field.name)


def test_every_option_of_fairseqs_installed_transformer_is_compared_or_free() -> None:
    """Nested, as fairseq declares them, and flat, as its flags name them."""
    flat: dict[str, Any] = {}
    for outer in fields(TransformerConfig):
        nested = outer.type if isinstance(outer.type, type) else None
        inner = fields(nested) if nested and issubclass(nested, FairseqDataclass) else ()
        flat |= {
            f"{outer.name}_{inner_field.name}": inner_field
            for inner_field in inner
            if inner_field.name != "_name"
        }
        if not inner and outer.name != "_name":
            flat[outer.name] = outer
    assert {"encoder_layers", "quant_noise_pq", "share_all_embeddings"} < flat.keys()
    for name in flat:
        if not why_free(name):
            assert name.replace("_", "-") in model_entries({"_name": "relation_transformer"})


def test_an_option_that_is_added_later_is_guarded_without_a_line() -> None:
    @dataclass
    class Options:
        later: int = option(1, "an option")
        sometimes: int = option(1, "an option", identity="may")
        never: int = option(1, "an option", identity="free")
        dropout: float = option(0.1, "an option")
        of_source: int = option(1, "an option", part="source")

    entries = option_entries(fields(Options), {"later": 2}, "encoder")
    kinds = {name: (entry.kind, entry.part) for name, entry in entries.items()}
    assert kinds == {
        "later": ("must", "encoder"), "sometimes": ("may", "encoder"), "of-source": ("must", "source")
    }  # fmt: skip


def test_everything_free_has_a_reason_and_a_use() -> None:
    names_of_options = {
        field.name
        for options in (*MODEL_DATACLASS_REGISTRY.values(), *TASK_DATACLASS_REGISTRY.values())
        for field in fields(options)
    }
    for reason, names in FREE_OPTIONS.items():
        assert any(why_free(name) == reason for name in names_of_options), reason
        for pattern in names.split():
            assert "*" in pattern or pattern in names_of_options, pattern


def test_the_documentation_has_what_is_free_and_the_files_of_every_step() -> None:
    page = (REPOSITORY / "docs" / "identity.md").read_text(encoding="utf-8")
    for reason, names in FREE_OPTIONS.items():
        assert f"| {', '.join(f'`{name}`' for name in names.split())} | {reason} |" in page
    steps = re.findall(r"^\d+\. .*(?:\n {3,}.*)*", page, re.MULTILINE)
    files = re.findall(r"`(\w+/\w+\.py)`", "".join(steps))
    assert len(steps) == 11
    assert all((REPOSITORY / "fairseq_phrase" / file).is_file() for file in files)
    code = "".join((REPOSITORY / "fairseq_phrase" / file).read_text("utf-8") for file in set(files))
    for name in re.findall(r"`(?:\w+\.)?(\w+)`", "".join(steps)):
        assert name in ("fairseq", "training") or f"def {name}(" in code, name


def built(model: str, **changed: Any) -> Any:
    """A small model of any kind."""
    sizes = {f"{side}_{key}": v for side in ("encoder", "decoder") for key, v in SIZES.items()}
    sizes |= {"encoder_hidden_size": 16, "decoder_hidden_size": 16} if model == "seq2seq" else {}
    cfg = MODEL_DATACLASS_REGISTRY[model](**{**sizes, **changed})
    task = named_task(
        DICTIONARY, labelled="word", whole_words=False, require_objective=lambda objective: None
    )
    torch.manual_seed(0)
    return randomized(ARCH_MODEL_REGISTRY[model].build_model(cfg, task))


def outputs(model: Any) -> torch.Tensor:
    inputs = make_batch(DICTIONARY, [5, 3])
    if hasattr(model, "decoder"):
        inputs["src_lengths"] = inputs["src_tokens"].ne(DICTIONARY.pad()).sum(1)
        inputs["prev_output_tokens"] = inputs["src_tokens"].roll(1, 1)
    result = model(**inputs)
    return result[0] if isinstance(result, tuple) else result


def free_options_of_models() -> list[Any]:
    every = every_option(MODELS, MODEL_DATACLASS_REGISTRY)
    # Where encoders and models differ, one of each kind is enough.
    models = {"relation_transformer", "parent_scaled_transformer", *NAMED_MODELS}
    return [case for case in every if is_free(case.values[1]) and case.values[0] in models]


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory) -> str:
    """A file of embeddings, in fairseq's format."""
    path = tmp_path_factory.mktemp("embeddings") / "embeddings.txt"
    rows = [f"w{number} " + " ".join(["0.5"] * SIZES["embed_dim"]) for number in range(30)]
    path.write_text("\n".join([f"30 {SIZES['embed_dim']}", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize(("model", "field"), free_options_of_models())
def test_a_free_option_of_a_model_does_not_change_what_it_computes(
    model, field, embeddings
) -> None:
    if field.name == "huggingface_model":  # read by one encoder, and only while a model is new
        assert not is_read(model, field)
        return
    value = embeddings if field.name.endswith("_path") else other(field)
    first, second = built(model), built(model, **{field.name: value})
    second.load_state_dict(first.state_dict())
    # fairseq attends with torch's fused layer where no activation is kept.
    torch.testing.assert_close(outputs(second.eval()), outputs(first.eval()), rtol=1e-9, atol=1e-9)


#: Another value of an option of a decoder with which a small model can be built.
OF_DECODERS = {
    "decoder_embed_dim": 24, "decoder_attention_heads": 4, "decoder_layers_to_keep": "0",
    "adaptive_softmax_cutoff": "10,20", "copy": "gate", "pooling": "mean", "objective": "causal",
    "direction": "backward", "attention": "additive", "attention_time": "before",
    "attention_window": "local-p", "share_all_embeddings": True,
}  # fmt: skip
#: The options with which an option of pre-training has a meaning.
WITH = {
    "context": {"objective": "causal"},
    "direction": {"objective": "causal"},
    "memory": {"objective": "permutation", "encoder": "xl_transformer"},
}
#: Not built: xformers is not installed, and a recurrent decoder has one softmax.
NOT_BUILT = {"decoder_xformers_att_config", "seq2seq-adaptive_softmax_cutoff"}


def options_left_out() -> list[Any]:
    """The options that ``--pretrained`` does not compare."""
    models = {"relation_transformer", "phrase_transformer", *NAMED_MODELS}
    entries = {model: model_entries({"_name": model}) for model in models}
    return [
        case
        for case in every_option(sorted(models), MODEL_DATACLASS_REGISTRY)
        if (entry := entries[case.values[0]].get(case.values[1].name.replace("_", "-")))
        and entry.part in OF_OTHER_DECODERS
        and NOT_BUILT.isdisjoint({case.id, case.values[1].name})
    ]


@pytest.mark.parametrize(("model", "field"), options_left_out())
def test_what_pretrained_leaves_out_does_not_change_the_states_of_tokens(model, field) -> None:
    """Neither another value of the option, nor other weights than the encoder's."""
    needed = WITH.get(field.name, {})
    first = built(model, **needed)
    second = built(model, **needed, **{field.name: OF_DECODERS.get(field.name, other(field))})
    second.encoder.load_state_dict(first.encoder.state_dict())
    of_encoder = set(second.encoder.parameters())
    for parameter in second.parameters():
        if parameter not in of_encoder:
            torch.nn.init.normal_(parameter)
    inputs = make_batch(DICTIONARY, [5, 3])
    inputs["src_lengths"] = inputs["src_tokens"].ne(DICTIONARY.pad()).sum(1)
    tokens = inputs["src_tokens"].size(1)
    states, expected = (
        model_to_run.eval().encoder(**inputs)["encoder_out"][0][:tokens]
        for model_to_run in (second, first)
    )
    torch.testing.assert_close(states, expected, rtol=1e-9, atol=1e-9)


#: Options of a task that are free, with a value, if it needs another than :func:`other` gives.
OF_TASKS = {
    "dataset_impl": "mmap", "required_seq_len_multiple": 8, "num_batch_buckets": 3,
    "eval_bleu_args": '{"beam": 2}', "eval_bleu_detok": "moses",
    "train_subset": "valid", "upsample_primary": 2, "max_source_positions": 300,
    "max_target_positions": 300, "pretrained": "none.pt", "pretrained_model": "none.pt",
    "allow_difference": "parser",
}  # fmt: skip
#: Recorded by other entries: of the languages, the data, the trees and the factors.
BY_OTHERS = "have entries made of more than the option"


@pytest.fixture(scope="module")
def expected(data_directory) -> dict[str, Any]:
    model = built("relation_transformer")
    return {"model": model, "outputs": validated(make_task(data_directory), model)}


def validated(task: Any, model: Any) -> list[torch.Tensor]:
    """What a model computes for the first sentences of validation, whatever the padding."""
    task.require_parses(["words", "heads"])
    task.load_dataset("valid")
    states_by_number = {}
    for batch in batches(task, "valid"):
        if min(batch["id"]) >= 5:
            continue
        inputs = {
            name: value.clamp(max=33) if name.endswith("tokens") else value
            for name, value in batch["net_input"].items()
        }
        states = model(**inputs)[0]
        for row, number in enumerate(batch["id"].tolist()):
            real = batch["target"][row].ne(DICTIONARY.pad())
            states_by_number[number] = states[row][real]
    return [states_by_number[number] for number in range(5)]


@pytest.mark.parametrize(
    "field",
    [
        pytest.param(field, id=field.name)
        for field in fields(TASK_DATACLASS_REGISTRY["syntax_translation"])
        if is_free(field)
        and why_free(field.name) != BY_OTHERS
        and field.name not in ("_name", "data")
    ],
)
def test_a_free_option_of_a_task_does_not_change_what_a_model_computes(
    field, data_directory, expected
) -> None:
    value = OF_TASKS.get(field.name, other(field))
    default = None if field.default is MISSING else field.default
    assert value != default or field.name == "dataset_impl"
    states_of_sentences = validated(
        make_task(data_directory, **{field.name: value}), expected["model"]
    )
    for actual, two in zip(states_of_sentences, expected["outputs"], strict=True):
        # Where padding is on the other side, products round differently on some processors.
        torch.testing.assert_close(actual, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"tree_source": "linear"}, {"tree-source"}),
        ({"tree_source": "random", "tree_seed": 3}, {"tree-source", "tree-seed"}),
        ({"source_factors": "tags"}, {"source-factors", "tags-labels"}),
        ({"source_lang": "en", "target_lang": "de"}, {"source-language", "target-language"}),
    ],
)
def test_options_that_have_other_entries_change_them(given, names, data_directory) -> None:
    records = []
    for options in ({}, given):
        task = make_task(data_directory, **options)
        if options.get("source_lang") != "en":  # whose parses the data lack
            sizes = {f"{s}_{key}": v for s in ("encoder", "decoder") for key, v in SIZES.items()}
            cfg = MODEL_DATACLASS_REGISTRY["relation_transformer"](**sizes)
            cfg._name = "relation_transformer"
            task.build_model(OmegaConf.create({"model": OmegaConf.structured(cfg)}).model)
        else:
            task.identity = task.current_record()
        records.append(task.identity.labels())
    first, two = records
    assert names <= {name for name in {**first, **two} if first.get(name) != two.get(name)}
    assert {"langs", "truncate-source"} < two.keys()
