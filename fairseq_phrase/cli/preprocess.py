"""``fairseq-phrase-preprocess``: make a fairseq data directory with parses from raw text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_phrase.cli.arguments import (
    KEPT,
    add,
    engine_of,
    in_range,
    model_of,
    positive,
    require_parsers,
    seed,
)
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import LABELLED, NORMAL_FORMS, ON_ERROR

if TYPE_CHECKING:
    from fairseq_phrase.data.preprocessing.options import Options, SplitCounts
    from fairseq_phrase.parsers.pipeline import ParsingOptions


def _coverage(text: str) -> float:
    # SentencePiece's own bounds
    return in_range(text, float, 0.98, 1, "a number from 0.98 to 1")


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-preprocess",
        description="Make a data directory for fairseq-train from raw parallel text, with parses of the "
        "source side, or from text of one language.",
    )
    text = parser.add_argument_group("text")
    # fmt: off
    text.add_argument("-s", "--source-lang", required=True, metavar="LANG",
        help="the source's suffix, such as de")
    text.add_argument("-t", "--target-lang", metavar="LANG", help="the target's suffix, such as en")
    text.add_argument("--only-source", action="store_true",
        help="text of one language, for --task syntax_pretraining; blank lines are kept: they separate "
        "documents")
    text.add_argument("--trainpref", metavar="PREF",
        help="training text PREF.LANG or PREF.LANG.gz; parts of it, separated by commas, become train, "
        "train1, …, which fairseq-train joins")
    text.add_argument("--validpref", metavar="PREF", help="validation texts, separated by commas")
    text.add_argument("--testpref", metavar="PREF",
        help="test texts, separated by commas; the target may be missing")
    text.add_argument("--destdir", type=Path, default=Path("data-bin"), metavar="DIR",
        help="the data directory to make")
    text.add_argument("--max-length", type=positive, default=1023, metavar="N",
        help="leave out training and validation pairs with more subwords than this on a side")
    text.add_argument("--labels", choices=LABELLED,
        help="the target side has labels, not text: one for each word of the source (words are "
        "separated by white space), or one for each line; for --task syntax_labelling")
    text.add_argument("--strict", action="store_true",
        help="stop at an empty or too long pair instead, and if another parser made the labels that are "
        "reused")
    syntax = parser.add_argument_group("syntax")
    add(syntax, "--parser", "--constituents")
    syntax.add_argument("--parse", choices=("source", "target", "both"), default="source",
        help="which side to parse")
    syntax.add_argument("--target-parser", metavar="PARSER",
        help="the target's parser; by default --parser for both sides, if it is a file of parses or "
        "none")
    syntax.add_argument("--source-tokenized", action="store_true",
        help="the source is already split at white space; Moses' escapes (&apos; @-@) are kept, "
        "but the parser gets the original characters")
    syntax.add_argument("--target-tokenized", action="store_true",
        help="the target is already split, too")
    syntax.add_argument("--on-error", choices=ON_ERROR, default="stop",
        help="for a line without a parse: stop; leave the pair out and count it (but test sets keep "
        "every line); or give it a flat tree and count it")
    add(syntax, "--max-flat", "--list-left-out")
    subwords = parser.add_argument_group("subwords")
    subwords.add_argument("--bpe", default="sentencepiece",
        help="the kind of subword model: sentencepiece, subword_nmt, or that of an installed package; "
        "none: words stay whole; huggingface:FOLDER: the tokenizer of a model of transformers, whose "
        "vocabulary is the source's dictionary (the target is split by SentencePiece, or with "
        "--joined-dictionary by the same tokenizer); gpt2:FOLDER: GPT-2's BPE (encoder.json, "
        "vocab.bpe)")
    subwords.add_argument("--min-count", type=positive, default=1, metavar="N",
        help="words or subwords that occur less often in training become <unk>")
    add(subwords, "--sentencepiece-model",
        help="use this model; without it, one is trained on both sides of the training text")
    add(subwords, "--bpe-codes",
        help="subword-nmt's codes, for --bpe subword_nmt (on tokenized text); or the model of an "
        "installed package's --bpe")
    subwords.add_argument("--vocab-size", type=positive, metavar="N",
        help="vocabulary size of SentencePiece (default: 8000, or less if the text is too small)")
    subwords.add_argument("--sentencepiece-lines", type=positive, default=2_000_000, metavar="N",
        help="if both sides together have more than N lines, train SentencePiece on a sample of N lines; "
        "a million lines take about 1.5 GB of memory")
    subwords.add_argument("--normal-form", choices=NORMAL_FORMS, default="identity",
        help="the form of text in the SentencePiece model that is trained, by SentencePiece's names. A "
        "model can only write text in its form: identity keeps every character; nmt_nfkc makes spaces "
        "of Persian's zero-width non-joiners and two characters of Thai's sara am")
    subwords.add_argument("--character-coverage", type=_coverage, default=1.0, metavar="SHARE",
        help="the share of the text's characters that get subwords, such as 0.9995 for Chinese; the "
        "rarest get none")
    subwords.add_argument("--byte-fallback", action="store_true",
        help="write characters that have no subwords as bytes (256 entries more); translate with --bpe "
        "syntax then, as fairseq's --remove-bpe does not join bytes")
    subwords.add_argument("--joined-dictionary", action="store_true",
        help="one dictionary for both languages")
    subwords.add_argument("--copy-words", type=positive, default=0, metavar="N",
        help="unknown source words get N numbered slots in the dictionary, in their order in each "
        "sentence, and the target's equal words the same slots: models with --copy can then translate "
        "words that they do not know (needs --joined-dictionary)")
    subwords.add_argument("--srcdict", type=Path, metavar="FILE", help="reuse this dictionary")
    subwords.add_argument("--tgtdict", type=Path, metavar="FILE", help="reuse this dictionary")
    add(subwords, "--protected-tokens", "--labeldict", "--allow-difference")
    work = parser.add_argument_group("work")
    add(work, "--workers", "--engine", "--ray-address")
    work.add_argument("--parts", type=positive, default=1, metavar="N",
        help="divide the training text among N data directories with one dictionary, DESTDIR/data1, "
        "DESTDIR/data2, …, for fairseq-train DESTDIR/data1:DESTDIR/data2:…, which then reads one in each "
        "epoch; a run that is stopped continues after the last part that is written")
    work.add_argument("--seed", type=seed, default=1,
        help="seed of SentencePiece's training and its sample of lines")
    return parser


@command(make_parser, results=KEPT)
def main(namespace: argparse.Namespace) -> None:
    args = vars(namespace)
    prefixes = [args.pop(f"{name}pref") for name in ("train", "valid", "test")]
    if not any(prefixes):
        raise UserError("nothing to do: give --trainpref, --validpref or --testpref")
    if args.pop("only_source"):
        refused = ["target_lang", "labels", *_OF_TARGET_TEXT, "target_parser", "tgtdict"]
        _refuse(args, refused, "with --only-source there is one language, the source")
    elif args["target_lang"] is None:
        raise UserError("give --target-lang, or --only-source for text of one language")
    if args["protected"] and (args["target_lang"] is None or args["labels"] == "word"):
        raise UserError("--protected-tokens is for translation, and for labels of sentences")
    if args["labels"] is not None:
        _refuse(args, _OF_TARGET_TEXT, "the target side has labels (--labels), not text")
        # Words with labels are separated by white space.
        args["source_tokenized"] |= args["labels"] == "word"
    parsing = _parsing(args)
    form, coverage, fallback = (
        args.pop(name) for name in ("normal_form", "character_coverage", "byte_fallback")
    )
    bpe_model, engine = model_of(args), engine_of(args)
    # Imported here, because each parsing process imports this file and does not need fairseq.
    from fairseq_phrase.data.preprocessing.options import CharacterOptions, Options, splits_of
    from fairseq_phrase.data.preprocessing.preprocess import preprocess

    splits = dict(splits_of(*prefixes))
    if args["parts"] > 1 and "train" not in splits:
        raise UserError("--parts divides the training text: give --trainpref")
    options = Options(
        directory=args.pop("destdir"), splits=splits, parsing=parsing, bpe_model=bpe_model,
        engine=engine, characters=CharacterOptions(form, coverage, fallback), **args,
    )  # fmt: skip
    for name, counts in preprocess(options).items():
        print(f"{name}: {summary_line(options, counts)}")
    for language, side in parsing.items():
        if side.parser == "none":
            print(
                f"no trees of {language}: --parser none (the default) splits words and parses nothing"
            )
    print(f"wrote {':'.join(str(options.directory / folder) for folder in options.folders)}")


_OF_TARGET_TEXT = ["parse", "target_tokenized", "joined_dictionary"]


def _refuse(args: dict[str, Any], options: list[str], why: str) -> None:
    for option in options:
        if args[option] != make_parser().get_default(option):
            value = "" if args[option] is True else f" {args[option]}"
            raise UserError(f"--{option.replace('_', '-')}{value}: {why}")


def _parsing(args: dict[str, Any]) -> dict[str, ParsingOptions]:
    """Get the options of parsing by language from the arguments, and remove them from the arguments."""
    from fairseq_phrase.parsers import load_parser
    from fairseq_phrase.parsers.pipeline import ParsingOptions

    sides, constituents = args.pop("parse"), args.pop("constituents")
    parsers = {"source": args.pop("parser"), "target": args.pop("target_parser")}
    tokenized = {side: args.pop(f"{side}_tokenized") for side in ("source", "target")}
    if sides == "source" and parsers["target"] is not None:
        raise UserError(
            "--target-parser needs --parse both or --parse target: the target is not parsed"
        )
    if sides == "target" and parsers["target"] is not None and parsers["source"] != "none":
        raise UserError("--parse target: give --parser or --target-parser, not both")
    if sides == "target" and tokenized["source"]:
        raise UserError("--source-tokenized has no effect if the source is not parsed")
    if parsers["target"] is None:
        parsers["target"] = parsers["source"]
        if sides == "both" and not load_parser(parsers["source"]).any_language:
            raise UserError(
                f"--parse both: --parser {parsers['source']} parses the {args['source_lang']} side; "
                f"name the parser of the {args['target_lang']} side with --target-parser"
            )
    require_parsers(*(parsers[side] for side in parsers if sides in (side, "both")))
    for side, parser in parsers.items():
        # Its words are separated by white space in any case, and followed by their labels.
        tokenized[side] &= parser.partition(":")[0] != "factored"
    return {
        args[f"{side}_lang"]: ParsingOptions(parsers[side], constituents, tokenized[side])
        for side in ("source", "target")
        if sides in (side, "both")
    }


def summary_line(options: Options, counts: SplitCounts) -> str:
    """Summarize a split's result in one line."""
    parts = [f"{counts.kept} {'sentences' if options.labels else 'sentence pairs'}"]
    empty = counts.empty
    if options.target_lang is None:
        parts, empty = [f"{counts.kept - empty} sentences"], 0
        if counts.empty:
            parts.append(f"{counts.empty} blank lines between documents")
    elif options.languages[-1] not in counts.subwords:
        parts = [f"{counts.kept} sentences without a target"]
    for language in options.parsing:
        parts += counts.described(language)
    if options.labels is not None:
        labels = counts.subwords[options.languages[1]]
        unknown = f", {counts.unknown_labels} unknown in training" if counts.unknown_labels else ""
        parts.append(f"{labels} labels{unknown}")
    texts = options.languages[:1] if options.labels else options.languages
    if lacking := [f"{counts.unknown[name]} of {name}" for name in texts if counts.unknown[name]]:
        parts.append(f"lines with unknown subwords: {', '.join(lacking)}")
    kinds = {"empty": empty, "too long": counts.too_long, "without a parse": counts.skipped}
    if left_out := [f"{number} {kind}" for kind, number in kinds.items() if number]:
        parts.append(f"left out: {', '.join(left_out)}")
    return "; ".join(parts)
