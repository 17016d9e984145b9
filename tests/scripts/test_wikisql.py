"""``scripts/wikisql.py``: queries with their values, headers, splits, and bad input."""

from __future__ import annotations

import bz2
import json
import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from wikisql import main, read_query


def entry(sql: str, split: str, text: str, **values: str) -> dict:
    sentence = {"question-split": split, "table-id": "T", "text": text, "variables": values}
    return {"sql": [sql], "sentences": [sentence]}


A = "TABLEalias0."
SELECT = f"SELECT {A}BIKE_NO_FIELD FROM TABLE AS TABLEalias0"


def test_values_and_columns_become_quoted_tokens():
    sql = (
        f'SELECT MAX {A}WINS_(TOTAL)_FIELD FROM TABLE AS TABLEalias0 WHERE {A}DJ\'S_FIELD = "var1"'
    )
    query, columns = read_query(
        f"{sql} AND NO._FIELD > var0 ;", {"var0": "7", "var1": "O'Neil AND Co"}
    )
    assert columns == ("wins ( total )", "dj \u2019 s", "no .")
    assert query == (
        'SELECT MAX ( " wins ( total ) " ) FROM t WHERE " dj \u2019 s " = \' o \u2019 neil and co \' '
        "AND \" no . \" > ' 7 '"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x",
        f"{SELECT} WHERE {A}B_FIELD = var0 > var1 ;",
        f"{SELECT} WHERE {A}B_FIELD = var9 ;",
    ],
)
def test_other_queries_are_left_out(sql):
    assert read_query(sql, {"var0": "1", "var1": "2"}) is None


def test_sources_are_questions_and_their_tables_columns(tmp_path):
    entries = [
        entry(
            f'{SELECT} WHERE {A}RIDER_FIELD = "var0" ;', "train", "Bike of var0?", var0="Mike Brady"
        ),
        entry(f"SELECT COUNT {A}RANK_FIELD FROM TABLE AS TABLEalias0 ;", "test", "How many?"),
        entry(f"SELECT COUNT {A}RANK_FIELD FROM TABLE AS TABLEalias0 ;", "dev", "How many?"),
    ]
    path = tmp_path / "wikisql.json.bz2"
    path.write_bytes(bz2.compress(json.dumps(entries).encode()))
    main([str(tmp_path), str(tmp_path / "out"), "--train", "1", "--held-out", "1"])
    texts = {file.name: file.read_text() for file in (tmp_path / "out").iterdir()}
    assert texts["train.en"] == "bike of mike brady ? | bike no | rank | rider\n"
    assert texts["train.sql"] == 'SELECT " bike no " FROM t WHERE " rider " = \' mike brady \'\n'
    assert texts["test.en"] == texts["valid.en"] == "how many ? | bike no | rank | rider\n"
    assert texts["test.sql"] == 'SELECT COUNT ( " rank " ) FROM t\n'


@pytest.mark.parametrize("text", ["{", '[{"sql": []}]', '{"a": 1}'])
def test_a_file_of_another_format_is_named(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(SystemExit, match=r"expected text2sql-data's wikisql\.json"):
        main([str(path), str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
