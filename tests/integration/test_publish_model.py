"""``scripts/publish_model.sh``: from the corpus to a folder with a model card, shortened."""

from __future__ import annotations

import os

import pytest
import yaml

from tests.support.commands import run, run_script
from tests.support.multi30k import multi30k_of
from tests.support.table_slices import FEW, pipeline_of
from tests.support.warm_start import REAL, commands


def test_the_folder_has_what_a_stranger_needs(synthetic_corpus, trained_pipeline, tmp_path):
    multi30k_of(synthetic_corpus, tmp_path / "multi30k")
    parser = pipeline_of("de", trained_pipeline)
    out = tmp_path / "out"
    settings = {
        "PATH": os.pathsep.join(map(str, (commands(), REAL, os.environ["PATH"]))),
        "FAIRSEQ_PHRASE_DATA": str(tmp_path),
        "FAIRSEQ_PHRASE_PARSER": parser,
    }
    printed = run_script(
        "publish_model", *FEW, "--license", "cc-by-nc-sa-4.0", "--out", out, **settings
    )
    assert f"fairseq-phrase-translate {out}/bundle --source-parser {parser}" in printed
    card = (out / "bundle" / "README.md").read_text(encoding="utf-8")
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["license"] == "cc-by-nc-sa-4.0"
    assert metadata["language"] == ["de", "en"]
    assert metadata["datasets"] == ["multi30k"]
    assert "- data: multi30k\n- data-license: research and education, non-commercial" in card
    (result,) = metadata["model-index"][0]["results"]
    assert {"BLEU", "chrF", "TER"} == {score["name"] for score in result["metrics"]}
    assert all("version:" in score["args"]["signature"] for score in result["metrics"])
    sentence = "Der Student sieht den Hund.\n"
    translation = tmp_path / "translation"
    arguments = ["--source-parser", parser, "--out", translation]
    run("fairseq-phrase-translate", out / "bundle", *arguments, stdin=sentence)
    assert len(translation.read_text(encoding="utf-8").splitlines()) == 1
    # Another licence exports again, and trains nothing.
    log = (out / "rows" / "relation" / "seed1" / "train.log").read_bytes()
    run_script("publish_model", *FEW, "--license", "mit", "--out", out, **settings)
    assert "license: mit" in (out / "bundle" / "README.md").read_text(encoding="utf-8")
    assert (out / "rows" / "relation" / "seed1" / "train.log").read_bytes() == log


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--push", "a/b"], "--push a/b: name the model's licence (--license ID)"),
        (["--rows", "phrase"], "--rows phrase: this script publishes the row relation"),
        (["--seeds", "1,2"], "--seeds 1,2: one model is published, so name one seed"),
        (["--push", "a/b", "--license", "mit", "--dry-run"], "/de is a folder of this machine"),
    ],
)
def test_what_cannot_be_published_is_refused_before_the_training(arguments, message, tmp_path):
    out = tmp_path / "out"
    printed = run_script(
        "publish_model", *arguments, "--out", out, expect=1, FAIRSEQ_PHRASE_PARSER="spacy:my/de"
    )
    assert message in printed
    assert not out.exists()
