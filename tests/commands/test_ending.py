"""The end of a process: quick, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.repository import REPOSITORY

#: Functions of atexit run in reverse order: this one runs after the package's.
# Python 3.12 starts with some hundred frozen objects.
FROZEN = (
    "import atexit, gc; atexit.register(lambda: print('frozen:', gc.get_freeze_count() > 999))\n"
)
ENDINGS = {"pass": 0, "sys.exit(3)": 3, "raise ValueError('wrong')": 1, "sys.exit('wrong')": 1}
CYCLES = """
import gzip, sys
from fairseq_phrase.repairs.ending import end_quickly

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

#: A training that stops within an epoch, while fairseq's thread makes the next batches by torch.
BATCHES = """
import torch
from fairseq.data.iterators import BufferedIterator
from fairseq_phrase.repairs.ending import end_quickly

class Batches:
    def __len__(self):
        return 10**6

    def __iter__(self):
        for number in range(len(self)):
            for _ in range(100):
                torch.randn(50, 50).sum()
            yield number

end_quickly()
print(next(BufferedIterator(10**6, Batches())))
"""

#: As fairseq's iterators: a worker lives as long as its loader, which is in a cycle.
WORKERS = """
from multiprocessing.process import BaseProcess

from torch.utils.data import DataLoader
from fairseq_phrase.repairs.ending import end_quickly

join = BaseProcess.join

def waited(process, timeout=None):
    join(process, timeout)
    print("ended" if process.exitcode is not None else "waited in vain", flush=True)

BaseProcess.join = waited
end_quickly()
loader = DataLoader([1, 2], num_workers=2, persistent_workers=True)
loader.itself = loader
assert len(list(loader)) == 2
del loader
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


@pytest.mark.fast(2)
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


def test_no_worker_of_a_data_loader_is_waited_for_in_vain():
    """The end of the process's streams shows that they have ended, too."""
    ended = python(WORKERS)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.split("\n")) <= {"ended", ""}


def test_a_thread_that_makes_batches_aborts_no_finished_training():
    ended = python(BATCHES)
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
    assert python(BATCHES.replace("end_quickly()\n", "")).returncode < 0
