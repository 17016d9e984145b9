"""Formal languages of outputs: well-formed ones, and which mean the same."""

from __future__ import annotations

import itertools
import multiprocessing.spawn
import os
import re
import signal
import string
import sys
from multiprocessing import popen_spawn_posix

import pytest

from fairseq_phrase.errors import UserError
from fairseq_phrase.metrics import regexes
from fairseq_phrase.metrics.forms import BracketForm, ExactMatch, Queries
from fairseq_phrase.metrics.measure_registry import FORMS
from fairseq_phrase.metrics.regexes import (
    CLASSES,
    STRINGS,
    NotARegexError,
    Regexes,
    automaton,
    parse,
    same_language,
)
from tests.support.report_table import records, report
from tests.support.run_folders import write_run


@pytest.mark.parametrize(
    ("inside", "text", "right"),
    [
        (False, "_answer ( A , ( _river ( A ) , _loc ( A , B ) ) )", True),
        (False, "_answer ( A , ( _river ( A ) )", False),
        (False, "_answer ) A (", False),
        (False, "_answer ( A , rivers ( A ) )", False),
        (False, "", False),
        (True, "( _answer $0 ( _river $0 ) )", True),
        (True, "( rivers $0 )", False),
    ],
)
def test_logical_forms_need_matching_brackets_and_known_predicates(inside, text, right):
    training = ["( _answer ( _river $0 ) )" if inside else "_answer ( _river ( _loc ( A , B ) ) )"]
    assert BracketForm(inside, training).well_formed(text) is right
    if "rivers" in text:
        assert BracketForm(inside).well_formed(text)


#: Expressions that Python's re has too, with intersection and complement written as look-ahead.
TWINS = [
    ("( [ <VOW> ] ) | ( <M0> )", "[AEIOUaeiou]|dog"),
    ("( . * a ) & ( . . )", "(?=.*a$).."),
    ("~ ( a . * )", "(?!a.*$).*"),
    ("~ ( a ) *", "(?!a$).*|((?!a$).*)+"),  # the complement binds closer
    ("( a { 2 , } ) b ?", "a{2,}b?"),
    ("( a | b ) { 1 , 2 }", "[ab]{1,2}"),
    ("b { 2 }", "bb"),
    ("a + b | b +", "a+b|b+"),
    ("( [ a b ] ) + & ~ ( a b . * )", "(?!ab)[ab]+"),
]


@pytest.mark.parametrize(("text", "twin"), TWINS)
def test_expressions_accept_what_pythons_do(text, twin):
    dfa = automaton(parse(text))
    words = [
        "".join(characters)
        for size in range(5)
        for characters in itertools.product("abd", repeat=size)
    ]
    for word in [*words, "dog", "do", "E"]:
        assert dfa.accepts(word) == (re.fullmatch(twin, word) is not None), word


def test_classes_and_strings_are_those_of_the_corpus():
    for name, characters in CLASSES.items():
        dfa = automaton(parse(f"[ {name} ]"))
        assert {character for character in string.printable if dfa.accepts(character)} == set(
            characters
        )
    for name, word in STRINGS.items():
        assert automaton(parse(name)).accepts(word)


@pytest.mark.parametrize(
    "text",
    ["", "(", "( a", "a )", "* a", "a | ", "[ ]", "[ a", "<M9>", "a { 2", "~", "a { 3 , 1 }"],
)
def test_what_is_no_expression_is_not_well_formed(text):
    with pytest.raises(NotARegexError):
        parse(text)
    assert not Regexes().well_formed(text)


def test_hundreds_of_brackets_are_no_error():
    assert not Regexes().well_formed("(" * 5000 + "a" + ")" * 5000)


def test_thousands_of_digits_are_no_error():
    assert not Regexes().well_formed("a{" + "9" * 5000 + "}")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("( a ) | ( b )", "( b ) | ( a )", True),
        ("( . * <M0> . * ) & ( . * <M1> . * )", "( . * <M1> . * ) & ( . * <M0> . * )", True),
        ("~ ( ~ ( a ) )", "a", True),
        (r"\ b a \ b", "a", False),
        (r"\ b a | b \ b", r"( \ b a ) | ( b \ b )", True),
        ("[ <LET> ]", "[ <LOW> ] | [ <CAP> ]", True),
        ("a { 3 , }", "a a a +", True),
        ("a +", "a *", False),
    ],
)
def test_languages_are_compared_and_not_texts(one, other, same):
    assert same_language(one, other) is same


@pytest.mark.slow
def test_pairs_are_compared_in_a_process_within_a_limit_of_cpu_time():
    # A last letter that is the 40th from the end: 2^40 states.
    large = "( a | b ) * a " + "( a | b ) " * 40
    pairs = [
        ("a | b", "b | a"),
        (large, f"( {large} ) | c"),
        ("a", "a  "),
        ("( a", "a"),
        ("c | b", "b | c"),
    ]
    form = Regexes(limit=0.5)
    assert form.equal(pairs[1:2]) == [None]  # the verdict is remembered
    assert form.equal(pairs) == [True, None, True, False, True]
    metrics = ExactMatch([right for _, right in pairs], form)
    statistics = metrics.statistics([hypothesis for hypothesis, _ in pairs])
    scores = {name: metrics.score(name, statistics[name].sum(0)) for name in metrics.names}
    assert scores == {
        "exact match": 20.0, "equal languages": 60.0, "undecided": 20.0, "well-formed": 80.0
    }  # fmt: skip


