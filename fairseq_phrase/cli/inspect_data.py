"""``fairseq-phrase-inspect``: show the content of a data directory."""

from __future__ import annotations

import argparse
import io
import random
import shutil
import sys
from bisect import bisect_right
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_phrase.cli.arguments import positive
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from tqdm import tqdm

    from fairseq_phrase.data.store.manifest import Manifest


def _natural(text: str) -> int:
    return 0 if text == "0" else positive(text)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-inspect",
        description="Show the content of a data directory: what made its parses, statistics of words "
        "and trees, and some sentences with their trees. Lines are lines of the text's file, from 1. "
        "Of a checkpoint or a bundle, show its identity record: what the model was trained with.",
        epilog="Exit status: 0 if no error is found, 2 if something is missing or broken.",
    )
    # fmt: off
    parser.add_argument("data", type=Path, metavar="DATA|CHECKPOINT|BUNDLE",
        help="the data directory, or the model")
    parser.add_argument("--subset", action="append", metavar="SUBSET", dest="splits",
        help="a split, as train or train.de-en; may be repeated (default: all)")
    drawn = parser.add_argument_group("sentences")
    drawn.add_argument("--sentences", type=_natural, metavar="N",
        help="draw the trees of N sentences, chosen at random (default: 1)")
    drawn.add_argument("--line", type=positive, action="append", metavar="K", dest="lines",
        help="draw this line of --subset (default: of the first split), without statistics; may be "
        "repeated")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.lines and args.sentences is not None:
        make_parser().error("--line names the sentences: leave out --sentences")
    if args.data.is_file() or (args.data / "config.json").is_file():
        from fairseq_phrase.inference.model_files import read_identity

        print(read_identity(args.data).text())
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # for a terminal without box-drawing characters
    from fairseq_phrase.lab.inspection.parsed_text import load_dictionaries

    by_language: list[list[Any]] = []
    for number, manifest in enumerate(_manifests(args.data)):
        splits = _splits(args.data, manifest, args.splits)
        dictionaries = load_dictionaries(args.data, manifest)
        if not args.lines:
            if number:
                print()
            print(_overview(args.data, manifest, splits, dictionaries))
        by_language.append(_sentences(args, manifest, splits, dictionaries))
    # The same line of each language, one below the other.
    drawn = [sentence for group in zip_longest(*by_language) for sentence in group if sentence]
    if drawn:
        from fairseq_phrase.lab.pictures.terminal_trees import tree_text

        if not args.lines:
            print()
        print("\n\n".join(map(tree_text, drawn)))


def _manifests(directory: Path) -> list[Manifest]:
    from fairseq_phrase.data.store.manifest import Manifest, languages_in

    if not directory.is_dir():
        raise UserError(f"{directory} is not a folder")
    names = languages_in(directory)
    if not names:
        raise UserError(
            f"{directory} has no parses (no syntax.LANG.json): make them with "
            "fairseq-phrase-preprocess, or fairseq-phrase-attach for text that is already binarized"
        )
    return [Manifest.load(directory, name) for name in names]


def _splits(directory: Path, manifest: Manifest, names: list[str] | None) -> list[str]:
    from fairseq_phrase.data.store.manifest import Manifest

    if not names:
        return list(manifest.splits)
    splits = []
    for name in names:
        matches = [split for split in manifest.splits if name in (split, split.rpartition(".")[0])]
        if not matches:
            raise UserError(
                f"{Manifest.path(directory, manifest.language)} has no split {name}, only "
                f"{', '.join(manifest.splits)}"
            )
        splits += matches
    return list(dict.fromkeys(splits))


def _progress(action: str, manifest: Manifest, splits: list[str]) -> tqdm:
    from tqdm import tqdm

    total = sum(manifest.splits[split].sentences for split in splits)
    title = f"{action} {manifest.language}"
    return tqdm(desc=title, total=total, unit="sentence", unit_scale=True, leave=False)


def _overview(
    directory: Path, manifest: Manifest, splits: list[str], dictionaries: dict[str, Any]
) -> str:
    from fairseq_phrase.lab.inspection.corpus_statistics import (
        manifest_text,
        split_statistics,
        statistics_text,
    )

    with _progress("counting", manifest, splits) as progress:
        counted = [
            split_statistics(directory, manifest, split, dictionaries, progress.update)
            for split in splits
        ]
    width = shutil.get_terminal_size().columns
    text = statistics_text(counted, dictionaries, width)
    return f"{manifest_text(directory, manifest, dictionaries)}\n\n{text}"


def _sentences(
    args: argparse.Namespace, manifest: Manifest, splits: list[str], dictionaries: dict[str, Any]
) -> list[Any]:
    from fairseq_phrase.lab.inspection.parsed_text import ParsedTextReader

    if args.lines:
        sentences = [(split, line) for split in splits[: None if args.splits else 1]
                  for line in args.lines]  # fmt: skip
    else:
        ends = [0, *accumulate(manifest.splits[split].sentences for split in splits)]
        count = 1 if args.sentences is None else args.sentences
        numbers = random.Random(1).sample(range(ends[-1]), min(count, ends[-1]))
        sentences = []
        for number in sorted(numbers):
            index = bisect_right(ends, number) - 1
            sentences.append((splits[index], number - ends[index]))
    readers = {
        split: ParsedTextReader(args.data, manifest, split, dictionaries)
        for split in dict.fromkeys(split for split, _ in sentences)
    }
    if args.lines:
        sentences = [(split, readers[split].index_of(line)) for split, line in sentences]
    return [readers[split].read(index) for split, index in sentences]
