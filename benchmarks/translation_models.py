"""The translation models that benchmarks compare, built as by fairseq-train, and sentences for them."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import optim, utils
from fairseq import options as fairseq_options
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from measuring import add_device
from torch import Tensor

import fairseq_phrase
from fairseq_phrase.data.batches.source_batches import make_structures
from fairseq_phrase.data.batches.syntax_dataset import SyntaxDataset
from fairseq_phrase.fairseq_types import Task
from fairseq_phrase.methods.common.parse_batch import to_device
from fairseq_phrase.methods.encoder_method import translation_encoders
from fairseq_phrase.syntax.constituency import ConstituencyTree
from fairseq_phrase.syntax.dependency import DependencyTree
from fairseq_phrase.syntax.fields import FIELDS

# As --user-dir does in fairseq's commands.
fairseq_phrase.register()

# Width, feed-forward width, heads, layers. The paper's sizes for Multi30k, as far as it gives them, and
# the presets' sizes are the base Transformer's.
SIZES = {
    "smallest": (32, 64, 2, 2),
    "tiny": (128, 256, 4, 3),
    "small": (256, 1024, 4, 3),
    "multi30k": (512, 2048, 8, 6),
    "base": (512, 2048, 8, 6),
}
VOCABULARY = 8000

#: The rows, by name: the reference, which is fairseq's Transformer, and the rows of every encoder.
MODELS = {"transformer": ["--arch", "transformer"]} | {
    row: method.flags(row) for method in translation_encoders().values() for row in method.variants
}
# One more row, for encoders with more layers than the tests' encoders.
MODELS["phrase, tuned, first two layers"] = [*MODELS["phrase, tuned"], "--phrase-layers", "2"]
# Source factors of two fields, in fairseq's Transformer and in an encoder of ours.
for title in ("transformer", "relation bias, tree"):
    MODELS[f"{title}, factors"] = [*MODELS[title], "--source-factors", "tags,deprels,subwords"]
# The positions that CTranslate2 computes as well.
MODELS["sequential relative"] = [
    "--arch", "structural_transformer", "--no-sequential-absolute", "--sequential-relative",
]  # fmt: skip
LABELS = [f"label{index}" for index in range(16)]

Sample = dict[str, Any]


@dataclass
class Built:
    """A model as fairseq-train builds it.

    Attributes:
        name: its name in :data:`MODELS`.
        cfg: all of fairseq's options.
        task: its own task.
        model: on its device and in its precision.
        parses: the fields of a batch's ``net_input`` that it required from its task.
        of_loss: the fields that its criterion required.
    """

    name: str
    cfg: Any
    task: Task
    model: Any
    parses: set[str] = field(default_factory=set)
    of_loss: set[str] = field(default_factory=set)
    _own: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def own_inputs(self, sample: Sample) -> Sample:
        """Return a batch with the parses that the model needs, and the collater's computations from them.

        The collater's computations are made once per batch: in training they are the work of other
            processes.
        """
        if id(sample) not in self._own:
            names = {"src_tokens", "src_lengths", "prev_output_tokens", *self.parses}
            net_input = {name: x for name, x in sample["net_input"].items() if name in names}
            parse = {name: net_input[name].cpu() for name in self.parses}
            tokens = net_input["src_tokens"]
            structures = make_structures(self.task.source_text.structures, tokens.cpu(), parse)
            net_input |= to_device(structures, tokens.device)
            of_loss = {name: sample["net_input"][f"src_{name}"] for name in self.of_loss}
            # The batch is kept: no other batch gets its id.
            self._own[id(sample)] = sample, {**sample, "net_input": net_input, "parse": of_loss}
        inputs: Sample = self._own[id(sample)][1]
        return inputs


class Trained:
    """A model in training, with its criterion and optimizer, as by fairseq-train.

    Args:
        cfg: all of fairseq's options.
        task: the model's task.
        model: on its device and in its precision.
    """

    def __init__(self, cfg: Any, task: Task, model: Any):
        self.task, self.model = task, model.train()
        self.criterion = task.build_criterion(cfg.criterion)
        parameters = [p for p in model.parameters() if p.requires_grad]
        with task.optimizer_classes():
            if cfg.common.bf16:
                self.optimizer = optim.FP16Optimizer.build_optimizer(cfg, parameters)
            else:
                self.optimizer = optim.build_optimizer(cfg.optimizer, parameters)

    def forward_backward(self, sample: Sample, update: int = 1) -> tuple[Tensor, int]:
        """Compute the gradients of one batch; return the sum of its losses and its sample size."""
        loss, sample_size, _ = self.task.train_step(
            sample, self.model, self.criterion, self.optimizer, update
        )
        return loss, max(int(sample_size), 1)

    def step(self, sample: Sample, update: int = 1, clip_norm: float = 0.0) -> Tensor:
        """Train on one batch; return its loss for a word before the update."""
        self.optimizer.zero_grad()
        loss, sample_size = self.forward_backward(sample, update)
        self.optimizer.multiply_grads(1 / sample_size)
        if clip_norm:
            self.optimizer.clip_grad_norm(clip_norm)
        self.optimizer.step()
        return loss.detach() / sample_size


def add_languages(parser: argparse.ArgumentParser) -> None:
    """Add the languages of DATA."""
    parser.add_argument("--source-lang", default="de")
    parser.add_argument("--target-lang", default="en")


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add the data of models, and their device and precision."""
    parser.add_argument(
        "data",
        metavar="DATA",
        nargs="?",
        help="a directory made by fairseq-phrase-preprocess; without it, random words in random "
        "trees, in sentences as long as Multi30k's",
    )
    parser.add_argument(
        "--vocabulary", type=int, default=VOCABULARY, help="size of dictionaries, without DATA"
    )
    add_languages(parser)
    add_device(parser)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument(
        "--length", type=int, help="of every source and target, with end of sentence, without DATA"
    )


