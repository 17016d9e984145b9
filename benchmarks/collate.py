"""Time to make a batch with parses, compared with fairseq's dataset without parses.

fairseq's LanguagePairDataset and SyntaxDataset make the same batches in turns. SyntaxDataset adds the
words of subwords, other fields of the data, and the structures that encoders compute from parses: the
sizes of trees, and lists of phrases. Two times are measured:

- ``loaded``: the work of a data loader's worker, which fetches the samples and collates them,
- ``collated``: only the collater.

The table shows the medians of the paired ratios. The target is at most 8 % more (1.08) with all fields.
On a shared machine, set OMP_NUM_THREADS=1.

Example:
    python benchmarks/collate.py DATA --max-tokens 4096
"""

from __future__ import annotations

import argparse
import logging
import random
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import options as fairseq_options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import setup_task
from machine import describe_machine, seconds
from tqdm import tqdm

# Importing it registers the task, as --user-dir does in fairseq's commands.
import fairseq_phrase.tasks.syntax_translation  # noqa: F401
from fairseq_phrase.data.batches.syntax_dataset import SyntaxDataset
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.modules.parse_batch import MakeStructure
from fairseq_phrase.modules.phrases.phrase_sources import list_phrases
from fairseq_phrase.modules.trees.tree_batch import tree_sizes
from fairseq_phrase.text import markdown_table

CPU = torch.device("cpu")


def load(options: argparse.Namespace) -> tuple[dict[str, Any], list[list[int]]]:
    """Load a split in every way, and draw batches of it as fairseq-train does.

    Returns:
        The datasets by name, fairseq's first, and the batches' sentences.
    """
    arguments = [options.data, "--task", "syntax_translation", "--arch", "transformer"]
    arguments += ["--source-lang", options.source_lang, "--target-lang", options.target_lang]
    parser = fairseq_options.get_training_parser(default_task="syntax_translation")
    parsed_arguments = fairseq_options.parse_args_and_arch(parser, input_args=arguments)
    task = setup_task(convert_namespace_to_omegaconf(parsed_arguments).task)
    task.load_dataset(options.subset)
    plain = task.dataset(options.subset)
    split = f"{options.subset}.{options.source_lang}-{options.target_lang}"

    def parsed(*fields: str, **structures: MakeStructure) -> SyntaxDataset:
        store = ParseStore(options.data, split, options.source_lang, {"words", *fields})
        return SyntaxDataset(plain, store, structures=structures)

    def phrases(source: str) -> MakeStructure:
        chosen = argparse.Namespace(phrase_max_length=3, phrase_unit="token")
        return partial(list_phrases, source, chosen, task.source_dictionary)

    fields = Manifest.load(options.data, options.source_lang).fields
    datasets = {"fairseq": plain, "words": parsed(), "all fields": parsed(*fields)}
    if "heads" in fields:
        datasets["heads"] = parsed("heads")
        datasets["heads, chains of k = 3"] = parsed("heads", phrases=phrases("dependency"))
    if "spans" in fields:
        datasets["constituents"] = parsed("spans")
        datasets["constituents, sizes of trees"] = parsed("spans", tree=tree_sizes)
        datasets["constituents, phrases of k = 3"] = parsed(
            "spans", phrases=phrases("constituency")
        )
    iterator = task.get_batch_iterator(
        plain, max_tokens=options.max_tokens, seed=1, required_batch_size_multiple=8
    )
    batches = [[int(index) for index in batch] for batch in iterator.frozen_batches]
    random.Random(1).shuffle(batches)
    return datasets, batches[: options.batches]


def in_turns(
    datasets: dict[str, Any],
    batches: list[list[int]],
    prepare: Callable[[Any, list[int]], Callable[[], object]],
    options: argparse.Namespace,
) -> list[list[float]]:
    """Time every dataset on every batch.

    Returns:
        For each batch the seconds that each dataset took, in order.
    """
    times = []
    rounds = range(options.repeats * len(batches))
    for number in tqdm(rounds, unit="batch", file=sys.stderr):
        runs = [prepare(dataset, batches[number % len(batches)]) for dataset in datasets.values()]
        taken = [0.0] * len(runs)
        # Each dataset is first, second, ... equally often, because the first finds cold caches.
        for turn in range(len(runs)):
            index = (number + turn) % len(runs)
            taken[index] = seconds(runs[index], CPU)
        times.append(taken)
    return times


def loading(dataset: Any, batch: list[int]) -> Callable[[], object]:
    """Return the work of a data loader's worker for a batch (``_MapDatasetFetcher`` in torch)."""
    return lambda: dataset.collater(fetch(dataset, batch))


def fetch(dataset: Any, batch: list[int]) -> list[Any]:
    """Fetch a batch's samples from a dataset as torch's data loader does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(batch)
    return [dataset[index] for index in batch]


def collating(dataset: Any, batch: list[int]) -> Callable[[], object]:
    """Return the collater's part of that work, for samples that are already fetched."""
    samples = fetch(dataset, batch)
    return lambda: dataset.collater(samples)


def table(names: list[str], loaded: list[list[float]], collated: list[list[float]]) -> str:
    """Format the measurements in Markdown."""
    lines = []
    for index, name in enumerate(names):
        cells = []
        for times in (loaded, collated):
            own = statistics.median(row[index] for row in times) * 1e3
            ratio = statistics.median(row[index] / row[0] for row in times)
            cells += [f"{own:.2f}", f"{ratio:.3f}"]
        lines.append([name, *cells])
    headings = ["batch", "loaded, ms", "ratio", "collated, ms", "ratio"]
    return markdown_table(headings, lines, texts=1)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        help="a directory made by fairseq-phrase-preprocess with a parser",
    )
    parser.add_argument("--source-lang", default="de")
    parser.add_argument("--target-lang", default="en")
    parser.add_argument("--subset", default="train")
    parser.add_argument(
        "--max-tokens", type=int, default=4096, help="in a batch, as fairseq counts"
    )
    parser.add_argument("--batches", type=int, default=100, help="most batches to measure")
    parser.add_argument("--repeats", type=int, default=3, help="times that each is measured")
    parser.add_argument("--out", type=Path, help="also write the table here, in Markdown")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure and print the table."""
    options = parse_arguments()
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore")
    datasets, batches = load(options)
    loaded = in_turns(datasets, batches, loading, options)
    collated = in_turns(datasets, batches, collating, options)
    sentences = statistics.mean(map(len, batches))
    conditions = (
        f"{describe_machine('cpu')}, {len(batches)} batches of {options.subset} "
        f"(--max-tokens {options.max_tokens}, {sentences:.0f} sentences on average), each measured "
        f"{options.repeats} times, in turns"
    )
    report = f"{conditions}\n\n{table(list(datasets), loaded, collated)}\n"
    print(report)
    if options.out:
        options.out.write_text(report)


if __name__ == "__main__":
    main()
