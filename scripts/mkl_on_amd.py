"""Print a library that lets MKL use AVX-512 on an AMD processor that has it; make the library once.

MKL uses AVX-512 only if it finds Intel's name. The library replaces the one function that looks for the
name. It must be loaded before torch (LD_PRELOAD), and computes nothing itself. Nothing is printed on
other processors (FAIRSEQ_PHRASE_MKL=avx512 is for any), with FAIRSEQ_PHRASE_MKL=as-it-is, if torch lacks
MKL, or if no C compiler is installed.

python scripts/mkl_on_amd.py [FOLDER]    the folder that keeps the library (~/.cache/fairseq_phrase)
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
PROCESSOR = Path("/proc/cpuinfo")


def is_wanted() -> bool:
    """Return whether the library is for this processor, or asked for.

    Raises:
        SystemExit: FAIRSEQ_PHRASE_MKL has an unknown value.
    """
    choice = os.environ.get("FAIRSEQ_PHRASE_MKL", "")
    if choice not in ("", "avx512", "as-it-is"):
        sys.exit(f"FAIRSEQ_PHRASE_MKL={choice}: expected as-it-is or avx512")
    if choice:
        return choice == "avx512"
    words = set(PROCESSOR.read_text().split()) if PROCESSOR.is_file() else set()
    return {"AuthenticAMD", "avx512f"} <= words


def make_library(folder: Path) -> Path | None:
    """Return the library in a folder; None if it would have no effect or cannot be made."""
    library = folder / "mkl_avx512.so"
    # A space or a colon would end the name in LD_PRELOAD.
    if not library.is_file() and not set(" :") & set(str(library)):
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
    return library if library.is_file() else None


def has_mkl() -> bool:
    """Return whether torch multiplies matrices by MKL."""
    import torch

    return torch.backends.mkl.is_available()


def main() -> None:
    """Print the library's path, if it is wanted and exists."""
    if not is_wanted():
        return
    home = os.environ.get("HOME") or tempfile.gettempdir()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path(home, ".cache"), "fairseq_phrase")
    try:
        library = make_library(Path(sys.argv[1] if len(sys.argv) > 1 else cache).resolve())
    except OSError as error:
        sys.stderr.write(f"MKL stays as it is: {error}\n")
        return
    if library is not None:
        print(library)


if __name__ == "__main__":
    main()
