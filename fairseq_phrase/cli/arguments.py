"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_phrase.choices import CONSTITUENTS, ENGINES
from fairseq_phrase.errors import UserError

if TYPE_CHECKING:
    from fairseq_phrase.corpus.engines import EngineOptions

#: The message of a command that parses after Ctrl-C.
KEPT = "what is parsed so far is kept, and the next run goes on from there"


def positive(text: str) -> int:
    """Read a number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, not {text}")
    return number


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 1, not {text}")
    return number


def add_parser(group: Any) -> None:
    """Add ``--parser`` and ``--constituents`` to an argument parser or group."""
    group.add_argument(
        "--parser", default="none",
        help="spacy:MODEL (an installed pipeline or a folder), stanza:LANG[@DIR] (a language's models, "
        "in a folder), conllu[:surface] or ptb (files PREF.LANG.conllu, PREF.LANG.ptb), none (words at "
        "white space, for models that need no tree), or another package's parser (docs/parsers.md)",
    )  # fmt: skip
    group.add_argument(
        "--constituents", choices=CONSTITUENTS, default="parser",
        help="source of constituents: the parser, if it makes any; its dependency trees; or none",
    )  # fmt: skip


def add_max_flat(group: Any) -> None:
    """Add ``--max-flat`` to an argument parser or group."""
    group.add_argument(
        "--max-flat", type=share, default=0.05, metavar="SHARE",
        help="stop when more than this share of a text's lines get flat trees, 1 to allow all "
        "(default: 0.05)",
    )  # fmt: skip


def add_engine(group: Any) -> None:
    """Add ``--workers``, ``--engine`` and ``--ray-address`` to an argument parser or group."""
    group.add_argument(
        "--workers", type=positive, default=1, metavar="N", help="processes, or Ray actors"
    )
    group.add_argument(
        "--engine",
        choices=ENGINES,
        default="processes",
        help="where the parsing processes run; ray needs the extra [ray]",
    )
    group.add_argument(
        "--ray-address", metavar="ADDRESS",
        help="the cluster's address (auto, ray://HOST:PORT); by default Ray starts on this machine",
    )  # fmt: skip


def engine_of(args: dict[str, Any]) -> EngineOptions:
    """Get the engine from the arguments, and remove it from them.

    Raises:
        UserError: the options contradict one another.
    """
    from fairseq_phrase.corpus.engines import EngineOptions

    options = EngineOptions(args.pop("engine"), args.pop("workers"), args.pop("ray_address"))
    if options.ray_address is not None and options.name != "ray":
        raise UserError("--ray-address goes with --engine ray")
    return options


def add_device(group: Any) -> None:
    """Add ``--device`` to an argument parser or group."""
    group.add_argument(
        "--device", help="cpu, cuda, cuda:1 and so on (default: a GPU if there is one)"
    )


def add_user_dir(group: Any) -> None:
    """Add ``--user-dir`` to an argument parser or group."""
    group.add_argument(
        "--user-dir", metavar="DIR",
        help="the folder of your own tasks and models, as for fairseq-train",
    )  # fmt: skip


def load_user_dir(args: Any) -> None:
    """Import the tasks and models of ``--user-dir``, and ours before them.

    Raises:
        UserError: the folder is missing.
    """
    if args.user_dir is None:
        return
    if not Path(args.user_dir).is_dir():
        raise UserError(f"--user-dir {args.user_dir}: there is no such folder")
    from fairseq.utils import import_user_module

    import fairseq_phrase

    fairseq_phrase.register()
    import_user_module(args)


def add_data(group: Any) -> None:
    """Add ``--data`` to an argument parser or group, for commands that begin with checkpoints."""
    group.add_argument(
        "--data", type=Path, metavar="DIR",
        help="the checkpoints' data directory (default: the one that each was trained with)",
    )  # fmt: skip


def add_max_tokens(group: Any, default: int | None = 4000, of_default: str = "") -> None:
    """Add ``--max-tokens`` to an argument parser or group.

    Args:
        group: the parser or group.
        default: its default.
        of_default: what to say of the default in the help.
    """
    group.add_argument(
        "--max-tokens",
        type=positive,
        default=default,
        metavar="N",
        help=f"tokens in a batch, at most{of_default}",
    )


def add_source_parser(group: Any, what: str = "parse") -> None:
    """Add ``--source-parser`` to an argument parser or group.

    Args:
        group: the parser or group.
        what: what the parser does, for the help.
    """
    group.add_argument(
        "--source-parser", metavar="PARSER",
        help=f"{what} with this parser instead of the one that made the data, such as spacy:MODEL",
    )  # fmt: skip


def add_allowed(group: Any) -> None:
    """Add ``--allow-difference`` to an argument parser or group."""
    group.add_argument(
        "--allow-difference", metavar="NAME,...",
        help="entries of the identity record that may differ (docs/identity.md)",
    )  # fmt: skip


def add_identity(group: Any) -> None:
    """Add ``--allow-difference`` and ``--strict-identity`` to an argument parser or group."""
    add_allowed(group)
    group.add_argument(
        "--strict-identity", action="store_true",
        help="also stop if the parser or the source of trees differs from the training's",
    )  # fmt: skip


def identity_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of :func:`add_identity`, as models are loaded with them."""
    return {name: getattr(args, name) for name in ("allow_difference", "strict_identity")}


def add_references(group: Any) -> None:
    """Add ``--reference`` and ``--subset`` to an argument parser or group."""
    group.add_argument(
        "--reference", action="append", required=True, metavar="[SUBSET=]FILE",
        help="raw text, .gz accepted; for several test sets once each: --reference test=FILE "
        "--reference test1=FILE, by fairseq's names of them",
    )  # fmt: skip
    group.add_argument(
        "--subset", default="test", metavar="SUBSET",
        help="the test set's name in fairseq, if --reference does not have it",
    )  # fmt: skip


def add_labels(group: Any, default: str) -> None:
    """Add ``--labeldict`` to an argument parser or group.

    Args:
        group: the parser or group.
        default: what happens without the option, for the help.
    """
    group.add_argument(
        "--labeldict", type=Path, metavar="DIR",
        help="reuse the dictionaries of labels (dict.deprel.txt, dict.tag.txt, dict.constituent.txt) of "
        f"this data directory; {default}",
    )  # fmt: skip


#: The option that names the subword model, by ``--bpe``.
_MODELS = {"sentencepiece": "--sentencepiece-model", "subword_nmt": "--bpe-codes"}


def add_models(group: Any, sentencepiece: str, codes: str) -> None:
    """Add ``--sentencepiece-model`` and ``--bpe-codes`` to an argument parser or group.

    Args:
        group: the parser or group.
        sentencepiece: the help of ``--sentencepiece-model``.
        codes: the help of ``--bpe-codes``.
    """
    for option, text in (("--sentencepiece-model", sentencepiece), ("--bpe-codes", codes)):
        group.add_argument(option, type=Path, metavar="FILE", help=text)


def model_of(args: dict[str, Any]) -> Path | None:
    """Get the subword model from the arguments, and remove it from them; ``bpe`` stays.

    Raises:
        UserError: the model's kind is not that of ``--bpe``.
    """
    given = {bpe: args.pop(option[2:].replace("-", "_")) for bpe, option in _MODELS.items()}
    for bpe, model in given.items():
        if model is not None and bpe != args["bpe"]:
            raise UserError(f"{_MODELS[bpe]} goes with --bpe {bpe}")
    return given.get(args["bpe"])
