"""Commands that start at once: forks of a process that has imported torch, fairseq and spaCy.

To import them takes several seconds, which most tests of a command spend more than once. A fork runs the
same script, with arguments, environment, folder, streams and exit status of its own. Processes that
multiprocessing spawns are such forks, too (:func:`spawn`). For commands of
this package, and for those of fairseq with --user-dir, this package is imported and registered already.
Commands with plugins in PYTHONPATH import it anew, and so do all of this package's with anything there:
a command of the documentation's pages that does not register what it needs fails. Four things differ
from a process of its own: the hash seed, variables that libraries read when they are imported, what
torch and fairseq would say while they are imported, and options that were composed before
(:mod:`tests.support.composing`).

:func:`python` replaces the interpreter for ``python FILE …``, ``python -c CODE …`` and ``python -m
MODULE …``.
:func:`commands` is a folder for PATH. Where the system is not Linux, they are the usual ones.
"""

from __future__ import annotations

import ast
import atexit
import fcntl
import functools
import gc
import importlib
import logging
import multiprocessing.spawn
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from multiprocessing import popen_spawn_posix
from pathlib import Path

IMPORTED = (
    "torch", "torch._dynamo", "fairseq", "fairseq.model_parallel.megatron_trainer", "matplotlib.pyplot",
    "sacrebleu", "safetensors.torch", "scipy.stats", "sentencepiece", "spacy", "jinja2", "tqdm",
)  # fmt: skip
#: These configure logging after fairseq is imported, which does it as well.
LOG_LATE = ("fairseq-generate", "fairseq-phrase-")
USER_DIR = ("fairseq-train", "fairseq-generate", "fairseq-interactive", "fairseq-validate")
ROOT = Path(__file__).resolve().parents[2]
SOCKETS = ("libraries", "package")  # of the process without this package, and of that with it
REAL = Path(sys.executable).parent
#: It imports only what is built in, and takes 10 milliseconds.
CLIENT = """#!{python} -IS
import _signal, _socket, os, sys

def has_plugins(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return "fairseq_phrase" in names or any(
        os.path.exists(os.path.join(folder, name, "entry_points.txt")) for name in names
    )

name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
if not name.startswith("python"):
    words = ["{real}/" + name, *words]
elif not words or (words[0].startswith("-") and words[0] not in ("-c", "-m")):
    os.execv("{python}", ["{python}", *words])
# A process of multiprocessing reads what it does from files that it inherits, by their numbers.
inherited = []
if words[-1] == "--multiprocessing-fork":
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    inherited = [n for n in numbers if n > 2 and os.path.exists(f"/proc/self/fd/{{n}}")]
added = set(os.environ.get("PYTHONPATH", "").split(":")) - {paths}
command = os.path.basename(words[0])
if command.startswith("fairseq-phrase-"):
    whole = not added
else:
    whole = command in {user_dir} and "--user-dir" in words and not any(map(has_plugins, added))
server = _socket.socket(_socket.AF_UNIX)
server.connect("{folder}/" + {sockets}[whole])
files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, *inherited))
server.sendmsg([b"."], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
server.sendall(ascii([words, os.getcwd(), dict(os.environ), inherited]).encode() + b"\\n")

def answer():
    line = b""
    while not line.endswith(b"\\n"):
        line += server.recv(1) or sys.exit("the process that starts commands has ended")
    return int(line)

child = answer()
for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM):
    if _signal.getsignal(number) != _signal.SIG_IGN:
        _signal.signal(number, lambda number, frame: os.kill(child, number))
status = answer()
if status < 0:  # ended by a signal
    if -status != _signal.SIGKILL:
        _signal.signal(-status, _signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


def python() -> str:
    """Return an interpreter."""
    return str(commands() / "python")


@functools.cache
def commands() -> Path:
    """Return a folder with python, python3 and the commands of fairseq and of this package."""
    if sys.platform != "linux":
        return REAL
    folder = Path(tempfile.mkdtemp(prefix="warm"))
    listeners = [socket.socket(socket.AF_UNIX) for _ in SOCKETS]
    for name, listener in zip(SOCKETS, listeners, strict=True):
        listener.bind(str(folder / name))
        listener.listen()
    paths = ["", str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    numbers = [listener.fileno() for listener in listeners]
    environment = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, str(folder), *map(str, numbers)],
        stdin=subprocess.PIPE,  # its end is the server's
        pass_fds=numbers,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
    for listener in listeners:
        listener.close()
    client = folder / "python"
    code = CLIENT.format(
        python=sys.executable, real=REAL, folder=folder, paths=set(paths), user_dir=USER_DIR,
        sockets=SOCKETS,
    )  # fmt: skip
    client.write_text(code)
    client.chmod(0o755)
    for name in ("python3", *(path.name for path in REAL.glob("fairseq-*"))):
        (folder / name).symlink_to("python")

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        try:
            server.wait(5)
        except subprocess.TimeoutExpired:
            # Data workers of trainings in this process were forked with the server's standard input.
            server.terminate()
            server.wait()
        shutil.rmtree(folder)

    atexit.register(end)
    return folder


def spawn(interpreter: Callable[[], str]) -> None:
    """Let processes that multiprocessing spawns in this process and its forks start warm.

    Args:
        interpreter: returns what is started instead of ``sys.executable``.
    """
    if sys.platform == "linux":
        popen_spawn_posix.spawn = types.SimpleNamespace(
            get_preparation_data=multiprocessing.spawn.get_preparation_data,
            get_executable=lambda: os.fsencode(interpreter()),
            get_command_line=lambda **fds: [
                "",
                *multiprocessing.spawn.get_command_line(**fds)[-3:],
            ],
        )


def serve(listener: socket.socket) -> tuple[list[str], dict[int, int]]:
    """Fork for each command; in the fork, return the command and the files that it inherits.

    Returns:
        The command's words, and by number of an inherited file the number that it shall have.

    Raises:
        SystemExit: in the server, when the process that started it has closed its standard input.
    """
    alive = os.dup(0)
    running: dict[int, tuple[int, socket.socket]] = {}  # file descriptor: its process and client
    clients: dict[socket.socket, int] = {}  # and their processes
    while True:
        ready = select.select([listener, alive, *running, *clients], [], [])[0]
        if alive in ready:
            sys.exit()
        for connection in ready:
            if connection is listener:
                client, _ = listener.accept()
                _, received, _, _ = socket.recv_fds(client, 1, 64)
                streams, inherited = received[:3], received[3:]
                words, folder, environment, numbers = ast.literal_eval(client.makefile().readline())
                pid = os.fork()
                if pid == 0:
                    become(streams, folder, environment)
                    return words, dict(zip(inherited, numbers, strict=True))
                for stream in received:
                    os.close(stream)
                client.sendall(b"%d\n" % pid)
                watched = os.pidfd_open(pid)
                running[watched], clients[client] = (pid, client), pid
            elif connection in running:
                pid, client = running.pop(connection)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if client in clients:
                    del clients[client]
                    client.sendall(b"%d\n" % status)
                    client.close()
                os.close(connection)
            elif connection in clients:  # it was killed, and so is the command
                os.kill(clients.pop(connection), signal.SIGKILL)
                connection.close()


def become(streams: list[int], folder: str, environment: dict[str, str]) -> None:
    """Take over the streams, the folder and the environment of a client."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # How the server's own streams are encoded cannot be changed any more.
    sys.stdout, sys.stderr = (
        open(number, "w", buffering, stream.encoding, stream.errors, closefd=False)  # noqa: SIM115
        for number, buffering, stream in ((1, -1, sys.stdout), (2, 1, sys.stderr))
    )
    # A client whose shell ignores the signal does not pass it on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    folders = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    paths = [path for path in map(os.path.abspath, folders) if path not in sys.path[1:]]
    sys.path[1:1] = paths
    replaced = {file.stem for path in paths for file in Path(path).glob("*")}
    if replaced:  # to read all names takes 15 milliseconds
        for name in [name for name in sys.modules if name.partition(".")[0] in replaced]:
            del sys.modules[name]  # a test's own module of that name is imported instead
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    importlib.import_module("numpy").random.seed()


