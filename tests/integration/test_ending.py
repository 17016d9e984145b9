"""The end of a process: quick, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository import REPOSITORY

#: Functions of atexit run in reverse order: this one runs after the package's.
FROZEN = "import atexit, gc; atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 9))\n"
ENDINGS = {"pass": 0, "sys.exit(3)": 3, "raise ValueError('wrong')": 1, "sys.exit('wrong')": 1}
CYCLES = """
import gzip, sys
from fairseq_phrase.compat.ending import end_quickly

class Cycle:
    def __init__(self, file=None):
        self.itself, self.file = self, file

    def __del__(self):
        if self.file is None:
            print("freed")

end_quickly()
file = gzip.open(sys.argv[1], "wb")
file.write(b"a line\\n")
Cycle(file)
del file
sys.modules["in use"] = Cycle()
sys.stdout.write("the last words")
"""


def python(code, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        text=True,
        capture_output=True,
        **options,
    )


@pytest.mark.parametrize(("ending", "status"), ENDINGS.items())
def test_what_is_unreachable_is_finished_and_the_status_stays(ending, status, tmp_path):
    ended = python(CYCLES + ending, tmp_path / "text.gz")
    assert (ended.returncode, ended.stdout) == (status, "the last words")
    assert ("wrong" in ended.stderr) is ("wrong" in ending)
    text = subprocess.check_output(["gzip", "-dc", tmp_path / "text.gz"], text=True)
    assert text == "a line\n"
    # Without it, Python also frees what is in use.
    assert "freed" in python(CYCLES.replace("end_quickly()\n", ""), tmp_path / "other.gz").stdout


def test_commands_of_this_package_end_quickly():
    code = "from fairseq_phrase.cli import synthetic; synthetic.main(['--help'])"
    ended = python(FROZEN + code)
    assert ended.stdout.endswith("frozen: True\n")
    assert ended.returncode == 0
    assert python(FROZEN + "import fairseq_phrase.cli.synthetic").stdout == "frozen: False\n"


def test_commands_of_fairseq_with_the_user_directory_end_quickly():
    code = "import sys; from fairseq_cli.train import cli_main; sys.argv[1:] = {}; cli_main()"
    ended = python(FROZEN + code.format(["--user-dir", "fairseq_phrase", "--help"]))
    assert ended.stdout.endswith("frozen: True\n")
    assert ended.returncode == 0
