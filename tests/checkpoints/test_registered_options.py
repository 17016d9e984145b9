"""Models that were trained before an option whose default is not what they were trained with."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.identity import identity_of
from fairseq_phrase.checkpoints.options import REMOVED_OPTIONS, complete_options, model_entries
from fairseq_phrase.checkpoints.pretrained import take_options
from fairseq_phrase.data.store.identity import Entry, Identity, differences
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.bundle import new_folder, read_bundle, write_bundle
from fairseq_phrase.models.named_encoder import report_other_encoders
from tests.support.phrase_models import PhraseTransformerConfig
from tests.support.small_checkpoints import make_checkpoint, make_data

ARCH = ["--arch", "phrase_transformer"]


def make_older(path):
    """Remove an option from a checkpoint, as checkpoints of before it lack it."""
    state = torch.load(path, weights_only=True)
    del state["cfg"]["model"]["phrase_residual"]
    del state["task_state"]["identity"]["entries"]["phrase-residual"]
    torch.save(state, path)
    return path


@pytest.fixture
def older(tmp_path):
    data = make_data(tmp_path / "data")
    return make_older(
        make_checkpoint(tmp_path / "older.pt", data, *ARCH, "--phrase-residual", "each")
    )


def test_an_older_checkpoint_is_built_as_it_was_trained(older):
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task([str(older)])
    assert [layer.residual for layer in models[0].encoder.layers] == ["each", "each"]
    assert "encoder.layers.0.phrase_attn_layer_norm.weight" in models[0].state_dict()


def test_an_older_record_is_that_of_its_training(older, tmp_path):
    now = make_checkpoint(tmp_path / "now.pt", tmp_path / "data", *ARCH)
    later = make_checkpoint(
        tmp_path / "each.pt", tmp_path / "data", *ARCH, "--phrase-residual", "each"
    )
    trained, of_now, of_later = (
        identity_of(torch.load(path, weights_only=True), path) for path in (older, now, later)
    )
    (difference,) = differences(trained, of_now, "continue")
    assert str(difference) == "phrase-residual each and both"
    assert differences(trained, of_later, "continue") == []


def test_options_are_taken_from_an_older_checkpoint_with_this_one(older):
    cfg = PhraseTransformerConfig()
    assert cfg.phrase_residual == "both"
    take_options(cfg, older)
    assert cfg.phrase_residual == "each"


def test_an_older_bundle_is_built_as_it_was_trained(older, tmp_path):
    """Bundles of before the option lack it; those of today have it, also of older checkpoints."""
    with new_folder(tmp_path / "bundle") as folder:
        write_bundle(older, tmp_path / "data", folder)
    file = tmp_path / "bundle" / "config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    assert content["bundle"]["model"].pop("phrase_residual") == "each"
    file.write_text(json.dumps(content), encoding="utf-8")
    assert read_bundle(tmp_path / "bundle").state["cfg"].model.phrase_residual == "each"


def test_another_value_of_an_option_is_refused(older, tmp_path, capsys):
    with pytest.raises(SystemExit):
        make_checkpoint(tmp_path / "b.pt", tmp_path / "data", *ARCH, "--phrase-residual", "one")
    assert "argument --phrase-residual: invalid choice: 'one'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["dictionary", "configuration", "strict", "arguments"])
def test_every_form_of_options_is_completed(kind):
    old = {"_name": "phrase_transformer_tiny", "phrase_gate": "zero"}
    if kind == "arguments":
        state = {"cfg": None, "args": Namespace(arch="phrase_transformer_tiny", phrase_gate="zero")}
        read = state["args"]
    else:
        model = old if kind == "dictionary" else OmegaConf.create(old)
        if kind == "strict":
            OmegaConf.set_struct(model, True)
        state = {"cfg": {"model": model}, "args": None}
        read = Namespace(**model)
    complete_options(state, "a.pt")
    read = state["args"] or Namespace(**state["cfg"]["model"])
    assert (read.phrase_residual, read.phrase_gate) == ("each", "zero")


def test_options_of_an_old_architecture_are_filled_in_from_those_that_are_there():
    args = Namespace(arch="transformer_iwslt_de_en", encoder_embed_dim=32, decoder_embed_dim=16)
    complete_options(
        {"args": args, "cfg": {"model": Namespace(_name=args.arch, **vars(args))}}, "a.pt"
    )
    assert (args.encoder_embed_dim, args.encoder_layers, args.encoder_attention_heads) == (32, 6, 4)
    assert (args.decoder_input_dim, args.decoder_output_dim) == (16, 16)
    assert model_entries(args)["decoder-input-dim"].value == "16"


@pytest.mark.parametrize("name", ["relation_transformer", "unknown"])
def test_other_models_get_no_options(name):
    state = {"cfg": {"model": {"_name": name}}, "args": Namespace(arch=name)}
    complete_options(state, "a.pt")
    assert state == {"cfg": {"model": {"_name": name}}, "args": Namespace(arch=name)}
    record = Identity({"of-plugin": Entry("1", "1", "encoder")})
    state["task_state"] = {"identity": record.as_dict()}
    assert identity_of(state, "a.pt").entries == record.entries


def test_an_option_that_is_there_stays():
    state = {"cfg": {"model": {"_name": "phrase_transformer", "phrase_residual": "both"}}}
    complete_options(state, "a.pt")
    assert state["cfg"]["model"]["phrase_residual"] == "both"


#: By removed option, the part with it, and another value.
REMOVED = {
    "attention_output": ("model", "seq2seq", "linear"),
    "distance_strength": ("model", "relation_transformer", 0.7),
    "fast_dropout": ("task", "syntax_translation", True),
    "han_sentences": ("model", "labeller", "constituents"),
    "leave_unmasked_prob": ("task", "syntax_pretraining", 0.2),
    "mask_phrase_words": ("task", "syntax_pretraining", 3),
    "mask_phrases": ("task", "syntax_pretraining", "subtrees"),
    "next_sentence_weight": ("criterion", "next_sentence", 0.5),
    "no_sequential_absolute": ("model", "phrase_transformer", True),
    "parent_heads": ("model", "parent_scaled_transformer", "1"),
    "parent_ignoring": ("model", "parent_scaled_transformer", 0.3),
    "parent_std": ("model", "parent_scaled_transformer", 2.0),
    "parse_loss_layer": ("task", "syntax_translation", 2),
    "path_branches": ("model", "structural_transformer", 2),
    "path_levels": ("model", "labeller", 6),
    "predict_fraction": ("model", "pretrainer", "1/3"),
    "random_token_prob": ("task", "syntax_pretraining", 0.2),
    "sequential_relative": ("model", "phrase_transformer", True),
    "source_factors_combine": ("task", "syntax_translation", "concat"),
    "source_factors_dim": ("task", "syntax_labelling", "8"),
    "structural_absolute": ("model", "phrase_transformer", True),
    "structural_relative": ("model", "phrase_transformer", True),
    "subword_sampling": ("task", "syntax_translation", 0.1),
    "tree_planting_heads": ("task", "syntax_translation", 2),
    "tree_planting_layer": ("task", "syntax_translation", 2),
    "tree_planting_trees": ("task", "syntax_translation", "spans"),
    "tree_regularization_heads": ("task", "syntax_translation", 2),
    "tree_regularization_layer": ("task", "syntax_translation", 2),
    "window_size": ("model", "seq2seq", 2),
}


@pytest.mark.parametrize("name", REMOVED_OPTIONS)
def test_a_model_with_a_removed_option_is_read_at_its_last_value_alone(name):
    part, kind, other = REMOVED[name]

    def completed(value, kind=kind):
        complete_options({"cfg": OmegaConf.create({part: {"_name": kind, name: value}})}, "a.pt")

    completed(REMOVED_OPTIONS[name])
    completed(other, "a kind of another package")
    with pytest.raises(
        UserError, match=rf"a\.pt was trained with --{name.replace('_', '-')} {other}"
    ):
        completed(other)


def test_a_labeller_with_an_option_that_its_encoder_lost_is_refused():
    values = {"_name": "labeller", "encoder": "phrase_transformer", "structural_absolute": True}
    with pytest.raises(UserError, match=r"a\.pt was trained with --structural-absolute True"):
        complete_options({"cfg": OmegaConf.create({"model": values})}, "a.pt")
    values["encoder"] = "structural_transformer"
    complete_options({"cfg": OmegaConf.create({"model": values})}, "a.pt")
    with pytest.raises(UserError, match=r"--encoder phrase_transformer lost --sequential-relative"):
        report_other_encoders(Namespace(sequential_relative=True), "phrase_transformer")
