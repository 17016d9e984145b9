"""The identity record: every entry at every entry_point, and every command among the entry_points."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils

from fairseq_phrase.checkpoints.entries import model_entries, task_entries
from fairseq_phrase.checkpoints.identity import begin_neutrally, identity_of
from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.parameter_checks import check_ties
from fairseq_phrase.checkpoints.pretrained import PretrainedOptions, begin_from_checkpoint
from fairseq_phrase.data.store.identity import (
    ENTRY_POINTS,
    PARTS,
    REMEDIES,
    UNKNOWN,
    Entry,
    Identity,
    compare,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.testing import build_model, make_dictionary
from tests.support.entry_points import COMMANDS
from tests.support.named_models import make_task
from tests.support.repository import REPOSITORY
from tests.support.small_checkpoints import make_checkpoint, make_data

register_all()
ENTRIES = {
    "source-language": "languages", "source-dictionary": "source", "target-dictionary": "target",
    "segmenter": "text", "subword-model": "text", "spans-labels": "labels", "parser": "parser",
    "target-segmenter": "target-text", "labels": "labelled", "field-of-data": "data",
    "tree-source": "trees", "tree-seed": "trees", "encoder": "encoder", "phrase-mask": "encoder",
    "decoder-attention-heads": "decoder", "plugin-option": "task",
    "training": "training",
}  # fmt: skip
#: Commands that load neither a checkpoint nor a data directory, or only show them.
WITHOUT = {"synthetic", "inspect"}
NAMES = {"trained_name": "a.pt", "current_name": "data"}


def record(**changed: str) -> Identity:
    values = {name: changed.get(name.replace("-", "_"), "one") for name in ENTRIES}
    return Identity({name: Entry(v, v, ENTRIES[name]) for name, v in values.items()})


def test_every_part_has_an_entry_here() -> None:
    assert set(ENTRIES.values()) == set(PARTS)


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_is_compared_at_every_door_that_has_its_part(name, entry_point, caplog) -> None:
    part, changed_record = ENTRIES[name], record(**{name.replace("-", "_"): "two"})
    way = REMEDIES.get(entry_point, f'.*allow_difference="{name}"')
    message = rf"^a\.pt and data differ in {name} one and two: {way}$"
    if part not in ENTRY_POINTS[entry_point]:
        assert compare(record(), changed_record, entry_point, strict=True, **NAMES).allowed == ()
        return
    with pytest.raises(UserError, match=message):
        compare(record(), changed_record, entry_point, strict=True, **NAMES)
    (allowed,) = compare(
        record(), changed_record, entry_point, allow=name, strict=True, **NAMES
    ).allowed
    assert allowed == f"{name} one and two (a.pt)"
    if PARTS[part].kind == "may":
        names = {**NAMES, "current_name": f"data of {entry_point}"}  # a warning is given once
        compare(record(), changed_record, entry_point, **names)
        assert f"differ in {name} one and two (strict_identity " in caplog.text
    else:
        with pytest.raises(UserError, match=message):
            compare(record(), changed_record, entry_point, **NAMES)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", ENTRIES)
def test_only_subword_models_and_parsers_may_be_unknown(name, side) -> None:
    records = [record(), record()]
    records[side] = record(**{name.replace("-", "_"): UNKNOWN})
    part = ENTRIES[name]
    if part in ("text", "target-text") or PARTS[part].kind == "may":
        compare(*records, "average", **NAMES)
        return
    with pytest.raises(UserError, match=f"differ in {name}"):
        compare(*records, "average", **NAMES)


def test_every_command_that_loads_a_model_or_data_is_among_the_doors() -> None:
    assert COMMANDS.keys() == ENTRY_POINTS.keys()
    of_doors = set().union(*COMMANDS.values())
    files = [*REPOSITORY.glob("setup.py"), *REPOSITORY.glob("pyproject.toml")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    commands = set(re.findall(r"^\W*(fairseq-phrase-\w+)\W* =", text, re.MULTILINE))
    assert "fairseq-phrase-translate" in commands
    assert commands - {f"fairseq-phrase-{name}" for name in WITHOUT} <= of_doors


@pytest.mark.parametrize("lacks", ["trained", "here"])
def test_an_entry_that_one_record_lacks_is_a_difference(lacks) -> None:
    less = replace(record(), entries=record().only("encoder", "text").entries)
    records = (less, record()) if lacks == "trained" else (record(), less)
    with pytest.raises(UserError, match=r"source-dictionary (one and \(none\)|\(none\) and one)"):
        compare(*records, "use", **NAMES)
    names = ",".join(record().entries)
    allowed = compare(*records, "use", allow=names, **NAMES).allowed
    # Only one of them reads labels, and the other has no numbers of them.
    assert len(allowed) == 8
    assert "spans-labels" not in "".join(allowed)


def test_what_a_stock_checkpoint_lacks_is_said_in_one_warning(caplog) -> None:
    stock = Identity({"encoder": Entry("one", "one", "encoder")}, is_whole=False)
    compare(stock, record(), "use", trained_name="stock.pt", current_name="data")
    assert len(caplog.records) == 1
    assert "stock.pt does not record its source-language, source-dictionary" in caplog.text


@pytest.mark.parametrize("damage", [None, {}, {"entries": {"x": {}}, "allowed": []}])
def test_a_damaged_record_is_named(damage) -> None:
    with pytest.raises(UserError, match=r"a\.pt: its identity record is damaged"):
        Identity.from_dict(damage, "a.pt")
    partial_record = replace(record(), is_whole=False)
    assert Identity.from_dict(partial_record.as_dict(), "a.pt") == partial_record


def test_what_is_free_is_not_recorded() -> None:
    entries = model_entries({"_name": "phrase_transformer", "dropout": 0.7})
    assert not {"dropout", "encoder-layerdrop"} & entries.keys()


def untied(folder: Path) -> Path:
    """A checkpoint whose embeddings differ, though its options share them: somebody changed it."""
    state = build_model("transformer", make_dictionary(), share_all_embeddings=False).state_dict()
    cfg = {"model": {"_name": "relation_transformer", "share_all_embeddings": True}, "task": {}}
    torch.save({"cfg": cfg, "model": state}, folder / "untied.pt")
    return folder / "untied.pt"


def test_parameters_that_would_become_one_are_compared_by_content(tmp_path) -> None:
    path, dictionary = untied(tmp_path), make_dictionary()
    saved = torch.load(path)["model"]
    message = (
        "encoder.embed_tokens.weight and decoder.embed_tokens.weight have different values, and"
    )
    for name in ("transformer", "relation_transformer"):
        model = build_model(name, dictionary, share_all_embeddings=True)
        with pytest.raises(UserError, match=f"^a.pt: {message} here they are one parameter: leave"):
            check_ties(saved, model.state_dict(), "a.pt")
        with pytest.raises(UserError, match=message):  # whatever loads it
            model.load_state_dict(dict(saved))
        task = make_task(dictionary)
        task.cfg = PretrainedOptions(pretrained_model=str(path))
        with pytest.raises(UserError, match=rf"^--pretrained-model .*untied\.pt: {message}"):
            begin_from_checkpoint(model, task.cfg, task)
    tied = {**saved, "decoder.embed_tokens.weight": saved["encoder.embed_tokens.weight"].clone()}
    output = "decoder.output_projection.weight"
    with pytest.raises(UserError, match=f"{output} have different values"):
        check_ties(tied, model.state_dict(), "a.pt")
    check_ties({**tied, output: tied["encoder.embed_tokens.weight"]}, model.state_dict(), "a.pt")


@pytest.mark.parametrize("tie", ["share_all_embeddings", "share_decoder_input_output_embed"])
@pytest.mark.parametrize("entry_point", ["train", "use", "average", "pretrained-model"])
def test_a_tie_is_compared_also_with_a_stock_checkpoint(tie, entry_point) -> None:
    model_options = {"arch": "transformer", tie: False}
    stock = Identity(model_entries(model_options), is_whole=False)
    current = Identity(model_entries({"_name": "relation_transformer", tie: True}))
    model = build_model("relation_transformer", make_dictionary())
    trained = begin_neutrally(stock, current, model.encoder, "a.pt", None)
    with pytest.raises(UserError, match=f"differ in .*{tie.replace('_', '-')} False and True"):
        compare(trained, current, entry_point, **NAMES)


@pytest.mark.parametrize(
    "entry_point", ["train", "use", "pretrained", "pretrained-model", "ensemble"]
)
@pytest.mark.parametrize("langs", ["en,de", "fr,de,en", None])
def test_language_tags_are_part_of_the_source(entry_point, langs) -> None:
    first, two = (
        Identity(task_entries({"_name": "syntax_translation", "langs": languages}))
        for languages in ("de,en", langs)
    )
    with pytest.raises(UserError, match=f"differ in langs de,en and {langs}: give --langs de,en"):
        compare(first, two, entry_point, **NAMES)
    stock = {"_name": "translation_from_pretrained_bart", "langs": "de,en"}
    with pytest.raises(UserError, match=f"differ in langs de,en and {langs}: give --langs de,en"):
        compare(Identity(task_entries(stock), is_whole=False), two, entry_point, **NAMES)


def test_an_option_that_the_training_did_not_have_is_left_out() -> None:
    factors = {"source-factors": Entry("tags", "tags", "encoder", default="")}
    with pytest.raises(UserError, match=r"\(none\) and tags: leave out --source-factors, or let"):
        compare(Identity(), Identity(factors), "train", **NAMES)
    with pytest.raises(UserError, match=r"tags and \(none\): give --source-factors tags, or let"):
        compare(Identity(factors), Identity(), "train", **NAMES)


@pytest.mark.parametrize("part", ["labels", "parser", "trees", "data", "text", "training"])
def test_a_neutral_start_adds_what_its_encoder_reads_and_nothing_else(part) -> None:
    """A stock record has none of these entries."""
    model = build_model("relation_transformer", make_dictionary())
    stock = Identity(model_entries({"_name": "transformer"}), is_whole=False)
    entries = model_entries({"_name": "relation_transformer", "relation_labels": True})
    current = Identity({**entries, "entry": Entry("value", "value", part)})
    begun = begin_neutrally(stock, current, model.encoder, "a.pt", None)
    is_read = part in ("labels", "parser", "trees")
    assert begun.value("entry") == ("value" if is_read else None)
    assert begun.value("encoder") == "relation_transformer"


def test_a_neutral_start_overwrites_no_entry_of_the_checkpoint() -> None:
    """Factors of a stock model are read with the checkpoint's numbers, not with this run's."""
    model = build_model("relation_transformer", make_dictionary())
    data = {"tags-labels": "labels", "parser": "parser", "tree-source": "trees"}
    labels = {"deprels-labels": Entry("one", "one", "labels")}
    trained, current = (
        Identity(
            {
                **model_entries({"_name": arch, "relation_labels": True}),
                **{name: Entry(value, value, part) for name, part in data.items()},
                **(labels if value == "two" else {}),
            }
        )
        for arch, value in (("transformer", "one"), ("relation_transformer", "two"))
    )
    begun = begin_neutrally(trained, current, model.encoder, "a.pt", None)
    assert all(begun.value(name) == "one" for name in data)
    assert begun.value("deprels-labels") == "one"
    assert begun.value("relation-labels") == "True"
    message = "differ in tags-labels one and two, parser one and two, tree-source one and two: "
    with pytest.raises(UserError, match=message):
        compare(begun, current, "train", strict=True, **NAMES)


def test_a_record_of_an_earlier_version_is_completed_by_the_configuration(tmp_path) -> None:
    cfg = {
        "model": {"_name": "relation_transformer", "share_all_embeddings": True, "relation_bias": "both"},
        "task": {"_name": "syntax_translation", "langs": "de,en"},
        "common": {"seed": 3}, "checkpoint": {"save_dir": "runs/a"},
    }  # fmt: skip
    entries = {
        "relation-bias": Entry("tree", "tree", "encoder"), "langs": Entry("de,en", "de,en", "task"),
        "parser": Entry("one", "one", "parser"),
    }  # fmt: skip
    recorded = Identity(entries).as_dict()
    del recorded["version"]
    completed = identity_of({"cfg": cfg, "task_state": {"identity": recorded}}, "a.pt")
    assert completed.value("relation-bias") == "tree"  # as it was recorded
    assert completed.value("share-all-embeddings") == "True"
    assert completed.value("training") == "seed 3 in runs/a"
    assert completed.entries["langs"].part == "source"
    assert not completed.is_whole
    added = Identity({**completed.entries, "new": Entry("x", "x", "source")})
    assert compare(completed, added, "use", **NAMES).allowed == ()


@pytest.mark.parametrize("arch", ["transformer", "relation_transformer"])
def test_a_model_is_used_without_some_of_its_layers(tmp_path, arch):
    """As ``--model-overrides`` of fairseq-generate does after a training with ``--encoder-layerdrop``."""
    data = make_data(tmp_path / "data")
    path = make_checkpoint(tmp_path / "whole.pt", data, "--arch", arch)
    overrides = {"encoder_layers_to_keep": "1", "decoder_layers_to_keep": "0"}
    (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)])
    (pruned,), _, _ = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides)
    for side, number in (("encoder", 1), ("decoder", 0)):
        (layer,) = getattr(pruned, side).layers
        for name, value in getattr(model, side).layers[number].state_dict().items():
            assert value.equal(layer.state_dict()[name]), name
    with pytest.raises(UserError, match="differ in encoder-attention-heads 2 and 4"):
        checkpoint_utils.load_model_ensemble_and_task([str(path)], {"encoder_attention_heads": 4})