def run(words: list[str]) -> int:
    """Run a script as the interpreter does; return its exit status."""
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if words[0] == "-c":
        _, code, *arguments = words
        sys.argv, sys.path[0] = ["-c", *arguments], ""
    elif words[0] == "-m":
        _, module, *arguments = words
        code = f"import runpy; runpy.run_module({module!r}, None, '__main__', True)"
        sys.argv, sys.path[0] = ["-m", *arguments], os.getcwd()
    else:
        script = Path(words[0])
        code, main.__file__ = script.read_text("utf-8"), words[0]
        sys.argv, sys.path[0] = words, str(script.resolve().parent)
    if not Path(words[0]).name.startswith(LOG_LATE):
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
    try:
        exec(compile(code, words[0], "exec"), main.__dict__)
        return 0
    except SystemExit as ended:
        if not isinstance(ended.code, str):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    return 1


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    for module in IMPORTED:
        importlib.import_module(module)
    composing = importlib.import_module("tests.support.composing")
    composing.remember()
    composing.learn("translation", "transformer")
    logging.disable(logging.NOTSET)
    folder, *numbers = sys.argv[1:]
    spawn(lambda: f"{folder}/python")
    listeners = [socket.socket(fileno=int(number)) for number in numbers]
    chosen = 0
    if os.fork() == 0:
        chosen = 1
        user_dir = types.SimpleNamespace(user_dir=str(ROOT / "fairseq_phrase"))
        importlib.import_module("fairseq.utils").import_user_module(user_dir)
        composing.learn(
            "syntax_translation", "transformer", "relation_transformer", "phrase_transformer_tiny"
        )
        importlib.import_module("tests.support.refusals").record()
    for one in list(weakref.finalize._registry):
        one.atexit = (
            False  # torch takes back what it registered: half of the time of a short command
        )
    gc.collect()
    gc.freeze()
    words, inherited = serve(listeners[chosen])
    for listener in listeners:
        listener.close()
    # Out of the way first: the one's number now may be the other's.
    above = max(inherited.values(), default=0) + 1
    moved = [(fcntl.fcntl(now, fcntl.F_DUPFD, above), then) for now, then in inherited.items()]
    for now in inherited:
        os.close(now)
    for now, then in moved:
        os.dup2(now, then)
        os.close(now)
    status = run(words)
    # What the interpreter does at its end, without freeing all modules, which takes half a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
