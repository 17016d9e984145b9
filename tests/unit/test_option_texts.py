"""Texts of options: data, words, paths, prose or code."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_phrase.checkpoints.option_texts import TextForm, form_of

DATA = [
    "1", " -0.5e-4", "1/6", "None", "'a'", "(0.9, 0.98)", "1,2,3", "[]", "{}", "[[1], (2, 'x')]",
    "[(512, 10, 5)] + [(512, 3, 2)] * 4 + [(512,2,2)] + [(512,2,2)]", "2 * [(1, 2)]", "((1, 2),) * 3",
    "{'main': ('src', 'tgt')}", '{"beam": 4, "sampling": true, "prefix": null}', "[true]", "'a' * 3",
]  # fmt: skip
WORDS = [
    "relu",
    "span-poisson",
    "de,en",
    "train,valid1",
    "en-de,de-en",
    "config.yaml",
    "wmt14-en-de",
]
PATHS = [
    "/etc/passwd", "data-bin/corpus.de", "../x", "~/x", "~", "https://host/x", "owner/name", "a b/c",
    "owner/name@main", "x//y", "1/0", "spacy:./de",
]  # fmt: skip
PROSE = ["", "(", "@@ ", "1.;0.0", "two words", "ngram:tree", "13a", "layers.*", "\0", "1_"]
CODE = [
    "[[os.environ['true'] for os._Environ.__getitem__ in [os.system]]]",
    "__import__('os').system('true')", "f'{os}'", "f''", "[x for x in y]", "(x for x in y)",
    "{x: 1 for x in y}", "lambda: 0", "(x := 1)", "[*x]", "{**x}", "{*x}", "x[0]", "x[1:2]", "'a'[0]",
    "'{0.__class__}'.format(1)", "'%s' % x", "'%999999999d' % 1", "x.y()", "x._y", "().__class__",
    "(x - y).z", "'a'.join", "x if y else z", "x or y", "not x", "x < y", "x == y", "-x", "~x", "+[1]",
    "x + y", "x * y", "x @ y", "x | y", "x ** 2", "1 << 9", "9 % 2", "2 ** 2", "[x]", "(x, [y])",
    "{x: 1}", "{'a': x}", "[1] + x", "__builtins__", "__loader__.x", "1 + 'a'", "[1] + (1,)", "[1] * [1]",
    "[1] * 1.5", "{[]: 1}", "{1}", "f(x)/2", "x[0]/y", "x/y or z", "await x", "(yield)",
]  # fmt: skip
LARGE = [
    "9**9**9", "[0]*10**10", "[0]*10000000000", "[[0]*9999]*9999", "10000000000*'x'", "'x'*99999*99999",
    "[0]*9999 + [0]*9999", "9" * 4000 + "*" + "9" * 4000, "-" * 99_000 + "1", "1+" * 40_000 + "1",
    "[" * 90 + "]" * 90 + "*99999", "1," * 60_000,
]  # fmt: skip


def evaluation(text: str) -> object:
    """Evaluate a text without any name; a class for an error."""
    try:
        return eval(text, {"__builtins__": {}, "true": True, "null": None})
    except Exception:
        return Exception


@pytest.mark.parametrize("text", DATA)
def test_data_have_the_value_that_python_gives_them(text) -> None:
    assert form_of(text) == (TextForm.DATA, evaluation(text))


@pytest.mark.parametrize(
    ("form", "text"),
    [
        *((TextForm.WORDS, text) for text in WORDS),
        *((TextForm.PATH, text) for text in PATHS),
        *((TextForm.PROSE, text) for text in PROSE),
        *((TextForm.CODE, text) for text in CODE),
    ],
)
def test_all_other_texts_have_a_form(form, text) -> None:
    assert form_of(text) == (form, None)


@pytest.mark.parametrize("text", LARGE, ids=range(len(LARGE)))
def test_what_is_too_large_is_code(text) -> None:
    assert form_of(text)[0] is TextForm.CODE


#: Expressions of the parts that data have, and of others.
EXPRESSIONS = st.recursive(
    st.sampled_from(["1", "2.5", "'a'", "None", "x", "x.y", "-1", "(x := 1)", "f''"]),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(parts, max_size=3).map(lambda each: f"({''.join(e + ', ' for e in each)})"),
        st.tuples(parts, st.sampled_from("+-*/%@|"), parts).map(lambda each: f"({' '.join(each)})"),
        st.tuples(parts, parts).map(lambda pair: f"{{{pair[0]}: {pair[1]}}}"),
        parts.map(lambda part: f"{part}[0]"),
        parts.map(lambda part: f"f({part})"),
        parts.map(lambda part: f"[y for y in {part}]"),
        parts.map(lambda part: f"f'{{{part}}}'" if "'" not in part else "f''"),
    ),
    max_leaves=8,
)
ALLOWED = (
    *(
        ast.Expression,
        ast.Constant,
        ast.List,
        ast.Tuple,
        ast.Dict,
        ast.BinOp,
        ast.UnaryOp,
        ast.Load,
    ),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.USub, ast.UAdd),
)


@given(EXPRESSIONS)
def test_an_expression_of_more_than_data_is_never_data(text) -> None:
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError:
        assert form_of(text)[0] in (TextForm.PROSE, TextForm.PATH)
        return
    form, value = form_of(text)
    if form is TextForm.DATA:
        assert all(isinstance(node, ALLOWED) for node in nodes)
        assert value == evaluation(text)
    elif form is not TextForm.CODE:
        names = (
            ast.Expression,
            ast.Name,
            ast.Attribute,
            ast.Tuple,
            ast.Constant,
            ast.BinOp,
            ast.Load,
        )
        of_words, of_paths = (ast.Sub,), (ast.Sub, ast.Add, ast.Div, ast.MatMult)
        further_nodes = of_words if form is TextForm.WORDS else of_paths
        assert all(isinstance(node, (*names, *further_nodes)) for node in nodes)
