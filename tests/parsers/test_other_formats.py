"""Files of other formats, given as CoNLL-U or brackets, are refused by name, with how to read them."""

import itertools
import re

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.parsers.conllu import ConlluFiles
from fairseq_phrase.parsers.ptb import BracketFiles

XML = "<?xml version='1.0' encoding='UTF-8'?>"
CONLL_2012 = [
    "#begin document (a/b_0000); part 000",
    "a/b_0000   0   0   On      IN   (TOP(PP*   -   -   -   A   *   -",
    "a/b_0000   0   1   -LRB-   -LRB-   (NP*    -   -   -   A   *   -",
    "a/b_0000   0   2   R&D     NN        *)))  -   -   -   A   *   -",
    "",
]
FORMATS = {
    "CoNLL-U Plus": [
        "# global.columns = ID FORM UPOS HEAD DEPREL PARSEME:MWE",
        "1\tJa\tX\t0\troot\t*",
    ],
    "CoNLL-2008": ["1\tIt\t_\t_\tPRP\tIt\t_\tPRP\t2\tSBJ\t_\tA1"],
    "CoNLL-2009": ["1\tJa\tja\tja\tX\tX\t_\t_\t0\t0\troot\troot\t_\t_"],
    "CoNLL-2012": CONLL_2012,
    "CoNLL-U with a line break as a word": ["1\t", "\t_\tSPACE\t_SP\t_\t0\tROOT\t_\t_"],
    "CoNLL-U": ["1\tDas\t_\t_\t_\t_\t0\troot\t_\t_"],
    "brackets": ["(S (X Ja))"],
    "CoNLL-2008 with many predicates": [
        "2\tis\tbe\t_\tVBZ\tis\tbe\tVBZ\t0\tROOT\tbe.01" + "\t_" * 9
    ],
    "NEGRA export": ["#FORMAT 4", "#BOS 1"],
    "NEGRA export without a format": ["#BOS 1 0 0 0", "Das\tART\t--\tNK\t0"],
    "TIGER-XML": [XML, "<corpus>"],
    "XML": [XML, "<alpino_ds version='1.3'>"],
    "CoNLL-2012 without its first line": CONLL_2012[1:],
    "CoreNLP's XML": [XML, "<root>", "  <document>"],
    "CoreNLP's JSON": ["{", '  "sentences": [', "    {", '      "index": 0,'],
    "CoreNLP's JSON on one line": ['{"docId":"a","sentences":[{"index":0}]}'],
    "CoreNLP's text": ["Sentence #1 (4 tokens):", "The dog runs.", "", "Tokens:"],
    "HanLP's JSON": ['{"tok/fine": [["Ja"]], "dep": [[[0, "root"]]]}'],
    "HanLP's former JSON": [
        '{"sentences": ["Ja"], "syntactic_dependencies": [[{"deprel": "root"}]]}'
    ],
    "a list of Python, as DDParser": ["[{'word': ['Ja'], 'head': [0], 'deprel': ['HED']}]"],
    "a list of Python, as DDParser and LTP return it": ["[[(1, 0, 'HED')]]"],
    "SDP": ["#SDP 2015", "#1", "1\tJa\tja\tUH\t+\t-\t_"],
    "SDP without its first line": ["1\tJa\tja\tUH\t+\t-\t_"],
    "Malt-TAB": ["Ja\tUH\t0\tROOT"],
    "CoNLL of 7 columns": ["1\tJa\tja\tUH\tO\t0\tROOT"],
    "CoNLL-2003": ["-DOCSTART- -X- -X- O"],
    "CoNLL-2003 without its first line": ["Bonn NNP B-NP B-LOC"],
    "the Sinica Treebank": ["#9:1..[42] S(agent:NP(Head:N:我們)|Head:V:教)#。(PERIODCATEGORY)"],
    "tagged text of the Penn Treebank (.pos)": ["=" * 38, "", "[ Ja/UH ]"],
    "tagged text of the Penn Treebank (.pos) on one line": ["[ '80s/NNS ]", "[ 61/CD years/NNS ]"],
    "Stanza's JSON on one line": ['[[{"id": 1, "text": "sentences", "upos": "X"}]]'],
    "Stanza's JSON": [
        "[",
        "  [",
        "    {",
        '      "id": 1,',
        '      "text": "Ja",',
        '      "upos": "X"',
    ],
    "JSON": ['{"text": "Ja", "tree": [0]}'],
    "Penman": ["# ::id 1", "# ::snt the boy", "(b / boy)"],
    "Penman without comments": ["(w / want-01", "   :ARG0 (b / boy))"],
    "discbracket": ["(S (VP (NN 0=Buch) (VV 2=lesen)) (V 1=will))"],
}
ADVICE = {
    "CoNLL-U Plus": "udapy read.Conllup write.Conllu <",
    "CoNLL-2008": "udapy read.Conll attributes=ord,_,_,_,_,form,lemma,upos,head,deprel write.Conllu",
    "CoNLL-2009": "udapy read.Conll attributes=ord,form,lemma,_,upos,_,_,_,head,_,deprel write.Conllu",
    "CoNLL-2012": "awk '",
    "CoNLL-U with": "parse each line on its own",
    "CoNLL-U": "--parser conllu",
    "NEGRA export": "treetools-cli transform .* --src-format export",
    "TIGER-XML": "treetools-cli transform .* --src-format tigerxml",
    "CoreNLP's XML": "-outputFormat json",
    "CoreNLP's JSON": "--parser corenlp$",
    "CoreNLP's text": "-outputFormat json",
    "Stanza's JSON": "CoNLL.write_doc2conll",
    "SDP": "it has graphs",
    "HanLP's JSON": r"\.to_conll\(\)|convert it",
    "Malt-TAB": "awk -F",
    "CoNLL of 7": "udapy read.Conll attributes=ord,form,lemma,upos,_,head,deprel write.Conllu <",
    "CoNLL-2003": "it has no trees",
    "the Sinica": "nltk.tree.sinica_parse",
    "tagged text": r"files \.mrg",
    "Penman": "--parser penman",
    "discbracket": "--splitdisc",
    "brackets": "--parser ptb",
}


