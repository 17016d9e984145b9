r"""Write questions and queries of WikiSQL as parallel files.

    python scripts/wikisql.py wikisql.json.bz2 OUT [--train N] [--held-out N]

The file is text2sql-data's. The output is OUT/{train,valid,test}.{en,sql}, lower-cased tokens separated
by white space. A source is the question and the names of the table's columns:

    what bike has position 30 ? | bike no | position | rider
    SELECT " bike no " FROM t WHERE " position " = ' 30 '

text2sql-data lacks the tables. Therefore a table's columns are all columns that its questions use. Splits
are WikiSQL's, in which no table is in two. N pairs of each are drawn by a hash of the question.
"""

from __future__ import annotations

import argparse
import bz2
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_phrase.errors import UserError

_COLUMN = r"(?:TABLEalias0\.)?(\S+)_FIELD"
_QUERY = re.compile(
    rf"SELECT (?:(COUNT|MAX|MIN|SUM|AVG) )?{_COLUMN} FROM TABLE AS TABLEalias0(?: WHERE (.*))? ;"
)
_CONDITION = re.compile(rf'{_COLUMN} ([=<>]) "?(var\d+)"?')
_AND = re.compile(r" AND (?=\S+_FIELD [=<>] )")
_VARIABLE = re.compile(r"\bvar\d+\b")
_TOKEN = re.compile(r"\w+|[^\w\s]")
# Quotation marks would end names and values.
_MARKS = str.maketrans({"'": "\u2019", '"': "\u201d", "_": " "})
SPLITS = {"train": "train", "dev": "valid", "test": "test"}


class Example(NamedTuple):
    """A question and its query, in tokens; ``columns`` are the query's columns."""

    split: str
    table: str
    question: str
    query: str
    columns: tuple[str, ...]


def tokens(text: str) -> str:
    """Write a text as lower-cased tokens separated by spaces."""
    return " ".join(_TOKEN.findall(text.translate(_MARKS).lower()))


def read_query(sql: str, values: dict[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """Write a query with its values instead of variables.

    Returns:
        The query and its columns; None if a value is unknown or the query is not like WikiSQL's.
    """
    match = _QUERY.fullmatch(sql)
    if match is None:
        return None
    aggregate, column, where = match.groups()
    columns, conditions = [tokens(column)], []
    for part in _AND.split(where) if where else ():
        condition = _CONDITION.fullmatch(part)
        if condition is None or not tokens(values.get(condition[3], "")):
            return None
        columns.append(tokens(condition[1]))
        conditions.append(f"\" {columns[-1]} \" {condition[2]} ' {tokens(values[condition[3]])} '")
    if not all(columns):
        return None
    quoted_column = f'" {columns[0]} "'
    query = f"SELECT {aggregate} ( {quoted_column} )" if aggregate else f"SELECT {quoted_column}"
    query += " FROM t" + (f" WHERE {' AND '.join(conditions)}" if conditions else "")
    return query, tuple(columns)


def examples(entries: Iterable[Any]) -> Iterator[Example]:
    """Yield the questions with queries that can be read."""
    for entry in entries:
        for sentence in entry["sentences"]:
            values = sentence["variables"]
            query = read_query(entry["sql"][0], values)
            if query is not None:
                text = _VARIABLE.sub(lambda name: values.get(name[0], name[0]), sentence["text"])  # noqa: B023
                yield Example(
                    SPLITS[sentence["question-split"]], sentence["table-id"], tokens(text), *query
                )


def read(path: Path) -> list[Example]:
    """Read the file.

    Raises:
        UserError: the file is not text2sql-data's.
    """
    try:
        with (bz2.open if path.suffix == ".bz2" else open)(path, "rt", encoding="utf-8") as stream:
            return list(examples(json.load(stream)))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(
            f"{path}: expected text2sql-data's wikisql.json ({type(error).__name__}: {error})"
        ) from None


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="wikisql.json or .bz2, or the folder of the latter")
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=int, default=10_000, help="training pairs")
    parser.add_argument("--held-out", type=int, default=1000, help="pairs of each other split")
    args = parser.parse_args(arguments)
    try:
        folder = args.file.is_dir()
        all_examples = read(args.file / "wikisql.json.bz2" if folder else args.file)
    except UserError as error:
        sys.exit(f"error: {error}")
    headers: dict[str, set[str]] = defaultdict(set)
    for example in all_examples:
        headers[example.table].update(example.columns)
    all_examples.sort(key=lambda one: hashlib.sha256(one.question.encode()).digest())
    args.out.mkdir(parents=True, exist_ok=True)
    # The test set is written last: an interrupted run is not mistaken for a finished one.
    for split in SPLITS.values():
        examples_of_split = [example for example in all_examples if example.split == split]
        examples_of_split = examples_of_split[: args.train if split == "train" else args.held_out]
        with (
            open(args.out / f"{split}.sql", "w", encoding="utf-8") as queries,
            open(args.out / f"{split}.en", "w", encoding="utf-8") as questions,
        ):
            for chosen_example in examples_of_split:
                print(chosen_example.query, file=queries)
                print(
                    chosen_example.question,
                    *sorted(headers[chosen_example.table]),
                    sep=" | ",
                    file=questions,
                )
        print(f"{split}: {len(examples_of_split)} pairs")


if __name__ == "__main__":
    main()
