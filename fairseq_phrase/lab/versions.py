"""What this machine, its packages and settings are, for provenance of results and for reports of bugs."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path

import fairseq_phrase
from fairseq_phrase.cores import num_cores
from fairseq_phrase.repairs.mkl import is_loaded

_NAME = re.compile(r"[\w.-]+")
# Extras of the project: tools, whose packages no result depends on, and lists of other extras.
_NO_PART = re.compile(r"extra == .(?:test|dev)\b|fairseq-phrase\[")
# What fairseq-fixed requires, and many problems come from.
_OF_FAIRSEQ = ("hydra-core", "omegaconf", "torchaudio")
_VARIABLES = re.compile(
    r"(?:OMP|MKL|KMP|OPENBLAS|CUDA|CUBLAS|CUDNN|NCCL|TORCH|PYTORCH|MALLOC)_\w+"
    r"|NVIDIA_TF32_OVERRIDE|LD_PRELOAD|PYTHONHASHSEED|FAIRSEQ_PHRASE_MKL"
)


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
    return f"{processor}, {num_cores()} cores, {memory:.0f} GiB; {', '.join(gpus) or 'no GPU'}"


def software() -> str:
    """Name the versions of Python and of the installed packages that the project requires.

    If the project itself is not installed, its requirements are unknown: name all installed packages.
    """
    try:
        required = [
            requirement
            for requirement in requires("fairseq_phrase") or []
            if not _NO_PART.search(requirement)
        ]
        names = ["fairseq_phrase", *(match[0] for match in map(_NAME.match, required) if match)]
    except PackageNotFoundError:
        names = sorted(package.name for package in distributions())
    parts = [f"Python {platform.python_version()}"]
    for package in dict.fromkeys([*names, *_OF_FAIRSEQ]):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(parts)


def settings() -> str:
    """Name the environment variables that change results or speed, with their values.

    Of paths, only the files' names are in it: folders are specific to the machine.
    """
    variables = [
        f"{name}={os.pathsep.join(Path(part).name for part in value.split(os.pathsep))}"
        for name, value in sorted(os.environ.items())
        if _VARIABLES.fullmatch(name)
    ]
    # The .pth line of an environment may load the library, without a variable.
    library = ["MKL as on Intel"] if is_loaded() else []
    return " ".join(variables + library) or "-"


def plugins() -> str:
    """Name what installed packages add: encoders, parsers, segmenters and others."""
    names = {
        f"{point.group.removeprefix('fairseq_phrase.')}: {point.name} ({point.value})"
        for package in distributions()
        for point in package.entry_points
        if point.group.startswith("fairseq_phrase.")
    }
    return ", ".join(sorted(names)) or "-"


def report() -> str:
    """Return what a report of a bug needs, one fact per line."""
    try:
        import torch

        hardware = machine()
        cuda = f"{torch.version.cuda or 'no'} (torch's), cuDNN {torch.backends.cudnn.version() or 'no'}"
    except Exception as error:  # a torch that cannot be imported is a bug to report
        hardware, cuda = f"unknown: import torch: {error!r}", "-"
    facts = {
        "fairseq-phrase": f"{fairseq_phrase.__version__} in {Path(fairseq_phrase.__file__).parent}",
        "system": platform.platform(),
        "machine": hardware,
        "CUDA": cuda,
        "software": software(),
        "settings": settings(),
        "plugins": plugins(),
    }
    return "\n".join(f"{name}: {fact}" for name, fact in facts.items())
