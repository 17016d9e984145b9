"""Packages that are installed as pip would leave them behind."""

from __future__ import annotations

from pathlib import Path

#: What makes ``--parser of-test``: see ``install_parser`` in conftest.
parser_of_test = None


def install_package(folder: Path, name: str, entry_points: str = "", **modules: str) -> None:
    """Leave a package in a folder, which is to be in ``sys.path``.

    Args:
        folder: the folder.
        name: the package's name.
        entry_points: the text of its ``entry_points.txt``.
        **modules: the text of each module, by name.
    """
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    if entry_points:
        (metadata / "entry_points.txt").write_text(entry_points)
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
