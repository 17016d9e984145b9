"""The synthetic corpus is the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys


def test_files_are_byte_identical_in_processes_that_hash_differently(tmp_path):
    for hash_seed in ("1", "2"):
        out = tmp_path / hash_seed
        command = [sys.executable, "-m", "fairseq_phrase", "synthetic", "--out", str(out)]
        options = ["--train", "80", "--valid", "5", "--test", "5", "--seed", "7"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        subprocess.run([*command, *options], check=True, env=environment, capture_output=True)
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "12"
    )
    assert len(first) == 18
    assert first == second
