"""Checkpoints of small models with random parameters, and their data directory, without a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fairseq import options, tasks
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from omegaconf import OmegaConf

from fairseq_phrase.data.store.dictionaries import labels_fingerprint
from fairseq_phrase.data.store.layout import with_labels
from fairseq_phrase.data.store.manifest import Manifest, fingerprint
from fairseq_phrase.parsers.interfaces import LineParser, split_at_white_space
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.sentence import ParsedSentence
from tests.support.commands import SIZES

WORDS = ("der", "Hund", "schläft", "the", "dog", "sleeps")
LABELS = {"tags": ("DET", "NOUN", "VERB"), "deprels": ("det", "nsubj", "root")}
FIELDS = ["words", "heads", "deprels", "tags"]


class ChainParser(LineParser):
    """Words at white space; the head of each is the next, and the last is the root."""

    version = "chain"
    fields = tuple(FIELDS)

    def parse(self, lines):
        return list(map(self._parsed, lines))

    def tokenize(self, lines):
        return self.parse(lines)

    def _parsed(self, line: str) -> ParsedSentence:
        sentence = split_at_white_space(line)
        count = len(sentence.words)
        tree = DependencyTree([*range(1, count), count - 1])
        labels = {name: [LABELS[name][i % 3] for i in range(count)] for name in ("deprels", "tags")}
        return ParsedSentence(sentence.words, sentence.space_before, tree=tree, **labels)


def make_data(folder: Path, parser: str = "chain") -> Path:
    """Write a data directory of whole words without any split."""
    folder.mkdir(parents=True)
    text = "".join(f"{word} 1\n" for word in WORDS)
    for language in ("de", "en"):
        (folder / f"dict.{language}.txt").write_text(text, encoding="utf-8")
    for field, name in with_labels(LABELS).items():
        entries = "".join(f"{label} 1\n" for label in LABELS[field])
        (folder / name).write_text(entries, encoding="utf-8")
    Manifest(
        language="de", parser=parser, parser_version="chain", fields=FIELDS, constituents="none",
        tokenized=False, bpe="none", bpe_model="", dictionary=fingerprint(folder / "dict.de.txt"),
        labels={field: labels_fingerprint(labels) for field, labels in LABELS.items()},
    ).save(folder)  # fmt: skip
    return folder


def make_checkpoint(
    path: Path, data: Path, *arguments: str, seed: int = 1, shared: bool = True
) -> Path:
    """Write a checkpoint as fairseq-train does.

    Args:
        arguments: options of fairseq-train.
        shared: share all embeddings.
    """
    task = ["--task", "syntax_translation", "--source-lang", "de", "--target-lang", "en"]
    train_arguments = [str(data), *task, *SIZES, *arguments]
    train_arguments += ["--share-all-embeddings"] * shared
    parser = options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, train_arguments))
    torch.manual_seed(seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    with torch.no_grad():
        for parameter in model.parameters():  # what starts at 0 would hide what it multiplies
            parameter += 0.3 * torch.randn_like(parameter)
    read = {"task": cfg.task, "model": cfg.model}  # nothing reads the other sections
    cfg = OmegaConf.create(read, flags={"allow_objects": True})
    state: dict[str, Any] = {"cfg": cfg, "model": model.state_dict(), "args": None}
    state |= {"task_state": task.state_dict(), "extra_state": {"train_iterator": {"epoch": 1}}}
    state["optimizer_history"] = [
        {"optimizer_name": "FairseqAdam", "num_updates": 1, "lr_scheduler_state": {}}
    ]
    torch.save(state, path)
    return path