def broken_comparison(one: str, other: str) -> bool:
    """Compare as ``same_language`` does where the automata library fails."""
    if "k" in one:
        os.kill(os.getpid(), signal.SIGKILL)
    if "m" in one:
        raise MemoryError
    if "r" in one:
        raise RecursionError("too deep")
    return same_language(one, other)


def test_pairs_whose_comparison_fails_are_undecided_and_counted(monkeypatch):
    # Failures for which there is no short pair.
    monkeypatch.setattr(regexes, "same_language", broken_comparison)
    # A process that starts warm has another number than the pool knows.
    monkeypatch.setattr(popen_spawn_posix, "spawn", multiprocessing.spawn)
    form = Regexes()
    pairs = [("a|b", "b|a"), ("k", "a"), ("m", "a"), ("r", "a"), ("mm", "a"), ("a", "b")]
    assert form.equal(pairs) == [True, None, None, None, None, False]
    assert "or whose comparison failed (4 here)" in form.notes[0]
    form.equal(pairs)  # the verdicts are remembered
    assert "(4 here)" in form.notes[0]


def test_a_bad_output_does_not_end_the_comparison_of_the_others():
    pairs = [("a{3,1}", "a"), ("a|b", "b|a")]
    assert Regexes().equal(pairs) == [False, True]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('SELECT MAX ( " bike no " ) FROM t WHERE " position " = \' 30 \'', True),
        ("SELECT a FROM t WHERE b >", False),
        ("SELECT MAX ( a FROM t", False),
        ("SELECT a FROM t WHERE b = ' c", False),
        ("which bike is first", False),
        ("DROP TABLE t", False),
        ("SELECT a", False),
        ("", False),
        ("SELECT" + " (" * 60, False),
        ("SELECT a FROM t WHERE " + "(" * 5000 + "b" + ")" * 5000, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_queries_are_well_formed_if_sqlglot_parses_them(text, right):
    assert Queries().well_formed(text) is right


def test_queries_are_equal_up_to_case_and_the_order_of_conditions():
    query = 'SELECT " a " FROM t WHERE " b " = \' 1 \' AND " c " > \' 2 \''
    reordered = 'select " a " from T where " c " > \' 2 \' and " b " = \' 1 \''
    wrong = query.replace(">", "<")
    assert Queries().equal([(query, query), (reordered, query), (wrong, query), ("x", query)]) == [
        True, True, False, False
    ]  # fmt: skip
    assert Queries().equal([("not SQL", "not  SQL"), ("not SQL", "nor SQL")]) == [True, False]


def test_a_query_that_is_too_deep_to_be_simplified_is_not_well_formed(monkeypatch):
    def too_deep(query):
        raise RecursionError

    # No query is known that sqlglot parses and cannot simplify.
    monkeypatch.setattr("sqlglot.optimizer.simplify.simplify", too_deep)
    query = "SELECT a FROM t"
    assert Queries().equal([(query, query.lower())]) == [False]
    assert not Queries().well_formed(query)


def test_the_report_has_a_column_and_counts_bad_references(tmp_path):
    forms = ["f ( a )", "f ( b )", "f ( a ) )"]
    for seed, outputs in ((1, ["f ( a )", "f ( b", "f ( a ) )"]), (2, ["g ( a )", "f ( b )", ""])):
        write_run(tmp_path / "runs" / "m" / f"seed{seed}", outputs, forms, forms, seed=seed)
    (tmp_path / "test.en").write_text("\n".join(forms) + "\n")
    (tmp_path / "train").write_text("f ( c )\n")
    text = report(
        tmp_path, "--measure", "exact", "--form", "calls", "--known-forms", str(tmp_path / "train")
    )
    assert "brackets match, and all predicates occur in training" in text
    assert "1 of 3 references are not well-formed." in text
    runs = records(tmp_path / "out" / "runs.csv")
    assert [float(run["well-formed"]) for run in runs] == pytest.approx([100 / 3, 100 / 3])
    assert [float(run["exact match"]) for run in runs] == pytest.approx([200 / 3, 100 / 3])


def test_a_library_that_is_not_installed_is_named(monkeypatch):
    for form, library in (("regex", "greenery"), ("sql", "sqlglot")):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(UserError, match=f"pip install {library}"):
            FORMS[form](None)


def test_a_library_that_cannot_be_imported_is_named_with_the_reason(monkeypatch, tmp_path):
    (tmp_path / "sqlglot.py").write_text("raise ImportError('made for another Python')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sqlglot", raising=False)
    with pytest.raises(UserError, match=r"sqlglot, which cannot be imported \(made for another"):
        FORMS["sql"](None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--form", "regex"], "--form regex needs --measure exact, not translation"),
        (["--measure", "exact", "--known-forms", "x"], "--known-forms needs --form calls"),
        (["--measure", "exact", "--form", "calls", "--known-forms", "/none"], "/none"),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments, message, tmp_path, refused):
    (tmp_path / "test.en").write_text("a\n")
    assert message in refused(report, tmp_path, *arguments)
