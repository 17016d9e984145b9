"""fairseq with patches: its commands take every kind of configuration that they took."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass

import pytest
import torch
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging.progress_bar import SimpleProgressBar
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import interactive as fairseq_interactive
from fairseq_cli import train as fairseq_train
from fairseq_cli import validate as fairseq_validate

from fairseq_phrase.checkpoints import guards
from fairseq_phrase.errors import UserError
from fairseq_phrase.repairs import patches
from tests.support.commands import SIZES, TRAINING, losses, run
from tests.support.repository import REPOSITORY

STOCK = ["--task", "translation", "--source-lang", "de", "--target-lang", "en"]
ARCH = ["--arch", "transformer", *SIZES, "--share-all-embeddings"]
OURS = ["--task", "syntax_translation", "--source-lang", "de", "--target-lang", "en"]
RAW = [*OURS, "--tokenizer", "syntax", "--bpe", "syntax", "--source-parser", "none"]
KINDS = ("namespace", "dictconfig", "dataclass")


def patched_functions(monkeypatch):
    """Return the owner and the name of each function that this package patches."""
    functions = []
    with monkeypatch.context() as recording:
        for module in (patches, guards):
            recording.setattr(
                module, "patch", lambda owner, name, new: functions.append((owner, name))
            )
        patches.patch_fairseq()
        guards.guard_checkpoints()
    return functions


#: Patched functions that take and read no configuration.
WITHOUT_CONFIGURATION = {
    "fairseq.checkpoint_utils.load_checkpoint_to_cpu",
    "fairseq.data.bucket_pad_length_dataset.get_buckets",
    "fairseq.file_io.PathManager.copy",
    "fairseq.nan_detector.NanDetector.add_hooks",
    "fairseq.options.parse_args_and_arch",
    "fairseq.trainer.Trainer._build_optimizer",
    "fairseq.search.DiverseBeamSearch.step",
    "fairseq.tasks.translation_from_pretrained_bart.TranslationFromPretrainedBARTTask.__init__",
}
#: What test_fairseq_alone.py calls, and no command below.
ALIGNMENTS = (
    "fairseq.criterions.label_smoothed_cross_entropy_with_alignment."
    "LabelSmoothedCrossEntropyCriterionWithAlignment.__init__"
)


def named(owner, name):
    module = owner.__module__ + "." if isinstance(owner, type) else ""
    return f"{module}{getattr(owner, '__qualname__', owner.__name__)}.{name}"


@pytest.fixture
def called(monkeypatch):
    """The names of the patched functions that are called."""
    names = set()

    def spy(owner, name):
        original = getattr(owner, name)

        def spied(*args, **options):
            names.add(named(owner, name))
            return original(*args, **options)

        return spied

    for owner, name in patched_functions(monkeypatch):
        if named(owner, name) not in WITHOUT_CONFIGURATION | {ALIGNMENTS}:
            monkeypatch.setattr(owner, name, spy(owner, name))
    return names


def configuration(kind, parser, arguments):
    """Return the configuration of a command."""
    args = options.parse_args_and_arch(parser, list(map(str, arguments)))
    if kind == "namespace":
        return args
    cfg = convert_namespace_to_omegaconf(args)
    if kind == "dictconfig":
        return cfg
    sections = {}
    for section in fields(FairseqConfig):
        sections[section.name] = cfg[section.name]
        if isinstance(section.type, type) and is_dataclass(section.type):
            sections[section.name] = section.type(**cfg[section.name])
    return FairseqConfig(**sections)


class Commands:
    """fairseq's commands with a kind of configuration; each returns what can be compared."""

    def __init__(self, kind, data, checkpoint, folder, capsys):
        self.kind, self.data, self.checkpoint = kind, data, checkpoint
        self.folder, self.capsys = folder, capsys

    def translations(self, main, *arguments, task):
        parser = options.get_generation_parser(interactive=main is fairseq_interactive.main)
        task_arguments = [
            self.data, *task, "--path", self.checkpoint, "--cpu", "--beam", "2", "--max-len-b", "4",
        ]  # fmt: skip
        main(configuration(self.kind, parser, [*task_arguments, "--num-workers", "0", *arguments]))
        return re.findall(r"^H-.*$", self.capsys.readouterr().out, re.MULTILINE)

    def generate(self):
        return self.translations(fairseq_generate.main, "--gen-subset", "valid", task=STOCK)

    def interactive(self):
        lines = self.folder / "lines"
        lines.write_text("ein Hund\nein Mann\n", encoding="utf-8")
        return self.translations(fairseq_interactive.main, "--input", lines, task=RAW)

    def train(self):
        """Train this package's model for an update and resume it; return the parameters."""
        arguments = [
            self.data, *OURS, "--arch", "relation_transformer", *SIZES, "--relation-bias", "sequence",
            *TRAINING, "--max-tokens", "1000", "--save-dir", self.folder, "--train-subset", "valid",
            "--disable-validation", "--max-update",
        ]  # fmt: skip
        for updates in ("1", "2"):
            parser = options.get_training_parser()
            fairseq_train.main(configuration(self.kind, parser, [*arguments, updates]))
        state = torch.load(self.folder / "checkpoint_last.pt", weights_only=True)
        return {name: value.tolist() for name, value in state["model"].items()}

    def validate(self, monkeypatch):
        """Return the loss that is printed."""
        losses = []
        arguments = [self.data, *OURS, "--path", self.checkpoint, "--cpu", "--max-tokens", "1000"]
        cfg = configuration(
            self.kind, options.get_validation_parser(), [*arguments, "--log-format", "simple"]
        )
        with monkeypatch.context() as patch:
            patch.setattr(
                SimpleProgressBar, "print", lambda self, stats, **_: losses.append(stats["loss"])
            )
            fairseq_validate.main(cfg)
        return losses


