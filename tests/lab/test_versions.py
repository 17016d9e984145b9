"""The settings of the environment that provenance and bug reports name."""

from __future__ import annotations

import os

import pytest

from fairseq_phrase.lab import versions

SETTINGS = {"LD_PRELOAD": "/a/x.so:/b/y.so", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    ("environment", "is_loaded", "settings"),
    [
        (SETTINGS, False, "LD_PRELOAD=x.so:y.so OMP_NUM_THREADS=1"),
        (SETTINGS, True, "LD_PRELOAD=x.so:y.so OMP_NUM_THREADS=1 MKL as on Intel"),
        ({"HOME": "/a"}, False, "-"),
    ],
)
def test_settings_name_files_without_their_folders(environment, is_loaded, settings, monkeypatch):
    monkeypatch.setattr(os, "environ", environment)
    # What the processor of this machine and the test's start decide.
    monkeypatch.setattr(versions, "is_loaded", lambda: is_loaded)
    assert versions.settings() == settings
