"""``fairseq-phrase-plot``: pictures of what a model does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_phrase.cli import run


def _number(text: str) -> int | None:
    return None if text == "mean" else int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairseq-phrase-plot", description="Pictures of what a model does."
    )
    commands = parser.add_subparsers(dest="picture", required=True)
    attention = commands.add_parser(
        "attention",
        help="the PhraseTransformer's two attention matrices for a sentence",
        description="Draw a sentence's attention over all nodes and within phrases, with words and "
        "phrases as labels (the paper's figure 3).",
    )
    attention.add_argument("data", type=Path, help="data directory")
    attention.add_argument("--path", type=Path, required=True, help="checkpoint")
    sentence = attention.add_mutually_exclusive_group(required=True)
    sentence.add_argument("--sentence", help="raw text, parsed as the data were")
    sentence.add_argument("--index", type=int, help="a sentence of --subset, from 0")
    attention.add_argument("--subset", default="test", help="default: test")
    attention.add_argument("--layer", type=_number, help="from 1, or mean (default)")
    attention.add_argument("--head", type=_number, help="from 1, or mean (default)")
    attention.add_argument(
        "--source-parser", help="parse --sentence with this, not the parser that made the data"
    )
    attention.add_argument(
        "--out", type=Path, default=Path("attention.png"), help=".png, .svg, .pdf"
    )
    return parser


def _body(argv: Sequence[str] | None) -> None:
    args = _parser().parse_args(argv)
    # fairseq takes seconds to import: --help and wrong arguments do not wait for it.
    from fairseq_phrase.analysis.attention import attention_picture, plot_attention
    from fairseq_phrase.analysis.checkpoints import dataset_input, load_model, model_input

    model, task = load_model(args.path, args.data, args.source_parser)
    if args.sentence is not None:
        net_input = model_input(task.encode_lines([args.sentence])[0], task)
    else:
        net_input = dataset_input(task, args.subset, args.index)
    picture = attention_picture(model, net_input, task.source_dictionary, args.layer, args.head)
    plot_attention(picture, args.out)
    print(args.out)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    run("fairseq-phrase-plot", _body, argv)


if __name__ == "__main__":
    main()
