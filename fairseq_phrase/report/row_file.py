"""Titles, order and papers' numbers of a table's rows, from a YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from fairseq_phrase.errors import UserError, at
from fairseq_phrase.text import read_lines


@dataclass(frozen=True)
class RowTitle:
    """How a row is shown.

    Attributes:
        title: its name in the table.
        paper: the paper's number, as it should be printed; None if the paper does not have one.
    """

    title: str
    paper: str | None = None


def read_row_file(path: Path) -> dict[str, RowTitle]:
    """Read a file of rows.

    ::

        transformer: {title: Transformer, paper: 20.90}
        ngram_k2: {title: PhraseTransformer k=2, paper: 34.61}

    Args:
        path: YAML, a mapping of rows (names of run folders) in the table's order; a row's value may also
            be only its title.

    Returns:
        The rows by name, in the file's order. The paper's number keeps its digits: 20.90 stays 20.90.

    Raises:
        UserError: the file is missing, is not YAML, or has other content.
    """
    text = "\n".join(read_lines(path))
    try:
        # Read all values as strings, so that numbers keep their digits.
        rows = yaml.load(text, Loader=yaml.BaseLoader)
        names = [key.value for key, _ in yaml.compose(text, Loader=yaml.BaseLoader).value]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "expected a mapping of rows"
        raise UserError(f"{at(path, mark.line + 1 if mark else None)}: {problem}") from None
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{path}: two rows are named '{name}'")
    if not isinstance(rows, dict):
        raise UserError(f"{path}: expected a mapping of rows")
    return {name: _row_title(path, name, entry) for name, entry in rows.items()}


def _row_title(path: Path, name: str, entry: object) -> RowTitle:
    if isinstance(entry, str):
        return RowTitle(entry or name)
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise UserError(f"{path}: row '{name}' must be a title, or have title and paper")
    unknown = set(entry) - {"title", "paper"}
    if unknown:
        raise UserError(
            f"{path}: row '{name}' has '{min(unknown)}'; what a row can have is title and paper (a "
            "comma within {} needs quotation marks around the text)"
        )
    return RowTitle(entry.get("title") or name, entry.get("paper") or None)
