"""Let fairseq find an editable installation: --user-dir fairseq_phrase works in every folder.

fairseq looks for a user directory in the working folder and next to its own package. An editable
installation is in neither, so a link next to fairseq leads to this checkout. The link is added to pip's
record, so pip removes it when it installs or uninstalls this package.

python -m pip install --no-build-isolation --editable . && python scripts/link_package.py
"""

import sys
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "fairseq_phrase"


def link() -> str:
    """Make the link, and return a message."""
    installed = distribution("fairseq-phrase")
    site = Path(str(installed.locate_file(""))).resolve()
    fairseq = Path(find_spec("fairseq").origin).resolve().parent.parent
    if fairseq != site:
        return f"fairseq is in {fairseq} and this package in {site}: use --user-dir {PACKAGE}"
    link_path = site / PACKAGE.name
    if link_path.is_symlink():
        link_path.unlink()
    elif link_path.exists():
        return f"{link_path} is a copy, not an editable installation: nothing to link"
    link_path.symlink_to(PACKAGE, target_is_directory=True)
    record = next(file for file in installed.files if file.name == "RECORD").locate()
    if f"{link_path.name},," not in record.read_text(encoding="utf-8").split():
        with record.open("a", encoding="utf-8") as lines:
            lines.write(f"{link_path.name},,\n")
    return f"{link_path} leads to {PACKAGE}"


if __name__ == "__main__":
    print(link(), file=sys.stderr)
