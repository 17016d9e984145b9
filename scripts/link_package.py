"""Let fairseq find an editable installation: --user-dir fairseq_phrase works in every folder.

fairseq looks for a user directory in the working folder and next to its own package. An editable
installation is in neither, so a link next to fairseq leads to this checkout. Where fairseq is not
compiled, links in its package lead to what replaces its extensions, for commands without --user-dir.
The links are added to pip's record, so pip removes them when it installs or uninstalls this package.

python -m pip install --no-build-isolation --editable . && python scripts/link_package.py
"""

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fairseq_phrase"
EXTENSIONS = ("data/data_utils_fast", "data/token_block_utils_fast", "libbleu")


def link() -> str:
    """Make the links, and return a message."""
    installed = distribution("fairseq-phrase")
    site = Path(str(installed.locate_file(""))).resolve()
    fairseq = Path(find_spec("fairseq").origin).resolve().parent
    if fairseq.parent != site:
        return (
            f"fairseq is in {fairseq.parent} and this package in {site}: use --user-dir {PACKAGE}"
        )
    for name in EXTENSIONS:
        if not any(Path(f"{fairseq / name}{suffix}").exists() for suffix in EXTENSION_SUFFIXES):
            replacement = PACKAGE / "repairs" / "uncompiled" / f"{Path(name).name}.py"
            _link(fairseq / f"{name}.py", replacement, installed)
    link_path = site / PACKAGE.name
    if not _link(link_path, PACKAGE, installed):
        return f"{link_path} is a copy, not an editable installation: nothing to link"
    return f"{link_path} leads to {PACKAGE}"


def _link(path: Path, target: Path, installed: Distribution) -> bool:
    """Let a link lead to a file or folder, unless something else is there."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        return False
    path.symlink_to(target)
    record = next(file for file in installed.files if file.name == "RECORD").locate()
    line = f"{path.relative_to(Path(str(installed.locate_file(''))).resolve())},,"
    if line not in record.read_text(encoding="utf-8").split():
        with record.open("a", encoding="utf-8") as lines:
            lines.write(f"{line}\n")
    return True


if __name__ == "__main__":
    print(link(), file=sys.stderr)
