"""Hostile options in a stranger's file, at every command and function that reads one."""

from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import utils
from fairseq.models.transformer import TransformerModel
from fairseq_cli import train, validate
from omegaconf import OmegaConf

import fairseq_phrase
from fairseq_phrase.checkpoints.averaging import checkpoints_around_best
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference import exports, model_files, source_parses
from fairseq_phrase.inference.transformers_model import FairseqPhraseModel
from tests.support.checkpoint_commands import FAIRSEQ, MODEL, ONCE, OWN, USER
from tests.support.commands import run
from tests.support.entry_points import COMMANDS
from tests.support.hostile_options import SHELL
from tests.support.repository import REPOSITORY
from tests.support.small_checkpoints import make_checkpoint, make_data

#: Options of a model, and what the message says of them. fairseq 0.10 and older had ``args``.
#: tests/checkpoints/test_trust.py has other values: one function reads all checkpoints.
HOSTILE = {
    "comprehension": ({"adaptive_softmax_cutoff": SHELL[2]}, "could run as code"),
    "comprehension in args": ({"adaptive_softmax_cutoff": SHELL[3]}, "could run as code"),
}
_BEGUN = [*MODEL, *ONCE, "--max-update", "2"]
#: More commands of fairseq-train, as in :data:`FAIRSEQ`.
MORE = {
    "pretrained model": [*_BEGUN, "--pretrained-model"],
    "options taken": [*_BEGUN, "--take-options", "--pretrained-model"],
}
#: More commands of this package, as in :data:`OWN`.
MORE_OWN = {
    "inspect": ["CHECKPOINT"],
    "label": ["DATA", "TEXT", "--path", "CHECKPOINT", "--source-parser", "none"],
    "plot attention": ["attention", "--line", "1", "DATA", "--out", "NEW", "--path", "CHECKPOINT"],
}
#: Functions of Python that read a checkpoint.
FUNCTIONS: dict[str, Callable[[Path, Path], Any]] = {
    "load": lambda checkpoint, data: fairseq_phrase.load(checkpoint, data),
    "read_identity": lambda checkpoint, data: model_files.read_identity(checkpoint),
    "find_parses": lambda checkpoint, data: source_parses.find_parses(
        [data / "dict.de.txt"], str(checkpoint), source_parser="conllu"
    ),
    "around the best": lambda checkpoint, data: checkpoints_around_best(checkpoint.parent, 1),
    "hub": lambda checkpoint, data: TransformerModel.from_pretrained(
        str(checkpoint.parent), checkpoint.name, str(data), user_dir="fairseq_phrase"
    ),
}
#: Functions of Python that read a bundle, of which some is a folder for transformers.
OF_BUNDLES: dict[str, Callable[[Path], Any]] = {
    "load": fairseq_phrase.load,
    "read_identity": model_files.read_identity,
    "from_pretrained": FairseqPhraseModel.from_pretrained,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a checkpoint, its data, a bundle and the tasks of a probe."""
    folder = tmp_path_factory.mktemp("hostile")
    data = make_data(folder / "data")
    checkpoint = make_checkpoint(folder / "whole.pt", data, "--arch", "relation_transformer")
    exports.export_transformers(checkpoint, data, folder / "bundle")
    (folder / "text").write_text("der Hund\n")
    (folder / "tasks").mkdir()
    for part in ("tr", "va", "te"):
        with open(folder / "tasks" / "subject.txt", "a") as lines:
            lines.write(f"{part}\tone\tder Hund\n{part}\ttwo\tdie Hunde\n" * 4)
    return folder


@pytest.fixture(
    params=["comprehension", pytest.param("comprehension in args", marks=pytest.mark.slow)]
)
def hostile(request, tmp_path):
    """Options, the message that refuses them, and whether they are in ``args``."""
    options, message = HOSTILE[request.param]
    mark = tmp_path / "mark"
    options = {name: text.replace("MARK", str(mark)) for name, text in options.items()}
    yield options, message, "args" in request.param
    assert not mark.exists()


@pytest.fixture
def checkpoint(folder, hostile, tmp_path):
    """A checkpoint with hostile options."""
    state = torch.load(folder / "whole.pt", weights_only=True)
    state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    state["cfg"]["model"] |= hostile[0]
    if hostile[2]:
        names = {"arch": "relation_transformer", "task": "syntax_translation"}
        state["args"] = Namespace(**{**state["cfg"]["task"], **state.pop("cfg")["model"], **names})
    torch.save(state, path := tmp_path / "checkpoint_best.pt")
    shutil.copyfile(path, tmp_path / "checkpoint1.pt")
    return path


def test_every_command_that_reads_a_checkpoint_is_here():
    modules = [FAIRSEQ.get(name, (train,))[0] for name in [*FAIRSEQ, *MORE]]
    of_fairseq = {f"fairseq-{module.__name__.split('.')[1]}" for module in modules}
    of_ours = {f"fairseq-phrase-{name.partition(' ')[0]}" for name in [*OWN, *MORE_OWN]}
    names = set().union(*COMMANDS.values())
    assert names - of_fairseq - of_ours == {"fairseq-hydra-train"}  # below


def test_these_texts_run_in_fairseq(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mark = Path("mark")
    for text in SHELL:
        with pytest.MonkeyPatch.context() as patch:  # a text replaces it
            patch.setattr(utils.os._Environ, "__getitem__", utils.os._Environ.__getitem__)
            utils.eval_str_dict(text.replace("MARK", str(mark)))
        assert mark.exists(), text
        mark.unlink()


@pytest.mark.fast(6)
@pytest.mark.parametrize("name", [*FAIRSEQ, *MORE])
def test_fairseqs_commands_refuse_them(name, checkpoint, hostile, folder, command, tmp_path):
    module, _, arguments = FAIRSEQ.get(name, (train, "", MORE.get(name)))
    added = ["--save-dir", tmp_path / "save"] if module is train else []
    added += ["--source-lang", "de", "--target-lang", "en"] if module is not validate else []
    with pytest.raises(UserError, match=rf"checkpoint_best\.pt was not loaded: its .*{hostile[1]}"):
        command(module, folder / "data", *USER, *added, *arguments, checkpoint)
    assert not list(tmp_path.glob("save/*"))


@pytest.mark.fast(1)
@pytest.mark.parametrize("option", ["restore_file", "finetune_from_model"])
def test_hydra_training_refuses_them(option, folder, tmp_path):
    mark = tmp_path / "mark"
    state = torch.load(folder / "whole.pt", weights_only=True)
    state["cfg"] = OmegaConf.to_container(state["cfg"], resolve=True, enum_to_str=True)
    state["cfg"]["model"]["adaptive_softmax_cutoff"] = SHELL[2].replace("MARK", str(mark))
    torch.save(state, path := tmp_path / "checkpoint_best.pt")
    printed = run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", "phrase_tiny",
        f"common.user_dir={REPOSITORY / 'fairseq_phrase'}", f"task.data={folder / 'data'}",
        "common.cpu=true", "dataset.disable_validation=true", f"hydra.run.dir={tmp_path}",
        f"checkpoint.save_dir={tmp_path / 'save'}",
        f"checkpoint.{option}={path}", expect=1,
    )  # fmt: skip
    message = printed.splitlines()[-1]
    assert re.search(r"^error: .*checkpoint_best\.pt was not loaded: .* could run as code", message)
    assert not mark.exists()
    assert not list(tmp_path.glob("save/*"))


@pytest.mark.parametrize("name", [*OWN, *MORE_OWN])
def test_this_packages_commands_refuse_them(name, checkpoint, hostile, folder, tmp_path, capsys):
    paths = {
        "DATA": folder / "data", "TEXT": folder / "text", "TASKS": folder / "tasks",
        "NEW": tmp_path / "new", "FIRST": folder / "whole.pt", "CHECKPOINT": checkpoint,
    }  # fmt: skip
    command = name.partition(" ")[0].replace("inspect", "inspect_data")
    arguments = [str(paths.get(word, word)) for word in {**OWN, **MORE_OWN}[name]]
    with pytest.raises(SystemExit) as stopped:
        import_module(f"fairseq_phrase.cli.{command}").main(arguments)
    assert stopped.value.code == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "checkpoint_best.pt was not loaded: its " in message
    assert hostile[1].replace("\\", "") in message
    assert not paths["NEW"].exists()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_refuse_them_in_a_checkpoint(name, checkpoint, hostile, folder):
    with pytest.raises(UserError, match=rf"checkpoint_best\.pt was not loaded: its .*{hostile[1]}"):
        FUNCTIONS[name](checkpoint, folder / "data")


@pytest.mark.parametrize("name", OF_BUNDLES)
def test_functions_refuse_them_in_a_bundle(name, hostile, folder, tmp_path):
    bundle = Path(shutil.copytree(folder / "bundle", tmp_path / "bundle"))
    content = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    content["bundle"]["model"] |= {**hostile[0], **({"arch": "transformer"} if hostile[2] else {})}
    (bundle / "config.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=rf"config\.json was not loaded: its .*{hostile[1]}"):
        OF_BUNDLES[name](bundle)