def add_model_names(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add the choice of models in addition to the first."""
    parser.add_argument(
        "--models",
        nargs="+",
        default=[""],
        metavar="NAME",
        help="compare those alone that have such names, or names that begin so: "
        f"{', '.join(names)}",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the models to build, and for their data."""
    add_data(parser)
    add_model_names(parser, [*MODELS][1:])
    parser.add_argument("--size", default="multi30k", choices=list(SIZES))
    parser.add_argument(
        "--first-rows", action="store_true", help="compare the first row of each encoder"
    )


def chosen_models(options: argparse.Namespace) -> list[str]:
    """Name the chosen models, fairseq's own first; a choice is a name, or the beginning of several."""
    names = [name for name in options.models if name in MODELS]
    begin = tuple(name for name in options.models if name not in MODELS)
    names_of_models = {"transformer", *names}
    if options.first_rows:
        first = {next(iter(method.variants)) for method in translation_encoders().values()}
        return [name for name in MODELS if name in names_of_models | first]
    return [name for name in MODELS if name in names_of_models or name.startswith(begin)]


def add_batches(
    parser: argparse.ArgumentParser, *, max_tokens: int, batches: int = 1, subset: str = "train"
) -> None:
    """Add the options of :func:`load_batches`, with these defaults."""
    parser.add_argument("--subset", default=subset, help="split of DATA that batches come from")
    parser.add_argument(
        "--max-tokens", type=int, default=max_tokens, help="in a batch, as fairseq counts"
    )
    parser.add_argument("--batches", type=int, default=batches, help="different batches")


def build_models(options: argparse.Namespace) -> list[Built]:
    """Build the chosen models, fairseq's own first."""
    return build_rows({name: row_flags(name, options) for name in chosen_models(options)}, options)


def build_pair(name: str, flags: str, options: argparse.Namespace) -> list[Built]:
    """Build a row, and the same row with additional flags."""
    flags_of_row = row_flags(name, options)
    return build_rows({name: flags_of_row, flags: [*flags_of_row, *flags.split()]}, options)


def build_rows(rows: dict[str, list[str]], options: argparse.Namespace) -> list[Built]:
    """Build models by name from their flags, with dictionaries of their own if there is no DATA."""
    with tempfile.TemporaryDirectory() as folder:
        if not options.data:
            write_dictionaries(folder, options)
        data = options.data or folder
        return [build(name, flags, data, options) for name, flags in rows.items()]


def row_flags(name: str, options: argparse.Namespace) -> list[str]:
    """Return the flags of one of the :data:`MODELS`, in the size of ``--size``."""
    width, ffn, heads, layers = SIZES[options.size]
    flags = [*MODELS[name]]
    for side in ("encoder", "decoder"):
        flags += [f"--{side}-embed-dim", str(width), f"--{side}-ffn-embed-dim", str(ffn)]
        flags += [f"--{side}-attention-heads", str(heads), f"--{side}-layers", str(layers)]
    return flags


def configuration(flags: list[str], data: str, options: argparse.Namespace) -> Any:
    """Return all of fairseq's options for a translation model's flags."""
    arguments = [data, "--task", "syntax_translation", "--source-lang", options.source_lang]
    arguments += ["--target-lang", options.target_lang, *flags, "--dropout", "0.1"]
    arguments += ["--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1"]
    arguments += ["--optimizer", "adam", "--lr", "1e-4"]
    arguments += [] if options.device.startswith("cuda") else ["--cpu"]
    arguments += ["--bf16"] if options.dtype == "bfloat16" else []
    return parse_flags(arguments)


def parse_flags(flags: list[str]) -> Any:
    """Parse flags as fairseq-train does; return all of fairseq's options."""
    parser = fairseq_options.get_training_parser()
    return convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, flags))


