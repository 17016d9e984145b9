"""The commands in the pages of docs/, as a user gives them, with small data and short trainings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.support import warm_start
from tests.support.packages import install_package
from tests.support.repository import REPOSITORY

#: Nothing is downloaded or installed. Scripts, examples and the demo have tests of their own.
LEFT_OUT = ("bash scripts/", "git clone ", "fairseq-phrase-demo ", "pip install ", "python -m ")
_SMALLER = {
    r"--vocab-size \d+": "--vocab-size 300",
    r"--workers \d+": "--workers 1",
    # Models that have hardly learned write translations of the largest length.
    r"--max-epoch \d+": "--max-epoch 2 --max-target-positions 100",
    r"--max-update \d+": "--max-update 2",
    r"checkpoint\.save_dir=": "optimization.max_update=2 checkpoint.save_dir=",
    r"--last \d+": "--last 2",
    r"fairseq-(generate|interactive)": r"\g<0> --max-len-b 8",
    r"--user-dir fairseq_phrase": f"--user-dir {REPOSITORY}/fairseq_phrase",
    r"\$PWD/fairseq_phrase": f"{REPOSITORY}/fairseq_phrase",
}
#: What a pipeline's package offers to spacy.load.
_PACKAGE = """
from pathlib import Path

import spacy


def load(**options):
    return spacy.load(Path(__file__).parent / "{name}-1.0", **options)
"""


def blocks_of(page: str) -> list[str]:
    """The bash blocks of a page, a command on each line."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(r"\\\n\s*", "", block) for block in blocks]


def run_page(
    page: str,
    folder: Path,
    changed: Mapping[str, str] | None = None,
    left_out: tuple[str, ...] = (),
    packages: Path | None = None,
) -> list[str]:
    """Run a page's blocks; return what each printed.

    Args:
        page: its path in the repository.
        folder: in which the commands run, with ``configs`` and ``scripts`` as in a clone.
        changed: what stands in the page, and what takes its place. All of it must be there.
        left_out: how commands begin that are not run.
        packages: a folder of installed packages (:func:`install_pipelines`).
    """
    for name in ("configs", "scripts"):
        if not (folder / name).exists():
            (folder / name).symlink_to(REPOSITORY / name)
    path = f"{warm_start.commands()}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
        "CUDA_VISIBLE_DEVICES": "",
    }  # fmt: skip
    if packages is not None:
        environment["PYTHONPATH"] = str(packages)
    printed, used = [], set()
    for block in blocks_of(page):
        for text, replaced in (changed or {}).items():
            used |= {text} if text in block else set()
            block = block.replace(text, replaced)
        for pattern, short in _SMALLER.items():
            block = re.sub(pattern, short, block)
        lines = block.splitlines(keepends=True)
        block_to_run = "".join(
            line for line in lines if not line.startswith((*LEFT_OUT, *left_out))
        )
        process = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block_to_run],
            cwd=folder, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert process.returncode == 0, f"{page}:\n{block_to_run}\n{process.stderr[-5000:]}"
        printed.append(process.stdout)
    assert used == set(changed or {}), set(changed or {}) - used
    return printed


def install_pipelines(folder: Path, pipeline: Path, *names: str) -> Path:
    """Make a folder for PYTHONPATH in which a spaCy pipeline is installed under several names."""
    for name in names:
        package = folder / name
        package.mkdir(parents=True)
        install_package(folder, name)
        (package / "__init__.py").write_text(_PACKAGE.format(name=name))
        (package / f"{name}-1.0").symlink_to(pipeline)
    return folder
