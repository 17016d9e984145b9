"""``fairseq-phrase-translate``: translate raw text."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fairseq_phrase.cli.arguments import add, engine_of, loading, positive
from fairseq_phrase.cli.command import MixedParser, command, standard_stream
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.inference.output_files import Shard
    from fairseq_phrase.inference.translation_jobs import Chunks, Translated


def _parser() -> argparse.ArgumentParser:
    parser = MixedParser(
        prog="fairseq-phrase-translate",
        usage="%(prog)s [DATA] --path CHECKPOINT [FILE ...] [options]\n"
        "       %(prog)s BUNDLE [FILE ...] [options]",
        description="Translate raw text line by line. Lines are split into words and parsed as the data "
        "were. Translations are detokenized and written to standard output, in order; empty lines stay "
        "empty. A line that is too long for the model is translated in segments, with a message.",
    )
    # fmt: off
    parser.add_argument("inputs", nargs="*", metavar="DATA|BUNDLE|FILE",
        help="the data directory, or a bundle of fairseq-phrase-export instead of it and --path; then "
        "text files in UTF-8, .gz accepted (default: standard input), for data of --parser conllu or ptb "
        "with FILE.conllu or FILE.ptb. Without DATA it is the one that the checkpoint was trained with")
    parser.add_argument("--path", metavar="CHECKPOINT",
        help="checkpoint or bundle; for an ensemble several, with : between them")
    parser.add_argument("--beam", type=positive, metavar="N",
        help="the beam's size (default: 5)")
    parser.add_argument("--nbest", type=positive, default=1, metavar="N",
        help="write the N best translations of each line, one a line")
    parser.add_argument("--scores", action="store_true",
        help="write each translation's score and a tab before it: the mean log probability, base 2, of "
        "its subwords")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X",
        help="divide a translation's score by its length to the power of X")
    parser.add_argument("--batch-size", type=positive, default=32, metavar="N",
        help="sentences in a batch, at most")
    parser.add_argument("--buffer-size", type=positive, default=512, metavar="N",
        help="sort at most N lines by length. The first lines, and lines of a pipe or a terminal, do not "
        "wait for so many")
    parser.add_argument("--constraints", type=Path, metavar="FILE",
        help="what the translation of each line must have, in any order: a line for each line, with tabs "
        "between several texts, empty for nothing")
    parser.add_argument("--prefix", type=Path, metavar="FILE",
        help="how the translation of each line must begin: a line for each line, empty for nothing")
    parser.add_argument("--glossary", type=Path, metavar="FILE",
        help="lines of a source term, a tab and its translation. The translation of a line with the term "
        "must have it")
    parser.add_argument("--score", type=Path, metavar="FILE",
        help="translate nothing: write the score of each line's translation in this file, one a line")
    parser.add_argument("--alignments", action="store_true",
        help="write a tab and pairs 0-0 after each translation, or score of --score: words of the line "
        "to which the decoder attends most, from 0, and words of the translation")
    parser.add_argument("--replace-unk", action="store_true",
        help="replace each unknown word of a translation by the word of the line that is aligned to it")
    parser.add_argument("--unk-dictionary", type=Path, metavar="FILE",
        help="with --replace-unk: lines of a word and its translation, which is written instead")
    parser.add_argument("--sampling", action="store_true",
        help="draw each subword by its probability instead of a search, for back-translation")
    parser.add_argument("--sampling-topk", type=positive, metavar="N",
        help="draw from the N most probable subwords")
    parser.add_argument("--sampling-topp", type=float, metavar="P",
        help="draw from the fewest most probable subwords that together have the probability P")
    parser.add_argument("--temperature", type=float, metavar="T",
        help="divide the scores of subwords by T before each draw (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="seed of --sampling")
    parser.add_argument("--mbr", metavar="METRIC",
        help="write the one of --nbest samples with the most expected utility: by bleu, chrf or ter of "
        "sacrebleu, or a metric NAME[:ARGUMENT] of fairseq-phrase-report")
    parser.add_argument("--out", type=Path, metavar="FILE",
        help="write to this file when all is translated. A run with the same options goes on after one "
        "that was interrupted")
    parser.add_argument("--shard", type=_shard, metavar="I/N",
        help="translate the I-th of N parts of the files. With --out it is in FILE.I-of-N, and the "
        "last of the parts writes all to FILE")
    add(parser, "--workers", "--engine", "--ray-address", "--device", "--user-dir")
    add(parser, "--source-parser", "--allow-difference", "--strict-identity")
    parser.add_argument("--source-tokenized", action="store_true",
        help="for data of tokenized text: the lines are tokenized in the same way (default: raw text, "
        "which Moses' tokenizer splits)")
    parser.add_argument("--target-tokenized", action="store_true",
        help="for data of tokenized text: leave the translations tokenized")
    return parser


@command(_parser)
def main(args: argparse.Namespace) -> None:
    """Run the command."""
    search = (args.mbr, args.constraints, args.prefix, args.glossary, args.sampling)
    if args.score and (args.nbest > 1 or any(search)):
        raise UserError("--score scores the translations of a file: remove the options of a search")
    if args.unk_dictionary and not args.replace_unk:
        raise UserError("--unk-dictionary needs --replace-unk")
    args.path, args.data, args.inputs = _sorted(args.inputs, args.path)
    engine, out = engine_of(vars(args)), standard_stream("stdout")
    from tqdm import tqdm

    from fairseq_phrase.inference.constraints import ParallelTexts
    from fairseq_phrase.inference.raw_lines import numbered
    from fairseq_phrase.inference.source_parses import find_parses
    from fairseq_phrase.inference.translation_jobs import (
        TranslationWorker,
        translated_chunks,
        with_gpus,
    )
    from fairseq_phrase.text import decoded_lines, read_lines

    engine = with_gpus(engine, args.device)
    files, shard = args.inputs, args.shard
    typed, live = False, not all(path.is_file() for path in files)
    lines: Iterator[str] = chain.from_iterable(map(read_lines, files))
    if not files:
        source = standard_stream("stdin")
        lines = decoded_lines(source, "standard input")
        typed, live = source.isatty(), not _is_file(source)
    # A bar would stand between translations that are written to the same terminal.
    is_shown = sys.stderr.isatty() and not typed and not (args.out is None and out.isatty())
    total = None
    # Lines are counted by reading them, which a pipe allows only once.
    if (is_shown or shard) and files and not live:
        total = sum(1 for path in files for _ in read_lines(path))
    if shard and total is None:
        raise UserError("--shard needs the number of lines: name text files, not a pipe")
    live = live and args.out is None and engine.is_this_process
    texts = ParallelTexts(args.constraints, args.prefix, args.score)
    if shard:  # smaller chunks in parts of few lines: no part is empty
        args.buffer_size = min(args.buffer_size, max(1, total // shard.parts))
    text_parses = find_parses(files, args.path, args.data, args.source_parser)
    parses = text_parses and text_parses.parses
    chunks: Chunks = numbered(texts.lines(lines, parses), args.buffer_size, live=live)
    if shard:
        chunks = (chunk for chunk in chunks if shard.holds(chunk[0], total))
    of_bar = None if shard else total
    with tqdm(desc="translating", total=of_bar, unit="line", disable=not is_shown) as bar:
        make = partial(TranslationWorker, args, partial(loading, args), texts)
        translate = partial(translated_chunks, make, engine, bar)
        if args.out is None:
            _write(translate(chunks), out, flush=live)
        else:
            _write_file(
                args, text_parses.files if text_parses else [], chunks, translate, bar.update
            )


def _write(translated: Translated, out: BinaryIO, *, flush: bool) -> None:
    """Write translations to standard output."""
    with closing(translated):
        for _, text in translated:
            out.write(text)
            if flush:
                out.flush()


def _write_file(
    args: argparse.Namespace,
    parses: Sequence[Path],
    chunks: Chunks,
    translate: Callable[[Chunks], Translated],
    skipped: Callable[[int], object],
) -> None:
    """Write the file of ``--out``, or the file of a part."""
    from fairseq_phrase.inference.output_files import translation_key, write_translations

    loading(args)  # a task of --user-dir
    begun, key = time.monotonic(), translation_key(vars(args), parses)
    count, missing = write_translations(args.out, args.shard, key, chunks, translate, skipped)
    rate = count / (time.monotonic() - begun)
    path = args.shard.path(args.out) if args.shard else args.out
    print(f"{path}: {count} lines translated, {rate:.1f} lines/s", file=sys.stderr)
    if missing:
        print(f"{args.out} waits for {', '.join(missing)}", file=sys.stderr)


def _shard(text: str) -> Shard:
    from fairseq_phrase.inference.output_files import Shard

    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, not {text}")
    return Shard(int(number), int(count))


def _is_file(stream: BinaryIO) -> bool:
    """Return whether all lines of a stream are already available."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # not a stream of the operating system
        return True


def _sorted(inputs: list[str], path: str | None) -> tuple[str, str | None, list[Path]]:
    """Find the data directory or the bundle among the inputs.

    Returns:
        The models, the data directory or None, and the text files.
    """
    first = inputs[0] if inputs else ""
    named_folder = bool(first) and Path(first.split(":")[0]).is_dir()
    if path is not None:
        data = first if named_folder else None
        return path, data, [Path(name) for name in inputs[named_folder:]]
    if not named_folder:
        raise UserError("no model: give --path CHECKPOINT, or a bundle of fairseq-phrase-export")
    folder = Path(first.split(":")[0])
    is_bundle = any((folder / name).is_file() for name in ("config.json", "bundle.json"))
    if any(folder.glob("dict.*txt")) and not is_bundle:
        raise UserError(
            f"{folder} is a data directory: name the model, too, with --path CHECKPOINT"
        )
    return first, None, [Path(name) for name in inputs[1:]]


if __name__ == "__main__":
    main()
