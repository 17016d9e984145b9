"""Text to parses, behind two small interfaces (:mod:`fairseq_phrase.parsers.base`)."""

from __future__ import annotations

from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.base import FileParser, LineParser, Unparsed
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.parsers.stanza import StanzaParser
from fairseq_phrase.parsers.whitespace import WhitespaceParser

__all__ = ["FileParser", "LineParser", "Unparsed", "load_parser", "resolve"]


def load_parser(spec: str) -> LineParser | FileParser:
    """Make the parser that ``--parser`` names.

    Args:
        spec: ``spacy:MODEL`` (a package's name or a folder), ``stanza:LANG[@DIR]`` (a language's
            code, and a folder of Stanza's models), ``conllu`` or ``ptb`` (files beside the text), or
            ``none`` (words at white space, no trees).

    Raises:
        UserError: there is no such parser, or what it needs is not installed.
    """
    kind, _, argument = spec.partition(":")
    if kind == "spacy" and argument:
        return SpacyParser(argument)
    if kind == "stanza" and argument:
        return StanzaParser(argument)
    if spec == "conllu":
        return ConlluFiles()
    if spec == "ptb":
        return BracketFiles()
    if spec == "none":
        return WhitespaceParser()
    raise UserError(
        f"unknown parser '{spec}': expected spacy:MODEL, stanza:LANG[@DIR], conllu, ptb or none"
    )


def resolve(spec: str) -> str:
    """Return a parser's name that still holds in another working directory."""
    kind, _, argument = spec.partition(":")
    # Stanza's folder comes after the language.
    language, at, folder = argument.partition("@") if kind == "stanza" else ("", "", argument)
    if folder and Path(folder).is_dir():
        return f"{kind}:{language}{at}{Path(folder).resolve()}"
    return spec
