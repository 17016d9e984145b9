"""Options in the files of others: data, never code."""

from __future__ import annotations

import ast
import collections
from argparse import Namespace
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import fairseq
import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.constants import DDP_BACKEND_CHOICES
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.trust import EVALUATED, NOT_EVALUATED, check_trusted, plain_options
from fairseq_phrase.data.store.identity import matches
from fairseq_phrase.errors import UserError
from tests.support.hostile_options import CODE, SHELL
from tests.support.repository import REPOSITORY

register_all()
LAYOUTS = ["cfg", "configuration", "args", "namespace", "nested", "list", "tuple"]


def state_of(layout: str, **options: Any) -> dict[str, Any]:
    """The options of a model in a checkpoint, as versions of fairseq lay them out."""
    inner = {"_name": "wav2vec_ctc", "w2v_args": {"model": options}}
    model: Any = {
        "namespace": Namespace(**options), "nested": inner, "list": {"groups": [options]},
        "tuple": {"groups": (Namespace(**options),)},
    }.get(layout, options)  # fmt: skip
    if layout == "args":
        return {"args": model if isinstance(model, Namespace) else Namespace(**model)}
    cfg = {"model": model, "task": {"_name": "translation"}}
    if layout in ("configuration", "namespace", "tuple"):
        return {"cfg": OmegaConf.create(cfg, flags={"allow_objects": True})}
    return {"cfg": cfg}


