"""``fairseq-phrase-attach``: parses for a data directory that fairseq-preprocess made."""

from __future__ import annotations

import argparse

from fairseq_phrase.cli.arguments import KEPT, add, engine_of, model_of, require_parsers
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import ON_ERROR, SUBWORD_MODELS, WHOLE_WORDS

# Text that is already binarized keeps all its lines, so no line can be skipped.
_ON_ERROR = tuple(choice for choice in ON_ERROR if choice != "skip")


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-attach",
        description="Add parses to a data directory that fairseq-preprocess made. The input is the "
        "subword text that was binarized. Existing files are not changed.",
    )
    add(parser, "data")
    text = parser.add_argument_group("text")
    # fmt: off
    text.add_argument("-s", "--source-lang", required=True, metavar="LANG",
        help="the source's suffix, such as de")
    text.add_argument("-t", "--target-lang", required=True, metavar="LANG",
        help="the target's suffix, such as en")
    text.add_argument("--lang", metavar="LANG", help="the language to parse, by default the source")
    text.add_argument("--trainpref", metavar="PREF",
        help="the subword text that was binarized, PREF.LANG or PREF.LANG.gz")
    text.add_argument("--validpref", metavar="PREF", help="validation texts, separated by commas")
    text.add_argument("--testpref", metavar="PREF", help="test texts, separated by commas")
    subwords = parser.add_argument_group("subwords")
    subwords.add_argument("--bpe", required=True,
        help="what split the text into subwords: subword_nmt (or fastBPE: words at white space, @@ "
        "between their subwords); sentencepiece (whole lines with ▁ for spaces); gpt2:FOLDER "
        "(whole lines of numbers; the folder has GPT-2's encoder.json and vocab.bpe); or none, if the "
        "words are whole")
    for model in ("--sentencepiece-model", "--bpe-codes"):
        add(subwords, model,
            help="what split the text: copied into DATA, to split new lines in fairseq-interactive")
    add(subwords, "--protected-tokens")
    syntax = parser.add_argument_group("syntax")
    add(syntax, "--parser", "--constituents")
    syntax.add_argument("--on-error", choices=_ON_ERROR, default="stop",
        help="for a line without a parse: stop, or give it a flat tree and count it")
    add(syntax, "--max-flat", "--list-left-out")
    add(syntax, "--labeldict")
    add(subwords, "--allow-difference")
    syntax.add_argument("--strict", action="store_true",
        help="stop if the parser's version differs from that of the splits that are kept")
    add(parser.add_argument_group("work"), "--workers", "--engine", "--ray-address")
    return parser


@command(make_parser, results=KEPT)
def main(namespace: argparse.Namespace) -> None:
    args = vars(namespace)
    prefixes = [args.pop(f"{name}pref") for name in ("train", "valid", "test")]
    if not any(prefixes):
        raise UserError("nothing to do: give --trainpref, --validpref or --testpref")
    directory, language = args.pop("data"), args.pop("lang") or args["source_lang"]
    if language not in (args["source_lang"], args["target_lang"]):
        raise UserError(f"--lang {language} is neither the source language nor the target language")
    kinds = (*SUBWORD_MODELS, WHOLE_WORDS)
    if args["bpe"] not in kinds and not args["bpe"].startswith("gpt2:"):
        raise UserError(f"--bpe {args['bpe']}: expected one of {', '.join(kinds)} or gpt2:FOLDER")
    require_parsers(args["parser"])
    bpe_model, engine = model_of(args), engine_of(args)
    # Imported here, because each parsing process imports this file and does not need fairseq.
    from fairseq_phrase.data.preprocessing.attach import attach
    from fairseq_phrase.data.preprocessing.options import Options, splits_of
    from fairseq_phrase.parsers.pipeline import ParsingOptions

    parser, constituents = args.pop("parser"), args.pop("constituents")
    tokenized = args["bpe"] in ("subword_nmt", WHOLE_WORDS)
    attached = attach(
        Options(
            directory=directory,
            splits=dict(splits_of(*prefixes)),
            parsing={language: ParsingOptions(parser, constituents, tokenized)},
            is_segmented=True,
            bpe_model=bpe_model,
            engine=engine,
            **args,
        )
    )
    for name, counts in attached.splits.items():
        print(f"{name}: {'; '.join([f'{counts.kept} sentences', *counts.described(language)])}")
    for name, labels in attached.unknown_labels.items():
        print(f"{name} that other splits do not have, unknown here: {', '.join(labels)}")
    if args["bpe"] != WHOLE_WORDS and not attached.bpe_model:
        print(
            f"{directory} has no subword model, so new text cannot be translated: give --bpe-codes or "
            "--sentencepiece-model, or --bpe none if the words are whole"
        )
    if attached.without_parses:
        print(f"without parses: {', '.join(attached.without_parses)}")
    parses = "words, but no trees (--parser none)," if parser == "none" else "parses"
    print(f"added {parses} of {language} to {directory}")
