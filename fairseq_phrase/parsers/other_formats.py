"""Formats of trees that a reader of CoNLL-U or brackets refuses: each is named, with a converter."""

from __future__ import annotations

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from fairseq_phrase.errors import UserError, location
from fairseq_phrase.syntax.brackets import parse_brackets
from fairseq_phrase.text import read_lines

_SHOWN_LINES, _SHOWN_CHARACTERS = 200, 8000
_TREETOOLS = (
    "treetools-cli transform {path} OUT --src-format %s --dest-format brackets --trans root_attach "
    "negra_mark_heads boyd_split raising (pip install treetools) makes brackets without crossing branches"
)
_UDAPY = "udapy read.%s write.Conllu <{path} >OUT (pip install udapi) makes CoNLL-U"
_STANZA = (
    "python -c 'import json, sys; from stanza.models.common.doc import Document as D; "
    "from stanza.utils.conll import CoNLL; CoNLL.write_doc2conll(D(json.load(open(sys.argv[1]))), "
    "sys.argv[2])' {path} OUT makes CoNLL-U"
)
_CONLL_2012 = (
    """awk '/^#/ {{next}} !NF {{print ""; next}} {{i = index($6, "*"); printf "%s(%s %s)%s", """
    "substr($6, 1, i - 1), $5, $4, substr($6, i + 1)}}' {path} >OUT makes brackets"
)
_HANLP = (
    "python -c 'import json, sys; from hanlp_common.document import Document as D; "
    "print(*D(json.load(open(sys.argv[1]))).to_conll(), sep=chr(10) * 2)' {path} >OUT "
    "(pip install hanlp-common) makes CoNLL-U"
)
_MALT_TAB = (
    """awk -F'\\t' -v OFS='\\t' '!NF {{n = 0; print; next}} """
    """{{print ++n, $1, "_", $2, $2, "_", $3, $4, "_", "_"}}' {path} >OUT makes CoNLL-U"""
)
_CORENLP = (
    "let CoreNLP write it again by -outputFormat json, as PREF.LANG.json for --parser corenlp"
)


@dataclass(frozen=True)
class _Format:
    """A format that is not the reader's own.

    Attributes:
        name: its name; of several with the same line, the first whose beginning fits is named.
        advice: how to read or convert it; ``{path}`` is the file, quoted for a shell.
        line: the start of a line that trees of the reader's format do not have.
        beginning: what the beginning of the file has, if the line does not decide.
    """

    name: str
    advice: str
    line: str
    beginning: str = ""


