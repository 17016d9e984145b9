"""What the text of an option is, if Python evaluates it: data, words, a path, prose or code."""

from __future__ import annotations

import ast
import json
import operator
import warnings
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

_LONGEST = 100_000
_MOST_ELEMENTS, _LARGEST_NUMBER = 10_000, 10**30
_Number = (int, float)
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
#: The parts of a path or an address that is an expression of Python, such as ``data-bin/corpus.de``.
_OF_PATHS = (
    *(ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.Load),
    *(ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.MatMult),
)


class TextForm(Enum):
    """The forms of texts; see :func:`form_of`."""

    DATA = auto()
    WORDS = auto()
    PATH = auto()
    PROSE = auto()
    CODE = auto()


def form_of(text: str) -> tuple[TextForm, Any]:
    """Return the form of a text; nothing is evaluated but arithmetic of small numbers.

    Returns:
        The form, and the value of data.

        - Data: literals, lists, tuples, dictionaries, sums and products of these; or JSON.
        - Words: names with hyphens and periods, and commas between them, such as ``span-poisson``.
        - A path, or an address.
        - Prose: no expression of Python.
        - Code: all other expressions, and what is too large.
    """
    if len(text) > _LONGEST:
        return TextForm.CODE, None
    try:
        expression = _parsed(text)
        if expression is None:
            structure = _json(text)
            if structure is not None:
                return TextForm.DATA, structure
            return (TextForm.PATH if "/" in text or text.startswith("~") else TextForm.PROSE), None
        try:
            return TextForm.DATA, _value(expression)
        except _NotDataError:
            structure = _json(text)
        if structure is not None:
            return TextForm.DATA, structure
        if _is_words(expression):
            return TextForm.WORDS, None
        parts = list(ast.walk(expression))
        is_path = "/" in text and all(isinstance(part, _OF_PATHS) for part in parts)
        return (TextForm.PATH if is_path else TextForm.CODE), None
    except (RecursionError, MemoryError):
        return TextForm.CODE, None


class _NotDataError(Exception):
    """An expression is not data, or has a large value."""


def _parsed(text: str) -> ast.expr | None:
    """Parse a text as ``eval`` does; None if that is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as those of invalid escapes
        try:
            return ast.parse(text.lstrip(" \t"), mode="eval").body
        except (SyntaxError, ValueError):
            return None


def _json(text: str) -> list[Any] | dict[str, Any] | None:
    """Read JSON, whose ``true`` is a name in Python."""
    try:
        structure = json.loads(text)
    except ValueError:
        return None
    return structure if isinstance(structure, list | dict) else None


def _value(node: ast.expr) -> Any:
    """Return the value of data.

    Raises:
        _NotDataError: it is not data, or too large.
    """
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return list(map(_value, node.elts))
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {
            _value(key): _value(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if key
        }
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _value(node.operand)
        if type(operand) in _Number:
            return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _combined(type(node.op), _value(node.left), _value(node.right))
    raise _NotDataError


def _combined(kind: type[ast.operator], left: Any, right: Any) -> Any:
    """Add, subtract, multiply or divide numbers; join or repeat sequences."""
    combine = _OPERATORS[kind]
    if type(left) in _Number and type(right) in _Number:
        if max(abs(left), abs(right)) > _LARGEST_NUMBER:
            raise _NotDataError
        try:
            return combine(left, right)
        except ArithmeticError:
            raise _NotDataError from None
    sequences = [value for value in (left, right) if type(value) in (list, tuple, str)]
    if kind is ast.Add and len(sequences) == 2 and type(left) is type(right):
        size = _size(left) + _size(right)
    elif kind is ast.Mult and len(sequences) == 1 and int in (type(left), type(right)):
        count = right if sequences[0] is left else left
        size = _size(sequences[0]) * count
    else:
        raise _NotDataError
    if size > _MOST_ELEMENTS:
        raise _NotDataError
    return combine(left, right)


def _size(value: Any) -> int:
    """Count the elements of a value, also of nested values."""
    if isinstance(value, str | bytes):
        return len(value)
    parts = value.values() if isinstance(value, dict) else value
    return 1 + sum(map(_size, parts)) if isinstance(value, list | tuple | dict) else 1


def _is_words(node: ast.expr) -> bool:
    """Return whether an expression has only names, periods, hyphens, numbers and commas."""
    if isinstance(node, ast.Tuple):
        return all(map(_is_words, node.elts))
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Sub) and _is_words(node.left) and _is_words(node.right)
    if isinstance(node, ast.Attribute):
        is_name = isinstance(node.value, ast.Name | ast.Attribute) and _is_words(node.value)
        return is_name and not node.attr.startswith("_")
    is_number = isinstance(node, ast.Constant) and type(node.value) in _Number
    return is_number or (isinstance(node, ast.Name) and not node.id.startswith("__"))
