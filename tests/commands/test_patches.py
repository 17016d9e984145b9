"""Every patched function of fairseq takes every kind of configuration that fairseq's takes."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import fields, is_dataclass

import pytest
import torch
from fairseq import checkpoint_utils, options, tasks
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment as AlignmentCriterion,
)
from fairseq.data import encoders
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.logging.progress_bar import SimpleProgressBar
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from fairseq.trainer import Trainer
from fairseq_cli import generate as fairseq_generate
from fairseq_cli import interactive as fairseq_interactive
from fairseq_cli import train as fairseq_train
from fairseq_cli import validate as fairseq_validate
from omegaconf import OmegaConf

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
    for module in (patches, guards):
        monkeypatch.setattr(
            module, "patch", lambda owner, name, new: functions.append((owner, name))
        )
    patches.patch_fairseq()
    guards.guard_checkpoints()
    monkeypatch.undo()
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


def named(owner, name):
    module = owner.__module__ + "." if isinstance(owner, type) else ""
    return f"{module}{getattr(owner, '__qualname__', owner.__name__)}.{name}"


@pytest.fixture(scope="module")
def trained(data_directory, tmp_path_factory):
    """One update of fairseq's own Transformer."""
    save = tmp_path_factory.mktemp("trained")
    run(
        "fairseq-train", data_directory, "--user-dir", "fairseq_phrase", *STOCK, *ARCH, *TRAINING,
        "--max-tokens", "1000", "--save-dir", save, "--disable-validation", "--max-update", "1",
    )  # fmt: skip
    return save / "checkpoint_last.pt"


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


def part(kind, dataclass, **values):
    """Return the configuration of a task, a model or a generator."""
    options = dataclass(**values)
    if kind == "namespace":
        return Namespace(**vars(options))
    return OmegaConf.structured(options) if kind == "dictconfig" else options


class Cases:
    """Calls of patched functions with a kind of configuration; each returns what can be compared."""

    def __init__(self, kind, data, checkpoint, folder, capsys):
        self.kind, self.data, self.checkpoint = kind, data, checkpoint
        self.folder, self.capsys = folder, capsys

    def _translations(self, main, *arguments, task=STOCK):
        parser = options.get_generation_parser(interactive=main is fairseq_interactive.main)
        task_arguments = [
            self.data, *task, "--path", self.checkpoint, "--cpu", "--beam", "2", "--max-len-b", "4",
        ]  # fmt: skip
        main(configuration(self.kind, parser, [*task_arguments, "--num-workers", "0", *arguments]))
        return re.findall(r"^H-.*$", self.capsys.readouterr().out, re.MULTILINE)

    def _task(self, **options):
        cfg = part(self.kind, TranslationConfig, data=str(self.data), **options)
        return TranslationTask.setup_task(self._complete(cfg))

    def _complete(self, cfg):
        """Set the options that fairseq's commands interpolate."""
        cfg.source_lang, cfg.target_lang = "de", "en"
        cfg.train_subset, cfg.dataset_impl, cfg.required_seq_len_multiple = "valid", None, 1
        return cfg

    def _trainer(self):
        arguments = [self.data, *STOCK, *ARCH, *TRAINING, "--max-tokens", "1000"]
        arguments += ["--save-dir", self.folder, "--train-subset", "valid"]
        cfg = configuration(self.kind, options.get_training_parser(), arguments)
        sections = convert_namespace_to_omegaconf(cfg) if self.kind == "namespace" else cfg
        task = tasks.setup_task(sections.task)
        torch.manual_seed(1)
        model, criterion = (
            task.build_model(sections.model),
            task.build_criterion(sections.criterion),
        )
        return Trainer(cfg, task, model, criterion), sections

    def generate(self, **task):
        return self._translations(fairseq_generate.main, "--gen-subset", "valid", **task)

    def interactive(self, **task):
        lines = self.folder / "lines"
        lines.write_text("ein Hund\nein Mann\n", encoding="utf-8")
        return self._translations(fairseq_interactive.main, "--input", lines, **task)

    def train(self):
        """Train this package's task and model for an update; return the parameters."""
        arguments = [
            self.data, *OURS, "--arch", "relation_transformer", *SIZES, "--relation-bias", "sequence",
            *TRAINING, "--max-tokens", "1000", "--max-update", "1", "--save-dir", self.folder,
        ]  # fmt: skip
        fairseq_train.main(configuration(self.kind, options.get_training_parser(), arguments))
        state = torch.load(self.folder / "checkpoint_last.pt", weights_only=True)
        return {name: value.tolist() for name, value in state["model"].items()}

    def validate(self, monkeypatch):
        """Return the loss that is printed."""
        losses = []
        monkeypatch.setattr(
            SimpleProgressBar, "print", lambda self, stats, **_: losses.append(stats["loss"])
        )
        arguments = [self.data, *OURS, "--path", self.checkpoint, "--cpu", "--max-tokens", "1000"]
        cfg = configuration(
            self.kind, options.get_validation_parser(), [*arguments, "--log-format", "simple"]
        )
        fairseq_validate.main(cfg)
        monkeypatch.undo()
        return losses

    def segmenter(self):
        codes = self.folder / "codes"
        codes.write_text("#version: 0.2\na b\n", encoding="utf-8")
        name = "bpe" if self.kind == "namespace" else "_name"
        cfg = {name: "subword_nmt", "bpe_codes": str(codes), "bpe_separator": "@@"}
        # fairseq's section of a segmenter is never a dataclass.
        cfg = Namespace(**cfg) if self.kind == "namespace" else OmegaConf.create(cfg)
        return encoders.build_bpe(cfg).encode("abc")

    def resumed(self):
        trainer, sections = self._trainer()
        _, iterator = checkpoint_utils.load_checkpoint(sections.checkpoint, trainer)
        iterator.next_epoch_itr()
        trainer.consolidate_optimizer()
        path = self.folder / "checkpoint_last.pt"
        trainer.save_checkpoint(
            str(path), {"train_iterator": iterator.state_dict(), "val_loss": None}
        )
        again, sections = self._trainer()
        extra_state, iterator = checkpoint_utils.load_checkpoint(sections.checkpoint, again)
        return len(iterator), sorted(extra_state["train_iterator"])

    def loaded_model(self):
        task = self._task()
        model = task.build_model(configuration("dictconfig", options.get_training_parser(), [
            self.data, *STOCK, *ARCH, *TRAINING,
        ]).model)  # fmt: skip
        state = checkpoint_utils.load_checkpoint_to_cpu(str(self.checkpoint))
        cfg = {"_name": "transformer", "arch": "transformer", "encoder_layers_to_keep": None}
        cfg["decoder_layers_to_keep"] = None
        model_cfg = Namespace(**cfg) if self.kind == "namespace" else OmegaConf.create(cfg)
        return str(model.load_state_dict(state["model"], strict=True, model_cfg=model_cfg))

    def batches(self):
        task = self._task()
        task.load_dataset("valid")
        iterator = task.get_batch_iterator(task.dataset("valid"), max_tokens=1000)
        return [len(batch) for batch in iterator.frozen_batches]

    def state_of_a_task(self):
        state = checkpoint_utils.load_checkpoint_to_cpu(str(self.checkpoint))["task_state"]
        task = self._task()
        task.load_state_dict(state)
        return sorted(state)

    def criterion_of_alignments(self):
        task = self._task(load_alignments=True)
        with pytest.raises(UserError, match=r"has no valid\.align\.de-en") as error:
            AlignmentCriterion(task, False, 0.1, 0.05)
        return str(error.value)