def refused(state: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^a\.pt was not loaded: its {message}"):
        check_trusted(state, "a.pt")


@pytest.mark.parametrize("section", ["model", "task", "criterion", "bpe"])
@pytest.mark.parametrize("value", ["x", 3, [], ["x"], True])
def test_sections_are_options_by_name(section, value) -> None:
    for state in ({"cfg": {section: value}}, {"cfg": OmegaConf.create({section: value})}):
        with pytest.raises(UserError, match=rf"its cfg\.{section} is .*, not options by name$"):
            check_trusted(state, "a.pt")
    check_trusted({"cfg": {section: None}}, "a.pt")


@pytest.mark.parametrize("kind", ["cfg", "args"])
def test_files_that_a_configuration_names_are_not_opened(kind) -> None:
    model = {"encoder_embed_path": "/a/file", "dropout": 0.1, "huggingface_model": "folder"}
    task = {
        "source_parser": "spacy:/a/folder", "allow_difference": "parser", "pretrained": "x.pt",
        "tree_seed": 3, "lang_dict": "languages", "source_dict": ["a", "b"],
    }  # fmt: skip
    cfg = OmegaConf.create({"model": model, "task": task}) if kind == "cfg" else None
    state = {"cfg": cfg, "args": None if cfg else Namespace(**model, **task)}
    check_trusted(state, "a.pt")
    if kind == "cfg":
        assert state["cfg"] == {
            "model": {**dict.fromkeys(model), "dropout": 0.1}, "task": dict.fromkeys(task)
        }  # fmt: skip
    else:
        assert vars(state["args"]) == {**dict.fromkeys(model | task), "dropout": 0.1}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_path_is_removed_with_a_warning(layout, caplog) -> None:
    state = state_of(layout, lexicon="data/words.txt", layers=3, name="of it")
    check_trusted(state, f"{layout}.pt")
    assert "words.txt" not in str(state)
    assert "of it" in str(state)
    assert f"{layout}.pt: its " in caplog.text
    assert ".lexicon, data/words.txt, was removed, because only files and addr" in caplog.text


def test_the_address_of_fairseqs_own_file_is_kept_and_no_other() -> None:
    defaults = {
        field.name: field.default
        for field in fields(REGISTRIES["bpe"]["dataclass_registry"]["gpt2"])
    }
    state = {"cfg": {"bpe": {**defaults, "gpt2_vocab_bpe": "https://host/x"}}}
    check_trusted(state, "a.pt")
    assert state["cfg"]["bpe"] == {**defaults, "gpt2_vocab_bpe": "???"}


@pytest.mark.parametrize(
    ("bpe", "option"),
    [
        ("subword_nmt", "bpe_codes"),
        ("sentencepiece", "sentencepiece_model"),
        ("gpt2", "gpt2_vocab_bpe"),
    ],
)
def test_old_options_without_their_file_of_subwords_are_converted(bpe, option) -> None:
    options = {"arch": "transformer", "task": "translation", "bpe": bpe, option: "/theirs/file"}
    state = {"args": Namespace(**options)}
    check_trusted(state, "a.pt")
    cfg = convert_namespace_to_omegaconf(state["args"])
    assert cfg.bpe._name == bpe
    assert "theirs" not in str(OmegaConf.to_container(cfg.bpe))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", ["adaptive_softmax_cutoff", "encoder_layers", "self_attention"])
@pytest.mark.parametrize("text", CODE)
def test_code_is_refused_in_options_that_fairseq_evaluates(layout, option, text) -> None:
    refused(state_of(layout, **{option: text}), rf".*\.{option} is .*, which could run as code$")


@pytest.mark.parametrize("text", SHELL)
def test_code_is_refused_in_options_that_plugins_may_evaluate(text) -> None:
    refused(state_of("cfg", vggblock_enc_config=text), ".*_config is .*, which could run as code$")


@pytest.mark.parametrize(
    "text",
    [
        "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] + [(512,2,2)]", "[(256, 3)]*4", "10,20",
        " -0.5e-4", "None", "'1'", "{'name': 'scaled_dot_product'}", "[True, False]", "", "[]",
    ],
)  # fmt: skip
def test_data_are_accepted_where_fairseq_evaluates(text) -> None:
    state = state_of("cfg", encoder_layers=text)
    check_trusted(state, "a.pt")
    assert state["cfg"]["model"]["encoder_layers"] == text


@pytest.mark.parametrize(
    "text", ["[" * 50_000, '{"x":' * 15_000, "-" * 90_000 + "1", "x" * 100_001]
)
def test_a_text_that_is_too_large_to_tell_is_refused(text) -> None:
    refused(state_of("cfg", option_of_a_plugin=text), ".* could run as code")


@given(st.text(alphabet="[(0, 1)]*+x'_.", max_size=14))
@settings(max_examples=1000, deadline=None)
def test_no_name_is_evaluated(text) -> None:
    try:
        check_trusted(state_of("cfg", encoder_layers=text), "a.pt")
        nodes = list(ast.walk(ast.parse(text.lstrip() or "0", mode="eval")))
    except (UserError, SyntaxError):
        return
    assert not [
        node for node in nodes if isinstance(node, ast.Name | ast.Attribute | ast.Subscript)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", ["option_of_a_plugin", "data", "save_dir"])
def test_an_interpolation_is_refused_in_every_option(layout, option) -> None:
    message = (
        rf".*\.{option} is the interpolation \$\{{oc\.env:HOME\}}, which fairseq does not save"
    )
    refused(state_of(layout, **{option: "${oc.env:HOME}"}), message)


@pytest.mark.parametrize("text", ["exec", "sys", "config.x", "a-b", "a,b", "(", "x/y"])
def test_what_fairseq_evaluates_is_data(text) -> None:
    refused(
        state_of("cfg", encoder_layers=text), "cfg.model.encoder_layers is .* could run as code"
    )
    check_trusted(state_of("cfg", encoder_layers="[(512, 3)] * 20", other=text), "a.pt")


@pytest.mark.parametrize(
    "value",
    [
        b"print()", bytearray(b"print()"), np.frombuffer(b"print() ", np.uint8), np.float64(1),
        np.str_("print()"), torch.ones(2), {1}, print, int, object(), np.dtype("O"), range(3),
        collections.Counter,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
@pytest.mark.parametrize("layout", [each for each in LAYOUTS if each != "configuration"])
def test_only_the_types_of_options_are_accepted(layout, value) -> None:
    # eval evaluates everything that has bytes.
    refused(state_of(layout, data=value), f".* is a {type(value).__name__}, which no option is")


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("option", ["x", "source_parser", "data", "x_path", "encoder_layers"])
def test_numbers_that_python_does_not_print_are_refused_or_removed(option, layout, sign) -> None:
    state = state_of(layout, **{option: sign * 10**5000})
    if option == "source_parser":
        check_trusted(state, "a.pt")
        assert "'source_parser': None" in str(state) or "source_parser=None" in str(state)
    else:
        refused(state, rf".*\.{option} is too large a number")
    check_trusted(state_of(layout, **{option: sign * 10**1000}), "a.pt")


@pytest.mark.parametrize(
    "name", [b"print()", (1, 2), None, 10**5000], ids=lambda x: type(x).__name__
)
def test_only_texts_and_numbers_name_options(name) -> None:
    refused({"cfg": {"model": {name: 1}}}, r"cfg\.model has an option named ")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"cfg": [1, 2]}, "its cfg is a list"),
        ({"cfg": Namespace(model=None)}, "its cfg is a Namespace"),
        ({"args": [1]}, "its args is a list"),
        ({"cfg": None, "args": None}, "it has no options of a task"),
        ({}, "it has no options of a task"),
        ({"cfg": {"task": None}}, "it has no options of a task"),
        ({"cfg": {"task": {"_name": "translation"}}}, "it has no options of a model"),
        (
            {"cfg": {"task": {}, "model": "transformer"}},
            "its cfg.model is .transformer., not options",
        ),
    ],
)
def test_a_file_without_options_is_not_a_checkpoint_for_fairseqs_commands(
    state, message, tmp_path
) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {}, **state}, path)
    with pytest.raises(UserError, match=rf"a\.pt is not a fairseq checkpoint: {message}"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


def test_structures_without_an_end_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    shared: Any = ["x"]
    for _ in range(25):
        shared = [shared, shared]
    node = OmegaConf.create({"x": 1})
    node._content["x"]._val = node._content["x"]
    for value, message in (
        (cycle, "too many or too deeply nested values"),
        (shared, "too many or too deeply nested values"),
        ({"x": cycle}, "too many or too deeply nested values"),
        (node, "is a AnyNode"),
    ):
        refused({"cfg": {"model": value}}, rf"cfg\.model.* {message}")
    refused({"args": Namespace(x=cycle)}, r"args\.x has too many")


def test_a_section_that_is_an_interpolation_is_refused() -> None:
    cfg = OmegaConf.create({"model": {"x": 1}})
    cfg._content["model"] = DictConfig("${oc.env:HOME}")
    refused({"cfg": cfg}, r"cfg\.model is the interpolation \$")


def test_the_content_of_a_configuration_is_copied() -> None:
    cfg = OmegaConf.create({"model": {"x": 1}})
    vars(cfg)["model"] = "another"
    state = {"cfg": cfg}
    check_trusted(state, "a.pt")
    assert state["cfg"].model == {"x": 1}
    assert "model" not in vars(state["cfg"])


@pytest.mark.parametrize(
    ("option", "text", "name"),
    [
        ("huggingface_config", '{"model_type": "bert", "attn_implementation": "a/kernel"}',
         "attn_implementation is 'a/kernel', because only files"),
        ("huggingface_config", '{"text_config": {"x": ["hf-hub:a/b"]}}', "text_config.x is 'hf-hub:a"),
        ("huggingface_config", '{"x": {"backbone": "a"}}', "x.backbone is 'a', because only"),
        ("huggingface_config", "{'auto_map': {'AutoModel': 'a/b--c.D'}}", "auto_map.AutoModel is 'a/b"),
        ("eval_bleu_detok_args", '{"syntax_parser": "spacy:./x"}', "syntax_parser is 'spacy:./x'"),
        ("eval_bleu_args", '{"beam": 4, "lm_path": "lm.pt", "x": true}', "lm_path is 'lm.pt'"),
        ("eval_bleu_args", '{"beam": "${oc.env:HOME}"}', "is the interpolation"),
        ("eval_bleu_args", '{"adaptive_softmax_cutoff": "print()", "x": null}', "could run as code"),
        ("encoder_layers", "'[print()]'", "could run as code"),
        ("other", '{"weight_softmax": ["print()"]}', "could run as code"),
        ("other", "['/etc/passwd']", "is '/etc/passwd', because only files"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_text_contains_is_checked(layout, option, text, name) -> None:
    refused(state_of(layout, **{option: text}), rf".*\.{option}.*{name}")


#: What is refused, and what is refused in a text and removed elsewhere.
REFUSED = [
    "${oc.env:HIDDEN}", "a ${oc.env:HIDDEN} b", {"encoder_layers": "print('HIDDEN')"}, b"HIDDEN",
    {"HIDDEN"},
    {b"HIDDEN": 1}, np.str_("HIDDEN"),
]  # fmt: skip
REMOVED = [
    "HIDDEN/words.txt", {"a_lexicon": "HIDDEN"}, {"a_lexicon": ["HIDDEN"]}, {"backbone": "HIDDEN"},
    {"source_parser": "spacy:./HIDDEN"}, {"allow_difference": "HIDDEN"},
]  # fmt: skip


@st.composite
def structures(draw: st.DrawFn, inner: Any) -> Any:
    """A value in lists, tuples, dictionaries, namespaces and texts, beside harmless values."""
    harmless = st.sampled_from([1, None, "a word", "[1, 'x']", "{'x': '[2]'}", {"y": "(3, '4')"}])
    value, is_data = inner, not isinstance(inner, np.str_)
    for _ in range(draw(st.integers(0, 4))):
        kinds = ["list", "tuple", "dict", "namespace", *["text"] * (2 * is_data)]
        kind = draw(st.sampled_from(kinds))
        values = [
            *draw(st.lists(harmless, max_size=2)),
            value,
            *draw(st.lists(harmless, max_size=2)),
        ]
        options = {f"option{i}": content for i, content in enumerate(values)}
        is_data &= kind != "namespace"
        value = {"list": values, "tuple": tuple(values), "dict": options, "text": repr(value),
                 "namespace": Namespace(**options)}[kind]  # fmt: skip
    return value


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_refused_value_is_read_at_any_slot_of_any_structure(data) -> None:
    inner = data.draw(st.sampled_from(REFUSED + REMOVED))
    value = data.draw(structures(inner))
    state = {"cfg": {"model": {"option": value}}}
    try:
        check_trusted(state, "a.pt")
    except UserError:
        return
    assert any(inner is removed for removed in REMOVED)
    assert "HIDDEN" not in str(state)


#: Options that fairseq's commands override, or that name data.
KEPT = (
    "user_dir save_dir restore_file finetune_from_model continue_once checkpoint_suffix path "
    "results_path input log_file tensorboard_logdir plasma_path wandb_project aim_repo "
    "distributed_init_method train_subset valid_subset gen_subset freeze_regex post_process "
    "remove_bpe bpe_separator source_lang target_lang"
)


def test_ordinary_options_are_accepted() -> None:
    model = {
        "decoder_layers": "[(512, 3)] * 20", "encoder_layers": 6, "adaptive_softmax_cutoff": "10,20",
        "decoder_xformers_att_config": "{'name': 'scaled_dot_product'}", "left_pad_source": "True",
        "adam_betas": "(0.9, 0.98)", "cut": "(", "predict_fraction": "1/6", "mask_length": "span-poisson",
        "activation_fn": "gelu_fast", "parent_heads": "all", "config_yaml": "config.yaml",
        "loss_weights": "1.;0.0", "max_positions": (1024, 1024), "lr": [0.1],
        "eval_bleu_args": '{"x": true}', "langtoks": "{'main': ('src', 'tgt')}",
        "eval_bleu_remove_bpe": "@@ ", "pretrained": "False",
        "langs": "x.y", "lang_pairs": "de-en,en-de", "data": "data (1)/x", "save_dir": "/runs (1)",
        "ddp_backend": DDP_BACKEND_CHOICES("c10d"),
        **dict.fromkeys(KEPT.split(), "/runs (1)/x"),
        "source_parser": "spacy:de_core_news_sm", "encoder_layers_to_keep": "0,2", "dropout": None,
        "huggingface_config": '{"_name_or_path": "/home/x", "id2label": {"0": "N/A"}, "x": null}',
    }  # fmt: skip
    for layout in LAYOUTS:
        state = state_of(layout, **model)
        before = str(plain_options(state.get("cfg") or state["args"]))
        check_trusted(state, "a.pt")
        assert str(plain_options(state.get("cfg") or state["args"])) == before


def dataclasses() -> list[Any]:
    """All dataclasses of options."""
    registries = [MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY]
    registries += [registry["dataclass_registry"] for registry in REGISTRIES.values()]
    kinds = [kind for registry in registries for kind in registry.values()]
    return kinds + [field.type for field in fields(FairseqConfig) if is_dataclass(field.type)]


def test_every_default_is_accepted() -> None:
    for kind in dataclasses():
        defaults = {
            field.name: field.default
            for field in fields(kind)
            if isinstance(field.default, str) and "${" not in field.default
        }
        state: dict[str, Any] = {"cfg": {"section": dict(defaults)}}
        check_trusted(state, "a.pt")
        assert state["cfg"]["section"] == defaults, kind


def evaluated_names() -> dict[str, str]:
    """The variables and attributes that the installed fairseq evaluates, and where."""
    root, names = Path(fairseq.__file__).parent, {}
    for file in sorted(root.rglob("*.py")):
        if "examples" in file.relative_to(root).parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            function = getattr(node, "func", None)
            called = getattr(function, "attr", getattr(function, "id", None))
            if called not in ("eval_str_list", "eval_str_dict", "eval_bool") and not (
                called == "eval" and isinstance(function, ast.Name)
            ):
                continue
            argument = node.args[0]
            name = getattr(argument, "attr", getattr(argument, "id", None))
            names[name or ast.unparse(argument)] = f"{file.relative_to(root)}:{node.lineno}"
    return names


def test_every_option_that_fairseq_evaluates_is_known() -> None:
    names = evaluated_names()
    assert len(names) > 25
    not_evaluated = {
        "x": "argparse's value of a flag, and the functions that evaluate",
        "uf": "argparse's value of a flag",
        "line.strip()": "a line of data for speech",
        "val": "argparse's default of a flag",
        "pretrained": "a name of a file; True and False are kept",
    }
    unknown = {name for name in names if not matches(name, EVALUATED)}
    assert unknown <= not_evaluated.keys(), {
        name: names[name] for name in unknown - not_evaluated.keys()
    }
    assert not [name for name in names if matches(name, NOT_EVALUATED)]


def test_only_one_function_reads_a_checkpoint() -> None:
    files = REPOSITORY.glob("fairseq_phrase/**/*.py")
    readers = [file.name for file in files if "torch.load(" in file.read_text(encoding="utf-8")]
    assert readers == ["trust.py"]
