"""Bundles and checkpoints that were made by hand: each is loaded, or refused with one message."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

from fairseq_phrase.checkpoints.loading import read_checkpoint
from fairseq_phrase.cli.export import main as export_main
from fairseq_phrase.data.store.identity import Entry, Identity
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import bundle as bundles
from fairseq_phrase.inference import translator
from fairseq_phrase.inference.bundle import new_folder, require_exportable, write_bundle
from fairseq_phrase.inference.model_files import read_identity
from tests.support.packages import install_package
from tests.support.small_checkpoints import make_checkpoint, make_data

MODEL = [
    "--arch", "structural_transformer", "--structural-relative", "--structural-absolute",
    "--source-factors", "tags", "--max-target-positions", "6",
]  # fmt: skip
VALUES = (None, 10**9, 10**30, -2, 0, 1.5, True, "x", "a/b", "\0", "${x}", [], [1], {}, {"a": 1})
REMOVED = object()


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
    ways: list[tuple[Any, ...]] = []
    for key, value in inner:
        ways.append((key,))
        if isinstance(value, dict | list):
            ways += [(key, *way) for way in slots(value)]
    return ways


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


@given(st.data())
def test_a_bundle_with_any_other_value_is_used_or_refused(checkpoint, bundle, data) -> None:
    contents = (bundle / "config.json").read_text(encoding="utf-8")
    copy = checkpoint.with_name("other")
    shutil.copytree(bundle, copy, dirs_exist_ok=True)
    way = data.draw(st.sampled_from(slots(json.loads(contents))))
    value = data.draw(st.sampled_from((REMOVED, *VALUES)))
    text = json.dumps(changed(json.loads(contents), way, value))
    (copy / "config.json").write_text(text, encoding="utf-8")
    with contextlib.suppress(UserError):
        use(copy)


def with_contents(bundle, way: str, value: Any):
    contents = bundle / "config.json"
    content = json.loads(contents.read_text(encoding="utf-8"))
    contents.write_text(
        json.dumps(changed(content, ("bundle", *way.split(".")), value)), encoding="utf-8"
    )


@pytest.fixture
def own_bundle(bundle, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(bundle, tmp_path / "own")


@pytest.mark.parametrize(
    ("way", "value", "message"),
    [
        ("task_state", {}, r"config\.json is damaged \('identity'\): export"),
        ("task_state", [], r"config\.json is damaged \(.*\): export"),
        ("task_state.identity", REMOVED, r"config\.json is damaged \('identity'\): export"),
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
        ("task.source_lang", "/../de", r"names the language '/\.\./de': it is damaged"),
        ("model.decoder_xformers_att_config", "print(1)", "could run as code"),
    ],
)
def test_what_a_bundle_asks_for_is_compared_with_what_it_holds(
    own_bundle, monkeypatch, way, value, message
) -> None:
    with_contents(own_bundle, way, value)
    touched: list[int] = []  # sizes of the tensors that get values
    monkeypatch.setattr(
        nn.init, "xavier_uniform_", lambda tensor, **_: touched.append(tensor.numel())
    )
    monkeypatch.setattr(nn.init, "zeros_", lambda tensor: touched.append(tensor.numel()))
    with pytest.raises(UserError, match=message):
        use(own_bundle)
    assert max(touched, default=0) < 10**6


def test_the_record_of_a_bundle_without_one_is_missed(own_bundle) -> None:
    with_contents(own_bundle, "task_state", {})
    with pytest.raises(UserError, match=r"config\.json is damaged"):
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("cfg", "task", "_name", "syntax_labelling"), "by the task syntax_labelling: only tra"),
        (
            ("task_state", "identity", "entries", "tree-source", "value", "shuffled"),
            "was trained on shuffled trees, which come from its training data",
        ),
    ],
)  # fmt: skip
def test_a_model_that_needs_more_than_its_bundle_is_not_exported(checkpoint, change, message):
    saved = read_checkpoint(checkpoint)
    *way, name, value = change
    part = saved.state
    for key in way:
        part = part[key]
    part[name] = value
    with pytest.raises(UserError, match=message):
        require_exportable(saved)


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


def test_data_without_their_subword_model_make_no_bundle(checkpoint, tmp_path) -> None:
    data = shutil.copytree(checkpoint.with_name("data"), tmp_path / "data")
    manifest = Manifest.load(data, "de")
    replace(manifest, bpe="subword_nmt", bpe_model="").save(data)
    with pytest.raises(
        UserError, match=r"has no subword model, .* fairseq-phrase-attach again with"
    ):
        write_bundle(checkpoint, data, tmp_path)


def test_a_parser_in_a_folder_is_named_without_its_path(exported, tmp_path, caplog) -> None:
    (tmp_path / "my parser").mkdir()
    folder = exported(f"spacy:{tmp_path}/my parser")
    assert f"the parser spacy:{tmp_path}/my parser is a folder, which is not in the" in caplog.text
    for path in (folder / "README.md", folder / "config.json", folder / "syntax.de.json"):
        assert str(tmp_path) not in path.read_text(encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "fairseq-phrase-translate BUNDLE --source-parser 'spacy:./my parser' < text" in card
    with pytest.raises(
        UserError, match=r"name it yourself.*:\./my parser\"; else the path of a copy, or an inst"
    ):
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


def test_the_folder_of_another_model_is_not_a_bundle(own_bundle) -> None:
    (own_bundle / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(
        UserError, match=r"is not a bundle .*: config\.json describes another model"
    ):
        use(own_bundle)


def test_embeddings_that_are_shared_are_written_once(bundle, checkpoint) -> None:
    described = json.loads((bundle / "config.json").read_text(encoding="utf-8"))["bundle"]
    weights = load_file(bundle / "model.safetensors")
    parameters = torch.load(checkpoint, weights_only=True)["model"]
    assert weights.keys() | described["aliases"].keys() == parameters.keys()
    assert "decoder.embed_tokens.weight" in described["aliases"]
    for name, value in parameters.items():
        torch.testing.assert_close(weights[described["aliases"].get(name, name)], value)


def metadata_of(folder) -> dict[str, Any]:
    _, metadata, _ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(metadata)


def export(checkpoint, out, *options) -> None:
    export_main([str(checkpoint), str(checkpoint.with_name("data")), str(out), *map(str, options)])


def test_the_metadata_of_the_card_are_a_hubs(checkpoint, tmp_path) -> None:
    out = tmp_path / "out"
    export(checkpoint, out, "--license", "cc-by-4.0", "--datasets", "multi30k, wmt14")
    assert metadata_of(out) == {
        "language": ["de", "en"], "license": "cc-by-4.0", "library_name": "fairseq-phrase",
        "pipeline_tag": "translation", "tags": ["fairseq", "structural_transformer"],
        "datasets": ["multi30k", "wmt14"],
    }  # fmt: skip
    card = (out / "README.md").read_text(encoding="utf-8")
    assert metadata_repeats(card) == 2
    assert "## Training data\n\n- data: multi30k, wmt14\n\n" in card


def metadata_repeats(card: str) -> int:
    """The number of lines that a hub reads as the border of metadata."""
    return card.splitlines().count("---")


def test_the_metadata_without_options_have_nothing_empty(bundle) -> None:
    assert set(metadata_of(bundle)) == {"language", "library_name", "pipeline_tag", "tags"}


def test_the_packages_of_all_parts_are_listed(tmp_path, monkeypatch):
    groups = {
        "encoders": ["enc"], "parse_fields": ["lemmas"], "phrase_sources": ["siblings"],
        "segmenters": ["seg", "seg2"], "parsers": ["parse", "unused"],
    }  # fmt: skip
    for group, names in groups.items():
        for name in names:
            entry = f"[fairseq_phrase.{group}]\n{name} = no_module:{name}\n"
            install_package(tmp_path, f"of_{name}", entry)
    monkeypatch.syspath_prepend(tmp_path)
    entries = {"encoder": "enc", "phrase-source": "siblings:3"}
    record = Identity({name: Entry(value, value, "encoder") for name, value in entries.items()})
    manifest = SimpleNamespace(
        fields=["words", "lemmas"], bpe="seg", target_bpe="seg2", parser="parse:x"
    )
    packages = ["of_enc", "of_lemmas", "of_parse", "of_seg", "of_seg2", "of_siblings"]
    assert bundles.packages_of(record, manifest) == packages
