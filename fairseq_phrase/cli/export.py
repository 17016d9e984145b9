"""``fairseq-phrase-export``: write a trained model in a form that can be shared."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli.arguments import add, loading
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-export",
        description="Write one folder with what translation needs: weights as safetensors, "
        "dictionaries, the subword model, the parser's name and the configuration. No file in it can "
        "run code. fairseq-phrase-translate and fairseq_phrase.load take it. --to writes the model for "
        "another library.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="fairseq checkpoint")
    parser.add_argument("data", metavar="DATA", help="its data directory")
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to make")
    # fmt: off
    add(parser, "--source-parser",
        help="later parse with this parser instead of the one that made the data, such as spacy:MODEL")
    add(parser, "--allow-difference", "--strict-identity", "--user-dir")
    parser.add_argument("--license", metavar="ID",
        help="the licence in the model card's metadata, such as mit or cc-by-4.0")
    parser.add_argument("--datasets", metavar="NAME,…", default="",
        help="the training data in the model card")
    parser.add_argument("--to", choices=("bundle", "transformers", "ctranslate2"), default="bundle",
        help="bundle; transformers, a bundle with code for AutoModelForSeq2SeqLM.from_pretrained, which "
        "needs this package; or ctranslate2, for fairseq's Transformer, also with relative positions in "
        "the sentence and source factors")
    parser.add_argument("--quantization", metavar="TYPE",
        help="type of the weights for --to ctranslate2, such as int8 or float16 (default: float32)")
    return parser


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    if args.quantization is not None and args.to != "ctranslate2":
        raise UserError("--quantization needs --to ctranslate2")
    if (args.license or args.datasets) and args.to == "ctranslate2":
        raise UserError("--to ctranslate2 writes no model card: leave its options out")
    read_by = _exported(args)
    size = sum(path.stat().st_size for path in args.out.iterdir())
    print(f"wrote {args.out} ({size / 1e6:.1f} MB), for {read_by}")


def _exported(args: argparse.Namespace) -> str:
    """Export the checkpoint; returns the name of the class or function that loads the folder."""
    options = loading(args)
    parser = options.pop("source_parser")
    if args.to == "ctranslate2":
        from fairseq_phrase.inference.exports import export_ctranslate2

        export_ctranslate2(args.checkpoint, args.data, args.out, args.quantization, **options)
        return "ctranslate2.Translator"
    from fairseq_phrase.inference.model_card import CardOptions

    datasets = [name.strip() for name in args.datasets.split(",") if name.strip()]
    card = CardOptions(args.license, datasets)
    if args.to == "transformers":
        from fairseq_phrase.inference.exports import export_transformers

        export_transformers(args.checkpoint, args.data, args.out, parser, card, **options)
        return "transformers' AutoModelForSeq2SeqLM"
    from fairseq_phrase.inference.bundle import new_folder, write_bundle

    with new_folder(args.out) as folder:
        write_bundle(args.checkpoint, args.data, folder, parser, card, **options)
    return "fairseq-phrase-translate and fairseq_phrase.load"