def build(name: str, flags: list[str], data: str, options: argparse.Namespace) -> Built:
    """Build any model as fairseq-train does, from its flags."""
    cfg = configuration(flags, data, options)
    task = setup_task(cfg.task)
    parses: set[str] = set()
    of_loss: set[str] = set()

    def require(fields: Sequence[str], for_model: bool = True, needer: str = "") -> None:
        if for_model:
            parses.update(f"src_{field}" for field in fields)
        else:
            of_loss.update({"words", *fields})
        # Random sentences have parses, but lack a manifest that records them.
        if options.data:
            type(task).require_parses(task, fields, for_model, needer)

    task.require_parses = require
    if not options.data:
        task.label_dictionary = cache(
            lambda name: Dictionary.load(f"{data}/{FIELDS[name].label_file}")
        )
    model = task.build_model(cfg.model).to(options.device, getattr(torch, options.dtype))
    task.build_criterion(cfg.criterion)
    return Built(name, cfg, task, model, parses, of_loss)


def load_dataset(models: list[Built], subset: str, options: argparse.Namespace) -> Any:
    """Load a split with all parses that models require, or make random sentences."""
    task = models[0].task
    if not options.data:
        return random_dataset(task, options.length)
    fields = {name.removeprefix("src_") for built in models for name in built.parses}
    fields |= {name for built in models for name in built.of_loss}
    if fields:
        type(task).require_parses(task, sorted(fields))
    task.load_dataset(subset)
    return task.dataset(subset)


def load_batches(models: list[Built], options: argparse.Namespace) -> list[Sample]:
    """Draw the batches as an epoch of fairseq-train does."""
    batches = models[0].task.get_batch_iterator(
        load_dataset(models, options.subset, options),
        max_tokens=options.max_tokens,
        seed=1,
        required_batch_size_multiple=8,
    )
    batches = batches.next_epoch_itr(shuffle=True)
    first_batches = [batch for batch, _ in zip(batches, range(options.batches), strict=False)]
    return utils.move_to_cuda(first_batches) if options.device.startswith("cuda") else first_batches


