"""``scripts/release_notes.py``: equal versions, a tag that fits, a dated section of the changelog."""

from __future__ import annotations

import re
import runpy

import pytest
import yaml

import fairseq_phrase
from tests.support.repository import REPOSITORY

MODULE = runpy.run_path(str(REPOSITORY / "scripts" / "release_notes.py"))
VERSIONS, notes = MODULE["VERSIONS"], MODULE["notes"]
VERSION = "1.3.0"
CHANGELOG = (
    f"# Changelog\n\n## {VERSION} (2026-01-31)\n\n- new\n\n### Fixed\n\n- old\n\n"
    "## 1.1.0 (2025-01-01)\n\n- x\n"
)


@pytest.fixture
def repository(tmp_path):
    for name, text in {
        "fairseq_phrase/__init__.py": f'x = 1\n__version__ = "{VERSION}"\n',
        "CITATION.cff": f"cff-version: 1.2.0\nversion: {VERSION}\ndate-released: 2026-01-31\n",
        "docs/citing.md": f"@software{{x,\n  version = {{{VERSION}}},\n}}\n",
        "CHANGELOG.md": CHANGELOG,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def change(repository, name: str, old: str, new: str) -> None:
    path = repository / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("tag", [None, f"v{VERSION}"])
def test_the_notes_are_the_newest_section(repository, tag):
    assert notes(repository, tag) == "- new\n\n### Fixed\n\n- old"


def test_another_tag_is_refused(repository):
    with pytest.raises(SystemExit, match=r"the tag is v1\.3\.1, .* version 1\.3\.0: tag v1\.3\.0"):
        notes(repository, "v1.3.1")


@pytest.mark.parametrize("file", VERSIONS)
def test_a_file_of_another_version_is_named(repository, file):
    change(repository, file, VERSION, "9.9")
    with pytest.raises(SystemExit, match=rf"versions differ: .*9\.9 in {re.escape(file)}"):
        notes(repository)


@pytest.mark.parametrize("file", VERSIONS)
def test_a_file_without_a_version_is_named(repository, file):
    change(repository, file, "version", "wersion")
    if file == "CITATION.cff":
        change(repository, file, "\nversion", "\nwersion")
    with pytest.raises(SystemExit, match=rf"{re.escape(file)}: no line like"):
        notes(repository)


def test_an_undated_section_is_only_for_the_time_before_a_release(repository):
    change(repository, "CHANGELOG.md", f"{VERSION} (2026-01-31)", "Unreleased")
    assert notes(repository).startswith("- new")
    with pytest.raises(SystemExit, match=r"newest section is 'Unreleased', expected '1\.3\.0"):
        notes(repository, f"v{VERSION}")


def test_an_empty_section_is_refused(repository):
    change(repository, "CHANGELOG.md", "\n- new\n\n### Fixed\n\n- old\n", "")
    with pytest.raises(SystemExit, match=r"the section '1\.3\.0 \(2026-01-31\)' is empty"):
        notes(repository)


def test_dates_that_differ_are_named(repository):
    change(repository, "CITATION.cff", "2026-01-31", "2026-01-30")
    with pytest.raises(SystemExit, match=r"2026-01-30 in CITATION.cff and 2026-01-31 in CHANGELOG"):
        notes(repository)


def test_this_repository_fits_and_its_newest_section_is_read_in_two_minutes():
    assert 50 < len(notes(REPOSITORY).split()) <= 500
    assert fairseq_phrase.__version__ in (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")


def test_the_release_workflow_runs_the_script_that_ci_runs():
    workflow = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(workflow)["jobs"]
    commands = " ".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert 'bash scripts/release_check.sh "$GITHUB_REF_NAME"' in commands
    assert "scripts/release_check.sh" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "build": None, "pypi": "build", "github": "pypi",
    }, "what was checked is published"  # fmt: skip
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
