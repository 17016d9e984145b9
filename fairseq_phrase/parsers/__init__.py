"""Text to parses, behind two small interfaces (:mod:`fairseq_phrase.parsers.base`)."""

from __future__ import annotations

from pathlib import Path

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.base import FileParser, LineParser, Unparsed
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles
from fairseq_phrase.parsers.spacy import SpacyParser
from fairseq_phrase.parsers.whitespace import WhitespaceParser

__all__ = ["FileParser", "LineParser", "Unparsed", "load_parser", "resolve"]


def load_parser(spec: str) -> LineParser | FileParser:
    """Make the parser that ``--parser`` names.

    Args:
        spec: ``spacy:MODEL`` (a package's name or a folder), ``conllu`` or ``ptb`` (files beside the
            text), or ``none`` (words at white space, no trees).

    Raises:
        UserError: there is no such parser, or what it needs is not installed.
    """
    kind, _, argument = spec.partition(":")
    if kind == "spacy" and argument:
        return SpacyParser(argument)
    if spec == "conllu":
        return ConlluFiles()
    if spec == "ptb":
        return BracketFiles()
    if spec == "none":
        return WhitespaceParser()
    raise UserError(f"unknown parser '{spec}': expected spacy:MODEL, conllu, ptb or none")


def resolve(spec: str) -> str:
    """Return a parser's name that still holds in another working directory."""
    kind, _, argument = spec.partition(":")
    if argument and Path(argument).is_dir():
        return f"{kind}:{Path(argument).resolve()}"
    return spec
