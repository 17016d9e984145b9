"""The identity record: each entry in each use, with each kind of difference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.checkpoints.guards import check_ties
from fairseq_phrase.checkpoints.identity import begin_neutrally, data_record_of, identity_of
from fairseq_phrase.checkpoints.loading import register_all
from fairseq_phrase.checkpoints.options import model_entries, task_entries
from fairseq_phrase.checkpoints.pretrained import PretrainedOptions, begin_from_checkpoint
from fairseq_phrase.data.store.identity import (
    OF_EACH_MODEL,
    OF_OTHER_DECODERS,
    OF_OTHER_TASKS,
    PARTS,
    USES,
    Entry,
    Identity,
    Tolerance,
    check_identity,
    differences,
)
from fairseq_phrase.errors import UserError
from fairseq_phrase.testing import build_model, make_dictionary
from tests.support.named_models import make_task
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
#: What is left out where fewer parts are compared, by the use.
WITHOUT = [
    *((use, ()) for use in USES),
    ("continue", OF_OTHER_DECODERS), ("continue", OF_OTHER_TASKS), ("join", OF_EACH_MODEL),
]  # fmt: skip


def record(where: str = "data", **changed: str) -> Identity:
    values = {name: changed.get(name.replace("-", "_"), "one") for name in ENTRIES}
    return Identity({name: Entry(v, v, ENTRIES[name]) for name, v in values.items()}, where=where)


def changed_record(name: str, value: str = "two", where: str = "data") -> Identity:
    return record(where, **{name.replace("-", "_"): value})


def test_every_part_has_an_entry_here() -> None:
    assert set(ENTRIES.values()) == set(PARTS)


@pytest.mark.parametrize(("use", "without"), WITHOUT)
@pytest.mark.parametrize("name", ENTRIES)
def test_every_entry_is_compared_in_every_use_that_has_its_part(name, use, without, caplog) -> None:
    part = ENTRIES[name]
    trained = record("a.pt").without(without)
    current = changed_record(name).without(without)
    if part in (*USES[use], *without):
        assert check_identity(trained, current, use, Tolerance(strict=True)) == ()
        return
    message = rf"^a\.pt and data differ in {name} one and two: .*allow_difference=\"{name}\"$"
    with pytest.raises(UserError, match=message):
        check_identity(trained, current, use, Tolerance(strict=True))
    (allowed,) = check_identity(trained, current, use, Tolerance(name, strict=True))
    assert allowed == f"{name} one and two (a.pt)"
    if PARTS[part].kind == "may":
        current = replace(current, where=f"data of {use} {without}")  # a warning is given once
        check_identity(trained, current, use)
        assert f"differ in {name} one and two (strict_identity " in caplog.text
    else:
        with pytest.raises(UserError, match=message):
            check_identity(trained, current, use)


def test_a_command_without_options_does_not_offer_them() -> None:
    tolerance = Tolerance(option="", remedy="name them as rows")
    with pytest.raises(UserError, match=r"differ in encoder one and two: name them as rows$"):
        check_identity(record(), changed_record("encoder"), "continue", tolerance)


@given(
    st.dictionaries(st.sampled_from([*ENTRIES]), st.sampled_from(["two", ""])),
    st.sampled_from([*USES]),
)
def test_differences_are_symmetric_and_name_each_changed_entry_once(changes, use) -> None:
    """An empty value stands for an entry that one record lacks."""
    names = [name for name in ENTRIES if changes.get(name) != ""]
    current = record(**{name.replace("-", "_"): value for name, value in changes.items() if value})
    current = current.only_named(names)
    listed = differences(record(), current, use)
    back = differences(current, record(), use)
    assert {(difference.name, difference.trained, difference.here) for difference in listed} == {
        (difference.name, difference.here, difference.trained) for difference in back
    }
    assert len({difference.name for difference in listed}) == len(listed)
    listed_names = {difference.name for difference in listed}
    compared = {name: value for name, value in changes.items() if ENTRIES[name] not in USES[use]}
    assert listed_names <= compared.keys()
    assert {name for name, value in compared.items() if value == "two"} <= listed_names


@pytest.mark.parametrize("lacks", ["trained", "here"])
def test_an_entry_that_one_record_lacks_is_a_difference(lacks) -> None:
    less = record("a.pt").only("encoder", "text")
    records = (less, record()) if lacks == "trained" else (record(), less)
    with pytest.raises(UserError, match=r"source-dictionary (one and \(none\)|\(none\) and one)"):
        check_identity(*records, "use")
    allowed = check_identity(*records, "use", Tolerance(",".join(record().entries)))
    # Only one of them reads labels, and the other has no numbers of them.
    assert len(allowed) == 7
    assert "spans-labels" not in "".join(allowed)


def test_what_a_stock_checkpoint_lacks_is_said_in_one_warning(caplog) -> None:
    stock = Identity({"encoder": Entry("one", "one", "encoder")}, is_whole=False, where="stock.pt")
    check_identity(stock, record(), "use")
    assert len(caplog.records) == 1
    assert "stock.pt does not record its source-language, source-dictionary" in caplog.text


def test_a_model_of_another_architecture_has_no_options_but_its_name() -> None:
    assert model_entries({"arch": "lightconv", "lr": [1]}).keys() == {"encoder"}
    assert "encoder-layers" in model_entries({"arch": "bart_base"})


def test_a_resumed_model_of_another_architecture_may_have_an_older_record(tmp_path) -> None:
    older = {
        "encoder": Entry("lightconv", "lightconv", "encoder"),
        "encoder-layers": Entry("7", "7", "encoder"), "parser": Entry("one", "one", "parser"),
    }  # fmt: skip
    state = {
        "cfg": {"model": {"_name": "lightconv"}},
        "task_state": {"identity": Identity(older).as_dict()},
    }
    trained = identity_of(state, tmp_path / "a.pt")
    assert trained.entries.keys() == {"encoder", "parser"}
    assert not differences(trained, Identity(model_entries({"arch": "lightconv"})), "continue")


@pytest.mark.parametrize("tags", [None, "de,en"])
def test_tags_that_a_denoising_model_may_have_are_unknown(tags, caplog) -> None:
    options = {"_name": "multilingual_denoising", "langs": None}
    trained = Identity(task_entries(options), is_whole=False, where="mbart.pt").only("source")
    current = Identity(task_entries({"_name": "syntax_translation", "langs": tags})).only("source")
    check_identity(trained, current, "continue")
    assert ("mbart.pt does not record its langs" in caplog.text) == (tags is not None)


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
@pytest.mark.parametrize("use", ["continue", "join"])
def test_a_tie_is_compared_also_with_a_stock_checkpoint(tie, use) -> None:
    model_options = {"arch": "transformer", tie: False}
    stock = Identity(model_entries(model_options), is_whole=False)
    current = Identity(model_entries({"_name": "relation_transformer", tie: True}))
    model = build_model("relation_transformer", make_dictionary())
    trained = begin_neutrally(stock, current, model.encoder, None)
    with pytest.raises(UserError, match=f"differ in .*{tie.replace('_', '-')} False and True"):
        check_identity(trained, current, use)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("langs", ["en,de", "fr,de,en", None])
def test_language_tags_are_part_of_the_source(use, langs) -> None:
    first, two = (
        Identity(task_entries({"_name": "syntax_translation", "langs": languages}))
        for languages in ("de,en", langs)
    )
    with pytest.raises(UserError, match=f"differ in langs de,en and {langs}: give --langs de,en"):
        check_identity(first, two, use)
    stock = {"_name": "translation_from_pretrained_bart", "langs": "de,en"}
    with pytest.raises(UserError, match=f"differ in langs de,en and {langs}: give --langs de,en"):
        check_identity(Identity(task_entries(stock), is_whole=False), two, use)


def test_an_option_that_the_training_did_not_have_is_left_out() -> None:
    factors = {"source-factors": Entry("tags", "tags", "encoder", default="")}
    with pytest.raises(UserError, match=r"\(none\) and tags: leave out --source-factors, or let"):
        check_identity(Identity(), Identity(factors), "continue")
    with pytest.raises(UserError, match=r"tags and \(none\): give --source-factors tags, or let"):
        check_identity(Identity(factors), Identity(), "continue")


@pytest.mark.parametrize("part", ["labels", "parser", "trees", "data", "text", "training"])
def test_a_neutral_start_adds_what_its_encoder_reads_and_nothing_else(part) -> None:
    """A stock record has none of these entries."""
    model = build_model("relation_transformer", make_dictionary())
    stock = Identity(model_entries({"_name": "transformer"}), is_whole=False)
    entries = model_entries({"_name": "relation_transformer", "relation_labels": True})
    current = Identity({**entries, "entry": Entry("value", "value", part)})
    begun = begin_neutrally(stock, current, model.encoder, None)
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
    begun = begin_neutrally(trained, current, model.encoder, None)
    assert all(begun.value(name) == "one" for name in data)
    assert begun.value("deprels-labels") == "one"
    assert begun.value("relation-labels") == "True"
    message = "differ in tags-labels one and two, parser one and two, tree-source one and two: "
    with pytest.raises(UserError, match=message):
        check_identity(begun, current, "continue", Tolerance(strict=True))


def test_a_record_of_an_earlier_version_is_completed_by_the_configuration() -> None:
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
    assert check_identity(completed, added, "use") == ()


def test_data_without_named_languages_have_those_of_their_files(data_directory, tmp_path) -> None:
    by_names = data_record_of(
        {"data": str(data_directory), "source_lang": "de", "target_lang": "en"}
    )
    assert {"source-dictionary", "target-dictionary"} <= by_names.entries.keys()
    assert data_record_of({"data": f"{data_directory}:elsewhere"}) == by_names
    for missing in ({}, {"data": None}, {"data": str(tmp_path / "gone")}, {"data": str(tmp_path)}):
        assert data_record_of(missing).entries == {}


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
