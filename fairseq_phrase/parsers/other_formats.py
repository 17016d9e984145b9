"""Unsupported tree formats: how to recognize and convert them."""

from __future__ import annotations

import re
from pathlib import Path

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.syntax.brackets import parse_brackets

_TREETOOLS = (
    "treetools-cli transform {path} OUT --src-format {name} --dest-format brackets --trans root_attach "
    "negra_mark_heads boyd_split raising (pip install treetools) makes brackets without crossing branches"
)
_STANDARD = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]
_COLUMNS = re.compile(r"#\s*global\.columns\s*=\s*(.*)")
_DISCBRACKET_LEAF = re.compile(r"([0-9]+)=\S*")


def refuse_other_columns(path: Path, number: int, line: str) -> None:
    """Check that a line of a CoNLL-U file is not in a similar format.

    Args:
        number: the line's number, from 1.

    Raises:
        UserError: the line is in another format; the message names the format and a converter.
    """
    if line.startswith("("):
        _refuse(path, number, "brackets", "name the file PREF.LANG.ptb and give --parser ptb")
    if line.startswith("#"):
        named = _COLUMNS.fullmatch(line.strip())
        if named is not None and named[1].split() != _STANDARD:
            command = f"udapy read.Conllup write.Conllu <{path} >OUT (pip install udapi)"
            _refuse(path, number, "CoNLL-U Plus", f"{command} makes CoNLL-U")
        return
    columns = line.split("\t")
    if len(columns) >= 14 and columns[0].isdecimal() and columns[8].isdecimal():
        attributes = "ord,form,lemma,_,upos,_,_,_,head,_,deprel"
        command = f"udapy read.Conll attributes={attributes} write.Conllu <{path} >OUT"
        _refuse(path, number, "CoNLL-2009", f"{command} (pip install udapi) makes CoNLL-U")


def refuse_other_trees(path: Path, number: int, line: str) -> None:
    """Check that a line outside all trees of a bracketed file is not in another format.

    Args:
        number: the line's number, from 1.

    Raises:
        UserError: the line is in another format; the message names the format and a converter.
    """
    if line.startswith(("#FORMAT ", "#BOT ", "#BOS ")):
        _refuse(path, number, "NEGRA export", _TREETOOLS.format(path=path, name="export"))
    if line.startswith("<?xml"):
        _refuse(path, number, "XML (TIGER-XML?)", _TREETOOLS.format(path=path, name="tigerxml"))
    if re.match(r"1(-[0-9]+)?(\t[^\t]*){6}", line):
        _refuse(path, number, "CoNLL-U", "name the file PREF.LANG.conllu and give --parser conllu")


def refuse_discbracket(path: Path, number: int, tree: str) -> None:
    """Check that a tree is not in the discbracket format, whose leaves are numbered words.

    Args:
        number: the number of its first line, from 1.

    Raises:
        UserError: the tree's leaves are ``0=word``, ``1=word`` and so on, in any order.
    """
    if "0=" not in tree or "1=" not in tree:
        return
    try:
        leaves = parse_brackets(tree).words
    except ValueError:
        return
    numbered = [found for found in map(_DISCBRACKET_LEAF.fullmatch, leaves) if found]
    if sorted(int(found[1]) for found in numbered) == list(range(len(leaves))):
        command = "discodop treetransforms --inputfmt=discbracket --outputfmt=bracket --splitdisc"
        where = "https://github.com/andreasvc/disco-dop"
        _refuse(path, number, "discbracket", f"{command} {path} OUT ({where}) makes brackets")


def _refuse(path: Path, number: int, name: str, advice: str) -> None:
    raise UserError(f"{at(path, number)}: this is {name}, which is not read here: {advice}")
