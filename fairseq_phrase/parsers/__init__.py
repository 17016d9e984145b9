"""Parsers of text. They implement one of two interfaces (:mod:`fairseq_phrase.parsers.interfaces`)."""

from fairseq_phrase.parsers.interfaces import FileParser, LineParser
from fairseq_phrase.parsers.registry import (
    PARSER_GROUP,
    load_parser,
    names_path,
    resolve,
    without_path,
)
from fairseq_phrase.syntax.sentence import Unparsed

__all__ = [
    "PARSER_GROUP",
    "FileParser",
    "LineParser",
    "Unparsed",
    "load_parser",
    "names_path",
    "resolve",
    "without_path",
]
