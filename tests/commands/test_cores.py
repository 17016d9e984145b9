"""How many cores commands and scripts use."""

from __future__ import annotations

import os
import re
import subprocess

from fairseq_phrase.cores import num_cores
from tests.support.repository import REPOSITORY


def cores_of_scripts(threads: int) -> int:
    variables = {"OMP_NUM_THREADS": str(threads), "OMP_THREAD_LIMIT": "1"}
    code = ["bash", "-c", ". scripts/common.sh; cores"]
    return int(subprocess.check_output(code, cwd=REPOSITORY, env=os.environ | variables))


def test_all_cores_that_a_process_may_use_whatever_its_number_of_threads():
    cores = os.sched_getaffinity(0)
    assert cores_of_scripts(len(cores) + 1) == num_cores() == len(cores)
    os.sched_setaffinity(0, {min(cores)})
    try:
        assert cores_of_scripts(2) == num_cores() == 1
    finally:
        os.sched_setaffinity(0, cores)


def test_nothing_counts_them_in_another_way():
    """By nproc, which obeys OMP_NUM_THREADS, or as os.cpu_count, with cores that other jobs have."""
    folders = [REPOSITORY / name for name in ("fairseq_phrase", "scripts", "benchmarks", ".ci")]
    counting = re.compile(rb"\bnproc\b|\bcpu_count\b")
    names = {
        path.name
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and counting.search(path.read_bytes())
    }
    assert names == {"cores.py", "common.sh"}
