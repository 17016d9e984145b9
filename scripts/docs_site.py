"""Hooks of mkdocs: pages of the site that are not in docs/, and links between all pages.

The files in docs/ are also read in the repository, so their links are relative to it. Here a link to a
file that is a page of the site leads to that page. A link to any other file becomes its text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^(\[[^\]]+\]: )(\S+)$", re.MULTILINE)
# README has absolute links, which also work on a package index.
_ABSOLUTE = re.compile(
    r"https://(github\.com/fairseq-phrase/fairseq_phrase/blob|"
    r"raw\.githubusercontent\.com/fairseq-phrase/fairseq_phrase)/main/"
)
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def other_pages() -> dict[str, str]:
    """Return the pages that are not in docs/: by file, relative to the repository, the page's name."""
    pages = {
        "README.md": "index.md",
        "CONTRIBUTING.md": "contributing.md",
        "CHANGELOG.md": "changelog.md",
        "SECURITY.md": "security.md",
        "results/README.md": "reports/index.md",
    }
    for report in sorted((ROOT / "results").glob("*/README.md")):
        pages[report.relative_to(ROOT).as_posix()] = f"reports/{report.parent.name}.md"
    return pages


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not in docs/."""
    for source, name in other_pages().items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page."""
    pages = other_pages()
    sources = {name: source for source, name in pages.items()}
    name = page.file.src_uri
    source = sources.get(name, f"docs/{name}")

    def on_site(target: str) -> str | None:
        """Return the link to a file; None for a file that is not on the site."""
        path, _, anchor = target.partition("#")
        if not path or "://" in target:
            return target
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not file.startswith("docs/") and file not in pages:
            return None
        site_file = pages.get(file, file.removeprefix("docs/"))
        link = posixpath.relpath(site_file, posixpath.dirname(name) or ".")
        return f"{link}#{anchor}" if anchor else link

    def rewritten(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        link = on_site(target)
        return text if link is None else f"{mark}[{text}]({link})"

    def defined(match: re.Match[str]) -> str:
        link = on_site(_ABSOLUTE.sub("", match[2]))
        return match[0] if link is None else match[1] + link

    parts = _CODE.split(markdown)
    parts[::2] = [_DEFINITION.sub(defined, _LINK.sub(rewritten, part)) for part in parts[::2]]
    return "".join(parts)