def test_commands_take_every_kind_of_configuration(
    called, data_directory, tmp_path, capsys, monkeypatch
):
    results = {}
    for kind in KINDS:
        (folder := tmp_path / kind).mkdir()
        checkpoint = tmp_path / "namespace/checkpoint_last.pt"
        commands = Commands(kind, data_directory, checkpoint, folder, capsys)
        # fairseq's own function refuses a dataclass.
        parameters = results["namespace"][0] if kind == "dataclass" else commands.train()
        loss = commands.validate(monkeypatch)
        results[kind] = parameters, loss, commands.generate(), commands.interactive()
    assert all(results["namespace"])
    assert results["namespace"] == results["dictconfig"] == results["dataclass"]
    names = {named(owner, name) for owner, name in patched_functions(monkeypatch)}
    assert names == called | WITHOUT_CONFIGURATION | {ALIGNMENTS}


@pytest.fixture(scope="module")
def trained(data_directory, tmp_path_factory):
    """One update of fairseq's own Transformer."""
    save = tmp_path_factory.mktemp("trained")
    run(
        "fairseq-train", data_directory, "--user-dir", "fairseq_phrase", *STOCK, *ARCH, *TRAINING,
        "--max-tokens", "1000", "--save-dir", save, "--disable-validation", "--max-update", "1",
    )  # fmt: skip
    return save / "checkpoint_last.pt"


@pytest.mark.slow
def test_fairseq_is_left_as_it_is_where_the_user_asks_for_that(trained, data_directory, tmp_path):
    """Training computes the same; without the repair, the last four of 100 sentences are dropped."""

    def losses_and_sentences(setting):
        settings = {patches.SETTING: setting}
        log = run(
            "fairseq-train", data_directory, "--user-dir", "fairseq_phrase", *STOCK, *ARCH, *TRAINING,
            "--max-tokens", "1000", "--no-save", "--disable-validation", "--max-update", "2",
            "--save-dir", tmp_path, warm=False, **settings,
        )  # fmt: skip
        translations = run(
            "fairseq-generate", data_directory, "--user-dir", "fairseq_phrase", *STOCK, "--path", trained,
            "--cpu", "--beam", "1", "--max-len-b", "4", warm=False, **settings,
        )  # fmt: skip
        return losses(log), len(re.findall(r"^H-", translations, re.MULTILINE))

    repaired, untouched = losses_and_sentences(""), losses_and_sentences("none")
    assert repaired[0]
    assert repaired[0] == untouched[0]
    assert (repaired[1], untouched[1]) == (100, 96)


@pytest.mark.parametrize(
    ("setting", "count"),
    [("", len(patches.REPAIRS)), ("none", 0), ("copy_whole, keep_last_batches", 2)],
)
def test_repairs_are_chosen_by_name(setting, count, monkeypatch):
    monkeypatch.setenv(patches.SETTING, setting)
    assert len(patches.chosen_repairs()) == count
    monkeypatch.setenv(patches.SETTING, "keep_batches")
    with pytest.raises(
        UserError, match=r"there is no keep_batches; expected none, or some of ask_for"
    ):
        patches.chosen_repairs()


def test_every_repair_names_its_symptom_and_is_on_its_page():
    page = (REPOSITORY / "docs" / "compat.md").read_text(encoding="utf-8")
    for repair, _, _ in patches.REPAIRS:
        assert "Symptom: " in repair.__doc__, repair
        assert f"`{repair.__name__}`" in page, repair
