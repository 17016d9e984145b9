"""``fairseq-phrase-demo``: a web page that shows trained models' translations, trees and attention."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fairseq_phrase.cli.arguments import add, loading, positive, require_parsers
from fairseq_phrase.cli.command import CommandParser, command
from fairseq_phrase.errors import UserError
from fairseq_phrase.text import named_path


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="fairseq-phrase-demo",
        description="Serve a web page on this machine. It translates a sentence with each model, and "
        "shows its dependency tree and constituents, the phrases, and the attention on them by layer "
        "and head. The tree can be edited, so that one sees what syntax changes. The page needs no "
        "internet.",
    )
    # fmt: off
    parser.add_argument("models", nargs="+", metavar="[NAME=]CHECKPOINT|BUNDLE",
        help="trained models to show side by side")
    add(parser, "--data", "--source-parser", "--allow-difference", "--strict-identity")
    add(parser, "--device", "--user-dir")
    parser.add_argument("--host", default="127.0.0.1",
        help="the address to bind to; 0.0.0.0 lets every machine of the network use the page")
    parser.add_argument("--port", type=positive, default=8008, metavar="N", help="the port")
    return parser


def named_paths(arguments: Sequence[str]) -> dict[str, str]:
    """Read ``[NAME=]PATH`` arguments.

    Returns:
        The paths by name. The default name of a model is its folder's name, or the name of the row above
        a folder ``seedN``.

    Raises:
        UserError: two models have one name.
    """
    paths: dict[str, str] = {}
    for argument in arguments:
        name, path = named_path(argument)
        resolved = path.resolve()
        folder = resolved.parent if resolved.is_file() else resolved
        folder = folder.parent if folder.name.startswith("seed") else folder
        name = name or folder.name
        if name in paths:
            raise UserError(f"two models are named '{name}': name them, NAME={path}")
        paths[name] = str(path)
    return paths


@command(make_parser)
def main(args: argparse.Namespace) -> None:
    paths = named_paths(args.models)
    require_parsers(args.source_parser)
    # FastAPI and fairseq take seconds to import; --help and wrong arguments do not need them.
    from fairseq_phrase.inference.translator import load
    from fairseq_phrase.lab.demo.answers import example_of
    from fairseq_phrase.lab.demo.server import make_app

    options = loading(args)
    models = {name: load(path, args.data, **options) for name, path in paths.items()}
    for model in models.values():
        model.parse(
            [example_of(model) or "."]
        )  # a missing parser is an error here, not on the page
    local = args.host in ("127.0.0.1", "localhost")
    app = make_app(models, hosts=("127.0.0.1", "localhost") if local else ("*",))
    import uvicorn

    print(f"http://{args.host}:{args.port} (Ctrl-C stops)", flush=True)
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning")
