"""Print the changelog's section of this version, for the page of a release.

python scripts/release_notes.py [TAG]

The version in the package, CITATION.cff and docs/citing.md must be the same. With a tag, such as v0.1.0,
it must be the tag's, and the changelog's newest section must be dated; CITATION.cff has the same date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = {
    "fairseq_phrase/__init__.py": r'(?m)^__version__ = "(.*)"$',
    "CITATION.cff": r"(?m)^version: (.*)$",
    "docs/citing.md": r"(?m)^  version = \{(.*)\},$",
}
_DATE = r"(?m)^date-released: (.*)$"
_SECTION = re.compile(r"(?ms)^## (?P<title>[^\n]*)\n(?P<text>.*?)(?=^## |\Z)")


def value(root: Path, file: str, pattern: str) -> str:
    """Return what a pattern captures in a file.

    Raises:
        SystemExit: it does not occur.
    """
    match = re.search(pattern, (root / file).read_text(encoding="utf-8"))
    return match[1] if match else sys.exit(f"error: {file}: no line like {pattern}")


def notes(root: Path, tag: str | None = None) -> str:
    """Return the text of the changelog's newest section.

    Args:
        root: the repository.
        tag: the tag of the release; None before one.

    Raises:
        SystemExit: versions, dates, the tag or the changelog's section do not fit.
    """
    versions = {file: value(root, file, pattern) for file, pattern in VERSIONS.items()}
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{version} in {file}" for file, version in versions.items())
        sys.exit(f"error: versions differ: {listed}")
    version = versions["CITATION.cff"]
    if tag is not None and tag != f"v{version}":
        sys.exit(f"error: the tag is {tag}, and the package has version {version}: tag v{version}")
    section = _SECTION.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    title = section["title"] if section else "none"
    dated = re.fullmatch(rf"{re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)", title)
    if dated is None and (tag or title != "Unreleased"):
        sys.exit(
            f"error: CHANGELOG.md: the newest section is '{title}', expected '{version} (YYYY-MM-DD)'"
        )
    if dated and (date := value(root, "CITATION.cff", _DATE)) != dated[1]:
        sys.exit(f"error: the date is {date} in CITATION.cff and {dated[1]} in CHANGELOG.md")
    text = section["text"].strip() if section else ""
    return text or sys.exit(f"error: CHANGELOG.md: the section '{title}' is empty")


if __name__ == "__main__":
    print(notes(ROOT, *sys.argv[1:2]))