def refusal(folder, reader, lines) -> str:
    path = folder / f"train.en.{reader.suffix}"
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError) as error:
        list(reader.read(path, iter(["Ja"])))
    return str(error.value).removeprefix(str(path))


READERS = {"conllu": ConlluFiles(), "ptb": BracketFiles()}
READ = {("conllu", "CoNLL-U"), ("ptb", "brackets"), ("conllu", "discbracket")}


@pytest.mark.parametrize(
    ("suffix", "title"), [case for case in itertools.product(READERS, FORMATS) if case not in READ]
)
def test_a_file_of_another_format_is_refused_by_its_name_with_a_converter(tmp_path, suffix, title):
    name, reader = re.split(" with(?:out)? (?!a line)| on one", title)[0], READERS[suffix]
    advices = (text for start, text in ADVICE.items() if name.startswith(start))
    advice = next(advices, "convert it to CoNLL-U or brackets")
    message = refusal(tmp_path, reader, FORMATS[title])
    assert message.startswith(f", line 1: this is {name}")
    assert re.search(advice, message)


def test_a_comment_may_precede_the_line_that_shows_the_format(tmp_path):
    message = refusal(tmp_path, BracketFiles(), ["%% a", "#FORMAT 4", "#BOS 1"])
    assert message.startswith(", line 2: this is NEGRA export")


@pytest.mark.parametrize(
    ("reader", "lines", "text"),
    [
        (ConlluFiles(), ["# ::snt a comment", "# begin", "1\ta\t_\tX\t_\t_\t0\troot\t_\t_"], "a"),
        (BracketFiles(), ["(s / x)"], "/ x"),
        (BracketFiles(), ["(S (X 0=1) (X and) (X 1=1))"], "0=1 and 1=1"),
        (BracketFiles(), ["(S (X <root>) (X {) (X [))"], "<root> { ["),
    ],
)
def test_a_file_that_only_resembles_another_format_is_read(tmp_path, reader, lines, text):
    path = tmp_path / f"train.en.{reader.suffix}"
    path.write_text("".join(f"{line}\n" for line in lines))
    (sentence,) = reader.read(path, iter([text]))
    assert sentence.words == text.split()
