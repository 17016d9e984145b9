"""Raw text in, output for each line: what ``translate`` and ``label`` share."""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from fairseq_phrase.cli.command import standard_stream
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.data.store.outputs import Key
    from fairseq_phrase.inference.output_files import Chunks, Outputs, Predict, Shard


def add_output(parser: argparse.ArgumentParser, verb: str, participle: str) -> None:
    """Add ``--out`` and ``--shard``."""
    # fmt: off
    parser.add_argument("--out", type=_new_file, metavar="FILE",
        help=f"write to this file when all is {participle}. A run with the same options goes on after "
        "one that was interrupted")
    parser.add_argument("--shard", type=_shard, metavar="I/N",
        help=f"{verb} the I-th of N parts of the files. With --out it is in FILE.I-of-N, and the "
        "last of the parts writes all to FILE")
    # fmt: on


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def _shard(text: str) -> Shard:
    from fairseq_phrase.inference.output_files import Shard

    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, not {text}")
    return Shard(int(number), int(count))


def write_output(
    args: argparse.Namespace,
    predict: Predict,
    key: Callable[[Sequence[Path]], Key],
    verb: tuple[str, str],
    *,
    target: Path | None = None,
) -> None:
    """Write the output for the command's files, or for standard input.

    Args:
        args: the options of the command. In parts of few lines, ``buffer_size`` gets smaller.
        predict: computes the output for chunks of lines.
        key: makes the key of the output, of the files of the text's parses.
        verb: what is done with lines, and what was done, for messages ("labelling", "labelled").
        target: a file of given translations.

    Raises:
        UserError: a text or its parses are missing, or a pipe is to be divided into parts; see also
            :func:`fairseq_phrase.inference.output_files.write_outputs`.
    """
    from tqdm import tqdm

    from fairseq_phrase.inference.raw_lines import numbered, parallel_lines
    from fairseq_phrase.inference.source_parses import find_parses

    out, shard = standard_stream("stdout"), args.shard
    lines, is_typed, is_live = _lines(args.inputs)
    # A bar would stand between outputs that are written to the same terminal.
    is_shown = sys.stderr.isatty() and not is_typed and not (args.out is None and out.isatty())
    total = _count(args.inputs) if (is_shown or shard) and not is_live else None
    if shard:
        if total is None:
            raise UserError("--shard needs the number of lines: name text files, not a pipe")
        # Smaller chunks in parts of few lines: no part is empty.
        args.buffer_size = min(args.buffer_size, max(1, total // shard.parts))
    text_parses = find_parses(args.inputs, args.path, args.data, args.source_parser)
    files, parses = text_parses or ([], None)
    is_live = is_live and args.out is None
    given_lines = parallel_lines(lines, target, parses)
    chunks: Chunks = numbered(given_lines, args.buffer_size, live=is_live)
    if shard:
        chunks = (chunk for chunk in chunks if shard.holds(chunk[0], total))
    of_bar = None if shard else total
    with tqdm(desc=verb[0], total=of_bar, unit="line", disable=not is_shown) as bar:

        def shown(chunks: Chunks) -> Outputs:
            with closing(predict(chunks)) as outputs:
                for count, text in outputs:
                    yield count, text
                    bar.update(count)

        if args.out is None:
            _write(shown(chunks), out, flush=is_live)
        else:
            _write_file(args, key(files), chunks, shown, bar.update, verb[1])


def _lines(files: Sequence[Path]) -> tuple[Iterator[str], bool, bool]:
    """Read files, or standard input.

    Returns:
        The lines; whether a person types them; whether the next line may come only after an answer.
    """
    from fairseq_phrase.text import decoded_lines, read_lines

    if files:
        is_live = not all(path.is_file() for path in files)
        return chain.from_iterable(map(read_lines, files)), False, is_live
    source = standard_stream("stdin")
    return decoded_lines(source, "standard input"), source.isatty(), not _is_file(source)


def _is_file(stream: BinaryIO) -> bool:
    """Return whether all lines of a stream are already available."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # not a stream of the operating system
        return True


def _count(files: Sequence[Path]) -> int | None:
    """Count the lines of files; None for standard input, which can be read only once."""
    from fairseq_phrase.text import read_lines

    return sum(1 for path in files for _ in read_lines(path)) if files else None


def _write(outputs: Outputs, out: BinaryIO, *, flush: bool) -> None:
    with closing(outputs):
        for _, text in outputs:
            out.write(text)
            if flush:
                out.flush()


def _write_file(
    args: argparse.Namespace,
    key: Key,
    chunks: Chunks,
    predict: Predict,
    skipped: Callable[[int], object],
    participle: str,
) -> None:
    """Write the file of ``--out``, or the file of a part."""
    from fairseq_phrase.inference.output_files import write_outputs

    begun = time.monotonic()
    count, missing = write_outputs(args.out, args.shard, key, chunks, predict, skipped)
    rate = count / (time.monotonic() - begun)
    path = args.shard.path(args.out) if args.shard else args.out
    print(f"{path}: {count} lines {participle}, {rate:.1f} lines/s", file=sys.stderr)
    if missing:
        print(f"{args.out} waits for {', '.join(missing)}", file=sys.stderr)
