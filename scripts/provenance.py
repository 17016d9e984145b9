"""Print when, how and where something was run, to keep with its result.

python scripts/provenance.py COMMAND...
"""

import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

from fairseq_phrase.compat.mkl import is_loaded

_REQUIRED = re.compile(r"[\w.-]+")
# Extras of the project: tools, whose packages no result depends on, and lists of other extras.
_NO_PART = re.compile(r"extra == .(?:test|dev)\b|fairseq-phrase\[")
_VARIABLES = re.compile(
    r"(?:OMP|MKL|KMP|OPENBLAS|CUDA|CUBLAS|CUDNN|NCCL|TORCH|PYTORCH|MALLOC)_\w+"
    r"|NVIDIA_TF32_OVERRIDE|LD_PRELOAD|PYTHONHASHSEED|FAIRSEQ_PHRASE_MKL"
)


def commit() -> str:
    """Name the commit, and whether tracked files differ from it."""

    def git(*arguments: str) -> str:
        finished = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
        return finished.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (" and changes that are not committed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown (no git repository)"


def machine() -> str:
    """Name the processor, the memory and the GPUs."""
    import torch

    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    name = re.search(r"model name\s*: (.*)", text)
    processor = name[1] if name else platform.processor() or platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpus = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    return f"{processor}, {os.cpu_count()} cores, {memory:.0f} GiB; {', '.join(gpus) or 'no GPU'}"


def software() -> str:
    """Name the versions of Python and of the installed packages that the project requires.

    If the project itself is not installed, its requirements are unknown: name all installed packages.
    """
    try:
        required = [each for each in requires("fairseq_phrase") or [] if not _NO_PART.search(each)]
        found = [match[0] for match in map(_REQUIRED.match, required) if match]
        names = ["fairseq_phrase", *found]
    except PackageNotFoundError:
        names = sorted(each.name for each in distributions())
    parts = [f"Python {platform.python_version()}"]
    for package in dict.fromkeys(names):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def main() -> None:
    """Print the facts, one per line, and an empty line."""
    # Of a path, print only the file's name: the folder is specific to this machine.
    variables = {
        name: Path(value).name
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name)
    }
    # An environment's own line may load it, without a variable.
    settings = [f"{name}={value}" for name, value in variables.items()]
    settings += ["MKL with AVX-512"] * is_loaded()
    facts = {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join(sys.argv[1:]),
        "commit": commit(),
        "machine": machine(),
        "software": software(),
        "environment": " ".join(settings) or "-",
    }
    print(*(f"{name}: {value}" for name, value in facts.items()), "", sep="\n")


if __name__ == "__main__":
    main()
