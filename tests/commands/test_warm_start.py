"""A command that starts warm does what one that starts cold does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.support.warm_start import python

SHOW = """
import os, sys
print(__name__, sys.argv[1:], os.getcwd(), os.environ.get("MINE"), sys.stdin.read())
print(os.path.basename(sys.path[0]), "torch" in dir(), file=sys.stderr)
"""
CODES = {
    "shows": SHOW,
    "a status": "import sys; sys.exit(3)",
    "a message": "import sys; sys.exit('what to do')",
    "nothing": "import sys; sys.exit(None)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "its end": "import atexit; atexit.register(print, 'last')\nprint('first')",
    "a thread": "import threading; threading.Timer(0.1, print, ['later']).start()",
}


def run(interpreter, *words, **options):
    process = subprocess.run(
        [interpreter, *words], capture_output=True, text=True, check=False, input="a\nb", **options
    )
    return process.returncode, process.stdout, process.stderr


@pytest.mark.fast(3)
@pytest.mark.parametrize("code", CODES)
def test_streams_arguments_and_status_are_its_own(tmp_path, code):
    (tmp_path / "script.py").write_text(CODES[code])
    options = {"cwd": tmp_path, "env": {**os.environ, "MINE": "ä"}}
    for words in (["script.py", "--one", "two"], ["-c", CODES[code], "three"], ["-m", "script"]):
        assert run(python(), *words, **options) == run(sys.executable, *words, **options)


def test_modules_of_pythonpath_replace_those_that_are_imported(tmp_path):
    (tmp_path / "spacy.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert "ImportError: not here" in run(python(), "-c", "import spacy", env=environment)[2]


@pytest.mark.fast(1)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_the_command(end):
    code = "import sys; print('began', flush=True); sys.stdin.read(); print('never')"
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    process = subprocess.Popen([python(), "-c", code], **pipes, text=True)
    assert process.stdout.readline() == "began\n"
    process.send_signal(end)
    # The command has ended when nobody can write to its output.
    assert process.stdout.read() == ""
    process.stdin.close()
    assert process.wait() == -end


def test_spawned_processes_are_warm_and_their_ends_are_seen(tmp_path, monkeypatch):
    """They have an environment and a folder of their own, and import the package themselves."""
    monkeypatch.setenv("MINE", "ä")
    monkeypatch.chdir(tmp_path)
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        imported, environment, folder = pool.submit(state).result()
    assert "torch" in imported
    assert "fairseq_phrase" not in imported
    assert (environment, folder) == ("ä", str(tmp_path))
    event, exits = context.Event(), []
    kill = (signal.raise_signal, signal.SIGKILL)
    for target, *arguments in ((event.set,), (sys.exit, 3), kill):
        process = context.Process(target=target, args=arguments)
        process.start()
        process.join()
        exits.append(process.exitcode)
    assert exits == [0, 3, -signal.SIGKILL]
    assert event.is_set()


def state():
    return [*sys.modules], os.environ["MINE"], os.getcwd()
