"""Options of files that somebody else made: data, never code."""

from __future__ import annotations

from argparse import Namespace

import pytest
from omegaconf import OmegaConf

from fairseq_phrase.checkpoints.trust import check_trusted
from fairseq_phrase.errors import UserError


@pytest.mark.parametrize("kind", ["cfg", "args"])
def test_files_that_a_configuration_names_are_not_opened(kind) -> None:
    model = {"encoder_embed_path": "/a/file", "dropout": 0.1}
    task = {"source_parser": "spacy:/a/folder", "allow_difference": "parser", "pretrained": "x.pt"}
    cfg = OmegaConf.create({"model": model, "task": task}) if kind == "cfg" else None
    args = None if cfg else Namespace(**model, **task)
    check_trusted({"cfg": cfg, "args": args}, "a.pt")
    found = [cfg.model, cfg.task] if cfg else [args, args]
    assert found[0].encoder_embed_path is found[1].pretrained is None
    assert found[1].source_parser is found[1].allow_difference is None
    assert found[0].dropout == 0.1


def test_an_interpolation_is_refused() -> None:
    cfg = OmegaConf.create({"task": {"data": "${oc.env:HOME}"}})
    with pytest.raises(UserError, match=r"a\.pt was not loaded: its cfg\.task\.data is the interp"):
        check_trusted({"cfg": cfg}, "a.pt")


@pytest.mark.parametrize("kind", ["cfg", "args", "namespace"])
@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("decoder_xformers_att_config", "__import__('os').system('x')"),
        ("adaptive_softmax_cutoff", " [open('x')]"),
        ("encoder_layers", "[[y for y in print('x')]]"),
    ],
)
def test_code_in_an_option_that_fairseq_evaluates_is_refused(kind, option, code) -> None:
    if kind == "cfg":
        state = {"cfg": OmegaConf.create({"model": {option: code}})}
    elif kind == "args":
        state = {"args": Namespace(**{option: code})}
    else:
        flags = {"allow_objects": True}
        model = Namespace(**{option: code})
        state = {"cfg": OmegaConf.create({"model": model}, flags=flags)}
    with pytest.raises(UserError, match=rf"^a\.pt was not loaded: its .*{option} is .* as code"):
        check_trusted(state, "a.pt")


def test_options_that_are_no_code_are_accepted() -> None:
    model = {"decoder_layers": "[(512, 3)] * 20", "cut": "(", "langs": "x.y", "data": "data (1)"}
    check_trusted({"cfg": OmegaConf.create({"model": model})}, "a.pt")
    check_trusted({"args": Namespace(**model, save_dir="runs (1)")}, "a.pt")
