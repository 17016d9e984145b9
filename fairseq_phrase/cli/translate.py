"""``fairseq-phrase-translate``: translate raw text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_phrase.cli.arguments import add, loading, positive, require_parsers
from fairseq_phrase.cli.command import MixedParser, command
from fairseq_phrase.cli.raw_text import add_output, write_output
from fairseq_phrase.errors import UserError
from fairseq_phrase.inference.search_options import SearchOptions

if TYPE_CHECKING:
    from fairseq_phrase.data.store.outputs import Key
    from fairseq_phrase.inference.output_files import Chunks, Outputs
    from fairseq_phrase.inference.search import Hypothesis


def make_parser() -> argparse.ArgumentParser:
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
    parser.add_argument("--beam", type=positive, default=5, metavar="N",
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
    parser.add_argument("--score", type=Path, metavar="FILE",
        help="translate nothing: write the score of each line's translation in this file, one a line")
    parser.add_argument("--alignments", action="store_true",
        help="write a tab and pairs 0-0 after each translation, or score of --score: words of the line "
        "to which the decoder attends most, from 0, and words of the translation")
    parser.add_argument("--replace-unk", action="store_true",
        help="replace each unknown word of a translation by the word of the line that is aligned to it")
    parser.add_argument("--unk-dictionary", type=Path, metavar="FILE",
        help="with --replace-unk: lines of a word and its translation, which is written instead")
    add_output(parser, "translate", "translated")
    add(parser, "--device", "--user-dir")
    add(parser, "--source-parser", "--allow-difference", "--strict-identity")
    parser.add_argument("--source-tokenized", action="store_true",
        help="for data of tokenized text: the lines are tokenized in the same way (default: raw text, "
        "which Moses' tokenizer splits)")
    parser.add_argument("--target-tokenized", action="store_true",
        help="for data of tokenized text: leave the translations tokenized")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.score and args.nbest > 1:
        raise UserError("--score scores the translations of a file: remove --nbest")
    if args.unk_dictionary and not args.replace_unk:
        raise UserError("--unk-dictionary needs --replace-unk")
    args.path, args.data, args.inputs = _model_data_and_texts(args.inputs, args.path)
    values = vars(args) | {"replace_unk": args.unk_dictionary or args.replace_unk}
    search = SearchOptions(**{field.name: values[field.name] for field in fields(SearchOptions)})
    require_parsers(args.source_parser)
    from fairseq_phrase.inference.output_files import output_key
    from fairseq_phrase.inference.translator import load

    options = loading(args)  # it imports --user-dir, whose task the checkpoint may have

    def predict(chunks: Chunks) -> Outputs:
        model = load(
            args.path,
            args.data,
            source_tokenized=args.source_tokenized,
            target_tokenized=args.target_tokenized,
            **options,
        )
        with closing(model.in_chunks(chunks, search)) as translated:
            for chunk in translated:
                lines = (
                    output_line(hypothesis, args)
                    for hypotheses in chunk
                    for hypothesis in hypotheses
                )
                yield len(chunk), "".join(lines).encode()

    def key(parses: Sequence[Path]) -> Key:
        return output_key(vars(args), parses)

    write_output(args, predict, key, ("translating", "translated"), target=args.score)


def output_line(hypothesis: Hypothesis, args: argparse.Namespace) -> str:
    """Write a hypothesis as a line, in the columns that the options ask for."""
    columns = [] if args.score else [hypothesis.text]
    if args.scores or args.score:
        columns.insert(0, "" if hypothesis.score is None else f"{hypothesis.score:.4f}")
    if args.alignments:
        columns.append(" ".join(f"{source}-{target}" for source, target in hypothesis.alignment))
    return "\t".join(columns) + "\n"


def _model_data_and_texts(
    inputs: list[str], path: str | None
) -> tuple[str, str | None, list[Path]]:
    """Divide the inputs: a data directory or a bundle comes first, and then text files.

    Returns:
        The models, the data directory or None, and the text files.
    """
    first = inputs[0] if inputs else ""
    folder = Path(first.split(":")[0])
    begins_with_folder = bool(first) and folder.is_dir()
    is_bundle = (folder / "config.json").is_file()
    if path is not None:
        if not begins_with_folder:
            return path, None, [Path(name) for name in inputs]
        if is_bundle:
            raise UserError(
                f"{folder} is a bundle, which has its own model: leave out --path, or give the data "
                f"directory of {path} instead of the bundle"
            )
        return path, first, [Path(name) for name in inputs[1:]]
    if not begins_with_folder:
        missing = f"no model, and {first} is no folder" if first else "no model"
        raise UserError(f"{missing}: give --path CHECKPOINT, or a bundle of fairseq-phrase-export")
    if any(folder.glob("dict.*txt")) and not is_bundle:
        raise UserError(
            f"{folder} is a data directory: name the model, too, with --path CHECKPOINT"
        )
    return first, None, [Path(name) for name in inputs[1:]]
