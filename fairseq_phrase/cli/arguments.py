"""Options that several commands share."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from fairseq_phrase.errors import UserError
from fairseq_phrase.option_values import CONSTITUENTS, ENGINES, WHOLE_WORDS

if TYPE_CHECKING:
    from fairseq_phrase.data.preprocessing.engines import EngineOptions

#: The message of a command that parses after Ctrl-C.
KEPT = "what is parsed so far is kept, and the next run goes on from there"

_Number = TypeVar("_Number", int, float)


def in_range(
    text: str, read: Callable[[str], _Number], lowest: float, highest: float, expected: str
) -> _Number:
    """Read a number from ``lowest`` to ``highest``; ``expected`` describes it for the message."""
    with suppress(ValueError):
        if lowest <= (number := read(text)) <= highest:
            return number
    raise argparse.ArgumentTypeError(f"expected {expected}, not {text}")


def positive(text: str) -> int:
    """Read a number of 1 or more."""
    return in_range(text, int, 1, math.inf, "a positive number")


def seed(text: str) -> int:
    """Read a seed that NumPy and SentencePiece take."""
    return in_range(text, int, 0, 2**32 - 1, f"a number from 0 to {2**32 - 1}")


def number_or(*words: str, least: int) -> Callable[[str], Any]:
    """Make a function that reads one of two words, or a number of at least ``least``."""

    def read(text: str) -> str | int:
        if text in words:
            return text
        if text.isdecimal() and int(text) >= least:
            return int(text)
        expected = f"expected a number from {least}, {' or '.join(words)}"
        raise argparse.ArgumentTypeError(f"{expected}, not {text}")

    return read


def protected(text: str) -> tuple[str, ...]:
    """Read protected tokens: a file of them, or their names separated by commas."""
    from fairseq_phrase.data.store.dictionaries import SPECIAL
    from fairseq_phrase.text import read_lines

    path = Path(text)
    if re.fullmatch(r"[\w ./-]+\.\w+", text) and not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    names = text.split(",")
    if path.is_file():
        try:
            names = " ".join(read_lines(path)).split()
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    if bad := [name for name in names if name.split() != [name] or name in SPECIAL]:
        raise argparse.ArgumentTypeError(
            f"'{bad[0]}' cannot be protected: expected names without white space, and none of "
            f"{' '.join(SPECIAL)}"
        )
    return tuple(dict.fromkeys(names))


def share(text: str) -> float:
    """Read a number from 0 to 1."""
    return in_range(text, float, 0, 1, "a number from 0 to 1")


#: Files that are needed until the command ends.
_MADE: list[TemporaryDirectory[str]] = []

_OPTIONS: dict[str, dict[str, Any]] = {
    "data": {"type": Path, "metavar": "DATA", "help": "the data directory"},
    "--path": {"type": Path, "required": True, "metavar": "CHECKPOINT", "help": "checkpoint"},
    "--parser": {
        "default": "none",
        "help": "spacy:MODEL (an installed pipeline or a folder), stanza:LANG[,surface][@DIR] (a "
        "language's models, in a folder), conllu[:surface][,enhanced], ptb, corenlp[:TREES] or penman "
        "(files PREF.LANG.conllu, .ptb, .json, .penman), factored[:FIELD,...] (labels behind the text's "
        "words), none (words at white space, for models that need no tree), or another package's "
        "parser (docs/parsers.md)"},
    "--constituents": {
        "choices": CONSTITUENTS, "default": "parser",
        "help": "source of constituents: the parser, if it makes any; its dependency trees; or none"},
    "--max-flat": {
        "type": share, "default": 0.05, "metavar": "SHARE",
        "help": "stop when more than this share of a text's lines get flat trees, 1 to allow all"},
    "--list-left-out": {
        "type": Path, "metavar": "FILE",
        "help": "write the file and the number of each line that is left out or has a flat tree, and "
        "why, with tabs between them"},
    "--sentencepiece-model": {"type": Path, "metavar": "FILE"},
    "--bpe-codes": {"type": Path, "metavar": "FILE"},
    "--protected-tokens": {
        "type": protected, "default": (), "dest": "protected", "metavar": "FILE|NAME,...",
        "help": "tokens that are one entry of the dictionary and stand outside of the parsed text, also "
        "without a space, such as language tags (<2de>, [en_XX]), <BT> and inline tags (<g1>): a file "
        "with one per line, or names"},
    "--labeldict": {
        "type": Path, "metavar": "DIR",
        "help": "reuse the dictionaries of labels (dict.deprel.txt, dict.tag.txt, dict.constituent.txt) "
        "of this data directory, by default of the dictionary that is reused or of other parses "
        "in the data directory; labels that they lack become <unk>"},
    "--workers": {
        "type": positive, "default": 1, "metavar": "N", "help": "processes, also of Ray"},
    "--engine": {
        "choices": ENGINES, "default": "processes",
        "help": "where the processes run; ray needs the extra [ray]"},
    "--ray-address": {
        "metavar": "ADDRESS",
        "help": "the cluster's address (auto, ray://HOST:PORT); by default Ray starts on this machine"},
    "--data": {
        "type": Path, "metavar": "DIR",
        "help": "the checkpoints' data directory (default: the one that each was trained with)"},
    "--device": {"help": "cpu, cuda, cuda:1 and so on (default: a GPU if there is one)"},
    "--user-dir": {
        "metavar": "DIR", "help": "the folder of your own tasks and models, as for fairseq-train"},
    "--source-parser": {
        "metavar": "PARSER",
        "help": "parse with this parser instead of the one that made the data, such as spacy:MODEL"},
    "--allow-difference": {
        "metavar": "NAME,...",
        "help": "entries of the identity record that may differ (docs/identity.md)"},
    "--strict-identity": {
        "action": "store_true",
        "help": "also stop if the parser or the source of trees differs from the training's"},
    "--reference": {
        "action": "append", "required": True, "metavar": "[SUBSET=]FILE",
        "help": "raw text, .gz accepted; for several test sets once each: --reference test=FILE "
        "--reference test1=FILE, by fairseq's names of them. Several files of one test set are several "
        "translations of it"},
    "--subset": {"default": "test", "metavar": "SUBSET", "help": "the test set's name in fairseq"},
    "--tokenize": {
        "metavar": "NAME",
        "help": "sacrebleu's tokenizer for BLEU; by default that of the target language, which the "
        "training's log or the ending of the reference's name has: zh, ja-mecab, ko-mecab, 13a for most. "
        "none for references and translations that are already tokenized; an unknown name prints all"},
}  # fmt: skip


def add(group: Any, *names: str, **changes: Any) -> None:
    """Add options that several commands share to an argument parser or group.

    Args:
        changes: arguments for argparse in addition to the shared ones, or instead of them.
    """
    for name in names:
        group.add_argument(name, **(_OPTIONS[name] | changes))


def engine_of(args: dict[str, Any]) -> EngineOptions:
    """Get the engine from the arguments, and remove it from them.

    Raises:
        UserError: the options contradict each other.
    """
    from fairseq_phrase.data.preprocessing.engines import EngineOptions

    options = EngineOptions(args.pop("engine"), args.pop("workers"), args.pop("ray_address"))
    if options.ray_address is not None and options.name != "ray":
        raise UserError("--ray-address needs --engine ray")
    return options


def model_of(args: dict[str, Any]) -> Path | None:
    """Get the subword model from the arguments, and remove it from them; ``bpe`` stays.

    Raises:
        UserError: the model's kind differs from ``--bpe``.
    """
    model: Path | None = args.pop("sentencepiece_model")
    codes: Path | None = args.pop("bpe_codes")
    kind, _, folder = args["bpe"].partition(":")
    if kind == "huggingface":
        from fairseq_phrase.data.subwords.segmenters import tokenizer_file

        # SentencePiece segments the target.
        args["bpe"], args["target_model"] = kind, model
        return tokenizer_file(folder)
    if kind == "gpt2":
        from fairseq_phrase.data.subwords.segmenters import gpt2_file

        args["bpe"] = kind
        _MADE.append(TemporaryDirectory())
        return gpt2_file(Path(folder), Path(_MADE[-1].name) / "tokenizer.json")
    if model is not None and args["bpe"] != "sentencepiece":
        raise UserError("--sentencepiece-model needs --bpe sentencepiece")
    if codes is not None and args["bpe"] in ("sentencepiece", WHOLE_WORDS):
        raise UserError("--bpe-codes needs --bpe subword_nmt, or that of a package")
    return model or codes


def require_parsers(*names: str | None) -> None:
    """Check that parsers are installed, before slow imports and before a model is loaded.

    Args:
        names: values of ``--parser`` or another option; None where it is not given.

    Raises:
        UserError: a parser is unknown or missing.
    """
    from fairseq_phrase.parsers import load_parser

    for name in names:
        if name is not None:
            load_parser(name)


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """Import the tasks and models of ``--user-dir``; return the options for loading models.

    Raises:
        UserError: the folder is missing.
    """
    if "user_dir" in args and args.user_dir is not None:
        if not Path(args.user_dir).is_dir():
            raise UserError(f"--user-dir {args.user_dir}: there is no such folder")
        from fairseq.utils import import_user_module

        import fairseq_phrase

        fairseq_phrase.register()  # our tasks and models come before them
        import_user_module(args)
    names = ("device", "source_parser", "allow_difference", "strict_identity")
    return {name: vars(args)[name] for name in names if name in args}
