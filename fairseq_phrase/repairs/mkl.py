"""MKL's fastest kernels on AMD processors.

They make a training on a CPU 1.5 times as fast with AVX-512, and 1.1 to 1.3 times with AVX2. MKL uses
them only if it finds Intel's name. A library of one function, loaded before torch, replaces the function
that looks for the name. Loaded after torch it has no effect.

``FAIRSEQ_PHRASE_MKL=as-it-is`` leaves MKL as it is, and ``intel`` takes any processor for one that
needs the library.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from itertools import takewhile
from pathlib import Path

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
LIBRARY = "mkl_intel_kernels.so"
PROCESSOR = Path("/proc/cpuinfo")
COMMAND = "python -m fairseq_phrase.repairs.mkl"
#: Python runs this line of the environment when it starts.
START = (
    'import os, ctypes; os.environ.get("FAIRSEQ_PHRASE_MKL") == "as-it-is" '
    "or not os.path.isfile({library!r}) or ctypes.CDLL({library!r}, ctypes.RTLD_GLOBAL)\n"
)


def is_wanted() -> bool:
    """Return whether the library is for this processor, or asked for.

    Raises:
        SystemExit: FAIRSEQ_PHRASE_MKL has an unknown value.
    """
    choice = os.environ.get("FAIRSEQ_PHRASE_MKL", "")
    if choice not in ("", "intel", "as-it-is"):
        sys.exit(f"FAIRSEQ_PHRASE_MKL={choice}: expected as-it-is or intel")
    if choice:
        return choice == "intel"
    if not PROCESSOR.is_file():
        return False
    with PROCESSOR.open(encoding="utf-8") as lines:  # of the first core: a machine has hundreds
        words = " ".join(takewhile(str.strip, lines)).split()
    return {"AuthenticAMD", "avx2"} <= set(words)


def is_loaded() -> bool:
    """Return whether this process has the library, by LD_PRELOAD or by the environment's line."""
    return bool(getattr(ctypes.CDLL(None), "mkl_serv_intel_cpu_true", bool)())


def advice() -> str | None:
    """Return the command that makes trainings here faster in future, if there is one."""
    if os.environ.get("FAIRSEQ_PHRASE_MKL") or not is_wanted() or is_loaded():
        return None
    import torch

    if torch.cuda.is_available() or not has_mkl():
        return None
    return (
        "MKL does not use its fastest kernels on AMD processors, which make trainings 1.1 to 1.3 times "
        "as fast, with AVX-512 1.5 times. A command that changes this environment: "
        f"{COMMAND} --install (FAIRSEQ_PHRASE_MKL=as-it-is: no change, and no message)"
    )


def log_advice() -> None:
    """Log the advice once in a training, also if it has several processes."""
    is_first = multiprocessing.parent_process() is None and os.environ.get("RANK", "0") == "0"
    if is_first and (message := advice()):
        logging.getLogger(__name__).info(message)


def make_library(folder: Path) -> Path | None:
    """Return the library in a folder, made once; None if torch lacks MKL or there is no compiler."""
    library = folder / LIBRARY
    if library.is_file():
        return library
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or not has_mkl():
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        built = Path(work) / library.name
        command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(built)]
        if subprocess.run(command, input=SOURCE, text=True, capture_output=True).returncode:
            return None
        os.replace(built, library)
    return library


def has_mkl() -> bool:
    """Return whether torch multiplies matrices by MKL."""
    import torch

    return bool(torch.backends.mkl.is_available())


def _cache() -> Path:
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as error:  # a container's user without a name
        raise OSError(f"{error} Set XDG_CACHE_HOME.") from None
    return Path(home, "fairseq_phrase")


def _lines_of_environment() -> Path:
    """Return the file that Python reads when it starts in this environment."""
    return Path(sysconfig.get_path("purelib"), "fairseq_phrase_mkl.pth")


def install() -> str | None:
    """Let every Python of this environment load the library; return a message if that is new.

    Raises:
        OSError: the environment cannot be written, torch lacks MKL, or there is no compiler.
    """
    file = _lines_of_environment()
    library = make_library(file.parent)
    if library is None:
        raise OSError("torch lacks MKL, or no C compiler (cc) is installed")
    line = START.format(library=str(library))
    if file.is_file() and file.read_text(encoding="utf-8") == line:
        return None
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(line, encoding="utf-8")
    os.replace(partial, file)
    return f"MKL computes as on Intel in this environment ({sys.prefix})"


def remove() -> str:
    """Undo :func:`install`."""
    file = _lines_of_environment()
    for path in (file, file.parent / LIBRARY):
        path.unlink(missing_ok=True)
    return f"MKL is as it was in this environment ({sys.prefix})"


def preload() -> str | None:
    """Return the library for LD_PRELOAD; None if this process has it already, or torch lacks MKL.

    Raises:
        OSError: the cache cannot be written, or LD_PRELOAD cannot have its name.
    """
    if is_loaded():
        return None
    cache = _cache().resolve()
    if set(" :") & set(str(cache)):
        raise OSError(f"LD_PRELOAD would end at the blank or colon of {cache}: set XDG_CACHE_HOME")
    library = make_library(cache)
    return None if library is None else str(library)


def main() -> None:
    """Print the library for LD_PRELOAD, or change the environment."""
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Let MKL compute on an AMD processor as on Intel's. Without an option, print the "
        "library for LD_PRELOAD. Nothing happens on other processors, with FAIRSEQ_PHRASE_MKL=as-it-is, "
        "if torch lacks MKL, or without a C compiler.",
    )
    choice = parser.add_mutually_exclusive_group()
    for name, action, purpose in (
        ("--install", install, "let every Python of this environment load it when it starts"),
        ("--remove", remove, "undo --install"),
    ):
        choice.add_argument(name, action="store_const", const=action, dest="action", help=purpose)
    action = parser.parse_args().action or preload
    if action is remove or is_wanted():
        try:
            if message := action():
                print(message)
        except OSError as error:
            sys.stderr.write(f"MKL stays as it is: {error}\n")
            sys.exit(action is not preload)  # a script goes on


if __name__ == "__main__":
    main()
