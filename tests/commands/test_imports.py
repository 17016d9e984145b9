"""An import changes nothing; what fairseq needs is changed by ``register`` and by ``--user-dir``."""

from __future__ import annotations

import subprocess
import sys

import pytest
from fairseq_cli import train as fairseq_train
from hydra._internal.utils import run_and_report

from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs.commands import print_user_errors_plainly
from tests.support.commands import PHRASE, TRAINING, run
from tests.support.repository import REPOSITORY

STATE = """
import logging, pkgutil, sys, warnings
import numpy, torch
import fairseq.trainer
from fairseq import checkpoint_utils
from fairseq.tasks.fairseq_task import FairseqTask

def state():
    trainer = fairseq.trainer.Trainer
    return {
        "hook": sys.excepthook,
        "warnings": [text for text in map(str, warnings.filters) if "atchange" not in text],
        "hydra": logging.getLogger("hydra").level,
        "fairseq": logging.getLogger("fairseq.tasks.fairseq_task").level,
        "filters": logging.getLogger("fairseq_cli.generate").filters[:],
        "batches": FairseqTask.get_batch_iterator,
        "iterators": trainer.get_train_iterator,
        "resuming": trainer.load_checkpoint,
        "loading": checkpoint_utils.load_checkpoint_to_cpu,
        "numpy": hasattr(numpy, "compat"),
        "extensions": [finder for finder in sys.meta_path if "uncompiled" in str(finder)],
        "attention": torch.backends.cuda.cudnn_sdp_enabled(),
        "classes": set(torch.serialization.get_safe_globals()),
    }

def changed(then):
    return sorted(name for name, value in state().items() if value != then[name])

first = state()
"""


def write(folder, code):
    (folder / "script.py").write_text(code)
    return folder / "script.py"


def test_workers_that_parse_and_segment_import_neither_fairseq_nor_torch():
    code = "import sys, fairseq_phrase.data.preprocessing.first_pass\n"
    code += "print({'torch', 'fairseq'} & sys.modules.keys())"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def test_an_import_changes_nothing_and_register_no_message(tmp_path):
    code = f"""{STATE}
import fairseq_phrase
for module in ("tasks.syntax_labelling", "tasks.syntax_pretraining", "models.architectures",
               "checkpoints.loading", "inference.translator", "inference.labelling", "cli.translate"):
    __import__(f"fairseq_phrase.{{module}}")
print("imported:", changed(first))
fairseq_phrase.register()
print("registered:", changed(first))
"""
    printed = run(write(tmp_path, code))
    assert "imported: []\n" in printed
    names = [
        "attention", "batches", "classes", "extensions", "iterators", "loading", "numpy",
        "resuming",
    ]  # fmt: skip
    assert f"registered: {names}\n" in printed


def test_a_user_directory_changes_what_is_printed_too(tmp_path):
    code = f"""{STATE}
fairseq.utils.import_user_module(__import__("argparse").Namespace(user_dir="fairseq_phrase"))
print("loaded:", changed(first))
"""
    printed = run(write(tmp_path, code))
    for name in (
        "hook", "hydra", "fairseq", "filters", "batches", "iterators", "resuming", "loading",
    ):  # fmt: skip
        assert f"'{name}'" in printed


def test_an_error_that_happens_while_a_users_error_is_handled_is_shown(printed_by_the_hook):
    def shown(raised):
        try:
            raised()
        except Exception as error:
            return printed_by_the_hook(error)

    def meanwhile():
        try:
            raise UserError("the file is missing")
        except UserError:
            raise ValueError("another fault")  # noqa: B904 - what is tested

    def caused():
        raise RuntimeError("loading failed") from UserError("the file is missing")

    assert shown(meanwhile).endswith("ValueError: another fault\n")
    assert shown(caused) == "error: the file is missing\n"


def test_hydra_leaves_a_users_error_to_the_hook(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    print_user_errors_plainly()

    def train():
        raise UserError("the folder is missing")

    with pytest.raises(UserError, match="the folder is missing"):
        run_and_report(train)


def test_pythons_interface_leaves_logging_to_the_program(tmp_path):
    code = """
import logging
import fairseq_phrase

fairseq_phrase.load
root = logging.getLogger()
print("logging:", root.handlers, root.level, root.manager.disable)
"""
    command = [sys.executable, write(tmp_path, code)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout == "logging: [] 30 0\n"
    assert "INFO" not in ended.stderr


ENTRY_POINTS = """
import contextlib, gc, io, logging, os, sys, traceback
from argparse import Namespace
import torch
from fairseq import utils
from fairseq.models.transformer import TransformerModel
from fairseq_cli import generate

checkpoint, data, link = sys.argv[1:]
logging.disable(logging.CRITICAL)
gc.freeze()  # forks share what is imported

def imported():
    import fairseq_phrase

def registered():
    import fairseq_phrase
    fairseq_phrase.register()

def loaded():
    import fairseq_phrase
    model = fairseq_phrase.load(checkpoint, data, source_parser="none", device="cpu")
    assert model.translate("Hund", beam=1)

def hub(user_dir="fairseq_phrase"):
    model = TransformerModel.from_pretrained(
        os.path.dirname(checkpoint), os.path.basename(checkpoint), data, user_dir=user_dir,
        tokenizer="syntax", bpe="syntax", source_parser="none",
    )
    assert model.translate("Hund", beam=1)

def hub_by_a_link():
    hub(link)

def command(user_dir="fairseq_phrase"):
    sys.argv = ["fairseq-generate", data, "--user-dir", user_dir, "--task", "syntax_translation",
                "--path", checkpoint, "--cpu", "--beam", "1", "--max-len-b", "2"]
    generate.cli_main()

# Of three, the last one comes after both others.
several = [
    (imported, loaded, hub, command), (imported, command, hub, loaded), (loaded, hub, imported),
    (hub, command, imported), (imported, hub), (registered, hub), (hub, registered),
    (imported, hub_by_a_link), (command, imported),
]
for pair in several:
    child = os.fork()
    if not child:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                for entry in pair:
                    entry()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status:
        print("failed:", *(entry.__name__ for entry in pair))
print("tried:", len(several))
"""


@pytest.mark.slow
def test_every_two_entry_points_work_in_one_process(data_directory, command, tmp_path):
    command(
        fairseq_train, data_directory, "--user-dir", "fairseq_phrase", "--task", "syntax_translation",
        *TRAINING, *PHRASE, "--save-dir", tmp_path, "--disable-validation", "--max-update", "1",
        "--max-target-positions", "100",
    )  # fmt: skip
    link = tmp_path / "fairseq_phrase"
    link.symlink_to(REPOSITORY / "fairseq_phrase", target_is_directory=True)
    checkpoint = tmp_path / "checkpoint_last.pt"
    printed = run(write(tmp_path, ENTRY_POINTS), checkpoint, data_directory, link)
    assert "failed:" not in printed, printed
    assert "tried: 9" in printed


def test_another_package_of_this_name_is_still_refused(tmp_path):
    (tmp_path / "fairseq_phrase").mkdir()
    code = """
import argparse, sys
import fairseq_phrase
from fairseq import utils
utils.import_user_module(argparse.Namespace(user_dir=sys.argv[1]))
"""
    printed = run(write(tmp_path, code), tmp_path / "fairseq_phrase", expect=1)
    assert "is not globally unique" in printed
