"""Bundles and checkpoints that were made by hand: each is loaded, or refused with one message."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from argparse import Namespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fairseq_phrase import parsers
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import translator
from fairseq_phrase.inference.bundle import new_folder, write_bundle
from fairseq_phrase.inference.model_files import read_identity
from tests.support.small_checkpoints import ChainParser, make_checkpoint, make_data

MODEL = [
    "--arch", "structural_transformer", "--structural-relative", "--structural-absolute",
    "--source-factors", "tags",
]  # fmt: skip
VALUES = (None, 10**9, 10**30, -2, 0, 1.5, True, "x", "a/b", "\0", "${x}", [], [1], {}, {"a": 1})
REMOVED = object()


@pytest.fixture(scope="module", autouse=True)
def _translates():
    """Lines are parsed as chains, and translations are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(parsers._BUILT_IN, "chain", parsers._BuiltIn("chain", ChainParser))
        patch.setattr(translator, "longest_target", lambda source: 5)
        yield


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    return make_checkpoint(folder / "a.pt", make_data(folder / "data"), *MODEL)


@pytest.fixture(scope="module")
def bundle(checkpoint):
    folder = checkpoint.with_name("bundle")
    with new_folder(folder) as out:
        write_bundle(checkpoint, checkpoint.with_name("data"), out)
    return folder


def slots(content: Any) -> list[tuple[Any, ...]]:
    """The ways to everything in a JSON value."""
    inner = content.items() if isinstance(content, dict) else enumerate(content)
    found: list[tuple[Any, ...]] = []
    for key, value in inner:
        found.append((key,))
        if isinstance(value, dict | list):
            found += [(key, *way) for way in slots(value)]
    return found


def changed(content: Any, way: tuple[Any, ...], value: Any) -> Any:
    content = copy.deepcopy(content)
    part = content
    for key in way[:-1]:
        part = part[key]
    if value is REMOVED:
        del part[way[-1]]
    else:
        part[way[-1]] = value
    return content


def use(path) -> None:
    translator.load(path, device="cpu").translate("der Hund schläft", beam=1)


@settings(max_examples=50)
@given(st.data())
def test_a_bundle_with_any_other_value_is_used_or_refused(checkpoint, bundle, data) -> None:
    whole = (bundle / "bundle.json").read_text(encoding="utf-8")
    other = checkpoint.with_name("other")
    shutil.copytree(bundle, other, dirs_exist_ok=True)
    way = data.draw(st.sampled_from(slots(json.loads(whole))))
    value = data.draw(st.sampled_from((REMOVED, *VALUES)))
    text = json.dumps(changed(json.loads(whole), way, value))
    (other / "bundle.json").write_text(text, encoding="utf-8")
    with contextlib.suppress(UserError):
        use(other)


def with_contents(bundle, way: str, value: Any):
    contents = bundle / "bundle.json"
    whole = json.loads(contents.read_text(encoding="utf-8"))
    contents.write_text(json.dumps(changed(whole, tuple(way.split(".")), value)), encoding="utf-8")


