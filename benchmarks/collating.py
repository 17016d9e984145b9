"""The command ``training.py collate``: time to make batches with parses."""

from __future__ import annotations

import argparse
import random
import statistics
from functools import partial
from typing import Any

from fairseq.tasks import setup_task
from measuring import (
    Run,
    add_out,
    describe_machine,
    in_turns,
    report,
)
from translation_models import (
    add_batches,
    add_languages,
    parse_flags,
)

from fairseq_phrase.data.batches.syntax_dataset import SyntaxDataset
from fairseq_phrase.data.store.manifest import Manifest
from fairseq_phrase.data.store.reader import ParseStore
from fairseq_phrase.methods.common.parse_batch import MakeStructure
from fairseq_phrase.methods.common.tree_batch import tree_sizes
from fairseq_phrase.methods.phrases.phrase_sources import find_members
from fairseq_phrase.text import markdown_table


def collate(options: argparse.Namespace) -> None:
    """Time to make a batch with parses, compared with fairseq's dataset without parses.

    fairseq's LanguagePairDataset and SyntaxDataset make the same batches. SyntaxDataset adds the words of
    subwords, other fields of the data, and the structures that encoders compute from parses: the sizes of
    trees, and lists of phrases. Two times are measured:

    - ``loaded``: the work of a data loader's worker, which fetches the samples and collates them,
    - ``collated``: only the collater.

    The target is at most 8 % more (1.08) with all fields.

    Example:
        python benchmarks/training.py collate DATA --max-tokens 4096
    """
    datasets, batches = load_datasets(options)
    lines = [[name] for name in datasets]
    for prepare_run in (loading, collating):

        def runs(number: int, prepare_run: Any = prepare_run) -> list[Run]:
            return [prepare_run(x, batches[number % len(batches)]) for x in datasets.values()]

        rounds = options.repeats * len(batches)
        turns = in_turns(runs, rounds, "cpu", warmup=0, unit="batch")
        for way, line in enumerate(lines):
            line += [f"{1e3 * turns.median(way):.2f}", f"{turns.speed(0, way):.3f}"]
    sentences = statistics.mean(map(len, batches))
    headings = ["batch", "loaded, ms", "ratio", "collated, ms", "ratio"]
    report(
        f"{describe_machine('cpu')}, {len(batches)} batches of {options.subset} "
        f"(--max-tokens {options.max_tokens}, {sentences:.0f} sentences on average), each measured "
        f"{options.repeats} times, in turns",
        markdown_table(headings, lines, texts=1),
        options.out,
    )


def load_datasets(options: argparse.Namespace) -> tuple[dict[str, Any], list[list[int]]]:
    """Load a split in every way, and draw batches of it as fairseq-train does.

    Returns:
        The datasets by name, fairseq's first, and the batches' sentences.
    """
    flags = [options.data, "--task", "syntax_translation", "--arch", "transformer"]
    flags += ["--source-lang", options.source_lang, "--target-lang", options.target_lang]
    task = setup_task(parse_flags(flags).task)
    task.load_dataset(options.subset)
    plain = task.dataset(options.subset)
    split = f"{options.subset}.{options.source_lang}-{options.target_lang}"

    def parsed(*fields: str, **structures: MakeStructure) -> SyntaxDataset:
        store = ParseStore(options.data, split, options.source_lang, {"words", *fields})
        return SyntaxDataset(plain, store, structures=structures)

    def phrases(source: str) -> MakeStructure:
        phrase_options = argparse.Namespace(phrase_max_length=3, phrase_unit="token")
        return partial(find_members, source, phrase_options, task.source_dictionary)

    fields = Manifest.load(options.data, options.source_lang).fields
    datasets = {"fairseq": plain, "words": parsed(), "all fields": parsed(*fields)}
    if "heads" in fields:
        datasets["heads"] = parsed("heads")
        datasets["heads, chains of k = 3"] = parsed("heads", phrases=phrases("dependency"))
    if "spans" in fields:
        datasets["constituents"] = parsed("spans")
        datasets["constituents, sizes of trees"] = parsed("spans", tree=tree_sizes)
        constituents = phrases("constituency")
        datasets["constituents, phrases of k = 3"] = parsed("spans", phrases=constituents)
    iterator = task.get_batch_iterator(
        plain, max_tokens=options.max_tokens, seed=1, required_batch_size_multiple=8
    )
    batches = [[int(index) for index in batch] for batch in iterator.frozen_batches]
    random.Random(1).shuffle(batches)
    return datasets, batches[: options.batches]


def loading(dataset: Any, batch: list[int]) -> Run:
    """Return the work of a data loader's worker for a batch (``_MapDatasetFetcher`` in torch)."""
    return lambda: dataset.collater(fetch(dataset, batch))


def collating(dataset: Any, batch: list[int]) -> Run:
    """Return the collater's part of that work, for samples that are already fetched."""
    samples = fetch(dataset, batch)
    return lambda: dataset.collater(samples)


def fetch(dataset: Any, batch: list[int]) -> list[Any]:
    """Fetch a batch's samples from a dataset as torch's data loader does."""
    if getattr(dataset, "__getitems__", None):
        return dataset.__getitems__(batch)
    return [dataset[index] for index in batch]


def add_collate_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`collate`."""
    parser.add_argument("data", metavar="DATA", help="of fairseq-phrase-preprocess with a parser")
    add_languages(parser)
    add_batches(parser, max_tokens=4096, batches=100)
    parser.add_argument("--repeats", type=int, default=3, help="times that each is measured")
    add_out(parser)
