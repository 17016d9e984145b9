"""Parses of spaCy, Stanza and CoNLL-U in batches of transformers."""

from __future__ import annotations

import pytest
import spacy
import transformers
from spacy.tokens import Doc
from stanza.models.common.doc import Document

from fairseq_phrase.errors import UserError
from fairseq_phrase.huggingface import collate, parsed, text_of
from tests.support.huggingface_models import tokenizer_of_metaspace

#: "Er geht zum Zug. Gut!", two sentences; "zum" is "zu dem".
TEXT = "Er geht zum Zug. Gut!"
WORDS = ["Er", "geht", "zum", "Zug", ".", "Gut", "!"]
SPACES = [True, True, True, True, False, True, False]
HEADS = [1, 1, 3, 1, 1, 1, 5]  # a later root depends on the first
LABELS = ["nsubj", "root", "case", "obl", "punct", "root", "punct"]
CONLLU = """\
# text = Er geht zum Zug.
1\tEr\ter\tPRON\t_\t_\t2\tnsubj\t_\t_
2\tgeht\tgehen\tVERB\t_\t_\t0\troot\t_\t_
3-4\tzum\t_\t_\t_\t_\t_\t_\t_\t_
3\tzu\tzu\tADP\t_\t_\t5\tcase\t_\t_
4\tdem\tder\tDET\t_\t_\t5\tdet\t_\t_
5\tZug\tZug\tNOUN\t_\t_\t2\tobl\t_\tSpaceAfter=No
6\t.\t.\tPUNCT\t_\t_\t2\tpunct\t_\t_

1\tGut\tgut\tADJ\t_\t_\t0\troot\t_\tSpaceAfter=No
2\t!\t!\tPUNCT\t_\t_\t1\tpunct\t_\t_
"""


def spacy_document():
    return Doc(
        spacy.blank("de").vocab, WORDS, spaces=[*SPACES[1:], False], heads=[1, 1, 3, 1, 1, 5, 5],
        deps=LABELS, sent_starts=[True, False, False, False, False, True, False],
    )  # fmt: skip


def stanza_document():
    sentences, start = [], 0
    for block in CONLLU.strip().split("\n\n"):
        rows = []
        for line in block.splitlines():
            if line.startswith("#"):
                continue
            number, form, _, upos, _, _, head, deprel, _, _ = line.split("\t")
            first, _, last = number.partition("-")
            row = {"id": (int(first), int(last)) if last else (int(first),), "text": form}
            if not last:
                row |= {"upos": upos, "head": int(head), "deprel": deprel}
            if form not in ("zu", "dem"):
                start = TEXT.index(form, start)
                row |= {"start_char": start, "end_char": start + len(form)}
                start += len(form)
            rows.append(row)
        sentences.append(rows)
    return Document(sentences, text=TEXT)


DOCUMENTS = {
    "spaCy": spacy_document,
    "Stanza": stanza_document,
    "CoNLL-U": lambda: CONLLU,
}


@pytest.mark.parametrize("make", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_document_is_a_parsed_sentence_over_the_texts_tokens(make):
    sentence = parsed(make())
    assert (sentence.words, sentence.space_before) == (WORDS, SPACES)
    assert sentence.tree.heads.tolist() == HEADS
    assert sentence.deprels == LABELS
    assert text_of(make()) == TEXT
    assert parsed(sentence) is sentence


@pytest.mark.parametrize("make", DOCUMENTS.values(), ids=DOCUMENTS)
def test_documents_are_collated_in_one_call(make):
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_of_metaspace([TEXT] * 9), pad_token="<pad>"
    )
    labels = sorted(set(LABELS))
    documents = [make(), CONLLU.split("\n\n")[1]]
    encoded = tokenizer([text_of(document) for document in documents], padding=True)
    batch = collate(encoded, documents, labels)
    assert batch["src_heads"].tolist() == [HEADS, [0, 0, -1, -1, -1, -1, -1]]
    assert batch["src_deprels"][0].tolist() == [labels.index(label) for label in LABELS]
    spelled = [""] * len(WORDS)
    for token, word in zip(encoded.tokens(0), batch["src_words"][0].tolist(), strict=True):
        spelled[word] += token.strip("▁") if word >= 0 else ""
    assert spelled == WORDS


def test_parts_of_documents_are_converted():
    second = list(spacy_document().sents)[1]
    for part in (second, stanza_document().sentences[1]):
        assert parsed(part).words == ["Gut", "!"]
        assert parsed(part).tree.heads.tolist() == [0, 0]
        assert text_of(part) == "Gut!"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (spacy.blank("de")("Er geht"), "a spaCy document has no dependency parse"),
        (Document([[{"id": (1,), "text": "Er"}]]), "a Stanza document has no dependency parse"),
        ("Er geht", "CoNLL-U of a text: .*expected 10 columns"),
        ("", "'' is not CoNLL-U: expected rows of 10 columns"),
        (CONLLU.replace("\t2\tnsubj", "\t9\tnsubj"), "CoNLL-U of a text: "),
    ],
)
def test_documents_without_a_tree_are_refused(document, message):
    with pytest.raises(UserError, match=message):
        parsed(document)
