"""The parsers that ``--parser`` names: those of this project, and those of installed packages."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.optional_packages import load_entry
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.corenlp import CoreNlpFiles
from fairseq_phrase.parsers.interfaces import FileParser, LineParser
from fairseq_phrase.parsers.penman import PenmanFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.parsers.stanza import StanzaParser
from fairseq_phrase.parsers.whitespace import FactoredText, WhitespaceParser
from fairseq_phrase.syntax.fields import FIELDS

#: The group of entry points in which installed packages offer parsers.
PARSER_GROUP = "fairseq_phrase.parsers"


@dataclass(frozen=True)
class _BuiltIn:
    """A parser of this project.

    Attributes:
        usage: its form after ``--parser``.
        make: a function that makes the parser from its argument, if any. The parser's libraries
            are imported only when it is called.
        folder_after: the text before a folder in the argument; empty if the whole argument may be a
            folder; None if the argument cannot contain a folder.
    """

    usage: str
    make: Callable[..., LineParser | FileParser]
    folder_after: str | None = None


BUILT_IN = {
    "spacy": _BuiltIn("spacy:MODEL", SpacyParser, folder_after=""),
    "stanza": _BuiltIn("stanza:LANG[,surface][@DIR]", StanzaParser, folder_after="@"),
    "conllu": _BuiltIn("conllu[:surface][,enhanced]", ConlluFiles),
    "ptb": _BuiltIn("ptb", BracketFiles),
    "corenlp": _BuiltIn("corenlp[:TREES]", CoreNlpFiles),
    "penman": _BuiltIn("penman", PenmanFiles),
    "factored": _BuiltIn("factored[:FIELD,…]", FactoredText),
    "none": _BuiltIn("none", WhitespaceParser),
}


def load_parser(spec: str) -> LineParser | FileParser:
    """Make the parser that ``--parser`` names.

    Args:
        spec: ``NAME`` or ``NAME:ARGUMENT``. One of this project's parsers (``spacy:MODEL``, the name or
            folder of an installed pipeline; ``stanza:LANG[,surface][@DIR]``, a language code and a
            folder of Stanza's models; ``conllu[:surface][,enhanced]``, ``ptb``, ``corenlp[:TREES]`` or
            ``penman``, files next to the text; ``factored:FIELD,…``, labels in the text; ``none``, words
            at white space and no trees); or the name of an entry point of the group
            :data:`PARSER_GROUP`. The entry point's object is called with the argument, if one is given.

    Raises:
        UserError: the parser is unknown, a package that it needs is not installed, or the entry point
            does not make a parser.
    """
    name = spec.partition(":")[0]
    if name in BUILT_IN:
        return _make(spec, BUILT_IN[name].make, BUILT_IN[name].usage)
    installed = entry_points(group=PARSER_GROUP)
    entries = {entry.value: entry for entry in installed if entry.name == name}
    if not entries:
        there = [built_in.usage for built_in in BUILT_IN.values()]
        others = sorted({entry.name for entry in installed})
        *names, last = there + others
        # A pipeline's name, en_core_web_sm, or its folder
        is_spacy = (
            re.fullmatch(r"(.*/)?[a-z]{2,3}_\w+_\w+", spec) or Path(spec, "meta.json").is_file()
        )
        hint = f"; did you mean spacy:{spec}?" if is_spacy else ""
        raise UserError(f"unknown parser '{spec}': expected {', '.join(names)} or {last}{hint}")
    if len(entries) > 1:
        raise UserError(
            f"the parser {name} is ambiguous: {' and '.join(map(_origin, entries.values()))} have "
            "a parser of this name"
        )
    (entry,) = entries.values()
    make = load_entry(entry, f"{_origin(entry)}, which has the parser {name}, is broken")
    return _checked(spec, _make(spec, make, f"{name} as {_origin(entry)} takes it"), _origin(entry))


def _make(
    spec: str, make: Callable[..., LineParser | FileParser], usage: str
) -> LineParser | FileParser:
    """Make a parser, with its argument if one is given."""
    argument = spec.partition(":")[2]
    arguments = [argument] if argument else []
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError as error:
        raise UserError(f"parser {spec}: expected {usage} ({error})") from None
    try:
        return make(*arguments)
    except SystemExit as error:  # a library must not end the command
        raise UserError(f"parser {spec} ended with sys.exit({error.code!r})") from error


def _checked(spec: str, parser: object, origin: str) -> LineParser | FileParser:
    """Check that an installed package's object is a parser, and return it."""
    if not isinstance(parser, LineParser | FileParser):
        raise UserError(
            f"parser {spec}: {origin} made a {type(parser).__name__}, which is neither a "
            "LineParser nor a FileParser"
        )
    needed = ["version", "fields", *(["suffix"] if isinstance(parser, FileParser) else [])]
    missing = [name for name in needed if not hasattr(parser, name)]
    if missing:
        raise UserError(f"parser {spec}: the parser of {origin} has no {', '.join(missing)}")
    unknown = set(parser.fields) - set(FIELDS)
    if unknown or "words" not in parser.fields:
        raise UserError(
            f"parser {spec}: the parser of {origin} has the fields {', '.join(parser.fields)}: "
            f"expected words, and others of {', '.join(FIELDS)}"
        )
    return parser


def _origin(entry: EntryPoint) -> str:
    """Name the package of an entry point."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value


def resolve(spec: str) -> str:
    """Return a parser's name that is valid in any working directory.

    A folder in its argument becomes an absolute path.
    """
    before, folder = _folder_in(spec)
    if folder and Path(folder).is_dir():
        return f"{before}{Path(folder).resolve()}"
    return spec


def names_path(spec: str) -> bool:
    """Return whether a parser's name contains a path from which files would be loaded."""
    _, folder = _folder_in(spec)
    return bool(folder) and (
        not {"/", os.sep}.isdisjoint(folder) or folder.startswith("~") or Path(folder).exists()
    )


def without_path(spec: str) -> str:
    """Return a parser's name for other machines: a path in it becomes the path ``./NAME``."""
    before, folder = _folder_in(spec)
    return f"{before}./{Path(folder).name}" if names_path(spec) else spec


def _folder_in(spec: str) -> tuple[str, str]:
    """Split a parser's name before the part that may be a folder, which may be empty."""
    name, colon, argument = spec.partition(":")
    folder_after = BUILT_IN[name].folder_after if name in BUILT_IN else ""
    if folder_after is None:
        return spec, ""
    before, mark, folder = argument.partition(folder_after) if folder_after else ("", "", argument)
    return f"{name}{colon}{before}{mark}", folder