@pytest.fixture
def own_bundle(bundle, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(bundle, tmp_path / "own")


@pytest.mark.parametrize(
    ("way", "value", "message"),
    [
        ("task_state", {}, r"bundle\.json is damaged \('identity'\): export"),
        ("task_state", [], r"bundle\.json is damaged \(.*\): export"),
        ("task_state.identity", REMOVED, r"bundle\.json is damaged \('identity'\): export"),
        (
            "model.encoder_attention_heads",
            -2,
            r"its encoder_attention_heads is -2, but .* has 0 to",
        ),
        ("model.encoder_layers", 10**9, r"its encoder_layers is 1000000000, but a model of its "),
        ("model.decoder_ffn_embed_dim", 10**9, r"its decoder_ffn_embed_dim is 1000000000, but "),
        ("model.max_source_positions", 10**9, r"its max_source_positions is 1000000000, but "),
        ("model.structural_clip", 10**7, r"asks for more than [\d,]+ parameters, and the file has"),
        ("model.dropout", "high", r"cannot be used with .*: ValidationError: Value 'high'"),
        ("task.source_lang", ["de"], r"names the language \['de'\]: it is damaged"),
        ("model.decoder_xformers_att_config", "print(1)", "could run as code"),
    ],
)
def test_what_a_bundle_asks_for_is_compared_with_what_it_holds(
    own_bundle, monkeypatch, way, value, message
) -> None:
    with_contents(own_bundle, way, value)
    touched: list[int] = []
    monkeypatch.setattr(
        nn.init, "xavier_uniform_", lambda tensor, **_: touched.append(tensor.numel())
    )
    monkeypatch.setattr(nn.init, "zeros_", lambda tensor: touched.append(tensor.numel()))
    with pytest.raises(UserError, match=message):
        use(own_bundle)
    assert max(touched, default=0) < 10**6


def test_the_record_of_a_bundle_without_one_is_missed(own_bundle) -> None:
    with_contents(own_bundle, "task_state", {})
    with pytest.raises(UserError, match=r"bundle\.json is damaged"):
        read_identity(own_bundle)


@pytest.mark.parametrize(
    ("way", "value"),
    [
        (("task_state",), []),
        (("task_state",), {"identity": []}),
        (("optimizer_history",), []),
        (("extra_state",), None),
        (("cfg",), None),
        (("cfg",), {"model": {"_name": ["x"]}, "task": {}}),
        (("cfg", "model", "encoder_layers"), 10**9),
        (("cfg", "model", "encoder_attention_heads"), -2),
        (("cfg", "model", "decoder_embed_dim"), {}),
        (("cfg", "task", "source_lang"), 5),
        (("cfg", "task", "max_source_positions"), "x"),
        (("cfg", "task"), []),
        (("model",), {"encoder.version": 3}),
        (("model",), {}),
        (("args",), Namespace(arch="transformer", task="translation")),
    ],
)
def test_a_checkpoint_made_by_hand_is_refused(checkpoint, tmp_path, way, value) -> None:
    state = torch.load(checkpoint, weights_only=True)
    part = state
    for key in way[:-1]:
        part = part[key]
    part[way[-1]] = value
    path = tmp_path / "changed.pt"
    torch.save(state, path)
    with pytest.raises(UserError, match=r"changed\.pt"):
        use(path)


@pytest.fixture
def exported(checkpoint, tmp_path):
    """A function that exports the checkpoint with data of a parser, and returns the folder."""

    def export(parser: str, allowed: str = ""):
        data, out = (
            shutil.copytree(checkpoint.with_name("data"), tmp_path / "data"),
            tmp_path / "out",
        )
        path = data / "syntax.de.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        content |= {"parser": parser, "allowed": [allowed] * bool(allowed)}
        path.write_text(json.dumps(content), encoding="utf-8")
        with new_folder(out) as folder:
            write_bundle(checkpoint, data, folder)
        return out

    return export


def test_a_parser_in_a_folder_is_named_without_its_path(exported, tmp_path, caplog) -> None:
    (tmp_path / "my parser").mkdir()
    folder = exported(f"spacy:{tmp_path}/my parser")
    assert f"the parser spacy:{tmp_path}/my parser is a folder, which is not in the" in caplog.text
    for path in (folder / "README.md", folder / "bundle.json", folder / "syntax.de.json"):
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "fairseq-phrase-translate BUNDLE --source-parser 'spacy:./my parser' < text" in card
    with pytest.raises(UserError, match=r"loaded from a path only if you name it yourself"):
        use(folder)


def test_the_card_of_data_with_files_of_trees_names_them(exported) -> None:
    card = (exported("conllu:surface") / "README.md").read_text(encoding="utf-8")
    assert "The text's parses are in `text.conllu`." in card
    assert "fairseq-phrase-translate BUNDLE text > translation" in card


def test_the_card_shows_texts_as_they_are(exported) -> None:
    card = (exported("chain", "<b>*other* parser</b> | x") / "README.md").read_text(
        encoding="utf-8"
    )
    assert r"\<b>\*other\* parser\</b> \| x" in card


@pytest.mark.parametrize("part", ["model", "parser"])
def test_the_package_of_a_plugin_is_named(own_bundle, caplog, part) -> None:
    with_contents(own_bundle, "packages", {part: ["my-plugin"]})
    if part == "model":
        with pytest.raises(
            UserError, match="its model is of the package my-plugin: pip install my-p"
        ):
            use(own_bundle)
    else:
        use(own_bundle)
        assert (
            "its parser is of the package my-plugin: pip install my-plugin, or name" in caplog.text
        )
