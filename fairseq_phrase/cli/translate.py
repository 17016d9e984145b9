"""``fairseq-phrase-translate``: translate raw text."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from fairseq_phrase.cli import CommandParser, command, standard_stream
from fairseq_phrase.cli.arguments import add, loading, positive
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.inference.hypotheses import Hypothesis


class _Parser(CommandParser):
    """Accepts files after options: ``DATA --path CHECKPOINT FILE``."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments whose positions are mixed with options."""
        return self.parse_intermixed_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="fairseq-phrase-translate",
        usage="%(prog)s [DATA] --path CHECKPOINT [FILE ...] [options]\n"
        "       %(prog)s BUNDLE [FILE ...] [options]",
        description="Translate raw text line by line. Lines are cut into words and parsed as the data "
        "were. Translations are detokenized and written to standard output, in order; empty lines stay "
        "empty. A line that is too long for the model is translated in pieces, which a message says.",
    )
    parser.add_argument(
        "inputs", nargs="*", metavar="DATA|BUNDLE|FILE",
        help="the data directory, or a bundle of fairseq-phrase-export instead of it and --path; then "
        "text files in UTF-8, .gz accepted (default: standard input). Without DATA it is the one that "
        "the checkpoint was trained with",
    )  # fmt: skip
    parser.add_argument(
        "--path",
        metavar="CHECKPOINT",
        help="checkpoint or bundle; for an ensemble several, with : between them",
    )
    parser.add_argument("--beam", type=positive, default=5, metavar="N", help="the beam's size")
    parser.add_argument(
        "--nbest", type=positive, default=1, metavar="N",
        help="write the N best translations of each line, one a line",
    )  # fmt: skip
    parser.add_argument(
        "--scores", action="store_true",
        help="write each translation's score and a tab before it: the mean log probability, base 2, of "
        "its subwords",
    )  # fmt: skip
    parser.add_argument(
        "--lenpen", type=float, default=1.0, metavar="X",
        help="divide a translation's score by its length to the power of X",
    )  # fmt: skip
    parser.add_argument(
        "--batch-size", type=positive, default=32, metavar="N", help="sentences in a batch, at most"
    )
    parser.add_argument(
        "--buffer-size", type=positive, default=512, metavar="N",
        help="sort at most N lines by length. The first lines, and those of a pipe or a terminal, do not "
        "wait for so many",
    )  # fmt: skip
    parser.add_argument(
        "--constraints", type=Path, metavar="FILE",
        help="what the translation of each line must have, in any order: a line for each line, with tabs "
        "between several texts, empty for nothing",
    )  # fmt: skip
    parser.add_argument(
        "--prefix", type=Path, metavar="FILE",
        help="how the translation of each line must begin: a line for each line, empty for nothing",
    )  # fmt: skip
    parser.add_argument(
        "--glossary", type=Path, metavar="FILE",
        help="lines of a source term, a tab and its translation. The translation of a line with the term "
        "must have it",
    )  # fmt: skip
    parser.add_argument(
        "--score", type=Path, metavar="FILE",
        help="translate nothing: write the score of each line's translation in this file, one a line",
    )  # fmt: skip
    parser.add_argument(
        "--alignments", action="store_true",
        help="write a tab and pairs 0-0 after each translation, or score of --score: words of the line "
        "to which the decoder attends most, from 0, and words of the translation",
    )  # fmt: skip
    parser.add_argument(
        "--replace-unk", action="store_true",
        help="replace each unknown word of a translation by the word of the line that is aligned to it",
    )  # fmt: skip
    parser.add_argument(
        "--unk-dictionary", type=Path, metavar="FILE",
        help="with --replace-unk: lines of a word and its translation, which is written instead",
    )  # fmt: skip
    add(
        parser,
        "--device",
        "--user-dir",
        "--source-parser",
        "--allow-difference",
        "--strict-identity",
    )
    parser.add_argument(
        "--source-tokenized", action="store_true",
        help="for data of tokenized text: the lines are tokenized in the same way (default: raw text, "
        "which Moses' tokenizer cuts)",
    )  # fmt: skip
    parser.add_argument(
        "--target-tokenized", action="store_true",
        help="for data of tokenized text: leave the translations tokenized",
    )  # fmt: skip
    return parser


@command(_parser)
def main(args: argparse.Namespace) -> None:
    """Run the command."""
    if args.score and (args.nbest > 1 or args.constraints or args.prefix or args.glossary):
        raise UserError("--score scores given translations: leave the options of a search out")
    if args.unk_dictionary and not args.replace_unk:
        raise UserError("--unk-dictionary goes with --replace-unk")
    path, data, files = _sorted(args.inputs, args.path)
    out = standard_stream("stdout")
    from tqdm import tqdm

    from fairseq_phrase.text import decoded_lines, read_lines

    typed, live = False, not all(path.is_file() for path in files)
    lines: Iterator[str] = chain.from_iterable(map(read_lines, files))
    if not files:
        source = standard_stream("stdin")
        lines = decoded_lines(source, "standard input")
        typed, live = source.isatty(), not _is_file(source)
    is_shown, total = not typed and sys.stderr.isatty(), None
    # Lines are counted by reading them, which a pipe allows only once.
    if is_shown and files and not live:
        total = sum(1 for path in files for _ in read_lines(path))
    from fairseq_phrase.inference.translator import load

    model = load(
        path,
        data,
        source_tokenized=args.source_tokenized,
        target_tokenized=args.target_tokenized,
        **loading(args),
    )
    hypotheses = model.hypotheses(
        lines,
        beam=args.beam,
        nbest=args.nbest,
        lenpen=args.lenpen,
        batch_size=args.batch_size,
        buffer_size=args.buffer_size,
        live=live,
        constraints=args.constraints,
        prefix=args.prefix,
        glossary=args.glossary,
        target=args.score,
        alignments=args.alignments,
        replace_unk=args.unk_dictionary or args.replace_unk,
    )
    with closing(hypotheses):
        for found in tqdm(
            hypotheses, desc="translating", total=total, unit="line", disable=not is_shown
        ):
            for hypothesis in found:
                out.write(_written(hypothesis, args))
            if live:
                out.flush()
    out.flush()


def _written(hypothesis: Hypothesis, args: argparse.Namespace) -> bytes:
    """Return the line of a hypothesis."""
    columns = [] if args.score else [hypothesis.text]
    if args.scores or args.score:
        columns.insert(0, "" if hypothesis.score is None else f"{hypothesis.score:.4f}")
    if args.alignments:
        columns.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return ("\t".join(columns) + "\n").encode()


def _is_file(stream: BinaryIO) -> bool:
    """Return whether all lines of a stream are there already."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:  # not a stream of the operating system
        return True


def _sorted(inputs: list[str], path: str | None) -> tuple[str, str | None, list[Path]]:
    """Find out which of the inputs is the data directory or the bundle.

    Returns:
        The models, the data directory or None, and the text files.

    Raises:
        UserError: nothing names a model.
    """
    first = inputs[0] if inputs else ""
    named_folder = bool(first) and Path(first.split(":")[0]).is_dir()
    if path is not None:
        data = first if named_folder else None
        return path, data, [Path(name) for name in inputs[named_folder:]]
    if not named_folder:
        raise UserError("no model: give --path CHECKPOINT, or a bundle of fairseq-phrase-export")
    return first, None, [Path(name) for name in inputs[1:]]


if __name__ == "__main__":
    main()
