"""``scripts/by_set.py``: exact match by test set, over the seeds."""

from __future__ import annotations

import sys

import pytest

from tests.support.repository import REPOSITORY

sys.path.append(str(REPOSITORY / "scripts"))
from by_set import main, scores_by_set

RUNS = """row,seed,exact match,exact match CP_3,exact match PP_3
a,1,15,10,20
a,2,25,20,30
b,1,50,0,100
"""


def test_scores_are_means_over_seeds_in_the_sets_order(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(RUNS)
    assert scores_by_set(path, ["CP_3", "PP_3"]) == {"a": [15.0, 25.0], "b": [0.0, 100.0]}
    assert scores_by_set(path, ["PP_3"]) == {"a": [25.0], "b": [100.0]}
    path.write_text("row,seed,exact match,well-formed\na,1,15,20\na,2,25,40\n")
    assert scores_by_set(path, ["test"]) == {"a": [20.0]}


def test_the_picture_is_written(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    picture = tmp_path / "sets.png"
    main([str(tmp_path / "runs.csv"), str(picture), "--sets", "PP_3", "CP_3"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_set_that_the_report_lacks_is_an_error(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    for sets in (["Q_long_mv"], ["PP_3", "Q_long_mv"]):
        with pytest.raises(
            SystemExit, match="has no column 'exact match Q_long_mv': its columns are"
        ):
            scores_by_set(tmp_path / "runs.csv", sets)


def test_a_report_without_runs_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"No such file .*none\.csv"):
        scores_by_set(tmp_path / "none.csv", ["PP_3"])
    (tmp_path / "runs.csv").write_text(RUNS.splitlines()[0] + "\n")
    with pytest.raises(SystemExit, match=r"runs\.csv has no runs"):
        scores_by_set(tmp_path / "runs.csv", ["PP_3"])
