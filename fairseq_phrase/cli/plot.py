"""``fairseq-phrase-plot``: pictures of a model's attention."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_phrase.cli.arguments import add, loading, number_or, positive
from fairseq_phrase.cli.command import CommandParser, command

_choice = number_or("mean", "last", least=1)


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-plot", description="Draw pictures of a model's attention."
    )
    commands = parser.add_subparsers(dest="picture", required=True)
    attention = commands.add_parser(
        "attention",
        help="an encoder's attention matrices for a sentence",
        description="Draw a sentence's attention in the encoder, with words as labels: over all nodes "
        "and within phrases for a PhraseTransformer, and the relative positions for a "
        "structural-position Transformer, over tokens and constituents for a tree Transformer. Of a "
        "recurrent translation model, draw the alignment.",
    )
    _add_sentence(attention)
    _add_layer(attention)
    # fmt: off
    attention.add_argument("--head", type=_choice, default="mean", metavar="N",
        help="from 1, last, or mean")
    alignment = commands.add_parser(
        "alignment",
        help="what each word of a translation attends to in the source",
        description="Translate a sentence, and draw the decoder's attention to the source: of a "
        "recurrent decoder, or of a Transformer's last layer, the mean over its heads.",
    )
    _add_sentence(alignment)
    tree = commands.add_parser(
        "tree",
        help="a sentence's tree with the attention that the tree Transformer gives each node",
        description="Draw a sentence's constituents with the attention on each, from all words of the "
        "model's translation.",
    )
    _add_sentence(tree)
    _add_layer(tree)
    tree.add_argument("--encoder", action="store_true",
        help="draw the encoder's attention instead of the decoder's")
    for name, picture in commands.choices.items():
        out = Path(f"{name}.png")
        picture.add_argument("--out", type=Path, default=out, help=".png, .svg or .pdf")
    return parser


def _add_layer(parser: argparse.ArgumentParser) -> None:
    # fmt: off
    parser.add_argument("--layer", type=_choice, default="last", metavar="N",
        help="from 1, last, or mean")


def _add_sentence(parser: argparse.ArgumentParser) -> None:
    add(parser, "data", "--path")
    sentence = parser.add_mutually_exclusive_group(required=True)
    sentence.add_argument("--sentence", help="raw text, parsed in the same way as the data")
    sentence.add_argument("--line", type=positive, metavar="K", help="a line of --subset, from 1")
    add(parser, "--subset", help="the split of --line: test, valid, …")
    add(parser, "--source-parser", "--allow-difference", "--strict-identity", "--user-dir")


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    # Importing fairseq takes seconds; --help and wrong arguments do not need it.
    from fairseq_phrase.checkpoints.loading import load_model
    from fairseq_phrase.inference.source_sentence import dataset_sentence, raw_sentence
    from fairseq_phrase.methods.model_parts import decoder_of

    model, task = load_model(args.path, args.data, **loading(args))
    if args.sentence is not None:
        sentence = raw_sentence(task, args.sentence)
    else:
        sentence = dataset_sentence(task, args.subset, args.line - 1)
    # A recurrent encoder does not attend, but its decoder does. Models that label lack a decoder.
    is_recurrent = getattr(model.encoder, "is_recurrent", False) and decoder_of(model) is not None
    if args.picture == "alignment" or (args.picture == "attention" and is_recurrent):
        from fairseq_phrase.lab.pictures.heat_maps import alignment_picture, plot_alignment

        plot_alignment(alignment_picture(model, task, sentence), args.out)
    elif args.picture == "attention":
        from fairseq_phrase.inference.encoder_maps import attention_picture
        from fairseq_phrase.lab.pictures.heat_maps import plot_attention

        plot_attention(attention_picture(model, sentence, args.layer, args.head), args.out)
    else:
        from fairseq_phrase.lab.pictures.tree_picture import plot_tree, tree_picture

        picture = tree_picture(model, task, sentence, args.layer, args.encoder)
        plot_tree(picture, args.out)
    print(args.out)
