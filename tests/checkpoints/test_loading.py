"""Which languages a trained model translates."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch

from fairseq_phrase.checkpoints.loading import SavedModel, check_configured_sizes, languages_of
from fairseq_phrase.errors import UserError
from fairseq_phrase.tasks.syntax_translation import SyntaxTranslationConfig, SyntaxTranslationTask


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["dict.de.txt", "dict.txt", "train.bin"], "has text of one language"),
        ([], "is not a data directory"),
    ],
)
def test_data_without_two_languages_are_named_for_what_they_are(tmp_path, names, message):
    for name in names:
        (tmp_path / name).touch()
    task = Namespace(source_lang=None, target_lang=None)
    saved = SavedModel(tmp_path / "checkpoint.pt", {"cfg": Namespace(task=task)})
    with pytest.raises(UserError, match=f"{tmp_path} {message}"):
        languages_of(saved, tmp_path)
    (tmp_path / "train.de-en.de.idx").touch()
    assert tuple(languages_of(saved, tmp_path)) == ("de", "en")


@pytest.mark.parametrize(
    ("options", "value", "message"),
    [
        (
            {"quant_noise_scalar": 0.1},
            torch.ones(2),
            "a.pt has --quant-noise-scalar, which fairseq",
        ),
        ({}, [1.0], "a.pt is damaged: it has parameters that are not tensors"),
        ({"decoder_layers": 66}, torch.ones(2), "its decoder_layers is 66, but .* has 0 to 65"),
        ({"encoder_layers": -1}, torch.ones(2), "its encoder_layers is -1, but .* has 0 to 65"),
        ({"max_positions": 0}, torch.ones(2), "its max_positions is 0, but .* has 1 to"),
    ],
)
def test_what_cannot_be_built_is_refused_before(options, value, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cfg = Namespace(model=Namespace(decoder_layers=65, encoder_layers=0, max_positions=1))
    check_configured_sizes(SavedModel(Path("a.pt"), {"cfg": cfg, "model": {"a": torch.ones(2)}}))
    vars(cfg.model).update(options)
    with pytest.raises(UserError, match=message):
        check_configured_sizes(SavedModel(Path("a.pt"), {"cfg": cfg, "model": {"a": value}}))


def test_a_folder_that_is_missing_or_has_no_data_is_named(tmp_path):
    for folder, message in (
        (tmp_path / "none", "not a folder"),
        (tmp_path, "not a data directory"),
    ):
        with pytest.raises(UserError, match=f"{folder} is {message}"):
            SyntaxTranslationTask.setup_task(SyntaxTranslationConfig(data=str(folder)))
    cfg = SyntaxTranslationConfig(data=str(tmp_path / "none"), source_lang="de", target_lang="en")
    with pytest.raises(UserError, match="none is not a folder"):
        SyntaxTranslationTask.setup_task(cfg)


def test_data_of_other_languages_name_what_they_have(tmp_path):
    for name in ("cs", "deprel", "en"):  # deprel is no language
        (tmp_path / f"dict.{name}.txt").write_text("a 1\n")
    cfg = SyntaxTranslationConfig(data=str(tmp_path), source_lang="de", target_lang="en")
    match = r"dict\.de\.txt is missing; .* has dictionaries of cs, en: name .*task\.source_lang"
    with pytest.raises(UserError, match=match):
        SyntaxTranslationTask.setup_task(cfg)
