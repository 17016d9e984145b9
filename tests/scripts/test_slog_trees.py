"""``scripts/slog_trees.py``: trees that SLOG's logical forms tell."""

from __future__ import annotations

import sys

import conllu
import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from slog_trees import NoTreeError, SentenceTree, main, verb_lemmas

LEMMAS = {
    "gave": "give", "lent": "lend", "saw": "see", "helped": "help", "hoped": "hope", "wanted": "want",
    "nap": "nap", "burned": "burn", "knew": "know", "touched": "touch",
}  # fmt: skip


def heads(sentence: str, form: str) -> str:
    """Build a tree, and write each word with its head's word and its relation."""
    tree = SentenceTree(sentence.split())
    tree.build(form, LEMMAS)
    words = ["0", *tree.words]
    return " ".join(
        f"{word}<{words[head]}:{relation}"
        for word, head, relation in zip(tree.words, tree.heads, tree.relations, strict=True)
    )


@pytest.mark.parametrize(
    ("sentence", "form", "expected"),
    [
        (
            "A dog in a box gave the cat a key on the table .",
            "give ( agent = dog ( nmod . in = box ) , recipient = * cat , "
            "theme = key ( nmod . on = * table ) )",
            "A<dog:det dog<gave:nsubj in<dog:prep a<box:det box<in:pobj gave<0:ROOT the<cat:det "
            "cat<gave:dative a<key:det key<gave:dobj on<key:prep the<table:det table<on:pobj "
            ".<gave:punct",
        ),
        (
            "The cat was lent to Liam by a dog .",
            "lend ( theme = * cat , recipient = Liam , agent = dog )",
            "The<cat:det cat<lent:nsubjpass was<lent:auxpass lent<0:ROOT to<lent:dative Liam<to:pobj "
            "by<lent:agent a<dog:det dog<by:pobj .<lent:punct",
        ),
        (
            "Emma hoped that a dog that was burned wanted to nap .",
            "hope ( agent = Emma , ccomp = want ( agent = dog ( nmod = burn ( theme = dog ) ) , "
            "xcomp = nap ( agent = dog ( nmod = burn ( theme = dog ) ) ) ) )",
            "Emma<hoped:nsubj hoped<0:ROOT that<wanted:mark a<dog:det dog<wanted:nsubj "
            "that<burned:nsubjpass was<burned:auxpass burned<dog:relcl wanted<hoped:ccomp to<nap:aux "
            "nap<wanted:xcomp .<hoped:punct",
        ),
        (
            "Mia saw a boy that the cat that a dog knew touched .",
            "see ( agent = Mia , theme = boy ( nmod = touch ( agent = * cat ( "
            "nmod = know ( agent = dog , theme = * cat ) ) , theme = boy ) ) )",
            "Mia<saw:nsubj saw<0:ROOT a<boy:det boy<saw:dobj that<touched:dobj the<cat:det "
            "cat<touched:nsubj that<knew:dobj a<dog:det dog<knew:nsubj knew<cat:relcl touched<boy:relcl "
            ".<saw:punct",
        ),
        (
            "Liam saw a boy that Ava gave a key to .",
            "see ( agent = Liam , theme = boy ( "
            "nmod = give ( agent = Ava , theme = key , recipient = boy ) ) )",
            "Liam<saw:nsubj saw<0:ROOT a<boy:det boy<saw:dobj that<gave:dative Ava<gave:nsubj "
            "gave<boy:relcl a<key:det key<gave:dobj to<gave:dative .<saw:punct",
        ),
        (
            "Who did Emma give the key to ?",
            "give ( agent = Emma , theme = * key , recipient = ? )",
            "Who<to:pobj did<give:aux Emma<give:nsubj give<0:ROOT the<key:det key<give:dobj "
            "to<give:dative ?<give:punct",
        ),
        (
            "What did Emma help ?",
            "help ( agent = Emma , theme = ? )",
            "What<help:dobj did<help:aux Emma<help:nsubj help<0:ROOT ?<help:punct",
        ),
        (
            "What was helped ?",
            "help ( theme = ? )",
            "What<helped:nsubjpass was<helped:auxpass helped<0:ROOT ?<helped:punct",
        ),
    ],
)
def test_forms_tell_trees(sentence, form, expected):
    assert heads(sentence, form) == expected


def test_verbs_of_one_lemma_are_nested_to_the_right():
    text = heads(
        "Ava saw that Mia saw a dog .",
        "see ( agent = Ava , ccomp = see ( agent = Mia , theme = dog ) )",
    )
    assert text.startswith("Ava<saw:nsubj saw<0:ROOT that<saw:mark Mia<saw:nsubj saw<saw:ccomp")


@pytest.mark.parametrize(
    ("sentence", "form", "reason"),
    [
        ("giggle", "giggle", "no clause"),
        ("A dog saw .", "see ( agent = dog", "malformed"),
        ("A dog saw .", "see agent = dog )", "no clause"),
        ("A dog saw .", "see ( agent cat )", "malformed"),
        ("A dog saw .", "see ( agent = cat )", "a noun is not"),
        ("A dog saw a cat .", "see ( agent = dog )", "other nouns"),
        ("A dog saw .", "help ( agent = dog )", "a verb is not"),
        ("A dog saw helped .", "help ( agent = dog )", "other verbs"),
        (
            "A dog saw Mia box .",
            "see ( agent = dog , theme = Mia ( nmod . in = box ) )",
            "without a prep",
        ),
    ],
)
def test_what_does_not_belong_together_tells_no_tree(sentence, form, reason):
    with pytest.raises(NoTreeError, match=reason):
        SentenceTree(sentence.split()).build(form, LEMMAS)


def test_lemmas_are_learned_from_what_occurs_together():
    pairs = [
        ("Mia ate a cake .", "eat ( agent = Mia , theme = cake )"),
        ("Mia hoped that Liam ate .", "hope ( agent = Mia , ccomp = eat ( agent = Liam ) )"),
        ("Mia hoped that Liam napped .", "hope ( agent = Mia , ccomp = nap ( agent = Liam ) )"),
        ("hope", "hope"),
    ]
    assert verb_lemmas(pairs) == {"ate": "eat", "hoped": "hope", "napped": "nap"}


def test_trees_are_written_and_what_has_none_is_counted(tmp_path, capsys):
    (tmp_path / "train.en").write_text("A dog ran .\nrun\n" * 3)
    (tmp_path / "train.lf").write_text("run ( agent = dog )\nrun\n" * 3)
    out = tmp_path / "new" / "trees.conllu"
    main([str(tmp_path / "train"), str(out)])
    assert "3 trees; left out: 3 no clause" in capsys.readouterr().out
    trees = conllu.parse(out.read_text())
    assert [[token["head"] for token in tree] for tree in trees] == [[2, 3, 0, 3]] * 3
    main([str(tmp_path / "train"), str(out), "--sentences", "2"])
    assert len(conllu.parse(out.read_text())) == 2


@pytest.mark.parametrize("forms", ["run ( agent = dog )\n", "run ( agent\n" * 2, "_answer\n" * 2])
def test_files_that_are_not_slogs_are_refused(tmp_path, forms):
    (tmp_path / "train.en").write_text("A dog ran .\n" * 2)
    (tmp_path / "train.lf").write_text(forms)
    with pytest.raises(SystemExit, match=r"error: .*train\.lf"):
        main([str(tmp_path / "train"), str(tmp_path / "out.conllu")])
    assert not (tmp_path / "out.conllu").exists()