def write_dictionaries(directory: str, options: argparse.Namespace) -> None:
    """Make the dictionaries of a data directory, from which models can be built."""
    dictionary = Dictionary()
    for index in range(options.vocabulary - len(dictionary)):
        dictionary.add_symbol(f"word{index}")
    for language in (options.source_lang, options.target_lang):
        dictionary.save(str(Path(directory) / f"dict.{language}.txt"))
    labels = Dictionary()
    for label in LABELS:
        labels.add_symbol(label)
    for name in ("spans", "deprels", "tags", "enhanced"):
        labels.save(f"{directory}/{FIELDS[name].label_file}")


def random_dataset(task: Task, length: int | None, sentences: int = 8192) -> SyntaxDataset:
    """Make sentences of random words in random trees.

    Args:
        task: has the dictionaries.
        length: of all sentences, with end of sentence; None for Multi30k's lengths: 18 subwords on
            average.
        sentences: the number of sentences.
    """
    source, target = task.source_dictionary, task.target_dictionary
    sources, targets, parses = random_sentences(len(source), len(target), length, sentences)
    pairs = LanguagePairDataset(
        sources, sources.sizes, source, targets, targets.sizes, target, left_pad_source=False
    )
    return SyntaxDataset(pairs, parses)


@lru_cache(maxsize=1)
def random_sentences(
    source_symbols: int, target_symbols: int, length: int | None, sentences: int
) -> tuple[ListDataset, ListDataset, list[dict[str, np.ndarray]]]:
    """Make the sentences of :func:`random_dataset` and the parses of the source, once for all models.

    Args:
        source_symbols: the size of the source dictionary.
        target_symbols: that of the target dictionary.
        length: as of :func:`random_dataset`.
        sentences: the number of sentences.
    """
    generator, special = np.random.default_rng(1), Dictionary()
    source = np.exp(generator.normal(2.75, 0.32, sentences)).round().clip(4, 60).astype(np.int64)
    target = (source + generator.normal(0, 2, sentences).round()).clip(4, 60).astype(np.int64)
    if length is not None:
        source[:] = target[:] = length - 1

    def side(lengths: np.ndarray, symbols: int) -> ListDataset:
        rows = [
            torch.from_numpy(generator.integers(special.nspecial, symbols, length + 1))
            for length in lengths
        ]
        for row in rows:
            row[-1] = special.eos()
        return ListDataset(rows, lengths + 1)

    def parse(subwords: int) -> dict[str, np.ndarray]:
        # Four of five subwords begin a word, whose head is one of the five before it.
        words = np.r_[0, (generator.random(subwords - 1) < 0.8).cumsum()]
        index = np.arange(words[-1] + 1)
        heads = (index - generator.integers(1, 6, len(index))).clip(0)
        # The constituents of that tree, and one over each word of several subwords.
        tree = ConstituencyTree.from_dependencies(DependencyTree(heads), ["x"] * len(heads))
        split = np.flatnonzero(np.bincount(words) > 1)
        tree = tree.with_lower(split[:, None] + np.array([0, 1]), ["x"] * len(split))
        labels = generator.integers(4, 4 + len(LABELS), len(tree))
        deprels = generator.integers(4, 4 + len(LABELS), len(heads))
        spans = np.column_stack([tree.spans, labels])
        tags = generator.integers(4, 4 + len(LABELS), len(heads))
        # The tree's edges, and for each word one more head.
        other_heads = generator.integers(0, len(heads), len(heads))
        edges = [
            np.column_stack([head_numbers, index, deprels]) for head_numbers in (heads, other_heads)
        ]
        further = {"deprels": deprels, "tags": tags, "enhanced": np.concatenate(edges)}
        return {"words": words, "heads": heads, "spans": spans, **further}

    sources, targets = side(source, source_symbols), side(target, target_symbols)
    return sources, targets, [parse(subwords) for subwords in source]
