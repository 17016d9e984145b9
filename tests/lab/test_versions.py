"""The settings of the environment that provenance and bug reports name."""

from __future__ import annotations

import os

from fairseq_phrase.lab import versions


def test_settings_name_files_without_their_folders(monkeypatch):
    monkeypatch.setattr(os, "environ", {"LD_PRELOAD": "/a/x.so:/b/y.so", "OMP_NUM_THREADS": "1"})
    monkeypatch.setattr(versions, "is_loaded", lambda: False)
    assert versions.settings() == "LD_PRELOAD=x.so:y.so OMP_NUM_THREADS=1"
    monkeypatch.setattr(versions, "is_loaded", lambda: True)
    assert versions.settings() == "LD_PRELOAD=x.so:y.so OMP_NUM_THREADS=1 MKL with AVX-512"


def test_no_setting_is_a_dash(monkeypatch):
    monkeypatch.setattr(os, "environ", {"HOME": "/a"})
    monkeypatch.setattr(versions, "is_loaded", lambda: False)
    assert versions.settings() == "-"
