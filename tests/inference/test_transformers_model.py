"""The exported model reads every field of a parse that its encoder reads."""

from __future__ import annotations

import json

import pytest
import torch

from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import transformers_model
from fairseq_phrase.inference.exports import export_transformers
from fairseq_phrase.inference.transformers_model import FairseqPhraseConfig, FairseqPhraseModel
from fairseq_phrase.models.source_factors import SourceFactors
from fairseq_phrase.testing import build_model, make_batch
from tests.support.small_checkpoints import make_checkpoint, make_data

LENGTHS = [7, 1, 4, 5]


@pytest.mark.parametrize("fields", ["factors", "graphs"])
def test_factors_and_graphs_reach_the_encoder(dictionary, fields):
    torch.manual_seed(1)
    options = {"relation_source": "enhanced", "relation_labels": True}
    model = build_model("relation_transformer", dictionary, **options if fields == "graphs" else {})
    if fields == "factors":
        SourceFactors.of("tags,deprels,subwords").add_to(model, lambda field: 8)
        for table in model.encoder.embed_tokens.factors.values():
            torch.nn.init.normal_(table.weight)
    inputs = make_batch(dictionary, LENGTHS)
    target = torch.cat([torch.full((4, 1), dictionary.eos()), torch.arange(5, 17).view(4, 3)], 1)
    with torch.no_grad():
        lengths = torch.tensor(LENGTHS) + 1
        expected = model.eval()(**inputs, src_lengths=lengths, prev_output_tokens=target)[0]
    special = {"pad_token_id": dictionary.pad(), "eos_token_id": dictionary.eos()}
    special["decoder_start_token_id"] = dictionary.eos()
    exported = FairseqPhraseModel(FairseqPhraseConfig(**special), model).eval()
    tokens = inputs.pop("src_tokens")
    with torch.no_grad():
        output = exported(input_ids=tokens, decoder_input_ids=target, use_cache=False, **inputs)
    torch.testing.assert_close(output.logits, expected)
    generated = exported.generate(
        input_ids=tokens, num_beams=2, max_length=5, output_logits=True, **inputs,
        return_dict_in_generate=True,
    )  # fmt: skip
    torch.testing.assert_close(generated.logits[0][::2], expected[:, 0].float())


def test_a_copy_on_a_hub_is_that_of_the_revision_and_has_the_type(tmp_path, monkeypatch):
    data = make_data(tmp_path / "data")
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "phrase_transformer")
    export_transformers(checkpoint, data, tmp_path / "exported")

    def download(repo_id, *, revision=None, token=None):
        assert (repo_id, revision, token) == ("user/name", "v2", "secret")
        return str(tmp_path / "exported")

    # In place of the hub, which needs a network.
    monkeypatch.setattr(transformers_model, "snapshot_download", download)
    options = {"revision": "v2", "token": "secret", "dtype": "float64", "trust_remote_code": True}
    model = FairseqPhraseModel.from_pretrained("user/name", **options)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


@pytest.mark.parametrize("name", ["a/kernel", "kernels-community/flash-attn2", "flash_attention_2"])
def test_the_configuration_of_a_folder_does_not_choose_code(tmp_path, name):
    data = make_data(tmp_path / "data")
    checkpoint = make_checkpoint(tmp_path / "a.pt", data, "--arch", "phrase_transformer")
    export_transformers(checkpoint, data, folder := tmp_path / "exported")
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"attn_implementation": name}
    config["experts_implementation"] = "sonicmoe"  # which is another repository
    path.write_text(json.dumps(config))
    model = FairseqPhraseModel.from_pretrained(folder)
    assert model.config._attn_implementation == "eager"
    assert model.config._experts_implementation != "sonicmoe"


def test_a_model_that_was_exported_is_not_saved():
    with pytest.raises(UserError, match="use fairseq-phrase-export"):
        FairseqPhraseModel.save_pretrained(None)