CASES = {
    "fairseq.criterions.label_smoothed_cross_entropy_with_alignment."
    "LabelSmoothedCrossEntropyCriterionWithAlignment.__init__": Cases.criterion_of_alignments,
    "fairseq.data.encoders.build_bpe": Cases.segmenter,
    "fairseq.models.fairseq_model.BaseFairseqModel.load_state_dict": Cases.loaded_model,
    "fairseq.tasks.fairseq_task.FairseqTask.get_batch_iterator": Cases.batches,
    "fairseq.tasks.fairseq_task.FairseqTask.load_state_dict": Cases.state_of_a_task,
    "fairseq.trainer.Trainer.get_train_iterator": Cases.resumed,
    "fairseq.trainer.Trainer.load_checkpoint": Cases.resumed,
    "fairseq.trainer.Trainer.save_checkpoint": Cases.resumed,
    "fairseq_cli.generate._main": Cases.generate,
}


def test_every_patched_function_is_called_here_or_takes_no_configuration(monkeypatch):
    names = {named(owner, name) for owner, name in patched_functions(monkeypatch)}
    assert names == CASES.keys() | WITHOUT_CONFIGURATION


@pytest.mark.fast(3)
@pytest.mark.parametrize("name", CASES)
def test_a_patched_function_takes_every_kind_of_configuration(
    name, data_directory, trained, tmp_path, capsys, monkeypatch
):
    (owner, function), *_ = [
        (owner, function)
        for owner, function in patched_functions(monkeypatch)
        if named(owner, function) == name
    ]
    original = getattr(owner, function)
    calls = []

    def spy(*args, **given):
        calls.append(function)
        return original(*args, **given)

    monkeypatch.setattr(owner, function, spy)
    results = {}
    # torch refuses to load the checkpoint of a trainer whose configuration is an object.
    for kind in KINDS[: 2 if CASES[name] is Cases.resumed else 3]:
        (tmp_path / kind).mkdir()
        case = Cases(kind, data_directory, trained, tmp_path / kind, capsys)
        calls.clear()
        results[kind] = CASES[name](case)
        assert calls, kind
    assert results["namespace"]
    assert all(result == results["namespace"] for result in results.values())


def test_commands_with_this_packages_task_take_every_kind_of_configuration(
    data_directory, tmp_path, capsys, monkeypatch
):
    results = {}
    for kind in KINDS:
        (folder := tmp_path / kind).mkdir()
        case = Cases(
            kind, data_directory, tmp_path / "namespace/checkpoint_last.pt", folder, capsys
        )
        # fairseq's own function refuses a dataclass.
        parameters = results["namespace"][0] if kind == "dataclass" else case.train()
        loss = case.validate(monkeypatch)
        results[kind] = parameters, loss, case.generate(task=OURS), case.interactive(task=RAW)
    assert all(results["namespace"])
    assert results["namespace"] == results["dictconfig"] == results["dataclass"]


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