_PENMAN = _Format(
    "Penman", "name the file PREF.LANG.penman and give --parser penman",
    r"# ::(id|snt|tok)\b|\([a-z]+[0-9]*\s*/\s",
    r"(?ms)(?=.*^\([a-z]+[0-9]*\s*/\s)(?=.*(^# ::|^\s+:[A-Za-z]))",
)  # fmt: skip
_JSON, _XML = r"[\[{][\s\[{]*(\"|$)", r"<[?!A-Za-z]"
_CONVERT = "convert it to CoNLL-U or brackets"
_FORMATS = (
    _Format("CoreNLP's XML", _CORENLP, _XML, r"CoreNLP-to-HTML|<root>\s*<document"),
    _Format("TIGER-XML", _TREETOOLS % "tigerxml", _XML, r"<corpus\b"),
    _Format("XML", _CONVERT, _XML),
    _Format("HanLP's JSON", _HANLP, _JSON, r'"(tok|pos|ner|dep|sdp|con)(/[a-z0-9]+)?"\s*:'),
    _Format("HanLP's former JSON", _CONVERT, _JSON, r'"syntactic_dependencies"\s*:'),
    _Format("CoreNLP's JSON", "name the file PREF.LANG.json and give --parser corenlp", _JSON,
            r'"(sentences"\s*:\s*\[\s*\{|(basicDependencies|characterOffsetBegin)"\s*:)'),
    _Format("Stanza's JSON", _STANZA, _JSON, r'"(upos|deprel|start_char)"\s*:'),
    _Format("JSON", _CONVERT, _JSON),
    _Format("a list of Python, as DDParser and LTP return it", _CONVERT,
            r"[\[{][\s\[{(]*('[^']*'\s*[],:]|[0-9]+\s*,)"),
    _Format("SDP", "it has graphs and no trees", r"#SDP |[0-9]+(\t[^\t]+){3}(\t[-+]){2}\t(?![0-9]+\t)"),
    _Format("Malt-TAB", _MALT_TAB, r"[^\t]+\t[^\t]+\t[0-9]+\t[^\t]+$"),
    _Format("CoNLL of 7 columns", _UDAPY % "Conll attributes=ord,form,lemma,upos,_,head,deprel",
            r"[0-9]+(\t[^\t]+){4}\t[0-9]+\t[^\t]+$"),
    _Format("CoNLL-2003", "it has no trees", r"-DOCSTART-|(\S+ ){3}(O|[BI]-[A-Z]+)$"),
    _Format("the Sinica Treebank's format", "nltk.tree.sinica_parse (pip install nltk) reads its trees",
            r"#[0-9]+:\S*\[[0-9]+\]"),
    _Format("tagged text of the Penn Treebank (.pos)", "its trees are in files .mrg",
            r"={20,}\s*$|\[ \S+/\S+ "),
    _Format("CoreNLP's text", _CORENLP, r"Sentence #[0-9]+ \([0-9]+ tokens"),
    _Format("NEGRA export", _TREETOOLS % "export", r"#(FORMAT|BOT|BOS) "),
    _Format("CoNLL-2012", _CONLL_2012,
            r"#begin document|\S+\s+[0-9]+\s+[0-9]+\s+\S+\s+\S+\s+\S*\*"),
    _Format("CoNLL-2009", _UDAPY % "Conll attributes=ord,form,lemma,_,upos,_,_,_,head,_,deprel",
            r"[0-9]+(\t[^\t]*){7}\t[0-9]+\t([0-9]+|_)(\t[^\t]*){4}"),
    _Format("CoNLL-2008", _UDAPY % "Conll attributes=ord,_,_,_,_,form,lemma,upos,head,deprel",
            r"[0-9]+(\t[^\t]*){7}\t[0-9]+\t[^\t0-9][^\t]*\t"),
    _Format("CoNLL-U Plus", _UDAPY % "Conllup",
            r"#\s*global\.columns\s*=(?!\s*ID\s+FORM\s+LEMMA\s+UPOS\s+XPOS\s+FEATS\s+HEAD\s+DEPREL\s+DEPS"
            r"\s+MISC\s*$)"),
    _Format("CoNLL-U with a line break as a word, as spacy_conll writes it",
            "parse each line on its own", r"[0-9]+\t$"),
    _PENMAN,
)  # fmt: skip
_CONLLU = _Format(
    "CoNLL-U",
    "name the file PREF.LANG.conllu and give --parser conllu",
    r"1(-[0-9]+)?(\t[^\t]*){6}",
)
_BRACKETS = _Format("brackets", "name the file PREF.LANG.ptb and give --parser ptb", r"\(")
_NOT_CONLLU, _NOT_BRACKETS = (*_FORMATS, _BRACKETS), (*_FORMATS, _CONLLU)
_DISCBRACKET_LEAF = re.compile(r"([0-9]+)=\S*")


def refuse_other_columns(path: Path, number: int, line: str) -> None:
    """Check that a line of a CoNLL-U file is not in a similar format.

    Args:
        number: the line's number, from 1.

    Raises:
        UserError: the line is in another format; the message names the format and a converter.
    """
    if line[:1].isdigit() and line.count("\t") == 9:
        return
    _refuse_formats(_NOT_CONLLU, path, number, line)


def refuse_other_trees(path: Path, number: int, tree: str) -> None:
    """Check that a tree of a bracketed file, or a line outside all trees, is not in another format.

    Args:
        number: the number of its first line, from 1.

    Raises:
        UserError: it is in another format; the message names the format and a converter.
    """
    _refuse_formats((_PENMAN,) if tree.startswith("(") else _NOT_BRACKETS, path, number, tree)
    _refuse_discbracket(path, number, tree)


def _refuse_formats(formats: tuple[_Format, ...], path: Path, number: int, line: str) -> None:
    for form in formats:
        if re.match(form.line, line) and (
            not form.beginning or re.search(form.beginning, _beginning(path))
        ):
            _refuse(path, number, form.name, form.advice.format(path=shlex.quote(str(path))))


def _beginning(path: Path) -> str:
    lines = itertools.islice(read_lines(path), _SHOWN_LINES)
    return "\n".join(line[:_SHOWN_CHARACTERS] for line in lines)[:_SHOWN_CHARACTERS]


def _refuse_discbracket(path: Path, number: int, tree: str) -> None:
    """Check that a tree is not in the discbracket format, whose leaves are numbered words.

    Raises:
        UserError: the tree's leaves are ``0=word``, ``1=word`` and so on, in any order.
    """
    if "0=" not in tree or "1=" not in tree:
        return
    try:
        leaves = parse_brackets(tree).words
    except ValueError:
        return
    numbered = [leaf for leaf in map(_DISCBRACKET_LEAF.fullmatch, leaves) if leaf]
    if sorted(int(leaf[1]) for leaf in numbered) == list(range(len(leaves))):
        command = "discodop treetransforms --inputfmt=discbracket --outputfmt=bracket --splitdisc"
        where = "https://github.com/andreasvc/disco-dop"
        advice = f"{command} {shlex.quote(str(path))} OUT ({where}) makes brackets"
        _refuse(path, number, "discbracket", advice)


def _refuse(path: Path, number: int, name: str, advice: str) -> None:
    raise UserError(f"{location(path, number)}: this is {name}, which is not read here: {advice}")
